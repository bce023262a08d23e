//! The targets used as one space: where packs are placed, striped (later) and found again.
//!
//! Today a pool is one target without redundancy, so shard 0 is the pack; everything above speaks
//! of packs and places only, which is what striping and parity need to slip in here. Nobody above has
//! a target in hand; whoever checks what lies on the media sees [`StoredShard`]s.

mod check;
mod command;
mod config;
mod container;
mod create;
mod environment;
mod location;
mod pack;
mod packs;
mod place;
mod pool;
mod read;
mod target_set;

pub use check::{EachFragment, StoredShard};
pub use config::{FormatConfig, PoolConfig, TargetConfig, Tuning};
pub use container::Container;
pub use create::{check_outside, create, open, open_or_create};
pub use environment::Environment;
pub use pack::{FinishedPack, PackWriter, Place};
pub use packs::{PoolUsage, TargetUsage};
pub use pool::Pool;
pub use read::{Span, SpanBytes};
