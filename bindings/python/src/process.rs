//! The process that has opened an object. A child that it forks has none of its threads, and a lock
//! that another thread held at the fork stays held forever there.

use crate::errors::to_py;
use outlive_types::Error;
use pyo3::prelude::*;

/// The process that has opened a pool or job.
#[derive(Clone, Copy, Debug)]
pub struct Opener(u32);

impl Opener {
    /// This process.
    pub fn this() -> Opener {
        Opener(std::process::id())
    }

    /// Refuses a call in a forked child. Call it before any lock is touched.
    pub fn check(self, py: Python<'_>, what: impl FnOnce() -> String) -> PyResult<()> {
        let here = std::process::id();
        if self.0 == here {
            return Ok(());
        }
        let (what, opener) = (what(), self.0);
        Err(to_py(
            py,
            &Error::invalid(format!(
                "{what} was opened by process {opener} and this is process {here}, forked from it: \
                 open the pool and a job of its own here"
            )),
        ))
    }
}
