//! Looking back over many checkpoints: shared data is read once, and no damage is missed.

use crate::common;
use crate::stepped;

use common::{Program, State, changed, noise, pool_of, tuned, tuned_on};
use outlive_backend::{FaultWorld, ShardName};
use outlive_format::{EntryKind, SHARD_HEADER_BYTES};
use outlive_pool::Pool;
use outlive_store::Select;
use outlive_store::gc::{GcOptions, UsageOf, UsageRow, collect, usage};
use outlive_types::{BLOCK_BYTES, Epoch, ErrorKind, JobName, PAGE_BYTES};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stepped::{Steps, World};

fn job_name(job: &str) -> JobName {
    JobName::new(job).unwrap()
}

/// Returns the number of reads of shards that some work takes.
fn reads(world: &World, work: impl Fn(&Pool)) -> u64 {
    let (steps, count) = (Steps::default(), Arc::new(AtomicU64::new(0)));
    let counted = count.clone();
    steps.hook(move |_, what| {
        counted.fetch_add(u64::from(what == "read shard"), Ordering::Relaxed);
    });
    work(&world.stepped(&steps));
    count.load(Ordering::Relaxed)
}

#[test]
fn a_long_line_costs_reads_only_for_changes() {
    const EPOCHS: usize = 60;
    const BLOCKS: usize = 32;
    let world = World::new();
    let program = Program::start(&world.pool(), "long");
    // Each block has a page, so each checkpoint's tree has as many leaves.
    let mut state = State::from([("a".to_owned(), vec![0; BLOCKS * BLOCK_BYTES])]);
    for block in 0..BLOCKS {
        state = changed(state, block * BLOCK_BYTES / PAGE_BYTES, block as u64);
    }
    for number in 0..EPOCHS {
        let page = number % BLOCKS * BLOCK_BYTES / PAGE_BYTES + 1 + number;
        state = changed(state, page, 1000 + number as u64);
        program.save(&state).unwrap();
    }
    let whole = |pool: &Pool| {
        let report = Program::start(pool, "long").job.verify(None).unwrap();
        assert_eq!((report.checkpoints, report.whole), (EPOCHS as u64, EPOCHS as u64));
        assert!(report.findings.is_empty(), "{report:?}");
    };
    let verifying = reads(&world, whole);
    assert!(verifying < 10 * EPOCHS as u64, "{verifying} reads to verify");
    for (of, rows) in [(UsageOf::Jobs, 1), (UsageOf::Checkpoints(job_name("long")), EPOCHS)] {
        let using = reads(&world, |pool| {
            let used = usage(pool, &of).unwrap();
            assert!(used.unknown.is_empty() && used.rows.len() == rows);
        });
        assert!(using < 10 * EPOCHS as u64, "{using} reads to tell the usage of {of:?}");
    }
}

/// The result for all checkpoints together is the result for each by itself.
#[test]
fn a_line_counts_the_needs_of_each_checkpoint() {
    for index_bytes_max in [64 << 20, 1] {
        // The second time in many parts.
        for after_a_prune in [false, true] {
            let pool = tuned(|tuning| tuning.index_bytes_max = index_bytes_max);
            let epochs = prepare(&pool, after_a_prune);
            Program::start(&pool, "other").save(&first_state()).unwrap();
            let line = usage(&pool, &UsageOf::Checkpoints(job_name("job"))).unwrap();
            assert_eq!(line.rows.len(), epochs.len());
            assert_eq!(line.plan, usage(&pool, &UsageOf::Jobs).unwrap().plan, "as a gc would");
            for row in &line.rows {
                let just = row.epochs.iter().copied().collect();
                let alone = usage(&pool, &UsageOf::Some(job_name("job"), just)).unwrap();
                assert_eq!(alone.rows[0], *row);
                assert_eq!(alone.together, *row);
            }
            let some = epochs.iter().copied().step_by(2).collect();
            let some = usage(&pool, &UsageOf::Some(job_name("job"), some)).unwrap();
            let same = |row: &&UsageRow| line.rows.iter().any(|other| other == *row);
            assert_eq!(some.rows.iter().filter(|row| same(row)).count(), some.rows.len());
        }
    }
}

