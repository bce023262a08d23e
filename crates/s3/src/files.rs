//! Small files in a bucket, such as the marker of a target or log.

use crate::bucket::Bucket;
use outlive_backend::SmallFiles;
use outlive_types::Result;
use std::sync::Arc;

/// Files below a prefix, each read and written whole.
#[derive(Clone, Debug)]
pub struct S3Files(Arc<Bucket>);

impl S3Files {
    pub(crate) fn new(bucket: Arc<Bucket>) -> S3Files {
        S3Files(bucket)
    }
}

impl SmallFiles for S3Files {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let name = name.to_owned();
        self.0.wait(|bucket| async move { bucket.get(&name).await })
    }

    fn write_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let (name, bytes) = (name.to_owned(), bytes.to_vec());
        self.0.wait(|bucket| async move { bucket.put_new(&name, bytes).await })
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let (name, bytes) = (name.to_owned(), bytes.to_vec());
        self.0.wait(|bucket| async move { bucket.put(&name, bytes).await })
    }
}
