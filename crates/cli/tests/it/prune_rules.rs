//! `outlive prune` by the calendar, and of all jobs at once.

use crate::common;

use common::{files, json, outlive, pool_with_job};
use outlive_capture::{ChangeTracker, MemorySource, Region};
use outlive_pool::Environment;
use outlive_store::{Job, JobOptions};
use outlive_types::{Clock, SystemClock};
use serde_json::{Value, json as value};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A clock of which the test sets the date.
#[derive(Debug, Default)]
struct Calendar {
    unix_ns: AtomicU64,
    system: SystemClock,
}

impl Clock for Calendar {
    fn unix_ns(&self) -> u64 {
        self.unix_ns.load(Ordering::Relaxed)
    }

    fn monotonic(&self) -> Duration {
        self.system.monotonic()
    }
}

/// Saves a checkpoint of "daily" at each of these hours since 2024-01-01, a Monday.
fn save_at(pool: &Path, hours: &[u64]) {
    let clock = Arc::new(Calendar::default());
    let env = Environment { clock: clock.clone(), ..Environment::system() };
    let pool = outlive_pool::open(pool, env).unwrap();
    let job = Job::open(&pool, "daily", JobOptions::default()).unwrap();
    let tracker = Arc::new(ChangeTracker::new());
    for hour in hours {
        let seconds = 1_704_067_200 + hour * 3600;
        clock.unix_ns.store(seconds * 1_000_000_000, Ordering::Relaxed);
        let region = Region::from_bytes("n", "<u8", vec![], &hour.to_le_bytes()[..]);
        let mut source = MemorySource::new(tracker.clone(), vec![region], Vec::new(), 1);
        job.save(&mut source).unwrap().wait(None).unwrap().unwrap();
    }
    job.close().unwrap();
}

fn epochs(pool: &Path, job: &str) -> Vec<u64> {
    let listed = json(&["ls", text(pool), job, "--json"]);
    let epoch = |checkpoint: &Value| checkpoint["epoch"].as_u64().unwrap();
    listed["checkpoints"].as_array().unwrap().iter().map(epoch).collect()
}

/// Returns the epochs that a dry run drops.
fn dropped(pool: &Path, rules: &[&str]) -> Value {
    let words = [&["prune", text(pool), "daily", "--dry-run", "--json"], rules].concat();
    json(&words)["retention"]["dropped"].clone()
}

#[test]
fn the_newest_of_each_period_stays() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    // Epochs 1 to 9: Monday twice, Tuesday twice, the next Monday, February twice, and 2025 twice.
    save_at(&pool, &[1, 2, 25, 26, 7 * 24, 31 * 24, 32 * 24, 366 * 24, 366 * 24 + 1]);
    for (rules, gone) in [
        (&["--keep-hourly", "3"][..], value!([1, 2, 3, 4, 5, 6])),
        (&["--keep-daily", "3"], value!([1, 2, 3, 4, 5, 8])),
        (&["--keep-daily", "6"], value!([1, 3, 8])),
        (&["--keep-daily", "7"], value!([3, 8])),
        (&["--keep-weekly", "4"], value!([1, 2, 3, 6, 8])),
        (&["--keep-monthly", "3"], value!([1, 2, 3, 4, 6, 8])),
        (&["--keep-yearly", "2"], value!([1, 2, 3, 4, 5, 6, 8])),
        (&["--keep-yearly", "3"], value!([2, 3, 4, 5, 6, 8])),
        (&["--keep-yearly", "2", "--keep-hourly", "2"], value!([1, 2, 3, 4, 5, 6])),
        (&["--keep", "yearly 2 | daily 4"], value!([1, 2, 3, 4, 8])),
        (&["--keep", "yearly 2", "--keep-last", "3"], value!([1, 2, 3, 4, 5, 6])),
        (&["--keep-hourly", "0"], value!([1, 2, 3, 4, 5, 6, 7, 8])),
        (&["--keep-hourly", "18446744073709551615"], value!([])),
    ] {
        assert_eq!(dropped(&pool, rules), gone, "{rules:?}");
    }
    let prune = |more: &[&str]| outlive(&[&["prune", text(&pool), "daily"], more].concat());
    for wrong in ["-1", "x", "1.5", "", "18446744073709551616"] {
        assert_eq!(prune(&["--keep-daily", wrong]).code, 2, "{wrong}");
        assert_eq!(prune(&["--keep", &format!("daily {wrong}")]).code, 2, "{wrong}");
    }
    let twice = prune(&["--keep", "daily 2", "--keep-daily", "3"]);
    assert!(twice.code == 2 && twice.err.contains("two rules begin with \"daily\""), "{twice:?}");
    assert_eq!(epochs(&pool, "daily").len(), 9);
    let why = prune(&["--keep-daily", "7", "--dry-run"]);
    assert!(why.out.contains("keep 1  the oldest, as only 6 days have one"), "{why:?}");
    assert!(why.out.contains("keep 9  the newest of its day"), "{why:?}");
    // The same rules again find nothing more to drop.
    for _ in 0..2 {
        assert_eq!(prune(&["--keep-monthly", "3"]).code, 0);
        assert_eq!(epochs(&pool, "daily"), [5, 7, 9]);
    }
    let descriptor = pool.join("pool.toml");
    let toml = fs::read_to_string(&descriptor).unwrap();
    fs::write(&descriptor, toml.replace("keep = \"\"", "keep = \"yearly 1\"")).unwrap();
    assert_eq!(prune(&[]).code, 0);
    assert_eq!(epochs(&pool, "daily"), [9]);
}

