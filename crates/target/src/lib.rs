//! Places that keep bytes: [`Target`] keeps shards, [`ManifestLog`] keeps the records of jobs, by one
//! protocol above any [`LogMedium`]. One file each for the backends (`directory`, `memory`, and in `log`
//! the media) and for the wrappers (`retry`, `throttle`, `fault`, `watch`); all of them pass [`conformance`].

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
    /// The pack it belongs to.
    pub pack: PackId,
    /// Its number within the pack.
    pub shard: u8,
}

impl fmt::Display for ShardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.pack, self.shard)
    }
}

/// Bytes a target has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// In all; `u64::MAX` if there is no limit.
    pub total_bytes: u64,
    /// Free for this user; `u64::MAX` if there is no limit.
    pub free_bytes: u64,
}

/// A range to read: as long as the buffer that receives it.
#[derive(Debug)]
pub struct ReadRange {
    /// Where it starts in the shard: a multiple of 4096.
    pub offset: u64,
    /// Receives the bytes; its length is a multiple of 4096.
    pub buffer: AlignedBuf,
    /// How the target reads it.
    pub mode: ReadMode,
}

/// Options of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadMode {
    /// The page cache may serve the read. Otherwise the bytes come from the medium.
    pub may_be_cached: bool,
    /// A program stands still until this read ends. A directory has threads for such reads; other targets ignore it.
    pub is_urgent: bool,
}

impl ReadRange {
    /// The range of a buffer's length at `offset`, read from where it is kept.
    pub fn new(offset: u64, buffer: AlignedBuf) -> ReadRange {
        ReadRange { offset, buffer, mode: ReadMode::default() }
    }
}

/// An operation on a buffer that failed, and the buffer.
#[derive(Debug)]
pub struct Fault<B> {
    /// Why.
    pub error: Error,
    /// The caller's buffer: to be used for another attempt, here or elsewhere, or to be dropped.
    pub buffer: B,
}

impl<B> From<Fault<B>> for Error {
    fn from(fault: Fault<B>) -> Error {
        fault.error
    }
}

/// The outcome of a write still in flight. A buffer that failed comes back unchanged; the target keeps
/// nothing of one that was written.
pub type WriteTicket = Ticket<std::result::Result<(), Fault<SharedBuf>>>;

/// The outcome of a read still in flight: the buffer, filled. What a buffer holds whose read failed is
/// not defined.
pub type ReadTicket = Ticket<std::result::Result<AlignedBuf, Fault<AlignedBuf>>>;

/// A place that keeps shards: a directory, a device, a storage node, a bucket.
///
/// Guarantees: a shard is invisible to `read_ranges`, `length` and `list` until it is written whole. Once its `finish`
/// has succeeded, it is durable, and only `replace` changes its bytes. A moment before that its name may be visible;
/// [`Target::sync`] makes it durable. Calls may come from any thread.
pub trait Target: Send + Sync + fmt::Debug {
    /// What and where, for messages: "directory /scratch/ckpt".
    fn describe(&self) -> String;

    /// Begins a shard of at most `bytes_max` bytes. A leftover of an unfinished shard of that name
    /// is replaced.
    ///
    /// # Errors
    /// `Invalid` if a finished shard of that name exists; `Full`; what the medium reports.
    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>>;

