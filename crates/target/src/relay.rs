//! What wrappers share: a writer that passes each write on from a helper thread, so that it may
//! wait, pause and repeat there.

use crate::writes::Writes;
use crate::{ShardWriter, WriteFault, WriteTicket};
use outlive_io::{AlignedBuf, DiskEngine, Ticket};
use outlive_types::{Error, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub type Written = std::result::Result<(), WriteFault>;

/// What a wrapper does around the calls of the writer within. Runs on helper threads.
pub trait Around: Send + Sync {
    /// One write of `length` bytes; `attempt` passes it on and waits for it.
    fn write(
        &self,
        length: usize,
        buffer: AlignedBuf,
        attempt: &mut dyn FnMut(AlignedBuf) -> Written,
    ) -> Written;

    /// Before a finish is passed on.
    fn before_finish(&self) {}
}

pub(crate) struct RelayWriter {
    inner: Arc<Inner>,
    writes: Arc<Writes>,
    // Not the shared engine: what waits here may wait for that one.
    helpers: Arc<DiskEngine>,
    around: Arc<dyn Around>,
    finishing: bool,
}

/// The writer within, until it is finished or abandoned.
struct Inner(Mutex<Option<Box<dyn ShardWriter>>>);

impl RelayWriter {
    pub(crate) fn boxed(
        inner: Box<dyn ShardWriter>,
        helpers: Arc<DiskEngine>,
        around: Arc<dyn Around>,
    ) -> Box<dyn ShardWriter> {
        let inner = Arc::new(Inner(Mutex::new(Some(inner))));
        let writes = Arc::default();
        Box::new(RelayWriter { inner, writes, helpers, around, finishing: false })
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Option<Box<dyn ShardWriter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a write on. Holds the lock for its start only, so that writes overlap.
    fn start_write(&self, offset: u64, length: usize, buffer: AlignedBuf) -> WriteTicket {
        match self.lock().as_mut() {
            Some(writer) => writer.write(offset, length, buffer),
            None => Ticket::done(Err(WriteFault { error: abandoned(), buffer })),
        }
    }

    fn start_finish(&self, length: u64) -> Ticket<Result<()>> {
        match self.lock().take() {
            Some(writer) => writer.finish(length),
            None => Ticket::done(Err(abandoned())),
        }
    }
}

fn abandoned() -> Error {
    Error::invalid("the shard was abandoned before this was done")
}

impl ShardWriter for RelayWriter {
    fn write(&mut self, offset: u64, length: usize, buffer: AlignedBuf) -> WriteTicket {
        let writing = self.writes.begin(offset);
        let (inner, around) = (self.inner.clone(), self.around.clone());
        self.helpers.submit(move || {
            let mut attempt = |buffer| inner.start_write(offset, length, buffer).wait();
            let written = around.write(length, buffer, &mut attempt);
            // The writer within keeps count of failures; here only the order matters.
            drop(writing);
            written
        })
    }

    fn finish(mut self: Box<Self>, length: u64) -> Ticket<Result<()>> {
        self.finishing = true;
        let (inner, around) = (self.inner.clone(), self.around.clone());
        let helpers = self.helpers.clone();
        let (promise, ticket) =
            Ticket::pair_or(|| Err(Error::bug("finishing a shard was given up")));
        let last = move || {
            around.before_finish();
            promise.fulfil(inner.start_finish(length).wait());
        };
        self.writes.after_all(move || drop(helpers.submit(last)));
        ticket
    }
}

impl Drop for RelayWriter {
    /// Abandons the shard at once, whatever is still on its way to it.
    fn drop(&mut self) {
        if !self.finishing {
            drop(self.inner.lock().take());
        }
    }
}
