//! A reference to a page tree, and the tree's shape, which depends only on the stream's length.

use crate::codec::{Check, Reader, Writer, demand};
use outlive_types::{BLOCK_BYTES, Fingerprint, Result, blocks_of};

/// Most children of an inner node.
pub const NODE_CHILDREN: usize = 512;
/// Level of the highest tree's root.
pub const LEVEL_MAX: u8 = 3;
/// Longest stream: 2^48 bytes.
pub const STREAM_BYTES_MAX: u64 =
    (BLOCK_BYTES as u64) * (NODE_CHILDREN as u64).pow(LEVEL_MAX as u32);

/// Returns the level of the root of a stream of `bytes` bytes: 0 (a leaf) up to one block, one more
/// for each factor of 512. Above [`STREAM_BYTES_MAX`] no tree exists, and the result is above
/// [`LEVEL_MAX`].
pub const fn tree_level(bytes: u64) -> u8 {
    let mut level = 0;
    let mut nodes = blocks_of(bytes);
    while nodes > 1 {
        nodes = nodes.div_ceil(NODE_CHILDREN as u64);
        level += 1;
    }
    level
}

/// The page tree of one stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TreeRef {
    /// Length of the stream.
    pub bytes: u64,
    /// The root node's fingerprint; zero if all pages are zero.
    pub root: Fingerprint,
}

impl TreeRef {
    /// A stream of no bytes, to which an image without packed stream refers.
    pub const EMPTY: TreeRef = TreeRef { bytes: 0, root: Fingerprint::ZERO };
    /// Length of an encoded reference in bytes.
    pub(crate) const ENCODED_BYTES: usize = 48;

    /// Returns the level of the root, see [`tree_level`].
    pub fn level(&self) -> u8 {
        tree_level(self.bytes)
    }

    pub(crate) fn check(&self) -> Check {
        demand!(
            self.bytes <= STREAM_BYTES_MAX,
            "a stream of {} bytes is longer than {STREAM_BYTES_MAX}",
            self.bytes
        );
        demand!(self.bytes > 0 || self.root.is_zero(), "an empty stream has a root");
        Ok(())
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        out.u64(self.bytes);
        self.write_rest(out);
    }

    /// Writes level, reserved bytes and root, as in the catalog.
    pub(crate) fn write_rest(&self, out: &mut Writer) {
        out.u8(self.level());
        out.reserved(7);
        out.bytes(&self.root.0);
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<TreeRef> {
        let bytes = from.u64()?;
        TreeRef::read_rest(bytes, from)
    }

    /// Reads level and root. The reader of the whole structure calls [`TreeRef::check`].
    pub(crate) fn read_rest(bytes: u64, from: &mut Reader<'_>) -> Result<TreeRef> {
        let level = from.u8()?;
        from.reserved(7)?;
        let tree = TreeRef { bytes, root: from.fingerprint()? };
        if level != tree.level() {
            return Err(from.damaged(format!(
                "the tree of {bytes} bytes is said to have level {level}, not {}",
                tree.level()
            )));
        }
        Ok(tree)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_follow_the_length() {
        let block = BLOCK_BYTES as u64;
        for (bytes, level) in [
            (0, 0),
            (1, 0),
            (block, 0),
            (block + 1, 1),
            (block << 9, 1),
            ((block << 9) + 1, 2),
            (block << 18, 2),
            ((block << 18) + 1, 3),
            (1 << 48, 3),
            ((1 << 48) + 1, 4),
        ] {
            assert_eq!(tree_level(bytes), level, "{bytes} bytes");
        }
        assert_eq!(STREAM_BYTES_MAX, 1 << 48);
        assert!(tree_level(u64::MAX) > LEVEL_MAX);
    }
}
