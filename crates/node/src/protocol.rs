//! The messages of the protocol, of the service that `docs/node.md` describes. A field's number never
//! changes its meaning; a build ignores fields that it does not know.

use bytes::Bytes;
use outlive_backend::{Capacity, ReadMode, ShardName};
use outlive_types::{Error, JobName, PackId, Result};
use prost::{Enumeration, Message};

/// Version of the protocol. A node refuses clients of another one.
pub const VERSION: u32 = 1;
/// Most bytes of one write, and of the ranges of one read.
pub const UNIT_BYTES: usize = 4 << 20;
/// Most bytes of one part of a stream.
pub const PART_BYTES: usize = 256 << 10;
/// Most bytes of a message.
pub const MESSAGE_BYTES_MAX: usize = UNIT_BYTES + (256 << 10);
/// Most bytes of a record or a small file.
pub const BYTES_MAX: usize = UNIT_BYTES;
/// Most ranges of one read.
pub const RANGES_MAX: usize = 1024;
/// Most names in one message.
pub const NAMES_MAX: usize = 4096;
/// Seconds after which a session ends that its client does not renew, unless the node is told.
pub const SESSION_S: u32 = 120;
/// Renewals during the life of a session; some of them may fail.
pub const RENEWALS: u32 = 8;
/// Metadata of a status: name of the kind of the error.
pub const KIND_HEADER: &str = "outlive-kind";
/// Metadata of a request: "Bearer" and a token.
pub const TOKEN_HEADER: &str = "authorization";

/// First request of a client.
#[derive(Clone, PartialEq, Message)]
pub struct HelloRequest {
    /// Version of the protocol that the client speaks.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Random number of 16 bytes, which names the client's session.
    #[prost(bytes = "bytes", tag = "2")]
    pub session: Bytes,
    /// Location on the node whose parts the client needs.
    #[prost(string, tag = "3")]
    pub prefix: String,
    /// Version of the client's build, for the node's log.
    #[prost(string, tag = "4")]
    pub build: String,
}

/// The node's answer.
#[derive(Clone, PartialEq, Message)]
pub struct HelloReply {
    /// Version of the protocol that the node speaks.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Random number of 16 bytes, kept with the node's data.
    #[prost(bytes = "bytes", tag = "2")]
    pub node: Bytes,
    /// Random number of this run of the node.
    #[prost(bytes = "bytes", tag = "3")]
    pub run: Bytes,
    /// Seconds after which a session ends that its client does not renew.
    #[prost(uint32, tag = "4")]
    pub session_s: u32,
}

/// Keeps a session alive.
#[derive(Clone, PartialEq, Message)]
pub struct RenewRequest {
    /// The session.
    #[prost(bytes = "bytes", tag = "1")]
    pub session: Bytes,
    /// The locks that the client holds, so that a node that was started again knows them.
    #[prost(message, repeated, tag = "2")]
    pub held: Vec<HeldLock>,
    /// All of the session's locks with numbers below this one are in the list.
    #[prost(uint64, tag = "3")]
    pub complete_below: u64,
}

/// The answer to [`RenewRequest`].
#[derive(Clone, PartialEq, Message)]
pub struct RenewReply {
    /// Random number of this run of the node.
    #[prost(bytes = "bytes", tag = "1")]
    pub run: Bytes,
    /// Seconds after which a session ends that its client does not renew.
    #[prost(uint32, tag = "2")]
    pub session_s: u32,
    /// Numbers of locks in the request that the session does not hold any more.
    #[prost(uint64, repeated, tag = "3")]
    pub lost: Vec<u64>,
}

/// A lock that a client holds.
#[derive(Clone, PartialEq, Message)]
pub struct HeldLock {
    /// Location of the medium.
    #[prost(string, tag = "1")]
    pub prefix: String,
    /// Kind of the lock.
    #[prost(enumeration = "LockKind", tag = "2")]
    pub kind: i32,
    /// Number of the lock in its session.
    #[prost(uint64, tag = "3")]
    pub number: u64,
}

/// The answer to a request that only succeeds or fails.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Done {}

/// Name of a shard.
#[derive(Clone, PartialEq, Message)]
pub struct Shard {
    /// Id of the pack: 20 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub pack: Bytes,
    /// Number of the shard in its pack, below 256.
    #[prost(uint32, tag = "2")]
    pub shard: u32,
}

