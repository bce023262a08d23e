use super::*;
use crate::wrapped::read_one;
use crate::{FaultWorld, ReadRange, ShardName};
use outlive_io::{AlignedBuf, StagingPool, Ticket};
use outlive_log::{Append, LogRecords, ManifestLog, MemoryMedium, Previous, RecordLog};
use outlive_types::sync::plain::Mutex;
use outlive_types::{JobName, PackId, SessionId};
use std::collections::BTreeMap;
use std::fmt;

const SHARD: ShardName = ShardName { pack: PackId([1; 20]), shard: 0 };

/// A timer that records the pauses instead of spending them.
#[derive(Debug)]
struct Noting(Arc<Mutex<Vec<u128>>>);

impl Timer for Noting {
    fn after(&self, pause: Duration, job: Box<dyn FnOnce() + Send>) {
        self.sleep(pause);
        job();
    }

    fn sleep(&self, pause: Duration) {
        self.0.lock().push(pause.as_millis());
    }
}

/// Returns a policy that records its pauses instead of spending them.
fn noting(attempts_max: u32) -> (RetryPolicy, Arc<Mutex<Vec<u128>>>) {
    let pauses = Arc::new(Mutex::new(Vec::new()));
    let note = pauses.clone();
    let policy = RetryPolicy {
        attempts_max,
        pause_first: Duration::from_millis(20),
        pause_max: Duration::from_millis(100),
        timer: Arc::new(Noting(note)),
    };
    (policy, pauses)
}

#[test]
fn pauses_grow_up_to_a_limit_and_attempts_end() {
    let world = FaultWorld::new();
    world.fail_when(|_, _| Some(ErrorKind::Retry));
    let (policy, pauses) = noting(6);
    let target = RetryTarget::new(world.target(), policy);
    let error = target.delete(SHARD).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert_eq!(world.ops(), 6);
    assert_eq!(*pauses.lock(), [20, 40, 80, 100, 100]);
}

#[test]
fn other_errors_are_final() {
    for kind in [ErrorKind::Full, ErrorKind::Damaged, ErrorKind::Invalid, ErrorKind::Fenced] {
        let world = FaultWorld::new();
        world.fail_when(move |_, _| Some(kind));
        let (policy, pauses) = noting(6);
        let target = RetryTarget::new(world.target(), policy);
        assert_eq!(target.delete(SHARD).unwrap_err().kind(), kind);
        assert_eq!((world.ops(), pauses.lock().len()), (1, 0));
    }
}

#[test]
fn a_write_that_fails_in_passing_is_repeated_with_its_bytes() {
    let world = FaultWorld::new();
    world.fail_at(1, ErrorKind::Retry);
    let target = RetryTarget::new(world.target(), noting(2).0);
    let mut writer = target.create(SHARD, 8192).unwrap();
    let mut buffer = AlignedBuf::zeroed(8192);
    buffer.fill(7);
    let ticket = writer.write(0, buffer.share());
    writer.finish(8192).wait().unwrap(); // although no call waited for the write's ticket
    ticket.wait().unwrap();
    let range = ReadRange::new(0, AlignedBuf::zeroed(8192));
    assert_eq!(*read_one(&target, SHARD, range).wait().unwrap(), [7; 8192]);
}

#[test]
fn a_finish_is_never_repeated() {
    for step in [1, 2] {
        let world = FaultWorld::new();
        world.fail_at(step, ErrorKind::Retry);
        let (policy, pauses) = noting(6);
        let target = RetryTarget::new(world.target(), policy);
        let writer = target.create(SHARD, 8192).unwrap();
        writer.finish(0).wait().unwrap_err();
        assert_eq!((world.ops(), pauses.lock().len()), (1 + step, 0));
        assert_eq!(target.list().unwrap(), []);
    }
}

/// An append takes effect, but its reply is lost; the repetition must not report a conflict.
#[test]
fn an_append_whose_reply_was_lost_is_done() {
    let world = FaultWorld::new();
    world.fail_at(1, ErrorKind::Retry); // visible, then the reply is lost
    let log = RecordLog::over(RetryMedium::new(world.medium(), noting(3).0));
    let job = JobName::new("x").unwrap();
    assert_eq!(log.append_if(&job, Previous::NONE, b"mine").unwrap(), Append::Done);
    assert_eq!(world.ops(), 3, "visible, durable (failed), durable");
    world.cut_now(crate::CutMode::Lost);
    world.reboot();
    assert_eq!(world.log().read(&job, 1).unwrap(), b"mine", "done means durable");
}

