//! The interface to the connection between a program's ranks: MPI, a Python object, threads.

use crate::{Error, Rank, Result};
use std::any::Any;
use std::fmt;

/// Connects the ranks of one program. Its calls are collective: every rank makes them, in the same
/// order, and none returns before all ranks have called. The library makes them only inside its own
/// calls, on the calling thread, never from a thread of its own.
///
/// An error means that the ranks may be out of step from now on: a rank is gone, or has waited too
/// long.
pub trait Coordinator: Send + Sync + fmt::Debug {
    /// Returns the number of this rank, from 0.
    fn rank(&self) -> Rank;

    /// Returns the number of ranks, at least 1.
    fn size(&self) -> u32;

    /// Returns to rank 0 the bytes of every rank, in the order of the ranks, and nothing to the
    /// others.
    ///
    /// # Errors
    /// Errors of the connection.
    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Returns to every rank the bytes of rank 0; the bytes of other ranks are ignored.
    ///
    /// # Errors
    /// Errors of the connection.
    fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>>;

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// Errors of the connection.
    fn barrier(&self) -> Result<()> {
        self.gather(&[])?;
        self.broadcast(&[]).map(drop)
    }

    /// Checks that the ranks still belong to the job, as far as the connection knows. Any thread
    /// calls it before a commit, so it must call no other rank. Only connections whose ranks a
    /// later start of the program can replace need it.
    ///
    /// # Errors
    /// `Fenced` if other processes have replaced the ranks.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Ends the calls of this rank, for the given reason. Calls that other ranks make or have begun
    /// then fail, if the connection can tell them without waiting.
    fn leave(&self, _why: &Error) {}

    /// Keeps this rank alive for the others until the result is dropped: it is inside a call of
    /// outlive that may take long. Only connections that wait with a limit need it.
    fn keepalive(&self) -> Option<Box<dyn Any + Send>> {
        None
    }
}
