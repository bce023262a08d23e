//! Packs as stripes: each container cut into fragments, parity added, each shard on a target of its own;
//! read again from any k of them, and made whole again.

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
