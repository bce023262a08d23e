//! Copies that are damaged, surplus, or beside another shard of their pack.

use super::*;

/// Two shards on one target count once, and are moved apart.
#[test]
fn crowded_shards_are_counted_once_and_moved_apart() {
    let fixture = Fixture::new(4, Redundancy::erasure(2, 1), true);
    let pool = fixture.pool();
    let targets = pool.targets();
    let name = ShardName { pack: pack(1), shard: 1 };
    let (from, to) =
        (targets.find(name).unwrap(), targets.find(ShardName { shard: 0, ..name }).unwrap());
    move_by_hand(&fixture, name, from, to);
    assert_eq!(fixture.pool().redundancy().unwrap()[&pack(1)].spare, 0);
    let dry =
        fixture.pool().repair(RepairOptions { dry_run: true, ..RepairOptions::default() }, &All);
    assert_eq!(dry.unwrap().degraded, 1);
    let report = fixture.repair();
    assert_eq!((report.moved, report.shards, report.missing), (1, 0, 0));
    fixture.check("apart again");
    // With no other target they stay, and the report says so.
    let fixture = Fixture::new(3, Redundancy::erasure(2, 1), true);
    let targets = fixture.pool().targets();
    let (from, to) =
        (targets.find(name).unwrap(), targets.find(ShardName { shard: 0, ..name }).unwrap());
    move_by_hand(&fixture, name, from, to);
    fixture.take(from);
    let report = fixture.pool().repair(RepairOptions::default(), &All).unwrap();
    assert_eq!(report.crowded, 1, "{report:?}");
    assert!(!report.is_whole());
    assert_eq!(fixture.pool().redundancy().unwrap()[&pack(1)].spare, 0);
}

fn move_by_hand(fixture: &Fixture, name: ShardName, from: usize, to: usize) {
    if from != to {
        copy_by_hand(fixture, name, from, to);
        fixture.world.process_with(PLACES).0[from].delete(name).unwrap();
    }
}

/// (drain_twice, damaged_duplicate_hides_good) Either of two copies may be damaged: reads return
/// the right data, and a repair leaves one whole copy, at whichever step it is killed.
#[test]
fn of_two_copies_the_damaged_one_never_wins() {
    for rule in [Redundancy::default(), Redundancy::mirror(2)] {
        for is_draining in [false, true] {
            for damaged in [0, 1] {
                for step in (0..).step_by(2) {
                    let what = format!("{} {is_draining} {damaged}, {step}", rule.describe());
                    let fixture = Fixture::new(3, rule.clone(), true);
                    let name = ShardName { pack: pack(2), shard: 0 };
                    let targets = fixture.pool().targets();
                    let from = targets.find(name).unwrap();
                    let other = ShardName { shard: 1, ..name };
                    let used: Vec<usize> =
                        [name, other].iter().filter_map(|name| targets.find(*name).ok()).collect();
                    let to = (0..3).find(|place| !used.contains(place)).unwrap();
                    copy_by_hand(&fixture, name, from, to);
                    let hit = [from, to][damaged];
                    fixture.world.corrupt_on(hit, name, 4096 + 500, 1);
                    read(&fixture.pool(), 2, &what);
                    let (pool, process) = fixture.process();
                    process.kill_after(1 + step);
                    if is_draining && rule.survives() == 0 {
                        let _ = pool.drain_target(from as u32 + 1, None, &All);
                    } else {
                        let _ = pool.repair(RepairOptions::default(), &All);
                    }
                    let is_over = !process.is_killed();
                    read(&fixture.pool(), 2, &what);
                    fixture.repair();
                    read(&fixture.pool(), 2, &what);
                    let check = fixture.pool().check_pack(pack(2), &mut |_, _, _| Ok(())).unwrap();
                    assert_eq!(check.faults, [], "{what}");
                    if is_over {
                        break;
                    }
                }
            }
        }
    }
}
