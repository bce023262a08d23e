//! Programs as front doors write them: they save, end, restore into other memory, and go on.
#![allow(unsafe_code)] // the tests hand over their own memory

use crate::heat;

use outlive_capture::{Region, fill::MutRegion};
use outlive_client::{Client, Destination, End, Lazily, NamedMemory, WritePermit};
use outlive_pool::{Environment, FormatConfig, Pool, PoolConfig, Tuning, create, open};
use outlive_store::gc::{GcOptions, collect};
use outlive_store::retention::Rules;
use outlive_store::{JobOptions, Restored, SaveNotes, SaveStats, Select};
use outlive_types::{Distribution, ErrorKind, Result, Rng, SeededRng};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Memory of a program: a large array, and two small ones that are packed together.
#[derive(Clone, PartialEq)]
struct Memory {
    grid: Vec<u8>,
    small: Vec<u8>,
    step: [u8; 8],
}

const GRID_BYTES: usize = 1_000_000;

fn memory(seed: u64) -> Memory {
    let rng = SeededRng::new(seed);
    let mut memory =
        Memory { grid: vec![0; GRID_BYTES], small: vec![0; 3000], step: seed.to_le_bytes() };
    rng.fill(&mut memory.grid);
    rng.fill(&mut memory.small);
    memory
}

fn empty() -> Memory {
    Memory { grid: vec![0xA5; GRID_BYTES], small: vec![0xA5; 3000], step: [0xA5; 8] }
}

impl Memory {
    fn regions(&self) -> Vec<Region> {
        let parts: [(&str, &[u8]); 3] =
            [("grid", &self.grid), ("small", &self.small), ("step", &self.step)];
        let region = |(name, bytes): (&str, &[u8])| {
            let (start, length) = (bytes.as_ptr(), bytes.len());
            // SAFETY: every test waits for `save`, and only then writes its memory.
            unsafe { Region::from_raw(name, "|u1", vec![length as u64], start, length) }
        };
        parts.into_iter().map(region).collect()
    }

    fn targets(&mut self) -> Vec<NamedMemory> {
        let parts: [(&str, &mut [u8]); 3] =
            [("grid", &mut self.grid), ("small", &mut self.small), ("step", &mut self.step)];
        let target = |(name, bytes): (&str, &mut [u8])| NamedMemory {
            name: name.to_owned(),
            dtype: "|u1".to_owned(),
            shape: vec![bytes.len() as u64],
            memory: region_of(bytes),
            distribution: Distribution::Local,
        };
        parts.into_iter().map(target).collect()
    }
}

fn region_of(bytes: &mut [u8]) -> MutRegion {
    // SAFETY: every test keeps its memory, and does not look at it, until the restore is over.
    unsafe { MutRegion::from_raw(bytes.as_mut_ptr(), bytes.len()) }
}

fn pool(dir: &Path) -> Pool {
    let path = dir.join("pool");
    if path.exists() {
        return open(&path, Environment::system()).unwrap();
    }
    let format = FormatConfig {
        container_bytes: 256 << 10,
        pack_bytes: 1 << 20,
        ..FormatConfig::new([3; 16])
    };
    let config = PoolConfig::new(format, Tuning { staging_bytes: 4 << 20, ..Tuning::default() });
    create(&path, config, Environment::system()).unwrap()
}

fn client(dir: &Path) -> Client {
    Client::open(&pool(dir), "job", JobOptions::default()).unwrap()
}

fn save(client: &Client, memory: &Memory) -> SaveStats {
    let handle = client.save(memory.regions(), b"{}".to_vec(), SaveNotes::default()).unwrap();
    handle.wait(None).unwrap().unwrap()
}

fn restore(client: &Client, into: &mut Memory) -> Result<Option<Restored>> {
    let permit = Arc::new(WritePermit::default());
    let restored = client.restore_named(Select::Newest, &permit, &mut || into.targets());
    permit.withdraw();
    restored
}

#[test]
fn the_example_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let whole = heat::run(&dir.path().join("whole"), 40).unwrap();
    assert_eq!(whole.0, 0);
    let parts = dir.path().join("parts");
    // The second run computes again what the first one did not save.
    assert_eq!(heat::run(&parts, 25).unwrap().0, 0);
    let (begun, cells) = heat::run(&parts, 40).unwrap();
    assert_eq!(begun, 20);
    assert!(cells == whole.1, "bit for bit");
}

