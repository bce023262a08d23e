//! A bucket as a log's medium: one object per record, put on condition that it does not exist.

use crate::bucket::Bucket;
use outlive_log::{LogLocks, LogRecords, LogSeal, Put, job_folder, record_name, record_number};
use outlive_types::{JobName, Result};
use std::fmt;
use std::sync::Arc;

/// Records as objects `log/JOB/NUMBER.record` below a prefix, with the same names as in a
/// directory's log.
///
/// A record is put with `If-None-Match: *`, so one of several writers gets the number. Some servers
/// do not honour this: see [`S3Medium::check_conditional_put`]. There are no locks.
pub struct S3Medium {
    pub(crate) bucket: Arc<Bucket>,
}

impl S3Medium {
    pub(crate) fn new(bucket: Arc<Bucket>) -> S3Medium {
        S3Medium { bucket }
    }
}

fn name(job: &JobName, number: u64) -> String {
    format!("{}/{}", job_folder(job), record_name(number))
}

impl LogRecords for S3Medium {
    fn describe(&self) -> String {
        format!("bucket {}", self.bucket.describe())
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        let names = self.bucket.wait(|bucket| async move { bucket.folders("log").await })?;
        Ok(names.iter().filter_map(|name| JobName::listed_from_escaped(name)).collect())
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        let folder = job_folder(job);
        let below = format!("{folder}/");
        let names = self.bucket.wait(|bucket| async move { bucket.names(&folder).await })?;
        let number = |name: &String| record_number(name.strip_prefix(&below)?);
        let mut numbers: Vec<u64> = names.iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        let name = name(job, number);
        self.bucket.wait(|bucket| async move { bucket.get(&name).await })
    }

    fn has(&self, job: &JobName, number: u64) -> Result<bool> {
        let name = name(job, number);
        self.bucket.wait(|bucket| async move { Ok(bucket.length(&name).await?.is_some()) })
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        let (name, record) = (name(job, number), record.to_vec());
        let made = self.bucket.wait(|bucket| async move { bucket.put_new(&name, record).await })?;
        Ok(if made { Put::Made } else { Put::Taken })
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        let name = name(job, number);
        self.bucket.wait(|bucket| async move { bucket.delete(&name).await })
    }

    /// A request that the bucket has confirmed is durable.
    fn sync(&self, _job: &JobName) -> Result<()> {
        Ok(())
    }
}

impl LogLocks for S3Medium {}

impl LogSeal for S3Medium {}

impl fmt::Debug for S3Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S3Medium({})", self.bucket.url(""))
    }
}
