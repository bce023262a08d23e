//! The seams to storage: [`Target`] keeps shards, [`LogMedium`](outlive_log::LogMedium) keeps
//! records, [`SmallFiles`] keeps markers and descriptors. A backend implements those that it can,
//! and names itself by a [`Scheme`]. Wrappers (`retry`, `throttle`, `fault`, `watch`) have one file
//! each. All of them pass [`conformance`].

pub mod conformance;
mod fault;
mod location;
mod memory;
mod operation;
pub mod prefix;
mod relay;
mod retry;
pub mod runtime;
mod throttle;
mod watch;
mod wrapped;
pub mod writes;

pub use fault::{CutMode, DiskCopy, FaultProcess, FaultWorld};
pub use location::{BackendLocation, Location, Scheme, ServedAlone, SmallFiles, TargetOptions};
pub use memory::MemoryTarget;
pub use retry::{RetryMedium, RetryPolicy, RetryTarget};
pub use throttle::{Throttle, ThrottledMedium, ThrottledTarget};
pub use watch::{Bounds, HealthCheck, SLOW_TO_FAIL, TargetWatch, WatchedTarget, Work};
pub use wrapped::read_one;

use outlive_io::{AlignedBuf, SharedBuf, Ticket};

use outlive_types::{Error, PackId, Result};
use std::fmt;

/// Name of a shard on a target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardName {
    /// The pack that the shard belongs to.
    pub pack: PackId,
    /// Number of the shard within its pack.
    pub shard: u8,
}

impl fmt::Display for ShardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.pack, self.shard)
    }
}

/// Size and free space of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Bytes in all; `u64::MAX` if there is no limit.
    pub total_bytes: u64,
    /// Bytes free for this user; `u64::MAX` if there is no limit.
    pub free_bytes: u64,
}

/// A range to read: as long as the buffer that receives it.
#[derive(Debug)]
pub struct ReadRange {
    /// Offset of the range in the shard: a multiple of 4096.
    pub offset: u64,
    /// Buffer that receives the bytes; its length is a multiple of 4096.
    pub buffer: AlignedBuf,
    /// How the target reads the range.
    pub mode: ReadMode,
}

/// Options of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadMode {
    /// The page cache may serve the read. Otherwise the bytes come from the medium.
    pub may_be_cached: bool,
    /// A program stands still until this read ends. A directory has threads for such reads; other
    /// targets ignore the flag.
    pub is_urgent: bool,
}

impl ReadRange {
    /// Returns the range at `offset` that fills the buffer, read from the medium.
    pub fn new(offset: u64, buffer: AlignedBuf) -> ReadRange {
        ReadRange { offset, buffer, mode: ReadMode::default() }
    }
}

/// A failed operation on a buffer, with the buffer.
#[derive(Debug)]
pub struct Fault<B> {
    /// Why the operation failed.
    pub error: Error,
    /// The caller's buffer, for another attempt here or elsewhere.
    pub buffer: B,
}

impl<B> From<Fault<B>> for Error {
    fn from(fault: Fault<B>) -> Error {
        fault.error
    }
}

/// The outcome of a write in flight. A failed write returns its buffer unchanged; after a
/// successful one the target keeps nothing of the buffer.
pub type WriteTicket = Ticket<std::result::Result<(), Fault<SharedBuf>>>;

/// The outcome of a read in flight: the filled buffer. After a failed read the content of the
/// buffer is undefined.
pub type ReadTicket = Ticket<std::result::Result<AlignedBuf, Fault<AlignedBuf>>>;

/// Storage for shards: a directory, a device, a storage node, a bucket.
///
/// Guarantees: a shard is invisible to `read_ranges`, `length` and `list` until it is written
/// whole. Once its `finish` has succeeded, it is durable, and only `replace` changes its bytes. Its
/// name may become visible a moment earlier; [`Target::sync`] makes the name durable. Calls may
/// come from any thread.
pub trait Target: Send + Sync + fmt::Debug {
    /// Returns the kind and location, for messages: "directory /scratch/ckpt".
    fn describe(&self) -> String;

    /// Begins a shard of at most `bytes_max` bytes. Replaces the leftover of an unfinished shard of
    /// that name.
    ///
    /// # Errors
    /// `Invalid` if a finished shard of that name exists; `Full`; errors of the medium.
    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>>;

