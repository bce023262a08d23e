//! The targets used as one space: where packs are placed, striped, found again, and made whole again.
//!
//! Everything above speaks of packs and places only. Nobody above has a target in hand; whoever checks
//! what lies on the media sees [`StoredShard`]s.

mod alone;
mod anew;
mod check;
mod command;
mod compare;
mod config;
mod container;
mod create;
mod descriptor;
mod environment;
mod fill;
mod home;
mod home_targets;
mod host;
mod layout;
mod location;
mod log_move;
mod log_open;
mod log_places;
mod log_room;
mod log_set;
mod marker;
mod membership;
mod pack;
mod packs;
mod place;
mod places;
mod pool;
mod read;
mod redundancy;
mod repair;
mod stripe;
mod targets;
mod texts;
mod written;

pub use alone::Alone;
pub use anew::Anew;
pub use check::{EachContainer, PackCheck, StoredShard};
pub use config::{FormatConfig, LogConfig, PoolConfig, Tuning};
pub use container::Container;
pub use create::{create, open, open_degraded, open_or_create};
pub use environment::Environment;
pub use fill::{FillNeed, PackFill};
pub use host::ProcessMark;
pub use log_move::LogMoved;
pub use membership::{TargetChange, TargetsThen};
pub use pack::{FinishedPack, PackWriter, Place};
pub use packs::{PoolUsage, TargetUsage};
pub use place::is_pool;
pub use places::check_outside;
pub use pool::Pool;
pub use read::{Span, SpanBytes};
pub use redundancy::{Erasure, Redundancy, TargetConfig, TargetState, Tier, TiersConfig, Writes};
pub use repair::{
    AllNamed, Named, PackRedundancy, PackRepair, PackUses, RepairOptions, RepairReport,
};
pub use stripe::ShardFault;
pub use targets::{FoundPlace, OpenTarget, Rows, StillThere, TargetPlaces, TargetTable};
pub use written::Spread;
