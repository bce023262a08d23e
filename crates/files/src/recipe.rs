//! Builds recipes while pieces arrive.

use outlive_format::{Piece, RECIPE_LEVEL_MAX, Recipe};
use outlive_types::{Error, Fingerprint, Result};

/// Average number of children of a recipe, each of which may end it: a change costs a recipe of
/// this length on each level.
const CHILDREN_AVERAGE: u16 = 256;
/// Fewest children of a recipe except for the last of its level, so that levels stay few.
const CHILDREN_MIN: usize = 32;

/// Stores a recipe and returns its fingerprint.
pub type Emit<'e> = dyn FnMut(&Recipe) -> Result<Fingerprint> + 'e;

/// Collects a stream's pieces in recipes. Memory: at most 4096 pieces a level.
#[derive(Debug)]
pub struct RecipeBuilder {
    /// Most children of a recipe.
    children_max: usize,
    levels: Vec<Vec<Piece>>,
}

impl RecipeBuilder {
    /// Returns a builder for a pool with containers of this length: a recipe must fit into one.
    pub fn new(container_bytes: u64) -> RecipeBuilder {
        let children_max = Recipe::children_in(container_bytes);
        RecipeBuilder { children_max, levels: Vec::new() }
    }

    /// Adds the next piece. Neighbouring zeros become one.
    ///
    /// # Errors
    /// Errors of `emit`.
    pub fn push(&mut self, piece: Piece, emit: &mut Emit<'_>) -> Result<()> {
        if let Some(last) = self.levels.first_mut().and_then(|pieces| pieces.last_mut())
            && last.is_zeros()
            && piece.is_zeros()
        {
            last.bytes += piece.bytes;
            return Ok(());
        }
        self.add(0, piece, emit)
    }

    fn add(&mut self, level: usize, piece: Piece, emit: &mut Emit<'_>) -> Result<()> {
        if self.levels.len() == level {
            self.levels.push(Vec::new());
        }
        let children = &mut self.levels[level];
        // The last child decides the end of a recipe, but a piece of zeros may still grow. So a
        // full recipe is closed when the next child comes.
        if children.len() == self.children_max {
            self.close(level, emit)?;
        }
        let children = &mut self.levels[level];
        children.push(piece);
        let [a, b, ..] = piece.fp.0;
        let ends = u16::from_le_bytes([a, b]).is_multiple_of(CHILDREN_AVERAGE);
        if ends && !piece.is_zeros() && children.len() >= CHILDREN_MIN {
            self.close(level, emit)?;
        }
        Ok(())
    }

    fn close(&mut self, level: usize, emit: &mut Emit<'_>) -> Result<()> {
        let children = std::mem::take(&mut self.levels[level]);
        if level > usize::from(RECIPE_LEVEL_MAX) {
            return Err(Error::invalid("a file is too long to be described"));
        }
        let recipe = Recipe { level: level as u8, children };
        let piece = Piece { fp: emit(&recipe)?, bytes: recipe.bytes() };
        self.add(level + 1, piece, emit)
    }

    /// Returns the root. At least one piece must have been added.
    ///
    /// # Errors
    /// Errors of `emit`.
    pub fn finish(mut self, emit: &mut Emit<'_>) -> Result<Fingerprint> {
        let mut level = 0;
        while level < self.levels.len() {
            let is_top = level + 1 == self.levels.len();
            if let ([only], true) = (&self.levels[level][..], is_top && level > 0) {
                return Ok(only.fp);
            }
            if !self.levels[level].is_empty() {
                self.close(level, emit)?;
            }
            level += 1;
        }
        Err(Error::bug("a recipe of nothing was asked for"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_chunk::fingerprint;
    use std::collections::HashMap;

    type Nodes = HashMap<Fingerprint, Recipe>;

    const CONTAINER_BYTES: u64 = 64 << 10;

    fn build(pieces: &[Piece]) -> (Fingerprint, Nodes) {
        let mut nodes = Nodes::new();
        let mut emit = |recipe: &Recipe| {
            let bytes = recipe.encode()?;
            assert!(bytes.len() as u64 <= CONTAINER_BYTES, "{} children", recipe.children.len());
            let fp = fingerprint(&bytes);
            nodes.insert(fp, recipe.clone());
            Ok(fp)
        };
        let mut builder = RecipeBuilder::new(CONTAINER_BYTES);
        pieces.iter().try_for_each(|piece| builder.push(*piece, &mut emit)).unwrap();
        let root = builder.finish(&mut emit).unwrap();
        (root, nodes)
    }

    fn flatten(root: Fingerprint, nodes: &Nodes) -> Vec<Piece> {
        let recipe = &nodes[&root];
        if recipe.level == 0 {
            return recipe.children.clone();
        }
        recipe.children.iter().flat_map(|child| flatten(child.fp, nodes)).collect()
    }

    fn piece(number: u64) -> Piece {
        Piece { fp: fingerprint(&number.to_le_bytes()), bytes: number % 1000 + 1 }
    }

    #[test]
    fn recipes_have_all_pieces_and_a_change_costs_few_recipes() {
        for count in [1, 2, 31, 32, 33, 5000, 100_000] {
            let pieces: Vec<Piece> = (0..count).map(piece).collect();
            let (root, nodes) = build(&pieces);
            assert_eq!(flatten(root, &nodes), pieces, "{count}");
            let mut changed = pieces.clone();
            changed.insert(pieces.len() / 2, piece(u64::MAX));
            let (root, after) = build(&changed);
            assert_eq!(flatten(root, &after), changed);
            let new = after.keys().filter(|fp| !nodes.contains_key(fp)).count();
            assert!(new <= 6, "{new} of {} recipes are new", after.len());
        }
    }

    #[test]
    fn equal_pieces_and_zeros_do_not_make_it_deep() {
        // Each of these pieces would end its recipe.
        let ending = (0..).map(piece).find(|piece| piece.fp.0[0] == 0).unwrap();
        let (root, nodes) = build(&vec![ending; 100_000]);
        assert!(nodes[&root].level <= 4, "level {}", nodes[&root].level);
        assert_eq!(flatten(root, &nodes).len(), 100_000);
        // None of these pieces ends a recipe: recipes grow until they are full.
        let endless = (0..).map(piece).find(|piece| piece.fp.0[0] != 0).unwrap();
        let (root, nodes) = build(&vec![endless; 100_000]);
        assert_eq!(flatten(root, &nodes).len(), 100_000);
        let (root, nodes) = build(&vec![Piece::zeros(1 << 30); 10_000]);
        assert_eq!(flatten(root, &nodes), [Piece::zeros(10_000 << 30)]);
    }
}
