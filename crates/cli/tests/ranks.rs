//! `ls`, `show`, `export`, `verify`, `gc` and `du` on checkpoints of several ranks.

mod common;

use common::{json, outlive};
use outlive_capture::{ChangeTracker, MemorySource, Region};
use outlive_pool::{Environment, FormatConfig, PoolConfig, Tuning, create};
use outlive_store::commit::Commit;
use outlive_store::save::{Committer, Draft, Order, RankWriter};
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

/// Makes `dir/pool` with two checkpoints of three ranks.
fn pool_with_ranks(dir: &Path) -> PathBuf {
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
            let (bytes, step) = (grid(rank, epoch), epoch.to_le_bytes());
            let regions = vec![
                Region::from_bytes("grid", "<f8", vec![bytes.len() as u64 / 8], bytes.as_slice()),
                Region::from_bytes("step", "<u8", vec![1], &step[..]),
            ];
            let packs = writer.begin(&pool, &opened).unwrap();
            let mut source = MemorySource::new(tracker.clone(), regions, b"{}".to_vec(), 1);
            let (frozen, plan) = writer.freeze(&pool, epoch, &mut source).unwrap();
            let order = Order::default();
            let stored = writer.store(&pool, &packs, &plan, &*frozen, &order, &|| ()).unwrap();
            made.push((stored, frozen));
        }
        let images: Vec<_> = made.iter().map(|(stored, _)| stored.image().clone()).collect();
        let draft = Draft { epoch, ..Draft::default() };
        let Commit::Done(committed) = committer.commit(&pool, &draft, &images).unwrap() else {
            panic!("nobody else is at work")
        };
        for ((writer, _), (stored, frozen)) in ranks.iter_mut().zip(made) {
            writer.follow(&pool, stored, &committed);
            frozen.settle(Some(epoch));
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
fn who_names_no_rank_or_a_wrong_one_is_told_which_there_are() {
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
    assert_eq!(outlive(&["verify", pool]).code, 0);
    assert_eq!(outlive(&["du", pool, "heat"]).code, 0);
    assert_eq!(outlive(&["scrub", pool]).code, 0);
    assert_eq!(outlive(&["prune", pool, "heat", "--keep-last", "1"]).code, 0);
    let run = outlive(&["gc", pool]);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(outlive(&["verify", pool]).code, 0);
    // What works for one rank only says so.
    let run = outlive(&["diff", pool, "heat@2", "heat@2"]);
    assert!(run.code != 0 && run.err.contains("has 3 ranks"), "{run:?}");
}
