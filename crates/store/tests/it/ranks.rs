//! Checkpoints of many ranks: each rank makes its image, and a committer makes one checkpoint of
//! them.

use crate::common;
use crate::members;
use crate::stepped;

use common::{State, Vectors, changed, memory_pool, noise, pool_of, regions_of};
use members::{Group, check, gc, job, prune, restored, states};
use outlive_backend::{FaultWorld, MemoryTarget};
use outlive_format::Images;
use outlive_log::MemoryLog;
use outlive_store::images::image_of;
use outlive_store::save::{CheckpointHeader, RankImage};
use outlive_store::scrub::{ScrubOptions, scrub};
use outlive_store::{Sample, Select};
use outlive_types::{COMMITTER, Epoch, Error, ErrorKind, JobName, PAGE_BYTES, PackId, Rank};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use stepped::{Steps, World};

#[test]
fn ranks_save_one_checkpoint_and_each_opens_its_own() {
    let pool = memory_pool();
    let mut group = Group::new(&pool, "job", 4);
    let mut now = states(4, 1);
    let mut all = BTreeMap::new();
    for step in 0..5_u64 {
        all.insert(group.save(&now).unwrap(), now.clone());
        check(&pool, "job", &all, "beside the program");
        now[(step % 4) as usize] =
            changed(now[(step % 4) as usize].clone(), step as usize, 50 + step);
    }
    let infos = job(&pool, "job").epochs().unwrap();
    let first = &infos[0].manifest;
    assert_eq!((first.world_size, first.regions()), (4, 12));
    assert_eq!(first.state_bytes(), 4 * (72 * PAGE_BYTES as u64 + 4));
    let new: Vec<u64> = infos.iter().map(|info| info.manifest.figures.new_bytes).collect();
    assert!(new[1] < new[0] / 4, "later saves are incremental: {new:?}");
    assert_eq!(infos[4].manifest.parent, 4);

    let refused = job(&pool, "job").image_of_rank(Select::Newest, 4).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.message().contains("has ranks 0 to 3, and no rank 4"), "{refused}");
    let refused = job(&pool, "job").image(Select::Newest).unwrap_err();
    assert!(refused.message().contains("has 4 ranks"), "{refused}");

    // Ranks write packs of their own; the table is the committer's.
    let Images::Table(table) = &first.images else { panic!("a table") };
    assert!(table.pages.iter().all(|page| page.pack.rank() == COMMITTER));
    for rank in 0..4 {
        let image = image_of(&pool, first, rank).unwrap();
        let own = image.segments.iter().filter(|segment| segment.pack.rank() == rank);
        assert!(own.count() > 0, "rank {rank}: {image:?}");
    }
}

#[test]
fn checkpoints_that_prunes_and_gcs_leave_are_whole_for_every_rank() {
    for seed in 0..6_u64 {
        let pool = memory_pool();
        let mut group = Group::new(&pool, "job", 5);
        let mut other = Group::new(&pool, "other", 3);
        let (mut now, mut now_other) = (states(5, seed), states(3, seed));
        let (mut all, mut all_other) = (BTreeMap::new(), BTreeMap::new());
        for step in 0..12_u64 {
            let at = ((step * 7 + seed) % 5) as usize;
            now[at] = changed(now[at].clone(), ((step + seed) % 40) as usize, seed * 100 + step);
            // Data that another rank and another job have already.
            let copied = now[at]["a"][..4 * PAGE_BYTES].to_vec();
            let beside = now[(at + 1) % 5].get_mut("a").unwrap();
            beside[8 * PAGE_BYTES..12 * PAGE_BYTES].copy_from_slice(&copied);
            all.insert(group.save(&now).unwrap(), now.clone());
            if step % 3 == seed % 3 {
                let there = now_other[1].get_mut("a").unwrap();
                there[..4 * PAGE_BYTES].copy_from_slice(&copied);
                all_other.insert(other.save(&now_other).unwrap(), now_other.clone());
            }
            if (step + seed) % 4 == 0 && all.len() > 2 {
                let dropped: Vec<Epoch> = all.keys().copied().step_by(2).take(2).collect();
                let newest = *all.keys().last().unwrap();
                let dropped: Vec<Epoch> = dropped.into_iter().filter(|e| *e != newest).collect();
                prune(&pool, "job", &dropped);
                dropped.iter().for_each(|epoch| drop(all.remove(epoch)));
            }
            if (step + seed) % 3 == 0 {
                gc(&pool);
            }
            check(&pool, "job", &all, &format!("seed {seed}, step {step}"));
            check(&pool, "other", &all_other, &format!("seed {seed}, step {step}"));
        }
        group.close();
        other.close();
        let rounds = (0..10).take_while(|_| gc(&pool).deleted > 0).count();
        assert!(rounds < 10, "gcs come to rest");
        check(&pool, "job", &all, "at the end");
        check(&pool, "other", &all_other, "at the end");
        prune(&pool, "other", &all_other.keys().copied().collect::<Vec<_>>());
        prune(&pool, "job", &all.keys().copied().collect::<Vec<_>>());
        (0..3).for_each(|_| drop(gc(&pool)));
        assert_eq!(pool.packs().unwrap(), [], "no pack is left that no checkpoint needs");
    }
}

