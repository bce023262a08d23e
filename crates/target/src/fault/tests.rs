use super::*;
use crate::{Append, Lock, Previous, ReadRange};
use outlive_io::AlignedBuf;
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

/// The commit order in small: a shard, then the record that names it.
fn save(world: &FaultWorld, shard: ShardName, previous: u64) -> Result<Append> {
    put(&*world.target(), shard, shard.pack.0[0])?;
    // Record 1 is that of shard 1, and so on.
    let behind = match previous {
        0 => Previous::NONE,
        number => Previous::of(number, &[number as u8]),
    };
    world.log().append_if(&job(), behind, &[shard.pack.0[0]])
}

fn first_byte(world: &FaultWorld, shard: ShardName) -> Result<u8> {
    let range = ReadRange { offset: 4096, buffer: AlignedBuf::zeroed(4096) };
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

/// Crashes the second save at every operation in every mode: the first one stays whole, the second
/// is there wholly or not at all, and what is not there can be written again.
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
    // Kept at either step of the append; kept at either step of the finish, and every other cut
    // of the append.
    assert_eq!((with_record, with_shard_only), (2, 2 + 4));
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
fn a_program_that_dies_keeps_what_was_visible() {
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
