//! Locks and leases of a log.

use outlive_types::Result;
use std::fmt;
use std::sync::Arc;

/// A lock that ends when it is dropped, or when its process dies.
pub struct LockGuard {
    check: Option<Check>,
    _held: Box<dyn Send + Sync>,
}

type Check = Box<dyn Fn() -> Result<()> + Send + Sync>;

impl LockGuard {
    /// Returns a lock that is held as long as `held` exists.
    pub fn new(held: impl Send + Sync + 'static) -> LockGuard {
        LockGuard { check: None, _held: Box::new(held) }
    }

    /// Returns a lock that may end earlier. From then on `check` fails.
    pub fn ending(
        held: impl Send + Sync + 'static,
        check: impl Fn() -> Result<()> + Send + Sync + 'static,
    ) -> LockGuard {
        LockGuard { check: Some(Box::new(check)), _held: Box::new(held) }
    }

    /// Returns the locks of several media as one, which is held as long as `needed` of them are.
    pub fn several(guards: Vec<LockGuard>, needed: usize) -> LockGuard {
        let guards = Arc::new(guards);
        let held = guards.clone();
        LockGuard::ending(guards, move || {
            let checked: Vec<Result<()>> = held.iter().map(LockGuard::check).collect();
            let count = checked.iter().filter(|checked| checked.is_ok()).count();
            match checked.into_iter().find(Result::is_err) {
                Some(error) if count < needed => error,
                _ => Ok(()),
            }
        })
    }

    /// Checks that the lock was held all the time since it was taken. A caller checks this before
    /// it does something that the lock protects.
    ///
    /// # Errors
    /// `Fenced` if another process may have taken it meanwhile.
    pub fn check(&self) -> Result<()> {
        self.check.as_ref().map_or(Ok(()), |check| check())
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockGuard")
    }
}

/// A sign to processes of other hosts that its holder still runs.
pub struct Lease {
    /// Name of the lease for [`LogLocks::has_lease_ended`]: at most 65,535 bytes.
    pub token: String,
    /// Ends the lease when it is dropped, or when its process dies.
    pub guard: LockGuard,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({})", self.token)
    }
}

/// The outcome of an attempt to take a lock.
pub enum Lock {
    /// The caller holds the lock until it drops the guard.
    Taken(LockGuard),
    /// Another caller has the lock.
    Busy,
    /// The medium has no locks that end with their holder.
    None,
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lock::Taken(_) => "Taken",
            Lock::Busy => "Busy",
            Lock::None => "None",
        })
    }
}

/// Locks and leases of a log. Each is optional: no data is lost without it.
pub trait LogLocks {
    /// Takes the lock of collectors (gc, scrub) if it is free. The lock only saves collectors from
    /// doing the same work twice; no data is lost without it.
    ///
    /// # Errors
    /// Errors of the medium.
    fn lock_collecting(&self) -> Result<Lock> {
        Ok(Lock::None)
    }

    /// Takes a lock that any number of readers share, before they read the log: as long as one of
    /// them has it, no gc deletes a pack. `None` if the medium has no such locks.
    ///
    /// # Errors
    /// Errors of the medium.
    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        Ok(None)
    }

    /// Whether a reader has its lock now. A reader that takes it later finds in the log every
    /// record that was appended before this call.
    ///
    /// # Errors
    /// Errors of the medium.
    fn is_read(&self) -> Result<bool> {
        Ok(false)
    }

    /// Takes a lease, which shows to processes of other hosts whether this process still runs.
    /// `None` if the medium has no leases.
    ///
    /// # Errors
    /// Errors of the medium.
    fn lease(&self) -> Result<Option<Lease>> {
        Ok(None)
    }

    /// Whether a lease has ended; `None` if this process cannot see that. The holder of an ended
    /// lease may still run: its host may be cut off, or stand still. So a caller that acts on the
    /// end first appends a record that ends what the lease stood for.
    ///
    /// # Errors
    /// Errors of the medium.
    fn has_lease_ended(&self, _token: &str) -> Result<Option<bool>> {
        Ok(None)
    }
}
