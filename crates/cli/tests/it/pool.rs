//! Pools of several directories, as an operator uses them: lost targets, targets that are away,
//! repairs.

use crate::common;

use common::{files, json, outlive};
use std::fs;
use std::path::{Path, PathBuf};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A pool of six directories, and files to put into it.
struct Fixture {
    dir: tempfile::TempDir,
    pool: PathBuf,
    from: PathBuf,
}

fn noise(seed: u64, words: u64) -> Vec<u8> {
    let word = |n: u64| (n ^ seed << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = |word: u64| word.rotate_left(17).wrapping_mul(seed | 1).to_le_bytes();
    (0..words).map(word).flat_map(mixed).collect()
}

impl Fixture {
    fn new(rule: &[&str]) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let (pool, from) = (dir.path().join("a pool"), dir.path().join("from"));
        fs::create_dir(&from).unwrap();
        let small = ["--container-bytes", "64KiB", "--pack-bytes", "128KiB"];
        let targets: Vec<String> = (1..=6).map(|n| format!("../disk {n}")).collect();
        let mut words = vec!["pool", "init", text(&pool)];
        words.extend(small);
        words.extend(targets.iter().flat_map(|target| ["--target", target]));
        words.extend(rule);
        let made = outlive(&words);
        assert_eq!(made.code, 0, "{made:?}");
        Fixture { dir, pool, from }
    }

    fn disk(&self, number: usize) -> PathBuf {
        self.dir.path().join(format!("disk {number}"))
    }

    fn put(&self, seed: u64) -> common::Run {
        fs::write(self.from.join("data"), noise(seed, 40_000)).unwrap();
        outlive(&["put", text(&self.pool), "job", text(&self.from)])
    }

    fn got(&self, epoch: &str) -> Vec<u8> {
        let to = tempfile::tempdir().unwrap();
        let got = outlive(&[
            "get",
            text(&self.pool),
            "job",
            "--epoch",
            epoch,
            "--to",
            text(&to.path().join("x")),
        ]);
        assert_eq!(got.code, 0, "{got:?}");
        files(to.path()).into_iter().find(|(path, _)| path.ends_with("data")).unwrap().1
    }

    fn run(&self, command: &[&str]) -> common::Run {
        outlive(&[command, &[text(&self.pool)]].concat())
    }
}

#[test]
fn two_of_six_directories_may_be_lost() {
    let fixture = Fixture::new(&["--erasure", "4+2"]);
    assert_eq!(fixture.put(1).code, 0);
    let status = json(&["pool", "status", text(&fixture.pool), "--json"]);
    assert_eq!(
        (status["survives"].as_u64(), status["redundancy"][0]["survives"].as_u64()),
        (Some(2), Some(2))
    );
    assert!(
        status["targets"].as_array().unwrap().iter().all(|t| t["shards"].as_u64() > Some(2)),
        "{status}"
    );

    // Two are away: all commands still work, with a warning.
    for number in [2, 5] {
        fs::rename(fixture.disk(number), fixture.dir.path().join(format!("away {number}")))
            .unwrap();
    }
    let put = fixture.put(2);
    assert_eq!(put.code, 0, "{put:?}");
    assert!(
        put.err.contains("does without a target") && put.err.contains("less redundancy"),
        "{}",
        put.err
    );
    assert!(!fixture.disk(2).exists(), "nothing is made in its place");
    assert!(fixture.got("1") == noise(1, 40_000) && fixture.got("2") == noise(2, 40_000));
    for command in [&["ls"][..], &["gc"], &["scrub"], &["verify"]] {
        let run = fixture.run(command);
        assert_eq!(run.code, 0, "{command:?}: {run:?}");
    }
    let status = fixture.run(&["pool", "status"]);
    assert!(
        status.out.contains("AWAY") && status.out.contains("no target more may be lost"),
        "{}",
        status.out
    );
    let repair = fixture.run(&["pool", "repair"]);
    assert_eq!(repair.code, 6, "{repair:?}");
    assert!(repair.out.contains("there is no target for them"), "{}", repair.out);

    // Without a third one no pack can be read, and none is reported as lost.
    fs::rename(fixture.disk(1), fixture.dir.path().join("away 1")).unwrap();
    for (command, code) in [(&["ls"][..], 0), (&["gc"], 6), (&["scrub"], 6), (&["verify"], 6)] {
        let run = fixture.run(command);
        assert_eq!(run.code, code, "{command:?}: {run:?}");
        assert!(run.err.contains("more than 2 of 6 targets are away"), "{}", run.err);
    }
    assert_eq!(fixture.put(3).code, 6);
    for number in [1, 2, 5] {
        fs::rename(fixture.dir.path().join(format!("away {number}")), fixture.disk(number))
            .unwrap();
    }
    // The returned targets still have packs that the gc has deleted meanwhile.
    let repair = fixture.run(&["pool", "repair"]);
    assert_eq!(repair.code, 0, "{repair:?}");
    assert_eq!(fixture.run(&["gc"]).code, 0);
    let status = fixture.run(&["pool", "status"]);
    assert!(status.out.contains("all 2 checkpoints have it"), "{}", status.out);
    assert!(fixture.run(&["pool", "repair"]).out.contains("no shard of them is missing"));
    assert!(fixture.run(&["scrub"]).out.contains("Everything that is needed is whole"));
}