    /// Begins a shard of at most `bytes_max` bytes that replaces the finished shard of that name.
    /// Its `finish` does that in one step: at every moment, also after a power cut, the old shard
    /// or the new one is there, whole. If there is no finished shard of that name, the new one
    /// becomes visible as with `create`. The call also replaces the leftover of an unfinished shard
    /// of that name.
    ///
    /// A repair uses it to rewrite a damaged shard with the bytes that the shard should have. A
    /// reader that works meanwhile may get some ranges from the old shard and others from the new
    /// one. Another process may keep reading the old one until it calls `length`.
    ///
    /// # Errors
    /// `Full`; errors of the medium.
    fn replace(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>>;

    /// Reads ranges of a finished shard, overlapped; returns one ticket each, in the order given.
    /// The buffers may be parts of one. If the caller drops a ticket, the read goes on, and its
    /// buffer then returns to its pool.
    ///
    /// Each ticket's errors: `Damaged` if the shard is missing or ends before the range does.
    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket>;

    /// Returns the length of a finished shard.
    ///
    /// # Errors
    /// `Damaged` if the shard is missing.
    fn length(&self, shard: ShardName) -> Result<u64>;

    /// Returns all finished shards, sorted.
    ///
    /// # Errors
    /// Errors of the medium.
    fn list(&self) -> Result<Vec<ShardName>>;

    /// Makes the names of finished shards durable. A process may die when the shard that it
    /// publishes is visible but not yet durable; a power cut would then remove the shard. Code that
    /// relies on a shard of another process calls this first. A missing shard is no error.
    ///
    /// # Errors
    /// Errors of the medium.
    fn sync(&self, _shards: &[ShardName]) -> Result<()> {
        Ok(())
    }

    /// Returns the shards that `create` or `replace` began and that are not finished: shards being
    /// written, and leftovers of a crash. A target that keeps no unfinished shards returns none.
    ///
    /// # Errors
    /// Errors of the medium.
    fn unfinished(&self) -> Result<Vec<ShardName>> {
        Ok(Vec::new())
    }

    /// Removes the data of an unfinished shard. A shard that is finished by now stays, and a
    /// missing one is no error. A writer that was about to finish the shard fails. If the writer
    /// was to replace a finished shard, that shard stays as it is.
    ///
    /// # Errors
    /// Errors of the medium.
    fn delete_unfinished(&self, _shard: ShardName) -> Result<()> {
        Ok(())
    }

    /// Removes a shard, finished or not. A missing shard is no error.
    ///
    /// # Errors
    /// Errors of the medium.
    fn delete(&self, shard: ShardName) -> Result<()>;

    /// Returns the total and the free space.
    ///
    /// # Errors
    /// Errors of the medium.
    fn capacity(&self) -> Result<Capacity>;

    /// Makes a reserve of this many bytes, or fewer on a small medium. Makes none where little is
    /// free, or on a medium that never fills.
    ///
    /// # Errors
    /// Errors of the medium.
    fn make_reserve(&self, _bytes: u64) -> Result<()> {
        Ok(())
    }

    /// Deletes the reserve. Returns its bytes.
    ///
    /// # Errors
    /// Errors of the medium.
    fn delete_reserve(&self) -> Result<u64> {
        Ok(0)
    }

    /// Closes files cached for reads: all, or only those of deleted shards, which take space until
    /// then.
    fn close_files(&self, _all: bool) {}

    /// Sets the times of the shards' files, and of the target's own files, to the present, on a
    /// medium where old files may be purged by age. A missing shard is no error.
    ///
    /// # Errors
    /// Errors of the medium.
    fn freshen(&self, _shards: &[ShardName]) -> Result<()> {
        Ok(())
    }
}

/// Writes one shard. If the writer is dropped without `finish`, the shard never existed; a finished
/// shard that it was to replace stays.
pub trait ShardWriter: Send {
    /// Starts writing `bytes` at `offset`. The offset, the length and the address of the bytes are
    /// multiples of 4096. No range is written twice. Exception: a failed write may be repeated at
    /// the same offset once its ticket reports the failure. Writes overlap, and other code may read
    /// or write the same bytes meanwhile.
    fn write(&mut self, offset: u64, bytes: SharedBuf) -> WriteTicket;

    /// Ends the shard at `length` bytes (a multiple of 4096), makes it durable, then visible. Takes
    /// effect after every earlier write; fails if one of them failed and no repetition succeeded.
    /// So a wrapper that retries needs only this trait. A failed finish leaves no shard behind and
    /// must not be repeated: write the bytes again under another name. A failed finish of a writer
    /// from `replace` leaves the old shard or the new one: call `replace` again. Goes on if the
    /// ticket is dropped.
    fn finish(self: Box<Self>, length: u64) -> Ticket<Result<()>>;
}
