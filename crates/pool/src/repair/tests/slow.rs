//! Slow copies on which fills, trims and drains may rely.

use super::*;

/// A copy on a slow target that is to leave does not count, even if no other target can take it
/// now.
#[test]
fn a_fill_counts_no_copy_on_a_target_that_leaves() {
    let (fixture, leaves) = Fixture::with_slow(2, Redundancy::mirror(2), true);
    let fill = |pool: &Pool| pool.fill_pack(pack(0), &pool.fill_need().unwrap()).unwrap();
    assert_eq!(fill(&fixture.pool()).left, 0);
    fixture.pool().add_target("6", None, Tier::Slow).unwrap();
    let full = |_, what: &str| what.starts_with("create").then_some(ErrorKind::Full);
    fixture.world.fail_when(full);
    // As a drain that is killed after its first step.
    let mut drain = |rows: &mut Rows| {
        rows.get_mut(leaves).unwrap().state = TargetState::Draining;
        Ok(())
    };
    fixture.pool().table().unwrap().change(&mut drain).unwrap();
    let filled = fill(&fixture.pool());
    assert_eq!((filled.shards, filled.left), (0, 1), "{filled:?}");
    assert_eq!(filled.why.unwrap().kind(), ErrorKind::Full);
}

/// (twin:120002998) A fill is killed at any step. A power cut takes back neither shards that the
/// next fill calls done, nor shards on which a trim relies.
#[test]
fn shards_that_a_killed_fill_has_left_are_durable_before_anything_relies_on_them() {
    let mut was_published = false;
    for (step, by_trim) in (0..).flat_map(|step| [(step, false), (step, true)]) {
        let what = format!("killed at {step}");
        let (fixture, _) = Fixture::with_slow(2, Redundancy::mirror(2), true);
        let (pool, process) = fixture.process();
        let need = pool.fill_need().unwrap();
        process.kill_after(1 + step);
        let filled = pool.fill_pack(pack(0), &need);
        let is_over = !process.is_killed();
        assert!(!is_over || filled.is_ok_and(|fill| fill.left == 0), "{what}");
        drop(pool);
        let is_there = || !fixture.world.process_with(PLACES).0[5].list().unwrap().is_empty();
        was_published |= is_there() && !is_over;
        let pool = fixture.pool();
        let need = pool.fill_need().unwrap();
        if !by_trim {
            assert_eq!(pool.fill_pack(pack(0), &need).unwrap().left, 0, "{what}");
            fixture.cut_targets();
            assert!(is_there(), "{what}");
        } else if pool.trim_pack(pack(0), &need).is_ok() {
            fixture.cut_targets();
            read(&fixture.pool(), 0, &what);
        }
        if is_over && by_trim {
            break;
        }
    }
    assert!(was_published, "no fill was killed behind the moment at which its shard was visible");
}

/// (members:110002564) A slow tier that is to be emptied keeps nothing: packs that are only there
/// move to the fast one.
#[test]
fn a_trimmed_pack_leaves_a_slow_tier_that_leaves() {
    let named = Named { packs: (0..PACKS).map(pack).collect(), is_partial: false };
    let trimmed = Says { named, trimmed: BTreeSet::from([pack(0)]) };
    let (fixture, slow) = Fixture::with_slow(2, Redundancy::mirror(2), true);
    let pool = fixture.pool();
    pool.fill_pack(pack(0), &pool.fill_need().unwrap()).unwrap();
    pool.trim_pack(pack(0), &pool.fill_need().unwrap()).unwrap();
    let report = fixture.pool().repair(RepairOptions::default(), &trimmed).unwrap();
    assert_eq!((report.trimmed, report.shards), (1, 0), "{report:?}");
    let drained = fixture.pool().remove_target(slow, false, None, &trimmed).unwrap();
    assert!(drained.repair.is_whole() && drained.why.is_none(), "{drained:?}");
    fixture.check("without a slow tier");
}

/// A copy that appears after the listing: the process that wrote it may have died at that moment.
#[test]
fn a_trim_makes_the_copy_durable_that_it_relies_on() {
    let (fixture, _) = Fixture::with_slow(2, Redundancy::mirror(2), true);
    let pool = fixture.pool();
    let need = pool.fill_need().unwrap();
    for step in 0.. {
        let (other, process) = fixture.process();
        let other_need = other.fill_need().unwrap();
        process.kill_after(1 + step);
        drop(other.fill_pack(pack(0), &other_need));
        drop(other);
        if pool.trim_pack(pack(0), &need).is_ok() {
            assert!(process.is_killed(), "the fill was killed behind the publication");
            break;
        }
    }
    fixture.cut_targets();
    read(&fixture.pool(), 0, "behind the power cut");
}

/// (members:93000076) The only slow target is to be emptied. A copy there goes once the fast one is
/// whole, even if the same command has made that whole.
#[test]
fn a_slow_copy_that_leaves_goes_behind_a_whole_fast_one() {
    let (fixture, slow) = Fixture::with_slow(2, Redundancy::mirror(2), true);
    let names: Vec<ShardName> =
        (0..PACKS).map(|number| ShardName { pack: pack(number), shard: 0 }).collect();
    let on = |name: &ShardName| fixture.pool().targets().find(*name).unwrap();
    let first = on(&names[0]);
    names.iter().for_each(|name| copy_by_hand(&fixture, *name, on(name), 5));
    fixture.world.corrupt_on(first, names[0], 4096 + 500, 1);
    fixture.world.corrupt_on(5, names[0], 4096 + 700, 1);
    let drained = fixture.pool().drain_target(slow, None, &All).unwrap();
    let why = drained.why.unwrap().message().to_owned();
    assert!(drained.left == 1 && why.contains("no whole copy on the fast tier"), "{why}");
    let pool = fixture.pool();
    let faults = pool.check_pack(pack(0), &mut |_, _, _| Ok(())).unwrap().faults;
    let faults = BTreeMap::from([(pack(0), faults)]);
    let pace = outlive_io::Pace::new(None);
    let mended = pool.mend(&faults, &BTreeSet::new(), &pace).unwrap().remove(0).1.unwrap();
    assert_eq!((mended.shards, mended.left.len()), (1, 0), "{mended:?}");
    assert_eq!(fixture.world.process_with(PLACES).0[5].list().unwrap(), []);
    read(&fixture.pool(), 0, "behind the mend");
}

/// A fill follows each commit of a program: copies that the program made itself need no sync of
/// names.
#[test]
fn a_program_syncs_only_names_that_others_have_left() {
    let (fixture, _) = Fixture::with_slow(2, Redundancy::mirror(2), true);
    let pool = fixture.pool();
    pool.fill_pack(pack(0), &pool.fill_need().unwrap()).unwrap();
    fixture.world.fail_when(|_, what| what.starts_with("sync").then_some(ErrorKind::Retry));
    assert_eq!(pool.fill_need().unwrap().missing(pack(0)), 0);
    // Another process cannot know that it is durable.
    assert_eq!(fixture.pool().fill_need().unwrap().missing(pack(0)), 1);
}

/// A fill's need refers to targets by their index in a list.
#[test]
fn a_fill_does_not_go_on_with_targets_that_have_changed() {
    let (fixture, _) = Fixture::with_slow(2, Redundancy::default(), true);
    let pool = fixture.pool();
    let need = pool.fill_need().unwrap();
    fixture.pool().add_target("6", None, Tier::Slow).unwrap();
    pool.refresh_targets().unwrap();
    let told = pool.fill_pack(pack(0), &need).map(drop).unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Retry, "{told}");
    pool.fill_pack(pack(0), &pool.fill_need().unwrap()).unwrap();
}
