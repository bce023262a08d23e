//! The roles of programs.

use outlive_store::group::Schedule;
use outlive_types::Rank;

/// The first job of all schedules.
pub const A: &str = "a";
/// The second job.
pub const B: &str = "b";
/// The name that the first job gets if it is renamed.
pub const R: &str = "r";
/// The job whose programs have several ranks.
pub const G: &str = "g";
/// The job whose programs have a gate.
pub const O: &str = "o";

/// The role of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// Saves a job again and again, perhaps after a restore.
    Saver {
        /// The job.
        job: &'static str,
        /// Number of saves.
        saves: u64,
        /// Whether it begins with the restored state.
        restores: bool,
        /// Whether it waits for each commit.
        waits: bool,
    },
    /// Continues a job, saves with a helper, and is killed: the helper completes the last save.
    Killed {
        /// The job.
        job: &'static str,
        /// Number of saves.
        saves: u64,
    },
    /// Continues a job, and gives outputs between its saves.
    Emitter {
        /// Number of saves.
        saves: u64,
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
        /// Whether it prunes while its memory is filled.
        prunes: bool,
    },
    /// Verifies a job.
    Verifier {
        /// The job.
        job: &'static str,
    },
    /// Collects garbage.
    Gc {
        /// Number of gcs.
        rounds: u64,
        /// Whether it gives up damaged records.
        forgets: bool,
        /// Whether it rewrites packs.
        rewrites: bool,
    },
    /// Drops all checkpoints but the newest.
    Prune {
        /// The job.
        job: &'static str,
        /// Number of checkpoints that stay.
        keep_last: u64,
        /// Whether it also frees the space.
        collects: bool,
    },
    /// Saves a job, and deletes it.
    Delete {
        /// The job.
        job: &'static str,
    },
    /// Saves a job, and renames it.
    Rename {
        /// The job.
        from: &'static str,
        /// The new name.
        to: &'static str,
    },
    /// Scrubs.
    Scrub,
    /// Repairs packs that lack a shard.
    Repair {
        /// Number of repairs.
        rounds: u64,
    },
    /// Copies the packs that the slow target lacks; programs do so after their commits, too.
    Filler {
        /// Number of fills.
        rounds: u64,
    },
    /// Deletes from the other targets the packs that only older checkpoints need; programs do so
    /// after their fills, too.
    Trimmer {
        /// Number of trims.
        rounds: u64,
    },
    /// Checks at several moments whether the checkpoints that were safe on the slow target still
    /// are.
    Auditor {
        /// Number of checks.
        rounds: u64,
    },
    /// Loses targets, as many as the pool survives: a new disk replaces an old one each time.
    Loser,
    /// An operator who changes the targets.
    Operator {
        /// Number of commands.
        commands: u64,
        /// Whether it is the only operator.
        is_alone: bool,
    },
    /// Flips bits of shards, within the redundancy.
    Flipper {
        /// Number of rounds.
        rounds: u64,
    },
    /// Makes single targets fail, within the redundancy.
    Disks {
        /// Number of rounds.
        rounds: u64,
    },
    /// Makes single targets slow, within the redundancy.
    Sluggard {
        /// Number of rounds.
        rounds: u64,
    },
    /// Takes away, at several moments, as many targets as the pool reports that it can lose.
    Doubter {
        /// Number of rounds.
        rounds: u64,
    },
    /// Restarts the host: all targets in its memory are lost.
    Wiper {
        /// Number of restarts.
        rounds: u64,
    },
    /// Makes targets go away for a while, one at a time; they come back unchanged.
    Absence,
    /// Makes log replicas go away for a while, one at a time; they come back unchanged.
    ReplicaAway,
    /// Moves the log to other replicas.
    LogMover,
    /// Adds a target, and removes another.
    Mover,
    /// Copies everything into the second pool.
    Copy,
    /// Replaces a job's log with an old copy.
    Rollback {
        /// The job.
        job: &'static str,
    },
    /// Collects garbage in the second pool.
    GcThere,
    /// Saves a job of several ranks, perhaps after a restore.
    Group(Group),
}

/// The role of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group {
    /// The job.
    pub job: &'static str,
    /// Number of saves.
    pub saves: u64,
    /// Whether it begins with the restored state.
    pub restores: bool,
    /// Whether it waits for each commit.
    pub waits: bool,
    /// The schedule of the ranks' writes.
    pub schedule: Schedule,
    /// Whether ranks wait for each other as long as needed, unless a rank may be lost.
    pub is_patient: bool,
    /// The rank that is killed, and the number of operations before.
    pub kill: Option<(Rank, u64)>,
    /// Number of restarts after the loss of a rank.
    pub restarts: u64,
    /// Whether all its ranks must have ended before a restart; otherwise some may still be running.
    pub waits_for_all: bool,
    /// Whether its ranks share nothing but the pool.
    pub meets_in_log: bool,
}
