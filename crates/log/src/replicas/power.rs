//! Power cuts: records that a process relied on, and that a killed process had not made durable.

use super::moving::seen_by;
use super::*;
use crate::{Append, ManifestLog, Previous, RecordLog};
use outlive_types::sync::plain::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

type Records = BTreeMap<(JobName, u64), Vec<u8>>;

/// The visible state, and the part that survives a power cut.
#[derive(Clone, Default)]
struct State {
    visible: Records,
    durable: Records,
    sealed: Option<Vec<u8>>,
    is_seal_durable: bool,
    is_open: bool,
}

/// Remaining steps of the process, shared by all replicas; without a number it is never killed.
type Steps = Arc<Mutex<Option<usize>>>;

/// A log replica.
#[derive(Default)]
struct Disk {
    state: Mutex<State>,
    away: AtomicBool,
    /// The replica is away at the next `keep` only.
    blinks: AtomicBool,
    steps: Steps,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a disk")
    }
}

impl Disk {
    fn check(&self) -> Result<()> {
        match self.away.load(Ordering::Relaxed) {
            true => Err(Error::retry("this disk is away")),
            false => Ok(()),
        }
    }

    /// Changes the state, unless the process is dead.
    fn step<T>(&self, work: impl FnOnce(&mut State) -> T) -> Result<T> {
        self.check()?;
        match &mut *self.steps.lock() {
            Some(0) => return Err(Error::retry("this process was killed")),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(work(&mut self.state.lock()))
    }

    fn state(&self) -> State {
        self.state.lock().clone()
    }

    fn cut(&self) {
        let mut state = self.state.lock();
        state.visible = state.durable.clone();
        if !state.is_seal_durable {
            state.sealed = None;
        }
    }
}

impl LogRecords for Disk {
    fn describe(&self) -> String {
        "a disk".to_owned()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.check()?;
        let jobs: BTreeSet<JobName> =
            self.state().visible.into_keys().map(|(job, _)| job).collect();
        Ok(jobs.into_iter().filter(JobName::is_listed).collect())
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        self.check()?;
        let numbers = self.state().visible.into_keys().filter(|(of, _)| of == job);
        Ok(numbers.map(|(_, number)| number).collect())
    }

    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        self.check()?;
        Ok(self.state().visible.get(&(job.clone(), number)).cloned())
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        self.step(|state| {
            let mut put = Put::Taken;
            state.visible.entry((job.clone(), number)).or_insert_with(|| {
                put = Put::Made;
                record.to_vec()
            });
            put
        })
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        self.step(|state| drop(state.visible.remove(&(job.clone(), number))))
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.step(|state| {
            let State { visible, durable, .. } = state;
            durable.retain(|(of, _), _| of != job);
            let of_job = visible.iter().filter(|((of, _), _)| of == job);
            durable.extend(of_job.map(|(key, record)| (key.clone(), record.clone())));
        })
    }

    fn keep(&self, job: &JobName, number: u64) -> Result<()> {
        if self.blinks.swap(false, Ordering::Relaxed) {
            return Err(Error::retry("this disk is away for a moment"));
        }
        self.step(|state| {
            let kept = state.visible.get_key_value(&(job.clone(), number));
            state.durable.extend(kept.map(|(key, record)| (key.clone(), record.clone())));
        })
    }
}

impl LogLocks for Disk {}

impl LogSeal for Disk {
    fn sealed(&self) -> Result<Option<Vec<u8>>> {
        self.check()?;
        let State { sealed, is_seal_durable, .. } = self.state();
        if sealed.is_some() && !is_seal_durable {
            self.step(|state| state.is_seal_durable = true)?;
        }
        Ok(sealed)
    }

    fn seal(&self, successor: &[u8]) -> Result<()> {
        if self.sealed()?.is_none() {
            self.step(|state| state.sealed = Some(successor.to_vec()))?;
            self.step(|state| state.is_seal_durable = true)?;
        }
        Ok(())
    }
}

struct World {
    disks: Vec<Arc<Disk>>,
    steps: Steps,
}

impl World {
    fn new(count: usize) -> World {
        let steps = Steps::default();
        let disk = |_| Arc::new(Disk { steps: steps.clone(), ..Disk::default() });
        World { disks: (0..count).map(disk).collect(), steps }
    }

    fn beside(&self, count: usize) -> World {
        let disk = |_| Arc::new(Disk { steps: self.steps.clone(), ..Disk::default() });
        World { disks: (0..count).map(disk).collect(), steps: self.steps.clone() }
    }

    fn media(&self) -> Vec<Arc<dyn LogMedium>> {
        self.disks.iter().map(|disk| disk.clone() as Arc<dyn LogMedium>).collect()
    }

    fn log(&self) -> RecordLog<ReplicatedLog> {
        RecordLog::over(ReplicatedLog::new(self.media(), Asking::InTurn).unwrap())
    }

