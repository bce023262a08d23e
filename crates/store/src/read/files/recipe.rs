//! Reads recipes step by step, so that no recipe is in memory as a whole.

use crate::index::Locator;
use crate::index::ReadItem;
use crate::read::{ReadPlan, Verified};
use outlive_format::{Piece, Recipe};
use outlive_pool::Pool;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Fingerprint, Result};
use std::ops::Range;

/// Reads recipes, or the chunks of a listing: all of them at once, in container order.
///
/// # Errors
/// `Damaged` if one is missing, wrong, or differs in length from its piece (0: any length).
pub fn read_pieces(pool: &Pool, locator: &Locator, pieces: &[Piece]) -> Result<Vec<Vec<u8>>> {
    let wanted = pieces.iter().map(|piece| {
        let extent = locator.find(&piece.fp)?;
        if piece.bytes > 0 && u64::from(extent.length) != piece.bytes {
            return Err(wrong_length(piece, extent.length));
        }
        Ok(ReadItem { fp: piece.fp, extent })
    });
    let wanted = wanted.collect::<Result<Vec<ReadItem>>>()?;
    let out = Mutex::new(vec![Vec::new(); wanted.len()]);
    let take = |at: usize, there: Verified<'_>| {
        let bytes = there.whole()?.to_vec();
        out.lock()[at] = bytes;
        Ok(())
    };
    let threads = pool.config().tuning.threads();
    match ReadPlan::new(pool, &wanted).execute(pool, threads, false, &take).into_iter().next() {
        Some(fault) => Err(fault.error),
        None => Ok(out.into_inner()),
    }
}

/// A function that reads recipes, all of them at once, as [`read_pieces`] does.
pub type Read<'r> = dyn Fn(&[Piece]) -> Result<Vec<Vec<u8>>> + 'r;

/// Returns the error for a chunk whose length differs from its recipe or item.
pub fn wrong_length(piece: &Piece, there: u32) -> Error {
    let Piece { fp, bytes } = piece;
    Error::damaged(format!("chunk {fp:?} has {there} bytes, not {bytes}"))
}

/// The pieces below a recipe, in the order of the stream. Keeps the recipes of one node for each
/// level in memory.
pub struct Pieces<'a> {
    read: &'a Read<'a>,
    /// Recipes whose children are still to come, the deepest level last; in each level the next one
    /// last.
    open: Vec<(u8, Vec<OpenRecipe>)>,
    /// Called with each recipe's fingerprint.
    seen: &'a mut dyn FnMut(Fingerprint),
    pieces: std::vec::IntoIter<Piece>,
}

/// A recipe that was read, but whose children were not.
struct OpenRecipe(Recipe);

impl<'a> Pieces<'a> {
    /// Returns the pieces below `root`.
    ///
    /// # Errors
    /// `Damaged` if `root` is missing or wrong, or the stream is not `bytes` long.
    pub fn of(
        read: &'a Read<'a>,
        root: Fingerprint,
        bytes: u64,
        seen: &'a mut dyn FnMut(Fingerprint),
    ) -> Result<Pieces<'a>> {
        let first = read_recipes(read, &[Piece { fp: root, bytes }], None)?;
        seen(root);
        let level = first.first().map_or(0, |recipe| recipe.0.level);
        let open = vec![(level, first)];
        Ok(Pieces { read, open, seen, pieces: Vec::new().into_iter() })
    }

    /// Returns the next piece.
    ///
    /// # Errors
    /// `Damaged` if a recipe is missing or wrong.
    pub fn next_piece(&mut self) -> Result<Option<Piece>> {
        loop {
            if let Some(piece) = self.pieces.next() {
                return Ok(Some(piece));
            }
            let Some((level, waiting)) = self.open.last_mut() else { return Ok(None) };
            let level = *level;
            match waiting.pop() {
                None => {
                    self.open.pop();
                }
                Some(OpenRecipe(recipe)) if level == 0 => self.pieces = recipe.children.into_iter(),
                Some(OpenRecipe(recipe)) => {
                    let children = &recipe.children;
                    let below = Some(level - 1);
                    let mut read = read_recipes(self.read, children, below)?;
                    children.iter().for_each(|child| (self.seen)(child.fp));
                    read.reverse();
                    self.open.push((level - 1, read));
                }
            }
        }
    }
}

fn read_recipes(read: &Read<'_>, children: &[Piece], level: Option<u8>) -> Result<Vec<OpenRecipe>> {
    let nodes: Vec<Piece> = children.iter().map(|child| Piece { bytes: 0, ..*child }).collect();
    let read = read(&nodes)?;
    children
        .iter()
        .zip(read)
        .map(|(child, bytes)| {
            let recipe = Recipe::decode(&bytes)?;
            if level.is_some_and(|level| level != recipe.level) || recipe.bytes() != child.bytes {
                return Err(Error::damaged(format!(
                    "recipe {:?} is not what refers to it expects",
                    child.fp
                )));
            }
            Ok(OpenRecipe(recipe))
        })
        .collect()
}

/// Calls `each` for `root` and all recipes below it, without reading those of level 0.
///
/// # Errors
/// `Damaged` if a recipe is missing or wrong.
pub fn recipes_below(
    read: &Read<'_>,
    root: Piece,
    each: &mut dyn FnMut(Fingerprint),
) -> Result<()> {
    let mut wave = read_recipes(read, &[root], None)?;
    each(root.fp);
    while let Some(OpenRecipe(recipe)) = wave.pop() {
        if recipe.level == 0 {
            continue;
        }
        recipe.children.iter().for_each(|child| each(child.fp));
        if recipe.level > 1 {
            let below = Some(recipe.level - 1);
            wave.extend(read_recipes(read, &recipe.children, below)?);
        }
    }
    Ok(())
}

/// Returns the pieces below `root` in a range of its stream, each with its offset in the stream.
/// Reads only the recipes above them, level by level.
///
/// # Errors
/// `Damaged` if a recipe is missing or wrong.
pub fn pieces_within(
    read: &Read<'_>,
    root: Piece,
    range: &Range<u64>,
) -> Result<Vec<(u64, Piece)>> {
    let mut wave = vec![(0, root)];
    let mut level = None;
    loop {
        let nodes: Vec<Piece> = wave.iter().map(|(_, piece)| *piece).collect();
        let recipes = read_recipes(read, &nodes, level)?;
        let reached = recipes.first().map_or(0, |recipe| recipe.0.level);
        let mut below = Vec::new();
        for ((from, _), OpenRecipe(recipe)) in wave.iter().zip(recipes) {
            let mut at = *from;
            for child in recipe.children {
                let end = at + child.bytes;
                if at < range.end && end > range.start {
                    below.push((at, child));
                }
                at = end;
            }
        }
        if reached == 0 || below.is_empty() {
            return Ok(below);
        }
        (wave, level) = (below, Some(reached - 1));
    }
}
