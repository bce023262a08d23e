//! What all parts of a put have at hand.

use super::checkpoint::FilesCheckpoint;
use crate::save::{ChunkSink, Packer};
use outlive_pool::Pool;
use std::sync::atomic::AtomicBool;

/// The surroundings of a put.
pub struct Putter<'a> {
    /// The pool.
    pub pool: &'a Pool,
    /// Takes what is new.
    pub packer: &'a Packer<'a>,
    /// Knows what is.
    pub sink: &'a ChunkSink<'a>,
    /// What the put before has left.
    pub parent: Option<&'a FilesCheckpoint>,
    /// Read every file, whatever the put before knows of it.
    pub reread: bool,
    /// Set by whoever wants it to end.
    pub stop: &'a AtomicBool,
}
