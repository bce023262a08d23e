//! One target of a pool, its state and its speed.

use super::table::StillThere;
use crate::descriptor::redundancy::{TargetState, Tier};
use outlive_backend::{ReadRange, ReadTicket, ShardName, Target, TargetWatch, WatchedTarget, Work};
use outlive_io::{Ticket, blocking};
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A target of a pool.
pub(crate) struct Member {
    /// Its number in `pool.toml`.
    pub id: u32,
    /// Name of the group of targets that fail together with it.
    pub domain: String,
    target: Arc<dyn Target>,
    still_there: Option<Arc<StillThere>>,
    /// Watch that gives up operations there while it is silent.
    watch: Option<Arc<TargetWatch>>,
    /// Its state.
    pub state: TargetState,
    /// Its tier: saves write to fast targets.
    pub tier: Tier,
    /// Whether it is in the memory of a host.
    pub is_volatile: bool,
    /// Whether it was recreated, and the logs do not say yet what was lost with the old one.
    pub is_unsettled: bool,
    /// Whether it is a seat that no node has taken.
    pub is_vacant: bool,
    /// Reason why it is not used now.
    away: Mutex<Option<Error>>,
    /// Hashes of the names that are known to be durable, one for all names that end alike.
    durable: Mutex<[u64; 256]>,
    /// Bytes that shards may take that this process is writing there now.
    under_way: Arc<AtomicU64>,
    /// Speed of its reads.
    pace: Arc<Mutex<Pace>>,
}

/// Reads after which the time of the fastest ones is known.
const READS_MIN: u64 = 8;
/// A read that has waited for this time does so by no accident.
const STUCK: Duration = Duration::from_secs(2);

/// Speed of a target's reads, however many are queued: the time from the end of one to the end of
/// the next.
#[derive(Default)]
struct Pace {
    /// Microseconds of a read: a decaying mean; 0 if none is over.
    mean_us: u64,
    /// Microseconds of the fastest of them: a decaying minimum of `reads` reads.
    least_us: u64,
    reads: u64,
    /// Start times of the reads in progress, by number.
    asked: BTreeMap<u64, Instant>,
    /// End of the last one.
    last: Option<Instant>,
    next: u64,
}

impl Pace {
    fn begin(&mut self, now: Instant) -> u64 {
        self.next += 1;
        self.asked.insert(self.next, now);
        self.next
    }

    fn end(&mut self, number: u64, is_read: bool, now: Instant) {
        let asked = self.asked.remove(&number);
        let begun = asked.max(self.last);
        self.last = Some(now);
        if let Some(begun) = begun.filter(|_| is_read) {
            let took_us = now.saturating_duration_since(begun).as_micros() as u64;
            let mean_us =
                if self.mean_us == 0 { took_us } else { self.mean_us / 8 * 7 + took_us / 8 };
            self.mean_us = mean_us.max(1);
            let grown_us = self.least_us + self.least_us / 8 + 1;
            self.least_us = if self.reads == 0 { took_us } else { took_us.min(grown_us) };
            self.reads += 1;
        }
    }

    /// Returns the time that even the fastest reads take; 0 if there were too few. Any read is slow
    /// behind the writes of others, so the mean of a few says nothing about the target.
    fn least_us(&self, now: Instant) -> u64 {
        let waited = self.waited(now).filter(|waited| *waited >= STUCK).unwrap_or_default();
        let least_us = if self.reads < READS_MIN { 0 } else { self.least_us };
        least_us.max(waited.as_micros() as u64)
    }

    /// Returns how long the oldest read in progress has taken.
    fn waited(&self, now: Instant) -> Option<Duration> {
        let oldest = self.asked.first_key_value().map(|(_, asked)| *asked);
        let since = oldest.map(|oldest| self.last.map_or(oldest, |last| oldest.max(last)));
        since.map(|since| now.saturating_duration_since(since))
    }