/// Closed jobs keep no file descriptors, however many jobs were open; an open job keeps its own.
#[test]
fn closed_jobs_keep_no_descriptors() {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let pool = pool(dir.path());
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let open = |name: &str| Client::open(&pool, name, JobOptions::default()).unwrap();
    let other = open("other");
    let mut memory = memory(1);
    save(&other, &memory);
    let before = descriptors();
    let mut closed = Vec::new();
    for number in 0..200 {
        let client = open(&format!("job {number}"));
        let mine = Memory { grid: memory.grid.clone(), small: vec![1], step: [0; 8] };
        save(&client, &mine);
        client.close(End::Together).unwrap();
        closed.push(client);
    }
    assert!(descriptors() <= before, "{} descriptors after {before}", descriptors());
    // The other job has missed no change.
    memory.grid[5000] ^= 1;
    let stats = save(&other, &memory);
    assert!(stats.changed_bytes <= 4 * 4096, "{stats:?}");
    // A closed job goes on, and its data comes back.
    let mut again = closed.swap_remove(7);
    save(&again, &memory);
    memory.grid[9000] ^= 1;
    let stats = save(&again, &memory);
    assert!(stats.changed_bytes <= 4 * 4096, "{stats:?}");
    again.close(End::Together).unwrap();
    again = open("job 7");
    let mut found = empty();
    assert_eq!(restore(&again, &mut found).unwrap().unwrap().epoch, 3);
    assert!(found == memory, "bit for bit");
}

#[test]
fn the_first_save_after_a_restore_writes_only_changes() {
    let dir = tempfile::tempdir().unwrap();
    let mut saved = memory(1);
    save(&client(dir.path()), &saved);
    let client = client(dir.path());
    let mut found = empty();
    assert_eq!(restore(&client, &mut found).unwrap().unwrap().epoch, 1);
    assert!(found == saved);
    found.grid[70_000] ^= 1;
    saved.grid[70_000] ^= 1;
    let stats = save(&client, &found);
    assert_eq!(stats.changed_bytes, 4096, "{stats:?}");
    let mut again = empty();
    restore(&client, &mut again).unwrap();
    assert!(again == saved);
}

#[test]
fn a_lazy_restore_fills_while_the_program_runs_and_primes_the_next_save() {
    let dir = tempfile::tempdir().unwrap();
    let mut saved = memory(2);
    save(&client(dir.path()), &saved);
    let client = client(dir.path());
    let mut found = empty();
    let (permit, lazily) = (Arc::new(WritePermit::default()), Lazily::default());
    let begun = client.restore_lazily(Select::Newest, &permit, &lazily, &mut |offer| {
        let destination = |target: NamedMemory| Destination::Into(target.memory);
        assert_eq!(offer.regions.len(), 3);
        Ok(found.targets().into_iter().map(destination).collect())
    });
    permit.withdraw();
    let begun = begun.unwrap().unwrap();
    assert_eq!(begun.filled.restored.epoch, 1);
    // Regions that are packed together are there at once.
    assert!(found.small == saved.small && found.step == saved.step);
    let whole = begun.rest.wait(None, Duration::MAX);
    whole.unwrap().unwrap();
    assert!(begun.rest.done() && lazily.over.load(Ordering::Acquire));
    assert!(found == saved);
    assert!(client.job().filling().is_none());
    found.grid[5] ^= 1;
    saved.grid[5] ^= 1;
    assert_eq!(save(&client, &found).changed_bytes, 4096);
}

#[test]
fn regions_that_do_not_fit_are_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let client = client(dir.path());
    let mut memory_of = empty();
    assert_eq!(restore(&client, &mut memory_of).unwrap(), None);
    save(&client, &memory(3));
    let refused = |change: &dyn Fn(&mut Vec<NamedMemory>)| {
        let mut found = empty();
        let permit = Arc::new(WritePermit::default());
        let error = client.restore_named(Select::Newest, &permit, &mut || {
            let mut targets = found.targets();
            change(&mut targets);
            targets
        });
        permit.withdraw();
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(found == empty(), "nothing was written");
        error.message().to_owned()
    };
    let message = refused(&|targets| targets[0].shape = vec![10, 100_000]);
    assert!(message.contains("the program has \"|u1\", [10, 100000]"), "{message}");
    let message = refused(&|targets| targets[1].dtype = "<f4".to_owned());
    assert!(message.contains("region \"small\" of checkpoint 1 has dtype \"|u1\""), "{message}");
    let message = refused(&|targets| drop(targets.pop()));
    assert!(message.contains("has a region \"step\", for which the program names no"), "{message}");
    let message = refused(&|targets| targets[2].name = "grid".to_owned());
    assert!(message.contains("names the region \"grid\" twice"), "{message}");
    let mut other = vec![0; 10];
    let other_at = std::cell::Cell::new(Some(region_of(&mut other)));
    let message = refused(&|targets| {
        let memory = other_at.take().expect("asked once");
        let (name, dtype) = ("other".to_owned(), "|u1".to_owned());
        let distribution = Distribution::Local;
        targets.push(NamedMemory { name, dtype, shape: vec![10], memory, distribution });
    });
    assert!(message.contains("a region that checkpoint 1 does not have, \"other\""), "{message}");
}