fn first_state() -> State {
    State::from([
        ("a".to_owned(), noise(1, 100_000)),
        ("b".to_owned(), noise(2, 70_000)),
        ("small".to_owned(), vec![9; 50]),
    ])
}

/// Three chains: one that goes on, one that begins again with much of the same, and one that goes
/// back.
fn past(pool: &Pool) -> BTreeSet<Epoch> {
    let mut state = first_state();
    let mut epochs = BTreeSet::new();
    let program = Program::start(pool, "job");
    for number in 0..4 {
        state = changed(state, 3 * number as usize, number);
        epochs.insert(program.save(&state).unwrap().epoch);
    }
    drop(program);
    let program = Program::start(pool, "job");
    epochs.insert(program.save(&changed(state.clone(), 17, 99)).unwrap().epoch);
    drop(program);
    let program = Program::start(pool, "job");
    let (_, back) = program.restore(Select::Epoch(2)).unwrap().unwrap();
    for number in 0..2 {
        let next = changed(back.clone(), 20, 500 + number);
        epochs.insert(program.save(&next).unwrap().epoch);
    }
    epochs
}

/// Whether a segment that is stored in a pack has this byte of its shard.
fn is_in_a_segment(pool: &Pool, shard: ShardName, at: u64) -> bool {
    let Some(at) = at.checked_sub(SHARD_HEADER_BYTES as u64) else { return false };
    let directory = pool.directory_of(shard.pack).unwrap().0;
    directory.entries.iter().any(|entry| {
        let range = u64::from(entry.offset)..u64::from(entry.offset + entry.length);
        entry.kind == EntryKind::Segment && range.contains(&at)
    })
}

/// The checkpoints that a verification names are those that do not restore, for each damaged page.
#[test]
fn damage_is_reported_of_checkpoints_that_need_the_damaged_data() {
    for after_a_prune in [false, true] {
        let (mut some, mut all) = (0, 0);
        for number in 0.. {
            let world = FaultWorld::new();
            let pool = pool_of(world.target(), world.log());
            let epochs = prepare(&pool, after_a_prune);
            // Packs have other names in each world, and a gc may pack them a little otherwise.
            let Some((shard, page)) = pages(&world).get(number).copied() else { break };
            let at = page * PAGE_BYTES as u64 + 40;
            let is_segment = is_in_a_segment(&pool, shard, at);
            world.corrupt(shard, at, 0x10);
            let program = Program::start(&pool, "job");
            let incomplete: BTreeSet<Epoch> = epochs
                .iter()
                .copied()
                .filter(|epoch| match program.restore(Select::Epoch(*epoch)) {
                    Ok(restored) => restored.is_none(),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
                        true
                    }
                })
                .collect();
            let report = program.job.verify(None).unwrap();
            let told: BTreeSet<Epoch> = report.findings.iter().filter_map(|f| f.epoch).collect();
            // A restore finds elsewhere the contents of a segment.
            let what = format!("page {page} of {shard}, pruned: {after_a_prune}");
            assert!(
                told == incomplete || is_segment && incomplete.is_subset(&told),
                "{what}: {told:?} {incomplete:?}"
            );
            assert_eq!(report.whole as usize, epochs.len() - told.len());
            some += usize::from(!incomplete.is_empty() && incomplete.len() < epochs.len());
            all += usize::from(incomplete.len() == epochs.len());
        }
        assert!(some > 5 && all > 0, "{some} pages spoil some, {all} all of them");
    }
}

