//! A watch over targets that hang, with time that passes as the test says.

use super::*;
use crate::{MemoryTarget, ReadRange, ShardName, Target, WatchedTarget};
use outlive_io::{SharedBuf, StagingPool};
use outlive_types::sync::plain::Condvar;
use outlive_types::{PackId, SessionId};

/// A gate that is open or shut: calls that pass it hang while it is shut.
#[derive(Default, Debug)]
struct Gate {
    is_shut: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, is_shut: bool) {
        self.is_shut.lock().0 = is_shut;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.is_shut.lock();
        state.1 += 1;
        self.changed.notify_all();
        while state.0 {
            state = self.changed.wait(state);
        }
        state.1 -= 1;
        self.changed.notify_all();
    }

    /// Waits until `count` calls hang.
    fn until_hanging(&self, count: usize) {
        let mut state = self.is_shut.lock();
        while state.1 != count {
            state = self.changed.wait(state);
        }
    }
}

fn pack() -> PackId {
    PackId::new(SessionId([1; 12]), 0, 0)
}

#[derive(Default)]
struct Told(Mutex<Vec<Event>>);

impl Observer for Told {
    fn event(&self, event: Event) {
        self.0.lock().push(event);
    }
}

struct Fixture {
    watch: Arc<TargetWatch>,
    /// The gate of requests; `looks` is the gate of health checks.
    gate: Arc<Gate>,
    looks: Arc<Gate>,
    told: Arc<Told>,
    begun: Instant,
}

impl Fixture {
    fn new() -> Fixture {
        let (gate, looks, told) =
            (Arc::<Gate>::default(), Arc::<Gate>::default(), Arc::<Told>::default());
        let through = looks.clone();
        let look = move || {
            through.pass();
            Ok(())
        };
        let watch =
            TargetWatch::ticked("target 3", Bounds::default(), told.clone(), Arc::new(look));
        Fixture { watch, gate, looks, told, begun: Instant::now() }
    }

    fn ask(&self) -> Ticket<Result<u8>> {
        let gate = self.gate.clone();
        self.watch.begin(Work::Question, move || {
            gate.pass();
            Ok(7)
        })
    }

    fn tick(&self, seconds: u64) -> bool {
        self.watch.tick(self.begun + Duration::from_secs(seconds))
    }

    /// Sends a request that hangs, and gives it up at this time.
    fn silence(&self, seconds: u64) -> Error {
        self.gate.set(true);
        self.looks.set(true);
        let asked = self.ask();
        self.tick(seconds);
        asked.wait().unwrap_err()
    }