#[test]
fn a_lost_append_is_lost_at_once() {
    let medium = Arc::new(MemoryMedium::default());
    let job = JobName::new("x").unwrap();
    medium.put_new(&job, 1, b"theirs").unwrap();
    let (policy, pauses) = noting(3);
    let log = RecordLog::over(RetryMedium::new(medium, policy));
    assert_eq!(log.append_if(&job, Previous::NONE, b"mine").unwrap(), Append::Lost);
    assert!(pauses.lock().is_empty());
}

#[test]
fn reads_are_repeated_with_their_buffer() {
    let world = FaultWorld::new();
    let target = RetryTarget::new(world.target(), noting(3).0);
    let shard = ShardName { pack: PackId::new(SessionId([2; 12]), 0, 1), shard: 0 };
    let mut writer = target.create(shard, 4096).unwrap();
    writer.write(0, AlignedBuf::zeroed(4096).share()).wait().unwrap();
    writer.finish(4096).wait().unwrap();
    world.count_reads(true);
    world.fail_at(world.ops(), ErrorKind::Retry);
    let staging = StagingPool::new(4096, 4096);
    let range = ReadRange::new(0, staging.take());
    let read = read_one(&target, shard, range).wait().unwrap();
    assert_eq!((&*read, staging.peak_bytes()), (&[0; 4096][..], 4096));
    drop(read);
    assert!(staging.try_take().is_some());
}

/// A timer that keeps its jobs until `release`.
#[derive(Default)]
struct Held(Mutex<Vec<Box<dyn FnOnce() + Send>>>);

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}

impl Timer for Held {
    fn after(&self, _pause: Duration, job: Box<dyn FnOnce() + Send>) {
        self.0.lock().push(job);
    }

    fn sleep(&self, pause: Duration) {
        panic!("a caller sleeps for {pause:?}");
    }
}

impl Held {
    fn release(&self) -> usize {
        let jobs = std::mem::take(&mut *self.0.lock());
        let count = jobs.len();
        jobs.into_iter().for_each(|job| job());
        count
    }
}

/// A thousand writes, and then as many reads, fail in passing. None of them has a thread during its
/// pause, and each goes on even if no call waits for its ticket.
#[test]
fn pauses_hold_up_no_thread() {
    const PAGES: u64 = 1000;
    let (world, held) = (FaultWorld::new(), Arc::new(Held::default()));
    let policy = RetryPolicy { attempts_max: 3, timer: held.clone(), ..RetryPolicy::default() };
    let target = RetryTarget::new(world.target(), policy);
    let mut writer = target.create(SHARD, PAGES * 4096).unwrap();
    let seen = Mutex::new(BTreeMap::new());
    world.count_reads(true);
    world.fail_when(move |_, name| {
        let mut seen = seen.lock();
        let times = seen.entry(name.to_owned()).and_modify(|times| *times += 1).or_insert(1);
        (*times == 1 && !name.starts_with("finish")).then_some(ErrorKind::Retry)
    });
    let page = |at: u64| {
        let mut page = AlignedBuf::zeroed(4096);
        page.fill(at as u8);
        page.share()
    };
    let writes: Vec<_> = (0..PAGES).map(|at| writer.write(at * 4096, page(at))).collect();
    let finish = writer.finish(PAGES * 4096);
    assert!(!finish.ready() && writes.iter().all(|write| !write.ready()));
    assert_eq!(held.release(), PAGES as usize);
    finish.wait().unwrap();
    assert!(writes.iter().all(Ticket::ready), "the finish comes after every write");
    assert!(writes.into_iter().all(|write| write.wait().is_ok()));
    let range = |at| ReadRange::new(at * 4096, AlignedBuf::zeroed(4096));
    let reads = target.read_ranges(SHARD, (0..PAGES).map(range).collect());
    assert!(reads.iter().all(|read| !read.ready()));
    assert_eq!(held.release(), PAGES as usize);
    let got = reads.into_iter().map(|read| read.wait().unwrap());
    assert!(got.zip(0..).all(|(page, at)| *page == [at as u8; 4096]));
}
