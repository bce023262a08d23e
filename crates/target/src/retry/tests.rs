use super::*;
use crate::{Append, FaultWorld, ManifestLog, MemoryMedium, Previous};
use outlive_types::{JobName, PackId, SessionId};
use std::sync::Mutex;

const SHARD: ShardName = ShardName { pack: PackId([1; 20]), shard: 0 };

/// A policy that notes its pauses instead of spending them.
fn noting(attempts_max: u32) -> (RetryPolicy, Arc<Mutex<Vec<u128>>>) {
    let pauses = Arc::new(Mutex::new(Vec::new()));
    let note = pauses.clone();
    let policy = RetryPolicy {
        attempts_max,
        pause_first: Duration::from_millis(20),
        pause_max: Duration::from_millis(100),
        sleep: Arc::new(move |pause| note.lock().unwrap().push(pause.as_millis())),
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
    assert_eq!(*pauses.lock().unwrap(), [20, 40, 80, 100, 100]);
}

#[test]
fn other_errors_are_final() {
    for kind in [ErrorKind::Full, ErrorKind::Damaged, ErrorKind::Invalid, ErrorKind::Fenced] {
        let world = FaultWorld::new();
        world.fail_when(move |_, _| Some(kind));
        let (policy, pauses) = noting(6);
        let target = RetryTarget::new(world.target(), policy);
        assert_eq!(target.delete(SHARD).unwrap_err().kind(), kind);
        assert_eq!((world.ops(), pauses.lock().unwrap().len()), (1, 0));
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
    let ticket = writer.write(0, 8192, buffer);
    writer.finish(8192).wait().unwrap(); // without the write's ticket having been waited for
    ticket.wait().unwrap();
    let range = ReadRange { offset: 0, length: 8192, buffer: AlignedBuf::zeroed(8192) };
    assert_eq!(*read_one(&target, SHARD, range).unwrap(), [7; 8192]);
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
        assert_eq!((world.ops(), pauses.lock().unwrap().len()), (1 + step, 0));
        assert_eq!(target.list().unwrap(), []);
    }
}

/// The reply to an append that took effect is lost; the repetition must not call it a conflict.
#[test]
fn an_append_whose_reply_was_lost_is_done() {
    let world = FaultWorld::new();
    world.fail_at(1, ErrorKind::Retry); // visible, then the reply is lost
    let log = RetryLog::new(world.medium(), noting(3).0);
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
    let log = RetryLog::new(medium, policy);
    assert_eq!(log.append_if(&job, Previous::NONE, b"mine").unwrap(), Append::Lost);
    assert!(pauses.lock().unwrap().is_empty());
}

#[test]
fn reads_are_repeated_with_a_new_buffer() {
    let world = FaultWorld::new();
    let target = RetryTarget::new(world.target(), noting(3).0);
    let shard = ShardName { pack: PackId::new(SessionId([2; 12]), 0, 1), shard: 0 };
    let mut writer = target.create(shard, 4096).unwrap();
    writer.write(0, 4096, AlignedBuf::zeroed(4096)).wait().unwrap();
    writer.finish(4096).wait().unwrap();
    world.count_reads(true);
    world.fail_at(world.ops(), ErrorKind::Retry);
    let range = ReadRange { offset: 0, length: 4096, buffer: AlignedBuf::zeroed(8192) };
    assert_eq!(read_one(&target, shard, range).unwrap().len(), 8192);
}
