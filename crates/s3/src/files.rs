//! Small files in a bucket, such as what says that a place belongs to a pool.

use crate::bucket::Bucket;
use outlive_types::Result;
use std::sync::Arc;

/// Files below a place's prefix, each read and written whole.
#[derive(Clone, Debug)]
pub struct S3Files(Arc<Bucket>);

impl S3Files {
    pub(crate) fn new(bucket: Arc<Bucket>) -> S3Files {
        S3Files(bucket)
    }

    /// The bytes of the file `name`, such as "packs/.pool.toml"; `None` if it is not there.
    ///
    /// # Errors
    /// `Invalid` if the bucket is not there or must not be read; `Retry` if it cannot be reached.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let name = name.to_owned();
        self.0.wait(|bucket| async move { bucket.get(&name).await })
    }

    /// Writes the file `name`, in place of one that is there. It is durable then.
    ///
    /// # Errors
    /// As [`S3Files::read`].
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let (name, bytes) = (name.to_owned(), bytes.to_vec());
        self.0.wait(|bucket| async move { bucket.put(&name, bytes).await })
    }

    /// Writes the file `name` unless there is one: true if it was written.
    ///
    /// # Errors
    /// As [`S3Files::read`]; then it is not known whether it was written.
    pub fn write_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let (name, bytes) = (name.to_owned(), bytes.to_vec());
        self.0.wait(|bucket| async move { bucket.put_new(&name, bytes).await })
    }

    /// Removes the file `name`; one that is not there is no error.
    ///
    /// # Errors
    /// As [`S3Files::read`].
    pub fn delete(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.0.wait(|bucket| async move { bucket.delete(&name).await })
    }
}