#[test]
fn a_gc_between_the_images_and_the_commit_is_mended_by_each_rank() {
    let pool = memory_pool();
    let mut group = Group::new(&pool, "job", 3);
    let mut now = states(3, 1);
    let mut all = BTreeMap::new();
    for step in 0..4_u64 {
        for state in &mut now {
            *state = changed(state.clone(), step as usize, 10 + step);
        }
        all.insert(group.save(&now).unwrap(), now.clone());
    }
    let gone: Vec<Epoch> = all.keys().copied().take(3).collect();
    now[2] = changed(now[2].clone(), 5, 99);
    let (epoch, made) = group.make(&now).unwrap();
    prune(&pool, "job", &gone);
    assert!(!gc(&pool).plan.condemned().is_empty() || !pool.packs().unwrap().is_empty());
    let rounds = group.commit(epoch, made).unwrap();
    assert!(rounds > 1, "the commit had to be mended");
    all.insert(epoch, now.clone());
    gone.iter().for_each(|epoch| drop(all.remove(epoch)));
    check(&pool, "job", &all, "after the mending");
    now[0] = changed(now[0].clone(), 6, 77);
    all.insert(group.save(&now).unwrap(), now.clone());
    (0..3).for_each(|_| drop(gc(&pool)));
    check(&pool, "job", &all, "after the next gc");
}

#[test]
fn a_rank_that_dies_before_the_commit_leaves_the_checkpoint_before() {
    let pool = memory_pool();
    let mut group = Group::new(&pool, "job", 3);
    let now = states(3, 1);
    let all = BTreeMap::from([(group.save(&now).unwrap(), now.clone())]);
    let before = pool.packs().unwrap();
    let later: Vec<State> = now.iter().map(|state| changed(state.clone(), 3, 42)).collect();
    let (epoch, mut made) = group.make(&later).unwrap();
    // Without the image of rank 1 there is no checkpoint.
    made.remove(1);
    let images: Vec<RankImage> = made.iter().map(|m| m.stored.image().clone()).collect();
    let draft = CheckpointHeader { epoch, ..CheckpointHeader::default() };
    let refused = group.committer.commit(&pool, &draft, &images).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    let begun: Vec<PackId> =
        pool.packs().unwrap().into_iter().filter(|pack| !before.contains(pack)).collect();
    assert!(begun.len() >= 3, "each rank has written");
    gc(&pool);
    let there = pool.packs().unwrap();
    assert!(begun.iter().all(|pack| there.contains(pack)), "packs of an open session stay");
    check(&pool, "job", &all, "while the program may still commit");
    drop((group, made));

    // The program begins again: the session of its successor makes garbage of all that.
    let mut group = Group::new(&pool, "job", 3);
    for (rank, member) in (0..).zip(&mut group.members) {
        let found = job(&pool, "job").image_of_rank(Select::Newest, rank).unwrap();
        let (checkpoint, _) = found.unwrap();
        member.writer.follow_restored(&pool, &checkpoint);
        let streams = Vectors::for_all(&checkpoint);
        let wanted: Vec<usize> = (0..checkpoint.streams().len()).collect();
        checkpoint.read(&wanted, &streams).unwrap();
        let streams = streams.into_inner();
        let named = checkpoint.streams().iter().zip(&streams);
        let primed: Vec<(&str, &[u8])> =
            named.map(|(stream, bytes)| (stream.name.as_str(), bytes.as_slice())).collect();
        member.tracker.prime(checkpoint.epoch(), &primed, 1);
    }
    let mut all = all;
    all.insert(group.save(&later).unwrap(), later);
    let infos = job(&pool, "job").epochs().unwrap();
    assert_eq!(infos[1].manifest.parent, infos[0].epoch, "each rank goes on from its own image");
    assert!(infos[1].manifest.figures.new_bytes < infos[0].manifest.figures.new_bytes / 4);
    group.close();
    (0..3).for_each(|_| drop(gc(&pool)));
    let left: Vec<PackId> =
        pool.packs().unwrap().into_iter().filter(|pack| begun.contains(pack)).collect();
    assert_eq!(left, [], "what the dead program had begun is gone");
    check(&pool, "job", &all, "after its successor");
}

