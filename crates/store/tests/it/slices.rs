//! Chunks with only some pages in use: a gc leaves slices of them. Reads, saves, copies and repairs
//! run beside them.

use crate::common;
use crate::stepped;

use common::{Program, State, Vectors, changed, memory_pool, noise, pool_of, smooth, tuned};
use outlive_backend::{FaultWorld, MemoryTarget, ShardName};
use outlive_format::SHARD_HEADER_BYTES;
use outlive_log::MemoryLog;
use outlive_pool::{Environment, Pool};
use outlive_store::copy::{CopyOptions, copy};
use outlive_store::gc::{GcOptions, GcReport, Thoroughness, UsageOf, collect, usage};
use outlive_store::scrub::{ScrubOptions, scrub};
use outlive_store::{Job, Sample, Select};
use outlive_types::{Epoch, JobName, PAGE_BYTES};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stepped::{Gate, Steps, World};

fn name(job: &str) -> JobName {
    JobName::new(job).unwrap()
}

fn prune(pool: &Pool, job: &str, drop: &[Epoch]) -> GcReport {
    let drop = match drop {
        [] => Default::default(),
        epochs => [(name(job), epochs.iter().copied().collect())].into(),
    };
    let thoroughness = Thoroughness { unused_max: 0.0, ..Thoroughness::default() };
    collect(pool, &GcOptions { drop, thoroughness, ..GcOptions::default() }).unwrap()
}

fn state(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 120_000)), ("b".to_owned(), vec![seed as u8; 50])])
}

/// Replaces every third page.
fn scattered(mut state: State, seed: u64) -> State {
    for (number, page) in state.get_mut("a").unwrap().chunks_mut(PAGE_BYTES).enumerate() {
        if number % 3 == 1 {
            page.copy_from_slice(&noise(seed + number as u64, page.len()));
        }
    }
    state
}

fn stored_bytes(pool: &Pool) -> u64 {
    pool.packs().unwrap().into_iter().map(|pack| pool.stored_bytes(pack).unwrap()).sum()
}

#[track_caller]
fn check(pool: &Pool, job: &str, states: &[(Epoch, &State)]) {
    let program = Program::start(pool, job);
    for (epoch, state) in states {
        let (_, restored) = program.restore(Select::Epoch(*epoch)).unwrap().unwrap();
        assert!(restored == **state, "epoch {epoch} of {job}");
    }
    assert_eq!(program.job.verify(None).unwrap().findings, vec![], "{job}");
}

/// After many saves of scattered pages, the newest checkpoint takes little more than the state.
#[test]
fn a_pruned_pool_holds_pages_in_use_and_little_else() {
    for (compression, grown) in [("none", 1.06), ("zstd", 1.06)] {
        let mut config = common::small_config();
        config.format.container_bytes = 1 << 20;
        config.format.pack_bytes = 4 << 20;
        config.format.chunk_bytes_max = 64 << 10;
        config.tuning.staging_bytes = 8 << 20;
        config.tuning.compression = compression.to_owned();
        let (target, log) = (Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()));
        let pool = Pool::new(config, target, log, Environment::system());
        let mut state = State::from([("a".to_owned(), noise(1, 8 << 20))]);
        let program = Program::start(&pool, "job");
        program.save(&state).unwrap();
        let first_bytes = stored_bytes(&pool);
        let at_first = read_bytes(&pool);
        for step in 0..100_u64 {
            for page in 0..20_u64 {
                let page = ((step * 20 + page) * 2_654_435_761 % 2048) as usize;
                state = changed(state, page, 10 + step * 20 + page as u64);
            }
            program.save(&state).unwrap();
        }
        drop(program);
        let drop: Vec<Epoch> = (1..=100).collect();
        let report = prune(&pool, "job", &drop);
        let bytes = stored_bytes(&pool);
        assert!((bytes as f64) < grown * first_bytes as f64, "{bytes} after {first_bytes} bytes");
        check(&pool, "job", &[(101, &state)]);
        let now = read_bytes(&pool);
        assert!((now as f64) < 1.1 * at_first as f64, "{now} bytes are read, at first {at_first}");
        assert!(report.damaged.is_empty());
        let again = prune(&pool, "job", &[]);
        assert_eq!((again.deleted, again.plan.copied_bytes), (0, 0), "nothing is left to do");
    }
}

