//! Pools with a fast tier in memory, as programs see them after a restart of their host:
//! directories on a tmpfs that are emptied.

use crate::common;

use common::{Run, command, files};
use std::fs;
use std::path::{Path, PathBuf};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn noise(seed: u64) -> Vec<u8> {
    let word = |n: u64| (n ^ seed << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = |word: u64| word.rotate_left(17).wrapping_mul(seed | 1).to_le_bytes();
    (0..40_000).map(word).flat_map(mixed).collect()
}

/// A pool on disk, whose targets are in memory, with or without a slow one on disk.
struct Fixture {
    dir: tempfile::TempDir,
    memory: tempfile::TempDir,
    pool: PathBuf,
}

impl Fixture {
    fn new(more: &[&str]) -> (Fixture, Run) {
        let dir = tempfile::tempdir().unwrap();
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let fixture = Fixture { pool: dir.path().join("pool"), dir, memory };
        let ram = fixture.ram(1);
        let mut words = vec!["pool", "init", text(&fixture.pool), "--volatile", text(&ram)];
        words.extend(["--container-bytes", "64KiB", "--pack-bytes", "128KiB"]);
        words.extend(more);
        let made = fixture.on("one", &words);
        (fixture, made)
    }

    fn with_slow() -> Fixture {
        let (fixture, made) = Fixture::new(&["--slow", "../slow"]);
        assert_eq!(made.code, 0, "{made:?}");
        fixture
    }

    fn ram(&self, number: usize) -> PathBuf {
        self.memory.path().join(format!("ram {number}"))
    }

    /// Removes what a restart of the host removes.
    fn restart(&self) {
        for entry in fs::read_dir(self.memory.path()).unwrap() {
            fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
    }

    /// Runs a command on a host.
    fn on(&self, host: &str, words: &[&str]) -> Run {
        let output = command(words).env("OUTLIVE_HOST", host).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let code = output.status.code().expect("it was not killed");
        Run { code, out: text(output.stdout), err: text(output.stderr) }
    }

    fn run(&self, command: &[&str]) -> Run {
        let (verb, more) = command.split_at(if command[0] == "pool" { 2 } else { 1 });
        self.on("one", &[verb, &[text(&self.pool)], more].concat())
    }

    fn good(&self, command: &[&str]) -> Run {
        let run = self.run(command);
        assert_eq!(run.code, 0, "{command:?}: {run:?}");
        run
    }

    fn put_from(&self, host: &str, seed: u64) -> Run {
        let from = self.dir.path().join("from");
        fs::create_dir_all(&from).unwrap();
        fs::write(from.join("data"), noise(seed)).unwrap();
        self.on(host, &["put", text(&self.pool), "job", text(&from)])
    }

    fn put(&self, seed: u64) -> Run {
        let put = self.put_from("one", seed);
        assert_eq!(put.code, 0, "{put:?}");
        put
    }

    fn get(&self, host: &str, more: &[&str]) -> (Run, Option<Vec<u8>>) {
        let to = tempfile::tempdir().unwrap();
        let into = to.path().join("x");
        let mut words = vec!["get", text(&self.pool), "job", "--to", text(&into)];
        words.extend(more);
        let got = self.on(host, &words);
        let data = files(to.path()).into_iter().find(|(path, _)| path.ends_with("data"));
        (got, data.map(|(_, bytes)| bytes))
    }

    fn check(&self, epoch: u64, seed: u64) {
        let (got, data) = self.get("one", &["--epoch", &epoch.to_string()]);
        assert_eq!(got.code, 0, "{got:?}");
        assert!(data.unwrap() == noise(seed), "epoch {epoch}");
    }

    fn epochs(&self) -> Vec<(u64, Vec<String>)> {
        let status = self.good(&["pool", "status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&status.out).unwrap();
        let one = |one: &serde_json::Value| {
            let tiers = one["tiers"].as_array().unwrap().iter();
            let tiers = tiers.map(|tier| tier.as_str().unwrap().to_owned());
            (one["epoch"].as_u64().unwrap(), tiers.collect())
        };
        status["redundancy"].as_array().unwrap().iter().map(one).collect()
    }
}

#[test]
fn a_program_goes_on_from_the_slow_tier_when_memory_is_lost() {
    let fixture = Fixture::with_slow();
    fixture.put(1);
    fixture.put(2);
    let config = fixture.pool.join("pool.toml");
    let filled = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{filled}\n[tiers]\nfill = false\n")).unwrap();
    // This checkpoint shares all data with the one before. It is not on the slow tier, and neither
    // is the next one.
    fixture.put(3);
    fixture.put(1);
    fixture.restart();

    // A command that only reads writes nothing.
    let (got, data) = fixture.get("one", &[]);
    assert_eq!(got.code, 0, "{got:?}");
    assert!(data.unwrap() == noise(2), "{got:?}");
    assert!(got.err.contains("in memory"), "{got:?}");
    assert!(!fixture.ram(1).exists());

    // The same bytes again: their stored copy is gone.
    let put = fixture.put(3);
    assert!(put.err.contains("recreated as target 3"), "{put:?}");
    assert!(put.err.contains("lost with their targets: checkpoints 3"), "{put:?}");
    fixture.check(1, 1);
    fixture.check(2, 2);
    fixture.check(5, 3);
    let scrub = fixture.run(&["scrub"]);
    assert_eq!(scrub.code, 3, "{scrub:?}");
    let told = fixture.get("one", &["--epoch", "3"]).0;
    assert_eq!(told.code, 3, "{told:?}");
    let put = fixture.put(1);
    assert!(!put.err.contains("recreated"), "{put:?}");
    fixture.check(6, 1);
    // The lost checkpoint can be pruned, and the others filled.
    fixture.good(&["prune", "job", "--keep-last", "2"]);
    fixture.good(&["pool", "fill"]);
    let safe = |tiers: &[String]| tiers.contains(&"slow".to_owned());
    assert!(fixture.epochs().iter().all(|(_, tiers)| safe(tiers)), "{:?}", fixture.epochs());
    fixture.restart();
    fixture.put(4);
    fixture.check(6, 1);
    fixture.check(5, 3);
    fixture.check(7, 4);
    fixture.good(&["scrub"]);
}

#[test]
fn a_pool_in_memory_alone_names_lost_checkpoints_and_begins_anew() {
    let (fixture, made) = Fixture::new(&[]);
    assert_eq!(made.code, 0, "{made:?}");
    assert!(made.out.contains("Every checkpoint is LOST when one restarts"), "{made:?}");
    fixture.put(1);
    fixture.check(1, 1);
    fixture.restart();
    let looked = fixture.run(&["ls", "job"]);
    assert!(looked.err.contains("it is in memory"), "{looked:?}");
    let (got, data) = fixture.get("one", &[]);
    assert_ne!(got.code, 0, "{got:?}");
    assert!(data.is_none());
    // The same bytes: no copy of them remains.
    let put = fixture.put(1);
    assert!(put.err.contains("checkpoints 1; none is left"), "{put:?}");
    fixture.check(2, 1);
}

#[test]
fn only_the_host_whose_memory_it_was_makes_it_anew() {
    let fixture = Fixture::with_slow();
    fixture.put(1);
    // Another host sees no memory of the first one, even if a directory has the same name.
    let put = fixture.put_from("two", 2);
    assert_eq!(put.code, 2, "{put:?}");
    assert!(put.err.contains("in the memory of the host one"), "{put:?}");
    let (got, data) = fixture.get("two", &[]);
    assert_eq!(got.code, 0, "{got:?}");
    assert!(data.unwrap() == noise(1));
    fixture.restart();
    let put = fixture.put_from("two", 2);
    assert_eq!(put.code, 2, "{put:?}");
    assert!(!fixture.ram(1).exists());
    fixture.put(2);
    fixture.check(2, 2);
    // A second target in memory must be on the same host.
    let added = fixture
        .on("two", &["pool", "add", text(&fixture.pool), text(&fixture.ram(2)), "--volatile"]);
    assert_eq!(added.code, 2, "{added:?}");
    fixture.good(&["pool", "add", text(&fixture.ram(2)), "--volatile"]);
    let on_disk = fixture.dir.path().join("disk");
    let added = fixture.run(&["pool", "add", text(&on_disk), "--volatile"]);
    assert_eq!(added.code, 2, "{added:?}");
    assert!(added.err.contains("not in memory"), "{added:?}");
}

/// Data that must survive the loss of the host's memory is not stored in it.
#[test]
fn a_target_in_memory_is_refused_while_the_log_or_a_slow_target_is() {
    let (fixture, made) = Fixture::new(&[]);
    assert_eq!(made.code, 0, "{made:?}");
    for (more, says) in [("--log", "the log has to move"), ("--slow", "slow target 2")] {
        let pool = fixture.dir.path().join(more);
        let there = fixture.ram(if more == "--log" { 2 } else { 3 });
        let made = fixture.on("one", &["pool", "init", text(&pool), more, text(&there)]);
        assert_eq!(made.code, 0, "{made:?}");
        let ram = fixture.ram(4);
        let added = fixture.on("one", &["pool", "add", text(&pool), text(&ram), "--volatile"]);
        assert_eq!(added.code, 2, "{added:?}");
        assert!(added.err.contains(says) && added.err.contains("is in memory"), "{added:?}");
        assert!(!ram.join("packs").exists());
    }
}

#[test]
fn a_target_that_comes_back_by_halves_is_refused_and_two_programs_recreate_it_once() {
    let fixture = Fixture::with_slow();
    fixture.put(1);
    let copy = fixture.memory.path().join("copy");
    let copied = std::process::Command::new("cp").arg("-a").arg(fixture.ram(1)).arg(&copy).status();
    assert!(copied.unwrap().success());
    fs::remove_dir_all(fixture.ram(1)).unwrap();
    // Packs without a marker: the operator must examine them.
    fs::create_dir(fixture.ram(1)).unwrap();
    fs::rename(copy.join("packs"), fixture.ram(1).join("packs")).unwrap();
    let marker = fixture.ram(1).join("packs/.pool.toml");
    let old = fs::read(&marker).unwrap();
    fs::remove_file(&marker).unwrap();
    assert_eq!(fixture.put_from("one", 2).code, 6);
    fs::remove_dir_all(fixture.ram(1)).unwrap();

    let put = |job: &str, seed: u64| {
        let from = fixture.dir.path().join(job);
        fs::create_dir_all(&from).unwrap();
        fs::write(from.join("data"), noise(seed)).unwrap();
        let mut put = command(&["put", text(&fixture.pool), job, text(&from)]);
        put.env("OUTLIVE_HOST", "one").spawn().unwrap()
    };
    let mut both = [put("job", 2), put("other", 3)];
    assert!(both.iter_mut().all(|put| put.wait().unwrap().success()));
    let config = fs::read_to_string(fixture.pool.join("pool.toml")).unwrap();
    assert!(config.contains("id = 3") && !config.contains("id = 4"), "{config}");
    assert!(!config.contains("unsettled"), "{config}");
    fixture.check(1, 1);
    fixture.check(2, 2);
    // The old target in its place is not the new one.
    fs::write(&marker, old).unwrap();
    assert_eq!(fixture.put_from("one", 4).code, 2);
}

#[test]
fn the_fast_tier_is_trimmed_of_packs_that_the_slow_one_has() {
    let fixture = Fixture::with_slow();
    let config = fixture.pool.join("pool.toml");
    let text_of = fs::read_to_string(&config).unwrap();
    assert_eq!(fixture.run(&["pool", "trim"]).code, 2);
    fs::write(&config, format!("{text_of}\n[tiers]\nfill = false\nkeep_fast = 1\n")).unwrap();
    for seed in 1..=4 {
        fixture.put(seed);
    }
    let shards = |at: &Path| {
        let is_shard = |path: &Path| path.extension().is_some_and(|end| end == "shard");
        files(at).into_iter().filter(|(path, _)| is_shard(path)).count()
    };
    let all = shards(&fixture.ram(1));
    // The slow tier has nothing, so all packs stay.
    let trimmed = fixture.good(&["pool", "trim"]);
    assert!(trimmed.out.contains("stay, as the slow tier lacks them"), "{trimmed:?}");
    assert_eq!(shards(&fixture.ram(1)), all);
    fixture.good(&["pool", "fill"]);
    // A damaged copy does not count.
    let slow = fixture.dir.path().join("slow");
    let is_shard = |path: &Path| path.extension().is_some_and(|end| end == "shard");
    let copies = files(&slow).into_iter().filter(|(path, _)| is_shard(path));
    for (path, mut bytes) in copies {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path, bytes).unwrap();
    }
    let trimmed = fixture.run(&["pool", "trim"]);
    assert_eq!(trimmed.code, 3, "{trimmed:?}");
    assert_eq!(shards(&fixture.ram(1)), all);
    fixture.run(&["scrub"]);
    fixture.good(&["pool", "fill"]);

    let dry = fixture.good(&["pool", "trim", "--dry-run"]);
    assert!(dry.out.contains("would be deleted"), "{dry:?}");
    assert_eq!(shards(&fixture.ram(1)), all);
    fixture.good(&["pool", "trim"]);
    let left = shards(&fixture.ram(1));
    assert!(left > 0 && left < all, "{left} of {all}");
    let (tiers, slow_only) = (fixture.epochs(), vec!["slow".to_owned()]);
    assert!(tiers.iter().filter(|(_, tiers)| *tiers == slow_only).count() >= 3, "{tiers:?}");
    // The fast tier has all data of the newest, whatever its lists name.
    let away = fixture.dir.path().join("away");
    fs::rename(&slow, &away).unwrap();
    fixture.check(4, 4);
    assert_ne!(fixture.get("one", &["--epoch", "1"]).0.code, 0);
    fs::rename(&away, &slow).unwrap();
    (1..=4).for_each(|epoch| fixture.check(epoch, epoch));

    // A repair and a scrub accept trimmed packs, and saves share data that only the slow tier has.
    let repaired = fixture.good(&["pool", "repair"]);
    assert!(repaired.out.contains("trimmed"), "{repaired:?}");
    fixture.good(&["scrub"]);
    assert_eq!(shards(&fixture.ram(1)), left);
    fixture.put(1);
    fixture.check(5, 1);
    fixture.good(&["prune", "job", "--keep-last", "3"]);
    (3..=4).for_each(|epoch| fixture.check(epoch, epoch));
    fixture.check(5, 1);
    fixture.good(&["pool", "fill"]);
    fixture.good(&["pool", "trim"]);
    fixture.restart();
    fixture.put(6);
    (3..=4).for_each(|epoch| fixture.check(epoch, epoch));
    fixture.check(5, 1);
    fixture.check(6, 6);
    // The repair brings back the data of the newest checkpoint.
    fixture.good(&["pool", "repair"]);
}

#[test]
fn programs_trim_behind_their_fills() {
    let fixture = Fixture::with_slow();
    let config = fixture.pool.join("pool.toml");
    let text_of = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text_of}\n[tiers]\nkeep_fast = 1\n")).unwrap();
    for seed in 1..=3 {
        let put = fixture.put(seed);
        assert!(!put.err.contains("cannot be trimmed"), "{put:?}");
    }
    let slow_only = |(epoch, tiers): &(u64, Vec<String>)| *epoch < 3 && tiers == &["slow"];
    assert_eq!(
        fixture.epochs().iter().filter(|it| slow_only(it)).count(),
        2,
        "{:?}",
        fixture.epochs()
    );
    (1..=3).for_each(|epoch| fixture.check(epoch, epoch));
}

/// Data that must survive a restart of the host is not put into its memory: logs, and the slow
/// tier.
#[test]
fn logs_and_slow_targets_are_not_put_into_memory() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    // The directory of temporary files may be in memory.
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = |name: &str| text(&memory.path().join(name)).to_owned();
    let pool = disk.path().join("pool");
    let run = |words: &[&str]| {
        let output = command(words).env("OUTLIVE_HOST", "one").output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (fast, slow, log) = (at("fast"), at("slow"), at("log"));
    let init = ["pool", "init", text(&pool), "--volatile", &fast];
    for (more, told) in [
        (["--slow", &slow, "--log", "."], "a slow target is to keep"),
        (["--slow", "../slow", "--log", &log], "without the log"),
    ] {
        let (code, err) = run(&[&init[..], &more].concat());
        assert!(code == Some(2) && err.contains(told), "{more:?}: {err}");
    }
    let (code, err) = run(&[&init[..], &["--slow", "../slow"]].concat());
    assert_eq!(code, Some(0), "{err}");
    let before = fs::read_to_string(pool.join("pool.toml")).unwrap();
    for (words, told) in [
        (&["pool", "add", text(&pool), &slow, "--tier", "slow"][..], "a slow target is to keep"),
        (&["pool", "move-log", text(&pool), "--log", &log], "without the log"),
        (&["pool", "move-log", text(&pool), "--log", &fast], "without the log"),
    ] {
        let (code, err) = run(words);
        assert!(code == Some(2) && err.contains(told), "{words:?}: {err}");
    }
    assert_eq!(fs::read_to_string(pool.join("pool.toml")).unwrap(), before);
    assert!(!Path::new(&slow).exists() && !Path::new(&log).exists());
    let (code, err) = run(&["pool", "move-log", text(&pool), "--log", "../log"]);
    assert_eq!(code, Some(0), "{err}");

    // A pool that is in memory itself may have everything there; the command reports that.
    let words = ["pool", "init", &at("pool"), "--volatile", &at("other"), "--slow", &slow];
    let output = command(&words).env("OUTLIVE_HOST", "one").output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(out.contains("The log is in memory, too"), "{out}");
}