#[test]
fn all_jobs_are_pruned_by_the_same_rules() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    save_at(&pool, &[1, 2, 3, 4]);
    let prune = |more: &[&str]| outlive(&[&["prune", text(&pool)], more].concat());
    let before = files(&pool);
    for (words, said) in [
        (&["--keep-last", "1"][..], "no job is named"),
        (&["--all"], "--all drops all checkpoints of one job"),
        (&["--all", "--keep-last", "1"], "--all drops all checkpoints of one job"),
        (&["--all-jobs", "--all"], "--all"),
        (&["daily", "--all-jobs", "--keep-last", "1"], "--all-jobs"),
        (&["--all-jobs", "--drop", "1"], "--drop"),
        (&["--all-jobs"], "job daily cannot be pruned, so nothing was dropped"),
        (&["--all-jobs", "--keep-best", "loss"], "no checkpoint has the metric"),
        (&["--all-jobs", "--keep-every", "0"], "every 0th"),
    ] {
        let run = prune(words);
        assert!(run.code == 2 && run.err.contains(said), "{words:?}: {run:?}");
        assert_eq!(files(&pool), before, "{words:?}");
    }
    let dry =
        json(&["prune", text(&pool), "--all-jobs", "--keep-last", "2", "--dry-run", "--json"]);
    let gone = |retention: &Value| {
        let of = |job: &Value| (job["job"].clone(), job["dropped"].clone());
        retention.as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    let both = [(value!("daily"), value!([1, 2])), (value!("gray scott"), value!([1]))];
    assert_eq!(gone(&dry["retention"]), both);
    assert_eq!(files(&pool), before);
    let run = prune(&["--all-jobs", "--keep-last", "2"]);
    assert!(run.code == 0 && run.out.contains("Job daily: 2 checkpoints go\n"), "{run:?}");
    assert!(run.out.contains("Job gray scott: 1 checkpoint goes\n"), "{run:?}");
    for _ in 0..2 {
        assert_eq!((epochs(&pool, "daily"), epochs(&pool, "gray scott")), (vec![3, 4], vec![2, 3]));
        let again = prune(&["--all-jobs", "--keep-last", "2"]);
        assert!(
            again.code == 0 && again.out.contains("Job daily: 0 checkpoints go\n"),
            "{again:?}"
        );
    }
    // A job without any checkpoint left is no obstacle.
    assert_eq!(prune(&["daily", "--all"]).code, 0);
    let rest = json(&["prune", text(&pool), "--all-jobs", "--keep-last", "1", "--json"]);
    assert_eq!(gone(&rest["retention"]), [(value!("gray scott"), value!([2]))]);
    assert_eq!(epochs(&pool, "gray scott"), [3]);
}

/// A prune that ends after its drops has done them for all jobs; the same again frees the space.
#[test]
fn a_prune_of_all_jobs_that_ended_early_is_given_again() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    save_at(&pool, &[1, 2, 3]);
    let words = ["prune", text(&pool), "--all-jobs", "--keep-hourly", "1", "--json"];
    let other = outlive_pool::open(&pool, Environment::system()).unwrap();
    let turn = other.log().lock_collecting().unwrap();
    let first = json(&words);
    assert_eq!((&first["collected"], &first["deleted_packs"]), (&value!("postponed"), &value!(0)));
    assert_eq!((epochs(&pool, "daily"), epochs(&pool, "gray scott")), (vec![3], vec![3]));
    drop(turn);
    let again = json(&words);
    assert_eq!(again["collected"], "done");
    assert!(again["deleted_packs"].as_u64() > Some(0), "{again}");
    assert_eq!(again["retention"].as_array().unwrap().len(), 2);
    let nothing: [u64; 0] = [];
    assert_eq!(again["retention"][0]["dropped"], value!(nothing));
}