/// Returns the bytes that a restore of the newest checkpoint reads.
fn read_bytes(pool: &Pool) -> u64 {
    let program = Program::start(pool, "job");
    let done = program.job.restore(
        Select::Newest,
        &mut |checkpoint| {
            let all: Vec<usize> = (0..checkpoint.streams().len()).collect();
            Ok((all, Vectors::for_all(checkpoint)))
        },
        &mut |_, _| Ok(()),
    );
    done.unwrap().unwrap().stats.read_bytes
}

/// Dropped data comes again, after its pages are gone: it is stored again.
#[test]
fn a_save_does_not_rely_on_pages_that_are_gone() {
    let pool = memory_pool();
    let (first, second) = (state(1), scattered(state(1), 500));
    let program = Program::start(&pool, "job");
    program.save(&first).unwrap();
    program.save(&second).unwrap();
    drop(program);
    prune(&pool, "job", &[1]);
    // In the same job after a restore, in one that has not restored, and in another job.
    let program = Program::start(&pool, "job");
    program.restore(Select::Newest).unwrap();
    let mut first = first;
    first.insert("c".to_owned(), noise(1, 120_000));
    program.save(&first).unwrap();
    drop(program);
    check(&pool, "job", &[(2, &second), (3, &first)]);
    let program = Program::start(&pool, "job");
    program.job.take_over();
    program.save(&first).unwrap();
    drop(program);
    Program::start(&pool, "other").save(&first).unwrap();
    check(&pool, "job", &[(2, &second), (3, &first), (4, &first)]);
    check(&pool, "other", &[(1, &first)]);
    // The pages that both need exist in two forms by now.
    prune(&pool, "job", &[3, 4]);
    check(&pool, "job", &[(2, &second)]);
    check(&pool, "other", &[(1, &first)]);
    prune(&pool, "other", &[]);
    check(&pool, "job", &[(2, &second)]);
    check(&pool, "other", &[(1, &first)]);
}

/// A program that goes on saving, and one that was restored before the gc and saves after it.
#[test]
fn programs_go_on_beside_a_gc_that_cuts_their_chunks() {
    let pool = memory_pool();
    let mut now = state(1);
    let program = Program::start(&pool, "job");
    let mut kept: Vec<(Epoch, State)> = Vec::new();
    for step in 0..40_u64 {
        // Old content comes again now and then.
        now = match step % 7 {
            5 => state(1),
            _ => scattered(changed(now, (step * 11 % 29) as usize, step), step % 3 * 1000),
        };
        let epoch = program.save(&now).unwrap().epoch;
        kept.push((epoch, now.clone()));
        if step % 4 == 3 {
            let drop: Vec<Epoch> = kept.drain(..2).map(|(epoch, _)| epoch).collect();
            prune(&pool, "job", &drop);
            let states: Vec<(Epoch, &State)> = kept.iter().map(|(e, s)| (*e, s)).collect();
            check(&pool, "job", &states);
        }
    }
    let restored = Program::start(&pool, "job");
    let (epoch, before) = restored.restore(Select::Newest).unwrap().unwrap();
    drop(program);
    let older: Vec<Epoch> = kept.iter().map(|(epoch, _)| *epoch).filter(|e| *e != epoch).collect();
    prune(&pool, "job", &older);
    restored.job.take_over();
    let next = changed(state(1), 3, 3);
    restored.save(&next).unwrap();
    check(&pool, "job", &[(epoch, &before), (epoch + 1, &next)]);
}

/// Within a session: the chunks that a restored checkpoint names may exist as slices only.
#[test]
fn a_program_that_goes_back_does_not_take_slices_for_chunks() {
    let pool = memory_pool();
    let (first, second) = (state(1), scattered(state(1), 500));
    let program = Program::start(&pool, "job");
    program.save(&first).unwrap();
    program.save(&second).unwrap();
    prune(&pool, "job", &[1]);
    // It learns of the gc, and forgets what it knew.
    program.save(&state(7)).unwrap();
    program.restore(Select::Epoch(2)).unwrap();
    let mut third = second.clone();
    third.insert("c".to_owned(), noise(1, 120_000));
    let epoch = program.save(&third).unwrap().epoch;
    drop(program);
    check(&pool, "job", &[(2, &second), (epoch, &third)]);
}

