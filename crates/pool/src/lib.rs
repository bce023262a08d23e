//! The targets used as one space: where packs are placed, striped (later) and found again.
//!
//! Today a pool is one target without redundancy, so shard 0 is the pack; everything above speaks
//! of packs and places only, which is what striping and parity need to slip in here.

mod command;
mod config;
mod container;
mod create;
mod pack;
mod pool;
mod read;

pub use config::{FormatConfig, PoolConfig, Tuning};
pub use container::Container;
pub use create::{check_outside, create, open, open_or_create};
pub use pack::{FinishedPack, PackWriter, Place};
pub use pool::{Environment, Pool};
pub use read::{Span, SpanBytes};
