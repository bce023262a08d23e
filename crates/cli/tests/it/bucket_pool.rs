//! Operations of a pool's operator with a bucket: moves of the log, losses of a fast tier in
//! memory, trims. They run on real S3 servers.

use crate::common;
use crate::place;

use common::{Run, files};
use place::{ACCESS, Fixture, Running, Server, text};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;

/// Moves the log of the pool `pool`.
fn move_log(fixture: &Fixture, places: &[&str]) -> Run {
    let logs = places.iter().flat_map(|to| ["--log", *to]);
    fixture.run(&["pool", "move-log", "pool"].into_iter().chain(logs).collect::<Vec<_>>())
}

fn moved(fixture: &Fixture, places: &[&str]) {
    let run = move_log(fixture, places);
    assert_eq!(run.code, 0, "{places:?}: {run:?}");
}

fn put(fixture: &Fixture, pool: &str, epoch: u64) -> Run {
    let put = fixture.put(pool, "job", epoch);
    assert_eq!(put.code, 0, "{epoch}: {put:?}");
    put
}

/// Counts the records of a log in the bucket, in all its configurations.
fn records(fixture: &Fixture, prefix: &str) -> usize {
    let log = fixture.server.bucket_dir().join(prefix);
    let found = if log.exists() { files(&log) } else { Vec::new() };
    found
        .iter()
        .filter(|(path, _)| !text(path).contains("%00moved") && !path.ends_with(".pool.toml"))
        .count()
}

#[test]
fn a_log_is_moved_into_a_bucket_and_out_of_it() {
    let Some(server) = Server::versitygw() else { return };
    let mut fixture = Fixture::new(server);
    fixture.init("pool", &[]);
    put(&fixture, "pool", 1);
    let old = fs::read_to_string(fixture.path("pool/pool.toml")).unwrap();
    moved(&fixture, &["s3://ckpt/log"]);
    assert_eq!(put(&fixture, "pool", 2).err, "");
    // An old copy of the descriptor follows the log.
    fs::write(fixture.path("pool/pool.toml"), &old).unwrap();
    assert!(put(&fixture, "pool", 3).err.contains("the log was moved to s3://ckpt/log"));
    moved(&fixture, &["s3://ckpt/log"]);
    assert_eq!(put(&fixture, "pool", 4).err, "");

    // Two replicas in buckets and one on a disk: the disk alone is no majority.
    moved(&fixture, &["s3://ckpt/log", "../disk", "s3://ckpt/other"]);
    put(&fixture, "pool", 5);
    fixture.server.stop();
    let refused = fixture.put("pool", "job", 6);
    assert!(refused.code == 6 && refused.err.contains("fewer than a majority"), "{refused:?}");
    let refused = move_log(&fixture, &["../safe"]);
    assert!(refused.code == 6 && !fixture.path("safe").exists(), "{refused:?}");
    fixture.server.start();
    fs::rename(fixture.path("disk"), fixture.path("gone")).unwrap();
    put(&fixture, "pool", 6);

    // The log moves out of the buckets, with one replica lost; then it needs nothing in them.
    moved(&fixture, &["../safe"]);
    fixture.server.stop();
    put(&fixture, "pool", 7);
    (1..=7).for_each(|epoch| fixture.check("pool", "job", epoch));
    fixture.server.start();
    assert_eq!(records(&fixture, "log"), 0, "the old replicas are emptied");
    // The log returns to an earlier location, and the descriptor is the first one.
    moved(&fixture, &["s3://ckpt/log"]);
    fs::write(fixture.path("pool/pool.toml"), &old).unwrap();
    put(&fixture, "pool", 8);
    (1..=8).for_each(|epoch| fixture.check("pool", "job", epoch));
    fixture.done(&["prune", "pool", "job", "--keep-last", "2"]);
    fixture.done(&["gc", "pool"]);
    fixture.done(&["verify", "pool"]);
}

/// Log and packs are below other prefixes. If its `pool.toml` is lost, the markers must still name
/// the pool, or `pool init` would create another one.
#[test]
fn a_pool_in_a_bucket_is_not_forgotten_with_its_descriptor() {
    let Some(server) = Server::versitygw() else { return };
    let fixture = Fixture::new(server);
    let more = ["--log", "s3://ckpt/log", "--target", "s3://ckpt/packs"];
    fixture.init("s3://ckpt/p", &more);
    put(&fixture, "s3://ckpt/p", 1);
    let there = fixture.server.bucket_dir().join("p");
    fs::remove_file(there.join("pool.toml")).unwrap();
    let again = fixture.run(&["pool", "init", "s3://ckpt/p"]);
    for refused in [again, fixture.put("s3://ckpt/p", "job", 2)] {
        assert!(refused.code == 2, "{refused:?}");
        assert!(
            refused.err.contains("put it back (a copy is in s3://ckpt/p/.pool.toml)"),
            "{refused:?}"
        );
    }
    assert!(!there.join("pool.toml").exists() && !there.join("log").exists());
    fs::copy(there.join(".pool.toml"), there.join("pool.toml")).unwrap();
    put(&fixture, "s3://ckpt/p", 2);
    (1..=2).for_each(|epoch| fixture.check("s3://ckpt/p", "job", epoch));
}

