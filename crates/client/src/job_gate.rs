//! The gate of a job, and a client's part in it.

use outlive_gate::{Confirmations, Gate, GateOptions};
use outlive_pool::Pool;
use outlive_store::Job;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Epoch, JobName, Result};
use std::sync::atomic::{AtomicBool, Ordering};

/// A client's part in the gate of its job.
pub(crate) struct ClientGate {
    pub gate: Gate,
    /// Whether this client has opened it.
    pub is_open: AtomicBool,
    /// The last restored checkpoint, with the outputs that it lists.
    pub restored: Mutex<Option<(Epoch, Vec<Vec<u8>>)>>,
}

/// Makes the gate of a job.
pub(crate) fn gate_of(pool: &Pool, job: &Job) -> Gate {
    let rank = job.is_group().then(|| job.rank());
    let kind = rank.map_or_else(|| "outputs".to_owned(), |rank| format!("outputs-{rank}"));
    let file = RunFile { pool: pool.clone(), job: job.name().clone(), kind };
    let pool = pool.clone();
    Gate::new(GateOptions {
        job: job.name().clone(),
        rank,
        confirmations: Some(Box::new(file)),
        tell: Box::new(move |text| pool.warn(text)),
    })
}

/// The record of released outputs, in the folder `run` of the pool's home.
struct RunFile {
    pool: Pool,
    job: JobName,
    kind: String,
}

impl Confirmations for RunFile {
    fn load(&self) -> Result<Option<Vec<u8>>> {
        self.pool.read_run_file(&self.job, &self.kind)
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        self.pool.write_run_file(&self.job, &self.kind, bytes)
    }
}

impl ClientGate {
    pub fn new(gate: Gate) -> ClientGate {
        ClientGate { gate, is_open: AtomicBool::new(false), restored: Mutex::default() }
    }

    /// Returns whether this client has it open.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }
}