    /// Returns the time of a read. One in progress counts with its time so far.
    fn read_us(&self, now: Instant) -> u64 {
        let waited_us = self.waited(now).map_or(0, |waited| waited.as_micros() as u64);
        waited_us.max(self.mean_us)
    }

    /// Returns the time until all reads in progress are over; `unknown_us` stands for a read whose
    /// time is not known.
    fn wait_us(&self, unknown_us: u64, now: Instant) -> u64 {
        let least = if self.mean_us == 0 { unknown_us } else { 0 };
        self.asked.len() as u64 * self.read_us(now).max(least)
    }
}

/// Returns which of 256 hashes a name belongs to, and the hash of the name.
fn place_and_hash(shard: &ShardName) -> (usize, u64) {
    let mut hasher = DefaultHasher::new();
    (shard.pack, shard.shard).hash(&mut hasher);
    (usize::from(shard.pack.0[19]), hasher.finish())
}

impl Member {
    /// Returns a target that counts as always there.
    pub fn new(id: u32, target: Arc<dyn Target>) -> Member {
        Member {
            id,
            domain: format!("target {id}"),
            target,
            still_there: None,
            watch: None,
            state: TargetState::Active,
            tier: Tier::Fast,
            is_volatile: false,
            is_unsettled: false,
            is_vacant: false,
            away: Mutex::default(),
            durable: Mutex::new([0; 256]),
            under_way: Arc::default(),
            pace: Arc::default(),
        }
    }

    /// Returns the same on a host that may fail as a whole.
    pub fn on(mut self, host: Option<&str>) -> Member {
        if let Some(host) = host {
            self.domain = format!("host {host}");
        }
        self
    }

    /// Returns the same in another state.
    pub fn in_state(mut self, state: TargetState) -> Member {
        self.state = state;
        self
    }

    /// Returns the same on a tier.
    pub fn on_tier(mut self, tier: Tier) -> Member {
        self.tier = tier;
        self
    }

    /// Returns the same with what a row of the table says about targets in memory.
    pub fn in_memory(mut self, is_volatile: bool, is_unsettled: bool) -> Member {
        (self.is_volatile, self.is_unsettled) = (is_volatile, is_unsettled);
        self
    }

    /// Returns the same as a seat that no node has taken, if it is one.
    pub fn vacant(mut self, is_vacant: bool) -> Member {
        self.is_vacant = is_vacant;
        self
    }

    /// Returns the same with a way to find out whether it is there.
    pub fn if_there(mut self, still_there: Box<StillThere>) -> Member {
        self.still_there = Some(still_there.into());
        self
    }

    /// Returns the same with a watch, which leaves it alone while it is silent.
    pub fn watched(mut self, watch: Option<Arc<TargetWatch>>) -> Member {
        if let Some(watch) = watch {
            self.target = Arc::new(WatchedTarget::new(self.target, watch.clone()));
            self.watch = Some(watch);
        }
        self
    }

    /// Returns the target, whether it is there or not.
    pub fn target(&self) -> &Arc<dyn Target> {
        &self.target
    }

    /// Checks whether it is there. A target that was away and is back is used again.
    ///
    /// # Errors
    /// Error of the location where it should be.
    pub fn check(&self) -> Result<()> {
        let begun = self.begin_check();
        self.end_check(begun)
    }

    /// Begins that check, if it may take long. [`Member::end_check`] ends it.
    pub fn begin_check(&self) -> Option<Ticket<Result<()>>> {
        let watch = self.watch.as_ref()?;
        let still_there = self.still_there.clone();
        Some(match still_there {
            Some(still_there) => watch.begin(Work::Question, move || still_there()),
            None => Ticket::done(watch.silent().map_or(Ok(()), Err)),
        })
    }