#[test]
fn a_move_to_buckets_that_cannot_take_a_log_changes_nothing() {
    let Some(server) = Server::versitygw() else { return };
    let fixture = Fixture::new(server);
    fixture.init("pool", &["--target", "s3://ckpt/packs"]);
    fixture.init("s3://ckpt/another", &[]);
    put(&fixture, "pool", 1);
    let before = fs::read_to_string(fixture.path("pool/pool.toml")).unwrap();
    for (to, told) in [
        ("s3://nowhere/log", "nowhere"),
        ("s3://ckpt/packs/packs", "belongs to a pool"),
        ("s3://ckpt/packs/packs/x", "belongs to a pool"),
        ("s3://ckpt/another", "another pool"),
        ("s3://ckpt/another/log/x", "belongs to a pool"),
        ("s3://", "names no bucket"),
    ] {
        let refused = move_log(&fixture, &[to]);
        assert!(refused.code == 2 && refused.err.contains(told), "{to}: {refused:?}");
        assert_eq!(fs::read_to_string(fixture.path("pool/pool.toml")).unwrap(), before, "{to}");
        assert_eq!(put(&fixture, "pool", 1).err, "", "{to}");
    }
    let strange = ["pool", "move-log", "pool", "--log", "s3://ckpt/log"];
    let refused = fixture.run_with(&strange, "stranger");
    assert!(refused.code == 2 && refused.err.contains("AWS_ACCESS_KEY_ID"), "{refused:?}");
    assert_eq!(put(&fixture, "pool", 1).err, "");
    // A server that lets two concurrent appends win cannot keep a log.
    let Some(server) = Server::s3s_fs() else { return };
    let broken = Fixture::new(server);
    broken.init("pool", &["--target", "s3://ckpt/packs"]);
    put(&broken, "pool", 1);
    let refused = move_log(&broken, &["s3://ckpt/log"]);
    assert!(refused.code == 2 && refused.err.contains("only its packs"), "{refused:?}");
    put(&broken, "pool", 2);
}

/// Concurrent movers to different replicas, one of them on a disk, with savers and collectors.
#[test]
fn movers_and_savers_meet_in_a_bucket() {
    const PUTS: u64 = 5;
    let Some(server) = Server::versitygw() else { return };
    let fixture = Fixture::new(server);
    fixture.init("pool", &["--target", "s3://ckpt/packs"]);
    put(&fixture, "pool", 1);
    let sets: [&[&str]; 3] =
        [&["s3://ckpt/a"], &["s3://ckpt/a", "../disk", "s3://ckpt/b"], &["../safe"]];
    thread::scope(|scope| {
        let fixture = &fixture;
        for job in ["x", "y"] {
            scope.spawn(move || {
                for epoch in 1..=PUTS {
                    let mut done = fixture.put("pool", job, epoch);
                    while done.code == 6 {
                        done = fixture.put("pool", job, epoch);
                    }
                    assert_eq!(done.code, 0, "{done:?}");
                }
            });
        }
        for set in sets {
            scope.spawn(move || {
                for _ in 0..2 {
                    let run = move_log(fixture, set);
                    assert!(matches!(run.code, 0 | 6), "{set:?}: {run:?}");
                }
            });
        }
        scope.spawn(move || {
            for _ in 0..2 {
                let run = fixture.run(&["gc", "pool"]);
                assert!(matches!(run.code, 0 | 5 | 6), "{run:?}");
            }
        });
    });
    moved(&fixture, &["s3://ckpt/end"]);
    for job in ["x", "y"] {
        (1..=PUTS).for_each(|epoch| fixture.check("pool", job, epoch));
    }
    fixture.done(&["verify", "pool"]);
}

