//! A group: the ranks of one program, whose images belong together. One checkpoint has the images
//! of all ranks, and exists once rank 0 has committed it.
//!
//! A save begins on the threads that call it, through the [`Coordinator`]: rank 0 opens the
//! session, and every rank learns of it and freezes. Then the program continues. The rest happens
//! in the background, through the pool: each rank reports in the log that its image is stored, rank
//! 0 commits, and informs the others. So no thread of outlive's own ever calls the coordinator,
//! which may be MPI.
//!
//! - `calls`: a coordinator for ranks that have only the pool in common; `call_messages`: its
//!   messages in the log.
//! - `agree`: one outcome for all ranks.
//! - `mail`: messages of ranks in the log during a save.
//! - `claims`: whether all ranks save regions that belong together.
//! - `member`: a rank's part in a save.
//! - `pulse`: signs of life.
//! - `write_scheduler`: when each rank writes.
//! - `watch`: whether another writer has taken over.
//! - `restore`: one epoch for all ranks.

mod agree;
mod call_messages;
mod calls;
mod claims;
mod mail;
mod member;
mod pulse;
mod restore;
mod watch;
mod write_scheduler;

pub use agree::{agree, unless_failed};
pub use calls::{GoOn, PoolRanks};
pub use mail::SaveId;
pub(crate) use member::{GroupMember, GroupSave};
pub(crate) use restore::Together;
pub use restore::TogetherRestored;
pub use write_scheduler::Schedule;

use outlive_types::Coordinator;
use std::sync::Arc;
use std::time::Duration;

/// Options for the common saves of a program's ranks.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// Connects the ranks.
    pub coordinator: Arc<dyn Coordinator>,
    /// Time without a message of a rank after which a save has failed.
    pub patience: Duration,
    /// Schedule of the ranks' writes.
    pub schedule: Schedule,
    /// Whether a rank may have a region of this name without the others. All others are on every
    /// rank.
    pub is_lone: fn(&str) -> bool,
}

impl GroupOptions {
    /// Default time for which ranks wait for messages of each other.
    pub const PATIENCE: Duration = Duration::from_secs(120);

    /// Makes the options of a group of these ranks.
    pub fn new(coordinator: Arc<dyn Coordinator>) -> GroupOptions {
        GroupOptions {
            coordinator,
            patience: GroupOptions::PATIENCE,
            schedule: Schedule::default(),
            is_lone: |_| false,
        }
    }
}