#[test]
fn packs_on_other_targets_survive_the_loss_of_too_many_targets() {
    let fixture = Fixture::new(&[]);
    let put = |seed: u64| {
        fs::write(fixture.from.join("data"), noise(seed, 2000)).unwrap();
        outlive(&["put", text(&fixture.pool), &format!("job {seed}"), text(&fixture.from)])
    };
    let get = |seed: u64| {
        let (to, job) = (tempfile::tempdir().unwrap(), format!("job {seed}"));
        let at = to.path().join("x");
        let got = outlive(&["get", text(&fixture.pool), &job, "--to", text(&at)]);
        let found = files(to.path()).into_iter().find(|(path, _)| path.ends_with("data"));
        if got.code == 0 {
            assert!(found.unwrap().1 == noise(seed, 2000));
        }
        got
    };
    (1..=8).for_each(|seed| assert_eq!(put(seed).code, 0));
    let is_used = |disk: &usize| {
        let is_shard = |path: &Path| path.extension().is_some_and(|e| e == "shard");
        files(&fixture.disk(*disk)).iter().any(|(path, _)| is_shard(path))
    };
    // The disks with the packs of 8 saves are random.
    let used: Vec<usize> = (1..=6).filter(is_used).collect();
    let lost = used[0].to_string();
    fs::remove_dir_all(fixture.disk(used[0])).unwrap();

    // Its packs may come back, so none is reported as lost.
    let codes: Vec<i32> = (1..=8).map(|seed| get(seed).code).collect();
    assert_eq!(codes.contains(&0), used.len() > 1, "{codes:?}");
    assert!(codes.contains(&6), "{codes:?}");
    assert!(codes.iter().all(|code| [0, 6].contains(code)), "{codes:?}");
    assert_eq!(put(9).code, 6);
    assert_eq!(fixture.run(&["scrub"]).code, 6);
    let status = fixture.run(&["pool", "status"]);
    assert!(status.code == 0 && status.out.contains("AWAY"), "{status:?}");
    let refused = outlive(&["pool", "remove", text(&fixture.pool), &lost]);
    assert_eq!(refused.code, 6, "{refused:?}");

    // If it is given up, the packs on the others stay.
    for _ in 0..2 {
        let removed = outlive(&["pool", "remove", text(&fixture.pool), &lost, "--lost"]);
        assert_eq!(removed.code, 0, "{removed:?}");
    }
    assert_eq!(fixture.run(&["scrub"]).code, 3);
    let there: Vec<i32> = (1..=8).map(|seed| get(seed).code).collect();
    let expected: Vec<i32> = codes.iter().map(|code| if *code == 0 { 0 } else { 3 }).collect();
    assert_eq!(there, expected);
    assert_eq!(put(9).code, 0);
    assert_eq!(get(9).code, 0);
}

#[test]
fn a_mirror_s_copies_are_each_enough() {
    let fixture = Fixture::new(&["--mirror", "3"]);
    assert_eq!(fixture.put(1).code, 0);
    for lost in [[1, 2], [3, 4], [5, 6]] {
        for number in lost {
            for (path, _) in files(&fixture.disk(number)) {
                if path.extension().is_some_and(|e| e == "shard") {
                    fs::remove_file(fixture.disk(number).join(path)).unwrap();
                }
            }
        }
        assert!(fixture.got("1") == noise(1, 40_000), "{lost:?}");
        let repair = fixture.run(&["pool", "repair"]);
        assert_eq!(repair.code, 0, "{repair:?}");
    }
    assert!(fixture.got("1") == noise(1, 40_000));
}

