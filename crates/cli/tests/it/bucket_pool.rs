//! What an operator of a pool does with a bucket: moves the log there and away, lets a fast tier in memory go, trims
//! it. On real S3 servers.

use crate::common;
use crate::place;

use common::{Run, files};
use place::{ACCESS, Place, Running, Server, text};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;

/// Moves the log of the pool `pool`.
fn move_log(place: &Place, places: &[&str]) -> Run {
    let logs = places.iter().flat_map(|to| ["--log", *to]);
    place.run(&["pool", "move-log", "pool"].into_iter().chain(logs).collect::<Vec<_>>())
}

fn moved(place: &Place, places: &[&str]) {
    let run = move_log(place, places);
    assert_eq!(run.code, 0, "{places:?}: {run:?}");
}

fn put(place: &Place, pool: &str, epoch: u64) -> Run {
    let put = place.put(pool, "job", epoch);
    assert_eq!(put.code, 0, "{epoch}: {put:?}");
    put
}

/// How many records a log in the bucket has, whatever set of places it is of.
fn records(place: &Place, prefix: &str) -> usize {
    let log = place.server.bucket_dir().join(prefix);
    let found = if log.exists() { files(&log) } else { Vec::new() };
    found
        .iter()
        .filter(|(path, _)| !text(path).contains("%00moved") && !path.ends_with(".pool.toml"))
        .count()
}

#[test]
fn a_log_is_moved_into_a_bucket_and_out_of_it() {
    let Some(server) = Server::versitygw() else { return };
    let mut place = Place::new(server);
    place.init("pool", &[]);
    put(&place, "pool", 1);
    let old = fs::read_to_string(place.path("pool/pool.toml")).unwrap();
    moved(&place, &["s3://ckpt/log"]);
    assert_eq!(put(&place, "pool", 2).err, "");
    // An old copy of the descriptor follows.
    fs::write(place.path("pool/pool.toml"), &old).unwrap();
    assert!(put(&place, "pool", 3).err.contains("the log was moved to s3://ckpt/log"));
    moved(&place, &["s3://ckpt/log"]);
    assert_eq!(put(&place, "pool", 4).err, "");

    // Two places in buckets and one on a disk: the disk alone is no majority.
    moved(&place, &["s3://ckpt/log", "../disk", "s3://ckpt/other"]);
    put(&place, "pool", 5);
    place.server.stop();
    let refused = place.put("pool", "job", 6);
    assert!(refused.code == 6 && refused.err.contains("less than a majority"), "{refused:?}");
    let refused = move_log(&place, &["../safe"]);
    assert!(refused.code == 6 && !place.path("safe").exists(), "{refused:?}");
    place.server.start();
    fs::rename(place.path("disk"), place.path("gone")).unwrap();
    put(&place, "pool", 6);

    // Out of them, with one lost; then nothing of the bucket is needed.
    moved(&place, &["../safe"]);
    place.server.stop();
    put(&place, "pool", 7);
    (1..=7).for_each(|epoch| place.check("pool", "job", epoch));
    place.server.start();
    assert_eq!(records(&place, "log"), 0, "the old places are emptied");
    // Back to where it was once, and a descriptor from the very beginning.
    moved(&place, &["s3://ckpt/log"]);
    fs::write(place.path("pool/pool.toml"), &old).unwrap();
    put(&place, "pool", 8);
    (1..=8).for_each(|epoch| place.check("pool", "job", epoch));
    place.done(&["prune", "pool", "job", "--keep-last", "2"]);
    place.done(&["gc", "pool"]);
    place.done(&["verify", "pool"]);
}

/// Log and packs are below other prefixes. Once its `pool.toml` was lost, nothing there named the pool, and `pool init`
/// made another one.
#[test]
fn a_pool_in_a_bucket_is_not_forgotten_with_its_descriptor() {
    let Some(server) = Server::versitygw() else { return };
    let place = Place::new(server);
    let more = ["--log", "s3://ckpt/log", "--target", "s3://ckpt/packs"];
    place.init("s3://ckpt/p", &more);
    put(&place, "s3://ckpt/p", 1);
    let there = place.server.bucket_dir().join("p");
    fs::remove_file(there.join("pool.toml")).unwrap();
    let again = place.run(&["pool", "init", "s3://ckpt/p"]);
    for refused in [again, place.put("s3://ckpt/p", "job", 2)] {
        assert!(refused.code == 2, "{refused:?}");
        assert!(
            refused.err.contains("put it back (a copy is in s3://ckpt/p/.pool.toml)"),
            "{refused:?}"
        );
    }
    assert!(!there.join("pool.toml").exists() && !there.join("log").exists());
    fs::copy(there.join(".pool.toml"), there.join("pool.toml")).unwrap();
    put(&place, "s3://ckpt/p", 2);
    (1..=2).for_each(|epoch| place.check("s3://ckpt/p", "job", epoch));
}

