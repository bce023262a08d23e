//! Media that keep bytes: [`Target`] keeps shards, and [`ManifestLog`] keeps the records of jobs,
//! by one protocol above any [`LogMedium`]. Each backend (`directory`, `memory`, the media in
//! `log`) and each wrapper (`retry`, `throttle`, `fault`, `watch`) has its own file. All pass
//! [`conformance`].

pub mod conformance;
mod directory;
mod durable;
mod fault;
mod log;
mod memory;
mod operation;
mod owner;
mod relay;
mod retry;
mod throttle;
mod watch;
mod wrapped;
pub mod writes;

pub use directory::{DirectoryOptions, DirectoryTarget};
pub use durable::{make_dir_durable, publish, sync_dir, sync_file};
pub use fault::{CutMode, DiskCopy, FaultProcess, FaultWorld};
pub use log::{
    Asking, DirectoryLog, DirectoryMedium, LogMedium, MemoryLog, MemoryMedium, Movable, NUMBER_MAX,
    Put, RecordLog, ReplicatedLog, replicas,
};
pub use memory::MemoryTarget;
pub use owner::adopt_file;
pub use retry::{RetryLog, RetryMedium, RetryPolicy, RetryTarget};
pub use throttle::{Throttle, ThrottledLog, ThrottledTarget};
pub use watch::{Bounds, Look, SLOW_TO_FAIL, TargetWatch, WatchedTarget, Work};
pub use wrapped::read_one;

use outlive_format::fingerprint;
use outlive_io::{AlignedBuf, SharedBuf, Ticket};
use outlive_types::{Error, Fingerprint, JobName, PackId, Result};
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

/// The record behind which another is appended: its bytes, not only its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Previous {
    /// Number of the record; 0 before the first record.
    pub number: u64,
    /// Fingerprint of its bytes; zero before the first record.
    pub fp: Fingerprint,
}

impl Previous {
    /// The position before the first record.
    pub const NONE: Previous = Previous { number: 0, fp: Fingerprint::ZERO };

    /// Returns the position behind a record with these bytes.
    pub fn of(number: u64, record: &[u8]) -> Previous {
        Previous { number, fp: fingerprint(record) }
    }
}

/// A lock that ends when it is dropped, or when its process dies.
pub type LockGuard = Box<dyn Send + Sync>;

/// A sign to processes of other hosts that its holder still runs.
pub struct Lease {
    /// Name of the lease for [`ManifestLog::has_lease_ended`]: at most 65,535 bytes.
    pub token: String,
    /// Ends the lease when it is dropped, or when its process dies.
    pub guard: LockGuard,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({})", self.token)
    }
}

/// The outcome of an attempt to take a lock.
pub enum Lock {
    /// The caller holds the lock until it drops the guard.
    Taken(LockGuard),
    /// Another caller has the lock.
    Busy,
    /// The medium has no locks that end with their holder.
    None,
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lock::Taken(_) => "Taken",
            Lock::Busy => "Busy",
            Lock::None => "None",
        })
    }
}

/// The outcome of a conditional append.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Append {
    /// The record is durable, with the number `previous + 1`.
    Done,
    /// Another writer was faster: a different record has that number or a later one. Or record
    /// `previous` differs from the one that the caller means: the log was put back to an older
    /// state.
    Lost,
}

/// Storage for the records of jobs: numbered from 1 without gaps, each written once.
pub trait ManifestLog: Send + Sync + fmt::Debug {
    /// Returns the kind and location, for messages.
    fn describe(&self) -> String;

    /// Returns all jobs that have a record, sorted.
    ///
    /// # Errors
    /// Errors of the medium.
    fn jobs(&self) -> Result<Vec<JobName>>;

    /// Returns the numbers of a job's records, ascending; none for an unknown job. Old records may
    /// have been pruned, so the first number need not be 1.
    ///
    /// # Errors
    /// Errors of the medium.
    fn numbers(&self, job: &JobName) -> Result<Vec<u64>>;

    /// Returns the newest record's number, 0 if there is none.
    ///
    /// # Errors
    /// Errors of the medium.
    fn latest(&self, job: &JobName) -> Result<u64> {
        Ok(self.numbers(job)?.last().copied().unwrap_or(0))
    }

    /// Returns a record's bytes.
    ///
    /// # Errors
    /// `Damaged` if there is no such record.
    fn read(&self, job: &JobName, number: u64) -> Result<Vec<u8>>;

    /// Appends `record` as number `previous + 1` if `previous` is still the newest record, with the
    /// same bytes; the record is durable when the call returns `Done`. After a lost reply, the call
    /// reads the number back: its own record there means `Done`, so a failed call may be repeated
    /// as it is.
    ///
    /// # Errors
    /// `Damaged` if record `previous` is missing although no newer one is there. After an error the
    /// record may or may not be there.
    fn append_if(&self, job: &JobName, previous: Previous, record: &[u8]) -> Result<Append>;

    /// Removes the records below `number`, oldest first, but never the newest. So the remaining
    /// numbers have no gap, and no writer can append under the number of a removed record. After an
    /// error or a crash, some of the oldest records are gone and the others are there.
    ///
    /// # Errors
    /// Errors of the medium.
    fn remove_before(&self, job: &JobName, number: u64) -> Result<()>;

    /// Makes every visible record of the job durable. A caller that deletes data because of another
    /// process's record calls this first. The writer of that record may have died between the two
    /// steps of its append; a power cut would then remove the record, and the data would stay
    /// deleted.
    ///
    /// # Errors
    /// Errors of the medium.
    fn sync(&self, job: &JobName) -> Result<()>;

    /// Sets the times of a job's records, and of the log's own files, to the present, on a medium
    /// where old files may be purged by age.
    ///
    /// # Errors
    /// Errors of the medium.
    fn freshen(&self, _job: &JobName) -> Result<()> {
        Ok(())
    }

    /// Takes the lock of collectors (gc, scrub) if it is free. The lock only saves collectors from
    /// doing the same work twice; no data is lost without it.
    ///
    /// # Errors
    /// Errors of the medium.
    fn lock_collecting(&self) -> Result<Lock> {
        Ok(Lock::None)
    }

    /// Takes a lock that any number of readers share, before they read the log: as long as one of
    /// them has it, no gc deletes a pack. `None` if the medium has no such locks.
    ///
    /// # Errors
    /// Errors of the medium.
    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        Ok(None)
    }

    /// Whether a reader has its lock now. A reader that takes it later finds in the log every
    /// record that was appended before this call.
    ///
    /// # Errors
    /// Errors of the medium.
    fn is_read(&self) -> Result<bool> {
        Ok(false)
    }

    /// Takes a lease, which shows to processes of other hosts whether this process still runs.
    /// `None` if the medium has no leases.
    ///
    /// # Errors
    /// Errors of the medium.
    fn lease(&self) -> Result<Option<Lease>> {
        Ok(None)
    }

    /// Whether a lease has ended; `None` if this process cannot see that. The holder of an ended
    /// lease may still run: its host may be cut off, or stand still. So a caller that acts on the
    /// end first appends a record that ends what the lease stood for.
    ///
    /// # Errors
    /// Errors of the medium.
    fn has_lease_ended(&self, _token: &str) -> Result<Option<bool>> {
        Ok(None)
    }
}
