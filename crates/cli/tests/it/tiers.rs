//! Pools with a fast and a slow tier, as an operator uses them: the slow one is filled, the fast
//! one is lost, and the slow one has the copies.

use crate::common;

use common::{Run, command, files, json, outlive};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn noise(seed: u64) -> Vec<u8> {
    let word = |n: u64| (n ^ seed << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = |word: u64| word.rotate_left(17).wrapping_mul(seed | 1).to_le_bytes();
    (0..40_000).map(word).flat_map(mixed).collect()
}

/// A pool with `fast 1`, `fast 2` … and `slow 1`, `slow 2` … next to it.
struct Fixture {
    dir: tempfile::TempDir,
    pool: PathBuf,
}

impl Fixture {
    /// Creates a pool whose slow tier only the command fills.
    fn new(fast: usize, slow: usize, rule: &[&str]) -> Fixture {
        let fixture = Fixture::filling(fast, slow, rule);
        fixture.set("fill = false");
        fixture
    }

    /// Creates a pool whose slow tier programs fill.
    fn filling(fast: usize, slow: usize, rule: &[&str]) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let pool = dir.path().join("a pool");
        let named = |option: &'static str, name: &'static str, count: usize| {
            (1..=count).flat_map(move |n| [option.to_owned(), format!("../{name} {n}")])
        };
        let targets: Vec<String> =
            named("--target", "fast", fast).chain(named("--slow", "slow", slow)).collect();
        let mut words = vec!["pool", "init", text(&pool)];
        words.extend(["--container-bytes", "64KiB", "--pack-bytes", "128KiB"]);
        words.extend(targets.iter().map(String::as_str));
        words.extend(rule);
        let made = outlive(&words);
        assert_eq!(made.code, 0, "{made:?}");
        Fixture { dir, pool }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn put(&self, seed: u64) -> Run {
        self.put_job("job", seed)
    }

    fn put_job(&self, job: &str, seed: u64) -> Run {
        let from = self.at(&format!("from {job}"));
        fs::create_dir_all(&from).unwrap();
        fs::write(from.join("data"), noise(seed)).unwrap();
        outlive(&["put", text(&self.pool), job, text(&from)])
    }

    fn get(&self, more: &[&str]) -> (Run, Option<Vec<u8>>) {
        let to = tempfile::tempdir().unwrap();
        let into = to.path().join("x");
        let mut words = vec!["get", text(&self.pool), "job", "--to", text(&into)];
        words.extend(more);
        let got = outlive(&words);
        let data = files(to.path()).into_iter().find(|(path, _)| path.ends_with("data"));
        (got, data.map(|(_, bytes)| bytes))
    }

    fn check(&self, epoch: u64) {
        let (got, data) = self.get(&["--epoch", &epoch.to_string()]);
        assert_eq!(got.code, 0, "{got:?}");
        assert!(data.unwrap() == noise(epoch), "epoch {epoch}");
    }

    fn run(&self, command: &[&str]) -> Run {
        let (verb, more) = command.split_at(if command[0] == "pool" { 2 } else { 1 });
        outlive(&[verb, &[text(&self.pool)], more].concat())
    }

    fn good(&self, command: &[&str]) -> Run {
        let run = self.run(command);
        assert_eq!(run.code, 0, "{command:?}: {run:?}");
        run
    }

    /// Returns the tiers of each checkpoint, newest first.
    fn tiers(&self) -> Vec<Vec<String>> {
        let status = json(&["pool", "status", text(&self.pool), "--json"]);
        let names = |one: &serde_json::Value| {
            let tiers = one["tiers"].as_array().unwrap().iter();
            tiers.map(|tier| tier.as_str().unwrap().to_owned()).collect()
        };
        status["redundancy"].as_array().unwrap().iter().map(names).collect()
    }

    fn shards(&self, name: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let is_shard = |path: &Path| path.extension().is_some_and(|end| end == "shard");
        files(&self.at(name)).into_iter().filter(|(path, _)| is_shard(path)).collect()
    }

    /// Counts the shards, while others are being written.
    fn shard_count(&self, name: &str) -> usize {
        let mut dirs = vec![self.at(name)];
        let mut count = 0;
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
                match entry.extension() {
                    _ if entry.is_dir() => dirs.push(entry),
                    end => count += usize::from(end.is_some_and(|end| end == "shard")),
                }
            }
        }
        count
    }

    /// Inserts lines into `[tiers]`.
    fn set(&self, lines: &str) {
        const TIERS: &str = "[tiers]\n";
        let path = self.pool.join("pool.toml");
        let mut text = fs::read_to_string(&path).unwrap();
        if !text.contains(TIERS) {
            let at = text.find("[[target]]").unwrap();
            text.insert_str(at, &format!("{TIERS}\n"));
        }
        fs::write(path, text.replace(TIERS, &format!("{TIERS}{lines}\n"))).unwrap();
    }
}