#[test]
fn a_save_may_refuse_to_go_on_with_less() {
    let fixture = Fixture::new(&["--erasure", "4+2", "--writes", "full"]);
    assert_eq!(fixture.put(1).code, 0);
    fs::rename(fixture.disk(6), fixture.dir.path().join("away")).unwrap();
    let put = fixture.put(2);
    assert_eq!(put.code, 6, "{put:?}");
    assert!(put.err.contains("target 6") && put.err.contains("is missing"), "{}", put.err);
    assert!(fixture.got("1") == noise(1, 40_000));
}

#[test]
fn a_pool_that_cannot_be_is_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let new = dir.path().join("new");
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let two = ["--target", text(&a), "--target", text(&b)];
    for (words, told) in [
        (&["--mirror", "3"][..], "needs 3 targets that fail by themselves, and there are 2"),
        (&["--mirror", "1"], "at least 2 copies"),
        (&["--erasure", "4+2"], "needs 6 targets"),
        (&["--erasure", "0+2"], "at least one data"),
        (&["--erasure", "4"], "such as 4+2"),
        (&["--target", text(&a)], "named twice"),
        (&["--mirror", "2", "--erasure", "1+1"], "cannot be used with"),
    ] {
        let run = outlive(&[&["pool", "init", text(&new)][..], &two, words].concat());
        assert_eq!(run.code, 2, "{words:?}: {run:?}");
        assert!(run.err.contains(told), "{words:?}: {}", run.err);
        assert!(!new.exists() && !a.exists(), "{words:?}");
    }
}

/// An edit of `pool.toml` cannot lose a target.
#[test]
fn targets_are_those_of_the_log() {
    let fixture = Fixture::new(&["--erasure", "4+2"]);
    assert_eq!(fixture.put(1).code, 0);
    let descriptor = fixture.pool.join("pool.toml");
    let text = fs::read_to_string(&descriptor).unwrap();
    let at = text.find("[[target]]\nid = 3").unwrap();
    let end = at + text[at + 1..].find("[[target]]").unwrap() + 1;
    let without = format!("{}{}", &text[..at], &text[end..]);
    fs::write(&descriptor, &without).unwrap();
    let status = json(&["pool", "status", fixture.pool.to_str().unwrap(), "--json"]);
    assert_eq!(status["targets"].as_array().unwrap().len(), 6, "left out, and there all the same");
    for (wrong, told) in [
        (text.replace("id = 3", "id = 9"), "the pool has no target 9"),
        (text.replace("id = 3", "id = 2"), "two [[target]] tables with id = 2"),
        (text.replace("id = 3\n", "").replace("../disk 3", "../disk 33"), "has no id"),
        (text.replace("../disk 3", "../disk 2"), "holds target 2 of this pool"),
        (
            text.replace("parity = 2", "parity = 1"),
            "was made with erasure = { data = 4, parity = 2 }",
        ),
    ] {
        fs::write(&descriptor, wrong).unwrap();
        let run = fixture.run(&["ls"]);
        let warned = run.code == 0 && run.err.contains(told);
        assert!(warned || run.code == 2 && run.err.contains(told), "{told}: {run:?}");
    }
    // A moved target is found at the descriptor's location.
    fs::rename(fixture.disk(3), fixture.dir.path().join("moved")).unwrap();
    fs::write(&descriptor, text.replace("../disk 3", "../moved")).unwrap();
    assert_eq!(fixture.run(&["verify"]).code, 0);
    assert!(!fixture.run(&["pool", "status"]).out.contains("AWAY"));
}