/// The mover is killed after its first writes to the bucket. The next program that saves completes
/// the move, or a second run of the command does.
#[test]
fn a_mover_into_a_bucket_is_killed() {
    let Some(server) = Server::versitygw() else { return };
    let fixture = Fixture::new(server);
    for (number, until) in ["log/.pool.toml", "log/job", "log/job"].into_iter().enumerate() {
        let pool = format!("pool {number}");
        fixture.init(&pool, &[]);
        (1..=3).for_each(|epoch| drop(put(&fixture, &pool, epoch)));
        let to = format!("s3://ckpt/log-of-{number}");
        let words = ["pool", "move-log", &pool, "--log", &to];
        let mut mover = fixture.command(&words, ACCESS);
        let mover = mover.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut mover = Running(mover);
        let seen = fixture.server.bucket_dir().join(format!("log-of-{number}/log-2")).join(until);
        while !seen.exists() && mover.0.try_wait().unwrap().is_none() {
            thread::yield_now();
        }
        mover.kill();
        if number == 1 {
            fixture.done(&words);
        }
        put(&fixture, &pool, 4);
        fixture.done(&words);
        assert_eq!(put(&fixture, &pool, 5).err, "");
        (1..=5).for_each(|epoch| fixture.check(&pool, "job", epoch));
    }
}

/// A pool over a bucket with a fast tier in memory.
struct Volatile {
    fixture: Fixture,
    memory: tempfile::TempDir,
    pool: &'static str,
    descriptor: PathBuf,
}

impl Volatile {
    /// `pool` is a directory or a bucket, and has the log.
    fn new(server: Server, pool: &'static str) -> Volatile {
        let fixture = Fixture::new(server);
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let fast = memory.path().join("fast");
        fixture.init(pool, &["--volatile", text(&fast), "--slow", "s3://ckpt/slow"]);
        let descriptor = match pool.strip_prefix("s3://ckpt/") {
            Some(prefix) => fixture.server.bucket_dir().join(prefix),
            None => fixture.path(pool),
        };
        Volatile { fixture, memory, pool, descriptor: descriptor.join("pool.toml") }
    }

    fn restart(&self) {
        fs::remove_dir_all(self.memory.path().join("fast")).unwrap();
    }

    /// Returns the tiers of each checkpoint, from the first on.
    fn tiers(&self) -> Vec<Value> {
        let listed = self.fixture.json(&["--json", "ls", self.pool, "job"]);
        let listed = listed["checkpoints"].as_array().unwrap().iter();
        listed.map(|one| one["tiers"].clone()).collect()
    }

    fn get_latest(&self) -> (Run, Vec<u8>) {
        let to = tempfile::tempdir().unwrap();
        let into = to.path().join("x");
        let got = self.fixture.run(&["get", self.pool, "job", "--to", text(&into)]);
        let data = fs::read(into.join("data")).unwrap_or_default();
        (got, data)
    }

    fn shards(&self, at: &Path) -> Vec<PathBuf> {
        let found = if at.exists() { files(at) } else { Vec::new() };
        let is_shard = |path: &PathBuf| path.extension().is_some_and(|end| end == "shard");
        found.into_iter().map(|(path, _)| path).filter(is_shard).collect()
    }

    fn fast(&self) -> Vec<PathBuf> {
        self.shards(self.memory.path())
    }

    fn slow(&self) -> Vec<PathBuf> {
        self.shards(&self.fixture.server.bucket_dir().join("slow"))
    }
}

