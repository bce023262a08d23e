//! The writer of a wrapped target: passes on each write, and then the finish, in the wrapper's
//! manner.

use crate::operation::{Manner, Operation};
use crate::writes::Writes;
use crate::{Fault, ShardWriter, WriteTicket};
use outlive_io::{DiskEngine, SharedBuf, Ticket};
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{Error, Result};
use std::process;
use std::sync::Arc;

pub(crate) struct RelayWriter<M> {
    inner: Arc<Inner>,
    writes: Arc<Writes>,
    manner: Arc<M>,
    helpers: Arc<DiskEngine>,
    finishing: bool,
    // A forked child that drops an inherited writer must not wait for a lock that a thread of its
    // parent held.
    pid: u32,
}

/// The inner writer, until it is finished or abandoned.
struct Inner(Mutex<Option<Box<dyn ShardWriter>>>);

impl<M: Manner> RelayWriter<M> {
    pub(crate) fn boxed(
        inner: Box<dyn ShardWriter>,
        manner: Arc<M>,
        helpers: Arc<DiskEngine>,
    ) -> Box<dyn ShardWriter> {
        let inner = Arc::new(Inner(Mutex::new(Some(inner))));
        let writes = Arc::default();
        Box::new(RelayWriter {
            inner,
            writes,
            manner,
            helpers,
            finishing: false,
            pid: process::id(),
        })
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Option<Box<dyn ShardWriter>>> {
        self.0.lock()
    }

    /// Passes a write on. Holds the lock only while the write starts, so that writes overlap.
    fn start_write(&self, offset: u64, buffer: SharedBuf) -> WriteTicket {
        match self.lock().as_mut() {
            Some(writer) => writer.write(offset, buffer),
            None => Ticket::done(Err(Fault { error: abandoned(), buffer })),
        }
    }

    fn start_finish(&self, length: u64) -> Ticket<Result<()>> {
        // Without the lock: a write that ends meanwhile may need it.
        let writer = self.lock().take();
        match writer {
            Some(writer) => writer.finish(length),
            None => Ticket::done(Err(abandoned())),
        }
    }
}

fn abandoned() -> Error {
    Error::invalid("the shard was abandoned before this was done")
}

impl<M: Manner> ShardWriter for RelayWriter<M> {
    fn write(&mut self, offset: u64, buffer: SharedBuf) -> WriteTicket {
        let writing = self.writes.begin(offset);
        let inner = self.inner.clone();
        let operation = Operation {
            manner: self.manner.clone(),
            helpers: self.helpers.clone(),
            start: Box::new(move |buffer| inner.start_write(offset, buffer)),
        };
        let (promise, ticket) = Ticket::pair();
        operation.begin(self.manner.delay(buffer.len()), buffer).on_done(move |written| {
            let outcome = match &written {
                Ok(Ok(())) => Some(Ok(())),
                Ok(Err(fault)) => Some(Err(fault.error.clone())),
                Err(_) => None,
            };
            // First the ticket gets the outcome, then the work after all writes runs.
            promise.settle(written);
            match outcome {
                Some(Ok(())) => writing.succeed(),
                Some(Err(error)) => writing.fail(error),
                None => drop(writing),
            }
        });
        ticket
    }

    fn finish(mut self: Box<Self>, length: u64) -> Ticket<Result<()>> {
        self.finishing = true;
        let (promise, ticket) =
            Ticket::pair_or(|| Err(Error::bug("finishing a shard was given up")));
        let (inner, manner, helpers) =
            (self.inner.clone(), self.manner.clone(), self.helpers.clone());
        let writes = self.writes.clone();
        self.writes.after_all(move || {
            // The inner writer also counts the writes that reached it.
            if let Err(error) = writes.check_all() {
                drop(inner.lock().take());
                return promise.fulfil(Err(error));
            }
            let delay = manner.delay(0);
            let last =
                move || inner.start_finish(length).on_done(|outcome| promise.settle(outcome));
            match delay.is_zero() {
                true => last(),
                false => manner.timer().after(delay, Box::new(move || drop(helpers.submit(last)))),
            }
        });
        ticket
    }
}

impl<M> Drop for RelayWriter<M> {
    /// Abandons the shard at once, even while writes are in flight.
    fn drop(&mut self) {
        if !self.finishing && process::id() == self.pid {
            drop(self.inner.lock().take());
        }
    }
}
