//! The targets used as one space: places packs on them, stripes them, finds them again and repairs
//! them.
//!
//! The crates above see packs and pack extents, and no targets. Only a check of the stored bytes
//! sees [`StoredShard`]s.

mod check;
mod command;
mod compare;
mod config;
mod container;
mod create;
mod descriptor;
mod environment;
mod exclusive;
mod fill;
mod home_targets;
mod host;
mod init_check;
mod layout;
mod location;
mod log_configuration;
mod log_move;
mod log_open;
mod log_replicas;
mod log_room;
mod marker;
mod marker_check;
mod membership;
mod pack;
mod packs;
mod paths;
mod pool;
mod read;
mod recreate;
mod redundancy;
mod repair;
mod small_files;
mod stripe;
mod targets;
mod written;

pub use check::{EachContainer, PackCheck, StoredShard};
pub use config::{FormatConfig, LogConfig, PoolConfig, Tuning};
pub use container::Container;
pub use create::{create, open, open_degraded, open_or_create};
pub use environment::Environment;
pub use exclusive::Exclusive;
pub use fill::{FillNeed, PackFill};
pub use host::ProcessMark;
pub use init_check::check_outside;
pub use log_move::LogMoved;
pub use marker_check::is_pool;
pub use membership::{TargetChange, TargetsThen};
pub use pack::{FinishedPack, PackExtent, PackWriter};
pub use packs::{PoolUsage, TargetUsage};
pub use pool::Pool;
pub use read::{Span, SpanBytes};
pub use recreate::Recreated;
pub use redundancy::{Erasure, Redundancy, TargetConfig, TargetState, Tier, TiersConfig, Writes};
pub use repair::{
    AllNamed, Named, PackRedundancy, PackRepair, PackUses, RepairOptions, RepairReport,
};
pub use stripe::ShardFault;
pub use targets::{FoundTarget, OpenTarget, Rows, StillThere, TargetLocations, TargetTable};
pub use written::Spread;
