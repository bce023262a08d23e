use super::*;
use crate::ReadRange;
use outlive_io::AlignedBuf;
use outlive_log::{Append, Lock, Previous};
use outlive_types::{PackId, Result};

const OLD: ShardName = ShardName { pack: PackId([1; 20]), shard: 0 };
const NEW: ShardName = ShardName { pack: PackId([2; 20]), shard: 0 };

fn job() -> JobName {
    JobName::new("x").unwrap()
}

fn put(target: &dyn Target, shard: ShardName, byte: u8) -> Result<()> {
    let mut writer = target.create(shard, 1 << 20)?;
    for page in 0..2 {
        let mut buffer = AlignedBuf::zeroed(4096);
        buffer.fill(byte);
        writer.write(page * 4096, buffer.share()).wait()?;
    }
    writer.finish(8192).wait()
}

/// Does a small save in the order of a commit: a shard, then the record that names it.
fn save(world: &FaultWorld, shard: ShardName, previous: u64) -> Result<Append> {
    put(&*world.target(), shard, shard.pack.0[0])?;
    // Record 1 names shard 1, and so on.
    let behind = match previous {
        0 => Previous::NONE,
        number => Previous::of(number, &[number as u8]),
    };
    world.log().append_if(&job(), behind, &[shard.pack.0[0]])
}

fn first_byte(world: &FaultWorld, shard: ShardName) -> Result<u8> {
    let range = ReadRange::new(4096, AlignedBuf::zeroed(4096));
    Ok(world.target().read_ranges(shard, vec![range]).remove(0).wait()?[0])
}

#[test]
fn operations_are_numbered_and_named() {
    let world = FaultWorld::new();
    save(&world, OLD, 0).unwrap();
    let names: Vec<_> = (0..).map_while(|number| world.op_name(number)).collect();
    assert_eq!(names.len() as u64, world.ops());
    let starts = ["create", "write", "write", "finish", "finish", "append", "sync"];
    assert_eq!(names.len(), starts.len(), "{names:?}");
    assert!(names.iter().zip(starts).all(|(name, start)| name.starts_with(start)), "{names:?}");
    first_byte(&world, OLD).unwrap();
    assert_eq!(world.ops(), 7, "reads are not counted");
    world.count_reads(true);
    first_byte(&world, OLD).unwrap();
    assert_eq!(world.ops(), 8);
}

/// Crashes the second save at every operation in every mode. The first save stays whole. The second
/// exists wholly or not at all, and can be written again if it does not.
#[test]
fn every_cut_leaves_the_old_and_perhaps_the_new() {
    let (mut with_record, mut with_shard_only) = (0, 0);
    for number in 7..14 {
        for mode in CutMode::ALL {
            let world = FaultWorld::new();
            save(&world, OLD, 0).unwrap();
            world.cut_at(number, mode);
            let error = save(&world, NEW, 1).unwrap_err();
            let context = format!("{mode:?} at {:?}", world.op_name(number));
            assert_eq!(error.kind(), ErrorKind::Retry, "{context}");
            assert!(world.crashed(), "{context}");
            assert_eq!(world.ops(), number + 1, "{context}: nothing happens after the cut");
            assert_eq!(world.target().list().unwrap_err().kind(), ErrorKind::Retry);
            assert_eq!(world.log().jobs().unwrap_err().kind(), ErrorKind::Retry);

            world.reboot();
            assert_eq!(first_byte(&world, OLD).unwrap(), 1, "{context}");
            let numbers = world.log().numbers(&job()).unwrap();
            let there = world.target().list().unwrap().contains(&NEW);
            assert!(numbers == [1] || numbers == [1, 2], "{context}");
            if numbers == [1, 2] {
                assert_eq!(world.log().read(&job(), 2).unwrap(), [2]);
                with_record += 1;
            }
            assert!(there || numbers == [1], "{context}: a record without its shard");
            if there {
                assert_eq!(first_byte(&world, NEW).unwrap(), 2, "{context}");
                with_shard_only += u32::from(numbers == [1]);
                world.target().delete(NEW).unwrap();
            }
            put(&*world.target(), NEW, 5).unwrap();
            assert_eq!(first_byte(&world, NEW).unwrap(), 5, "{context}");
        }
    }
    // With the record: `Kept` at either step of the append. With only the shard: `Kept` at either
    // step of the finish, and every other cut of the append.
    assert_eq!((with_record, with_shard_only), (2, 2 + 4));
}

