//! `ls`, `show`, `export`, `verify`, `gc`, `du`, `diff` and `copy` on checkpoints of several ranks.

use crate::common;

use common::{json, outlive};
use outlive_capture::{ChangeTracker, MemorySource, Region};
use outlive_pool::{Environment, FormatConfig, PoolConfig, Tuning, create};
use outlive_store::commit::Commit;
use outlive_store::save::{CheckpointHeader, Committer, RankWriter, SaveRequest};
use outlive_types::{Epoch, JobName, Rank, Rng, SeededRng};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const RANKS: Rank = 3;

fn grid(rank: Rank, epoch: Epoch) -> Vec<u8> {
    let mut bytes = vec![0; 200_000];
    SeededRng::new(epoch * 100 + u64::from(rank)).fill(&mut bytes);
    bytes
}

/// Creates `dir/pool` with two checkpoints of three ranks.
fn pool_with_ranks(dir: &Path) -> PathBuf {
    pool_of(dir, 0)
}

/// The same with other content.
fn pool_of(dir: &Path, seed: u32) -> PathBuf {
    let path = dir.join("pool");
    let format = FormatConfig {
        container_bytes: 256 << 10,
        pack_bytes: 1 << 20,
        ..FormatConfig::new([6; 16])
    };
    let config = PoolConfig::new(format, Tuning { staging_bytes: 4 << 20, ..Tuning::default() });
    let pool = create(&path, config, Environment::system()).unwrap();
    let mut committer = Committer::new(JobName::new("heat").unwrap());
    let writers = (0..RANKS).map(|rank| RankWriter::new(rank, 1 << 20));
    let mut ranks: Vec<_> =
        writers.map(|writer| (writer, Arc::new(ChangeTracker::new()))).collect();
    for epoch in 1..=2 {
        let opened = committer.open(&pool).unwrap();
        let mut made = Vec::new();
        for (rank, (writer, tracker)) in (0..).zip(&mut ranks) {
            let (bytes, step) = (grid(rank + seed, epoch), epoch.to_le_bytes());
            let regions = vec![
                Region::from_bytes("grid", "<f8", vec![bytes.len() as u64 / 8], bytes.as_slice()),
                Region::from_bytes("step", "<u8", vec![1], &step[..]),
            ];
            let packs = writer.begin(&pool, &opened).unwrap();
            let mut source = MemorySource::new(tracker.clone(), regions, b"{}".to_vec(), 1);
            let (frozen, plan) = writer.freeze(&pool, epoch, &mut source, false).unwrap();
            let order = SaveRequest::default();
            let stored = writer.store(&pool, &packs, &plan, &*frozen, &order, &|| ()).unwrap();
            made.push((stored, frozen));
        }
        let images: Vec<_> = made.iter().map(|(stored, _)| stored.image().clone()).collect();
        let draft = CheckpointHeader { epoch, ..CheckpointHeader::default() };
        let Commit::Done(committed) = committer.commit(&pool, &draft, &images).unwrap() else {
            panic!("no other rank is at work")
        };
        for ((writer, _), (stored, frozen)) in ranks.iter_mut().zip(made) {
            writer.follow(&pool, stored, &committed);
            frozen.commit_baseline(Some(epoch));
        }
    }
    committer.head.close(&pool).unwrap();
    path
}

#[test]
fn each_rank_is_shown_and_exported_by_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_ranks(dir.path());
    let pool = pool.to_str().unwrap();
    let shown = json(&["show", pool, "heat", "--rank", "2", "--json"]);
    assert_eq!((&shown["rank"], &shown["manifest"]["epoch"]), (&2.into(), &2.into()));
    assert_eq!(shown["regions"][0]["name"], "grid");
    let text = outlive(&["show", pool, "heat", "1", "--rank", "0"]).out;
    assert!(text.contains("ranks        3\n") && text.contains("this rank    0\n"), "{text}");

    for rank in 0..RANKS {
        let to = dir.path().join(format!("out {rank}"));
        let words = [to.to_str().unwrap(), &rank.to_string()];
        let run = outlive(&["export", pool, "heat", "1", "--to", words[0], "--rank", words[1]]);
        assert_eq!(run.code, 0, "{run:?}");
        let bytes = fs::read(to.join("grid.npy")).unwrap();
        assert!(bytes.ends_with(&grid(rank, 1)), "rank {rank}");
    }
}

#[test]
fn a_missing_or_wrong_rank_is_refused_with_the_existing_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_ranks(dir.path());
    let pool = pool.to_str().unwrap();
    let to = dir.path().join("out");
    let to = to.to_str().unwrap();
    for words in [&["show", pool, "heat"][..], &["export", pool, "heat", "--to", to]] {
        let run = outlive(words);
        assert!(run.err.contains("has 3 ranks: choose one with `--rank`, from 0 to 2"), "{run:?}");
        assert_eq!(run.code, 2, "{run:?}");
    }
    let run = outlive(&["show", pool, "heat", "--rank", "3"]);
    assert!(run.err.contains("has ranks 0 to 2, and no rank 3"), "{run:?}");
    assert!(!Path::new(to).exists());
}

