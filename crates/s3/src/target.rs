//! A bucket as a target: one object per shard.

use crate::bucket::Bucket;
use crate::objects::{end_uploads, is_of_replacing, name, parse_name};
use crate::reads::Source;
use crate::upload::Upload;
use crate::writer::S3Writer;
use outlive_backend::writes::{check_range, exists, missing};
use outlive_backend::{Capacity, Fault, ReadRange, ReadTicket, ShardName, ShardWriter, Target};
use outlive_io::Ticket;
use outlive_types::{Error, Result};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Shards as objects `packs/XX/PACKID.S.shard` below a prefix, with the same names as in a
/// directory.
///
/// A shard of more than 8 MiB is uploaded in parts. Meanwhile a small object below
/// `packs/XX/PACKID.S.part/` names the upload, so that a gc finds and ends it.
///
/// A shorter shard is one put. None of it exists before its finish, so no gc finds it unfinished or
/// prevents its finish. That is safe: a fenced writer cannot commit a manifest that refers to the
/// shard, and the next gc finds an unneeded shard.
///
/// The name of an upload that replaces a finished shard begins with `replaces-`, and is removed
/// before the replacement is acknowledged. So a gc finds such an upload next to the finished shard,
/// too.
pub struct S3Target {
    bucket: Arc<Bucket>,
}

impl S3Target {
    pub(crate) fn new(bucket: Arc<Bucket>) -> S3Target {
        S3Target { bucket }
    }

    fn begin(
        &self,
        shard: ShardName,
        bytes_max: u64,
        replaces: bool,
    ) -> Result<Box<dyn ShardWriter>> {
        let upload = Upload::new(self.bucket.clone(), shard, bytes_max, replaces)?;
        Ok(Box::new(S3Writer::new(Arc::new(upload))))
    }
}

impl Target for S3Target {
    fn describe(&self) -> String {
        format!("bucket {}", self.bucket.describe())
    }

    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        let object = name(shard, "shard");
        // Not its length: a reply about that does not show that the bucket is missing.
        let there =
            self.bucket.wait(|bucket| async move { bucket.first_bytes(&object, 1).await })?;
        if there.is_some() {
            return Err(exists(&self.describe(), shard));
        }
        self.begin(shard, bytes_max, false)
    }

    fn replace(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        self.begin(shard, bytes_max, true)
    }

    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket> {
        let source = Source::new(&self.bucket);
        let read = |range: ReadRange| {
            let source = source.as_ref().map_err(Error::clone);
            match source.and_then(|source| check_range(shard, &range).map(|()| source)) {
                Ok(source) => source.queue(shard, range),
                Err(error) => Ticket::done(Err(Fault { error, buffer: range.buffer })),
            }
        };
        let tickets = ranges.into_iter().map(read).collect();
        if let Ok(source) = source {
            source.start();
        }
        tickets
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
        let finished: BTreeSet<ShardName> =
            names.iter().filter_map(|object| parse_name(object, "shard")).collect();
        let begun = |object: &String| {
            let shard = parse_name(object, "part")?;
            // A writer removes the name of a new shard's upload after its end, without waiting for
            // that.
            (is_of_replacing(object) || !finished.contains(&shard)).then_some(shard)
        };
        let begun: BTreeSet<ShardName> = names.iter().filter_map(begun).collect();
        Ok(begun.into_iter().collect())
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

    /// Returns no limit: a bucket never fills up.
    fn capacity(&self) -> Result<Capacity> {
        Ok(Capacity { total_bytes: u64::MAX, free_bytes: u64::MAX })
    }
}

impl fmt::Debug for S3Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S3Target({})", self.bucket.url(""))
    }
}
