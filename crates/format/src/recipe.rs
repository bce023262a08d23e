//! Recipes: the pieces of a stream that was cut by content.

use crate::codec::{Check, Reader, Writer, demand, encodable};
use outlive_types::{Fingerprint, Result};

const WHAT: &str = "recipe";
const MAGIC: &[u8; 4] = b"OLRN";
const HEAD_BYTES: usize = 12;
/// Length of an encoded piece in bytes.
pub(crate) const PIECE_BYTES: usize = 40;
/// Level of the highest recipe.
pub const RECIPE_LEVEL_MAX: u8 = 7;
/// Most children of a recipe.
pub const RECIPE_CHILDREN_MAX: usize = 4096;
/// Longest stream that recipes describe: 2^62 bytes.
pub const RECIPE_BYTES_MAX: u64 = 1 << 62;

/// A run of a stream's bytes: a chunk, the stream of a recipe, or zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Piece {
    /// Fingerprint of the chunk or recipe; [`Fingerprint::ZERO`] for zeros, which are not stored.
    pub fp: Fingerprint,
    /// Its length, at least 1.
    pub bytes: u64,
}

impl Piece {
    /// Returns a piece of `bytes` zeros.
    pub const fn zeros(bytes: u64) -> Piece {
        Piece { fp: Fingerprint::ZERO, bytes }
    }

    /// Returns true for zeros.
    pub fn is_zeros(&self) -> bool {
        self.fp.is_zero()
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.bytes(&self.fp.0);
        out.u64(self.bytes);
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Piece> {
        Ok(Piece { fp: from.fingerprint()?, bytes: from.u64()? })
    }
}

/// Checks adjacent pieces of a stream: none is empty, no two neighbours are zeros, and the sum is
/// not too long. Returns their total length.
pub(crate) fn check_pieces(pieces: &[Piece]) -> std::result::Result<u64, String> {
    let mut bytes = 0_u64;
    let mut zeros_before = false;
    for piece in pieces {
        demand!(piece.bytes > 0, "a piece is empty");
        demand!(!(zeros_before && piece.is_zeros()), "neighbouring zeros are two pieces");
        zeros_before = piece.is_zeros();
        bytes = bytes.saturating_add(piece.bytes);
    }
    demand!(bytes <= RECIPE_BYTES_MAX, "its pieces have more than 2^62 bytes");
    Ok(bytes)
}

/// A table of up to 4096 pieces of a stream, or of recipes of the level below.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recipe {
    /// 0 if the children are pieces; otherwise they are recipes of this level less one.
    pub level: u8,
    /// Children in the order of the stream.
    pub children: Vec<Piece>,
}

impl Recipe {
    /// Returns the number of children that a recipe of `bytes` bytes may have.
    pub fn children_in(bytes: u64) -> usize {
        (usize::try_from(bytes).unwrap_or(usize::MAX).saturating_sub(HEAD_BYTES) / PIECE_BYTES)
            .min(RECIPE_CHILDREN_MAX)
    }

    /// Returns the length of the stream that it describes, in bytes.
    pub fn bytes(&self) -> u64 {
        self.children.iter().map(|child| child.bytes).fold(0, u64::saturating_add)
    }

    /// Encodes the recipe.
    ///
    /// # Errors
    /// `Bug` for a wrong level, no child or too many, or invalid children.
    pub fn encode(&self) -> Result<Vec<u8>> {
        encodable(WHAT, self.check())?;
        let mut out = Writer::begin(MAGIC, HEAD_BYTES + PIECE_BYTES * self.children.len());
        out.u8(self.level);
        out.reserved(1);
        out.u32(self.children.len() as u32);
        self.children.iter().for_each(|child| child.write(&mut out));
        Ok(out.finish())
    }

    /// Reads a recipe from all of `bytes`.
    ///
    /// # Errors
    /// `Damaged` for anything that `encode` does not write, `Invalid` for another version.
    pub fn decode(bytes: &[u8]) -> Result<Recipe> {
        let mut from = Reader::new(WHAT, bytes);
        from.begin(MAGIC)?;
        let level = from.u8()?;
        from.reserved(1)?;
        let count = from.u32()?;
        let count = from.count(count.into(), PIECE_BYTES)?;
        let mut children = Vec::with_capacity(count);
        for _ in 0..count {
            children.push(Piece::read(&mut from)?);
        }
        let recipe = Recipe { level, children };
        from.accept(recipe.check())?;
        from.end()?;
        Ok(recipe)
    }

    fn check(&self) -> Check {
        demand!(self.level <= RECIPE_LEVEL_MAX, "its level is {}", self.level);
        let count = self.children.len();
        demand!((1..=RECIPE_CHILDREN_MAX).contains(&count), "it has {count} children");
        demand!(
            self.level == 0 || !self.children.iter().any(Piece::is_zeros),
            "a recipe below it is zero"
        );
        check_pieces(&self.children).map(|_| ())
    }
}
