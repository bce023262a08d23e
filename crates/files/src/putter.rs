//! Shared context of all parts of a put.

use outlive_pool::Pool;
use outlive_store::{ContentStore, FilesImage};
use std::sync::atomic::AtomicBool;

/// Context of a put.
pub struct Putter<'a> {
    /// The pool.
    pub pool: &'a Pool,
    /// Takes new chunks.
    pub into: &'a ContentStore<'a>,
    /// Checkpoint of the put before.
    pub parent: Option<&'a FilesImage>,
    /// Read every file, even an unchanged one.
    pub reread: bool,
    /// Set to end the put.
    pub stop: &'a AtomicBool,
}