    fn until(&self, is_so: impl Fn(&TargetWatch) -> bool) {
        while !is_so(&self.watch) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_target_that_answers_nothing_is_left_alone_until_it_answers() {
    let fixture = Fixture::new();
    assert_eq!(fixture.ask().wait().unwrap(), 7);
    assert!(!fixture.tick(100), "nothing is under way");
    let error = fixture.silence(100);
    assert!(error.is_away() && error.kind() == ErrorKind::Retry, "{error}");
    assert!(error.message().starts_with("target 3 has not answered for "), "{error}");
    // No call waits, and the target gets no more requests.
    for seconds in 101..140 {
        assert!(fixture.ask().wait().is_err());
        assert!(fixture.tick(seconds));
    }
    fixture.gate.until_hanging(1);
    assert_eq!(fixture.watch.under_way(), (0, 1));
    // The hanging request ends; then a health check hangs, too, and ends.
    fixture.gate.set(false);
    fixture.until(|watch| watch.under_way() == (0, 0));
    assert!(fixture.ask().wait().is_err(), "it was not looked at");
    assert!(fixture.tick(140));
    fixture.looks.until_hanging(1);
    assert!(fixture.tick(1500) && fixture.ask().wait().is_err());
    fixture.looks.set(false);
    fixture.until(|watch| watch.silent().is_none());
    assert_eq!(fixture.ask().wait().unwrap(), 7);
    assert!(!fixture.tick(1600));
    // A thread of its own sends the warning, which may come late.
    fixture.until(|_| fixture.told.0.lock().len() == 2);
    let mut told = fixture.told.0.lock();
    told.sort_by_key(|event| matches!(event, Event::Info(_)));
    assert!(matches!(&told[..], [Event::Warning(_), Event::Info(_)]), "{told:?}");
}

#[test]
fn a_slow_target_answers_looks_and_is_waited_for() {
    let fixture = Fixture::new();
    fixture.gate.set(true);
    let asked = fixture.ask();
    let answered = |seconds| {
        // A health check is due.
        let before = Some(fixture.begun + Duration::from_secs(seconds - 6));
        fixture.watch.state.lock().sign = before;
        assert!(fixture.tick(seconds));
        fixture.until(|watch| watch.state.lock().looking.is_none());
        assert_ne!(fixture.watch.state.lock().sign, before, "its answer is a sign");
        // The sign came now, and not at the test's time.
        fixture.watch.state.lock().sign = Some(fixture.begun + Duration::from_secs(seconds));
        assert!(fixture.watch.silent().is_none() && !asked.ready(), "{seconds}");
    };
    (6..58).step_by(5).for_each(answered);
    // In the end even that is too long.
    fixture.watch.state.lock().sign = Some(fixture.begun + Duration::from_secs(60));
    fixture.tick(61);
    assert!(asked.wait().unwrap_err().is_away());
    fixture.gate.set(false);
}

#[test]
fn a_late_failure_is_no_answer() {
    for stood_still in [true, false] {
        check_late_failure(stood_still);
    }
}

/// A process that stood still sees the failure late, which shows nothing.
fn check_late_failure(stood_still: bool) {
    let fixture = Fixture::new();
    let asked = fixture.watch.begin(Work::Question, || Err::<(), _>(Error::retry("at once")));
    assert_eq!(asked.wait().unwrap_err().message(), "at once");
    assert!(fixture.watch.silent().is_none());
    fixture.gate.set(true);
    let gate = fixture.gate.clone();
    let asked = fixture.watch.begin(Work::Question, move || {
        gate.pass();
        Err::<(), _>(Error::retry("late"))
    });
    // Dates the start back by that time.
    {
        let mut state = fixture.watch.state.lock();
        state.sign = None;
        state.awaited.values_mut().for_each(|one| one.begun -= SLOW_TO_FAIL);
        if stood_still {
            state.beat = state.beat.map(|beat| beat - 2 * STOOD_STILL);
        }
    }
    fixture.gate.set(false);
    assert_eq!(asked.wait().unwrap_err().message(), "late");
    assert_eq!(fixture.watch.silent().is_none(), stood_still);
    if stood_still {
        return;
    }
    assert!(fixture.tick(1), "soon");
    assert!(fixture.watch.silent().is_some());
    fixture.tick(1000);
    fixture.until(|watch| watch.silent().is_none());
}

/// The code behind a read that was given up may hold a lock, and wait for a later request.
#[test]
fn questions_are_given_up_before_reads_that_may_wait_for_them() {
    let fixture = Fixture::new();
    let (_never, begun) = Ticket::<Result<u8>>::pair();
    let read = fixture.watch.follow(Work::Read, begun, Err, |_| false);
    fixture.gate.set(true);
    let asked = fixture.ask();
    let (done, waited) = Ticket::pair();
    read.on_done(move |_| done.fulfil(asked.wait()));
    fixture.tick(100);
    assert!(waited.wait().unwrap_err().is_away());
    fixture.gate.set(false);
}

/// The target answers health checks. A write or read that never ends counts as silence in the end;
/// a listing does not.
#[test]
fn endless_reads_and_writes_count_as_silence_and_listings_do_not() {
    for work in [Work::Write, Work::Read, Work::Listing] {
        let fixture = Fixture::new();
        let (_never, begun) = Ticket::<Result<u8>>::pair();
        let followed = fixture.watch.follow(work, begun, Err, |_| false);
        let hears = |seconds| {
            fixture.watch.state.lock().sign = Some(fixture.begun + Duration::from_secs(seconds));
            fixture.tick(seconds);
            fixture.watch.silent().is_none()
        };
        assert!(hears(148), "{work:?}");
        assert_eq!(hears(151), work == Work::Listing, "{work:?}");
        assert_eq!(hears(100_000), work == Work::Listing, "{work:?}");
        match work {
            Work::Listing => assert!(!followed.ready()),
            _ => assert!(followed.wait().unwrap_err().is_away()),
        }
    }
}

/// A late deletion could hit a shard that a repair wrote meanwhile.
#[test]
fn a_deletion_is_waited_for_and_never_asked_of_a_silent_target() {
    let fixture = Fixture::new();
    let mute = Mute { inner: MemoryTarget::new(), deletions: fixture.gate.clone() };
    let shards = [0, 1].map(|shard| ShardName { pack: pack(), shard });
    for shard in shards {
        mute.inner.create(shard, 0).unwrap().finish(0).wait().unwrap();
    }
    let mute = Arc::new(mute);
    let target = WatchedTarget::new(mute.clone(), fixture.watch.clone());
    fixture.gate.set(true);
    std::thread::scope(|scope| {
        let deletes = scope.spawn(|| target.delete(shards[0]));
        fixture.gate.until_hanging(1);
        fixture.tick(1000);
        assert!(!deletes.is_finished() && fixture.watch.silent().is_none());
        fixture.gate.set(false);
        deletes.join().unwrap().unwrap();
    });
    let error = fixture.silence(100);
    fixture.gate.set(false);
    assert_eq!(target.delete(shards[1]).unwrap_err().message(), error.message());
    assert_eq!(target.delete_unfinished(shards[1]).unwrap_err().message(), error.message());
    assert_eq!(mute.inner.list().unwrap(), [shards[1]]);
    fixture.looks.set(false);
}

/// Such as a health check of one file, while the target answers all other requests.
#[test]
fn a_look_that_hangs_alone_keeps_no_other_from_being_taken() {
    let fixture = Fixture::new();
    fixture.gate.set(true);
    fixture.looks.set(true);
    let asked = fixture.ask();
    fixture.tick(6);
    fixture.looks.until_hanging(1);
    fixture.tick(7);
    assert_eq!(fixture.watch.state.lock().looking, Some(fixture.begun + Duration::from_secs(6)));
    // Another request is answered.
    fixture.watch.state.lock().sign = Some(fixture.begun + Duration::from_secs(8));
    fixture.tick(14);
    fixture.looks.until_hanging(2);
    assert!(fixture.watch.silent().is_none() && !asked.ready());
    fixture.gate.set(false);
    fixture.looks.set(false);
}

#[test]
fn a_process_that_stood_still_takes_no_target_for_silent() {
    let fixture = Fixture::new();
    fixture.gate.set(true);
    let asked = fixture.ask();
    let at = |seconds| fixture.begun + Duration::from_secs(seconds);
    for seconds in [1, 2, 3, 500, 501, 502] {
        fixture.watch.beat(at(seconds));
        assert!(fixture.tick(seconds) && fixture.watch.silent().is_none(), "{seconds}");
    }
    assert!(!asked.ready());
    // The process has run again since, and gets no answer.
    (503..515).for_each(|seconds| fixture.watch.beat(at(seconds)));
    fixture.looks.set(true);
    fixture.tick(515);
    assert!(asked.wait().unwrap_err().is_away());
    fixture.gate.set(false);
    fixture.looks.set(false);
}

/// A target whose reads and writes never end, and whose deletions pass a gate.
#[derive(Debug, Default)]
struct Mute {
    inner: MemoryTarget,
    deletions: Arc<Gate>,
}

/// Returns the ticket of work that never ends and keeps its buffer.
fn never<T: Send + 'static, B>(buffer: B) -> Ticket<T> {
    let (promise, ticket) = Ticket::pair();
    std::mem::forget((promise, buffer));
    ticket
}

struct MuteWriter;

impl crate::ShardWriter for MuteWriter {
    fn write(&mut self, _: u64, bytes: SharedBuf) -> crate::WriteTicket {
        never(bytes)
    }
    fn finish(self: Box<Self>, _: u64) -> Ticket<Result<()>> {
        never(())
    }
}

impl Target for Mute {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn create(&self, _: ShardName, _: u64) -> Result<Box<dyn crate::ShardWriter>> {
        Ok(Box::new(MuteWriter))
    }
    fn replace(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn crate::ShardWriter>> {
        self.create(shard, bytes_max)
    }
    fn read_ranges(&self, _: ShardName, ranges: Vec<ReadRange>) -> Vec<crate::ReadTicket> {
        ranges.into_iter().map(|range| never(range.buffer)).collect()
    }
    fn length(&self, shard: ShardName) -> Result<u64> {
        self.inner.length(shard)
    }
    fn list(&self) -> Result<Vec<ShardName>> {
        self.inner.list()
    }
    fn delete(&self, shard: ShardName) -> Result<()> {
        self.deletions.pass();
        self.inner.delete(shard)
    }
    fn capacity(&self) -> Result<crate::Capacity> {
        self.inner.capacity()
    }
}

#[test]
fn the_memory_of_reads_that_hang_is_replaced() {
    let fixture = Fixture::new();
    fixture.looks.set(true);
    let target = WatchedTarget::new(Arc::new(Mute::default()), fixture.watch.clone());
    let pool = StagingPool::new(2 * 8192, 8192);
    let mut one = pool.take();
    let other = one.split_off(4096);
    let shard = ShardName { pack: pack(), shard: 0 };
    let ranges = [one, other].map(|buffer| ReadRange::new(0, buffer));
    let reads = target.read_ranges(shard, ranges.into());
    let held = pool.take();
    assert!(pool.try_take().is_none());
    fixture.tick(1000);
    for read in reads {
        let fault = read.wait().unwrap_err();
        assert!(fault.error.is_away() && fault.buffer.is_empty());
    }
    let another = pool.try_take().expect("in the place of one that hangs");
    assert!(pool.try_take().is_none());
    // Refused at once, with the buffer.
    let range = ReadRange::new(0, another);
    let refused = crate::read_one(&target, shard, range).wait().unwrap_err();
    assert_eq!((refused.buffer.len(), refused.error.is_away()), (8192, true));
    drop(held);
    fixture.looks.set(false);
}

#[test]
fn the_memory_of_writes_that_hang_is_replaced() {
    let fixture = Fixture::new();
    fixture.looks.set(true);
    let target = WatchedTarget::new(Arc::new(Mute::default()), fixture.watch.clone());
    let pool = StagingPool::new(8192, 8192);
    let mut writer = target.create(ShardName { pack: pack(), shard: 0 }, 8192).unwrap();
    let write = writer.write(0, pool.take().share());
    assert!(pool.try_take().is_none());
    fixture.tick(1000);
    assert!(write.wait().unwrap_err().error.is_away());
    assert!(pool.try_take().is_some(), "in the place of the one that the write has");
    fixture.looks.set(false);
}
