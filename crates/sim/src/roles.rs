//! What programs there are, by what they do.

use outlive_store::group::Schedule;
use outlive_types::Rank;

/// The jobs of all schedules.
pub const A: &str = "a";
/// The other one.
pub const B: &str = "b";
/// The one whose programs have several ranks.
pub const G: &str = "g";

/// What a program does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// Saves a job again and again, perhaps after a restore.
    Saver {
        /// The job.
        job: &'static str,
        /// So many times.
        saves: u64,
        /// Begins with what it finds.
        restores: bool,
        /// Waits for each commit.
        waits: bool,
    },
    /// Goes back to some epoch, and goes on from there.
    Returner {
        /// The job.
        job: &'static str,
    },
    /// Saves in one thread and restores an old epoch in another, on one job.
    Twin {
        /// The job.
        job: &'static str,
    },
    /// Restores some epochs.
    Reader {
        /// The job.
        job: &'static str,
    },
    /// Restores lazily, perhaps prunes meanwhile, and saves.
    Lazy {
        /// The job.
        job: &'static str,
        /// Prunes while its memory is filled.
        prunes: bool,
    },
    /// Verifies a job.
    Verifier {
        /// The job.
        job: &'static str,
    },
    /// Collects garbage.
    Gc {
        /// So many times.
        rounds: u64,
        /// Gives up records that are damaged.
        forgets: bool,
        /// Rewrites packs, as it does where there is room.
        rewrites: bool,
    },
    /// Drops all but the newest.
    Prune {
        /// The job.
        job: &'static str,
        /// So many stay.
        keep_last: u64,
        /// Frees the space, too.
        collects: bool,
    },
    /// Scrubs.
    Scrub,
    /// Repairs packs that lack a shard.
    Repair {
        /// So many times.
        rounds: u64,
    },
    /// Copies what the slow target lacks; programs do so behind their commits, too.
    Filler {
        /// So many times.
        rounds: u64,
    },
    /// Deletes from the others what only older checkpoints need; programs do so behind their fills, too.
    Trimmer {
        /// So many times.
        rounds: u64,
    },
    /// Looks, at one moment after the other, whether what was safe on the slow target still is.
    Auditor {
        /// So many times.
        rounds: u64,
    },
    /// Loses targets, as many as the pool survives: each time a new disk is in the place of an old one.
    Loser,
    /// A person who changes the targets.
    Operator {
        /// So many commands.
        commands: u64,
        /// No other one is there.
        is_alone: bool,
    },
    /// Bits of shards flip, never more than redundancy makes up for.
    Flipper {
        /// So many times.
        rounds: u64,
    },
    /// Single targets fail, never more than redundancy makes up for.
    Disks {
        /// So many times.
        rounds: u64,
    },
    /// Takes away, at one moment after the other, as many targets as the pool says that may be lost.
    Doubter {
        /// So many times.
        rounds: u64,
    },
    /// The host is started anew: all targets in its memory are lost.
    Wiper {
        /// So many times.
        rounds: u64,
    },
    /// Targets are away for a while, one at a time, and come back as they were.
    Absence,
    /// Places of the log are away for a while, one at a time, and come back as they were.
    ReplicaAway,
    /// Moves the log to other places.
    LogMover,
    /// Adds a target, and removes another.
    Mover,
    /// Copies everything into the second pool.
    Copy,
    /// Puts an old copy of a job's log in its place.
    Rollback {
        /// The job.
        job: &'static str,
    },
    /// Collects garbage in the second pool.
    GcThere,
    /// Saves a job of several ranks, perhaps after a restore.
    Group(Group),
}

/// What a group does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group {
    /// The job.
    pub job: &'static str,
    /// So many times it saves.
    pub saves: u64,
    /// Begins with what it finds.
    pub restores: bool,
    /// Waits for each commit.
    pub waits: bool,
    /// When each rank writes.
    pub schedule: Schedule,
    /// Ranks wait for each other as long as it takes, unless somebody may be lost.
    pub is_patient: bool,
    /// A rank, and the number of operations after which it is killed.
    pub kill: Option<(Rank, u64)>,
    /// How often it starts again when a rank was lost.
    pub restarts: u64,
    /// Before that all its ranks must have ended; else the others may still be at work.
    pub waits_for_all: bool,
    /// Its ranks have nothing in common but the pool.
    pub meets_in_log: bool,
}