/// A checkpoint may have a chunk twice. With each page damaged, a reader of parts finds what a restore
/// finds, whichever copy it tries first.
#[test]
fn parts_are_found_where_a_restore_finds_them() {
    for (index_bytes_max, made) in [(64 << 20, past as fn(&Pool) -> _), (1, past), (1, twice)] {
        let mut found = 0;
        for number in 0.. {
            let target = FaultWorld::new();
            let pool = tuned_on(target.target(), |tuning| tuning.index_bytes_max = index_bytes_max);
            let epochs = made(&pool);
            let Some((shard, page)) = pages(&target).get(number).copied() else { break };
            target.corrupt(shard, page * PAGE_BYTES as u64 + 40, 0x10);
            let program = Program::start(&pool, "job");
            for epoch in epochs {
                let Ok(Some((_, state))) = program.restore(Select::Epoch(epoch)) else { continue };
                let (reader, _) = program.job.ranges(Select::Epoch(epoch), 0).unwrap().unwrap();
                for (name, bytes) in state {
                    let mut into = vec![0; bytes.len()];
                    let read = reader.read(&name, 0, &mut into);
                    assert!(read.is_ok(), "page {page} of {shard}, {epoch}: {read:?}");
                    assert!(into == bytes, "page {page} of {shard}, {epoch}");
                    found += 1;
                }
            }
        }
        assert!(found > 50, "{found}");
    }
}

/// A second save stores chunks of the first one again, if the index has no room for them.
fn twice(pool: &Pool) -> BTreeSet<Epoch> {
    let program = Program::start(pool, "job");
    let one = State::from([("a".to_owned(), noise(1, 1_000_000))]);
    let mut two = one.clone();
    two.insert("c".to_owned(), noise(1, 1_000_000)[..200_000].to_vec());
    [one, two].iter().map(|state| program.save(state).unwrap().epoch).collect()
}

/// For each damaged page, the checkpoints with unknown needs are those whose trees or segments
/// cannot be read, whether they are read together or one by one.
#[test]
fn needs_that_cannot_be_read_are_told_as_unknown() {
    let (mut some, mut all, mut none) = (0, 0, 0);
    for number in 0.. {
        let world = FaultWorld::new();
        let pool = pool_of(world.target(), world.log());
        let epochs = past(&pool);
        let Some((shard, page)) = pages(&world).get(number).copied() else { break };
        world.corrupt(shard, page * PAGE_BYTES as u64 + 40, 0x10);
        let told = |of: UsageOf| -> BTreeSet<Epoch> {
            usage(&pool, &of).unwrap().unknown.into_iter().map(|(_, epoch, _)| epoch).collect()
        };
        let each = |epoch: &&Epoch| {
            told(UsageOf::Some(job_name("job"), [**epoch].into())).contains(*epoch)
        };
        let unknown: BTreeSet<Epoch> = epochs.iter().filter(each).copied().collect();
        assert_eq!(told(UsageOf::Checkpoints(job_name("job"))), unknown, "page {page} of {shard}");
        assert_eq!(told(UsageOf::Jobs), unknown, "page {page} of {shard}");
        let dry = collect(&pool, &GcOptions { dry_run: true, ..GcOptions::default() });
        assert_eq!(dry.is_err(), !unknown.is_empty(), "page {page} of {shard}: {dry:?}");
        match unknown.len() {
            0 => none += 1,
            incomplete if incomplete == epochs.len() => all += 1,
            _ => some += 1,
        }
    }
    assert!(some > 3 && none > 3, "{some} pages spoil some, {all} all, {none} no needs");
}

fn prepare(pool: &Pool, after_a_prune: bool) -> BTreeSet<Epoch> {
    let mut epochs = past(pool);
    if after_a_prune {
        let drop = [(job_name("job"), [1, 3].into())].into();
        collect(pool, &GcOptions { drop, ..GcOptions::default() }).unwrap();
        epochs.retain(|epoch| ![1, 3].contains(epoch));
        let program = Program::start(pool, "job");
        let (_, back) = program.restore(Select::Epoch(4)).unwrap().unwrap();
        epochs.insert(program.save(&changed(back, 22, 777)).unwrap().epoch);
    }
    epochs
}

fn pages(world: &FaultWorld) -> Vec<(ShardName, u64)> {
    let target = world.target();
    let mut shards = target.list().unwrap();
    // Session ids are random, so packs are told apart by their lengths and numbers.
    shards.sort_by_key(|shard| {
        let number = u32::from_be_bytes(shard.pack.0[16..].try_into().unwrap());
        (target.length(*shard).unwrap(), number)
    });
    let pages = |shard: &ShardName| target.length(*shard).unwrap() / PAGE_BYTES as u64;
    shards.iter().flat_map(|shard| (0..pages(shard)).map(|page| (*shard, page))).collect()
}
