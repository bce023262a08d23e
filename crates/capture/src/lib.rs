//! A program's memory as a source of dirty pages, and as the destination of a restore.
//!
//! [`MemorySource`] finds changed pages by hashes, which a [`ChangeTracker`] keeps from one save to
//! the next. It freezes them by copying, or leaves them live where the budget ends.
//! [`fill::Scatter`] receives restored bytes; [`lazy::LazyMemory`] receives them while the program
//! runs.

pub mod ahead;
mod arena;
pub mod fill;
mod fork;
mod freeze_method;
mod frozen;
mod in_place;
mod layout;
pub mod lazy;
mod learnt;
mod memory;
mod owned;
mod raw;
mod region;
mod runs;
mod snapshot_source;
mod source;
pub mod track;
mod tracker;
mod watch;

pub use outlive_chunk::default_threads;
pub use owned::OwnedSource;
pub use region::Region;
pub use source::MemorySource;
pub use tracker::ChangeTracker;

#[cfg(test)]
mod tests;
