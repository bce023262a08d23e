//! Packs as stripes: each container cut into fragments, parity added, each shard on a target of its own;
//! read again from any k of them, and made whole again.

mod read;
mod repair;
mod scan;
mod shard;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use read::read_pieces;
pub use repair::PackRepair;
pub(crate) use scan::Scan;
pub(crate) use shard::OpenShard;
pub(crate) use write::{Shards, ShardsEnd};
