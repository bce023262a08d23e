//! Inner nodes of the page tree.

use crate::codec::{Check, Reader, Writer, demand, encodable};
use crate::tree::{LEVEL_MAX, NODE_CHILDREN};
use outlive_types::{Fingerprint, Result};

const WHAT: &str = "inner node";
const MAGIC: &[u8; 4] = b"OLND";
const HEAD_BYTES: usize = 12;

/// A table of up to 512 nodes of the level below. Unlisted children are zero.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InnerNode {
    /// 1 to [`LEVEL_MAX`]; children of level 0 are leaves.
    pub level: u8,
    /// Children, without trailing zero fingerprints.
    pub children: Vec<Fingerprint>,
}

impl InnerNode {
    /// Returns a node of these children without trailing zero ones, as the format requires.
    pub fn new(level: u8, mut children: Vec<Fingerprint>) -> InnerNode {
        let last = children.iter().rposition(|child| !child.is_zero());
        children.truncate(last.map_or(0, |at| at + 1));
        InnerNode { level, children }
    }

    /// Returns true if all children are zero. Such a node is not stored; its fingerprint is
    /// [`Fingerprint::ZERO`].
    pub fn is_zero(&self) -> bool {
        self.children.iter().all(Fingerprint::is_zero)
    }

    /// Returns the child at `index`; zero if it is not listed.
    pub fn child(&self, index: usize) -> Fingerprint {
        self.children.get(index).copied().unwrap_or(Fingerprint::ZERO)
    }

    /// Encodes the node.
    ///
    /// # Errors
    /// `Bug` for a wrong level, no child, too many children, or a zero child at the end.
    pub fn encode(&self) -> Result<Vec<u8>> {
        encodable(WHAT, self.check())?;
        let mut out = Writer::begin(MAGIC, HEAD_BYTES + 32 * self.children.len());
        out.u8(self.level);
        out.reserved(1);
        out.u32(self.children.len() as u32);
        for child in &self.children {
            out.bytes(&child.0);
        }
        Ok(out.finish())
    }

    /// Reads a node from all of `bytes`.
    ///
    /// # Errors
    /// `Damaged` for anything that `encode` does not write, `Invalid` for another version.
    pub fn decode(bytes: &[u8]) -> Result<InnerNode> {
        let mut from = Reader::new(WHAT, bytes);
        from.begin(MAGIC)?;
        let level = from.u8()?;
        from.reserved(1)?;
        let count = from.u32()?;
        let count = from.count(count.into(), 32)?;
        let mut children = Vec::with_capacity(count);
        for _ in 0..count {
            children.push(from.fingerprint()?);
        }
        let node = InnerNode { level, children };
        from.accept(node.check())?;
        from.end()?;
        Ok(node)
    }

    fn check(&self) -> Check {
        demand!((1..=LEVEL_MAX).contains(&self.level), "its level is {}", self.level);
        demand!(self.children.len() <= NODE_CHILDREN, "it has {} children", self.children.len());
        demand!(self.children.last().is_some_and(|last| !last.is_zero()), "its last child is zero");
        Ok(())
    }
}