    /// As [`Member::check`], for a check that may be in progress.
    ///
    /// # Errors
    /// As [`Member::check`].
    pub fn end_check(&self, begun: Option<Ticket<Result<()>>>) -> Result<()> {
        let found = match begun {
            Some(begun) => blocking(|| begun.wait()),
            None => self.still_there.as_ref().map_or(Ok(()), |still_there| still_there()),
        };
        // Never `Damaged` for callers that need its data, since nothing is known about that.
        let away = found.as_ref().err().map(|error| Error::away(error.message()));
        // The watch knows when a silent one answers again.
        let away = away.filter(|_| self.silent().is_none());
        *self.away.lock() = away;
        found
    }

    fn silent(&self) -> Option<Error> {
        self.watch.as_ref()?.silent()
    }

    /// Does the same for callers that need its data.
    ///
    /// # Errors
    /// Reason why it cannot be used: never `Damaged`.
    pub fn look(&self) -> Result<()> {
        match self.check() {
            Ok(()) => Ok(()),
            Err(error) => Err(self.away().unwrap_or(error)),
        }
    }

    /// Returns its answer. A target that vanishes seems empty, so it must be there before and
    /// after.
    ///
    /// # Errors
    /// Reason why it cannot be asked.
    pub fn asked<T>(&self, ask: impl Fn(&dyn Target) -> Result<T>) -> Result<T> {
        self.look()?;
        let answer = ask(&**self.target())?;
        self.look().map(|()| answer)
    }

    /// Returns all finished shards, sorted. A power cut takes none of them back, even if a process
    /// died after a name was visible and before its sync.
    ///
    /// # Errors
    /// Reason why it cannot be asked.
    pub fn durable(&self) -> Result<Vec<ShardName>> {
        self.asked(|target| {
            let (shards, mut hashes) = (target.list()?, [0; 256]);
            for (at, hash) in shards.iter().map(place_and_hash) {
                hashes[at] ^= hash;
            }
            // No deleted shard comes back in the life of a set of targets: that takes a change of
            // the table.
            let mut known = self.durable.lock();
            let is_new = |shard: &&ShardName| {
                let (at, _) = place_and_hash(shard);
                known[at] != hashes[at]
            };
            let new: Vec<ShardName> = shards.iter().filter(is_new).copied().collect();
            if !new.is_empty() {
                target.sync(&new)?;
            }
            *known = hashes;
            Ok(shards)
        })
    }

    /// Notes that this process has finished a shard there: its name is durable.
    pub fn has_finished(&self, shard: ShardName) {
        let (at, hash) = place_and_hash(&shard);
        self.durable.lock()[at] ^= hash;
    }

    /// Returns whether it gets new shards.
    pub fn is_active(&self) -> bool {
        self.state == TargetState::Active
    }

    /// Returns whether it was given up: if it is away, nothing waits for it.
    pub fn is_lost(&self) -> bool {
        self.state == TargetState::Lost
    }

    /// Returns why it could not be used when that was checked last.
    pub fn away(&self) -> Option<Error> {
        let away = self.away.lock().clone();
        away.or_else(|| self.silent())
    }

    /// Returns whether it has a finished shard.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub fn has(&self, shard: ShardName) -> Result<bool> {
        match self.away() {
            Some(_) if self.is_lost() => return Ok(false),
            Some(error) => return Err(error),
            None => {}
        }
        match self.target.length(shard) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Damaged => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads, and measures the time.
    pub fn read(&self, shard: ShardName, range: ReadRange) -> ReadTicket {
        let pace = self.pace.clone();
        let number = self.pace().begin(Instant::now());
        outlive_backend::read_one(&*self.target, shard, range).map(move |read| {
            pace.lock().end(number, read.is_ok(), Instant::now());
            read
        })
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock()
    }

    /// Returns the microseconds that it needs for a read, without those queued before it; 0 before
    /// the first one.
    pub fn read_us(&self) -> u64 {
        self.pace().read_us(Instant::now())
    }

    /// Returns the microseconds that even its fastest reads take; 0 if too little is known.
    pub fn least_read_us(&self) -> u64 {
        self.pace().least_us(Instant::now())
    }