#[test]
fn parts_copies_and_memory_that_overlaps() {
    let dir = tempfile::tempdir().unwrap();
    let saved = memory(4);
    save(&client(dir.path()), &saved);
    let client = client(dir.path());
    let permit = Arc::new(WritePermit::default());
    // Two regions go into overlapping memory, one into a copy.
    let mut shared = vec![0; GRID_BYTES];
    let mut regions = Vec::new();
    let filled = client.restore(Select::Newest, &permit, &mut |offer| {
        regions = offer.regions;
        let first = region_of(&mut shared);
        let overlapping = region_of(&mut shared[..3000]);
        Ok(vec![Destination::Into(first), Destination::Into(overlapping), Destination::Copy])
    });
    permit.withdraw();
    let filled = filled.unwrap().unwrap();
    assert_eq!(filled.bytes(&regions[2]), Some(&saved.step[..]));
    assert!(shared[..3000] == saved.small && shared[3000..] == saved.grid[3000..]);
    // A restore of a part changes nothing in what is known about the program's memory.
    let permit = Arc::new(WritePermit::default());
    let part = &mut |_| Ok(vec![Destination::Nothing, Destination::Copy, Destination::Nothing]);
    let filled = client.restore(Select::Newest, &permit, part).unwrap().unwrap();
    assert!(filled.bytes(&regions[0]).is_none() && filled.bytes(&regions[1]).is_some());
    assert_eq!(save(&client, &saved).changed_bytes, 0);
}

#[test]
fn a_program_that_withdraws_its_permit_keeps_its_memory() {
    let dir = tempfile::tempdir().unwrap();
    let client = client(dir.path());
    save(&client, &memory(5));
    let mut found = empty();
    let permit = Arc::new(WritePermit::default());
    let error = client.restore_named(Select::Newest, &permit, &mut || {
        permit.withdraw();
        found.targets()
    });
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Retry);
    assert!(found == empty(), "nothing was written");
}

#[test]
fn failures_are_told_once_and_a_fenced_program_stays_fenced() {
    let dir = tempfile::tempdir().unwrap();
    let first = client(dir.path());
    save(&first, &memory(6));
    // A gc with a fence stands for another program that takes over the job.
    let options = GcOptions { fence: vec![first.job().name().clone()], ..GcOptions::default() };
    collect(first.job().pool(), &options).unwrap();
    // The test drops the handle: `due` reports the save's failure, once.
    let saved = first.save(memory(8).regions(), Vec::new(), SaveNotes::default());
    let error = match saved {
        Err(error) => error,
        Ok(handle) => {
            handle.wait_done(None);
            drop(handle);
            assert!(first.job().has_unheard());
            first.due().unwrap_err()
        }
    };
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert!(first.due().unwrap() && !first.job().has_unheard());
    // The old client stays fenced. A new one opens a new session.
    let second = client(dir.path());
    let mut found = empty();
    restore(&second, &mut found).unwrap();
    assert!(found == memory(6));
    save(&second, &memory(7));
    first.save(memory(8).regions(), Vec::new(), SaveNotes::default()).unwrap_err();
    restore(&second, &mut found).unwrap();
    assert!(found == memory(7));
    second.close(End::Together).unwrap();
    second.close(End::Exit).unwrap();
    // A closed client is refused once another program has saved, and a new client is not.
    collect(second.job().pool(), &options).unwrap();
    let refused = second.save(memory(8).regions(), Vec::new(), SaveNotes::default());
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Fenced);
    let third = client(dir.path());
    restore(&third, &mut found).unwrap();
    save(&third, &memory(8));
}