fn replace(target: &dyn Target, shard: ShardName, byte: u8) -> Result<()> {
    let mut writer = target.replace(shard, 1 << 20)?;
    for page in 0..3 {
        let mut buffer = AlignedBuf::zeroed(4096);
        buffer.fill(byte);
        writer.write(page * 4096, buffer.share()).wait()?;
    }
    writer.finish(3 * 4096).wait()
}

/// Returns the byte that fills a shard. The old shard has two pages, the new one three.
fn whole(target: &dyn Target, shard: ShardName) -> u8 {
    let length = target.length(shard).unwrap();
    let range = ReadRange::new(0, AlignedBuf::zeroed(length as usize));
    let bytes = target.read_ranges(shard, vec![range]).remove(0).wait().unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a shard is mixed");
    assert_eq!(length, if bytes[0] == 1 { 2 * 4096 } else { 3 * 4096 });
    bytes[0]
}

/// Operations of a replacement: it begins, writes three times, becomes visible, then durable.
const REPLACING: u64 = 6;

/// A power cut at every step and in every mode, and also after the last step.
#[test]
fn a_cut_leaves_the_old_shard_or_the_new_one_and_never_neither() {
    let mut seen = Vec::new();
    for mode in CutMode::ALL {
        for number in 0..=REPLACING {
            let world = FaultWorld::new();
            put(&*world.target(), OLD, 1).unwrap();
            let begun = world.ops();
            world.cut_at(begun + number, mode);
            let replaced = replace(&*world.target(), OLD, 2);
            assert_eq!(replaced.is_ok(), number == REPLACING, "{mode:?} at {number}");
            if replaced.is_ok() {
                assert_eq!(world.ops(), begun + REPLACING);
                world.cut_now(mode);
            }
            let (target, _) = world.reboot();
            let there = whole(&*target, OLD);
            assert!(there == 2 || replaced.is_err(), "{mode:?}: what was acknowledged is gone");
            assert_eq!(target.list().unwrap(), [OLD]);
            seen.push((mode, number, there));
            // In every case the repair can be repeated.
            replace(&*target, OLD, 3).unwrap();
            assert_eq!(whole(&*target, OLD), 3);
            assert_eq!(target.unfinished().unwrap(), []);
        }
    }
    let new: Vec<_> = seen.iter().filter(|(_, _, there)| *there == 2).collect();
    let expected = [(CutMode::Kept, 4), (CutMode::Kept, 5)].into_iter();
    let expected = expected.chain(CutMode::ALL.map(|mode| (mode, REPLACING)));
    assert_eq!(new.len(), expected.clone().count(), "{new:?}");
    assert!(expected.clone().all(|(mode, number)| new.contains(&&(mode, number, 2))), "{new:?}");
}

/// The program is killed, or the operation fails, and then the power fails.
#[test]
fn a_kill_or_a_failure_leaves_the_old_shard_or_the_new_one() {
    for mode in CutMode::ALL {
        for number in 0..REPLACING {
            let world = FaultWorld::new();
            put(&*world.target(), OLD, 1).unwrap();
            let (target, _, process) = world.process();
            process.kill_after(number + 1);
            replace(&*target, OLD, 2).unwrap_err();
            let there = whole(&*world.target(), OLD);
            assert_eq!(there == 2, number == 5, "it became visible, killed at {number}");
            world.cut_now(mode);
            let (target, _) = world.reboot();
            assert_eq!(whole(&*target, OLD) == 2, number == 5 && mode == CutMode::Kept);

            let world = FaultWorld::new();
            put(&*world.target(), OLD, 1).unwrap();
            world.fail_at(world.ops() + number, ErrorKind::Full);
            let error = replace(&*world.target(), OLD, 2).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Full);
            assert_eq!(whole(&*world.target(), OLD) == 2, number == 5, "failed at {number}");
            assert_eq!(world.target().unfinished().unwrap(), []);
            world.cut_now(mode);
            let (target, _) = world.reboot();
            assert_eq!(whole(&*target, OLD) == 2, number == 5 && mode == CutMode::Kept);
        }
    }
}

