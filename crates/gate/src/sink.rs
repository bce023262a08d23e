//! The interface to the receivers of outputs.

use outlive_types::{Epoch, JobName, Rank, Result};
use std::fmt;

/// Name of an output that is the same at each attempt to release it, and never that of another
/// output: the program that a rollback repeats gets later epochs. Receivers that ignore a key that
/// they have seen get each output once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OutputKey {
    /// Name of the pool, which no other pool has: its first bytes.
    pub pool: u32,
    /// The job.
    pub job: JobName,
    /// The rank in its group, if there is one.
    pub rank: Option<Rank>,
    /// The first checkpoint that covered the output.
    pub epoch: Epoch,
    /// Its number in the order of the program.
    pub number: u64,
}

impl fmt::Display for OutputKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OutputKey { pool, job, rank, epoch, number } = self;
        match rank {
            None => write!(f, "{pool:08x}:{job}@{epoch}/{number}"),
            Some(rank) => write!(f, "{pool:08x}:{job}@{epoch}/{rank}.{number}"),
        }
    }
}

/// Result of an attempt to release an output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It is released, by this attempt or an earlier one.
    Released,
    /// It may succeed later, for this reason: it is tried again.
    Later(String),
    /// It will never succeed, for this reason. The sink stops, so that no later output overtakes it.
    Failed(String),
}

/// Receives outputs in their order, each after the checkpoint that covers it was committed. No two
/// releases overlap; [`Sink::prepare`] may run beside one. A sink must not call its gate.
pub trait Sink: Send + Sync {
    /// Makes the outputs that the program gave to the sink itself ready to be released, and returns
    /// their tokens. The call comes before the save that covers them. All that a token names must
    /// be durable when it returns.
    ///
    /// # Errors
    /// The save fails with them, and the next one asks again.
    fn prepare(&self) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    /// Learns of the tokens that count: no other one of an earlier run will ever be released. The
    /// call comes once in a run, with the first save after a commit. Before that commit, a crash
    /// could continue from a newer checkpoint, with other tokens.
    ///
    /// # Errors
    /// The sink stops then.
    fn recover(&self, tokens: &[&[u8]]) -> Result<()> {
        let _ = tokens;
        Ok(())
    }

    /// Returns whether a second release changes nothing, so that its record may wait for others.
    fn is_idempotent(&self) -> bool {
        false
    }

    /// Releases an output. It may have been released before: after a crash nothing else is known.
    fn release(&self, key: &OutputKey, token: &[u8]) -> Answer;

    /// Gives back what it holds: the gate is closed. The thread that has released calls it.
    fn close(&self) {}

    /// Gives up an output that will never be released: no checkpoint lists it.
    fn abort(&self, token: &[u8]) {
        let _ = token;
    }
}