#[test]
fn places_in_buckets_that_cannot_take_a_log_change_nothing() {
    let Some(server) = Server::versitygw() else { return };
    let place = Place::new(server);
    place.init("pool", &["--target", "s3://ckpt/packs"]);
    place.init("s3://ckpt/another", &[]);
    put(&place, "pool", 1);
    let before = fs::read_to_string(place.path("pool/pool.toml")).unwrap();
    for (to, told) in [
        ("s3://nowhere/log", "nowhere"),
        ("s3://ckpt/packs/packs", "belongs to a pool"),
        ("s3://ckpt/packs/packs/x", "belongs to a pool"),
        ("s3://ckpt/another", "another pool"),
        ("s3://ckpt/another/log/x", "belongs to a pool"),
        ("s3://", "names no bucket"),
    ] {
        let refused = move_log(&place, &[to]);
        assert!(refused.code == 2 && refused.err.contains(told), "{to}: {refused:?}");
        assert_eq!(fs::read_to_string(place.path("pool/pool.toml")).unwrap(), before, "{to}");
        assert_eq!(put(&place, "pool", 1).err, "", "{to}");
    }
    let strange = ["pool", "move-log", "pool", "--log", "s3://ckpt/log"];
    let refused = place.run_with(&strange, "somebody");
    assert!(refused.code == 2 && refused.err.contains("AWS_ACCESS_KEY_ID"), "{refused:?}");
    assert_eq!(put(&place, "pool", 1).err, "");
    // A server of which two win that append at once keeps no log.
    let Some(server) = Server::s3s_fs() else { return };
    let broken = Place::new(server);
    broken.init("pool", &["--target", "s3://ckpt/packs"]);
    put(&broken, "pool", 1);
    let refused = move_log(&broken, &["s3://ckpt/log"]);
    assert!(refused.code == 2 && refused.err.contains("only its packs"), "{refused:?}");
    put(&broken, "pool", 2);
}

/// Movers with other places each, one of them a disk, and whoever saves and collects.
#[test]
fn movers_and_savers_meet_in_a_bucket() {
    const PUTS: u64 = 5;
    let Some(server) = Server::versitygw() else { return };
    let place = Place::new(server);
    place.init("pool", &["--target", "s3://ckpt/packs"]);
    put(&place, "pool", 1);
    let sets: [&[&str]; 3] =
        [&["s3://ckpt/a"], &["s3://ckpt/a", "../disk", "s3://ckpt/b"], &["../safe"]];
    thread::scope(|scope| {
        let place = &place;
        for job in ["x", "y"] {
            scope.spawn(move || {
                for epoch in 1..=PUTS {
                    let mut done = place.put("pool", job, epoch);
                    while done.code == 6 {
                        done = place.put("pool", job, epoch);
                    }
                    assert_eq!(done.code, 0, "{done:?}");
                }
            });
        }
        for set in sets {
            scope.spawn(move || {
                for _ in 0..2 {
                    let run = move_log(place, set);
                    assert!(matches!(run.code, 0 | 6), "{set:?}: {run:?}");
                }
            });
        }
        scope.spawn(move || {
            for _ in 0..2 {
                let run = place.run(&["gc", "pool"]);
                assert!(matches!(run.code, 0 | 5 | 6), "{run:?}");
            }
        });
    });
    moved(&place, &["s3://ckpt/end"]);
    for job in ["x", "y"] {
        (1..=PUTS).for_each(|epoch| place.check("pool", job, epoch));
    }
    place.done(&["verify", "pool"]);
}

