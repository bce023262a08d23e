//! Locks, and claims where the log has no locks: they keep other processes from moving shards until
//! they end.

use super::super::bring::{Bring, Listed};
use super::super::plan::Allowed;
use super::*;

/// Ends the right to be alone of a process that runs: a storage node ends its lock, or an operator its
/// claim.
fn end_alone(fixture: &Fixture) {
    match fixture.world.has_locks() {
        true => fixture.world.end_collecting(),
        false => assert!(fixture.pool().release_targets().unwrap().is_some()),
    }
}

/// A repair is suspended while it writes a copy, and its lock or claim ends meanwhile.
#[test]
fn a_repair_that_is_not_alone_any_more_deletes_nothing() {
    for has_locks in [false, true] {
        let fixture = Fixture::new(2, Redundancy::default(), has_locks);
        let name = ShardName { pack: pack(0), shard: 0 };
        let id = {
            let targets = fixture.pool().targets();
            targets.members()[targets.find(name).unwrap()].id
        };
        let mut drain = |rows: &mut Rows| {
            rows.get_mut(id).unwrap().state = TargetState::Draining;
            Ok(())
        };
        fixture.pool().table().unwrap().change(&mut drain).unwrap();
        let pool = fixture.pool();
        let alone = pool.alone().unwrap();
        end_alone(&fixture);
        let targets = pool.targets();
        let on = targets.number_of(id).unwrap();
        let listed = Listed { fast: vec![(0, on)], slow: Vec::new() };
        let mut bring = Bring::new(&pool, targets.clone(), pack(0));
        let error = bring.run(&listed, Allowed { make: true, tidy: true }, &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
        assert!(targets.members()[on].has(name).unwrap());
        // Another command of the same process.
        drop(alone);
        pool.repair(RepairOptions::default(), &All).unwrap();
        assert!(!targets.members()[on].has(name).unwrap());
    }
}

/// The program is suspended between its last check of the slow tier and the deletion.
#[test]
fn a_trim_that_is_not_alone_any_more_deletes_nothing() {
    for has_locks in [false, true] {
        let (fixture, _) = Fixture::with_slow(2, Redundancy::mirror(2), has_locks);
        let pool = fixture.pool();
        pool.fill_pack(pack(0), &pool.fill_need().unwrap()).unwrap();
        let need = pool.fill_need().unwrap();
        let alone = pool.lock_trimming().unwrap();
        end_alone(&fixture);
        let need = if need.is_of(&pool) { need } else { pool.fill_need().unwrap() };
        let trimmed = pool.trim_pack(pack(0), &need).unwrap_err();
        assert_eq!(trimmed.kind(), ErrorKind::Fenced, "{trimmed}");
        assert_eq!(fixture.pool().redundancy().unwrap()[&pack(0)].shards, 2);
        drop(alone);
        let _alone = pool.lock_trimming().unwrap();
        pool.trim_pack(pack(0), &pool.fill_need().unwrap()).unwrap();
        assert_eq!(fixture.pool().redundancy().unwrap()[&pack(0)].shards, 0);
    }
}

/// A program trims in one thread, and another command of it takes the lock once that has ended.
#[test]
fn a_lock_of_another_command_is_no_excuse_for_one_that_has_ended() {
    let (fixture, _) = Fixture::with_slow(2, Redundancy::mirror(2), true);
    let pool = fixture.pool();
    pool.fill_pack(pack(0), &pool.fill_need().unwrap()).unwrap();
    let need = pool.fill_need().unwrap();
    let _first = pool.lock_trimming().unwrap();
    end_alone(&fixture);
    for is_there in [true, false] {
        let second = pool.lock_trimming().unwrap();
        let second = is_there.then_some(second);
        let trimmed = pool.trim_pack(pack(0), &need).unwrap_err();
        assert_eq!(trimmed.kind(), ErrorKind::Fenced, "{trimmed}");
        let changed = pool.table().unwrap().change(&mut |rows| {
            rows.get_mut(1).unwrap().state = TargetState::Draining;
            Ok(())
        });
        assert_eq!(changed.unwrap_err().kind(), ErrorKind::Fenced);
        drop(second);
    }
}

/// Where the log has no locks, the claim of a live process keeps the processes of all hosts from
/// moving shards; their error names the holder. A person may end the claim, and its holder deletes
/// nothing after that.
#[test]
fn a_claim_keeps_others_from_moving_shards_until_it_is_ended() {
    let fixture = Fixture::new(3, Redundancy::mirror(2), false);
    let (first, second) = (fixture.pool(), fixture.pool());
    let table = first.table().unwrap().clone();
    let claim = table.claim("release it").unwrap();
    let refused = second.repair(RepairOptions::default(), &All).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Retry, "{refused}");
    let holder = format!("process {}", std::process::id());
    let says = |what: &str| refused.message().contains(what);
    assert!(says(&holder) && says("pool release"), "{refused}");
    table.check_alone().unwrap();
    assert!(second.release_targets().unwrap().unwrap().starts_with("process "));
    assert_eq!(table.check_alone().unwrap_err().kind(), ErrorKind::Fenced);
    let change = table.change(&mut |rows| {
        rows.get_mut(1).unwrap().state = TargetState::Draining;
        Ok(())
    });
    assert_eq!(change.unwrap_err().kind(), ErrorKind::Fenced);
    drop(claim);
    second.repair(RepairOptions::default(), &All).unwrap();
    assert_eq!(second.release_targets().unwrap(), None);
    // Reads and saves need no claim, and do not change the targets.
    let claim = table.claim("release it").unwrap();
    let before = second.targets();
    second.refresh_targets().unwrap();
    assert!(Arc::ptr_eq(&before, &second.targets()));
    write(&second, 11).unwrap();
    drop(claim);
}

/// A process whose claim cannot be taken or released, as the log fails at that moment, is not kept
/// out by it.
#[test]
fn a_claim_that_was_not_given_back_does_not_keep_its_own_process_out() {
    let (mut kept_out, mut step) = (0, 0);
    loop {
        let fixture = Fixture::new(3, Redundancy::mirror(2), false);
        let (first, second) = (fixture.pool(), fixture.pool());
        let table = first.table().unwrap().clone();
        let fails = fixture.world.ops() + step;
        fixture.world.fail_at(fails, ErrorKind::Retry);
        drop(table.claim("release it"));
        if fixture.world.ops() <= fails {
            break;
        }
        kept_out += u32::from(second.repair(RepairOptions::default(), &All).is_err());
        drop(table.claim("release it").unwrap());
        second.repair(RepairOptions::default(), &All).unwrap();
        step += 1;
    }
    assert!(kept_out > 0, "a claim stayed in the log in one of {step} cases");
}