/// For each damaged page of each rank: a scrub names the incomplete checkpoints, all others are
/// whole, and the next save of the ranks needs no lost data.
#[test]
fn a_scrub_keeps_damage_of_one_rank_from_the_next_checkpoint_of_all() {
    let options = ScrubOptions { sample: Sample::ALL, bytes_per_s: None, dry_run: false };
    let (job_name, mut number) = (JobName::new("job").unwrap(), 0);
    let (mut rescued, mut lost) = (0, 0);
    loop {
        let world = FaultWorld::new();
        let pool = pool_of(world.target(), world.log());
        let mut group = Group::new(&pool, "job", 3);
        let first = states(3, 1);
        let then: Vec<State> = first.iter().map(|state| changed(state.clone(), 9, 5)).collect();
        let mut all = BTreeMap::new();
        for states in [first, then.clone()] {
            all.insert(group.save(&states).unwrap(), states);
        }
        let target = world.target();
        let pages = target.list().unwrap().into_iter().flat_map(|shard| {
            let pages = target.length(shard).unwrap() / PAGE_BYTES as u64;
            (0..pages).map(move |page| (shard, page))
        });
        let Some((shard, page)) = pages.collect::<Vec<_>>().get(number).copied() else { break };
        let what = format!("page {page} of {shard}");
        world.corrupt(shard, page * PAGE_BYTES as u64 + 7, 1);
        let report = scrub(&pool, &options).unwrap();
        let incomplete = report.heal.incomplete.get(&job_name).cloned().unwrap_or_default();
        for (epoch, states) in &all {
            for (rank, state) in (0..).zip(states) {
                let found = job(&pool, "job").image_of_rank(Select::Epoch(*epoch), rank);
                let read = found.and_then(|found| {
                    let (image, _) = found.expect("there are checkpoints");
                    let vectors = Vectors::for_all(&image);
                    let streams: Vec<usize> = (0..image.streams().len()).collect();
                    image.read(&streams, &vectors)?;
                    Ok(regions_of(&image, &vectors.into_inner()))
                });
                match read {
                    Ok(read) => assert!(read == *state, "{what}: rank {rank} of {epoch}"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Damaged, "{what}: {error}");
                        assert!(
                            incomplete.contains(epoch),
                            "{what}: rank {rank} of {epoch}: {error}"
                        );
                    }
                }
            }
        }
        match incomplete.is_empty() {
            true => rescued += 1,
            false => lost += 1,
        }
        let next: Vec<State> = then.iter().map(|state| changed(state.clone(), 3, 6)).collect();
        let epoch = group.save(&next).unwrap();
        for (rank, state) in (0..).zip(&next) {
            let found = job(&pool, "job").image_of_rank(Select::Epoch(epoch), rank).unwrap();
            assert!(restored(&found.unwrap().0) == *state, "{what}: rank {rank} of the next");
        }
        number += 1;
    }
    assert!(rescued > 0 && lost > 0, "{rescued} rescued, {lost} lost");
}

#[test]
fn ranks_may_become_more_or_fewer() {
    let pool = memory_pool();
    let mut all = BTreeMap::new();
    for (seed, ranks) in [(1, 1), (2, 4), (3, 2), (4, 1), (5, 3)] {
        let mut group = Group::new(&pool, "job", ranks);
        let now = states(ranks, seed);
        all.insert(group.save(&now).unwrap(), now.clone());
        let now: Vec<State> = now.iter().map(|s| changed(s.clone(), 1, seed)).collect();
        all.insert(group.save(&now).unwrap(), now.clone());
        check(&pool, "job", &all, "in between");
        gc(&pool);
        check(&pool, "job", &all, "after a gc");
        group.close();
    }
    let dropped: Vec<Epoch> = all.keys().copied().take(3).collect();
    prune(&pool, "job", &dropped);
    dropped.iter().for_each(|epoch| drop(all.remove(epoch)));
    (0..3).for_each(|_| drop(gc(&pool)));
    check(&pool, "job", &all, "at the end");
}

