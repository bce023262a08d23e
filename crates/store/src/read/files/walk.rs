//! Finds the data that a checkpoint of files needs, for a gc.

use super::listing::ListingChunks;
use super::recipe::Pieces;
use crate::index::{Locator, Pages, ReadItem};
use crate::read::{Live, Lost, NeedsVisitor};
use outlive_format::{Content, ListingReader, Piece, TreeRef};
use outlive_pool::Pool;
use outlive_types::{ErrorKind, Fingerprint, Result};

/// Distinguishes recipes from nodes of page trees in `visited`.
pub const RECIPE: u8 = 0x80;

/// Finds every node and chunk that the listing at `root` needs. The locator must know all nodes,
/// and the chunks of the listing itself.
///
/// # Errors
/// `Damaged` if the listing or a recipe is missing or wrong, unless `lost` takes that; errors of
/// `needs`.
pub fn walk_files(
    pool: &Pool,
    locator: &Locator,
    root: TreeRef,
    needs: &mut dyn NeedsVisitor,
    mut lost: Lost<'_>,
) -> Result<()> {
    if !needs.enter((root.root, RECIPE), None) {
        return Ok(());
    }
    let walked = walk_listing(pool, locator, root, needs, &mut lost);
    match (walked, lost) {
        // A reader of the listing gets no further either.
        (Err(error), Some(lost)) if error.kind() == ErrorKind::Damaged => {
            lost(root.root);
            Ok(())
        }
        (walked, _) => walked,
    }
}

fn walk_listing(
    pool: &Pool,
    locator: &Locator,
    root: TreeRef,
    needs: &mut dyn NeedsVisitor,
    lost: &mut Lost<'_>,
) -> Result<()> {
    let of = (root.root, RECIPE);
    let listing = ListingChunks::read(pool, locator, root)?;
    for recipe in &listing.recipes {
        needs.add(of, Live::Node(ReadItem { fp: *recipe, extent: locator.find(recipe)? }))?;
    }
    let mut reader = ListingReader::new();
    for batch in listing.chunks.chunks(64) {
        for piece in batch {
            needs.add(of, Live::Chunk(piece.fp, Pages::Whole))?;
        }
        for bytes in super::recipe::read_pieces(pool, locator, batch)? {
            reader.push(&bytes);
            while let Some(item) = reader.next_item()? {
                match &item.content {
                    Content::Empty | Content::Inline(_) => {}
                    Content::Pieces(pieces) => {
                        for piece in pieces.iter().filter(|piece| !piece.is_zeros()) {
                            needs.add(of, Live::Chunk(piece.fp, Pages::Whole))?;
                        }
                    }
                    Content::Recipe(recipe) => {
                        if needs.enter((*recipe, RECIPE), Some(of)) {
                            match (content(pool, locator, *recipe, item.bytes, needs), &mut *lost) {
                                (Err(error), Some(lost)) if error.kind() == ErrorKind::Damaged => {
                                    lost(*recipe);
                                }
                                (walked, _) => walked?,
                            }
                        }
                    }
                }
            }
        }
    }
    reader.finish().map(|_| ())
}

fn content(
    pool: &Pool,
    locator: &Locator,
    root: Fingerprint,
    bytes: u64,
    needs: &mut dyn NeedsVisitor,
) -> Result<()> {
    let of = (root, RECIPE);
    let mut recipes = Vec::new();
    let mut seen = |fp| recipes.push(fp);
    let read = |pieces: &[Piece]| super::recipe::read_pieces(pool, locator, pieces);
    let mut pieces = Pieces::of(&read, root, bytes, &mut seen)?;
    while let Some(piece) = pieces.next_piece()? {
        if !piece.is_zeros() {
            needs.add(of, Live::Chunk(piece.fp, Pages::Whole))?;
        }
    }
    let mut node = |fp| needs.add(of, Live::Node(ReadItem { fp, extent: locator.find(&fp)? }));
    recipes.into_iter().try_for_each(&mut node)
}

/// Returns the fingerprints of a listing's own chunks; the locator needs to know only nodes.
///
/// # Errors
/// `Damaged` if a recipe is missing or wrong.
pub fn listing_chunks(pool: &Pool, nodes: &Locator, root: TreeRef) -> Result<Vec<Fingerprint>> {
    let listing = ListingChunks::read(pool, nodes, root)?;
    Ok(listing.chunks.iter().map(|piece| piece.fp).collect())
}
