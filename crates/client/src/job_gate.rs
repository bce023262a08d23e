//! The gate of a job, and a client's part in it.

use outlive_gate::{Confirmations, Gate, GateOptions};
use outlive_pool::Pool;
use outlive_store::Job;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Epoch, JobName, Rank, Result};
use std::sync::atomic::{AtomicBool, Ordering};

/// A client's part in the gate of its job.
pub(crate) struct ClientGate {
    pub gate: Gate,
    /// Whether this client has opened it.
    pub is_open: AtomicBool,
    /// The last restored checkpoint, with the outputs that it lists.
    pub restored: Mutex<Option<(Epoch, RankLists)>>,
    /// Whether a caller has waited for the releases before the close.
    pub has_waited: AtomicBool,
    /// A forked child closes nothing.
    pub process: u32,
}

/// Lists of outputs, each with the rank of its image.
pub(crate) type RankLists = Vec<(Rank, Vec<u8>)>;

/// Makes the gate of a job.
pub(crate) fn gate_of(pool: &Pool, job: &Job) -> Gate {
    let rank = job.is_group().then(|| job.rank());
    let file = RunFile { pool: pool.clone(), job: job.name().clone(), rank: job.rank() };
    let (pool, weak) = (pool.clone(), job.downgrade());
    let id = pool.config().format.pool_id.get(..8).and_then(|id| u32::from_str_radix(id, 16).ok());
    Gate::new(GateOptions {
        pool: id.unwrap_or_default(),
        job: job.name().clone(),
        rank,
        confirmations: Some(Box::new(file)),
        tell: Box::new(move |text| pool.warn(text)),
        check_writer: Box::new(move || weak.begin_session()),
    })
}

/// The record of released outputs, in the folder `run` of the pool's home.
struct RunFile {
    pool: Pool,
    job: JobName,
    rank: Rank,
}

/// Returns the kind of the record of a rank.
pub(crate) fn outputs_of(rank: Rank) -> String {
    if rank == 0 { "outputs".to_owned() } else { format!("outputs-{rank}") }
}

impl Confirmations for RunFile {
    fn load(&self, rank: Rank) -> Result<Option<Vec<u8>>> {
        self.pool.read_run_file(&self.job, &outputs_of(rank))
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        self.pool.write_run_file(&self.job, &outputs_of(self.rank), bytes)
    }
}

impl ClientGate {
    pub fn new(gate: Gate) -> ClientGate {
        ClientGate {
            gate,
            is_open: AtomicBool::new(false),
            restored: Mutex::default(),
            has_waited: AtomicBool::new(false),
            process: std::process::id(),
        }
    }

    /// Returns whether this client has it open.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }
}
