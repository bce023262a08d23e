//! Writes one shard to a node. Each request may be repeated: the node knows the writer by a random
//! number, the ranges that it has, and the outcome of the finish.

use crate::client::connection::{Connection, Lane, Node, Repeat, random};
use crate::client::lanes::Direction;
use crate::protocol::{AbandonRequest, BeginRequest, FinishRequest, PART_BYTES, Shard, WritePart};
use bytes::Bytes;
use outlive_backend::writes::{Writes, check_finish, check_write};
use outlive_backend::{Fault, ShardName, ShardWriter, WriteTicket, runtime};
use outlive_io::{SharedBuf, Ticket};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Result};
use std::ops::Range;
use std::process;
use std::sync::Arc;

pub(crate) struct NodeWriter {
    of: Arc<Writer>,
    writes: Arc<Writes>,
    finishing: bool,
    pid: u32,
}

struct Writer {
    node: Arc<Node>,
    connection: Arc<Connection>,
    /// Random number that names the writer.
    id: Bytes,
    shard: ShardName,
    bytes_max: u64,
    replaces: bool,
}

/// The bytes of a write, which its requests read until the write has an outcome. Parts of a
/// connection may keep a request a moment longer than its reply, and must not keep the buffer.
#[derive(Clone)]
struct Loan(Arc<Mutex<Option<SharedBuf>>>);

impl NodeWriter {
    pub(crate) fn begin(
        node: Arc<Node>,
        shard: ShardName,
        bytes_max: u64,
        replaces: bool,
    ) -> Result<NodeWriter> {
        let connection = node.connection()?;
        let writer = Writer { node, connection, id: random(), shard, bytes_max, replaces };
        let of = Arc::new(writer);
        let begun = of.clone();
        runtime::wait(async move { begun.begin().await })?;
        Ok(NodeWriter { of, writes: Arc::default(), finishing: false, pid: process::id() })
    }

    fn check_process(&self) -> Result<()> {
        if process::id() == self.pid {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "shard {} was begun before a fork: only the process that began it can write it",
            self.of.shard
        )))
    }
}

impl ShardWriter for NodeWriter {
    fn write(&mut self, offset: u64, bytes: SharedBuf) -> WriteTicket {
        let writing = self.writes.begin(offset);
        let checked = self
            .check_process()
            .and_then(|()| check_write(self.of.shard, offset, &bytes, self.of.bytes_max));
        let handle = match checked.and_then(|()| runtime::handle()) {
            Ok(handle) => handle,
            Err(error) => return Ticket::done(writing.end(Err(error), bytes)),
        };
        let of = self.of.clone();
        let (promise, ticket) = Ticket::pair();
        handle.spawn(async move {
            let length = bytes.len();
            let loan = Loan(Arc::new(Mutex::new(Some(bytes))));
            let outcome = of.write(offset, length, &loan).await;
            let bytes = loan.0.lock().take().expect("only this task ends the loan");
            match outcome {
                Ok(()) => {
                    drop(bytes);
                    promise.fulfil(Ok(()));
                    writing.succeed();
                }
                Err(error) => {
                    promise.fulfil(Err(Fault { error: error.clone(), buffer: bytes }));
                    writing.fail(error);
                }
            }
        });
        ticket
    }

    fn finish(mut self: Box<Self>, length: u64) -> Ticket<Result<()>> {
        let handle = match self.check_process().and_then(|()| runtime::handle()) {
            Ok(handle) => handle,
            Err(error) => return Ticket::done(Err(error)),
        };
        self.finishing = true;
        let (of, writes) = (self.of.clone(), self.writes.clone());
        let shard = of.shard;
        let (promise, ticket) = Ticket::pair_or(move || {
            Err(Error::bug(format!("finishing shard {shard} was given up")))
        });
        let last = async move {
            let checked =
                writes.check(shard).and_then(|()| check_finish(shard, length, of.bytes_max));
            let outcome = match checked {
                Ok(()) => of.finish(length).await,
                Err(error) => Err(error),
            };
            promise.fulfil(outcome);
            // Also after a success, so that the node may forget the writer.
            of.abandon().await;
        };
        self.writes.after_all(move || drop(handle.spawn(last)));
        ticket
    }
}

