//! Copies of checkpoints of several ranks: where they may stop, and what a gc may do meanwhile.

use crate::common;
use crate::members;
use crate::stepped;

use common::{State, changed, memory_pool, pool_of};
use members::{Group, check, gc, states};
use outlive_backend::{CutMode, FaultWorld};
use outlive_pool::Pool;
use outlive_store::copy::{CopyOptions, CopyReport, copy};
use outlive_types::{Epoch, JobName, PAGE_BYTES, Rank, Result};
use std::collections::BTreeMap;
use stepped::{Steps, World, at_each_failure};

const RANKS: Rank = 3;

type Past = BTreeMap<Epoch, Vec<State>>;

/// Three checkpoints: in each, one rank changes a page, and all ranks have some of the others'
/// data.
fn past(pool: &Pool, name: &str) -> Past {
    let mut group = Group::new(pool, name, RANKS);
    let mut now = states(RANKS, 1);
    let mut all = Past::new();
    for rank in 0..RANKS as usize {
        now[rank] = changed(now[rank].clone(), rank, 50 + rank as u64);
        all.insert(group.save(&now).unwrap(), now.clone());
    }
    group.close();
    all
}

fn copied(from: &Pool, to: &Pool) -> Result<CopyReport> {
    let jobs = vec![JobName::new("job").unwrap()];
    copy(from, to, &CopyOptions { jobs, ..CopyOptions::default() })
}

/// Returns the first checkpoints of `all`, as many as the destination has.
fn there(pool: &Pool, all: &Past) -> Past {
    let epochs = members::job(pool, "job").epochs().unwrap().len();
    all.clone().into_iter().take(epochs).collect()
}

#[test]
fn only_new_data_of_each_rank_is_sent() {
    let (from, to) = (memory_pool(), memory_pool());
    let all = past(&from, "job");
    let report = copied(&from, &to).unwrap();
    check(&to, "job", &all, "copied");
    let sent: Vec<u64> = report.jobs[0].copied.iter().map(|copied| copied.sent_bytes).collect();
    let bytes_of = |pages: u64| pages * PAGE_BYTES as u64;
    // A page and some more of its chunk.
    assert!(sent[0] <= bytes_of(u64::from(RANKS) * 73), "{sent:?}");
    assert!(sent[1..].iter().all(|sent| (1..bytes_of(2)).contains(sent)), "{sent:?}");
    assert_eq!(copied(&from, &to).unwrap().jobs[0].copied.len(), 0);
}

#[test]
fn a_copy_of_ranks_that_is_cut_anywhere_goes_on() {
    let from = memory_pool();
    let all = past(&from, "job");
    let calm = FaultWorld::new();
    copied(&from, &pool_of(calm.target(), calm.log())).unwrap();
    assert!(calm.ops() > 10, "{}", calm.ops());
    for number in 0..calm.ops() {
        for mode in CutMode::ALL {
            let world = FaultWorld::new();
            world.cut_at(number, mode);
            let cut = copied(&from, &pool_of(world.target(), world.log()));
            let what = format!("cut at {number}, {mode:?}: {cut:?}");
            let (target, log) = world.reboot();
            let to = pool_of(target, log);
            check(&to, "job", &there(&to, &all), &what);
            copied(&from, &to).unwrap_or_else(|error| panic!("{what}: {error}"));
            check(&to, "job", &all, &what);
            gc(&to);
            check(&to, "job", &all, &what);
        }
    }
}

#[test]
fn a_copy_of_ranks_one_of_whose_steps_fails() {
    let from = memory_pool();
    let all = past(&from, "job");
    at_each_failure(&mut |to, what| {
        let failed = copied(&from, to);
        let what = format!("{what}: {failed:?}");
        if failed.is_err() {
            check(to, "job", &there(to, &all), &what);
            copied(&from, to).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        check(to, "job", &all, &what);
        failed.is_err()
    });
}

/// A whole gc runs, in one pool or the other, before each step of the copy there.
#[test]
fn a_gc_within_a_copy_of_ranks_at_every_step() {
    for in_target in [false, true] {
        let mut at = 0;
        loop {
            let (here, there) = (World::new(), World::new());
            let all = past(&here.pool(), "job");
            // The destination has the same bytes in another job, which the gc prunes.
            past(&there.pool(), "other");
            let steps = Steps::default();
            let collected = if in_target { there.pool() } else { here.pool() };
            steps.hook(move |number, _| {
                if number == at && in_target {
                    members::prune(&collected, "other", &[1, 2]);
                }
                if number == at {
                    gc(&collected);
                }
            });
            let (from, to) = match in_target {
                true => (here.pool(), there.stepped(&steps)),
                false => (here.stepped(&steps), there.pool()),
            };
            let what = format!("a gc in the target {in_target}, before step {at}");
            copied(&from, &to).unwrap_or_else(|error| panic!("{what}: {error}"));
            check(&there.pool(), "job", &all, &what);
            gc(&there.pool());
            check(&there.pool(), "job", &all, &what);
            if at >= steps.count() {
                break;
            }
            at += 1;
        }
        assert!(at > 8, "{at} steps");
    }
}
