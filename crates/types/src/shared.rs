//! Where another process finds the bytes of a frozen image.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A frozen image that other processes can read, as long as they have these descriptors: also when
/// this process is gone.
#[derive(Debug)]
pub struct SharedImage {
    /// File in memory with the copies; `None` if nothing was copied.
    pub copies: Option<Arc<OwnedFd>>,
    /// Process that holds the rest; `None` if there is no rest.
    pub child: Option<SharedChild>,
    /// Where the bytes of each run are.
    pub runs: Vec<SharedRun>,
}

/// A forked child that holds memory as it was at the fork.
#[derive(Clone, Debug)]
pub struct SharedChild {
    /// Its memory, by address.
    pub memory: Arc<File>,
    /// The child ends once all copies of this descriptor are closed.
    pub lifeline: Arc<OwnedFd>,
    /// Its pidfd, to end it at once.
    pub pidfd: Arc<OwnedFd>,
}

/// Where the bytes of a run are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SharedRun {
    /// In the file of copies, from this offset on.
    Copied(u64),
    /// In the child, from this address on.
    Forked(u64),
}
