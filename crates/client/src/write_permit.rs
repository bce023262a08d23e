//! The permit to write the program's memory, which a restore gives its threads and withdraws.

use outlive_capture::fill::{Advice, Scatter};
use outlive_types::sync::plain::{Mutex, RwLock};
use outlive_types::{Error, Result};

/// Says whether the program's memory may still be written. A thread that writes it holds a read
/// lock.
#[derive(Default)]
pub struct WritePermit {
    withdrawn: RwLock<bool>,
    /// Advice to the kernel about memory that is filled under this permit.
    advice: Mutex<Vec<Advice>>,
}

impl WritePermit {
    /// Calls `work`, unless the permit was withdrawn.
    pub fn with<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let withdrawn = self.withdrawn.read();
        (!*withdrawn).then(work)
    }

    /// Withdraws the permit. After the return nothing is touched any more, not even by values that
    /// are dropped later.
    pub fn withdraw(&self) {
        let mut withdrawn = self.withdrawn.write();
        *withdrawn = true;
        let advice = self.advice.lock();
        advice.iter().for_each(Advice::end);
    }

    /// Makes the values that fill memory; their advice to the kernel ends when the permit does.
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

/// Returns the error of a restore whose permit was withdrawn.
pub fn interrupted() -> Error {
    Error::retry("the restore was interrupted")
}
