//! A bucket as a target: one object per shard.

use crate::bucket::{Bucket, Clients};
use crate::errors::{is_missing, may_be_past_the_end};
use crate::objects::{end_uploads, name, parse_name};
use crate::runtime;
use crate::upload::Upload;
use crate::writer::S3Writer;
use futures_util::TryStreamExt;
use object_store::{GetOptions, GetRange, ObjectStore};
use outlive_io::Ticket;
use outlive_target::writes::{check_range, exists, missing, short};
use outlive_target::{Capacity, Fault, ReadRange, ReadTicket, ShardName, ShardWriter, Target};
use outlive_types::{Error, Result};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Shards as objects `packs/XX/PACKID.S.shard` below a prefix, with the names that a directory's have.
///
/// A shard of more than 8 MiB is uploaded in parts. While that goes on there is a small object below
/// `packs/XX/PACKID.S.part/` that names the upload; it is how a gc finds and ends it.
///
/// A shorter shard is one put. Nothing of it is there before its finish, so nobody can find it
/// unfinished, nor keep it from being finished. That is safe: whoever was fenced cannot commit what
/// refers to it, and the next gc finds a shard that nothing needs.
pub struct S3Target {
    bucket: Arc<Bucket>,
}

impl S3Target {
    pub(crate) fn new(bucket: Arc<Bucket>) -> S3Target {
        S3Target { bucket }
    }
}

impl Target for S3Target {
    fn describe(&self) -> String {
        format!("bucket {}", self.bucket.describe())
    }

    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        let object = name(shard, "shard");
        // Not its length: the answer to that does not tell a bucket that is not there.
        let there =
            self.bucket.wait(|bucket| async move { bucket.first_bytes(&object, 1).await })?;
        if there.is_some() {
            return Err(exists(&self.describe(), shard));
        }
        let upload = Upload::new(self.bucket.clone(), shard, bytes_max)?;
        Ok(Box::new(S3Writer::new(Arc::new(upload))))
    }

    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket> {
        let ready = runtime::handle().and_then(|handle| Ok((handle, self.bucket.clients()?)));
        let read = |range: ReadRange| {
            let checked = check_range(shard, &range).and_then(|()| ready.clone());
            match checked {
                Ok((handle, clients)) => {
                    runtime::start(&handle, read(self.bucket.clone(), clients, shard, range))
                }
                Err(error) => Ticket::done(Err(Fault { error, buffer: range.buffer })),
            }
        };
        ranges.into_iter().map(read).collect()
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        let object = name(shard, "shard");
        let length = self.bucket.wait(|bucket| async move { bucket.length(&object).await })?;
        length.ok_or_else(|| missing(&self.describe(), shard))
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        let names = self.bucket.wait(|bucket| async move { bucket.names("packs").await })?;
        let mut shards: Vec<_> =
            names.iter().filter_map(|object| parse_name(object, "shard")).collect();
        shards.sort_unstable();
        Ok(shards)
    }

    fn unfinished(&self) -> Result<Vec<ShardName>> {
        let names = self.bucket.wait(|bucket| async move { bucket.names("packs").await })?;
        let named = |state| names.iter().filter_map(move |object| parse_name(object, state));
        // What names an upload is removed after its end, and nobody waits for that.
        let finished: BTreeSet<ShardName> = named("shard").collect();
        let begun: BTreeSet<ShardName> = named("part").collect();
        Ok(begun.difference(&finished).copied().collect())
    }

    fn delete_unfinished(&self, shard: ShardName) -> Result<()> {
        self.bucket.wait(|bucket| async move { end_uploads(&bucket, shard).await })
    }

    fn delete(&self, shard: ShardName) -> Result<()> {
        self.bucket.wait(|bucket| async move {
            bucket.delete(&name(shard, "shard")).await?;
            end_uploads(&bucket, shard).await
        })
    }

    /// A bucket has no end.
    fn capacity(&self) -> Result<Capacity> {
        Ok(Capacity { total_bytes: u64::MAX, free_bytes: u64::MAX })
    }
}

/// Reads a range into its buffer.
async fn read(
    bucket: Arc<Bucket>,
    clients: Clients,
    shard: ShardName,
    mut range: ReadRange,
) -> std::result::Result<outlive_io::AlignedBuf, Fault<outlive_io::AlignedBuf>> {
    match fill(&bucket, &clients, shard, &mut range).await {
        Ok(()) => Ok(range.buffer),
        Err(error) => Err(Fault { error, buffer: range.buffer }),
    }
}

async fn fill(
    bucket: &Bucket,
    clients: &Clients,
    shard: ShardName,
    range: &mut ReadRange,
) -> Result<()> {
    let object = name(shard, "shard");
    let place = || format!("bucket {}", bucket.describe());
    if range.buffer.is_empty() {
        // No request asks for no bytes.
        let length = bucket.length(&object).await?.ok_or_else(|| missing(&place(), shard))?;
        return if range.offset <= length {
            Ok(())
        } else {
            Err(short(&place(), shard, range, length))
        };
    }
    let _free = clients.reads_free.acquire().await;
    let Err(error) = fetch(bucket, clients, shard, range).await? else { return Ok(()) };
    if is_missing(&error) {
        return Err(missing(&place(), shard));
    }
    if may_be_past_the_end(&error) {
        let length = bucket.length(&object).await?.ok_or_else(|| missing(&place(), shard))?;
        if length < range.offset.saturating_add(range.buffer.len() as u64) {
            return Err(short(&place(), shard, range, length));
        }
    }
    Err(bucket.explain("reading", &object, &error))
}

/// Asks for a range, and copies what comes to its place in the buffer.
async fn fetch(
    bucket: &Bucket,
    clients: &Clients,
    shard: ShardName,
    range: &mut ReadRange,
) -> Result<std::result::Result<(), object_store::Error>> {
    let object = &name(shard, "shard");
    let end = range.offset.saturating_add(range.buffer.len() as u64);
    let wanted = Some(GetRange::Bounded(range.offset..end));
    let options = GetOptions { range: wanted, ..GetOptions::default() };
    let got = clients.calls.get_opts(&bucket.path(object)?, options).await;
    let (length, mut chunks) = match got {
        Ok(got) => (got.meta.size, got.into_stream()),
        Err(error) => return Ok(Err(error)),
    };
    if length < end {
        return Err(short(&format!("bucket {}", bucket.describe()), shard, range, length));
    }
    let mut at = 0;
    loop {
        match chunks.try_next().await {
            Err(error) => return Ok(Err(error)),
            Ok(None) => break,
            Ok(Some(chunk)) => {
                let place = range.buffer.get_mut(at..at + chunk.len()).ok_or_else(|| {
                    Error::retry(format!("{} sent more than was asked for", bucket.url(object)))
                })?;
                place.copy_from_slice(&chunk);
                at += chunk.len();
            }
        }
    }
    if at == range.buffer.len() {
        return Ok(Ok(()));
    }
    Err(Error::retry(format!("{} sent less than was asked for: {at} bytes", bucket.url(object))))
}

impl fmt::Debug for S3Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S3Target({})", self.bucket.url(""))
    }
}
