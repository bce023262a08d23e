//! The seam to whatever connects the ranks of a program: MPI, an object of a Python program, threads.

use crate::{Error, Rank, Result};
use std::any::Any;
use std::fmt;

/// Connects the ranks of one program. Its calls are collective: every rank makes them, in the same order,
/// and none returns before all have come. outlive makes them only inside of its own calls, on the thread
/// that has called; never from a thread of its own.
///
/// An error says that the ranks may be out of step from now on: a rank is gone, or has waited too long.
pub trait Coordinator: Send + Sync + fmt::Debug {
    /// The number of this rank, from 0 on.
    fn rank(&self) -> Rank;

    /// How many ranks there are, at least 1.
    fn size(&self) -> u32;

    /// Rank 0 gets what every rank has given, in the order of the ranks; the others get nothing.
    ///
    /// # Errors
    /// What the connection reports.
    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Every rank gets what rank 0 has given; what others give is ignored.
    ///
    /// # Errors
    /// What the connection reports.
    fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>>;

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// What the connection reports.
    fn barrier(&self) -> Result<()> {
        self.gather(&[])?;
        self.broadcast(&[]).map(drop)
    }

    /// Whether the ranks still are the job's, as far as the connection knows: asked before a commit, by any thread,
    /// so it must call no other rank. Only for who can be replaced by a later start of the program.
    ///
    /// # Errors
    /// `Fenced` if others have taken their place.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// This rank makes no call any more, for a reason. Calls that others make or have begun then fail, where the
    /// connection has the means to tell them without waiting.
    fn leave(&self, _why: &Error) {}

    /// Until what this returns is dropped, this rank is at work inside of a call of outlive's, which may take
    /// long: others must not take it for dead. Only for who waits with a limit; usually nothing has to be done.
    fn keepalive(&self) -> Option<Box<dyn Any + Send>> {
        None
    }
}
