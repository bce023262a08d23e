//! Small files in a cluster, such as the marker of a log.

use crate::cluster::Cluster;
use outlive_backend::SmallFiles;
use outlive_types::Result;
use std::sync::Arc;

/// Files below a prefix, each read and written whole. A change is durable when its call returns.
#[derive(Clone, Debug)]
pub struct EtcdFiles(Arc<Cluster>);

impl EtcdFiles {
    pub(crate) fn new(cluster: Arc<Cluster>) -> EtcdFiles {
        EtcdFiles(cluster)
    }

    /// Returns the names of all files in `folder`, such as "log/x", in order and without that
    /// prefix.
    ///
    /// # Errors
    /// As [`SmallFiles::read`].
    pub fn names(&self, folder: &str) -> Result<Vec<String>> {
        let folder = folder.to_owned();
        self.0.wait(|cluster| async move { cluster.names(&folder).await })
    }

    /// Removes the file `name`; a missing one is no error.
    ///
    /// # Errors
    /// As [`SmallFiles::write`].
    pub fn delete(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.0.wait(|cluster| async move { cluster.delete(&name).await })
    }
}

impl SmallFiles for EtcdFiles {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let name = name.to_owned();
        self.0.wait(|cluster| async move { cluster.get(&name).await })
    }

    fn write_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let (name, bytes) = (name.to_owned(), bytes.to_vec());
        self.0.wait(|cluster| async move { cluster.put_new(&name, &bytes).await })
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let (name, bytes) = (name.to_owned(), bytes.to_vec());
        self.0.wait(|cluster| async move { cluster.put(&name, &bytes).await })
    }
}
