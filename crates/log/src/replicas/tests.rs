//! Failures of single replicas.

use super::*;
use crate::{Append, ManifestLog, MemoryMedium, Previous, RecordLog};
use outlive_types::ErrorKind;
use outlive_types::sync::plain::Mutex;
use std::fmt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A replica that can be away, and counts the calls to it.
#[derive(Default)]
struct Shaky {
    medium: MemoryMedium,
    /// Deed of others before the next record is read here.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    away: AtomicBool,
    /// Number of writes before the replica goes away.
    writes_left: Mutex<Option<usize>>,
    asked: AtomicUsize,
}

impl fmt::Debug for Shaky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a shaky place")
    }
}

impl Shaky {
    fn check(&self) -> Result<()> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match self.away.load(Ordering::Relaxed) {
            true => Err(Error::retry("this place is away")),
            false => Ok(()),
        }
    }

    fn write(&self) -> Result<()> {
        self.check()?;
        let mut left = self.writes_left.lock();
        match &mut *left {
            Some(0) => Err(Error::retry("this place takes nothing more")),
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
        self.check().and_then(|()| self.medium.jobs())
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        self.check().and_then(|()| self.medium.list(job))
    }

    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        let meanwhile = self.meanwhile.lock().take();
        meanwhile.into_iter().for_each(|work| work());
        self.check().and_then(|()| self.medium.get(job, number))
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        self.write().and_then(|()| self.medium.put_new(job, number, record))
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        self.check().and_then(|()| self.medium.delete(job, number))
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.check().and_then(|()| self.medium.sync(job))
    }
}

impl LogLocks for Shaky {}

impl LogSeal for Shaky {}

fn job() -> JobName {
    JobName::new("x").unwrap()
}

/// Several replicas, and a log on them as one process sees it.
struct World(Vec<Arc<Shaky>>);

impl World {
    fn new(count: usize) -> World {
        World((0..count).map(|_| Arc::default()).collect())
    }

    fn log(&self, asking: Asking) -> RecordLog<ReplicatedLog> {
        let media = self.0.iter().map(|replica| replica.clone() as Arc<dyn LogMedium>).collect();
        RecordLog::over(ReplicatedLog::new(media, asking).unwrap())
    }

    fn away(&self, away: &[usize]) {
        for (number, replica) in self.0.iter().enumerate() {
            replica.away.store(away.contains(&number), Ordering::Relaxed);
        }
    }

    /// Returns the rounds of a number for which a replica has a register.
    fn rounds(&self, replica: usize, number: u64) -> Vec<Round> {
        let listed = self.0[replica].medium.list(&job()).unwrap().into_iter();
        listed.filter(|at| at >> ROUND_BITS == number).map(|at| at as Round).collect()
    }
}

fn append(log: &dyn ManifestLog, previous: u64, record: &[u8]) -> Result<Append> {
    let meant = match previous {
        0 => Previous::NONE,
        _ => Previous::of(previous, &log.read(&job(), previous)?),
    };
    log.append_if(&job(), meant, record)
}

const BOTH: [Asking; 2] = [Asking::InTurn, Asking::AtOnce];

/// Any minority may be away, at any time, and another one the next time.
#[test]
fn the_log_goes_on_without_a_minority() {
    for asking in BOTH {
        for count in [3, 5] {
            let world = World::new(count);
            let log = world.log(asking);
            for number in 0..12 {
                let away = [number as usize % count, (number as usize + 1) % count];
                world.away(&away[..count / 2]);
                let record = format!("record {}", number + 1);
                assert_eq!(append(&log, number, record.as_bytes()).unwrap(), Append::Done);
                assert_eq!(append(&log, number, b"other").unwrap(), Append::Lost);
            }
            for first in 0..count {
                let away = [first, (first + 1) % count];
                world.away(&away[..count / 2]);
                let log = world.log(asking);
                assert_eq!(log.numbers(&job()).unwrap(), (1..=12).collect::<Vec<_>>());
                for number in 1..=12 {
                    let record = format!("record {number}");
                    assert_eq!(log.read(&job(), number).unwrap(), record.as_bytes());
                }
                assert_eq!(log.jobs().unwrap(), [job()]);
            }
        }
    }
}