    /// Begins a shard of at most `bytes_max` bytes that takes the place of the finished shard of that
    /// name. Its `finish` does that in one step: at every moment, also after a power cut, either the
    /// old shard is there or the new one, whole. If there is no finished shard of that name, the new
    /// one becomes visible as with `create`. A leftover of an unfinished shard of that name is
    /// replaced.
    ///
    /// A repair uses it to write a damaged shard anew, with the bytes that the shard should have. A
    /// reader that works meanwhile may get some ranges from the old shard and others from the new one.
    /// Another process may keep reading the old one until it calls `length`.
    ///
    /// # Errors
    /// `Full`; what the medium reports.
    fn replace(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>>;

    /// Reads ranges of a finished shard, overlapped; one ticket each, in the order given. The buffers
    /// may be parts of one. A read whose ticket is dropped goes on; then its buffer goes home.
    ///
    /// Each ticket's errors: `Damaged` if the shard is missing or ends before the range does.
    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket>;

    /// Length of a finished shard.
    ///
    /// # Errors
    /// `Damaged` if it is missing.
    fn length(&self, shard: ShardName) -> Result<u64>;

    /// All finished shards, sorted.
    ///
    /// # Errors
    /// What the medium reports.
    fn list(&self) -> Result<Vec<ShardName>>;

    /// Makes the names of finished shards durable. A process that had published one may have died just before it was
    /// durable; a power cut would take it back. What relies on a shard that another process has written calls this
    /// first. A shard that is not there is no error.
    ///
    /// # Errors
    /// What the medium reports.
    fn sync(&self, _shards: &[ShardName]) -> Result<()> {
        Ok(())
    }

    /// Shards that were begun and not finished, with `create` or `replace`: being written, or left
    /// behind by a crash. A target that keeps nothing of them has none.
    ///
    /// # Errors
    /// What the medium reports.
    fn unfinished(&self) -> Result<Vec<ShardName>> {
        Ok(Vec::new())
    }

    /// Removes what was written of a shard that was not finished. One that is finished by now stays,
    /// and one that is not there is no error; a writer that was about to finish it fails. A finished shard
    /// that was to be replaced stays as it is.
    ///
    /// # Errors
    /// What the medium reports.
    fn delete_unfinished(&self, _shard: ShardName) -> Result<()> {
        Ok(())
    }

    /// Removes a shard, finished or not; one that is not there is no error.
    ///
    /// # Errors
    /// What the medium reports.
    fn delete(&self, shard: ShardName) -> Result<()>;

    /// How much fits.
    ///
    /// # Errors
    /// What the medium reports.
    fn capacity(&self) -> Result<Capacity>;

    /// Makes a reserve of this many bytes, or less on a small medium. Makes none where little is free, or on a medium
    /// that never fills.
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

    /// Closes files cached for reads: all, or only deleted shards, whose space stays taken until then.
    fn close_files(&self, _all: bool) {}

    /// Gives the files of shards, and those of the target itself, the present as their time, where a medium has
    /// times by which others may delete. A shard that is not there is no error.
    ///
    /// # Errors
    /// What the medium reports.
    fn freshen(&self, _shards: &[ShardName]) -> Result<()> {
        Ok(())
    }
}

/// Writes one shard. Dropped without `finish`, the shard never existed; a finished one that it was to
/// replace stays.
pub trait ShardWriter: Send {
    /// Starts writing `bytes` at `offset`. That, their length and their address are multiples of 4096. No
    /// range is written twice, but that a write that failed may be repeated at the same offset once its
    /// ticket has said so. Writes overlap, and others may read or write the same bytes meanwhile.
    fn write(&mut self, offset: u64, bytes: SharedBuf) -> WriteTicket;

    /// Ends the shard at `length` bytes (a multiple of 4096), makes it durable, then visible. Takes
    /// effect after every write before it; fails if one of them failed and was not repeated with
    /// success (so a wrapper that retries needs nothing but this trait). A failed finish leaves no
    /// shard behind and must not be repeated: write the bytes again under another name. A failed finish
    /// of a writer from `replace` leaves the old shard or the new one: call `replace` again. Goes on
    /// if the ticket is dropped.
    fn finish(self: Box<Self>, length: u64) -> Ticket<Result<()>>;
}

/// The record behind which another is appended: that record itself, not only its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Previous {
    /// Its number; 0 before the first record.
    pub number: u64,
    /// Fingerprint of its bytes; zero before the first record.
    pub fp: Fingerprint,
}

impl Previous {
    /// Before the first record.
    pub const NONE: Previous = Previous { number: 0, fp: Fingerprint::ZERO };

    /// A record with its bytes.
    pub fn of(number: u64, record: &[u8]) -> Previous {
        Previous { number, fp: fingerprint(record) }
    }
}

/// A lock that ends with its holder: when it is dropped, or its process dies.
pub type LockGuard = Box<dyn Send + Sync>;

/// Shows to processes of other hosts that its holder still runs.
pub struct Lease {
    /// Names it to [`ManifestLog::has_lease_ended`]: at most 65,535 bytes.
    pub token: String,
    /// Ends it: when it is dropped, or its process dies.
    pub guard: LockGuard,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({})", self.token)
    }
}