/// A save that has found a chunk in its own past is held up before its commit, and a gc cuts that
/// chunk to the pages that checkpoints need.
#[test]
fn a_save_under_way_keeps_whole_chunks_that_a_gc_cuts() {
    let world = World::new();
    let steps = Steps::default();
    let gate = Gate::default();
    let armed = Arc::new(AtomicBool::new(false));
    let (stop, flag) = (gate.clone(), armed.clone());
    steps.hook(move |_, op| {
        if op == "append" && flag.swap(false, Ordering::AcqRel) {
            stop.stop();
        }
    });
    let (first, second) = (state(1), scattered(state(1), 500));
    let mut third = second.clone();
    third.insert("c".to_owned(), noise(1, 120_000));
    let pool = world.stepped(&steps);
    let saved = third.clone();
    let saver = std::thread::spawn(move || {
        let program = Program::start(&pool, "job");
        program.save(&first).unwrap();
        program.save(&second).unwrap();
        armed.store(true, Ordering::Release);
        program.save(&saved).map(|stats| stats.epoch)
    });
    gate.wait_reached(|| false);
    prune(&world.pool(), "job", &[1]);
    gate.open();
    assert_eq!(saver.join().unwrap().unwrap(), 3);
    let second = scattered(state(1), 500);
    check(&world.pool(), "job", &[(2, &second), (3, &third)]);
    prune(&world.pool(), "job", &[2]);
    check(&world.pool(), "job", &[(3, &third)]);
}

/// A gc has cut chunks and is about to report to the job, which saves meanwhile, and finds one of
/// them in its own past.
#[test]
fn a_save_during_the_report_of_a_gc_keeps_whole_chunks_that_it_cut() {
    let world = World::new();
    let program = Program::start(&world.pool(), "job");
    let (first, second) = (state(1), scattered(state(1), 500));
    program.save(&first).unwrap();
    program.save(&second).unwrap();
    let (steps, gate) = (Steps::default(), Gate::default());
    let (stop, appends) = (gate.clone(), AtomicU64::new(0));
    steps.hook(move |_, op| {
        // The prune, the session of the gc, then the archive.
        if op == "append" && appends.fetch_add(1, Ordering::AcqRel) == 2 {
            stop.stop();
        }
    });
    let (pool, over) = (world.stepped(&steps), Arc::new(AtomicBool::new(false)));
    let done = over.clone();
    let collector = std::thread::spawn(move || {
        prune(&pool, "job", &[1]);
        done.store(true, Ordering::Release);
    });
    gate.wait_reached(|| over.load(Ordering::Acquire));
    assert!(!over.load(Ordering::Acquire), "the gc has copied, and has not told the job");
    let mut third = second.clone();
    third.insert("c".to_owned(), noise(1, 120_000));
    program.save(&third).unwrap();
    gate.open();
    collector.join().unwrap();
    drop(program);
    check(&world.pool(), "job", &[(2, &second), (3, &third)]);
    prune(&world.pool(), "job", &[]);
    check(&world.pool(), "job", &[(2, &second), (3, &third)]);
}

/// Two jobs have stored the same chunk independently, and need other pages of it.
#[test]
fn of_equal_chunks_each_job_keeps_its_own_pages() {
    let pool = tuned(|tuning| tuning.index_bytes_max = 0);
    let (a, b) = (Program::start(&pool, "a"), Program::start(&pool, "b"));
    let mut other = state(1);
    for (number, page) in other.get_mut("a").unwrap().chunks_mut(PAGE_BYTES).enumerate() {
        if number % 3 != 1 {
            page.copy_from_slice(&noise(70 + number as u64, page.len()));
        }
    }
    let second = scattered(state(1), 500);
    for (program, then) in [(&a, &second), (&b, &other)] {
        let new_bytes = program.save(&state(1)).unwrap().new_bytes;
        assert!(new_bytes > 120_000, "each has stored all of it");
        program.save(then).unwrap();
    }
    drop((a, b));
    let drop = [(name("a"), [1].into()), (name("b"), [1].into())].into();
    let thoroughness = Thoroughness { unused_max: 0.0, ..Thoroughness::default() };
    collect(&pool, &GcOptions { drop, thoroughness, ..GcOptions::default() }).unwrap();
    for _ in 0..2 {
        check(&pool, "a", &[(2, &second)]);
        check(&pool, "b", &[(2, &other)]);
        prune(&pool, "a", &[]);
    }
}

