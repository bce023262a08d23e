//! A raw block device as a target: shards without a file system. [`BLOCK`] names its locations,
//! such as `block:///dev/nvme1n1`. `docs/format.md` has its layout.
//!
//! Each shard has a slot, one page that says where its bytes are. A shard exists once its slot says
//! so, which is one write of a page, made after the bytes are durable. Slots are kept twice.
//!
//! Processes of one machine use a device together. Locks on the open device order their changes.
//! A page that only the page cache must keep shows each process which slots others have changed.

mod change;
mod device;
mod files;
mod init;
mod layout;
mod location;
mod locks;
mod slot;
mod space;
mod table;
mod target;
mod writer;

#[cfg(test)]
mod tests;

pub use location::BLOCK;