    fn away(&self, away: Option<usize>) {
        for (number, disk) in self.disks.iter().enumerate() {
            disk.away.store(away == Some(number), Ordering::Relaxed);
        }
    }

    /// Runs a process that is killed after `steps` steps. Returns whether it was killed.
    fn process<T>(&self, steps: usize, work: impl FnOnce() -> Result<T>) -> bool {
        *self.steps.lock() = Some(steps);
        let _ = work();
        self.steps.lock().take() == Some(0)
    }

    fn cut(&self) {
        self.disks.iter().for_each(|disk| disk.cut());
    }
}

fn job() -> JobName {
    JobName::new("x").unwrap()
}

/// Appends behind the newest record.
fn append(log: &dyn ManifestLog, record: &[u8]) -> Result<()> {
    let newest = log.latest(&job())?;
    let behind = match newest {
        0 => Previous::NONE,
        _ => Previous::of(newest, &log.read(&job(), newest)?),
    };
    match log.append_if(&job(), behind, record)? {
        Append::Done => Ok(()),
        Append::Lost => Err(Error::retry("another was faster")),
    }
}

/// A process is killed while it appends; one disk is away. Another process appends when that disk
/// is back, until the power is cut. With any disk away, acknowledged records are there, and each
/// number has one record.
#[test]
fn a_power_cut_takes_nothing_that_was_acknowledged() {
    for away in 0..3 {
        for killed in 0.. {
            let mut is_over = true;
            for cut in 0.. {
                let world = World::new(3);
                world.away(Some(away));
                let mut acknowledged: Vec<&[u8]> = Vec::new();
                let mut save = |record| {
                    append(&world.log(), record)?;
                    acknowledged.push(record);
                    Ok(())
                };
                is_over &= !world.process(killed, || save(b"1").and_then(|()| save(b"2")));
                world.away(None);
                let was_cut = world.process(cut, || save(b"3"));
                world.cut();

                // Others go on without a disk: the one that was away, or another one.
                world.away(Some(away));
                append(&world.log(), b"other").unwrap();
                let seen = |away| {
                    world.away(away);
                    let log = world.log();
                    let numbers = log.numbers(&job()).unwrap();
                    let read = |number: &u64| log.read(&job(), *number).unwrap();
                    numbers.iter().map(read).collect::<Vec<_>>()
                };
                let all = seen(None);
                let is_there = |record: &&[u8]| all.iter().any(|there| there == record);
                assert!(acknowledged.iter().all(is_there), "{away}, {killed}, {cut}");
                for away in 0..3 {
                    assert_eq!(seen(Some(away)), all, "{away}, {killed}, {cut}");
                }
                if !was_cut {
                    break;
                }
            }
            if is_over {
                break;
            }
        }
    }
}

/// A process is killed after it puts a record into the first replica, before that is durable.
/// Another process finds the record, and copies it to a second replica. After a power cut, a third
/// process puts another record under the same number, which it found free long ago. With any disk
/// away, all find the same record.
#[test]
fn a_record_that_was_not_durable_is_not_brought_to_others() {
    let world = World::new(3);
    let late = ReplicatedLog::new(world.media(), Asking::InTurn).unwrap();
    let killed = world.process(1, || world.log().medium.put_new(&job(), 1, b"lost").map(drop));
    assert!(killed && world.disks[0].state().durable.is_empty());
    world.away(Some(2));
    assert_eq!(world.log().medium.get(&job(), 1).unwrap().unwrap(), b"lost");
    world.cut();
    world.away(None);
    let put = late.put_new(&job(), 1, b"late").unwrap();
    for away in 0..3 {
        world.away(Some(away));
        let record = world.log().medium.get(&job(), 1).unwrap().unwrap();
        assert_eq!(put == Put::Made, record == b"late", "{away}");
    }
}

fn new_replica(disk: &Arc<Disk>) -> NewReplica {
    let (medium, is_open, disk) = (disk.clone(), disk.state().is_open, disk.clone());
    NewReplica { medium, is_open, open: Box::new(move || disk.step(|state| state.is_open = true)) }
}

