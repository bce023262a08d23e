//! What all programs of a schedule share: turns, chances, a clock.

use crate::scheduler::SeededScheduler;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Clock, SeededRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// What may go wrong, each with a chance in 65,536 for every operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Chances {
    /// The program is killed, now or within an operation soon.
    pub kill: u64,
    /// The whole machine loses its power.
    pub power_cut: u64,
    /// The operation fails and has no effect.
    pub error: u64,
    /// It has its effect, and fails all the same.
    pub lost_reply: u64,
    /// The program is held up for long.
    pub hold: u64,
    /// A bit of a record that has just been appended is flipped.
    pub flip_record: u64,
    /// A bit of a shard that has just been finished is flipped.
    pub flip_shard: u64,
    /// A bit of the session that has just been opened is flipped, and its writer is held up until
    /// nobody else can go on.
    pub flip_session: u64,
    /// A program cannot read the newest record any more.
    pub unreadable: u64,
    /// Whoever loses a job to the session that has just been opened cannot read that.
    pub hide_session: u64,
}

impl Chances {
    /// Whether records may be damaged.
    pub fn flips_records(&self) -> bool {
        self.flip_record + self.flip_session > 0
    }
}

/// What a log does that no log may do: the checks must notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// An append replaces what others have appended meanwhile.
    AppendsReplace,
    /// A record is read with a bit that is wrong, though none has flipped.
    ReadsWrongly,
}

/// What all programs of a schedule share: turns, chances, a clock.
pub struct Chance {
    pub(crate) rng: SeededRng,
    chances: Chances,
    lie: Option<Lie>,
    /// Only while programs are at work.
    active: AtomicBool,
    /// Some operation has failed.
    failed: AtomicBool,
    /// Whether a program was killed, or lost its power.
    killed: AtomicBool,
    /// How often each role has done what it is there for.
    achieved: Mutex<BTreeMap<&'static str, u64>>,
    turns: SeededScheduler,
    now_ns: AtomicU64,
}

impl Chance {
    /// Nothing goes wrong before [`Chance::begin`].
    pub fn new(
        seed: u64,
        chances: Chances,
        lie: Option<Lie>,
        turns: SeededScheduler,
    ) -> Arc<Chance> {
        let rng = SeededRng::new(seed ^ 0x1AC4);
        let (active, failed, killed, achieved, now_ns) = Default::default();
        Arc::new(Chance { rng, chances, lie, active, failed, killed, achieved, turns, now_ns })
    }

    /// Whether programs are at work.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// From now on things go wrong, or do so no more.
    pub fn set_active(&self, active: bool) {
        self.active.store(active, Ordering::Relaxed);
    }

    /// What may go wrong.
    pub fn chances(&self) -> Chances {
        self.chances
    }

    /// Some operation fails.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// A program is killed, or loses its power.
    pub(crate) fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
    }

    /// Whether one was.
    pub fn has_killed(&self) -> bool {
        self.killed.load(Ordering::Relaxed)
    }

    /// Whether some operation has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// A role has done what it is there for. Counts only while programs are at work.
    pub fn achieved(&self, what: &'static str) {
        if self.active.load(Ordering::Relaxed) {
            self.came_about(what);
        }
    }

    /// The same of what happens when all programs have ended.
    pub fn came_about(&self, what: &'static str) {
        *self.achieved.lock().entry(what).or_default() += 1;
    }

    /// How often each role has done what it is there for.
    pub fn achievements(&self) -> BTreeMap<&'static str, u64> {
        self.achieved.lock().clone()
    }

    /// The lie that is told now.
    pub fn lies(&self, lie: Lie) -> bool {
        self.lie == Some(lie) && self.active.load(Ordering::Relaxed)
    }

    /// Whose turn it is.
    pub fn turns(&self) -> &SeededScheduler {
        &self.turns
    }

    pub(crate) fn has(&self, chance: u64) -> bool {
        chance > 0 && self.active.load(Ordering::Relaxed) && self.rng.below(1 << 16) < chance
    }
}

/// Each look takes a while, and so do steps and sleep where time passes.
impl Clock for Chance {
    fn unix_ns(&self) -> u64 {
        self.now_ns.fetch_add(1_000, Ordering::Relaxed) + self.turns.now_ns()
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.unix_ns())
    }
}
