//! Handles: the values that stand for a pool, a job, a save, a checkpoint or a subscription in C.
//!
//! A handle is a number that looks like an address. It holds its kind, a counter and the process
//! that made it, and no code dereferences it. So a closed handle, one that another thread closes
//! meanwhile, or one that a forked child inherited, is refused with a message. The process is
//! checked before any lock, since another thread of the parent may have held the lock at the fork.

use crate::call::{Failure, invalid};
use outlive_io::PerProcess;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of a handle: four for its kind, then those of the counter, then the number of the process.
const KIND_BITS: u32 = 4;
const COUNTER_BITS: u32 = 32;

/// The handles of one kind.
pub(crate) struct Handles<T: Send + Sync + 'static, H> {
    /// Name of the kind, for messages.
    what: &'static str,
    kind: u64,
    next: AtomicU64,
    open: PerProcess<HashMap<u64, Arc<T>>>,
    /// The opaque type that C sees.
    shown: PhantomData<fn(H)>,
}

impl<T: Send + Sync + 'static, H> Handles<T, H> {
    /// `kind`, 1 to 15, differs for each kind.
    pub const fn new(what: &'static str, kind: u64) -> Handles<T, H> {
        // A forked child neither uses nor drops the objects that its parent has open.
        let open = PerProcess::new(|_| HashMap::new());
        Handles { what, kind, next: AtomicU64::new(1), open, shown: PhantomData }
    }

    /// Makes a handle for an object.
    pub fn add(&self, value: Arc<T>) -> *mut H {
        let mut open = self.open.lock();
        loop {
            let counter = self.next.fetch_add(1, Ordering::Relaxed) & ((1 << COUNTER_BITS) - 1);
            let process = u64::from(std::process::id());
            let handle = (process << COUNTER_BITS | counter) << KIND_BITS | self.kind;
            if let Entry::Vacant(place) = open.entry(handle) {
                place.insert(value);
                return std::ptr::without_provenance_mut(handle as usize);
            }
        }
    }

    /// Returns the object of a handle.
    pub fn get(&self, handle: *mut H) -> Result<Arc<T>, Failure> {
        let number = self.number(handle)?;
        self.open.lock().get(&number).cloned().ok_or_else(|| self.closed())
    }

    /// Returns the object, and makes the handle invalid.
    pub fn take(&self, handle: *mut H) -> Result<Arc<T>, Failure> {
        let number = self.number(handle)?;
        self.open.lock().remove(&number).ok_or_else(|| self.closed())
    }

    /// Returns all open objects of this process.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.open.lock().values().cloned().collect()
    }

    fn closed(&self) -> Failure {
        let what = self.what;
        invalid(format!("this {what} was closed already, or it is no {what}: use an open one"))
    }

    /// Checks that this process can have made a handle, and returns its number.
    fn number(&self, handle: *mut H) -> Result<u64, Failure> {
        let what = self.what;
        let number = handle.addr() as u64;
        if number == 0 {
            return Err(invalid(format!("the {what} is NULL: open one")));
        }
        let (kind, process) =
            (number & ((1 << KIND_BITS) - 1), number >> (COUNTER_BITS + KIND_BITS));
        if kind != self.kind {
            return Err(invalid(format!("{number:#x} is no {what}: give what its open returned")));
        }
        let here = std::process::id();
        if process != u64::from(here) {
            return Err(invalid(format!(
                "this {what} was opened by process {process} and this is process {here}, forked from \
                 it: open the pool and a job of its own here"
            )));
        }
        Ok(number)
    }
}
