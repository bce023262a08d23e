//! Runs the command as a process, on a pool that the store has made.

use outlive_capture::{ChangeTracker, MemorySource, Region};
use outlive_pool::{Environment, FormatConfig, PoolConfig, Tuning};
use outlive_store::{Job, JobOptions};
use outlive_types::{Rng, SeededRng};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

/// Result of a run of the command.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

pub fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outlive"));
    command.args(words);
    command
}

pub fn outlive(words: &[&str]) -> Run {
    Run::of(&mut command(words))
}

impl Run {
    /// Runs a command to its end.
    pub fn of(command: &mut Command) -> Run {
        let Output { status, stdout, stderr } = command.output().unwrap();
        Run {
            code: status.code().expect("it was not killed"),
            out: String::from_utf8(stdout).unwrap(),
            err: String::from_utf8(stderr).unwrap(),
        }
    }
}

/// Returns the JSON of a run that must succeed.
pub fn json(words: &[&str]) -> Value {
    let run = outlive(words);
    assert_eq!(run.code, 0, "{words:?}: {run:?}");
    serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{error}: {}", run.out))
}

/// Returns the large array at an epoch.
pub fn big(epoch: u64) -> Vec<u8> {
    let mut bytes = vec![0; 240_000];
    SeededRng::new(epoch).fill(&mut bytes);
    bytes
}

/// Creates `dir/pool` with three checkpoints of the job "gray scott".
pub fn pool_with_job(dir: &Path) -> PathBuf {
    let path = dir.join("pool");
    let format = FormatConfig {
        container_bytes: 256 << 10,
        pack_bytes: 1 << 20,
        ..FormatConfig::new([5; 16])
    };
    let tuning = Tuning { staging_bytes: 4 << 20, ..Tuning::default() };
    let config = PoolConfig::new(format, tuning);
    let pool = outlive_pool::create(&path, config, Environment::system()).unwrap();
    let job = Job::open(&pool, "gray scott", JobOptions::default()).unwrap();
    let tracker = Arc::new(ChangeTracker::new());
    for epoch in 1..=3u8 {
        let region = |name: &str, dtype: &str, shape: &[u64], bytes: &[u8]| {
            Region::from_bytes(name, dtype, shape.to_vec(), bytes)
        };
        let regions = vec![
            region("u\u{1b}[2J", "<f8", &[300, 100], &big(u64::from(epoch))),
            region("zeros", "|u1", &[100_000], &[0; 100_000]),
            region("params/k", "<f8", &[], &0.25f64.to_le_bytes()),
            region("step", "py:int", &[], &[epoch.wrapping_neg()]),
            region("rate", "py:float", &[], &1e-3f64.to_le_bytes()),
            region("note", "py:str", &[], b"half\nway"),
            region("none", "py:none", &[], b""),
            region("../../escape", "py:bytes", &[], b"x"),
            region("empty", "<f4", &[0, 3], b""),
            region("columns", "<i2", &[2, 2], &[1, 0, 2, 0, 3, 0, 4, 0]),
        ];
        let attachment = br#"{"outlive.python": 1, "fortran": [9]}"#.to_vec();
        let mut source = MemorySource::new(tracker.clone(), regions, attachment, 1);
        let saved = job.save(&mut source).unwrap().wait(None).unwrap().unwrap();
        assert_eq!(saved.epoch, u64::from(epoch));
    }
    job.close().unwrap();
    path
}

/// Returns every file below `path`, with its contents, by name.
pub fn files(path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let bytes = fs::read(&path).unwrap();
            found.push((path, bytes));
        }
    }
    found.sort();
    found
}

/// Flips a bit of the large array that checkpoint `epoch` stored.
pub fn damage_array(pool: &Path, epoch: u64) {
    damage(pool, &big(epoch)[..64]);
}

/// Flips a bit of the first file of a pool that has these bytes.
pub fn damage(pool: &Path, wanted: &[u8]) {
    for (path, mut bytes) in files(pool) {
        if let Some(at) = bytes.windows(wanted.len()).position(|window| window == wanted) {
            bytes[at] ^= 1;
            fs::write(path, bytes).unwrap();
            return;
        }
    }
    panic!("the bytes are in no file");
}