#[test]
fn filled_checkpoints_outlive_the_fast_tier() {
    for (fast, slow, rule) in [
        (1, 1, &[][..]),
        (2, 1, &["--mirror", "2"]),
        (3, 1, &["--erasure", "2+1"]),
        (3, 3, &["--erasure", "2+1"]),
    ] {
        let fixture = Fixture::new(fast, slow, rule);
        assert_eq!(fixture.put(1).code, 0);
        assert_eq!(fixture.put(2).code, 0);
        assert!(fixture.shards("slow 1").is_empty(), "saves go to the fast tier only");
        assert_eq!(fixture.tiers(), [["fast"], ["fast"]]);
        let dry = fixture.good(&["pool", "fill", "--dry-run"]);
        assert!(dry.out.contains("the slow tier lacks"), "{}", dry.out);
        assert!(fixture.shards("slow 1").is_empty());
        let filled = fixture.good(&["pool", "fill"]);
        assert!(filled.out.contains("copied to the slow tier"), "{}", filled.out);
        assert!(fixture.good(&["pool", "fill"]).out.contains("has them all"));
        assert_eq!(fixture.tiers(), [["fast", "slow"], ["fast", "slow"]]);
        // No shard is surplus, and none is reported as damaged.
        assert!(fixture.good(&["pool", "repair"]).out.contains("no shard of them is missing"));
        fixture.good(&["scrub"]);
        // Packs that a gc rewrites go to the slow tier before it deletes the old ones.
        fixture.good(&["gc"]);
        assert_eq!(fixture.tiers(), [["fast", "slow"], ["fast", "slow"]]);
        fixture.good(&["verify"]);
        assert_eq!(fixture.put(3).code, 0);
        assert_eq!(fixture.tiers(), [&["fast"][..], &["fast", "slow"], &["fast", "slow"]]);

        // The fast tier is away: checkpoints that only it has are skipped, and not lost.
        for number in 1..=fast {
            fs::rename(
                fixture.at(&format!("fast {number}")),
                fixture.at(&format!("away {number}")),
            )
            .unwrap();
        }
        for epoch in [1, 2] {
            fixture.check(epoch);
        }
        let (got, data) = fixture.get(&[]);
        assert_eq!(got.code, 0, "{got:?}");
        assert!(data.unwrap() == noise(2));
        assert!(got.err.contains("passed over checkpoint 3"), "{}", got.err);
        let (got, _) = fixture.get(&["--epoch", "3"]);
        assert_eq!(got.code, 6, "{got:?}");
        assert!(fixture.tiers()[0].is_empty());
        for refused in [&["gc"][..], &["scrub"], &["pool", "repair"], &["pool", "fill"]] {
            let run = fixture.run(refused);
            assert!(run.code != 0 && run.err.contains("is missing"), "{refused:?}: {run:?}");
        }
        let put = fixture.put(4);
        assert!(put.code != 0, "{put:?}");

        // It returns, and nothing is wrong.
        for number in 1..=fast {
            fs::rename(
                fixture.at(&format!("away {number}")),
                fixture.at(&format!("fast {number}")),
            )
            .unwrap();
        }
        fixture.good(&["scrub"]);
        fixture.check(3);
        fixture.good(&["pool", "fill"]);

        // It is lost for good, and new targets replace it.
        for number in 1..=fast {
            fs::remove_dir_all(fixture.at(&format!("fast {number}"))).unwrap();
        }
        for number in 1..=fast {
            fixture.good(&["pool", "add", &format!("../new {number}")]);
        }
        let remove = |number: usize| {
            let removed = fixture.run(&["pool", "remove", &number.to_string(), "--lost"]);
            // The repair waits as long as more targets are away than the redundancy tolerates.
            let waits = fast - number > 1;
            assert_eq!(removed.code, if waits { 6 } else { 0 }, "{removed:?}");
            assert_eq!(removed.out.contains("not possible yet"), waits, "{removed:?}");
            removed.out
        };
        let removed: String = (1..=fast).map(remove).collect();
        assert!(removed.contains("rewritten"), "{removed}");
        fixture.check(3);
        let repaired = fixture.good(&["pool", "repair"]);
        assert!(repaired.out.contains("no shard of them is missing"), "{}", repaired.out);
        assert_eq!(fixture.tiers(), [["fast", "slow"], ["fast", "slow"], ["fast", "slow"]]);
        assert_eq!(fixture.put(4).code, 0);
        (1..=4).for_each(|epoch| fixture.check(epoch));
        fixture.good(&["scrub"]);
        fixture.good(&["verify"]);
    }
}

