//! Logs that are moved while they are used, and movers that stop half-way.

use super::super::note_removed;
use super::*;
use crate::replicas::Movable;
use crate::replicas::who::Who;
use crate::{
    Append, LogLocks, LogRecords, LogSeal, ManifestLog, MemoryMedium, Previous, Put, RecordLog,
};
use outlive_types::ErrorKind;
use outlive_types::sync::plain::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A replica that counts only when it is open, and may be away, or allow only a number of writes.
#[derive(Default)]
struct Shaky {
    medium: MemoryMedium,
    /// Deed of others before the next listing of jobs.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Deed of others before the next record is put here.
    before_put: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// The record of [`job`] that cannot be read; 0 for none.
    damaged: AtomicU64,
    is_open: AtomicBool,
    away: AtomicBool,
    writes_left: Arc<Mutex<Option<u64>>>,
    writes: Arc<AtomicU64>,
}

impl fmt::Debug for Shaky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a shaky place")
    }
}

impl Shaky {
    fn check(&self) -> Result<()> {
        match self.away.load(Ordering::Relaxed) {
            true => Err(Error::retry("this place is away")),
            false => Ok(()),
        }
    }

    fn write(&self) -> Result<()> {
        self.check()?;
        self.writes.fetch_add(1, Ordering::Relaxed);
        match &mut *self.writes_left.lock() {
            Some(0) => Err(Error::retry("the program that writes here was killed")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl LogRecords for Shaky {
    fn describe(&self) -> String {
        "a shaky place".to_owned()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        let meanwhile = self.meanwhile.lock().take();
        meanwhile.into_iter().for_each(|work| work());
        self.check().and_then(|()| self.medium.jobs())
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        self.check().and_then(|()| self.medium.list(job))
    }

    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        self.check()?;
        match *job == self::job() && self.damaged.load(Ordering::Relaxed) == number {
            true => Err(Error::damaged("this record cannot be read")),
            false => self.medium.get(job, number),
        }
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        let meanwhile = self.before_put.lock().take();
        meanwhile.into_iter().for_each(|work| work());
        self.write().and_then(|()| self.medium.put_new(job, number, record))
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        self.write().and_then(|()| self.medium.delete(job, number))
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.check().and_then(|()| self.medium.sync(job))
    }
}

impl LogLocks for Shaky {}

impl LogSeal for Shaky {
    fn sealed(&self) -> Result<Option<Vec<u8>>> {
        self.check().and_then(|()| self.medium.sealed())
    }

    fn seal(&self, successor: &[u8]) -> Result<()> {
        if self.medium.sealed()?.is_some() {
            return self.check();
        }
        self.write().and_then(|()| self.medium.seal(successor))
    }
}

/// The same replica for callers that may not use it before it is open.
#[derive(Debug)]
struct Guarded(Arc<Shaky>);

impl Guarded {
    fn medium(&self) -> Result<&Shaky> {
        match self.0.is_open.load(Ordering::Relaxed) {
            true => Ok(&self.0),
            false => Err(Error::retry("this place is not open")),
        }
    }
}

impl LogRecords for Guarded {
    fn describe(&self) -> String {
        self.0.describe()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.medium()?.jobs()
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        self.medium()?.list(job)
    }

    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        self.medium()?.get(job, number)
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        self.medium()?.put_new(job, number, record)
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        self.medium()?.delete(job, number)
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.medium()?.sync(job)
    }
}

impl LogLocks for Guarded {}

impl LogSeal for Guarded {
    fn sealed(&self) -> Result<Option<Vec<u8>>> {
        self.medium()?.sealed()
    }

    fn seal(&self, successor: &[u8]) -> Result<()> {
        self.medium()?.seal(successor)
    }
}

type Set = Vec<Arc<Shaky>>;

/// All configurations that a log had or may get, by name.
#[derive(Clone, Default)]
struct World {
    sets: Arc<Mutex<HashMap<String, Set>>>,
    /// Writes left to all new replicas together.
    writes_left: Arc<Mutex<Option<u64>>>,
    writes: Arc<AtomicU64>,
}

fn media(set: &Set) -> Vec<Arc<dyn LogMedium>> {
    set.iter().map(|replica| Arc::new(Guarded(replica.clone())) as Arc<dyn LogMedium>).collect()
}

fn new_replica(replica: &Arc<Shaky>) -> NewReplica {
    let (medium, is_open) = (replica.clone(), replica.is_open.load(Ordering::Relaxed));
    let replica = replica.clone();
    let open = Box::new(move || {
        replica.write()?;
        replica.is_open.store(true, Ordering::Relaxed);
        Ok(())
    });
    NewReplica { medium, is_open, open }
}

/// Returns the new replicas as a machine that reaches none of them sees them.
fn sees_nothing() -> Result<Vec<NewReplica>> {
    let replica = |_| NewReplica {
        medium: Arc::new(MemoryMedium::default()),
        is_open: false,
        open: Box::new(|| panic!("it was opened, and has nothing")),
    };
    Ok((0..3).map(replica).collect())
}

impl World {
    fn with(&self, name: &str, count: usize) -> Set {
        let replica = |is_open| {
            Arc::new(Shaky {
                is_open: AtomicBool::new(is_open),
                writes_left: self.writes_left.clone(),
                writes: self.writes.clone(),
                ..Shaky::default()
            })
        };
        let set: Set = (0..count).map(|_| replica(name == "first")).collect();
        self.sets.lock().insert(name.to_owned(), set.clone());
        set
    }

    fn set(&self, name: &[u8]) -> Set {
        self.sets.lock()[std::str::from_utf8(name).unwrap()].clone()
    }

    fn finish(&self, old: &Set, successor: &[u8], asking: Asking) -> Result<Set> {
        let new = self.set(successor);
        let look = || Ok(new.iter().map(new_replica).collect::<Vec<NewReplica>>());
        if look()?.iter().filter(|replica| replica.is_open).count() <= new.len() / 2 {
            move_to(&media(old), asking, successor, &look)?;
        }
        Ok(new)
    }

    fn moved(&self, old: &Set, to: &str, asking: Asking) -> Result<Vec<u8>> {
        let successor = succeed(&media(old), asking, to.as_bytes())?;
        self.finish(old, &successor, asking)?;
        Ok(successor)
    }

    /// Returns the log for a process that begins with these replicas.
    fn log(&self, from: &Set, asking: Asking) -> RecordLog<Movable> {
        let (world, now) = (self.clone(), Mutex::new(from.clone()));
        let follow = move |successor: &[u8]| {
            let mut now = now.lock();
            *now = world.finish(&now, successor, asking)?;
            Ok(media(&now))
        };
        RecordLog::over(Movable::new(&media(from), asking, Box::new(follow)).unwrap())
    }
}

fn job() -> JobName {
    JobName::new("x").unwrap()
}

fn append(log: &dyn ManifestLog, previous: u64, record: &[u8]) -> Result<Append> {
    let meant = match previous {
        0 => Previous::NONE,
        _ => Previous::of(previous, &log.read(&job(), previous)?),
    };
    log.append_if(&job(), meant, record)
}

fn record(number: u64) -> Vec<u8> {
    format!("record {number}").into_bytes()
}

const BOTH: [Asking; 2] = [Asking::InTurn, Asking::AtOnce];
const COUNTS: [(usize, usize); 6] = [(1, 3), (3, 3), (3, 1), (1, 1), (3, 5), (5, 3)];

fn holds(log: &dyn ManifestLog, numbers: impl Iterator<Item = u64>) {
    let numbers: Vec<u64> = numbers.collect();
    assert_eq!(log.numbers(&job()).unwrap(), numbers);
    for number in numbers {
        assert_eq!(log.read(&job(), number).unwrap(), record(number));
    }
}

/// A log goes from any number of replicas to any other, twice, and programs that have it open go
/// on.
#[test]
fn a_log_is_moved_while_it_is_used() {
    for (asking, (from, to)) in BOTH.into_iter().flat_map(|asking| COUNTS.map(|it| (asking, it))) {
        let world = World::default();
        let (first, second) = (world.with("first", from), world.with("second", to));
        world.with("third", from);
        let log = world.log(&first, asking);
        let other = world.log(&first, asking);
        (0..5).for_each(|n| assert_eq!(append(&log, n, &record(n + 1)).unwrap(), Append::Done));
        log.remove_before(&job(), 3).unwrap();
        assert_eq!(world.moved(&first, "second", asking).unwrap(), b"second");
        assert_eq!(append(&log, 5, &record(6)).unwrap(), Append::Done);
        holds(&other, 3..=6);
        assert_eq!(append(&other, 5, b"late").unwrap(), Append::Lost);
        assert_eq!(world.moved(&second, "third", asking).unwrap(), b"third");
        assert_eq!(append(&other, 6, &record(7)).unwrap(), Append::Done);
        holds(&log, 3..=7);
        // From the very beginning.
        holds(&world.log(&first, asking), 3..=7);
        log.remove_before(&job(), 7).unwrap();
        holds(&world.log(&first, asking), 7..=7);
    }
}

/// The messages of a job's ranks move as well: a save in progress finds them.
#[test]
fn messages_of_ranks_are_moved_with_the_log() {
    for (from, to) in COUNTS {
        let world = World::default();
        let first = world.with("first", from);
        world.with("second", to);
        let log = world.log(&first, Asking::InTurn);
        let chains = [job().mail_of(2), job().calls_of(0)];
        for chain in &chains {
            assert_eq!(log.append_if(chain, Previous::NONE, b"a word").unwrap(), Append::Done);
        }
        assert_eq!(world.moved(&first, "second", Asking::InTurn).unwrap(), b"second");
        for chain in &chains {
            assert_eq!(log.numbers(chain).unwrap(), [1], "{chain}, {from} to {to}");
            let behind = Previous::of(1, &log.read(chain, 1).unwrap());
            assert_eq!(log.append_if(chain, behind, b"the next").unwrap(), Append::Done);
        }
    }
}

/// The mover is killed at each write. Then other programs save and complete the move, or the
/// command runs again.
#[test]
fn a_mover_may_be_killed_at_any_step() {
    for (again, (from, to)) in [false, true].into_iter().flat_map(|a| COUNTS.map(|it| (a, it))) {
        for step in 0.. {
            let world = World::default();
            let first = world.with("first", from);
            world.with("second", to);
            let log = world.log(&first, Asking::InTurn);
            (0..3).for_each(|n| assert_eq!(append(&log, n, &record(n + 1)).unwrap(), Append::Done));
            *world.writes_left.lock() = Some(step);
            let moved = world.moved(&first, "second", Asking::InTurn);
            *world.writes_left.lock() = None;
            if again {
                let again = world.moved(&first, "second", Asking::InTurn).unwrap();
                assert_eq!(again, b"second");
            }
            assert_eq!(append(&log, 3, &record(4)).unwrap(), Append::Done, "{step}");
            assert_eq!(append(&log, 3, b"other").unwrap(), Append::Lost);
            let other = world.log(&first, Asking::InTurn);
            assert_eq!(append(&other, 4, &record(5)).unwrap(), Append::Done);
            holds(&log, 1..=5);
            holds(&other, 1..=5);
            if moved.is_ok() {
                assert!(step > 4, "{step}");
                break;
            }
        }
    }
}

/// Of two movers one wins, whenever the other comes.
#[test]
fn two_movers_agree() {
    for step in 0..60 {
        let world = World::default();
        let first = world.with("first", 3);
        world.with("second", 3);
        world.with("other", 1);
        let log = world.log(&first, Asking::InTurn);
        assert_eq!(append(&log, 0, &record(1)).unwrap(), Append::Done);
        *world.writes_left.lock() = Some(step);
        let one = world.moved(&first, "second", Asking::InTurn);
        *world.writes_left.lock() = None;
        let other = world.moved(&first, "other", Asking::InTurn).unwrap();
        if one.is_ok() || step > 3 {
            assert_eq!(other, b"second", "{step}");
        }
        assert_eq!(world.moved(&first, "second", Asking::InTurn).unwrap(), other);
        assert_eq!(append(&log, 1, &record(2)).unwrap(), Append::Done);
        holds(&world.log(&first, Asking::InTurn), 1..=2);
    }
}

/// Any replica may be away in each step. An old one that comes back decides nothing, and a new one
/// gets the records that it lacks.
#[test]
fn replicas_may_be_away_while_a_log_is_moved() {
    for asking in BOTH {
        for (old, new) in (0..3).flat_map(|old| (0..3).map(move |new| (old, new))) {
            let world = World::default();
            let (first, second) = (world.with("first", 3), world.with("second", 3));
            let log = world.log(&first, asking);
            (0..3).for_each(|n| assert_eq!(append(&log, n, &record(n + 1)).unwrap(), Append::Done));
            first[old].away.store(true, Ordering::Relaxed);
            second[new].away.store(true, Ordering::Relaxed);
            world.moved(&first, "second", asking).unwrap();
            assert!(!second[new].is_open.load(Ordering::Relaxed));
            assert_eq!(append(&log, 3, &record(4)).unwrap(), Append::Done);
            first[old].away.store(false, Ordering::Relaxed);
            for gone in (0..3).filter(|gone| *gone != old) {
                // Every old majority contains a seal.
                first[gone].away.store(true, Ordering::Relaxed);
                let late = world.log(&first, asking);
                assert_eq!(append(&late, 3, b"fork").unwrap(), Append::Lost);
                first[gone].away.store(false, Ordering::Relaxed);
            }
            second[new].away.store(false, Ordering::Relaxed);
            let set = world.set(b"second");
            let look = || Ok(set.iter().map(new_replica).collect());
            let trouble = move_to(&media(&first), asking, b"second", &look).unwrap();
            assert!(trouble.iter().all(Option::is_none));
            assert_eq!(append(&log, 4, &record(5)).unwrap(), Append::Done);
            second[(new + 1) % 3].away.store(true, Ordering::Relaxed);
            holds(&world.log(&first, asking), 1..=5);
        }
    }
}

/// A record that only some replicas have when the log is sealed is in or out, and stays so.
#[test]
fn a_record_that_was_begun_when_the_log_was_sealed_is_decided_once() {
    for (held, away) in (1..3).flat_map(|held| (0..3).map(move |away| (held, away))) {
        let world = World::default();
        let first = world.with("first", 3);
        world.with("second", 3);
        let log = world.log(&first, Asking::InTurn);
        assert_eq!(append(&log, 0, &record(1)).unwrap(), Append::Done);
        for replica in &first[..held] {
            replica.medium.put_new(&job(), super::super::at(2, 0), &record(2)).unwrap();
        }
        first[away].away.store(true, Ordering::Relaxed);
        world.moved(&first, "second", Asking::InTurn).unwrap();
        first[away].away.store(false, Ordering::Relaxed);
        // It reaches a majority of the old replicas too late.
        for replica in &first {
            replica.medium.put_new(&job(), super::super::at(2, 0), &record(2)).unwrap();
        }
        let is_in = log.numbers(&job()).unwrap().len() == 2;
        assert_eq!(is_in, held == 2 || away != 0, "held by {held}, without {away}");
        let appended = append(&log, 1, b"other").unwrap();
        assert_eq!(appended == Append::Lost, is_in);
        let late = world.log(&first, Asking::InTurn);
        assert_eq!(late.read(&job(), 2).unwrap(), log.read(&job(), 2).unwrap());
    }
}

/// A program that read the log before the move, and puts behind that, finds the number taken.
#[test]
fn a_put_that_was_on_its_way_gets_no_number_twice() {
    for (asking, (from, to)) in BOTH.into_iter().flat_map(|asking| COUNTS.map(|it| (asking, it))) {
        let world = World::default();
        let (first, second) = (world.with("first", from), world.with("second", to));
        let (log, late) = (world.log(&first, asking), world.log(&first, asking));
        (0..3).for_each(|n| assert_eq!(append(&log, n, &record(n + 1)).unwrap(), Append::Done));
        world.moved(&first, "second", asking).unwrap();
        for (away, replica) in second.iter().enumerate() {
            replica.away.store(to > 1, Ordering::Relaxed);
            for number in 1..=3 {
                let put = late.medium.put_new(&job(), number, b"late").unwrap();
                assert_eq!(put, Put::Taken, "{number}, without {away}");
            }
            replica.away.store(false, Ordering::Relaxed);
        }
        holds(&world.log(&first, asking), 1..=3);
    }
}

/// A program's put came too late, and its reply was lost. The program finds its record in an old
/// replica, which must not count.
#[test]
fn a_late_record_in_an_old_replica_is_no_record() {
    let world = World::default();
    let first = world.with("first", 1);
    world.with("second", 1);
    let log = world.log(&first, Asking::InTurn);
    assert_eq!(append(&log, 0, &record(1)).unwrap(), Append::Done);
    world.moved(&first, "second", Asking::InTurn).unwrap();
    first[0].medium.put_new(&job(), 2, b"late").unwrap();
    let other = world.log(&first, Asking::InTurn);
    assert_eq!(append(&other, 1, &record(2)).unwrap(), Append::Done);
    let meant = Previous::of(1, &record(1));
    assert_eq!(log.append_if(&job(), meant, b"late").unwrap(), Append::Lost);
    holds(&log, 1..=2);
}

/// The log is moved just before a program puts a record in an old replica. That record does not
/// count: the program puts it again, in the new replicas, before it takes it for appended.
#[test]
fn a_record_that_is_put_behind_a_seal_is_put_once_more() {
    for (from, to) in COUNTS {
        let world = World::default();
        let first = world.with("first", from);
        world.with("second", to);
        let log = world.log(&first, Asking::InTurn);
        assert_eq!(append(&log, 0, &record(1)).unwrap(), Append::Done);
        let (others, old) = (world.clone(), first.clone());
        *first[0].before_put.lock() = Some(Box::new(move || {
            others.moved(&old, "second", Asking::InTurn).unwrap();
        }));
        assert_eq!(append(&log, 1, &record(2)).unwrap(), Append::Done);
        assert!(first[0].before_put.lock().is_none(), "or this tests nothing");
        holds(&log, 1..=2);
        holds(&world.log(&first, Asking::InTurn), 1..=2);
    }
}

/// A program finds a number free, and is held up. Others use that number, remove its record, and
/// move the log. Then the program puts its own record there, and is killed before it removes it: no
/// reader finds it.
#[test]
fn records_that_were_removed_before_a_move_stay_removed() {
    for (from, to) in COUNTS {
        let world = World::default();
        let first = world.with("first", from);
        world.with("second", to);
        let log = world.log(&first, Asking::InTurn);
        (0..5).for_each(|n| assert_eq!(append(&log, n, &record(n + 1)).unwrap(), Append::Done));
        log.remove_before(&job(), 4).unwrap();
        world.moved(&first, "second", Asking::InTurn).unwrap();
        let late = world.log(&first, Asking::InTurn);
        late.medium.put_new(&job(), 3, b"late").unwrap();
        holds(&log, 4..=5);
        holds(&world.log(&first, Asking::InTurn), 4..=5);
        assert_eq!(log.medium.get(&job(), 3).unwrap(), None);
    }
}

/// A power cut during a removal leaves a gap. The log begins behind it, so the move does not depend
/// on the records before it: even if these cannot be read, the log must not stay sealed forever.
#[test]
fn a_log_with_a_gap_is_moved_from_the_gap_on() {
    for to in [1, 3] {
        let world = World::default();
        let first = world.with("first", 1);
        world.with("second", to);
        let log = world.log(&first, Asking::InTurn);
        (0..6).for_each(|n| assert_eq!(append(&log, n, &record(n + 1)).unwrap(), Append::Done));
        [1, 3].iter().for_each(|gone| first[0].medium.delete(&job(), *gone).unwrap());
        first[0].damaged.store(2, Ordering::Relaxed);
        world.moved(&first, "second", Asking::InTurn).unwrap();
        holds(&log, 4..=6);
        assert_eq!(append(&log, 6, &record(7)).unwrap(), Append::Done);
        holds(&world.log(&first, Asking::InTurn), 4..=7);
    }
}

/// When all new replicas are open, the old ones keep only the way to those.
#[test]
fn old_replicas_may_be_emptied() {
    for (from, to) in COUNTS {
        let world = World::default();
        let first = world.with("first", from);
        world.with("second", to);
        let log = world.log(&first, Asking::InTurn);
        (0..4).for_each(|n| assert_eq!(append(&log, n, &record(n + 1)).unwrap(), Append::Done));
        log.remove_before(&job(), 2).unwrap();
        let reader = world.log(&first, Asking::InTurn);
        holds(&reader, 2..=4);
        world.moved(&first, "second", Asking::InTurn).unwrap();
        forget(&media(&first), Asking::InTurn, b"second").unwrap();
        if to == 3 {
            // A machine that reaches too few of the new replicas finds nothing to do in the old
            // ones.
            let moved = move_to(&media(&first), Asking::InTurn, b"second", &sees_nothing);
            let error = moved.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
        }
        assert!(first.iter().all(|replica| replica.medium.list(&job()).unwrap().is_empty()));
        holds(&reader, 2..=4);
        holds(&log, 2..=4);
        holds(&world.log(&first, Asking::InTurn), 2..=4);
    }
}

/// Found by the explorer (fence:50045997, suspend:50015777): a mover finds out what the log has
/// while another completes the move, and empties the old replicas. It found them damaged; or it
/// found that the move is over, and took the new replicas for missing.
#[test]
fn a_mover_that_is_overtaken_by_the_end_of_a_move_finds_the_log() {
    for (sees_it, (from, to)) in [true, false].into_iter().flat_map(|it| COUNTS.map(|c| (it, c))) {
        let world = World::default();
        let first = world.with("first", from);
        world.with("second", to);
        let log = world.log(&first, Asking::InTurn);
        (0..4).for_each(|n| assert_eq!(append(&log, n, &record(n + 1)).unwrap(), Append::Done));
        log.remove_before(&job(), 2).unwrap();
        succeed(&media(&first), Asking::InTurn, b"second").unwrap();
        let (others, old) = (world.clone(), first.clone());
        *first[0].meanwhile.lock() = Some(Box::new(move || {
            others.moved(&old, "second", Asking::InTurn).unwrap();
            forget(&media(&old), Asking::InTurn, b"second").unwrap();
            // By a mover that still fills these replicas, to which the log had been moved before.
            old.iter().for_each(|replica| note_removed(&replica.medium, &job(), 2).unwrap());
        }));
        let moved = match sees_it {
            true => world.finish(&first, b"second", Asking::InTurn).map(drop),
            false => move_to(&media(&first), Asking::InTurn, b"second", &sees_nothing).map(drop),
        };
        assert!(first[0].meanwhile.lock().is_none(), "or this tests nothing");
        match sees_it {
            true => moved.unwrap(),
            false => assert_eq!(moved.unwrap_err().kind(), ErrorKind::Retry),
        }
        holds(&log, 2..=4);
    }
}

/// Found by the explorer (suspend:50011097): a mover copied again what had been removed since. In a
/// single replica a program then took a used number for a new one, and its checkpoint was lost.
#[test]
fn a_mover_that_copies_too_late_brings_nothing_back() {
    for (asking, (from, to)) in BOTH.into_iter().flat_map(|asking| COUNTS.map(|it| (asking, it))) {
        let world = World::default();
        let (first, second) = (world.with("first", from), world.with("second", to));
        world.with("third", from);
        let log = world.log(&first, asking);
        (0..3).for_each(|n| assert_eq!(append(&log, n, &record(n + 1)).unwrap(), Append::Done));
        let mover = seen_by(&Asker::mover(b"second"), &media(&first), asking).unwrap();
        succeed(&media(&first), asking, b"second").unwrap();
        let had = decode(&decide(&*mover, HAD, &encode(&gather(&*mover).unwrap())).unwrap());
        let had = had.unwrap();
        // A mover that examines the replicas now, and is then held up.
        let copier: Vec<NewReplica> = second.iter().map(new_replica).collect();
        let meant = Previous::of(3, &record(3));
        let late = world.log(&first, asking);
        assert_eq!(late.occupied(&job(), meant, b"late").unwrap(), None);
        assert_eq!(late.numbers(&job()).unwrap(), [1, 2, 3]);
        world.moved(&first, "second", asking).unwrap();
        (3..6).for_each(|n| assert_eq!(append(&log, n, &record(n + 1)).unwrap(), Append::Done));
        log.remove_before(&job(), 6).unwrap();
        let trouble = copy(&*mover, &had, &copier).unwrap();
        assert!(trouble.iter().all(Option::is_none));
        let brought_back = |replica: &Arc<Shaky>| replica.medium.list(&job()).unwrap().len() > 3;
        assert!(second.iter().all(brought_back), "or this tests nothing");

        holds(&log, 6..=6);
        holds(&world.log(&first, asking), 6..=6);
        let other = world.log(&first, asking);
        for gone in 1..=3 {
            assert_eq!(log.medium.get(&job(), gone).unwrap(), None);
            assert!(!other.medium.has(&job(), gone).unwrap());
            let meant = Previous::of(gone, &record(gone));
            assert_eq!(other.append_if(&job(), meant, b"other").unwrap(), Append::Lost);
        }
        let put = late.medium.put_new(&job(), 4, b"late");
        assert_eq!(late.answer(&job(), meant, b"late", put).unwrap(), Append::Lost);
        holds(&log, 6..=6);
        assert_eq!(append(&log, 6, &record(7)).unwrap(), Append::Done);
        // Nor does the next move bring it back.
        world.moved(&second, "third", asking).unwrap();
        holds(&log, 6..=7);
        holds(&world.log(&first, asking), 6..=7);
        log.remove_before(&job(), 7).unwrap();
        assert_eq!(append(&log, 7, &record(8)).unwrap(), Append::Done);
        holds(&world.log(&first, asking), 7..=8);
    }
}

/// A record of a removal that only one replica has stops no mover.
#[test]
fn a_removal_that_only_one_replica_knows_stops_no_mover() {
    for (from, to) in [(3, 3), (3, 1)] {
        for told in 0..3 {
            let world = World::default();
            let first = world.with("first", from);
            world.with("second", to);
            let log = world.log(&first, Asking::InTurn);
            (0..4).for_each(|n| assert_eq!(append(&log, n, &record(n + 1)).unwrap(), Append::Done));
            let old = media(&first);
            succeed(&old, Asking::InTurn, b"second").unwrap();
            // Gathered by a mover that was then killed, before any replica knew.
            let mover = seen_by(&Asker::mover(b"second"), &old, Asking::InTurn).unwrap();
            let had = gather(&*mover).unwrap();
            decide(&*mover, HAD, &encode(&had)).unwrap();
            let note = first[told].medium.put_new(&job().removed(), 3, super::super::REMOVED);
            note.unwrap();
            world.moved(&first, "second", Asking::InTurn).unwrap();
            holds(&log, 3..=4);
            assert_eq!(append(&log, 4, &record(5)).unwrap(), Append::Done);
        }
    }
}

#[test]
fn without_a_majority_of_the_old_or_the_new_replicas_nothing_is_moved() {
    let world = World::default();
    let (first, second) = (world.with("first", 3), world.with("second", 3));
    let log = world.log(&first, Asking::InTurn);
    assert_eq!(append(&log, 0, &record(1)).unwrap(), Append::Done);
    let away = |set: &Set, away: bool| {
        set[1..].iter().for_each(|replica| replica.away.store(away, Ordering::Relaxed));
    };
    away(&first, true);
    assert_eq!(world.moved(&first, "second", Asking::InTurn).unwrap_err().kind(), ErrorKind::Retry);
    away(&first, false);
    away(&second, true);
    let error = world.moved(&first, "second", Asking::InTurn).unwrap_err();
    assert!(error.message().contains("of the 3 replicas that the log is moved to"), "{error}");
    let error = append(&log, 1, &record(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "it is sealed: {error}");
    away(&second, false);
    assert_eq!(append(&log, 1, &record(2)).unwrap(), Append::Done);
    holds(&world.log(&first, Asking::InTurn), 1..=2);
}

#[test]
fn only_programs_look_for_seals() {
    for (who, counts) in [(Who::User, false), (Who::Founder, true), (Who::Mover, true)] {
        assert_eq!((who.counts(true), who.counts(false)), (counts, true));
    }
}