/// It is killed once the bucket has something of the new place; the next program that saves brings it to its end,
/// or the command that is given again.
#[test]
fn a_mover_into_a_bucket_is_killed() {
    let Some(server) = Server::versitygw() else { return };
    let place = Place::new(server);
    for (number, until) in ["log/.pool.toml", "log/job", "log/job"].into_iter().enumerate() {
        let pool = format!("pool {number}");
        place.init(&pool, &[]);
        (1..=3).for_each(|epoch| drop(put(&place, &pool, epoch)));
        let to = format!("s3://ckpt/log-of-{number}");
        let words = ["pool", "move-log", &pool, "--log", &to];
        let mut mover = place.command(&words, ACCESS);
        let mover = mover.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut mover = Running(mover);
        let seen = place.server.bucket_dir().join(format!("log-of-{number}/log-2")).join(until);
        while !seen.exists() && mover.0.try_wait().unwrap().is_none() {
            thread::yield_now();
        }
        mover.kill();
        if number == 1 {
            place.done(&words);
        }
        put(&place, &pool, 4);
        place.done(&words);
        assert_eq!(put(&place, &pool, 5).err, "");
        (1..=5).for_each(|epoch| place.check(&pool, "job", epoch));
    }
}

/// A pool over a bucket with a fast tier in memory.
struct Volatile {
    place: Place,
    memory: tempfile::TempDir,
    pool: &'static str,
    descriptor: PathBuf,
}

impl Volatile {
    /// `pool` is a directory or a bucket, with its log.
    fn new(server: Server, pool: &'static str) -> Volatile {
        let place = Place::new(server);
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let fast = memory.path().join("fast");
        place.init(pool, &["--volatile", text(&fast), "--slow", "s3://ckpt/slow"]);
        let descriptor = match pool.strip_prefix("s3://ckpt/") {
            Some(prefix) => place.server.bucket_dir().join(prefix),
            None => place.path(pool),
        };
        Volatile { place, memory, pool, descriptor: descriptor.join("pool.toml") }
    }

    fn restart(&self) {
        fs::remove_dir_all(self.memory.path().join("fast")).unwrap();
    }

    /// The tiers of each checkpoint, from the first on.
    fn tiers(&self) -> Vec<Value> {
        let listed = self.place.json(&["--json", "ls", self.pool, "job"]);
        let listed = listed["checkpoints"].as_array().unwrap().iter();
        listed.map(|one| one["tiers"].clone()).collect()
    }

    fn get_latest(&self) -> (Run, Vec<u8>) {
        let to = tempfile::tempdir().unwrap();
        let into = to.path().join("x");
        let got = self.place.run(&["get", self.pool, "job", "--to", text(&into)]);
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
        self.shards(&self.place.server.bucket_dir().join("slow"))
    }
}

#[test]
fn lost_memory_is_made_anew_from_a_bucket() {
    for pool in ["pool", "s3://ckpt/whole"] {
        let Some(server) = Server::versitygw() else { return };
        let mut it = Volatile::new(server, pool);
        put(&it.place, pool, 1);
        put(&it.place, pool, 2);
        assert_eq!(it.tiers(), vec![json!(["fast", "slow"]); 2]);
        edit(&it.descriptor, |text| format!("{text}\n[tiers]\nfill = false\n"));
        // Of this one the bucket has nothing.
        put(&it.place, pool, 3);
        assert_eq!(it.tiers()[2], json!(["fast"]));
        it.restart();

        // Without the bucket nobody knows what is lost: everybody waits.
        it.place.server.stop();
        let waits = it.place.put(pool, "job", 4);
        assert_eq!(waits.code, 6, "{waits:?}");
        // A log in a directory is there; so this much can be done.
        assert_eq!(waits.err.contains("made anew as target 3"), pool == "pool", "{waits:?}");
        let (waits, _) = it.get_latest();
        assert_eq!(waits.code, 6, "{waits:?}");
        assert!(it.fast().is_empty());
        it.place.server.start();

        let (got, data) = it.get_latest();
        assert_eq!(got.code, 0, "{got:?}");
        it.place.state("job", 2);
        assert!(
            data == fs::read(it.place.path("job/data")).unwrap(),
            "epoch 2 is the newest there"
        );
        // The same state again: nothing of what is lost may be taken for stored.
        let anew = put(&it.place, pool, 3);
        assert_eq!(anew.err.contains("made anew as target 3"), pool != "pool", "{anew:?}");
        assert!(anew.err.contains("checkpoints 3"), "{anew:?}");
        for (epoch, state) in [(1, 1), (2, 2), (4, 3)] {
            let to = tempfile::tempdir_in(it.place.dir.path()).unwrap();
            let out = to.path().join("x");
            it.place.done(&["get", pool, "job", "--epoch", &epoch.to_string(), "--to", text(&out)]);
            it.place.state("job", state);
            let wanted = fs::read(it.place.path("job/data")).unwrap();
            assert!(fs::read(out.join("data")).unwrap() == wanted, "epoch {epoch}");
        }
        // What is lost is safe nowhere, and of what was saved after it the bucket has a part.
        assert_eq!(it.tiers(), [json!(["slow"]), json!(["slow"]), json!([]), json!([])]);
        let status = it.place.done(&["pool", "status", pool]);
        assert!(status.out.contains("slow tier: it has 2 of 4 checkpoints"), "{status:?}");
        assert!(status.out.contains("checkpoint 3 of job: is hurt"), "{status:?}");
        assert!(status.out.contains("checkpoint 4 of job: each tier has a part"), "{status:?}");
        let lost = it.place.run(&["get", pool, "job", "--epoch", "3", "--to", "nothing"]);
        assert_eq!(lost.code, 3, "{lost:?}");

        // The next time all is in the bucket.
        it.place.done(&["pool", "fill", pool]);
        it.restart();
        let anew = put(&it.place, pool, 5);
        assert!(anew.err.contains("made anew as target 4"), "{anew:?}");
        assert!(!anew.err.contains("lost with the memory"), "{anew:?}");
        it.place.done(&["prune", pool, "job", "--keep-last", "2"]);
        it.place.done(&["gc", pool]);
        it.place.done(&["scrub", pool]);
        it.place.done(&["pool", "repair", pool]);
        it.place.done(&["verify", pool]);
    }
}