/// Answer to somebody who wants a lock.
pub enum Lock {
    /// It is held until the guard is dropped.
    Taken(LockGuard),
    /// Somebody else has it.
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

/// Answer to a conditional append.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Append {
    /// The record is durable; it has the number `previous + 1`.
    Done,
    /// Another record has that number, or a later one: somebody else was faster. Or the record
    /// `previous` is another than the one that was meant: the log was put back to an older state.
    Lost,
}

/// Where the records of jobs are kept: numbered from 1 without gaps, written once.
pub trait ManifestLog: Send + Sync + fmt::Debug {
    /// What and where, for messages.
    fn describe(&self) -> String;

    /// All jobs that have a record, sorted.
    ///
    /// # Errors
    /// What the medium reports.
    fn jobs(&self) -> Result<Vec<JobName>>;

    /// The numbers of a job's records, ascending; empty for an unknown job. Old records may have
    /// been pruned, so they need not begin at 1.
    ///
    /// # Errors
    /// What the medium reports.
    fn numbers(&self, job: &JobName) -> Result<Vec<u64>>;

    /// The newest record's number, 0 if there is none.
    ///
    /// # Errors
    /// What the medium reports.
    fn latest(&self, job: &JobName) -> Result<u64> {
        Ok(self.numbers(job)?.last().copied().unwrap_or(0))
    }

    /// A record's bytes.
    ///
    /// # Errors
    /// `Damaged` if there is no such record.
    fn read(&self, job: &JobName, number: u64) -> Result<Vec<u8>>;

    /// Appends `record` as number `previous + 1` if `previous` is still the newest, and still the very
    /// record that is meant; durable when it returns `Done`. A reply that got lost is settled by reading back: our own record found there
    /// is `Done`, so a call that failed may be repeated as it stands.
    ///
    /// # Errors
    /// `Damaged` if record `previous` is missing though nothing newer is there. After an error the
    /// record may or may not be there.
    fn append_if(&self, job: &JobName, previous: Previous, record: &[u8]) -> Result<Append>;

    /// Removes the records below `number`, oldest first, but never the newest: so the numbers that
    /// are left have no gap, and nobody can append in the place of a record that was removed. After
    /// an error, or a crash, some of the oldest are gone and the rest is there.
    ///
    /// # Errors
    /// What the medium reports.
    fn remove_before(&self, job: &JobName, number: u64) -> Result<()>;

    /// Makes every record of the job that is visible durable. Who deletes something because of a
    /// record that somebody else has appended calls this first: that one may have died between the
    /// two steps of its append, and at a power cut the record would vanish and the deletion stay.
    ///
    /// # Errors
    /// What the medium reports.
    fn sync(&self, job: &JobName) -> Result<()>;

    /// Gives the records of a job, and the files of the log itself, the present as their time, where a medium has
    /// times by which others may delete.
    ///
    /// # Errors
    /// What the medium reports.
    fn freshen(&self, _job: &JobName) -> Result<()> {
        Ok(())
    }

    /// Takes the lock of whoever collects (a gc, a scrub), if nobody has it. It spares collectors each
    /// other's work; that nothing is lost does not depend on it.
    ///
    /// # Errors
    /// What the medium reports.
    fn lock_collecting(&self) -> Result<Lock> {
        Ok(Lock::None)
    }

    /// Takes a lock that any number of readers share, before they look at the log: as long as one of
    /// them has it, no gc deletes a pack. `None` if the medium has no such locks.
    ///
    /// # Errors
    /// What the medium reports.
    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        Ok(None)
    }

    /// Whether a reader has its lock now. One that takes it later finds in the log whatever was
    /// appended before this was asked.
    ///
    /// # Errors
    /// What the medium reports.
    fn is_read(&self) -> Result<bool> {
        Ok(false)
    }

    /// Takes a lease, by which processes of other hosts see whether this one still runs. `None` if the medium has
    /// nothing of the kind.
    ///
    /// # Errors
    /// What the medium reports.
    fn lease(&self) -> Result<Option<Lease>> {
        Ok(None)
    }

    /// Whether a lease has ended; `None` if this process cannot see that. The holder of a lease that has ended may still
    /// run: its host may be cut off, or stand still. So a caller that acts on the end first appends a record that ends
    /// what the lease stood for.
    ///
    /// # Errors
    /// What the medium reports.
    fn has_lease_ended(&self, _token: &str) -> Result<Option<bool>> {
        Ok(None)
    }
}