/// Without a majority nothing is known: no record counts as missing, and none is put.
#[test]
fn without_a_majority_nothing_is_said() {
    for asking in BOTH {
        let world = World::new(3);
        let log = world.log(asking);
        assert_eq!(append(&log, 0, b"one").unwrap(), Append::Done);
        world.away(&[0, 2]);
        let errors = [
            log.read(&job(), 1).map(drop).unwrap_err(),
            log.numbers(&job()).map(drop).unwrap_err(),
            log.jobs().map(drop).unwrap_err(),
            log.append_if(&job(), Previous::of(1, b"one"), b"two").map(drop).unwrap_err(),
            log.remove_before(&job(), 1).unwrap_err(),
            log.sync(&job()).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
            assert!(error.message().contains("fewer than 2 answer"), "{error}");
        }
        world.away(&[]);
        assert_eq!(append(&log, 1, b"two").unwrap(), Append::Done);
        assert_eq!(log.numbers(&job()).unwrap(), [1, 2]);
    }
}

/// A replica that comes back gets the records that it missed before it counts for a newer one.
#[test]
fn a_replica_that_comes_back_catches_up_first() {
    for asking in BOTH {
        let world = World::new(3);
        let log = world.log(asking);
        assert_eq!(append(&log, 0, b"1").unwrap(), Append::Done);
        world.away(&[0]);
        for number in 1..5 {
            assert_eq!(append(&log, number, b"r").unwrap(), Append::Done);
        }
        assert_eq!(world.rounds(0, 4), []);
        world.away(&[2]);
        assert_eq!(append(&log, 5, b"r").unwrap(), Append::Done);
        for number in 2..=5 {
            assert_ne!(world.rounds(0, number), [], "{number}");
        }
        world.away(&[1]);
        let log = world.log(asking);
        assert_eq!(log.numbers(&job()).unwrap(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(log.read(&job(), 3).unwrap(), b"r");
    }
}

/// A record that was removed while a replica was away does not come back with it.
#[test]
fn removed_records_stay_removed() {
    for asking in BOTH {
        let world = World::new(3);
        let log = world.log(asking);
        for number in 0..8 {
            assert_eq!(append(&log, number, b"r").unwrap(), Append::Done);
        }
        world.away(&[1]);
        log.remove_before(&job(), 7).unwrap();
        for away in 0..3 {
            world.away(&[away]);
            let log = world.log(asking);
            assert_eq!(log.numbers(&job()).unwrap(), [7, 8], "without {away}");
            assert_eq!(log.read(&job(), 3).unwrap_err().kind(), ErrorKind::Damaged);
            for number in 0..6 {
                let meant = Previous::of(number, b"r");
                let meant = if number == 0 { Previous::NONE } else { meant };
                assert_eq!(log.append_if(&job(), meant, b"late").unwrap(), Append::Lost);
            }
        }
        world.away(&[]);
        assert_eq!(append(&log, 8, b"r").unwrap(), Append::Done);
        log.remove_before(&job(), 9).unwrap();
        assert_eq!(log.numbers(&job()).unwrap(), [9]);
        let there = world.0.iter().map(|replica| replica.medium.list(&job().removed()).unwrap());
        assert_eq!(there.collect::<Vec<_>>(), vec![vec![9]; 3]);
        assert_eq!(world.rounds(1, 8), [], "and its place is free");
    }
}

/// Only some replicas have a record, as its writer was killed. The next reader decides whether it
/// is there, and all later readers agree.
#[test]
fn a_record_that_was_begun_is_completed_or_superseded() {
    for (asking, held) in BOTH.into_iter().flat_map(|asking| [(asking, 1), (asking, 2)]) {
        for away in 0..3 {
            let world = World::new(3);
            let log = world.log(asking);
            assert_eq!(append(&log, 0, b"1").unwrap(), Append::Done);
            for replica in &world.0[..held] {
                replica.medium.put_new(&job(), at(2, 0), b"begun").unwrap();
            }
            world.away(&[away]);
            let log = world.log(asking);
            let found = log.numbers(&job()).unwrap().len() == 2;
            let appended = append(&log, 1, b"other").unwrap();
            let record = log.read(&job(), 2).unwrap();
            match appended {
                Append::Lost => assert_eq!(record, b"begun"),
                Append::Done => assert_eq!(record, b"other"),
            }
            let survives = away >= held || held == 2 || away != 0;
            assert_eq!(record == b"begun", survives, "held by {held}, without {away}");
            assert!(!found || record == b"begun", "what was said to be there stays there");
            for away in 0..3 {
                world.away(&[away]);
                assert_eq!(world.log(asking).read(&job(), 2).unwrap(), record);
            }
        }
    }
}

/// The first replica takes the record, and is lost before it can answer: others go on.
#[test]
fn the_replica_that_is_asked_first_may_be_lost_half_way() {
    for asking in BOTH {
        let world = World::new(3);
        let log = world.log(asking);
        assert_eq!(append(&log, 0, b"1").unwrap(), Append::Done);
        for replica in &world.0[1..] {
            *replica.writes_left.lock() = Some(0);
        }
        let error = append(&log, 1, b"ours").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Retry);
        for replica in &world.0 {
            *replica.writes_left.lock() = None;
        }
        world.away(&[0]);
        let others = world.log(asking);
        assert_eq!(append(&others, 1, b"theirs").unwrap(), Append::Done);
        assert_eq!(world.rounds(1, 2), [0, 1], "the first round is closed");
        world.away(&[]);
        assert_eq!(append(&log, 1, b"ours").unwrap(), Append::Lost);
        assert_eq!(log.read(&job(), 2).unwrap(), b"theirs");
    }
}

/// The bytes of one replica are damaged: the majority is right. Without a majority, the read fails.
#[test]
fn replicas_that_disagree_are_outvoted() {
    for asking in BOTH {
        let world = World::new(3);
        let log = world.log(asking);
        assert_eq!(append(&log, 0, b"right").unwrap(), Append::Done);
        let damaged = &world.0[0].medium;
        damaged.delete(&job(), at(1, 0)).unwrap();
        damaged.put_new(&job(), at(1, 0), b"wrong").unwrap();
        assert_eq!(log.read(&job(), 1).unwrap(), b"right");
        world.away(&[1]);
        let error = world.log(asking).read(&job(), 1).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Retry), "{error}");
    }
}

