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
