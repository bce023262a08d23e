//! Space that a job with rules takes once it is closed.

use crate::common;

use common::{Program, State, noise};
use outlive_backend::MemoryTarget;
use outlive_log::MemoryLog;
use outlive_pool::{Environment, FormatConfig, Pool, PoolConfig, Tuning};
use outlive_store::Job;
use outlive_store::retention::Rules;
use outlive_types::PAGE_BYTES;
use std::sync::Arc;

const LARGE_BYTES: usize = 20 << 20;
const KEPT: u64 = 4;

/// Saves eight times, and closes. Before each save one array changes wholly, and another page of
/// the other one, which the later checkpoints need.
fn saved(pool: &Pool) {
    let program = Program::start(pool, "job");
    program.job.keep(Rules { last: Some(KEPT), ..Rules::default() }).unwrap();
    let mut small = noise(1, 8 * PAGE_BYTES);
    for page in 0..8 {
        small[page * PAGE_BYTES..][..PAGE_BYTES]
            .copy_from_slice(&noise(99 + page as u64, PAGE_BYTES));
        let large = noise(9 + page as u64, LARGE_BYTES);
        let state = [("large", large), ("small", small.clone())];
        program.save(&State::from(state.map(|(name, bytes)| (name.to_owned(), bytes)))).unwrap();
    }
    program.job.close().unwrap();
}

/// Packs have room for one save, so none is small.
fn in_memory() -> Pool {
    let format = FormatConfig { pack_bytes: 24 << 20, ..FormatConfig::new([7; 16]) };
    let config = PoolConfig::new(format, Tuning::default());
    let (target, log) = (Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()));
    Pool::new(config, target, log, Environment::system())
}

fn stored_bytes(pool: &Pool) -> u64 {
    pool.packs().unwrap().into_iter().map(|pack| pool.stored_bytes(pack).unwrap()).sum()
}

/// Dropped checkpoints leave packs with one page in use. These have fewer bytes than the job may
/// leave unused.
#[test]
fn a_closed_job_leaves_no_nearly_empty_pack() {
    let pool = in_memory();
    saved(&pool);
    let spare_bytes = stored_bytes(&pool) - KEPT * LARGE_BYTES as u64;
    assert!(spare_bytes < 4 << 20, "{spare_bytes} bytes more than the kept checkpoints need");
    assert_eq!(Job::open(&pool, "job", Default::default()).unwrap().epochs().unwrap().len(), 4);
}
