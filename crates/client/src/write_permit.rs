//! The leave to touch the program's memory, which a restore gives its threads and takes back.

use outlive_capture::fill::{Advice, Scatter};
use outlive_types::sync::plain::{Mutex, RwLock};
use outlive_types::{Error, Result};

/// Says whether the program's memory may still be touched. Whoever touches it holds a read lock.
#[derive(Default)]
pub struct WritePermit {
    withdrawn: RwLock<bool>,
    /// Of memory that is filled with this leave.
    advice: Mutex<Vec<Advice>>,
}

impl WritePermit {
    /// Calls `work`, unless the leave was withdrawn.
    pub fn with<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let withdrawn = self.withdrawn.read();
        (!*withdrawn).then(work)
    }

    /// From the return on nothing is touched any more, not even by what is dropped later.
    pub fn withdraw(&self) {
        let mut withdrawn = self.withdrawn.write();
        *withdrawn = true;
        let advice = self.advice.lock();
        advice.iter().for_each(Advice::end);
    }

    /// Makes what fills memory; what it has advised the kernel about that ends when the leave does.
    pub fn scatter(&self, make: impl FnOnce() -> Result<Scatter>) -> Result<Scatter> {
        let make = || {
            let scatter = make()?;
            let mut advice = self.advice.lock();
            advice.push(scatter.advice());
            Ok(scatter)
        };
        self.with(make).unwrap_or_else(|| Err(interrupted()))
    }
}

/// The error of a restore whose leave was withdrawn.
pub fn interrupted() -> Error {
    Error::retry("the restore was interrupted")
}
