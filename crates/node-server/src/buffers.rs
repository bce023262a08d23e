//! The memory behind the staging: buffers for long writes and reads are used again and again.

use outlive_io::{AlignedBuf, StagingPool};
use outlive_node::protocol::UNIT_BYTES;
use std::sync::Arc;

/// Buffers for requests. The admission bounds them; this only saves the system work.
#[derive(Debug)]
pub(crate) struct Buffers(Arc<StagingPool>);

impl Buffers {
    pub(crate) fn new(staging_bytes: usize) -> Arc<Buffers> {
        Arc::new(Buffers(StagingPool::new(staging_bytes / 2, UNIT_BYTES)))
    }

    /// Returns a buffer. It may hold the bytes of its last use.
    pub(crate) fn take(&self, length: usize) -> AlignedBuf {
        let is_long = length > UNIT_BYTES / 4 && length <= UNIT_BYTES;
        match is_long.then(|| self.0.try_take()).flatten() {
            Some(mut buffer) => {
                if length < buffer.len() {
                    drop(buffer.split_off(length));
                }
                buffer
            }
            None => AlignedBuf::zeroed(length),
        }
    }

    /// Gives unused memory back.
    pub(crate) fn give_back(&self) {
        self.0.keep(0);
    }
}
