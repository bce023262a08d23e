//! Moves bytes between memory and disk: aligned buffers from a bounded pool, work in flight as
//! tickets, the engine whose threads run it, and a timer for later work. This crate may use
//! `unsafe`.

#[cfg(test)]
mod asleep;
mod blocking;
mod buffer;
mod completions;
mod copy;
mod direct;
mod engine;
mod exit;
mod file;
pub mod fresh;
#[doc(hidden)]
pub mod mapped;
mod memory;
mod own_engine;
mod own_file;
mod pace;
mod page_cache;
mod per_process;
mod pool;
mod priority;
pub mod raw;
mod spare;
mod stdio;
mod ticket;
mod timer;

pub use blocking::{StandIn, blocking, stand_in};
pub use buffer::{AlignedBuf, SharedBuf, WeakBuffer};
pub use completions::Completions;
pub use copy::{copy_past_cache, gather_past_cache};
pub use direct::DirectFile;
pub use engine::{DEPTH_DEFAULT, DiskEngine};
pub use exit::on_exit;
pub use file::{read_at, write_all_at};
pub use own_engine::OwnEngine;
pub use own_file::OwnFile;
pub use pace::Pace;
pub use per_process::PerProcess;
pub use pool::StagingPool;
pub use priority::make_way;
pub use spare::SpareCores;
pub use stdio::flush_stdio;
pub use ticket::{Promise, Ticket};
pub use timer::{SystemTimer, Timer};
