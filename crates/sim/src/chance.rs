//! The shared state of all programs of a schedule: the scheduler, the chances, a clock.

use crate::scheduler::SeededScheduler;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Clock, SeededRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Possible failures, each with a chance in 65,536 for every operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Chances {
    /// The program is killed, now or soon within an operation.
    pub kill: u64,
    /// The whole machine loses power.
    pub power_cut: u64,
    /// The operation fails and has no effect.
    pub error: u64,
    /// The operation has its effect, but fails.
    pub lost_reply: u64,
    /// The program is held up for long.
    pub hold: u64,
    /// A bit of a record flips right after its append.
    pub flip_record: u64,
    /// A bit of a shard flips right after its finish.
    pub flip_shard: u64,
    /// A bit of a session flips right after its append, and its writer is held up until no other
    /// program can go on.
    pub flip_session: u64,
    /// A program can no longer read the newest record.
    pub unreadable: u64,
    /// A program that loses a job to a new session cannot read the session record.
    pub hide_session: u64,
}

impl Chances {
    /// Whether records may be damaged.
    pub fn flips_records(&self) -> bool {
        self.flip_record + self.flip_session > 0
    }
}

/// A false behaviour of a log, which the checks must notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// An append replaces records that others have appended meanwhile.
    AppendsReplace,
    /// A read returns a wrong bit, although none has flipped.
    ReadsWrongly,
}

/// The shared state of all programs of a schedule: the scheduler, the chances, a clock.
pub struct Chance {
    pub(crate) rng: SeededRng,
    chances: Chances,
    lie: Option<Lie>,
    /// Whether programs are running.
    active: AtomicBool,
    /// Whether an operation has failed.
    failed: AtomicBool,
    /// Whether an operator has begun to take a target out of the table.
    leaving: AtomicBool,
    /// The programs whose lock of collectors has ended before they gave it back.
    unlocked: Mutex<BTreeSet<usize>>,
    /// Whether a program was killed, or lost its power.
    killed: AtomicBool,
    /// Number of times that each role achieved its purpose.
    achieved: Mutex<BTreeMap<&'static str, u64>>,
    turns: SeededScheduler,
    now_ns: AtomicU64,
}

impl Chance {
    /// Returns the shared state; nothing goes wrong before [`Chance::set_active`].
    pub fn new(
        seed: u64,
        chances: Chances,
        lie: Option<Lie>,
        turns: SeededScheduler,
    ) -> Arc<Chance> {
        let rng = SeededRng::new(seed ^ 0x1AC4);
        let (active, failed, killed, achieved, now_ns) = Default::default();
        let (leaving, unlocked) = Default::default();
        Arc::new(Chance {
            rng,
            chances,
            lie,
            active,
            failed,
            leaving,
            unlocked,
            killed,
            achieved,
            turns,
            now_ns,
        })
    }

    /// Whether programs are running.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Turns failures on or off.
    pub fn set_active(&self, active: bool) {
        self.active.store(active, Ordering::Relaxed);
    }

    /// Returns the chances of failures.
    pub fn chances(&self) -> Chances {
        self.chances
    }

    /// Notes that an operation fails.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Notes that an operator begins to take a target out of the table.
    pub(crate) fn target_leaves(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Whether a target may have left the table.
    pub fn may_have_left(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Notes that the lock of a program ends.
    pub(crate) fn lock_ends(&self, program: usize) {
        self.unlocked.lock().insert(program);
        self.achieved("a lock ends before its holder does");
    }

    /// Whether a lock of a program has ended.
    pub fn has_lock_ended(&self, program: usize) -> bool {
        self.unlocked.lock().contains(&program)
    }

    /// Whether two programs may have moved shards at once.
    pub fn has_any_lock_ended(&self) -> bool {
        !self.unlocked.lock().is_empty()
    }

    /// Notes that a program is killed, or loses its power.
    pub(crate) fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
    }

    /// Whether a program was killed, or lost its power.
    pub fn has_killed(&self) -> bool {
        self.killed.load(Ordering::Relaxed)
    }

    /// Whether an operation has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Notes that a role achieved its purpose. Counts only while programs are running.
    pub fn achieved(&self, what: &'static str) {
        if self.active.load(Ordering::Relaxed) {
            self.came_about(what);
        }
    }

    /// Notes the same for events after the end of all programs.
    pub fn came_about(&self, what: &'static str) {
        *self.achieved.lock().entry(what).or_default() += 1;
    }

    /// Returns how often each role achieved its purpose.
    pub fn achievements(&self) -> BTreeMap<&'static str, u64> {
        self.achieved.lock().clone()
    }

    /// Whether the log has this false behaviour now.
    pub fn lies(&self, lie: Lie) -> bool {
        self.lie == Some(lie) && self.active.load(Ordering::Relaxed)
    }

    /// Returns the scheduler.
    pub fn turns(&self) -> &SeededScheduler {
        &self.turns
    }

    pub(crate) fn has(&self, chance: u64) -> bool {
        chance > 0 && self.active.load(Ordering::Relaxed) && self.rng.below(1 << 16) < chance
    }
}

/// Each reading takes a while, and so do steps and sleep where time passes.
impl Clock for Chance {
    fn unix_ns(&self) -> u64 {
        self.now_ns.fetch_add(1_000, Ordering::Relaxed) + self.turns.now_ns()
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.unix_ns())
    }
}
