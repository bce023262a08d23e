//! Small files in a bucket, such as the marker of a target or log.

use crate::bucket::Bucket;
use outlive_types::Result;
use std::sync::Arc;

/// Files below a prefix, each read and written whole.
#[derive(Clone, Debug)]
pub struct S3Files(Arc<Bucket>);

impl S3Files {
    pub(crate) fn new(bucket: Arc<Bucket>) -> S3Files {
        S3Files(bucket)
    }

    /// Returns the bytes of the file `name`, such as "packs/.pool.toml"; `None` if it does not
    /// exist.
    ///
    /// # Errors
    /// `Invalid` if the bucket does not exist or does not permit the read; `Retry` if it cannot be
    /// reached.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let name = name.to_owned();
        self.0.wait(|bucket| async move { bucket.get(&name).await })
    }

    /// Writes the file `name`, and replaces an existing one. It is durable when the call returns.
    ///
    /// # Errors
    /// As [`S3Files::read`].
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let (name, bytes) = (name.to_owned(), bytes.to_vec());
        self.0.wait(|bucket| async move { bucket.put(&name, bytes).await })
    }

    /// Writes the file `name` unless it exists; returns true if it was written.
    ///
    /// # Errors
    /// As [`S3Files::read`]; then the write may have happened.
    pub fn write_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let (name, bytes) = (name.to_owned(), bytes.to_vec());
        self.0.wait(|bucket| async move { bucket.put_new(&name, bytes).await })
    }

    /// Removes the file `name`; a missing one is no error.
    ///
    /// # Errors
    /// As [`S3Files::read`].
    pub fn delete(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.0.wait(|bucket| async move { bucket.delete(&name).await })
    }
}