/// Several replacements are only visible at the power cut: the last durable shard is there again.
#[test]
fn a_chain_of_replacements_ends_at_one_that_is_durable() {
    for mode in CutMode::ALL {
        let world = FaultWorld::new();
        put(&*world.target(), OLD, 1).unwrap();
        for byte in [2, 3] {
            world.fail_at(world.ops() + 5, ErrorKind::Retry);
            replace(&*world.target(), OLD, byte).unwrap_err();
            assert_eq!(whole(&*world.target(), OLD), byte);
        }
        world.cut_now(mode);
        let (target, _) = world.reboot();
        assert_eq!(whole(&*target, OLD), if mode == CutMode::Kept { 3 } else { 1 });
    }
    // A shard that was never durable may vanish, as with `create`.
    let world = FaultWorld::new();
    world.fail_at(5, ErrorKind::Retry);
    replace(&*world.target(), NEW, 2).unwrap_err();
    assert_eq!(whole(&*world.target(), NEW), 2);
    world.cut_now(CutMode::Lost);
    assert_eq!(world.reboot().0.list().unwrap(), []);
}

#[test]
fn old_handles_stay_dead_after_a_reboot() {
    let world = FaultWorld::new();
    let (target, log) = (world.target(), world.log());
    let writer = target.create(NEW, 8192).unwrap();
    world.cut_now(CutMode::Torn);
    let (fresh, _) = world.reboot();
    put(&*fresh, OLD, 1).unwrap();
    assert_eq!(target.list().unwrap_err().kind(), ErrorKind::Retry);
    assert!(log.append_if(&job(), Previous::NONE, b"x").is_err());
    assert!(writer.finish(0).wait().is_err());
    assert_eq!(fresh.list().unwrap(), [OLD]);
}