#[test]
fn lost_memory_is_made_anew_from_a_bucket() {
    for pool in ["pool", "s3://ckpt/whole"] {
        let Some(server) = Server::versitygw() else { return };
        let mut it = Volatile::new(server, pool);
        put(&it.fixture, pool, 1);
        put(&it.fixture, pool, 2);
        assert_eq!(it.tiers(), vec![json!(["fast", "slow"]); 2]);
        edit(&it.descriptor, |text| format!("{text}\n[tiers]\nfill = false\n"));
        // The bucket has nothing of this checkpoint.
        put(&it.fixture, pool, 3);
        assert_eq!(it.tiers()[2], json!(["fast"]));
        it.restart();

        // Without the bucket, no program knows the losses: all must wait.
        it.fixture.server.stop();
        let waits = it.fixture.put(pool, "job", 4);
        assert_eq!(waits.code, 6, "{waits:?}");
        // A log in a directory is available, so the target can be recreated.
        assert_eq!(waits.err.contains("recreated as target 3"), pool == "pool", "{waits:?}");
        let (waits, _) = it.get_latest();
        assert_eq!(waits.code, 6, "{waits:?}");
        assert!(it.fast().is_empty());
        it.fixture.server.start();

        let (got, data) = it.get_latest();
        assert_eq!(got.code, 0, "{got:?}");
        it.fixture.state("job", 2);
        assert!(
            data == fs::read(it.fixture.path("job/data")).unwrap(),
            "epoch 2 is the newest there"
        );
        // The same state again: lost data must not count as stored.
        let anew = put(&it.fixture, pool, 3);
        assert_eq!(anew.err.contains("recreated as target 3"), pool != "pool", "{anew:?}");
        assert!(anew.err.contains("checkpoints 3"), "{anew:?}");
        for (epoch, state) in [(1, 1), (2, 2), (4, 3)] {
            let to = tempfile::tempdir_in(it.fixture.dir.path()).unwrap();
            let out = to.path().join("x");
            it.fixture.done(&[
                "get",
                pool,
                "job",
                "--epoch",
                &epoch.to_string(),
                "--to",
                text(&out),
            ]);
            it.fixture.state("job", state);
            let wanted = fs::read(it.fixture.path("job/data")).unwrap();
            assert!(fs::read(out.join("data")).unwrap() == wanted, "epoch {epoch}");
        }
        // No tier has the lost checkpoint, and the bucket has a part of the later one.
        assert_eq!(it.tiers(), [json!(["slow"]), json!(["slow"]), json!([]), json!([])]);
        let status = it.fixture.done(&["pool", "status", pool]);
        assert!(status.out.contains("slow tier: it has 2 of 4 checkpoints"), "{status:?}");
        assert!(status.out.contains("checkpoint 3 of job: is incomplete"), "{status:?}");
        assert!(status.out.contains("checkpoint 4 of job: each tier has a part"), "{status:?}");
        let lost = it.fixture.run(&["get", pool, "job", "--epoch", "3", "--to", "nothing"]);
        assert_eq!(lost.code, 3, "{lost:?}");

        // The next time the bucket has all data.
        it.fixture.done(&["pool", "fill", pool]);
        it.restart();
        let anew = put(&it.fixture, pool, 5);
        assert!(anew.err.contains("recreated as target 4"), "{anew:?}");
        assert!(!anew.err.contains("lost with their targets"), "{anew:?}");
        it.fixture.done(&["prune", pool, "job", "--keep-last", "2"]);
        it.fixture.done(&["gc", pool]);
        it.fixture.done(&["scrub", pool]);
        it.fixture.done(&["pool", "repair", pool]);
        it.fixture.done(&["verify", pool]);
    }
}

fn edit(path: &Path, change: impl FnOnce(String) -> String) {
    let before = fs::read_to_string(path).unwrap();
    fs::write(path, change(before)).unwrap();
}

#[test]
fn the_fast_tier_is_trimmed_of_packs_that_a_bucket_has() {
    for pool in ["pool", "s3://ckpt/whole"] {
        let Some(server) = Server::versitygw() else { return };
        let mut it = Volatile::new(server, pool);
        edit(&it.descriptor, |text| format!("{text}\n[tiers]\nfill = false\nkeep_fast = 1\n"));
        (1..=4).for_each(|epoch| drop(put(&it.fixture, pool, epoch)));
        let all = it.fast().len();
        let trimmed = it.fixture.done(&["pool", "trim", pool]);
        assert!(trimmed.out.contains("the slow tier lacks them"), "{trimmed:?}");
        it.fixture.done(&["pool", "fill", pool]);
        assert_eq!(it.slow().len(), all);

        // Without the bucket, nothing is deleted.
        it.fixture.server.stop();
        let away = it.fixture.run(&["pool", "trim", pool]);
        assert_eq!(away.code, 6, "{away:?}");
        it.fixture.server.start();
        // Copies in the bucket are damaged: their originals stay.
        for copy in it.slow() {
            let mut bytes = fs::read(&copy).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(&copy, bytes).unwrap();
        }
        let damaged = it.fixture.run(&["pool", "trim", pool]);
        assert!(damaged.code == 3 && damaged.out.contains("KEPT pack"), "{damaged:?}");
        assert_eq!(it.fast().len(), all);
        it.fixture.run(&["scrub", pool]);
        it.fixture.done(&["pool", "fill", pool]);

        let dry = it.fixture.done(&["pool", "trim", pool, "--dry-run"]);
        assert!(dry.out.contains("would be deleted"), "{dry:?}");
        assert_eq!(it.fast().len(), all);
        it.fixture.done(&["pool", "trim", pool]);
        let left = it.fast().len();
        assert!(left > 0 && left < all, "{left} of {all}");
        (1..=4).for_each(|epoch| it.fixture.check(pool, "job", epoch));
        let repaired = it.fixture.done(&["pool", "repair", pool]);
        assert!(repaired.out.contains("trimmed"), "{repaired:?}");
        it.fixture.done(&["scrub", pool]);
        assert_eq!(it.fast().len(), left);

        // Data that only the bucket has survives the loss of the memory.
        it.restart();
        put(&it.fixture, pool, 5);
        (1..=5).for_each(|epoch| it.fixture.check(pool, "job", epoch));
        it.fixture.done(&["pool", "repair", pool]);
        it.fixture.done(&["verify", pool]);
    }
}
