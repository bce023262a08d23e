//! Saves that write between any two health checks of a repair.

use super::*;
use outlive_backend::ShardWriter;
use std::sync::atomic::{AtomicBool, Ordering};

/// The saver has read the table before the removal begins. A save that finds its targets in the
/// table after its last byte commits; then the removal moves its shards.
#[test]
fn a_removal_moves_shards_that_a_save_has_put_on_the_target_at_any_look() {
    let (mut committed, mut refused) = (0, 0);
    for number in 0.. {
        let what = format!("a save at look {number}");
        let fixture = Fixture::new(1, Redundancy::default(), true);
        let saver = fixture.pool();
        let then = saver.targets_now().unwrap().unwrap();
        fixture.pool().add_target("5", None, Tier::Fast).unwrap();
        let saved = Arc::new(Mutex::new(None));
        let outcome = saved.clone();
        let (pool, _) = fixture.process_that(Looks::hook(move |look| {
            if look == number {
                write(&saver, 9).unwrap();
                *outcome.lock() = Some(saver.check_targets(&then, &Spread::new()));
            }
        }));
        // A shard that comes to a closed target keeps the target in the pool until the next repair.
        let _ = pool.remove_target(1, false, None, &All);
        let Some(saved) = saved.lock().take() else { break };
        fixture.repair();
        assert!(fixture.pool().table().unwrap().read().unwrap().get(1).is_none(), "{what}");
        match saved {
            Ok(()) => {
                committed += 1;
                read(&fixture.pool(), 9, &what);
            }
            Err(error) => {
                refused += 1;
                assert_eq!(error.kind(), ErrorKind::Retry, "{what}: {error}");
            }
        }
        fixture.check(&what);
    }
    assert!(committed > 4 && refused > 1, "{committed} committed, {refused} refused");
}

/// The saver has finished one of two shards when the repair goes on.
#[test]
fn a_pack_that_is_begun_at_any_look_of_a_repair_gets_no_shards() {
    let late = pack(9);
    let [first, second] = [0, 1].map(|shard| ShardName { pack: late, shard });
    for number in 0.. {
        let what = format!("begun at look {number}");
        let fixture = Arc::new(Fixture::new(3, Redundancy::mirror(2), true));
        let pool = fixture.pool();
        write(&pool, 9).unwrap();
        let [on, other] = [first, second].map(|name| pool.targets().find(name).unwrap());
        // Until the save begins, its bytes wait in a place that is no target.
        copy_by_hand(&fixture, first, on, 7);
        pool.delete_pack(late).unwrap();
        let is_begun = Arc::new(AtomicBool::new(false));
        let (begun, world) = (is_begun.clone(), fixture.clone());
        let mut writers = Vec::new();
        let (pool, _) = fixture.process_that(Looks::hook(move |look| {
            if look == number {
                let targets = world.world.process_with(PLACES).0;
                writers.push(targets[other].create(second, 1 << 20).unwrap());
                copy_by_hand(&world, first, 7, on);
                begun.store(true, Ordering::Relaxed);
            }
        }));
        let report = pool.repair(RepairOptions::default(), &Says::default()).unwrap();
        if !is_begun.load(Ordering::Relaxed) {
            assert!(number > 8, "a repair has {number} looks");
            break;
        }
        assert_eq!((report.shards, report.moved), (0, 0), "{what}: {report:?}");
        let listed = fixture.pool().targets().list().unwrap();
        let listed: Vec<_> = listed.into_iter().filter(|(name, _)| name.pack == late).collect();
        assert_eq!(listed, [(first, on)], "{what}");
    }
}

/// The saver begins and finishes one shard at one look of the repair, and commits at another one.
#[test]
fn a_pack_that_is_written_between_any_two_looks_of_a_repair_gets_no_shards() {
    let late = pack(9);
    let names = [0, 1].map(|shard| ShardName { pack: late, shard });
    for begins in 0.. {
        let (mut is_begun, mut is_whole) = (false, true);
        for ends in begins.. {
            let what = format!("begun at look {begins}, whole at look {ends}");
            let fixture = Arc::new(Fixture::new(3, Redundancy::mirror(2), true));
            let pool = fixture.pool();
            write(&pool, 9).unwrap();
            let on = names.map(|name| pool.targets().find(name).unwrap());
            let kept = [6, 7];
            (0..2).for_each(|at| copy_by_hand(&fixture, names[at], on[at], kept[at]));
            pool.delete_pack(late).unwrap();
            let (steps, world) = (Arc::new(Mutex::new((false, false))), fixture.clone());
            let (done, mut writers) = (steps.clone(), Vec::new());
            let (pool, _) = fixture.process_that(Looks::hook(move |look| {
                let targets = world.world.process_with(PLACES).0;
                let bytes = |at: usize| bytes_of(&*targets[kept[at]], names[at]);
                let finish = |(at, mut writer): (usize, Box<dyn ShardWriter>)| {
                    let length = bytes(at).len() as u64;
                    writer.write(0, bytes(at).share()).wait().unwrap();
                    writer.finish(length).wait().unwrap();
                };
                if look == begins {
                    let begin = |at: usize| {
                        let writer = targets[on[at]].create(names[at], bytes(at).len() as u64);
                        (at, writer.unwrap())
                    };
                    let [one, two] = [0, 1].map(begin);
                    finish(one);
                    writers.push(two);
                    done.lock().0 = true;
                }
                if look == ends {
                    writers.drain(..).for_each(finish);
                    done.lock().1 = true;
                }
            }));
            let report = pool.repair(RepairOptions::default(), &Commits(steps.clone())).unwrap();
            (is_begun, is_whole) = *steps.lock();
            assert!(report.is_whole(), "{what}: {report:?}");
            assert_eq!((report.shards, report.moved), (0, 0), "{what}: {report:?}");
            if !is_whole {
                break;
            }
        }
        if !is_begun {
            assert!(begins > 8 && !is_whole, "a repair has {begins} looks");
            break;
        }
    }
}

/// A log in which a checkpoint names pack 9 from the moment at which it is whole.
struct Commits(Arc<Mutex<(bool, bool)>>);

impl crate::PackUses for Commits {
    fn named(&self, _: &Pool) -> Result<Option<Named>> {
        let last = if self.0.lock().1 { 9 } else { PACKS - 1 };
        let packs = (0..PACKS).chain([last]).map(pack).collect();
        Ok(Some(Named { packs, is_partial: false }))
    }

    fn trimmed(&self, _: &Pool) -> Result<BTreeSet<PackId>> {
        Ok(BTreeSet::new())
    }
}