/// Begins a shard. A repetition with the same writer changes nothing.
#[derive(Clone, PartialEq, Message)]
pub struct BeginRequest {
    /// The session.
    #[prost(bytes = "bytes", tag = "1")]
    pub session: Bytes,
    /// Location of the target.
    #[prost(string, tag = "2")]
    pub prefix: String,
    /// Random number of 16 bytes, which names the writer.
    #[prost(bytes = "bytes", tag = "3")]
    pub writer: Bytes,
    /// Name of the shard.
    #[prost(message, optional, tag = "4")]
    pub shard: Option<Shard>,
    /// Most bytes of the shard.
    #[prost(uint64, tag = "5")]
    pub bytes_max: u64,
    /// Whether the shard replaces a finished one.
    #[prost(bool, tag = "6")]
    pub replaces: bool,
}

/// A part of a write. The first one names the writer and the range.
#[derive(Clone, PartialEq, Message)]
pub struct WritePart {
    /// The session; only in the first part, as the next three.
    #[prost(bytes = "bytes", tag = "1")]
    pub session: Bytes,
    /// The writer.
    #[prost(bytes = "bytes", tag = "2")]
    pub writer: Bytes,
    /// Offset of the write in the shard.
    #[prost(uint64, tag = "3")]
    pub offset: u64,
    /// Bytes of all parts.
    #[prost(uint64, tag = "4")]
    pub length: u64,
    /// The next bytes.
    #[prost(bytes = "bytes", tag = "5")]
    pub bytes: Bytes,
}

/// Finishes a shard. A repetition gets the same answer.
#[derive(Clone, PartialEq, Message)]
pub struct FinishRequest {
    /// The session.
    #[prost(bytes = "bytes", tag = "1")]
    pub session: Bytes,
    /// The writer.
    #[prost(bytes = "bytes", tag = "2")]
    pub writer: Bytes,
    /// Length of the shard in bytes.
    #[prost(uint64, tag = "3")]
    pub length: u64,
}

/// Forgets a writer: abandons its shard, unless that is finished.
#[derive(Clone, PartialEq, Message)]
pub struct AbandonRequest {
    /// The session.
    #[prost(bytes = "bytes", tag = "1")]
    pub session: Bytes,
    /// The writer.
    #[prost(bytes = "bytes", tag = "2")]
    pub writer: Bytes,
}

/// Reads ranges of a shard.
#[derive(Clone, PartialEq, Message)]
pub struct ReadRequest {
    /// The session.
    #[prost(bytes = "bytes", tag = "1")]
    pub session: Bytes,
    /// Location of the target.
    #[prost(string, tag = "2")]
    pub prefix: String,
    /// Name of the shard.
    #[prost(message, optional, tag = "3")]
    pub shard: Option<Shard>,
    /// The ranges, together at most [`UNIT_BYTES`].
    #[prost(message, repeated, tag = "4")]
    pub ranges: Vec<Range>,
}

/// A range to read.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Range {
    /// Offset in the shard.
    #[prost(uint64, tag = "1")]
    pub offset: u64,
    /// Bytes.
    #[prost(uint64, tag = "2")]
    pub length: u64,
    /// As [`ReadMode::may_be_cached`].
    #[prost(bool, tag = "3")]
    pub may_be_cached: bool,
    /// As [`ReadMode::is_urgent`].
    #[prost(bool, tag = "4")]
    pub is_urgent: bool,
}

/// The next bytes of a range, or its error. The bytes of one range come in order; several ranges
/// may come mixed.
#[derive(Clone, PartialEq, Message)]
pub struct ReadPart {
    /// Number of the range in the request.
    #[prost(uint32, tag = "1")]
    pub range: u32,
    /// The next bytes.
    #[prost(bytes = "bytes", tag = "2")]
    pub bytes: Bytes,
    /// Why the range cannot be read.
    #[prost(message, optional, tag = "3")]
    pub fault: Option<Fault>,
}

/// An error of one range.
#[derive(Clone, PartialEq, Message)]
pub struct Fault {
    /// Name of the kind.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// The message.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// Lists names.
#[derive(Clone, PartialEq, Message)]
pub struct ListRequest {
    /// The session.
    #[prost(bytes = "bytes", tag = "1")]
    pub session: Bytes,
    /// Location of the target or medium.
    #[prost(string, tag = "2")]
    pub prefix: String,
    /// The names to list.
    #[prost(enumeration = "Listed", tag = "3")]
    pub listed: i32,
    /// The job whose records are listed.
    #[prost(string, tag = "4")]
    pub job: String,
}

/// Names to list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum Listed {
    /// Finished shards.
    Shards = 0,
    /// Unfinished shards.
    Unfinished = 1,
    /// Jobs that have records.
    Jobs = 2,
    /// Numbers of a job's records.
    Records = 3,
}

