//! Targets that are away or given up: which are needed, what is lost, and when they leave the pool.

use super::*;

/// (replace_blind) A target that is only away, and has data that is nowhere else, is not given up;
/// it comes back with its data.
#[test]
fn a_target_that_is_away_is_given_up_only_if_all_can_do_without_it() {
    let fixture = Fixture::new(3, Redundancy::mirror(2), true);
    // One of the copies of each pack is gone, and not made again yet.
    for number in 0..PACKS {
        let name = ShardName { pack: pack(number), shard: 1 };
        let on = fixture.pool().targets().find(name).unwrap();
        fixture.world.process_with(PLACES).0[on].delete(name).unwrap();
    }
    let last = ShardName { pack: pack(0), shard: 0 };
    let on = fixture.pool().targets().find(last).unwrap();
    let id = fixture.take(on);
    let refused = fixture.pool().replace_target(id, "6", false, None, &All).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    assert!(refused.message().contains("--lost"), "{refused}");
    assert!(fixture.pool().table().unwrap().read().unwrap().targets.len() == 3, "nothing changed");
    let (new, was_there, change) =
        fixture.pool().replace_target(id, "6", true, None, &All).unwrap();
    assert_eq!((new, was_there, change.why), (4, false, None));
    let again = fixture.pool().replace_target(id, "6", true, None, &All).unwrap();
    assert_eq!((again.0, again.1, again.2.why), (4, true, None), "nothing more is lost");
    fixture.bring_back(on, id);
    assert_eq!(fixture.pool().add_target(&on.to_string(), None, Tier::Fast).unwrap(), id);
    fixture.repair();
    fixture.check("it is back");
}

/// A target that was given up stays in the pool as long as its shards cannot be made elsewhere, and
/// the command says so.
#[test]
fn a_target_that_is_given_up_has_left_only_if_the_command_says_so() {
    let fixture = Fixture::new(3, Redundancy::mirror(2), true);
    let id = fixture.take(0);
    let fails = |_, what: &str| what.starts_with("create").then_some(ErrorKind::Retry);
    fixture.world.fail_when(fails);
    let change = fixture.pool().remove_target(id, true, None, &All).unwrap();
    let is_row = |pool: &Pool| pool.table().unwrap().read().unwrap().get(id).is_some();
    assert!(is_row(&fixture.pool()) && change.why.is_some(), "{change:?}");
    fixture.world.fail_when(|_, _| None);
    let change = fixture.pool().remove_target(id, true, None, &All).unwrap();
    assert!(!is_row(&fixture.pool()) && change.why.is_none(), "{change:?}");
    fixture.check("it is given up");
}

#[test]
fn a_target_is_not_given_up_while_the_needed_packs_are_unknown() {
    let fixture = Fixture::new(3, Redundancy::mirror(2), true);
    let id = fixture.take(0);
    let refused = fixture.pool().replace_target(id, "5", false, None, &partial()).unwrap_err();
    assert!(refused.kind() == ErrorKind::Invalid, "{refused}");
    assert!(refused.message().contains("it is not known"), "{refused}");
    fixture.pool().replace_target(id, "5", false, None, &All).unwrap();
    fixture.check("replaced");
}

/// A target that was given up may stop answering at any moment: its copies count for no other
/// target.
#[test]
fn a_target_that_is_away_is_not_given_up_for_copies_on_one_that_was_given_up() {
    let fixture = Fixture::new(3, Redundancy::mirror(2), true);
    let [given_up, away] = [0, 1].map(|shard| {
        let name = ShardName { pack: pack(0), shard };
        fixture.pool().targets().find(name).unwrap()
    });
    // No target takes new shards now.
    fixture.world.fail_when(|_, what| what.starts_with("create").then_some(ErrorKind::Retry));
    let id = given_up as u32 + 1;
    fixture.pool().remove_target(id, true, None, &All).unwrap().why.unwrap();
    fixture.world.fail_when(|_, _| None);
    assert_eq!(fixture.pool().redundancy().unwrap()[&pack(0)].shards, 1);
    let id = fixture.take(away);
    let before = fixture.pool().table().unwrap().read().unwrap();
    let refused = fixture.pool().replace_target(id, "6", false, None, &All).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    assert!(refused.message().contains("cannot be read without it"), "{refused}");
    assert_eq!(fixture.pool().table().unwrap().read().unwrap(), before);
    fixture.bring_back(away, id);
    fixture.repair();
    fixture.check("it is back");
}

