//! Random trees, edited over many epochs, compared with a model that only remembers each state.

use crate::common;
use crate::trees;

use common::noise;
use outlive_types::{Epoch, Rng, SeededRng};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::Ordering;
use trees::*;

/// A change of a tree.
#[derive(Clone, Debug)]
enum Act {
    Write { path: usize, seed: u64, bytes: usize },
    Edit { path: usize, at: usize, seed: u64 },
    Cut { path: usize, to: usize },
    Hole { path: usize, at: u64 },
    Remove { path: usize },
    Rename { path: usize, to: usize },
    Link { path: usize, to: usize },
    Symlink { path: usize, to: usize },
    Mode { path: usize, mode: u32 },
    Touch { path: usize, s: i64 },
}

const PATHS: [&str; 10] =
    ["a", "a.b", "a-", "d/a", "d/b", "d/e/f/g", "d/e/h", "d.x/a", "z/y/x", "z/é\u{1F600}"];

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let path = || 0..PATHS.len();
    let bytes = prop_oneof![0..600usize, 0..40_000usize, 900_000..1_300_000usize];
    let act = prop_oneof![
        5 => (path(), 0..50u64, bytes).prop_map(|(path, seed, bytes)| Act::Write { path, seed, bytes }),
        3 => (path(), any::<usize>(), any::<u64>())
            .prop_map(|(path, at, seed)| Act::Edit { path, at, seed }),
        1 => (path(), any::<usize>()).prop_map(|(path, to)| Act::Cut { path, to }),
        1 => (path(), 0..5_000_000u64).prop_map(|(path, at)| Act::Hole { path, at }),
        1 => path().prop_map(|path| Act::Remove { path }),
        1 => (path(), path()).prop_map(|(path, to)| Act::Rename { path, to }),
        2 => (path(), path()).prop_map(|(path, to)| Act::Link { path, to }),
        1 => (path(), path()).prop_map(|(path, to)| Act::Symlink { path, to }),
        1 => (path(), 0..0o10000u32).prop_map(|(path, mode)| Act::Mode { path, mode }),
        1 => (path(), any::<i32>()).prop_map(|(path, s)| Act::Touch { path, s: s.into() }),
    ];
    prop::collection::vec(act, 0..8)
}

/// Applies the change, if possible.
fn act(dir: &Path, act: &Act) -> std::io::Result<()> {
    let at = |path: &usize| dir.join(PATHS[*path]);
    let is_file = |path: &Path| fs::symlink_metadata(path).is_ok_and(|there| there.is_file());
    let parent = |path: &Path| fs::create_dir_all(path.parent().unwrap());
    match act {
        Act::Write { path, seed, bytes } => {
            let path = at(path);
            let _ = fs::remove_file(&path);
            parent(&path)?;
            fs::write(path, noise(*seed, *bytes))
        }
        Act::Edit { path, at: offset, seed } if is_file(&at(path)) => {
            let length = fs::metadata(at(path))?.len() as usize;
            edit(&at(path), (offset % (length + 1)) as u64, &noise(*seed, 10));
            Ok(())
        }
        Act::Cut { path, to } if is_file(&at(path)) => {
            let length = fs::metadata(at(path))?.len() as usize;
            OpenOptions::new().write(true).open(at(path))?.set_len((to % (length + 1)) as u64)
        }
        Act::Hole { path, at: offset } if is_file(&at(path)) => {
            edit(&at(path), *offset, b"behind a hole");
            Ok(())
        }
        Act::Remove { path } => fs::remove_file(at(path)),
        Act::Rename { path, to } => {
            parent(&at(to))?;
            fs::rename(at(path), at(to))
        }
        Act::Link { path, to } => {
            parent(&at(to))?;
            fs::hard_link(at(path), at(to))
        }
        Act::Symlink { path, to } => {
            parent(&at(path))?;
            symlink(PATHS[*to], at(path))
        }
        Act::Mode { path, mode } if is_file(&at(path)) => {
            // The test's user must still be able to read it.
            fs::set_permissions(at(path), fs::Permissions::from_mode(mode | 0o600))
        }
        Act::Touch { path, s } if fs::symlink_metadata(at(path)).is_ok() => {
            set_mtime(&at(path), *s, i64::from(s.unsigned_abs() as u32 % 1_000_000_000));
            Ok(())
        }
        _ => Ok(()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    })]

    /// Each epoch is restored as the tree was then. The clock is right, so files are unsettled, or
    /// ahead, so `stat` must show all edits.
    #[test]
    fn every_epoch_comes_back(
        edits in prop::collection::vec(acts(), 1..8),
        threads in 1..4u32,
        is_ahead: bool,
        seed: u64,
    ) {
        let world = World::tuned(|tuning| tuning.threads = threads);
        if !is_ahead {
            world.clock.ahead_ns.store(0, Ordering::Relaxed);
        }
        let source = world.directory("source");
        let mut job = world.job();
        let mut expected = BTreeMap::new();
        let rng = SeededRng::new(seed);
        for acts in &edits {
            for next in acts {
                // Many changes are impossible, and then do nothing.
                let _ = act(&source, next);
            }
            let report = put_whole(&job, &source);
            expected.insert(report.stats.epoch, snapshot(&source));
            let mut chance = [0];
            rng.fill(&mut chance);
            match chance[0] % 4 {
                0 => job = world.job(),
                1 => {
                    // The newest stays while its program may continue.
                    let older = expected.len() - 1;
                    let drop: Vec<Epoch> =
                        expected.keys().copied().take(older).step_by(2).collect();
                    prune(&world.pool, &drop).unwrap();
                    expected.retain(|epoch, _| !drop.contains(epoch));
                }
                _ => {}
            }
            // No program can distinguish edits within one tick of the file system's clock.
            if is_ahead {
                tick(world.dir.path());
            }
        }
        for (epoch, files) in &expected {
            same(&got(&job, *epoch, world.dir.path()), files, &format!("epoch {epoch}"));
        }
        prop_assert_eq!(job.verify(None).unwrap().findings, vec![]);
    }
}
