//! Small files in a cluster, such as what says that a log belongs to a pool.

use crate::cluster::Cluster;
use outlive_types::Result;
use std::sync::Arc;

/// Files below a place's prefix, each read and written whole. A change is durable when its call returns.
#[derive(Clone, Debug)]
pub struct EtcdFiles(Arc<Cluster>);

impl EtcdFiles {
    pub(crate) fn new(cluster: Arc<Cluster>) -> EtcdFiles {
        EtcdFiles(cluster)
    }

    /// The bytes of the file `name`, such as "log/.pool.toml"; `None` if it is not there.
    ///
    /// # Errors
    /// `Invalid` if the cluster must not be read; `Retry` if no majority of it can be reached.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let name = name.to_owned();
        self.0.wait(|cluster| async move { cluster.get(&name).await })
    }

    /// Writes the file `name`, in place of one that is there.
    ///
    /// # Errors
    /// As [`EtcdFiles::read`]; after `Retry` it is not known whether it was written.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let (name, bytes) = (name.to_owned(), bytes.to_vec());
        self.0.wait(|cluster| async move { cluster.put(&name, &bytes).await })
    }

    /// Writes the file `name` unless there is one: true if it was written.
    ///
    /// # Errors
    /// As [`EtcdFiles::write`].
    pub fn write_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let (name, bytes) = (name.to_owned(), bytes.to_vec());
        self.0.wait(|cluster| async move { cluster.put_new(&name, &bytes).await })
    }

    /// The names of all files in the folder `name`, such as "log/x", without it; in order.
    ///
    /// # Errors
    /// As [`EtcdFiles::read`].
    pub fn names(&self, folder: &str) -> Result<Vec<String>> {
        let folder = folder.to_owned();
        self.0.wait(|cluster| async move { cluster.names(&folder).await })
    }

    /// Removes the file `name`; one that is not there is no error.
    ///
    /// # Errors
    /// As [`EtcdFiles::write`].
    pub fn delete(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.0.wait(|cluster| async move { cluster.delete(&name).await })
    }
}