/// Two movers are killed one after the other, at any steps, and then the power is cut. If anything
/// was copied to the new replicas, the decision on what the log had is durable.
#[test]
fn nothing_is_copied_before_it_is_decided_for_good() {
    for count in [1, 3] {
        for first in 0.. {
            let mut is_over = true;
            for second in 0.. {
                let old = World::new(count);
                let new = old.beside(3);
                let log = seen_by(&Asker::user(), &old.media(), Asking::InTurn).unwrap();
                append(&RecordLog::over(log), b"1").unwrap();
                let look = || Ok(new.disks.iter().map(new_replica).collect());
                is_over &= !old.process(first, || {
                    let to = succeed(&old.media(), Asking::InTurn, b"new")?;
                    move_to(&old.media(), Asking::InTurn, &to, &look)
                });
                // The second mover finds a seal, and follows it.
                let is_sealed = old.disks.iter().any(|disk| disk.state().sealed.is_some());
                let follow = || move_to(&old.media(), Asking::InTurn, b"new", &look);
                let was_killed = is_sealed && old.process(second, follow);
                old.cut();
                new.cut();
                let is_begun =
                    |disk: &Arc<Disk>| disk.state().is_open || !disk.state().visible.is_empty();
                if new.disks.iter().any(is_begun) {
                    let mover =
                        seen_by(&Asker::mover(b"new"), &old.media(), Asking::InTurn).unwrap();
                    let had = mover.get(&JobName::moved(), 2).unwrap();
                    assert!(had.is_some(), "{count}, {first}, {second}");
                    let sealed = old.disks.iter().filter(|disk| disk.state().sealed.is_some());
                    assert!(sealed.count() > count / 2, "{count}, {first}, {second}");
                }
                if !was_killed {
                    break;
                }
            }
            if is_over {
                break;
            }
        }
    }
}

/// A process is killed before its record is durable in a second replica. Another process finds the
/// record, and appends behind it, while that replica is away for a moment. Then that replica loses
/// power, and the first one is lost.
#[test]
fn earlier_records_are_durable_before_a_later_one() {
    let world = World::new(3);
    world.away(Some(2));
    append(&world.log(), b"1").unwrap();
    for disk in &world.disks[..2] {
        disk.put_new(&job(), at(2, 0), b"2").unwrap();
    }
    world.disks[0].keep(&job(), at(2, 0)).unwrap();
    world.disks[1].blinks.store(true, Ordering::Relaxed);
    append(&world.log(), b"3").unwrap();
    assert!(!world.disks[1].blinks.load(Ordering::Relaxed), "or this tests nothing");
    world.disks[1].cut();
    world.away(Some(0));
    let log = world.log();
    assert_eq!(log.numbers(&job()).unwrap(), [1, 2, 3]);
    for number in 1..=3 {
        assert_eq!(log.read(&job(), number).unwrap(), number.to_string().as_bytes());
    }
}

/// A removal in a single replica is cut off at each step. The power cut brings back any of the
/// names that vanished since the last sync. A program that was held up gets no number in such a
/// gap: newer records would hide its acknowledged checkpoint.
#[test]
fn no_number_is_given_away_in_a_gap_that_a_power_cut_leaves() {
    for killed in 0.. {
        let world = World::new(1);
        let disk = &world.disks[0];
        let log = RecordLog::over(disk.clone());
        (0..5).for_each(|_| append(&log, b"r").unwrap());
        let was_killed = world.process(killed, || log.remove_before(&job(), 5));
        let State { visible, durable, .. } = disk.state();
        let vanished: Vec<_> =
            durable.into_iter().filter(|(key, _)| !visible.contains_key(key)).collect();
        for back in 0..1_usize << vanished.len() {
            let mut left = visible.clone();
            let is_back = |(bit, _): &(usize, _)| back >> bit & 1 == 1;
            left.extend(vanished.iter().cloned().enumerate().filter(is_back).map(|(_, it)| it));
            let numbers: Vec<u64> = left.keys().map(|(_, number)| *number).collect();
            *disk.state.lock() = State { durable: left.clone(), visible: left, ..State::default() };
            for previous in 0..5 {
                let meant = match previous {
                    0 => Previous::NONE,
                    _ => Previous::of(previous, b"r"),
                };
                let appended = log.append_if(&job(), meant, b"late").unwrap();
                assert_eq!(appended, Append::Lost, "behind {previous} of {numbers:?}");
            }
        }
        if !was_killed {
            break;
        }
    }
}

/// A mover is killed at each step, and the power is cut: an open new replica has everything that
/// was moved.
#[test]
fn a_new_replica_is_durable_before_it_is_open() {
    for (from, to) in [(1, 3), (3, 1)] {
        for killed in 0.. {
            let old = World::new(from);
            let new = old.beside(to);
            let log = seen_by(&Asker::user(), &old.media(), Asking::InTurn).unwrap();
            append(&RecordLog::over(log), b"1").unwrap();
            let look = || Ok(new.disks.iter().map(new_replica).collect());
            let was_killed = old.process(killed, || {
                let successor = succeed(&old.media(), Asking::InTurn, b"new")?;
                move_to(&old.media(), Asking::InTurn, &successor, &look)
            });
            new.cut();
            let register = if to == 1 { 1 } else { at(1, 0) };
            let open = new.disks.iter().filter(|disk| disk.state().is_open);
            for disk in open {
                let record = disk.get(&job(), register).unwrap();
                assert_eq!(record.as_deref(), Some(&b"1"[..]), "{from} to {to}, {killed}");
            }
            if !was_killed {
                assert!(new.disks.iter().all(|disk| disk.state().is_open));
                break;
            }
        }
    }
}
