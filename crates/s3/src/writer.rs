//! Writes one shard: passes the bytes to its upload, and ends it.

use crate::upload::Upload;
use outlive_backend::writes::{Writes, check_finish, check_write};
use outlive_backend::{ShardWriter, WriteTicket};
use outlive_io::{SharedBuf, Ticket};
use outlive_types::{Error, Result};
use std::process;
use std::sync::Arc;

pub(crate) struct S3Writer {
    upload: Arc<Upload>,
    writes: Arc<Writes>,
    finishing: bool,
    // The connections and threads belong to the process that began it.
    pid: u32,
}

impl S3Writer {
    pub(crate) fn new(upload: Arc<Upload>) -> S3Writer {
        S3Writer { upload, writes: Arc::default(), finishing: false, pid: process::id() }
    }

    fn check_process(&self) -> Result<()> {
        if process::id() == self.pid {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "shard {} was begun before a fork: only the process that began it can write it",
            self.upload.shard
        )))
    }
}

impl ShardWriter for S3Writer {
    fn write(&mut self, offset: u64, bytes: SharedBuf) -> WriteTicket {
        let writing = self.writes.begin(offset);
        let checked = self
            .check_process()
            .and_then(|()| check_write(self.upload.shard, offset, &bytes, self.upload.bytes_max));
        match checked {
            Ok(()) => self.upload.write(offset, bytes, writing),
            Err(error) => Ticket::done(writing.end(Err(error), bytes)),
        }
    }

    fn finish(mut self: Box<Self>, length: u64) -> Ticket<Result<()>> {
        if let Err(error) = self.check_process() {
            return Ticket::done(Err(error));
        }
        self.finishing = true;
        let (upload, writes) = (self.upload.clone(), self.writes.clone());
        let shard = upload.shard;
        let (promise, ticket) = Ticket::pair_or(move || {
            Err(Error::bug(format!("finishing shard {shard} was given up")))
        });
        let last = async move {
            let checked =
                writes.check(shard).and_then(|()| check_finish(shard, length, upload.bytes_max));
            let outcome = match checked {
                Ok(()) => upload.finish(length).await,
                Err(error) => Err(error),
            };
            if outcome.is_err() {
                upload.discard().await;
            }
            promise.fulfil(outcome);
        };
        let handle = self.upload.handle.clone();
        self.writes.after_all(move || drop(handle.spawn(last)));
        ticket
    }
}

impl Drop for S3Writer {
    /// Ends an abandoned upload in the background. A gc removes the rest if the process ends
    /// before.
    fn drop(&mut self) {
        if process::id() != self.pid {
            // Dropping connections in a child would wake threads of its parent, behind locks that
            // they may have held at the fork.
            std::mem::forget(self.upload.clone());
        } else if !self.finishing {
            self.upload.abandon();
        }
    }
}
