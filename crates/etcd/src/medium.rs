//! A cluster as a log's medium: one key per record, put on condition that it does not exist.

use crate::cluster::Cluster;
use crate::leases;
use outlive_log::{
    Lease, LogLocks, LogRecords, LogSeal, Put, job_folder, record_name, record_number,
};
use outlive_types::{JobName, Result};
use std::fmt;
use std::sync::Arc;

/// Records as keys `log/JOB/NUMBER.record` below a prefix, with the same names as in a directory's
/// log.
///
/// A transaction puts a record, on condition that its key was never created or was deleted since.
/// So one of several writers gets the number. A cluster accepts requests of up to 1.5 MiB, unless
/// its members run with a larger `--max-request-bytes`; a longer record is refused with `Invalid`.
/// There are no locks; there are leases.
pub struct EtcdMedium {
    cluster: Arc<Cluster>,
}

impl EtcdMedium {
    pub(crate) fn new(cluster: Arc<Cluster>) -> EtcdMedium {
        EtcdMedium { cluster }
    }
}

fn name(job: &JobName, number: u64) -> String {
    format!("{}/{}", job_folder(job), record_name(number))
}

impl LogRecords for EtcdMedium {
    fn describe(&self) -> String {
        self.cluster.describe().to_owned()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        let names = self.cluster.wait(|cluster| async move { cluster.folders("log").await })?;
        Ok(names.iter().filter_map(|name| JobName::listed_from_escaped(name)).collect())
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        let folder = job_folder(job);
        let names = self.cluster.wait(|cluster| async move { cluster.names(&folder).await })?;
        // The keys are in the order of their names, which have equal lengths.
        Ok(names.iter().filter_map(|name| record_number(name)).collect())
    }

    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        let name = name(job, number);
        self.cluster.wait(|cluster| async move { cluster.get(&name).await })
    }

    fn has(&self, job: &JobName, number: u64) -> Result<bool> {
        let name = name(job, number);
        self.cluster.wait(|cluster| async move { cluster.has(&name).await })
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        let (name, record) = (name(job, number), record.to_vec());
        let made = self.cluster.wait(|it| async move { it.put_new(&name, &record).await })?;
        Ok(if made { Put::Made } else { Put::Taken })
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        let name = name(job, number);
        self.cluster.wait(|cluster| async move { cluster.delete(&name).await })
    }

    /// etcd replies when a majority of its members has the change on disk.
    fn sync(&self, _job: &JobName) -> Result<()> {
        Ok(())
    }
}

impl LogLocks for EtcdMedium {
    fn lease(&self) -> Result<Option<Lease>> {
        leases::take(&self.cluster).map(Some)
    }

    fn has_lease_ended(&self, token: &str) -> Result<Option<bool>> {
        leases::has_ended(&self.cluster, token)
    }
}

impl LogSeal for EtcdMedium {}

impl fmt::Debug for EtcdMedium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdMedium({})", self.cluster.describe())
    }
}