/// As on a failing disk that the system has made read-only.
#[test]
fn a_target_that_was_given_up_leaves_though_nothing_can_be_deleted_there() {
    for (targets, rule) in rules() {
        let what = rule.describe();
        let fixture = Fixture::new(targets + 1, rule, true);
        let refuse = |_, what: &str| what.starts_with("delete").then_some(ErrorKind::Invalid);
        fixture.world.fail_when(refuse);
        let removed = fixture.pool().remove_target(1, false, None, &All).unwrap_err();
        assert_eq!(removed.kind(), ErrorKind::Invalid, "{what}: {removed}");
        let removed = fixture.pool().remove_target(1, true, None, &All).unwrap();
        assert!(removed.why.is_none() && removed.repair.is_whole(), "{what}: {removed:?}");
        assert_eq!((&removed.repair.removed[..], removed.repair.surplus), (&[1][..], 0), "{what}");
        assert_ne!(fixture.world.process_with(PLACES).0[0].list().unwrap(), [], "{what}");
        fixture.check(&what);
    }
}

/// As on a failing disk: its marker can be read, and its directories cannot.
#[test]
fn a_target_that_was_given_up_leaves_though_it_cannot_be_listed() {
    let fixture = Fixture::new(4, Redundancy::mirror(2), true);
    fixture.world.count_reads(true);
    let fails = |_, what: &str| (what == "list shards of target 0").then_some(ErrorKind::Invalid);
    fixture.world.fail_when(fails);
    fixture.pool().remove_target(1, false, None, &All).unwrap_err();
    let removed = fixture.pool().remove_target(1, true, None, &All).unwrap();
    assert!(removed.why.is_none() && removed.repair.is_whole(), "{removed:?}");
    assert_eq!(removed.repair.removed, [1]);
    fixture.check("without it");
}

/// A target that was given up and still answers stays as long as its shards could not be written
/// elsewhere.
#[test]
fn a_target_that_was_given_up_stays_while_its_packs_cannot_be_written() {
    let fixture = Fixture::new(3, Redundancy::mirror(2), true);
    fixture.world.fail_when(|_, what| what.starts_with("finish").then_some(ErrorKind::Retry));
    let removed = fixture.pool().remove_target(1, true, None, &All).unwrap();
    assert!(removed.why.is_some() && removed.repair.removed.is_empty(), "{removed:?}");
    assert!(!removed.repair.failed.is_empty() && removed.left > 0, "{removed:?}");
    // Its shards no longer count, though they can be read.
    let there = fixture.pool().redundancy().unwrap();
    let spares: BTreeSet<i64> = there.values().map(|is| is.spare).collect();
    assert_eq!(spares, [0, 1].into(), "{there:?}");
    assert!(fixture.pool().table().unwrap().read().unwrap().get(1).is_some());
    fixture.world.fail_when(|_, _| None);
    assert_eq!(fixture.repair().removed, [1]);
    fixture.check("behind the next repair");
}

/// (group:91004981) A killed gc has left one shard of a pack that no checkpoint names. That is no
/// damage, but it keeps a target in the pool until a gc has deleted it.
#[test]
fn the_last_shard_of_a_pack_that_no_checkpoint_names_is_no_damage() {
    let fixture = Fixture::new(4, Redundancy::erasure(2, 1), true);
    let unneeded = pack(PACKS);
    let writer = fixture.pool();
    let place = {
        write(&writer, PACKS).unwrap();
        let targets = writer.targets();
        let locations: Vec<usize> =
            writer.shards_of(unneeded).iter().map(|name| targets.find(*name).unwrap()).collect();
        for (shard, place) in (0..).zip(&locations).skip(1) {
            let name = ShardName { pack: unneeded, shard };
            fixture.world.process_with(PLACES).0[*place].delete(name).unwrap();
        }
        locations[0]
    };
    let id = place as u32 + 1;
    let drained = fixture.pool().drain_target(id, None, &All).unwrap();
    assert_eq!((drained.left, drained.repair.unneeded), (1, 1), "{drained:?}");
    assert_eq!(drained.repair.lost, []);
    let why = drained.why.unwrap();
    assert!(why.kind() == ErrorKind::Retry && why.message().contains("outlive gc"), "{why}");
    let removed = fixture.pool().remove_target(id, false, None, &All).unwrap_err();
    assert_eq!(removed.kind(), ErrorKind::Retry, "{removed}");
    // As far as the repair knows, a checkpoint may need it.
    let report = fixture.pool().repair(RepairOptions::default(), &crate::AllNamed).unwrap();
    assert_eq!((report.lost.len(), report.unneeded), (1, 0), "{report:?}");
    let report = fixture.pool().repair(RepairOptions::default(), &partial()).unwrap();
    assert_eq!((report.lost.len(), report.unneeded), (1, 0), "{report:?}");
    // As a gc does.
    let name = ShardName { pack: unneeded, shard: 0 };
    fixture.world.process_with(PLACES).0[place].delete(name).unwrap();
    let removed = fixture.pool().remove_target(id, false, None, &All).unwrap();
    assert!(removed.why.is_none() && removed.repair.is_whole(), "{removed:?}");
    fixture.check("behind the gc");
}