/// Targets are added and removed, and a program with an older table finds everything.
#[test]
fn targets_are_added_drained_removed_and_replaced() {
    for rule in [&["--erasure", "4+2"][..], &[]] {
        let fixture = Fixture::new(rule);
        assert_eq!(fixture.put(1).code, 0);
        let pool = fixture.pool.clone();
        let run = |words: &[&str]| {
            let mut words: Vec<&str> = words.to_vec();
            words.insert(2, text(&pool));
            outlive(&words)
        };
        let shards = |number: usize| {
            let is_shard = |path: &Path| path.extension().is_some_and(|e| e == "shard");
            files(&fixture.disk(number)).iter().filter(|(path, _)| is_shard(path)).count()
        };
        fs::write(pool.join("pool.toml"), {
            let text = fs::read_to_string(pool.join("pool.toml")).unwrap();
            text.replace("\n[tuning]", "\n# mine\n[tuning]")
        })
        .unwrap();
        if !rule.is_empty() {
            let refused = run(&["pool", "remove", "3"]);
            assert_eq!(refused.code, 2, "{refused:?}");
            assert!(refused.err.contains("needs 6 targets"), "{}", refused.err);
        }
        let added = run(&["pool", "add", "../disk 7"]);
        assert_eq!(added.code, 0, "{added:?}");
        assert!(added.out.contains("Target 7"), "{}", added.out);
        // A repetition changes nothing.
        for (location, told) in [("../disk 7", "Target 7"), ("../disk 2", "Target 2")] {
            let again = run(&["pool", "add", location]);
            assert!(again.code == 0 && again.out.contains(told), "{again:?}");
        }
        let refused = run(&["pool", "add", "s3x:a"]);
        assert!(refused.code == 2 && refused.err.contains("no scheme"), "{refused:?}");
        // A target of another pool is refused and not changed.
        let strange = pool.with_file_name("another pool");
        assert_eq!(outlive(&["pool", "init", text(&strange)]).code, 0);
        let before = files(&strange);
        let refused = run(&["pool", "add", text(&strange)]);
        assert_eq!((refused.code, refused.out.as_str()), (2, ""), "{refused:?}");
        assert!(refused.err.contains("belongs to the pool"), "{refused:?}");
        assert_eq!(files(&strange), before);
        // Without redundancy, a few packs need not be on all targets.
        let full = [2, 3, 4, 6].into_iter().find(|number| shards(*number) > 0).unwrap();
        let number = full.to_string();
        assert_eq!(shards(7), 0);
        let drained = run(&["pool", "drain", &number]);
        assert_eq!(drained.code, 0, "{drained:?}");
        assert_eq!(shards(full), 0);
        assert!(shards(7) > 0 || rule.is_empty());
        // No new pack goes there.
        assert_eq!(fixture.put(2).code, 0);
        assert_eq!(shards(full), 0);
        let removed = run(&["pool", "remove", &number]);
        assert_eq!(removed.code, 0, "{removed:?}");
        assert_eq!(run(&["pool", "remove", &number]).code, 0, "it has left");
        assert_eq!(run(&["pool", "remove", "99"]).code, 2, "there never was such a target");
        assert!(fixture.got("1") == noise(1, 40_000) && fixture.got("2") == noise(2, 40_000));
        let toml = fs::read_to_string(pool.join("pool.toml")).unwrap();
        assert!(
            toml.contains("# mine")
                && toml.contains("disk 7")
                && !toml.contains(&format!("disk {full}")),
            "{toml}"
        );
        // An existing target is emptied into the new one; a repetition changes nothing.
        let replaced = run(&["pool", "replace", "1", "../disk 8"]);
        assert_eq!(replaced.code, 0, "{replaced:?}");
        assert_eq!(shards(1), 0);
        let again = run(&["pool", "replace", "1", "../disk 8"]);
        assert!(again.code == 0 && again.out.contains("Target 8"), "{again:?}");
        // An emptied target may return, with another number.
        let added = run(&["pool", "add", "../disk 1"]);
        assert!(added.code == 0 && added.out.contains("Target 9"), "{added:?}");
        assert_eq!(run(&["pool", "remove", "9"]).code, 0);
        for command in ["verify", "scrub", "gc"] {
            assert_eq!(outlive(&[command, text(&pool)]).code, 0, "{command}");
        }
        // The log's marker may replace a lost descriptor.
        fs::copy(pool.join("log/.pool.toml"), pool.join("pool.toml")).unwrap();
        assert_eq!(outlive(&["verify", text(&pool)]).code, 0);
        fs::rename(fixture.disk(5), fixture.dir.path().join("gone")).unwrap();
        let replaced = run(&["pool", "replace", "5", "../disk 9"]);
        match rule.is_empty() {
            true => assert!(replaced.code != 0, "{replaced:?}"),
            false => {
                assert_eq!(replaced.code, 0, "{replaced:?}");
                assert!(replaced.out.contains("rewritten"), "{}", replaced.out);
                assert_eq!(run(&["pool", "repair"]).code, 0);
                let status = run(&["pool", "status"]);
                assert!(status.out.contains("all 2 checkpoints have it"), "{}", status.out);
                assert!(fixture.got("1") == noise(1, 40_000));
            }
        }
    }
}