fn edit(path: &Path, change: impl FnOnce(String) -> String) {
    let before = fs::read_to_string(path).unwrap();
    fs::write(path, change(before)).unwrap();
}

#[test]
fn the_fast_tier_is_trimmed_of_what_a_bucket_has() {
    for pool in ["pool", "s3://ckpt/whole"] {
        let Some(server) = Server::versitygw() else { return };
        let mut it = Volatile::new(server, pool);
        edit(&it.descriptor, |text| format!("{text}\n[tiers]\nfill = false\nkeep_fast = 1\n"));
        (1..=4).for_each(|epoch| drop(put(&it.place, pool, epoch)));
        let all = it.fast().len();
        let trimmed = it.place.done(&["pool", "trim", pool]);
        assert!(trimmed.out.contains("the slow tier lacks them"), "{trimmed:?}");
        it.place.done(&["pool", "fill", pool]);
        assert_eq!(it.slow().len(), all);

        // The bucket is away: nothing goes.
        it.place.server.stop();
        let away = it.place.run(&["pool", "trim", pool]);
        assert_eq!(away.code, 6, "{away:?}");
        it.place.server.start();
        // Copies in it are damaged: what they are copies of stays.
        for copy in it.slow() {
            let mut bytes = fs::read(&copy).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(&copy, bytes).unwrap();
        }
        let damaged = it.place.run(&["pool", "trim", pool]);
        assert!(damaged.code == 3 && damaged.out.contains("KEPT pack"), "{damaged:?}");
        assert_eq!(it.fast().len(), all);
        it.place.run(&["scrub", pool]);
        it.place.done(&["pool", "fill", pool]);

        let dry = it.place.done(&["pool", "trim", pool, "--dry-run"]);
        assert!(dry.out.contains("would be deleted"), "{dry:?}");
        assert_eq!(it.fast().len(), all);
        it.place.done(&["pool", "trim", pool]);
        let left = it.fast().len();
        assert!(left > 0 && left < all, "{left} of {all}");
        (1..=4).for_each(|epoch| it.place.check(pool, "job", epoch));
        let repaired = it.place.done(&["pool", "repair", pool]);
        assert!(repaired.out.contains("trimmed"), "{repaired:?}");
        it.place.done(&["scrub", pool]);
        assert_eq!(it.fast().len(), left);

        // What only the bucket has survives the memory.
        it.restart();
        put(&it.place, pool, 5);
        (1..=5).for_each(|epoch| it.place.check(pool, "job", epoch));
        it.place.done(&["pool", "repair", pool]);
        it.place.done(&["verify", pool]);
    }
}