    /// Returns the microseconds until its reads in progress are over. `unknown_us` stands for a
    /// read whose time is not known.
    pub fn wait_us(&self, unknown_us: u64) -> u64 {
        self.pace().wait_us(unknown_us, Instant::now())
    }

    /// Makes it seem slow, or fast.
    #[cfg(test)]
    pub fn set_read_us(&self, micros: u64) {
        let mut pace = self.pace();
        (pace.mean_us, pace.least_us, pace.reads) = (micros, micros, READS_MIN);
    }

    /// Returns the bytes that this process may still write there.
    pub fn under_way(&self) -> u64 {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Counts a shard of at most `bytes` as in progress, until the guard is dropped.
    pub fn begin(&self, bytes: u64) -> PendingBytes {
        self.under_way.fetch_add(bytes, Ordering::Relaxed);
        PendingBytes { sum: self.under_way.clone(), bytes }
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "target {} ({:?})", self.id, self.target)
    }
}

/// Space that a shard in progress may take on its target.
#[derive(Debug)]
pub(crate) struct PendingBytes {
    sum: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for PendingBytes {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Most reads wait for writes. Those do not show how fast the target is.
    #[test]
    fn a_target_is_as_fast_as_its_fastest_reads() {
        let start = Instant::now();
        let mut now = start;
        let mut read = |pace: &mut Pace, ms| {
            let number = pace.begin(now);
            now += Duration::from_millis(ms);
            pace.end(number, true, now);
            now
        };
        let mut busy = Pace::default();
        for _ in 0..READS_MIN - 1 {
            let now = read(&mut busy, 300);
            assert_eq!(busy.least_us(now), 0, "too few to tell");
        }
        read(&mut busy, 1);
        for _ in 0..5 {
            let now = read(&mut busy, 300);
            assert!((1000..3000).contains(&busy.least_us(now)));
        }
        // All reads are slow: the target has become slow.
        for _ in 0..100 {
            read(&mut busy, 300);
        }
        let now = read(&mut busy, 300);
        assert_eq!(busy.least_us(now), 300_000);
        // Or it does not answer at all.
        let mut stuck = Pace::default();
        stuck.begin(now);
        assert_eq!(stuck.least_us(now + Duration::from_secs(1)), 0);
        assert_eq!(stuck.least_us(now + Duration::from_secs(3)), 3_000_000);
    }

    /// Ten reads at once, each of which takes 10 ms of the target's time.
    #[test]
    fn a_target_with_much_to_do_is_not_slow() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut pace = Pace::default();
        assert_eq!((pace.read_us(at(0)), pace.wait_us(5, at(0))), (0, 0));
        let reads: Vec<u64> = (0..10).map(|_| pace.begin(at(0))).collect();
        assert_eq!(pace.wait_us(5000, at(0)), 50_000, "nothing is known of it yet");
        assert_eq!(pace.read_us(at(9)), 9000, "it has not answered once");
        for (number, read) in (1..).zip(&reads) {
            pace.end(*read, true, at(number * 10));
            assert!((9900..=10_000).contains(&pace.read_us(at(number * 10))));
        }
        assert_eq!(pace.wait_us(5, at(100)), 0);
        // After a pause, time begins with the next read.
        let read = pace.begin(at(1000));
        pace.end(read, true, at(1010));
        assert!((9900..=10_000).contains(&pace.read_us(at(1010))));
        // A failed read shows nothing; one that does not end shows ever more.
        let (failed, late) = (pace.begin(at(1010)), pace.begin(at(1010)));
        pace.end(failed, false, at(1011));
        assert!((9900..=10_000).contains(&pace.read_us(at(1011))));
        assert_eq!(pace.read_us(at(2011)), 1_000_000);
        pace.end(late, true, at(2011));
        assert!((20_000..500_000).contains(&pace.read_us(at(2011))), "a mean that forgets");
    }
}