/// A whole chunk of another job repairs a slice, which is lost with its last copy.
#[test]
fn a_damaged_slice_is_mended_by_its_whole_chunk() {
    for is_elsewhere in [true, false] {
        let world = FaultWorld::new();
        let pool = || pool_of(world.target(), world.log());
        let (first, second) = (state(1), scattered(state(1), 500));
        let program = Program::start(&pool(), "job");
        program.save(&first).unwrap();
        program.save(&second).unwrap();
        drop(program);
        prune(&pool(), "job", &[1]);
        let shards = world.target().list().unwrap();
        if is_elsewhere {
            Program::start(&pool(), "other").save(&first).unwrap();
        }
        let in_slice = |shard: &ShardName| {
            let (directory, _) = pool().directory_of(shard.pack).unwrap();
            let slice = directory.entries.iter().find(|entry| entry.kind.slice().is_some())?;
            Some((*shard, u64::from(slice.offset + slice.length) - 50))
        };
        let (shard, offset) = shards.iter().find_map(in_slice).expect("the gc has made slices");
        world.corrupt(shard, SHARD_HEADER_BYTES as u64 + offset, 1);
        let options = ScrubOptions { sample: Sample::ALL, bytes_per_s: None, dry_run: false };
        let heal = scrub(&pool(), &options).unwrap().heal;
        assert!(heal.condemned.contains(&shard.pack), "{heal:?}");
        if is_elsewhere {
            assert!(heal.lost == 0 && heal.found_elsewhere > 0, "{heal:?}");
            check(&pool(), "job", &[(2, &second)]);
            check(&pool(), "other", &[(1, &first)]);
            prune(&pool(), "job", &[]);
            check(&pool(), "job", &[(2, &second)]);
            check(&pool(), "other", &[(1, &first)]);
        } else {
            assert_eq!((heal.lost, &heal.incomplete[&name("job")]), (1, &[2].into()), "{heal:?}");
            // A save stores the lost data again.
            let program = Program::start(&pool(), "job");
            program.save(&second).unwrap();
            drop(program);
            let program = Program::start(&pool(), "job");
            let (epoch, restored) = program.restore(Select::Newest).unwrap().unwrap();
            assert!(epoch == 3 && restored == second);
        }
    }
}

/// A copy sends slices, never what the destination has, and never relies on a slice with fewer
/// pages.
#[test]
fn copies_of_slices_are_whole_and_are_sent_once() {
    let (from, to) = (memory_pool(), memory_pool());
    let program = Program::start(&from, "job");
    let (first, second) = (state(1), scattered(state(1), 500));
    program.save(&first).unwrap();
    program.save(&second).unwrap();
    drop(program);
    prune(&from, "job", &[1]);
    let bytes = |report: &outlive_store::copy::CopyReport| -> Vec<u64> {
        report.jobs[0].copied.iter().map(|copied| copied.sent_bytes).collect()
    };
    let report = copy(&from, &to, &CopyOptions::default()).unwrap();
    assert!((115_000..140_000).contains(&bytes(&report)[0]), "{report:?}");
    check(&to, "job", &[(2, &second)]);
    // A change of one page in each block makes new leaves, which name slices that the destination
    // has.
    let program = Program::start(&from, "job");
    program.restore(Select::Newest).unwrap();
    let mut now = second.clone();
    let mut states = vec![(2, second.clone())];
    for step in 0..12_u64 {
        now = changed(now, (step * 5 % 29) as usize, 9000 + step);
        states.push((program.save(&now).unwrap().epoch, now.clone()));
    }
    drop(program);
    let report = copy(&from, &to, &CopyOptions::default()).unwrap();
    assert!(bytes(&report).iter().all(|sent| *sent < 10_000), "{:?}", bytes(&report));
    let kept: Vec<(Epoch, &State)> = states.iter().map(|(e, s)| (*e, s)).collect();
    check(&to, "job", &kept);
    // The destination keeps fewer checkpoints, so fewer pages. The next copy relies on none that it
    // lacks.
    let older: Vec<Epoch> = (2..14).collect();
    prune(&to, "job", &older);
    let program = Program::start(&from, "job");
    program.restore(Select::Epoch(3)).unwrap();
    program.job.take_over();
    let back = changed(states[1].1.clone(), 7, 77);
    let epoch = program.save(&back).unwrap().epoch;
    drop(program);
    copy(&from, &to, &CopyOptions::default()).unwrap();
    // The destination may have a chunk in two slices by now, each with pages that the other lacks.
    for _ in 0..2 {
        check(&to, "job", &[(14, &states[12].1), (epoch, &back)]);
        prune(&to, "job", &[]);
    }
    check(&from, "job", &[(2, &second), (epoch, &back)]);
}