impl Writer {
    async fn begin(&self) -> Result<()> {
        let request = BeginRequest {
            session: self.connection.session.clone(),
            prefix: self.node.prefix(),
            writer: self.id.clone(),
            shard: Some(Shard::from(self.shard)),
            bytes_max: self.bytes_max,
            replaces: self.replaces,
        };
        let doing = format!("beginning shard {}", self.shard);
        let lanes = (Lane::Small, Repeat::Yes);
        let begun = self.node.call(&self.connection, &doing, lanes, |mut node| {
            let request = request.clone();
            async move { node.begin(request).await }
        });
        begun.await.map(drop)
    }

    /// Writes bytes, by one request after another.
    async fn write(&self, offset: u64, length: usize, loan: &Loan) -> Result<()> {
        let doing = format!("writing shard {}", self.shard);
        let mut start = 0;
        while start < length {
            let turn = self.connection.lanes.turn(Direction::Write).await;
            let range = start..length.min(start + self.connection.lanes.bytes_max);
            let lanes = (Lane::Bulk(turn.connection), Repeat::Yes);
            let sent = self.node.call(&self.connection, &doing, lanes, |mut node| {
                let parts = self.parts(offset, range.clone(), loan.clone());
                async move { node.write(tokio_stream::iter(parts)).await }
            });
            sent.await?;
            start = range.end;
        }
        Ok(())
    }

    /// Returns the parts of a request. The first one names the range, and each is copied when it is
    /// sent.
    fn parts(
        &self,
        offset: u64,
        range: Range<usize>,
        loan: Loan,
    ) -> impl Iterator<Item = WritePart> + Send + 'static {
        let first = WritePart {
            session: self.connection.session.clone(),
            writer: self.id.clone(),
            offset: offset + range.start as u64,
            length: range.len() as u64,
            bytes: Bytes::new(),
        };
        let next = range.clone().step_by(PART_BYTES).map_while(move |start| {
            let buffer = loan.0.lock();
            let bytes = buffer.as_ref()?.get(start..range.end.min(start + PART_BYTES))?;
            Some(WritePart { bytes: Bytes::copy_from_slice(bytes), ..WritePart::default() })
        });
        std::iter::once(first).chain(next)
    }

    async fn finish(&self, length: u64) -> Result<()> {
        let request = FinishRequest {
            session: self.connection.session.clone(),
            writer: self.id.clone(),
            length,
        };
        let doing = format!("finishing shard {}", self.shard);
        let lanes = (Lane::Small, Repeat::Yes);
        let finished = self.node.call(&self.connection, &doing, lanes, |mut node| {
            let request = request.clone();
            async move { node.finish(request).await }
        });
        finished.await.map(drop)
    }

    /// Lets the node forget the writer. If this fails, it does so when the session ends.
    async fn abandon(&self) {
        let request =
            AbandonRequest { session: self.connection.session.clone(), writer: self.id.clone() };
        let doing = format!("abandoning shard {}", self.shard);
        let lanes = (Lane::Small, Repeat::Yes);
        let abandoned = self.node.call(&self.connection, &doing, lanes, |mut node| {
            let request = request.clone();
            async move { node.abandon(request).await }
        });
        let _ = abandoned.await;
    }
}

impl Drop for NodeWriter {
    /// Abandons an unfinished shard in the background.
    fn drop(&mut self) {
        if process::id() != self.pid {
            // Dropping connections in a child would wake threads of its parent, behind locks that
            // they may have held at the fork.
            std::mem::forget(self.of.clone());
        } else if !self.finishing {
            let of = self.of.clone();
            self.of.connection.end(async move { of.abandon().await });
        }
    }
}
