//! Moves bytes between memory and disk: aligned buffers from a bounded pool, work in flight as
//! tickets, and the engine whose threads carry it out. One of the rooms where `unsafe` is allowed.

#[cfg(test)]
mod asleep;
mod buffer;
mod copy;
mod direct;
mod engine;
mod file;
pub mod fresh;
#[doc(hidden)]
pub mod mapped;
mod per_process;
mod pool;
mod priority;
pub mod raw;
mod spare;
mod ticket;

pub use buffer::AlignedBuf;
pub use copy::{copy_past_cache, gather_past_cache};
pub use direct::DirectFile;
pub use engine::{DEPTH_DEFAULT, DiskEngine};
pub use file::{read_at, write_all_at};
pub use per_process::PerProcess;
pub use pool::StagingPool;
pub use priority::make_way;
pub use spare::SpareCores;
pub use ticket::{Promise, Ticket};