#[test]
fn images_that_do_not_go_together_are_refused() {
    let pool = memory_pool();
    let mut group = Group::new(&pool, "job", 2);
    let (epoch, made) = group.make(&states(2, 1)).unwrap();
    let images: Vec<RankImage> = made.iter().map(|m| m.stored.image().clone()).collect();
    let draft = CheckpointHeader { epoch, ..CheckpointHeader::default() };
    let refuse = |group: &mut Group, images: &[RankImage]| -> Error {
        group.committer.commit(&pool, &draft, images).unwrap_err()
    };
    for wrong in [&[][..], &images[1..], &[images[0].clone(), images[0].clone()]] {
        let error = refuse(&mut group, wrong);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.message().contains("one for each rank from 0 on"), "{error}");
    }
    assert_eq!(job(&pool, "job").epochs().unwrap().len(), 0);
    group.commit(epoch, made).unwrap();
    assert_eq!(job(&pool, "job").epochs().unwrap().len(), 1);
}

/// Returns the reads of packs, and of records, that opening one rank of the newest checkpoint
/// takes.
fn reads(ranks: Rank, rank: Rank) -> (u64, u64) {
    let world = World::new();
    let mut group = Group::new(&world.pool(), "job", ranks);
    let mut now = states(ranks, 1);
    for step in 0..3 {
        group.save(&now).unwrap();
        for state in &mut now {
            *state = changed(state.clone(), step, 9);
        }
    }
    let steps = Steps::default();
    let counted: Arc<Mutex<(u64, u64)>> = Arc::default();
    let seen = counted.clone();
    steps.hook(move |_, what| match what {
        "read shard" => seen.lock().unwrap().0 += 1,
        "read record" => seen.lock().unwrap().1 += 1,
        _ => {}
    });
    let pool = world.stepped(&steps);
    let found = job(&pool, "job").image_of_rank(Select::Newest, rank).unwrap();
    assert_eq!(found.unwrap().0.regions().len(), 3);
    let (packs, records) = *counted.lock().unwrap();
    (packs, records)
}

#[test]
fn opening_one_rank_of_many_reads_its_own_index_only() {
    let (alone, records) = reads(1, 0);
    for (ranks, rank) in [(2, 1), (1024, 0), (1024, 517), (1024, 1023)] {
        let (packs, its_records) = reads(ranks, rank);
        // Its image stands in a page of the table, and not in the record.
        assert_eq!((packs, its_records), (alone + 1, records), "rank {rank} of {ranks}");
    }
}

#[test]
fn a_checkpoint_has_ten_thousand_ranks() {
    const RANKS: Rank = 10_000;
    let pool = pool_of(Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()));
    let mut group = Group::new(&pool, "job", RANKS);
    let state = |rank: Rank, step: u64| {
        let own = noise(u64::from(rank) * 3 + step, PAGE_BYTES);
        State::from([("own".to_owned(), own), ("step".to_owned(), step.to_le_bytes().to_vec())])
    };
    for step in 0..2 {
        let states: Vec<State> = (0..RANKS).map(|rank| state(rank, step)).collect();
        assert_eq!(group.save(&states).unwrap(), step + 1);
    }
    let infos = job(&pool, "job").epochs().unwrap();
    for info in &infos {
        assert_eq!(
            (info.manifest.world_size, info.manifest.regions()),
            (RANKS, 2 * u64::from(RANKS))
        );
        assert!(info.record_bytes < 32 << 10, "a record of {} bytes", info.record_bytes);
    }
    let look = |epoch: Epoch, rank: Rank| {
        let found = job(&pool, "job").image_of_rank(Select::Epoch(epoch), rank).unwrap();
        assert!(restored(&found.unwrap().0) == state(rank, epoch - 1), "rank {rank}");
    };
    for rank in [0, 1, 4711, RANKS - 1] {
        look(1, rank);
        look(2, rank);
    }
    let before = pool.packs().unwrap().len();
    assert!(before >= 2 * RANKS as usize);
    prune(&pool, "job", &[1]);
    group.close();
    (0..2).for_each(|_| drop(gc(&pool)));
    let after = pool.packs().unwrap().len();
    assert!(after < 1000, "{before} packs became {after}");
    assert_eq!(job(&pool, "job").epochs().unwrap().len(), 1);
    for rank in [0, 1, 4711, RANKS - 1] {
        look(2, rank);
    }
}
