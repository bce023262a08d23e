//! Commands that are killed at any step and given again, that find leftovers of each other, or
//! locations that do not fit.

use super::*;

type Command = fn(&Pool) -> Result<bool>;

/// Returns the commands. Each returns whether it has done all its work.
fn commands() -> Vec<(&'static str, bool, Command)> {
    vec![
        ("add", false, |pool| pool.add_target("6", None, Tier::Fast).map(|_| true)),
        ("drain", false, |pool| {
            let change = pool.drain_target(1, None, &All)?;
            Ok(change.left == 0 && change.repair.is_whole())
        }),
        ("remove", false, |pool| Ok(pool.remove_target(1, false, None, &All)?.repair.is_whole())),
        ("remove --lost", true, |pool| {
            Ok(pool.remove_target(1, true, None, &All)?.repair.is_whole())
        }),
        ("replace", false, |pool| {
            let (_, _, change) = pool.replace_target(1, "7", false, None, &All)?;
            Ok(change.repair.is_whole())
        }),
        ("replace, while it is away", true, |pool| {
            let (_, _, change) = pool.replace_target(1, "7", false, None, &All)?;
            Ok(change.repair.is_whole())
        }),
    ]
}

/// Kills a command at each of its steps, one after the other; then gives it again, or runs a
/// repair.
#[test]
fn a_command_that_was_killed_is_finished_by_giving_it_again_or_by_a_repair() {
    for ((targets, rule), has_locks) in rules().into_iter().zip([true, false, true, false]) {
        for (name, is_away, command) in commands() {
            if is_away && rule.survives() == 0 {
                continue;
            }
            // Each step of one rule, and some of the others.
            let stride = if rule == Redundancy::mirror(2) { 1 } else { 3 };
            let steps = (0..).step_by(stride).flat_map(|step| [(step, false), (step, true)]);
            for (step, by_repair) in steps {
                let what = format!("{} {name}, killed at {step}", rule.describe());
                let fixture = Fixture::new(targets, rule.clone(), has_locks);
                // Enough targets are left without it.
                fixture.pool().add_target("5", None, Tier::Fast).unwrap();
                if is_away {
                    fixture.take(0);
                }
                let (pool, process) = fixture.process();
                process.kill_after(1 + step);
                let outcome = command(&pool);
                let is_over = !process.is_killed();
                if is_over {
                    assert!(outcome.unwrap(), "{what}");
                }
                drop(pool);
                let pool = fixture.pool();
                // The claim of the killed process has the mark of this one, which is alive.
                pool.release_targets().unwrap();
                let is_begun = pool
                    .table()
                    .unwrap()
                    .read()
                    .unwrap()
                    .targets
                    .iter()
                    .any(|row| row.state != TargetState::Active);
                if by_repair && (is_begun || !is_away) {
                    fixture.repair();
                } else {
                    assert!(command(&pool).unwrap(), "{what}: given again");
                    // And once more.
                    assert!(command(&fixture.pool()).is_ok(), "{what}: given a third time");
                    fixture.repair();
                }
                fixture.cut_targets();
                fixture.check(&what);
                if is_over {
                    break;
                }
            }
        }
    }
}

/// (mirror_one_disk, two_on_one) A target that was away during a repair comes back: its shards are
/// surplus then, and no target counts as two.
#[test]
fn a_target_that_comes_back_leaves_no_two_shards_of_a_pack_on_one() {
    for (targets, rule) in rules().into_iter().filter(|(_, rule)| rule.survives() > 0) {
        let fixture = Fixture::new(targets, rule.clone(), true);
        for first in 0..targets {
            let what = format!("{} {first}", rule.describe());
            // A target is away during a repair and comes back; then another is lost for good, and
            // replaced.
            let id = fixture.take(first);
            fixture.pool().repair(RepairOptions::default(), &All).unwrap();
            fixture.bring_back(first, id);
            let report = fixture.repair();
            assert!(report.surplus > 0 || report.degraded == 0, "{what}: {report:?}");
            fixture.check(&what);
            let lost = (first + 1) % targets;
            let id = fixture.take(lost);
            fixture.world.lose_target(lost);
            fixture.pool().repair(RepairOptions::default(), &All).unwrap();
            let change = fixture.pool().replace_target(id, &lost.to_string(), false, None, &All);
            // The same location is the target itself, as far as the table knows.
            assert_eq!(change.unwrap_err().kind(), ErrorKind::Invalid, "{what}");
            fixture.bring_back(lost, id);
            fixture.repair();
            fixture.check(&what);
        }
    }
}