/// A gc at the destination cuts chunks that a copy under way relies on.
#[test]
fn a_copy_under_way_keeps_the_slices_that_it_relies_on() {
    let from = memory_pool();
    let program = Program::start(&from, "job");
    let (first, second) = (state(1), scattered(state(1), 500));
    program.save(&first).unwrap();
    program.save(&second).unwrap();
    prune(&from, "job", &[1]);
    let mut now = second.clone();
    for step in 0..10_u64 {
        now = changed(now, (step * 5 % 29) as usize, 9000 + step);
        program.save(&now).unwrap();
    }
    let newest = program.save(&now).unwrap().epoch;
    drop(program);
    for stop_at in 2..14 {
        let world = World::new();
        let steps = Steps::default();
        let gate = Gate::default();
        let count = AtomicU64::new(0);
        let stop = gate.clone();
        steps.hook(move |_, op| {
            if op == "append" && count.fetch_add(1, Ordering::AcqRel) == stop_at {
                stop.stop();
            }
        });
        let (source, target) = (from.clone(), world.stepped(&steps));
        let over = Arc::new(AtomicBool::new(false));
        let done = over.clone();
        let copier = std::thread::spawn(move || {
            let copied = copy(&source, &target, &CopyOptions::default());
            done.store(true, Ordering::Release);
            copied
        });
        gate.wait_reached(|| over.load(Ordering::Acquire));
        let there = Job::open(&world.pool(), "job", Default::default()).unwrap().epochs();
        let mut there: Vec<Epoch> = there.unwrap().iter().map(|info| info.epoch).collect();
        there.pop();
        prune(&world.pool(), "job", &there);
        gate.open();
        copier.join().unwrap().unwrap();
        check(&world.pool(), "job", &[(newest, &now)]);
        prune(&world.pool(), "job", &[]);
        check(&world.pool(), "job", &[(newest, &now)]);
    }
}

/// The bytes that `usage` expects to become free count pages, as the gc does.
#[test]
fn usage_counts_pages_as_a_gc_does() {
    let pool = tuned(|tuning| tuning.compression = "none".to_owned());
    let program = Program::start(&pool, "job");
    program.save(&state(1)).unwrap();
    let second = scattered(state(1), 500);
    program.save(&second).unwrap();
    drop(program);
    let said = usage(&pool, &UsageOf::Some(name("job"), [1].into())).unwrap().without.unwrap();
    let before = stored_bytes(&pool);
    let report = prune(&pool, "job", &[1]);
    let freed = before - stored_bytes(&pool);
    assert!(freed > 20_000, "{freed}: a third of the pages were replaced");
    assert!(said.freed_bytes.abs_diff(freed) < 20_000, "{said} against {freed}, {}", report.plan);
    check(&pool, "job", &[(2, &second)]);
}

/// Slices list every page that they hold for later checkpoints: shapes that shrink and grow.
#[test]
fn streams_of_changing_length_are_cut_right() {
    let pool = memory_pool();
    let program = Program::start(&pool, "job");
    let mut kept: Vec<(Epoch, State)> = Vec::new();
    for step in 0..24_u64 {
        let bytes = 70_000 + (step * 37_123 % 200_000) as usize;
        let mut now = State::from([("a".to_owned(), smooth(step % 3, bytes))]);
        now = changed(now, (step % 16) as usize, step);
        kept.push((program.save(&now).unwrap().epoch, now));
        if step % 3 == 2 {
            let (epoch, _) = kept.remove((step % 5) as usize % kept.len());
            let newest = kept.last().unwrap().0;
            if epoch < newest {
                prune(&pool, "job", &[epoch]);
            } else {
                break;
            }
            let states: Vec<(Epoch, &State)> = kept.iter().map(|(e, s)| (*e, s)).collect();
            check(&pool, "job", &states);
        }
    }
}