/// A notebook cell runs again while its last save is in progress.
#[test]
fn a_job_that_is_opened_again_joins_the_one_that_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = None;
    for step in 1..=6 {
        let again = client(dir.path());
        let mut found = empty();
        let restored = restore(&again, &mut found).unwrap();
        assert_eq!(restored.map_or(0, |restored| restored.epoch), step - 1);
        assert!(step == 1 || found == memory(step - 1));
        // The test drops the handle and the client without waiting.
        again.save(memory(step).regions(), b"{}".to_vec(), SaveNotes::default()).unwrap();
        // One that joins while the job is open continues its chain without a restore.
        last = (step == 6).then(|| client(dir.path()));
    }
    let last = last.unwrap();
    let kept = [client(dir.path()), client(dir.path())];
    save(&kept[0], &memory(7));
    save(&kept[1], &memory(8));
    let epochs = last.job().epochs().unwrap();
    let line: Vec<_> = epochs.iter().map(|info| (info.epoch, info.manifest.parent)).collect();
    assert_eq!(line, (1..=8).map(|epoch| (epoch, epoch - 1)).collect::<Vec<_>>());
    // Clients that are open together share a session.
    assert!(
        epochs[5..].windows(2).all(|pair| pair[0].manifest.session == pair[1].manifest.session)
    );
    // Another path to the same pool, and a copy of the pool, which has the same id.
    let (real, link) = (dir.path().join("pool"), dir.path().join("link"));
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let open_at = |path: &Path| {
        let pool = open(path, Environment::system()).unwrap();
        Client::open(&pool, "job", JobOptions::default()).unwrap()
    };
    let linked = open_at(&link);
    save(&linked, &memory(9));
    save(&kept[0], &memory(10));
    assert_eq!(linked.job().epochs().unwrap().len(), 10);
    let copy = dir.path().join("copy");
    let copied = std::process::Command::new("cp").arg("-r").args([&real, &copy]).status();
    assert!(copied.unwrap().success());
    save(&open_at(&copy), &memory(11));
    save(&kept[0], &memory(11));
    assert_eq!(linked.job().epochs().unwrap().len(), 11);
}

/// The session of a program that prunes holds nothing back, and the program goes on saving.
#[test]
fn a_program_that_prunes_lets_go() {
    let dir = tempfile::tempdir().unwrap();
    let client = client(dir.path());
    for step in 1..=12 {
        save(&client, &memory(step));
        if step % 4 == 0 {
            let mut options = GcOptions::default();
            let rules = Rules { last: Some(1), ..Rules::default() };
            let plan = client.job().retention(&rules).unwrap();
            options.drop.insert(client.job().name().clone(), plan.dropped());
            let dry = GcOptions { dry_run: true, ..options.clone() };
            let dry = client.collect(&dry).unwrap().plan;
            assert!(
                dry.held_by.is_empty() && dry.freed_now_bytes() > 2 * GRID_BYTES as u64,
                "{dry:?}"
            );
            let report = client.collect(&options).unwrap();
            assert_eq!((report.held, report.held_bytes), (0, 0), "{report:?}");
            assert!(report.freed_bytes() > 2 * GRID_BYTES as u64, "{report:?}");
        }
    }
    let mut found = empty();
    restore(&client, &mut found).unwrap();
    assert!(found == memory(12));
    assert!(client.job().pool().usage().unwrap().stored_bytes < 2 * GRID_BYTES as u64);
}

/// Retention bounds the space during the saves and at the end.
#[test]
fn a_job_with_rules_keeps_its_space() {
    let dir = tempfile::tempdir().unwrap();
    let client = client(dir.path());
    client.job().keep(Rules { last: Some(3), ..Rules::default() }).unwrap();
    for none in [Rules::default(), Rules { last: Some(0), ..Rules::default() }] {
        assert_eq!(client.job().keep(none).unwrap_err().kind(), ErrorKind::Invalid);
    }
    let stored = || client.job().pool().usage().unwrap().stored_bytes;
    let kept = 3 * GRID_BYTES as u64;
    for step in 1..=120 {
        save(&client, &memory(step));
        // A save waits once twice 16 MiB can be freed.
        assert!(stored() < kept + (40 << 20), "{} bytes after {step} saves", stored());
    }
    client.close(End::Together).unwrap();
    let epochs: Vec<_> = client.job().epochs().unwrap().iter().map(|info| info.epoch).collect();
    assert_eq!(epochs, [118, 119, 120]);
    assert!(stored() < kept + (1 << 20), "{} bytes at the end", stored());
    let mut found = empty();
    restore(&client, &mut found).unwrap();
    assert!(found == memory(120));
    // Another job of the pool has no rules.
    let other = Client::open(client.job().pool(), "other", JobOptions::default()).unwrap();
    (0..5).for_each(|seed| drop(save(&other, &memory(seed))));
    save(&client, &memory(121));
    client.close(End::Exit).unwrap();
    assert_eq!(other.job().epochs().unwrap().len(), 5);
}
