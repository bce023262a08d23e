//! Packs as stripes: each container is cut into fragments, parity is added, and each shard is on
//! its own target. Packs are read from any k of the shards, and repaired.

mod copy;
mod read;
mod scan;
mod shard;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use copy::{NewShard, shard_bytes, write_shards};
pub(crate) use read::read_pieces;
pub use scan::ShardFault;
pub(crate) use scan::{Breadth, Scan};
pub(crate) use shard::OpenShard;
pub(crate) use write::{Shards, ShardsEnd};