/// Locations that can be no target of a pool, or cannot be taken back as they are.
#[test]
fn locations_that_do_not_fit_are_refused_and_change_nothing() {
    let fixture = Fixture::new(4, Redundancy::mirror(2), true);
    let refused = |place: &str, tier: Tier, says: &str| {
        let before = fixture.pool().table().unwrap().read().unwrap();
        let error = fixture.pool().add_target(place, None, tier).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.message().contains(says), "{error}");
        assert_eq!(fixture.pool().table().unwrap().read().unwrap(), before);
    };
    // A target that was moved has its shards.
    let id = fixture.take(0);
    let name = fixture.world.process_with(PLACES).0[0].list().unwrap()[0];
    copy_by_hand(&fixture, name, 0, 5);
    fixture.bring_back(5, id);
    refused("5", Tier::Fast, "which is in the table at another location");
    fixture.take(5);
    fixture.bring_back(0, id);
    // A target keeps its tier.
    fixture.pool().drain_target(1, None, &All).unwrap();
    refused("0", Tier::Slow, "of another kind");
    // A target that is to leave is taken back only if it is there.
    fixture.world.fail_when(|_, what| what.starts_with("create").then_some(ErrorKind::Retry));
    let id = fixture.take(1);
    fixture.pool().remove_target(id, true, None, &All).unwrap();
    refused("1", Tier::Fast, "is not there now");
    fixture.world.fail_when(|_, _| None);
    fixture.bring_back(1, id);
    fixture.pool().add_target("1", None, Tier::Fast).unwrap();
    fixture.pool().add_target("0", None, Tier::Fast).unwrap();
    fixture.repair();
    fixture.check("both are back");
}