#[test]
fn a_single_fault_has_no_effect_and_passes() {
    for number in 0..7 {
        let world = FaultWorld::new();
        world.fail_at(number, ErrorKind::Full);
        let error = save(&world, OLD, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        assert!(!world.crashed());
        assert_eq!(world.target().list().unwrap().is_empty(), number < 5, "operation {number}");
        let _ = world.target().delete(OLD);
        assert_eq!(save(&world, OLD, 0).unwrap(), Append::Done);
    }
}

#[test]
fn visible_records_survive_the_death_of_a_program() {
    let world = FaultWorld::new();
    world.fail_at(1, ErrorKind::Retry);
    world.log().append_if(&job(), Previous::NONE, b"visible, not durable").unwrap_err();
    world.reboot();
    assert_eq!(world.log().numbers(&job()).unwrap(), [1]);
    world.cut_now(CutMode::Lost);
    world.reboot();
    assert_eq!(world.log().numbers(&job()).unwrap(), []);
}

#[test]
fn stored_bytes_can_be_damaged() {
    let world = FaultWorld::new();
    save(&world, OLD, 0).unwrap();
    world.corrupt(OLD, 4096, 0x80);
    assert_eq!(first_byte(&world, OLD).unwrap(), 0x81);
    world.truncate(OLD, 4096);
    assert_eq!(world.target().length(OLD).unwrap(), 4096);
    assert_eq!(first_byte(&world, OLD).unwrap_err().kind(), ErrorKind::Damaged);
    world.corrupt_record(&job(), 1, 0, 0xFF);
    assert_eq!(world.log().read(&job(), 1).unwrap(), [0xFE]);
    world.remove_record(&job(), 1);
    assert_eq!(world.log().latest(&job()).unwrap(), 0);
}

#[test]
fn a_killed_program_leaves_its_part_and_others_go_on() {
    let world = FaultWorld::new();
    let (target, log, process) = world.process();
    process.kill_after(2);
    let mut writer = target.create(OLD, 1 << 20).unwrap();
    let fault = writer.write(0, AlignedBuf::zeroed(4096).share()).wait().unwrap_err();
    assert!(fault.error.message().contains("killed"), "{}", fault.error);
    drop(writer);
    assert!(process.is_killed());
    assert_eq!(
        log.append_if(&job(), Previous::NONE, b"mine").unwrap_err().kind(),
        ErrorKind::Retry
    );
    assert_eq!(world.target().unfinished().unwrap(), [OLD]);
    assert_eq!(save(&world, NEW, 0).unwrap(), Append::Done);
}

#[test]
fn locks_end_with_their_holder() {
    let world = FaultWorld::with_locks();
    let (_, log, process) = world.process();
    let Lock::Taken(mine) = log.lock_collecting().unwrap() else { panic!("it is free") };
    let reading = log.lock_reading().unwrap();
    assert!(reading.is_some() && world.log().is_read().unwrap());
    assert!(matches!(world.log().lock_collecting().unwrap(), Lock::Busy));
    drop(reading);
    assert!(!world.log().is_read().unwrap());
    process.kill_after(0);
    assert!(matches!(world.log().lock_collecting().unwrap(), Lock::Taken(_)));
    drop(mine);
    let without = FaultWorld::new();
    assert!(matches!(without.log().lock_collecting().unwrap(), Lock::None));
    assert!(without.log().lock_reading().unwrap().is_none());
}

#[test]
fn what_a_slow_target_was_asked_happens_later_or_never() {
    let world = FaultWorld::new();
    let (one, other) = (world.process().0, world.process().0);
    put(&*one, OLD, 1).unwrap();
    let make_slow = |is_away| world.set_slow(0, is_away, true);
    make_slow(false);
    put(&*one, NEW, 2).unwrap_err();
    // Its program leaves the target alone, and others do not.
    one.length(OLD).unwrap_err();
    assert_eq!(other.list().unwrap(), [OLD]);
    assert_eq!(other.unfinished().unwrap(), [NEW]);
    other.delete(OLD).unwrap_err();
    assert_eq!((world.late(), world.late_deletes()), (2, vec![(0, OLD)]));
    world.set_quick(0);
    other.length(OLD).unwrap_err();
    assert!(world.let_happen(1).unwrap().starts_with("delete"));
    assert!(world.let_happen(0).unwrap().starts_with("finish"));
    assert_eq!((world.let_happen(0), other.list().unwrap()), (None, vec![NEW]));
    assert_eq!(first_byte(&world, NEW).unwrap(), 2);
    // A later writer of the shard keeps the late one from finishing.
    make_slow(false);
    put(&*one, OLD, 3).unwrap_err();
    world.set_quick(0);
    put(&*other, OLD, 4).unwrap();
    world.let_happen(0).unwrap();
    assert_eq!(first_byte(&world, OLD).unwrap(), 4);
    // All else fails if it is away, too; and a cut ends what has not happened.
    make_slow(true);
    one.length(OLD).unwrap_err();
    one.delete(OLD).unwrap_err();
    assert_eq!(world.late(), 1);
    world.cut_target(0, CutMode::Lost);
    world.set_quick(0);
    assert_eq!((world.late(), first_byte(&world, OLD).unwrap()), (0, 4));
}

#[test]
fn a_program_may_not_know_that_something_happens_later() {
    let world = FaultWorld::new();
    let one = world.process().0;
    put(&*one, OLD, 1).unwrap();
    world.set_slow(0, false, false);
    one.delete(OLD).unwrap_err();
    one.delete(OLD).unwrap_err();
    assert_eq!((one.list().unwrap(), world.late()), (vec![OLD], 2));
    world.set_quick(0);
    one.delete(OLD).unwrap();
    put(&*one, OLD, 2).unwrap();
    world.let_happen(1).unwrap();
    assert_eq!(one.list().unwrap(), []);
}
