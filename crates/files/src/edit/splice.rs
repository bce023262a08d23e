//! Writes the listing of an edit: parts without a changed path stay, by reference.

use super::picture::{Changed, Place};
use crate::assembly::Metadata;
use crate::listing::ListingWriter;
use crate::putter::Putter;
use crate::tree::FileTree;
use outlive_format::{Item, ItemKind, Recipe, TreeRef};
use outlive_types::Result;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::iter::Peekable;
use std::ops::Bound;

/// A listing that was stored.
pub struct Spliced {
    /// The listing.
    pub listing: TreeRef,
    /// Items that it lists.
    pub items: u64,
    /// Bytes of its files.
    pub bytes: u64,
}

/// Counts of items and of bytes of files.
#[derive(Default)]
struct Counts {
    items: u64,
    bytes: u64,
}

impl Counts {
    fn add(&mut self, item: &Item) {
        self.items += 1;
        if matches!(item.kind, ItemKind::File | ItemKind::Stream) {
            self.bytes = self.bytes.saturating_add(item.bytes);
        }
    }
}

/// Stores the listing of `tree` with the changes.
///
/// # Errors
/// Errors of the listing and of the pool.
pub fn splice(
    putter: &Putter<'_>,
    tree: Option<&FileTree>,
    changed: &Changed,
    meta: &mut Metadata<'_>,
) -> Result<Spliced> {
    let meta = RefCell::new(meta);
    let mut store = |bytes: &[u8]| meta.borrow_mut().chunk(bytes);
    let mut emit = |recipe: &Recipe| meta.borrow_mut().recipe(recipe);
    let format = &putter.pool.config().format;
    let (mut before, mut after) = (Counts::default(), Counts::default());
    let mut writer = ListingWriter::new(format);
    let mut write = |writer: &mut ListingWriter, item: &Item| {
        after.add(item);
        writer.push(item, &mut store, &mut emit)
    };
    let Some(tree) = tree else {
        changed.values().flatten().try_for_each(|item| write(&mut writer, item))?;
        let listing = writer.finish(after.items, &mut store, &mut emit)?;
        return Ok(Spliced { listing, items: after.items, bytes: after.bytes });
    };
    let last = tree.spans() - 1;
    // The last part has the end of the listing, which counts all items.
    let mut affected = BTreeSet::from([last]);
    for place in changed.keys() {
        affected.insert(tree.span_of(&place.0)?);
    }
    if !affected.contains(&0) {
        writer = ListingWriter::within(format);
    }
    let chunks = tree.image().listing_chunks();
    // Changes up to this place were written.
    let mut done: Bound<Place> = Bound::Unbounded;
    for span in 0..=last {
        if writer.is_at_a_cut() && !affected.contains(&span) {
            for chunk in &chunks[tree.span_chunks(span)] {
                writer.reuse(*chunk, &mut |recipe| meta.borrow_mut().recipe(recipe))?;
            }
            continue;
        }
        let items = tree.span(span)?;
        let next = if span == last { None } else { tree.first_of(span + 1)? };
        let end = next.map_or(Bound::Unbounded, |first| Bound::Excluded(Place(first)));
        let mut here = changed.range((done, end.clone())).peekable();
        for item in items.iter() {
            before.add(item);
            let is_replaced = merge_up_to(&mut here, item, &mut |new| write(&mut writer, new))?;
            if !is_replaced {
                write(&mut writer, item)?;
            }
        }
        here.filter_map(|(_, item)| item.as_ref()).try_for_each(|item| write(&mut writer, item))?;
        done = match end {
            Bound::Excluded(place) => Bound::Included(place),
            _ => Bound::Unbounded,
        };
    }
    let manifest = tree.image().manifest();
    let items = tree.image().listed_items() - before.items + after.items;
    let bytes = (manifest.state_bytes() - before.bytes).saturating_add(after.bytes);
    let listing = writer.finish(items, &mut store, &mut emit)?;
    Ok(Spliced { listing, items, bytes })
}

/// Writes the changed items that come before an item; returns whether the item has changed itself.
fn merge_up_to<'c>(
    here: &mut Peekable<impl Iterator<Item = (&'c Place, &'c Option<Item>)>>,
    item: &Item,
    write: &mut dyn FnMut(&Item) -> Result<()>,
) -> Result<bool> {
    let place = Place(item.path.clone());
    let mut is_replaced = false;
    while let Some((at, new)) = here.next_if(|(at, _)| **at <= place) {
        is_replaced = *at == place;
        new.iter().try_for_each(&mut *write)?;
    }
    Ok(is_replaced)
}
