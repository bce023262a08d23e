//! What all parts of a put have at hand.

use outlive_pool::Pool;
use outlive_store::{ContentStore, FilesImage};
use std::sync::atomic::AtomicBool;

/// The surroundings of a put.
pub struct Putter<'a> {
    /// The pool.
    pub pool: &'a Pool,
    /// Takes what is new.
    pub into: &'a ContentStore<'a>,
    /// What the put before has left.
    pub parent: Option<&'a FilesImage>,
    /// Read every file, whatever the put before knows of it.
    pub reread: bool,
    /// Set by whoever wants it to end.
    pub stop: &'a AtomicBool,
}
