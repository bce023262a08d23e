//! A group: the ranks of one program, whose images belong together. One checkpoint has the images of all
//! ranks, and exists once rank 0 has committed it.
//!
//! A save begins on the threads that call it, through the [`Coordinator`]: rank 0 opens the session, and
//! every rank learns of it and freezes. From then on the program goes on. The rest is done in the
//! background, through the pool: each rank tells in the log when its image is stored, rank 0 commits, and
//! tells the others. So no thread of outlive's own ever calls the coordinator, which may be MPI.
//!
//! - `calls`: a coordinator for ranks that have nothing else in common, through the log; `words`: what they say.
//! - `agree`: one outcome for all ranks.
//! - `mail`: what ranks tell each other in the log.
//! - `claims`: whether all ranks save what belongs together.
//! - `part`: a rank's part in a save.
//! - `pulse`: signs of life.
//! - `turns`: when each rank writes.
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

/// How the ranks of a program save together.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// Connects the ranks.
    pub coordinator: Arc<dyn Coordinator>,
    /// After so long without a word of a rank, a save has failed.
    pub patience: Duration,
    /// When each rank writes.
    pub schedule: Schedule,
    /// Names of regions that a rank may have without the others. All others are on every rank.
    pub is_lone: fn(&str) -> bool,
}

impl GroupOptions {
    /// For how long ranks wait for word of each other, unless something else is said.
    pub const PATIENCE: Duration = Duration::from_secs(120);

    /// A group of these ranks.
    pub fn new(coordinator: Arc<dyn Coordinator>) -> GroupOptions {
        GroupOptions {
            coordinator,
            patience: GroupOptions::PATIENCE,
            schedule: Schedule::default(),
            is_lone: |_| false,
        }
    }
}
