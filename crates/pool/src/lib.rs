//! The targets used as one space: places packs on them, stripes them, finds them again and repairs
//! them.
//!
//! The crates above see packs and pack extents, and no targets. Only a check of the stored bytes
//! sees [`StoredShard`]s, and only a probe sees the targets ([`Probing`]).

mod command;
mod create;
mod descriptor;
mod environment;
mod host;
mod layout;
mod log;
mod log_move;
mod new_key;
mod opening;
mod pack;
mod pool;
mod probing;
mod repair;
mod run_files;
mod stripe;
mod targets;
mod written;

pub use create::{create, open, open_degraded, open_or_create, open_to_take_a_seat};
pub use descriptor::config::{FormatConfig, LogConfig, PoolConfig, Tuning};
pub use descriptor::encryption::EncryptionConfig;
pub use descriptor::redundancy::{
    Erasure, FillEvery, Redundancy, TargetConfig, TargetState, Tier, TiersConfig, Writes,
};
pub use environment::Environment;
pub use host::ProcessMark;
pub use log_move::LogMoved;
pub use opening::init_check::check_outside;
pub use opening::marker_check::is_pool;
pub use outlive_encrypt::PoolKey;
pub use pack::check::{EachContainer, PackCheck, StoredShard};
pub use pack::container::Container;
pub use pack::packs::{PoolUsage, TargetUsage};
pub use pack::read::{Span, SpanBytes};
pub use pack::writer::{FinishedPack, PackExtent, PackWriter};
pub use pool::Pool;
pub use probing::{ProbedTarget, Probing};
pub use repair::exclusive::Exclusive;
pub use repair::fill::{FillNeed, PackFill};
pub use repair::membership::{TargetChange, TargetsThen};
pub use repair::recreate::{ClosedSeat, Recreated};
pub use repair::seats::{Seat, SeatState};
pub use repair::{
    AllNamed, Named, PackRedundancy, PackRepair, PackUses, RepairOptions, RepairReport,
};
pub use run_files::host_name;
pub use stripe::ShardFault;
pub use targets::{FoundTarget, OpenTarget, Rows, StillThere, TargetLocations, TargetTable};
pub use written::Spread;