#[test]
fn one_slow_target_has_the_data_and_enough_of_them_have_all() {
    let fixture = Fixture::new(3, 1, &["--erasure", "2+1"]);
    assert_eq!(fixture.put(1).code, 0);
    fixture.good(&["pool", "fill"]);
    let names = |name: &str| -> Vec<String> {
        let names = fixture.shards(name).into_iter();
        names.map(|(path, _)| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    };
    assert!(names("slow 1").iter().all(|name| !name.ends_with(".2.shard")));
    for number in 2..=3 {
        fixture.good(&["pool", "add", &format!("../slow {number}"), "--tier", "slow"]);
    }
    assert_eq!(fixture.put(2).code, 0);
    fixture.good(&["pool", "fill"]);
    let parity = (1..=3).flat_map(|n| names(&format!("slow {n}")));
    assert!(parity.filter(|name| name.ends_with(".2.shard")).count() > 0);
    // Each copy equals the one on the fast tier.
    let all = |tier: &str| -> Vec<(PathBuf, Vec<u8>)> {
        (1..=3).flat_map(|n| fixture.shards(&format!("{tier} {n}"))).collect()
    };
    let fast = all("fast");
    for (path, bytes) in all("slow") {
        let name = path.file_name();
        let same = fast.iter().find(|(other, _)| other.file_name() == name);
        assert!(same.is_some_and(|(_, other)| *other == bytes), "{}", path.display());
    }
    // If a slow target is removed, its packs go to another one.
    fixture.good(&["pool", "remove", "4"]);
    assert!(fixture.shards("slow 1").is_empty());
    assert_eq!(fixture.tiers(), [["fast", "slow"], ["fast", "slow"]]);
    for id in ["5", "6"] {
        fixture.good(&["pool", "remove", id]);
    }
    assert!(fixture.good(&["pool", "repair"]).out.contains("no shard of them is missing"));
    let refused = fixture.run(&["pool", "fill"]);
    assert!(refused.code == 2 && refused.err.contains("--tier slow"), "{refused:?}");
    let removed = fixture.run(&["pool", "remove", "1"]);
    assert_eq!(removed.code, 2, "{removed:?}");
}

#[test]
fn damage_on_the_fast_tier_is_read_from_the_slow_one_and_mended() {
    let fixture = Fixture::new(1, 1, &[]);
    assert_eq!(fixture.put(1).code, 0);
    fixture.good(&["pool", "fill"]);
    let whole = fixture.shards("fast 1");
    for (number, (path, bytes)) in whole.iter().enumerate() {
        let path = fixture.at("fast 1").join(path);
        match number % 2 {
            0 => fs::remove_file(path).unwrap(),
            _ => {
                let mut bytes = bytes.clone();
                for at in (4096..bytes.len()).step_by(5000) {
                    bytes[at] ^= 1;
                }
                fs::write(path, bytes).unwrap();
            }
        }
    }
    fixture.check(1);
    let scrub = fixture.good(&["scrub"]);
    assert!(scrub.out.contains("whole"), "{}", scrub.out);
    assert!(fixture.shards("fast 1") == whole, "the same bytes again");

    // Damaged copies on the slow tier are rewritten there.
    let copies = fixture.shards("slow 1");
    let (path, mut bytes) = copies[0].clone();
    bytes[5000] ^= 1;
    fs::write(fixture.at("slow 1").join(&path), bytes).unwrap();
    assert_eq!(fixture.run(&["verify"]).code, 3);
    let scrub = fixture.good(&["scrub"]);
    assert!(scrub.out.contains("SLOW COPY "), "{}", scrub.out);
    assert!(fixture.shards("slow 1") == copies);
    fixture.check(1);
    fixture.good(&["verify"]);
}

/// One of two slow targets is away, so a gc cannot know which packs are safe on the slow tier. The
/// packs that it writes in their place might stay on the fast tier alone.
#[test]
fn a_gc_moves_nothing_while_the_packs_of_the_slow_tier_are_unknown() {
    let fixture = Fixture::new(1, 2, &[]);
    assert_eq!(fixture.put(1).code, 0);
    assert_eq!(fixture.put(2).code, 0);
    fixture.good(&["pool", "fill"]);
    assert_eq!(fixture.tiers(), [["fast", "slow"], ["fast", "slow"]]);
    let before = fixture.shards("fast 1");
    for away in ["slow 1", "slow 2"] {
        fs::rename(fixture.at(away), fixture.at("away")).unwrap();
        for collects in [&["prune", "job", "--keep-last", "1"][..], &["gc"]] {
            let run = fixture.run(collects);
            assert_eq!(run.code, 6, "{collects:?}: {run:?}");
            assert!(run.err.contains("not known what is safe on the slow tier"), "{}", run.err);
        }
        let after = fixture.shards("fast 1");
        assert!(before.iter().all(|shard| after.contains(shard)), "packs were deleted");
        fs::rename(fixture.at("away"), fixture.at(away)).unwrap();
        assert_eq!(fixture.tiers(), [["fast", "slow"]]);
    }
    let collected = fixture.good(&["gc"]);
    assert!(collected.out.contains("deleted"), "{}", collected.out);
    assert_eq!(fixture.tiers(), [["fast", "slow"]]);
    fs::remove_dir_all(fixture.at("fast 1")).unwrap();
    fixture.check(2);
}

#[test]
fn a_learned_rule_fills_the_newest_checkpoint() {
    let fixture = Fixture::new(1, 1, &[]);
    fixture.set("every = \"auto\"");
    for epoch in 1..=3 {
        let put = fixture.put(epoch);
        assert_eq!(put.code, 0, "{put:?}");
    }
    for _ in 0..2 {
        let filled = fixture.good(&["pool", "fill"]);
        assert!(filled.out.starts_with("1 checkpoint"), "{}", filled.out);
        // Its lists name the packs of the others, too.
        assert_eq!(fixture.tiers()[2], ["fast", "slow"]);
    }
    // A program has learned nothing yet: each of its commits goes there.
    let path = fixture.pool.join("pool.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("fill = false", "fill = true")).unwrap();
    assert_eq!(fixture.put(4).code, 0);
    assert_eq!(fixture.tiers()[3], ["fast", "slow"]);
}

#[test]
fn the_rule_chooses_the_checkpoints_for_the_slow_tier() {
    let fixture = Fixture::new(1, 1, &[]);
    fixture.set("every = 2");
    for epoch in 1..=5 {
        assert_eq!(fixture.put(epoch).code, 0);
    }
    let filled = fixture.good(&["pool", "fill"]);
    assert!(filled.out.starts_with("2 checkpoints"), "{}", filled.out);
    let tiers = fixture.tiers();
    assert_eq!(
        (&tiers[0], &tiers[1]),
        (&vec!["fast".to_owned()], &vec!["fast".into(), "slow".into()])
    );
    for (wrong, said) in [
        ("every = 0", "tiers.every = 0"),
        ("every = \"often\"", "tiers.every = \"often\""),
        ("evry = 2", "evry"),
        ("every = -1", "every"),
        ("older_than_s = \"day\"", "older_than_s"),
        ("finish_s = -1", "finish_s"),
        ("bytes_per_s = \"fast\"", "bytes_per_s"),
    ] {
        let fixture = Fixture::new(1, 1, &[]);
        fixture.set(wrong);
        let run = fixture.run(&["ls"]);
        assert!(run.code == 2 && run.err.contains(said), "{run:?}");
    }
    let old = Fixture::new(1, 1, &[]);
    old.set("older_than_s = 1000000");
    assert_eq!(old.put(1).code, 0);
    assert!(old.good(&["pool", "fill"]).out.starts_with("0 checkpoints"));
    // The table determines the tier, even if a copy of the descriptor omits it.
    let path = old.pool.join("pool.toml");
    let before = fs::read_to_string(&path).unwrap();
    assert!(before.contains("tier = \"slow\""), "{before}");
    fs::write(&path, before.replace("tier = \"slow\"", "")).unwrap();
    assert_eq!(old.put(2).code, 0);
    assert!(old.shards("slow 1").is_empty());
    fs::write(&path, before.replace("../fast 1\"", "../fast 1\"\ntier = \"slow\"")).unwrap();
    let run = old.run(&["ls"]);
    assert!(run.code == 2 && run.err.contains("was added as a fast one"), "{run:?}");
}

#[test]
fn a_fill_that_was_killed_is_repeated() {
    let fixture = Fixture::new(3, 1, &["--erasure", "2+1"]);
    for epoch in 1..=3 {
        assert_eq!(fixture.put(epoch).code, 0);
    }
    // At this rate it would wait for days after its first packs.
    let mut fill = command(&["pool", "fill", text(&fixture.pool), "--rate", "1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while fixture.shard_count("slow 1") == 0 {
        assert!(fill.try_wait().unwrap().is_none(), "it has ended");
        std::thread::yield_now();
    }
    // It does not delay saves and restores.
    assert_eq!(fixture.put(4).code, 0);
    fixture.check(4);
    fill.kill().unwrap();
    fill.wait().unwrap();
    fixture.good(&["pool", "fill"]);
    assert_eq!(fixture.tiers(), vec![["fast", "slow"]; 4]);
    fixture.good(&["gc"]);
    for number in 1..=3 {
        fs::remove_dir_all(fixture.at(&format!("fast {number}"))).unwrap();
    }
    (1..=4).for_each(|epoch| fixture.check(epoch));
}

#[test]
fn fills_run_beside_saves_and_gcs() {
    let fixture = Fixture::new(2, 1, &["--mirror", "2"]);
    assert_eq!(fixture.put(1).code, 0);
    let done = std::sync::atomic::AtomicBool::new(false);
    let order = std::sync::atomic::Ordering::SeqCst;
    std::thread::scope(|scope| {
        let (fixture, done) = (&fixture, &done);
        let others = move |command: &'static [&'static str]| {
            while !done.load(order) {
                let run = fixture.run(command);
                // Another collector may run.
                assert!(matches!(run.code, 0 | 6), "{command:?}: {run:?}");
            }
        };
        scope.spawn(move || others(&["pool", "fill"]));
        scope.spawn(move || others(&["prune", "job", "--keep-last", "2"]));
        scope.spawn(|| {
            let saves = || {
                for seed in 2..=8 {
                    assert_eq!(fixture.put(seed).code, 0);
                    assert_eq!(fixture.put_job("another", 100 + seed).code, 0);
                }
            };
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(saves));
            done.store(true, order);
            outcome.unwrap();
        });
    });
    fixture.good(&["prune", "job", "--keep-last", "2"]);
    fixture.good(&["pool", "fill"]);
    fixture.good(&["verify"]);
    assert!(fixture.tiers().iter().all(|tiers| tiers.len() == 2), "{:?}", fixture.tiers());
    // A gc deletes packs from all tiers.
    let named = |name: &str| -> Vec<PathBuf> {
        fixture.shards(name).into_iter().map(|(path, _)| path.file_name().unwrap().into()).collect()
    };
    let fast: Vec<PathBuf> = ["fast 1", "fast 2"].into_iter().flat_map(named).collect();
    assert!(named("slow 1").iter().all(|shard| fast.contains(shard)));
    fixture.good(&["prune", "job", "--all"]);
    fixture.good(&["prune", "another", "--all"]);
    fixture.good(&["gc"]);
    assert!(fixture.shards("slow 1").is_empty() && fixture.shards("fast 1").is_empty());
}

#[test]
fn programs_fill_the_slow_tier_behind_their_commits() {
    let fixture = Fixture::filling(3, 1, &["--erasure", "2+1"]);
    for epoch in 1..=3 {
        let put = fixture.put(epoch);
        assert_eq!((put.code, put.err.as_str()), (0, ""), "{put:?}");
    }
    assert_eq!(fixture.tiers(), vec![["fast", "slow"]; 3]);
    assert!(fixture.good(&["pool", "fill"]).out.contains("has them all"));
    let listed = fixture.good(&["ls", "job"]);
    assert!(listed.out.contains("SAFE ON") && listed.out.contains("fast + slow"), "{}", listed.out);
    let shown = fixture.good(&["show", "job"]);
    assert!(shown.out.contains("\nsafe on      fast + slow\n"), "{}", shown.out);
    let listed = json(&["ls", text(&fixture.pool), "job", "--json"]);
    let tiers = &listed["checkpoints"][0]["tiers"];
    assert_eq!(*tiers, serde_json::json!(["fast", "slow"]), "{listed}");
    // The gc has copied the packs that it wrote; the next save continues from there.
    fixture.good(&["prune", "job", "--keep-last", "1"]);
    fixture.good(&["gc"]);
    assert_eq!(fixture.put(4).code, 0);
    assert_eq!(fixture.tiers(), vec![["fast", "slow"]; 2]);

    // The slow tier is away: one warning, and no effect except for missing copies.
    fs::rename(fixture.at("slow 1"), fixture.at("away")).unwrap();
    let put = fixture.put(5);
    assert_eq!(put.code, 0, "{put:?}");
    assert!(put.err.contains("the slow tier lacks"), "{}", put.err);
    assert!(put.err.contains("slow 1"), "{}", put.err);
    fs::rename(fixture.at("away"), fixture.at("slow 1")).unwrap();
    // The next save copies what is missing.
    assert_eq!(fixture.put(6).code, 0);
    assert_eq!(fixture.tiers(), vec![["fast", "slow"]; 4]);
    for number in 1..=3 {
        fs::remove_dir_all(fixture.at(&format!("fast {number}"))).unwrap();
    }
    (3..=6).for_each(|epoch| fixture.check(epoch));
}

#[test]
fn a_program_that_ends_waits_no_longer_for_the_slow_tier_than_it_is_told() {
    let fixture = Fixture::filling(1, 1, &[]);
    fixture.set("bytes_per_s = 1");
    fixture.set("finish_s = 0");
    let put = fixture.put(1);
    assert_eq!(put.code, 0, "{put:?}");
    assert!(put.err.contains("was closed before the slow tier had all of it"), "{}", put.err);
    assert!(put.err.contains("pool fill"), "{}", put.err);
    // A program that is killed while it copies leaves nothing wrong, only work.
    fixture.set("finish_s = 1000");
    let path = fixture.pool.join("pool.toml");
    let slowly = fs::read_to_string(&path).unwrap().replace("finish_s = 0\n", "");
    fs::write(&path, &slowly).unwrap();
    let from = fixture.at("from job");
    fs::write(from.join("data"), noise(2)).unwrap();
    let before = fixture.shard_count("slow 1");
    let mut put = command(&["put", text(&fixture.pool), "job", text(&from)])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while fixture.shard_count("slow 1") == before {
        assert!(put.try_wait().unwrap().is_none(), "it has ended");
        std::thread::yield_now();
    }
    // Meanwhile it does not block other commands.
    fixture.good(&["pool", "repair"]);
    put.kill().unwrap();
    put.wait().unwrap();
    fs::write(&path, slowly.replace("bytes_per_s = 1\n", "")).unwrap();
    assert_eq!(fixture.tiers(), [["fast"], ["fast"]]);
    assert_eq!(fixture.put(3).code, 0);
    assert_eq!(fixture.tiers(), vec![["fast", "slow"]; 3]);
}

/// Each command's own process metrics, as the files of `--metrics` have them.
#[test]
fn fills_repairs_gcs_and_scrubs_are_counted() {
    let fixture = Fixture::new(2, 1, &["--mirror", "2"]);
    let file = fixture.at("x.prom");
    let metric = |name: &str| {
        let metrics = fs::read_to_string(&file).unwrap();
        let start = format!("outlive_{name}{{file=\"x.prom\"}} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&start));
        value.map(|value| value.parse::<u64>().unwrap())
    };
    let run = |words: &[&str]| fixture.good(&[words, &["--metrics", text(&file)]].concat());
    fixture.put(1);
    run(&["pool", "fill"]);
    let slow: usize = fixture.shards("slow 1").iter().map(|(_, bytes)| bytes.len()).sum();
    assert_eq!(metric("fill_shards_total"), Some(fixture.shards("slow 1").len() as u64));
    assert_eq!(metric("fill_copied_bytes_total"), Some(slow as u64));
    assert_eq!(metric("fill_left_shards"), Some(0));
    let (lost, bytes) = fixture.shards("fast 1").swap_remove(0);
    fs::remove_file(lost).unwrap();
    run(&["pool", "repair"]);
    assert_eq!(metric("repair_shards_total"), Some(1));
    assert_eq!(metric("repair_written_bytes_total"), Some(bytes.len() as u64));
    assert_eq!(metric("repair_missing_shards"), Some(0));
    let (hurt, mut bytes) = fixture.shards("fast 2").swap_remove(0);
    bytes[5000] ^= 1;
    fs::write(hurt, bytes).unwrap();
    run(&["scrub"]);
    assert_eq!(metric("scrub_repaired_shards_total"), Some(1));
    assert_eq!((metric("scrub_damaged_packs"), metric("gc_held_bytes")), (Some(0), None));
    fixture.put(2);
    run(&["prune", "job", "--keep-last", "1"]);
    assert!(metric("gc_deleted_bytes_total").unwrap() > 100_000);
    assert_eq!((metric("gcs_total"), metric("gc_held_bytes")), (Some(1), Some(0)));
}