/// Some of the names.
#[derive(Clone, PartialEq, Message)]
pub struct ListPart {
    /// Shards.
    #[prost(message, repeated, tag = "1")]
    pub shards: Vec<Shard>,
    /// Jobs.
    #[prost(string, repeated, tag = "2")]
    pub jobs: Vec<String>,
    /// Numbers of records.
    #[prost(uint64, repeated, tag = "3")]
    pub records: Vec<u64>,
}

/// A small request about a target.
#[derive(Clone, PartialEq, Message)]
pub struct ShardRequest {
    /// The session.
    #[prost(bytes = "bytes", tag = "1")]
    pub session: Bytes,
    /// Location of the target.
    #[prost(string, tag = "2")]
    pub prefix: String,
    /// The request.
    #[prost(enumeration = "ShardDo", tag = "3")]
    pub work: i32,
    /// The shards that it concerns.
    #[prost(message, repeated, tag = "4")]
    pub shards: Vec<Shard>,
    /// Bytes of a reserve.
    #[prost(uint64, tag = "5")]
    pub bytes: u64,
}

/// Requests about a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum ShardDo {
    /// The length of one shard.
    Length = 0,
    /// Makes names durable.
    Sync = 1,
    /// Removes shards.
    Delete = 2,
    /// Removes the data of unfinished shards.
    DeleteUnfinished = 3,
    /// The space of the target.
    Capacity = 4,
    /// Makes a reserve.
    MakeReserve = 5,
    /// Deletes the reserve.
    DeleteReserve = 6,
    /// Sets the times of files to the present.
    Freshen = 7,
}

/// The answer to [`ShardRequest`].
#[derive(Clone, Copy, PartialEq, Message)]
pub struct ShardReply {
    /// A length, bytes in all, or bytes of a reserve.
    #[prost(uint64, tag = "1")]
    pub bytes: u64,
    /// Free bytes.
    #[prost(uint64, tag = "2")]
    pub free_bytes: u64,
}

/// A request about the records of a job.
#[derive(Clone, PartialEq, Message)]
pub struct RecordRequest {
    /// The session.
    #[prost(bytes = "bytes", tag = "1")]
    pub session: Bytes,
    /// Location of the medium.
    #[prost(string, tag = "2")]
    pub prefix: String,
    /// The request.
    #[prost(enumeration = "RecordDo", tag = "3")]
    pub work: i32,
    /// The job.
    #[prost(string, tag = "4")]
    pub job: String,
    /// Number of the record.
    #[prost(uint64, tag = "5")]
    pub number: u64,
    /// The record.
    #[prost(bytes = "bytes", tag = "6")]
    pub bytes: Bytes,
}

/// Requests about records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum RecordDo {
    /// The bytes of a record.
    Get = 0,
    /// Whether there is a record.
    Has = 1,
    /// Puts a record, unless there is one.
    PutNew = 2,
    /// Removes a record.
    Delete = 3,
    /// Removes all records before a number.
    RemoveBefore = 4,
    /// Makes the job's records durable.
    Sync = 5,
    /// Makes one record durable.
    Keep = 6,
    /// Removes leftovers.
    Tidy = 7,
    /// Sets the times of files to the present.
    Freshen = 8,
}

/// The answer to [`RecordRequest`].
#[derive(Clone, PartialEq, Message)]
pub struct RecordReply {
    /// Whether there is such a record, or whether the record was put.
    #[prost(bool, tag = "1")]
    pub is: bool,
    /// Its bytes.
    #[prost(bytes = "bytes", tag = "2")]
    pub bytes: Bytes,
}

/// A request about a lock.
#[derive(Clone, PartialEq, Message)]
pub struct LockRequest {
    /// The session.
    #[prost(bytes = "bytes", tag = "1")]
    pub session: Bytes,
    /// Location of the medium.
    #[prost(string, tag = "2")]
    pub prefix: String,
    /// The request.
    #[prost(enumeration = "LockDo", tag = "3")]
    pub work: i32,
    /// Kind of the lock.
    #[prost(enumeration = "LockKind", tag = "4")]
    pub kind: i32,
    /// Number of the lock in its session.
    #[prost(uint64, tag = "5")]
    pub number: u64,
    /// The lease that is asked about.
    #[prost(string, tag = "6")]
    pub token: String,
}

/// Requests about locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum LockDo {
    /// Takes a lock.
    Take = 0,
    /// Gives a lock back.
    Drop = 1,
    /// Whether any session holds a lock of this kind.
    IsHeld = 2,
    /// Whether a lease has ended.
    HasEnded = 3,
}