/// A save that wrote to a target before it left and came back does not count its shards there.
#[test]
fn a_target_that_left_and_came_back_counts_as_gone_for_earlier_saves() {
    let fixture = Fixture::new(2, Redundancy::default(), true);
    let (saver, operator) = (fixture.pool(), fixture.pool());
    let then = saver.targets_now().unwrap().unwrap();
    write(&saver, 9).unwrap();
    let on = then.spread().first().unwrap()[0];
    operator.add_target("5", None, Tier::Fast).unwrap();
    saver.check_targets(&then, &Spread::new()).unwrap();
    operator.drain_target(on, None, &All).unwrap();
    operator.add_target(&(on - 1).to_string(), None, Tier::Fast).unwrap();
    // Its shards are on another target now, which may be lost.
    let error = saver.check_targets(&then, &Spread::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    let later = saver.targets_now().unwrap().unwrap();
    write(&saver, 10).unwrap();
    saver.check_targets(&later, &Spread::new()).unwrap();
}

/// A shard that comes late to a closed target, and cannot be moved now, keeps the target in the
/// pool.
#[test]
fn a_closed_target_that_is_not_empty_stays() {
    let fixture = Fixture::new(3, Redundancy::mirror(2), true);
    let mut close = |rows: &mut Rows| {
        let row = rows.get_mut(1).unwrap();
        (row.state, row.remove) = (TargetState::Closed, true);
        Ok(())
    };
    fixture.pool().table().unwrap().change(&mut close).unwrap();
    fixture.world.fail_when(|_, what| what.starts_with("create").then_some(ErrorKind::Retry));
    let report = fixture.pool().repair(RepairOptions::default(), &All).unwrap();
    assert!(report.left.contains_key(&1) && report.removed.is_empty(), "{report:?}");
    assert!(fixture.pool().table().unwrap().read().unwrap().get(1).is_some());
    fixture.world.fail_when(|_, _| None);
    assert_eq!(fixture.repair().removed, [1]);
    fixture.check("behind the next repair");
}

/// Packs that no checkpoint names are moved off targets that are to be emptied. Otherwise they stay
/// where their writer has put them.
#[test]
fn packs_of_a_save_under_way_stay_where_they_are() {
    let fixture = Fixture::new(3, Redundancy::mirror(2), true);
    let name = ShardName { pack: pack(0), shard: 0 };
    let on = fixture.pool().targets().find(name).unwrap();
    let used = fixture.pool().targets().find(ShardName { shard: 1, ..name }).unwrap();
    let to = (0..3).find(|place| ![on, used].contains(place)).unwrap();
    copy_by_hand(&fixture, name, on, to);
    let before = fixture.pool().targets().list().unwrap();
    let report = fixture.pool().repair(RepairOptions::default(), &Says::default()).unwrap();
    assert_eq!((report.surplus, report.moved), (0, 0));
    assert_eq!(fixture.pool().targets().list().unwrap(), before);
    fixture.pool().add_target("5", None, Tier::Fast).unwrap();
    let change = fixture.pool().drain_target(on as u32 + 1, None, &Says::default()).unwrap();
    assert_eq!(change.left, 0, "{change:?}");
    assert_eq!(fixture.repair().surplus, 0);
    fixture.check("named now");
}

/// A process with an old table does not know the shard's new target: it reports no damage.
#[test]
fn a_shard_that_was_moved_to_a_new_target_is_not_called_damaged() {
    let fixture = Fixture::new(2, Redundancy::mirror(2), true);
    let before = fixture.pool().targets();
    for place in ["6", "7"] {
        fixture.pool().add_target(place, None, Tier::Fast).unwrap();
    }
    for id in [1, 2] {
        fixture.pool().drain_target(id, None, &All).unwrap();
    }
    fixture.check("drained");
    let mut moved = 0;
    for number in 0..PACKS {
        for shard in 0..2 {
            if let Err(error) = before.find(ShardName { pack: pack(number), shard }) {
                assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
                moved += 1;
            }
        }
    }
    assert!(moved > 0, "or this tests nothing");
}

/// Programs remember the places of shards by target numbers.
#[test]
fn the_number_of_a_target_that_has_left_is_not_given_again() {
    let fixture = Fixture::new(3, Redundancy::mirror(2), true);
    let id = fixture.pool().add_target("5", None, Tier::Fast).unwrap();
    fixture.pool().remove_target(id, false, None, &All).unwrap();
    assert!(fixture.pool().table().unwrap().read().unwrap().get(id).is_none());
    assert_eq!(fixture.pool().add_target("6", None, Tier::Fast).unwrap(), id + 1);
    fixture.check("added");
}

/// A repair leaves an unfinished pack to its writer.
#[test]
fn a_pack_that_is_being_written_gets_no_shards() {
    let fixture = Fixture::new(3, Redundancy::mirror(2), true);
    write(&fixture.pool(), 9).unwrap();
    let late = ShardName { pack: pack(9), shard: 1 };
    let on = fixture.pool().targets().find(late).unwrap();
    let targets = fixture.world.process_with(PLACES).0;
    targets[on].delete(late).unwrap();
    let writer = targets[on].create(late, 1 << 20).unwrap();
    let before = fixture.pool().targets().list().unwrap();
    let report = fixture.pool().repair(RepairOptions::default(), &Says::default()).unwrap();
    assert_eq!((report.shards, report.moved), (0, 0), "{report:?}");
    assert_eq!(fixture.pool().targets().list().unwrap(), before);
    drop(writer);
    assert_eq!(fixture.repair().shards, 1, "its writer is gone");
}

/// An unmounted disk looks empty.
#[test]
fn a_shard_on_a_target_that_has_vanished_is_not_called_damaged() {
    let fixture = Fixture::new(2, Redundancy::default(), true);
    let [before, later] = [(); 2].map(|()| fixture.pool().targets());
    let name = ShardName { pack: pack(0), shard: 0 };
    let on = fixture.pool().targets().find(name).unwrap();
    let id = fixture.take(on);
    let bytes = bytes_of(&*fixture.world.process_with(PLACES).0[on], name);
    fixture.world.process_with(PLACES).0[on].delete(name).unwrap();
    let away = before.find(name).unwrap_err();
    assert_eq!(away.kind(), ErrorKind::Retry, "{away}");
    fixture.bring_back(on, id);
    let lost = later.find(name).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Damaged, "{lost}");
    let length = bytes.len() as u64;
    let mut writer = fixture.world.process_with(PLACES).0[on].create(name, length).unwrap();
    writer.write(0, bytes.share()).wait().unwrap();
    writer.finish(length).wait().unwrap();
    fixture.check("mounted again");
}

/// An unreadable shard may be whole.
#[test]
fn a_pack_is_not_called_lost_while_a_shard_of_it_cannot_be_read() {
    let fixture = Fixture::new(3, Redundancy::mirror(2), true);
    fixture.world.count_reads(true);
    let [bad, unread] = [0, 1].map(|shard| ShardName { pack: pack(0), shard });
    let on = fixture.pool().targets().find(bad).unwrap();
    fixture.world.corrupt_on(on, bad, 40_000, 1);
    fixture.world.corrupt_on(on, bad, 0, 1);
    let read = format!("read {unread} ");
    let fails = move |_, what: &str| what.starts_with(&read).then_some(ErrorKind::Retry);
    fixture.world.fail_when(fails);
    let told = fixture.pool().check_pack(pack(0), &mut |_, _, _| Ok(())).unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Retry, "{told}");
    fixture.world.fail_when(|_, _| None);
    fixture.pool().check_pack(pack(0), &mut |_, _, _| Ok(())).unwrap();
}