#[test]
fn other_commands_take_checkpoints_of_several_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_ranks(dir.path());
    let pool = pool.to_str().unwrap();
    let listed = json(&["ls", pool, "heat", "--json"]);
    assert_eq!(listed["checkpoints"][1]["world_size"], 3, "{listed}");
    assert_eq!(json(&["ls", pool, "--json"])["jobs"][0]["newest_world_size"], 3);
    for words in [&["ls", pool][..], &["ls", pool, "heat"]] {
        let told = outlive(words).out;
        let place = told.lines().next().unwrap().find("RANKS").unwrap();
        let cell = &told.lines().nth(1).unwrap()[place..place + "RANKS".len()];
        assert_eq!(cell.trim(), "3", "{told}");
    }
    assert_eq!(outlive(&["verify", pool]).code, 0);
    assert_eq!(outlive(&["du", pool, "heat"]).code, 0);
    assert_eq!(outlive(&["scrub", pool]).code, 0);
    assert_eq!(outlive(&["prune", pool, "heat", "--keep-last", "1"]).code, 0);
    let run = outlive(&["gc", pool]);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(outlive(&["verify", pool]).code, 0);
}

#[test]
fn one_rank_of_two_checkpoints_is_compared() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_ranks(dir.path());
    let pool = pool.to_str().unwrap();
    let run = outlive(&["diff", pool, "heat@1", "heat@2"]);
    assert!(run.err.contains("has 3 ranks: choose one with `--rank`, from 0 to 2"), "{run:?}");
    let run = outlive(&["diff", pool, "heat@1", "heat@2", "--rank", "3"]);
    assert!(run.code == 2 && run.err.contains("no rank 3"), "{run:?}");
    for rank in ["0", "2"] {
        let same = json(&["diff", pool, "heat@2", "heat", "--rank", rank, "--json"]);
        assert_eq!(
            (&same["same"], &same["rank"]),
            (&true.into(), &rank.parse::<u32>().unwrap().into())
        );
        let run = outlive(&["diff", pool, "heat@1", "heat", "--rank", rank, "--json"]);
        assert_eq!(run.code, 1, "{run:?}");
        let diff: serde_json::Value = serde_json::from_str(&run.out).unwrap();
        let names: Vec<_> =
            diff["changed"].as_array().unwrap().iter().map(|region| &region["name"]).collect();
        assert_eq!(names, ["grid", "step"]);
        assert_eq!(diff["changed"][0]["changed_pages"], 49, "{diff}");
    }
}

#[test]
fn all_ranks_are_copied() {
    let dir = tempfile::tempdir().unwrap();
    let from = pool_with_ranks(dir.path());
    let to = dir.path().join("backup");
    let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
    assert_eq!(outlive(&["pool", "init", to]).code, 0);
    let plan = outlive(&["copy", from, to, "--dry-run"]);
    assert!(plan.code == 0 && plan.out.contains("copy 1 2"), "{plan:?}");
    let first = json(&["copy", from, to, "heat", "--epoch=1", "--json"]);
    assert_eq!(first["jobs"][0]["copied"][0]["epoch"], 1, "{first}");
    let second = json(&["copy", from, to, "--json"]);
    assert_eq!(second["jobs"][0]["there"], serde_json::json!([1]), "{second}");
    assert_eq!(second["jobs"][0]["copied"][0]["epoch"], 2, "{second}");
    let again = outlive(&["copy", from, to]);
    assert!(again.out.contains("2 checkpoints there already, 0"), "{again:?}");

    assert_eq!(outlive(&["verify", to]).code, 0);
    let listed = |pool| json(&["ls", pool, "heat", "--json"])["checkpoints"].clone();
    for (here, there) in listed(from).as_array().unwrap().iter().zip(listed(to).as_array().unwrap())
    {
        for what in ["epoch", "world_size", "frozen_ns", "state_bytes"] {
            assert_eq!(here[what], there[what]);
        }
    }
    for (epoch, rank) in [(1, 0), (1, 2), (2, 1)] {
        let out = dir.path().join(format!("out {epoch} {rank}"));
        let words = [epoch.to_string(), rank.to_string()];
        let out_text = out.to_str().unwrap();
        let run =
            outlive(&["export", to, "heat", &words[0], "--rank", &words[1], "--to", out_text]);
        assert_eq!(run.code, 0, "{run:?}");
        assert!(fs::read(out.join("grid.npy")).unwrap().ends_with(&grid(rank, epoch)));
    }

    // A copy to another name in the same pool sends nothing again, and its gc finds all needed
    // data.
    let fork = json(&["copy", from, from, "heat", "--as", "fork", "--json"]);
    assert_eq!(fork["jobs"][0]["copied"].as_array().unwrap().len(), 2, "{fork}");
    assert_eq!(outlive(&["prune", from, "heat", "--keep-last", "1"]).code, 0);
    assert_eq!(outlive(&["gc", from]).code, 0);
    assert_eq!(outlive(&["verify", from]).code, 0);
    assert_eq!(outlive(&["prune", to, "heat", "--keep-last", "1"]).code, 0);
    assert_eq!(outlive(&["gc", to]).code, 0);
    assert_eq!(outlive(&["verify", to]).code, 0);
}

/// One name, two histories: only the image tables differ.
#[test]
fn another_history_of_ranks_is_not_copied_over() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    fs::create_dir(&a).unwrap();
    fs::create_dir(&b).unwrap();
    let (from, other) = (pool_with_ranks(&a), pool_of(&b, 50));
    let run = outlive(&["copy", from.to_str().unwrap(), other.to_str().unwrap()]);
    assert!(run.code == 2 && run.err.contains("checkpoint 1 is another"), "{run:?}");
}
