//! Reads ranges of a bucket. Each has a buffer of its own; adjacent ranges that must wait are
//! joined to one request.

use crate::bucket::{Bucket, Clients};
use crate::errors::{is_missing, may_be_past_the_end};
use crate::objects::name;
use crate::queue::Waiting;
use futures_util::TryStreamExt;
use object_store::{GetOptions, GetRange, ObjectStore};
use outlive_backend::runtime;
use outlive_backend::writes::{missing, short};
use outlive_backend::{ReadRange, ReadTicket, ShardName};
use outlive_types::{Error, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::runtime::Handle;

/// A bucket to read from.
#[derive(Clone)]
pub(crate) struct Source {
    bucket: Arc<Bucket>,
    clients: Clients,
    handle: Handle,
}

/// A request for `bytes` bytes. Dropping it starts waiting requests.
struct RequestUnderWay {
    source: Source,
    bytes: u64,
}

impl Drop for RequestUnderWay {
    fn drop(&mut self) {
        self.source.clients.reads.ended(self.bytes);
        self.source.start();
    }
}

impl Source {
    /// # Errors
    /// `Retry` if the system gives no thread.
    pub(crate) fn new(bucket: &Arc<Bucket>) -> Result<Source> {
        let (clients, handle) = (bucket.clients()?, runtime::handle()?);
        Ok(Source { bucket: bucket.clone(), clients, handle })
    }

    /// Queues a range that has been checked; [`Source::start`] starts the read.
    pub(crate) fn queue(&self, shard: ShardName, range: ReadRange) -> ReadTicket {
        self.clients.reads.push(shard, range)
    }

    /// Starts as many requests as the limit permits.
    pub(crate) fn start(&self) {
        while let Some(request) = self.clients.reads.next() {
            let bytes = request.iter().map(|each| each.range.buffer.len() as u64).sum();
            let under_way = RequestUnderWay { source: self.clone(), bytes };
            self.handle.spawn(async move { under_way.source.carry_out(request).await });
        }
    }

    /// Makes one request for adjacent ranges.
    async fn carry_out(&self, request: Vec<Waiting>) {
        let mut left = VecDeque::from(request);
        let is_joined = left.len() > 1;
        let outcome = self.fetch(&mut left).await;
        if outcome.is_ok() || !is_joined {
            return left.into_iter().for_each(|each| each.fulfil(outcome.clone()));
        }
        // A request for each range alone shows which of them fails, and why.
        for each in left {
            let mut alone = VecDeque::from([each]);
            let outcome = self.fetch(&mut alone).await;
            alone.into_iter().for_each(|each| each.fulfil(outcome.clone()));
        }
    }

    /// Requests adjacent ranges, and copies the bytes into their buffers. A range is fulfilled, and
    /// leaves `left`, when all its bytes have arrived.
    async fn fetch(&self, left: &mut VecDeque<Waiting>) -> Result<()> {
        let (Some(first), Some(last)) = (left.front(), left.back()) else { return Ok(()) };
        let (shard, start, end) = (first.shard, first.range.offset, last.end());
        let object = &name(shard, "shard");
        let place = || format!("bucket {}", self.bucket.describe());
        let length = async || {
            let length = self.bucket.length(object).await?;
            length.ok_or_else(|| missing(&place(), shard))
        };
        let too_short = |length| Err(short(&place(), shard, &first.range, length));
        if start == end {
            // No request can ask for zero bytes.
            let length = length().await?;
            return if start <= length { Ok(()) } else { too_short(length) };
        }
        let fault = |error| self.bucket.explain("reading", object, &error);
        let range = Some(GetRange::Bounded(start..end));
        let options = GetOptions { range, ..GetOptions::default() };
        let got = self.clients.calls.get_opts(&self.bucket.path(object)?, options).await;
        let got = match got {
            Ok(got) => got,
            Err(error) if is_missing(&error) => return Err(missing(&place(), shard)),
            Err(error) if may_be_past_the_end(&error) => {
                let length = length().await?;
                return if length < end { too_short(length) } else { Err(fault(error)) };
            }
            Err(error) => return Err(fault(error)),
        };
        if got.meta.size < end {
            return too_short(got.meta.size);
        }
        let mut chunks = got.into_stream();
        let mut at = 0;
        while let Some(chunk) = chunks.try_next().await.map_err(fault)? {
            let mut bytes = &chunk[..];
            while !bytes.is_empty() {
                let Some(into) = left.front_mut().map(|first| &mut first.range.buffer) else {
                    let url = self.bucket.url(object);
                    return Err(Error::retry(format!("{url} sent more than was asked for")));
                };
                let (now, later) = bytes.split_at(bytes.len().min(into.len() - at));
                into[at..at + now.len()].copy_from_slice(now);
                (at, bytes) = (at + now.len(), later);
                if at == into.len()
                    && let Some(whole) = left.pop_front()
                {
                    whole.fulfil(Ok(()));
                    at = 0;
                }
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        let url = self.bucket.url(object);
        Err(Error::retry(format!("{url} sent less than was asked for")))
    }
}