/// Kinds of locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum LockKind {
    /// The lock of collectors, which one holds at a time.
    Collecting = 0,
    /// The lock of readers, which any number share.
    Reading = 1,
    /// A lease.
    Lease = 2,
}

/// The answer to [`LockRequest`].
#[derive(Clone, PartialEq, Message)]
pub struct LockReply {
    /// Whether the lock is the caller's now; whether it is held; whether a lease has ended.
    #[prost(bool, tag = "1")]
    pub is: bool,
    /// Whether the node cannot know yet, since it started a moment ago. A lock is not given then.
    #[prost(bool, tag = "2")]
    pub is_unknown: bool,
    /// The token of a lease.
    #[prost(string, tag = "3")]
    pub token: String,
    /// Seconds after which a session ends that its client does not renew.
    #[prost(uint32, tag = "4")]
    pub session_s: u32,
    /// Seconds until the node knows, if it does not yet.
    #[prost(uint32, tag = "5")]
    pub known_in_s: u32,
}

/// A request about a small file.
#[derive(Clone, PartialEq, Message)]
pub struct FileRequest {
    /// The session.
    #[prost(bytes = "bytes", tag = "1")]
    pub session: Bytes,
    /// Location of the file.
    #[prost(string, tag = "2")]
    pub prefix: String,
    /// The request.
    #[prost(enumeration = "FileDo", tag = "3")]
    pub work: i32,
    /// Names of the file or of folders.
    #[prost(string, repeated, tag = "4")]
    pub names: Vec<String>,
    /// Bytes to write.
    #[prost(bytes = "bytes", tag = "5")]
    pub bytes: Bytes,
}

/// Requests about small files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum FileDo {
    /// The bytes of a file.
    Read = 0,
    /// Whether there is a file.
    Has = 1,
    /// Writes a file unless there is one.
    WriteNew = 2,
    /// Writes a file.
    Write = 3,
    /// Makes a file durable.
    Keep = 4,
    /// Makes folders.
    MakeFolders = 5,
    /// Makes the names in a folder durable.
    SyncFolder = 6,
}

/// The answer to [`FileRequest`].
#[derive(Clone, PartialEq, Message)]
pub struct FileReply {
    /// Whether there is such a file, or whether it was written.
    #[prost(bool, tag = "1")]
    pub is: bool,
    /// Its bytes.
    #[prost(bytes = "bytes", tag = "2")]
    pub bytes: Bytes,
}

impl From<ShardName> for Shard {
    fn from(name: ShardName) -> Shard {
        Shard { pack: Bytes::copy_from_slice(&name.pack.0), shard: name.shard.into() }
    }
}

/// Reads the name of a shard.
///
/// # Errors
/// `Invalid` if it is none.
pub fn shard_name(shard: &Shard) -> Result<ShardName> {
    let pack = <[u8; PackId::BYTES]>::try_from(&shard.pack[..]);
    match (pack, u8::try_from(shard.shard)) {
        (Ok(pack), Ok(number)) => Ok(ShardName { pack: PackId(pack), shard: number }),
        _ => Err(Error::invalid("the request has a name that no shard can have")),
    }
}

/// Checks that a record or a small file fits a message.
///
/// # Errors
/// `Invalid` if it is too long.
pub fn check_length(bytes: &[u8]) -> Result<()> {
    match bytes.len() <= BYTES_MAX {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "a record or small file of {} bytes is too long for a storage node, which keeps up to \
             {BYTES_MAX}",
            bytes.len()
        ))),
    }
}

/// Reads the name of a job, or another name that only logs use.
///
/// # Errors
/// `Invalid` if it is none.
pub fn job_name(escaped: &str) -> Result<JobName> {
    JobName::any_from_escaped(escaped)
        .ok_or_else(|| Error::invalid(format!("the request has {escaped:?}, which is no job")))
}

/// Reads a random number that names a session or a writer.
///
/// # Errors
/// `Invalid` if it has not 16 bytes.
pub fn number(bytes: &Bytes) -> Result<[u8; 16]> {
    bytes[..]
        .try_into()
        .map_err(|_| Error::invalid("the request has a number that has not 16 bytes"))
}

impl Range {
    /// Returns how the range is read.
    pub fn mode(&self) -> ReadMode {
        ReadMode { may_be_cached: self.may_be_cached, is_urgent: self.is_urgent }
    }
}

impl ShardReply {
    /// Returns it as a capacity.
    pub fn capacity(&self) -> Capacity {
        Capacity { total_bytes: self.bytes, free_bytes: self.free_bytes }
    }
}