#[test]
fn a_log_has_an_odd_number_of_replicas() {
    for count in [0, 1, 2, 4, 6, 8, 9] {
        let media = (0..count).map(|_| Arc::new(MemoryMedium::default()) as Arc<dyn LogMedium>);
        let error = ReplicatedLog::new(media.collect(), Asking::InTurn).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}

/// A replica where a number was closed has a register of it, but lacks its record.
#[test]
fn a_replica_where_a_number_was_only_closed_gets_the_record() {
    for asking in BOTH {
        let world = World::new(3);
        let log = world.log(asking);
        for number in 0..3 {
            assert_eq!(append(&log, number, b"r").unwrap(), Append::Done);
        }
        for number in [2, 3] {
            world.0[2].medium.delete(&job(), at(number, 0)).unwrap();
            world.0[2].medium.put_new(&job(), at(number, 0), CLOSED).unwrap();
        }
        // Another process, which knows nothing about the replicas.
        let log = world.log(asking);
        log.sync(&job()).unwrap();
        for number in [2, 3] {
            assert_eq!(world.rounds(2, number), [0, SETTLED]);
        }
    }
}

/// One replica's lock is taken, or replicas are away: the log must not report that it has no locks.
#[test]
fn locks_of_a_minority_keep_out_and_are_told_apart_from_none() {
    let with: Vec<Arc<MemoryMedium>> =
        (0..3).map(|_| Arc::new(MemoryMedium::with_locks())).collect();
    let replicas =
        |media: Vec<Arc<dyn LogMedium>>| ReplicatedLog::new(media, Asking::InTurn).unwrap();
    let all = || with.iter().map(|medium| medium.clone() as Arc<dyn LogMedium>).collect::<Vec<_>>();
    let one = with[0].lock_collecting().unwrap();
    assert!(matches!(replicas(all()).lock_collecting().unwrap(), Lock::Busy));
    drop(one);
    assert!(matches!(replicas(all()).lock_collecting().unwrap(), Lock::Taken(_)));
    let none = || Arc::new(MemoryMedium::default()) as Arc<dyn LogMedium>;
    let mixed = replicas(vec![with[0].clone(), none(), none()]);
    assert!(matches!(mixed.lock_collecting().unwrap(), Lock::None));
}

/// One replica does not know of a reader, since it was away when the reader came. A gc must not
/// delete packs that the reader still has to load.
#[test]
fn a_reader_at_a_majority_of_the_replicas_is_seen() {
    let with: Vec<Arc<MemoryMedium>> =
        (0..3).map(|_| Arc::new(MemoryMedium::with_locks())).collect();
    let media = with.iter().map(|medium| medium.clone() as Arc<dyn LogMedium>).collect();
    let replicas = ReplicatedLog::new(media, Asking::InTurn).unwrap();
    let held: Vec<_> = with[1..].iter().map(|replica| replica.lock_reading().unwrap()).collect();
    assert!(replicas.is_read().unwrap());
    drop(held);
    assert!(!replicas.is_read().unwrap());
}

/// A replica that was away is being filled, and takes only some of the records. It does not count
/// as complete, and gets the rest later.
#[test]
fn a_replica_whose_filling_was_cut_off_is_filled_later() {
    for taken in 1..4 {
        let world = World::new(3);
        let log = world.log(Asking::InTurn);
        assert_eq!(append(&log, 0, b"r").unwrap(), Append::Done);
        world.away(&[0]);
        for number in 1..5 {
            assert_eq!(append(&log, number, b"r").unwrap(), Append::Done);
        }
        world.away(&[]);
        *world.0[0].writes_left.lock() = Some(taken);
        assert_eq!(append(&log, 5, b"r").unwrap(), Append::Done);
        *world.0[0].writes_left.lock() = None;
        assert_eq!(append(&world.log(Asking::InTurn), 6, b"r").unwrap(), Append::Done);
        for number in 1..=6 {
            assert_ne!(world.rounds(0, number), [], "{number}, {taken} taken");
        }
    }
}

/// All replicas are full, so a gc cannot record the removal that it plans. A program lists the
/// records before that, and reads the newest one afterwards: the job must not seem to have no
/// records.
#[test]
fn a_record_whose_removal_cannot_be_noted_is_not_deleted() {
    let world = World::new(3);
    let log = world.log(Asking::InTurn);
    for number in 0..2 {
        assert_eq!(append(&log, number, b"r").unwrap(), Append::Done);
    }
    let (others, replicas) = (world.log(Asking::InTurn), world.0.clone());
    *world.0[0].meanwhile.lock() = Some(Box::new(move || {
        assert_eq!(append(&others, 2, b"r").unwrap(), Append::Done);
        for replica in &replicas {
            *replica.writes_left.lock() = Some(0);
        }
        others.remove_before(&job(), 3).unwrap_err();
    }));
    assert_eq!(log.numbers(&job()).unwrap(), [1, 2]);
    assert!(world.0[0].meanwhile.lock().is_none(), "or this tests nothing");
    assert_eq!(log.numbers(&job()).unwrap(), [1, 2, 3]);
}

/// A program asks two replicas for the only record of a job. Before they answer, others put the
/// next record, and remove that one. Both replicas report the removal: the job must not seem to
/// have no records.
#[test]
fn a_record_that_is_removed_while_replicas_are_asked_for_it_counts_as_removed() {
    let world = World::new(3);
    let log = world.log(Asking::AtOnce);
    assert_eq!(append(&log, 0, b"r").unwrap(), Append::Done);
    world.away(&[2]);
    let (others, met) = (Arc::new(world.log(Asking::InTurn)), Arc::new(Barrier::new(2)));
    for replica in &world.0[..2] {
        let (others, met) = (others.clone(), met.clone());
        *replica.meanwhile.lock() = Some(Box::new(move || {
            if met.wait().is_leader() {
                assert_eq!(append(&*others, 1, b"r").unwrap(), Append::Done);
                others.remove_before(&job(), 2).unwrap();
            }
            met.wait();
        }));
    }
    assert_eq!(log.numbers(&job()).unwrap(), [2]);
}
