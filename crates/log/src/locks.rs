//! Locks and leases of a log.

use outlive_types::Result;
use std::fmt;

/// A lock that ends when it is dropped, or when its process dies.
pub type LockGuard = Box<dyn Send + Sync>;

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
