//! Identifiers. Each is a plain value with one textual form, used in file names and messages alike.

use crate::{Error, Result};
use std::fmt;

/// Number of a checkpoint in a job's series, increasing from 1.
pub type Epoch = u64;

/// Number of a process within its job, from 0.
pub type Rank = u32;

/// Takes the place of a rank in the names of packs of the image table, which the committer of a
/// group writes.
pub const COMMITTER: Rank = Rank::MAX;

/// BLAKE3 hash of a chunk's or node's bytes, which is its name everywhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Stands for "all zero pages", for which no chunk or node is stored.
    pub const ZERO: Fingerprint = Fingerprint([0; 32]);

    /// Returns true for [`Fingerprint::ZERO`].
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }

    /// Returns the first eight bytes as a number: fingerprints are uniform, so this is a good hash.
    pub fn prefix(&self) -> u64 {
        u64::from_le_bytes(self.0[..8].try_into().expect("a fingerprint has 32 bytes"))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0[..6])
    }
}

/// The time in which one process writes to a job, from its first save until it is closed or fenced.
/// Random.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 12]);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Name of a pack: the session and the rank that wrote it, and a counter of that rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackId(pub [u8; 20]);

impl PackId {
    /// Length of an id in bytes.
    pub const BYTES: usize = 20;

    /// Returns the id of the `count`-th pack that `rank` wrote in `session`.
    pub fn new(session: SessionId, rank: Rank, count: u32) -> PackId {
        let mut bytes = [0; PackId::BYTES];
        bytes[..12].copy_from_slice(&session.0);
        bytes[12..16].copy_from_slice(&rank.to_be_bytes());
        bytes[16..].copy_from_slice(&count.to_be_bytes());
        PackId(bytes)
    }

    /// Returns the session that wrote this pack.
    pub fn session(&self) -> SessionId {
        SessionId(self.0[..12].try_into().expect("a pack id has 20 bytes"))
    }

    /// Returns the rank that wrote the pack; [`COMMITTER`] for a pack of no single rank.
    pub fn rank(&self) -> Rank {
        u32::from_be_bytes(self.0[12..16].try_into().expect("a pack id has 20 bytes"))
    }

    /// Returns the pack's number among those of its rank and session.
    pub fn count(&self) -> u32 {
        u32::from_be_bytes(self.0[16..].try_into().expect("a pack id has 20 bytes"))
    }

    /// Reads the form that `Display` writes: 40 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<PackId> {
        let mut bytes = [0; PackId::BYTES];
        let digits = text.as_bytes();
        let is_digit = |d: &u8| matches!(d, b'0'..=b'9' | b'a'..=b'f');
        if digits.len() != 2 * PackId::BYTES || !digits.iter().all(is_digit) {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(PackId(bytes))
    }
}

impl fmt::Display for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

const GC_JOB: &str = ".gc";
const TARGETS_JOB: &str = ".targets";

/// Suffix of names that only a log with several replicas uses. No job name can contain this
/// character.
const REMOVED: &str = "\0removed";
/// Suffix of the names under which ranks keep their save messages.
const MAIL: &str = "\0rank-";
/// Suffix of the names under which ranks keep their call messages, if only the pool connects them.
const CALLS: &str = "\0calls-";
/// Name in which the replicas of a moved log record the move.
const MOVED: &str = "\0moved";

/// Names that no program's job can have, with their purposes.
const RESERVED: [(&str, &str); 2] =
    [(GC_JOB, "garbage collection"), (TARGETS_JOB, "the table of targets")];

/// Name of a job: any text a person would type, kept so that it is one file name everywhere.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobName(String);

impl JobName {
    /// Longest directory name a job may need, in bytes, after escaping.
    pub const ESCAPED_BYTES_MAX: usize = 200;

    /// Checks a name that a user gives.
    ///
    /// # Errors
    /// `Invalid` when it is empty, has control characters such as a newline, or is longer than
    /// [`JobName::ESCAPED_BYTES_MAX`] once escaped.
    pub fn new(name: &str) -> Result<JobName> {
        if let Some(control) = name.chars().find(|c| c.is_control()) {
            return Err(Error::invalid(format!(
                "the job name \"{}\" has the control character \"{}\": use letters, digits and \
                 signs that one line can show",
                shown(name),
                control.escape_debug()
            )));
        }
        JobName::stored(name)
    }

    /// Checks a name that a pool may already have: earlier builds also accepted control characters.
    ///
    /// # Errors
    /// Those of [`JobName::new`], except for control characters.
    pub fn stored(name: &str) -> Result<JobName> {
        if name.is_empty() {
            return Err(Error::invalid("a job's name must not be empty"));
        }
        if let Some((_, what)) = RESERVED.iter().find(|(reserved, _)| *reserved == name) {
            return Err(Error::invalid(format!(
                "the job name {name:?} is reserved for {what}: choose another one"
            )));
        }
        if name.contains('\0') {
            return Err(Error::invalid("a job's name has no zero bytes"));
        }
        let job = JobName(name.to_owned());
        let bytes = job.escaped().len();
        if bytes > Self::ESCAPED_BYTES_MAX {
            return Err(Error::invalid(format!(
                "the job name \"{}\" needs {bytes} bytes as a directory name; at most {} are \
                 possible: choose a shorter one",
                shown(name),
                Self::ESCAPED_BYTES_MAX
            )));
        }
        Ok(job)
    }

    /// Returns the job in whose log garbage collections open their sessions. No program can have
    /// it.
    pub fn gc() -> JobName {
        JobName(GC_JOB.to_owned())
    }

    /// Returns true for [`JobName::gc`].
    pub fn is_gc(&self) -> bool {
        self.0 == GC_JOB
    }

    /// Returns whether no program's job can have this name.
    pub fn is_reserved(&self) -> bool {
        RESERVED.iter().any(|(reserved, _)| self.0 == *reserved) || self.0.contains('\0')
    }

    /// Returns the job in whose log the table of targets is. No program can have it.
    pub fn targets() -> JobName {
        JobName(TARGETS_JOB.to_owned())
    }

    /// Returns the name under which a log with several replicas records up to which number this
    /// job's records were removed. Jobs are listed without it.
    pub fn removed(&self) -> JobName {
        JobName(format!("{}{REMOVED}", self.0))
    }

    /// Returns the name under which a rank of this job keeps its save messages. It is no job, but
    /// media list it.
    pub fn mail_of(&self, rank: Rank) -> JobName {
        JobName(format!("{}{MAIL}{rank}", self.0))
    }

    /// Returns the name under which a rank of this job keeps its call messages, if only the pool
    /// connects the ranks. It is no job, but media list it.
    pub fn calls_of(&self, rank: Rank) -> JobName {
        JobName(format!("{}{CALLS}{rank}", self.0))
    }

    /// Returns the name under which the replicas of a log record the decisions of a move. Jobs are
    /// listed without it.
    pub fn moved() -> JobName {
        JobName(MOVED.to_owned())
    }

    /// Returns the name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name as a file name: letters, digits, `.`, `_` and `-` stand for themselves (a
    /// leading dot does not), every other byte of its UTF-8 becomes `%XX`.
    pub fn escaped(&self) -> String {
        let mut out = String::with_capacity(self.0.len());
        for (at, byte) in self.0.bytes().enumerate() {
            let plain = byte.is_ascii_alphanumeric()
                || matches!(byte, b'_' | b'-')
                || (byte == b'.' && at > 0);
            if plain {
                out.push(byte as char);
            } else {
                out.push_str(&format!("%{byte:02X}"));
            }
        }
        out
    }

    /// Parses the result of [`JobName::escaped`]; `None` if `file_name` is not one.
    pub fn from_escaped(file_name: &str) -> Option<JobName> {
        let mut bytes = Vec::with_capacity(file_name.len());
        let mut rest = file_name.as_bytes();
        while let [first, tail @ ..] = rest {
            if *first == b'%' {
                let pair = std::str::from_utf8(tail.get(..2)?).ok()?;
                bytes.push(u8::from_str_radix(pair, 16).ok()?);
                rest = &tail[2..];
            } else {
                bytes.push(*first);
                rest = tail;
            }
        }
        let job = JobName::stored(std::str::from_utf8(&bytes).ok()?).ok()?;
        (job.escaped() == file_name).then_some(job)
    }

    /// Parses any name, also one that only a log uses.
    pub fn any_from_escaped(file_name: &str) -> Option<JobName> {
        if let Some(removed) = file_name.strip_suffix("%00removed") {
            return JobName::any_from_escaped(removed).map(|job| job.removed());
        }
        let of_logs = [JobName::gc(), JobName::targets(), JobName::moved()];
        let of_log = of_logs.into_iter().find(|job| job.escaped() == file_name);
        of_log.or_else(|| JobName::listed_from_escaped(file_name))
    }

    /// Parses a name that media list: also one of [`JobName::mail_of`] and [`JobName::calls_of`].
    pub fn listed_from_escaped(file_name: &str) -> Option<JobName> {
        JobName::from_escaped(file_name).or_else(|| JobName::of_rank_from_escaped(file_name))
    }

    /// Returns whether media list the name. They do not list names that only a log uses.
    pub fn is_listed(&self) -> bool {
        !self.is_reserved() || JobName::of_rank_from_escaped(&self.escaped()).is_some()
    }

    fn of_rank_from_escaped(file_name: &str) -> Option<JobName> {
        let (job, rank) = file_name.rsplit_once('-')?;
        let rank: Rank = rank.parse().ok()?;
        let (job, _) = job.rsplit_once("%00")?;
        let job = JobName::from_escaped(job)?;
        [job.mail_of(rank), job.calls_of(rank)].into_iter().find(|it| it.escaped() == file_name)
    }
}

/// Returns the first letters of a name, in one line.
fn shown(name: &str) -> String {
    let mut shown: String = name.chars().take(40).flat_map(char::escape_debug).collect();
    if name.chars().nth(40).is_some() {
        shown.push('…');
    }
    shown
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().flat_map(char::escape_debug).try_for_each(|c| write!(f, "{c}"))
    }
}

/// Compression of a frame of chunks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Codec {
    /// One LZ4 block.
    Lz4,
    /// One Zstandard frame (RFC 8878).
    Zstd,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_names_survive_the_file_system() {
        for name in ["gray-scott", "a/b", "../up", ".hidden", "ü 100%", "new\nline", "\u{1}"] {
            let job = JobName::stored(name).unwrap();
            let file = job.escaped();
            assert!(!file.contains('/') && !file.starts_with('.'), "{file}");
            assert_eq!(JobName::from_escaped(&file), Some(job));
        }
        assert_eq!(JobName::from_escaped("a%2"), None);
        assert_eq!(JobName::from_escaped("%61"), None, "only the canonical form is a job");
        assert!(JobName::new("").is_err());
        for reserved in
            [JobName::gc(), JobName::targets(), JobName::gc().removed(), JobName::moved()]
        {
            assert_eq!(JobName::from_escaped(&reserved.escaped()), None, "no program's job");
        }
        for name in ["new\nline", "\0", "esc\u{1b}[31m", "tab\t", "\u{85}"] {
            let message = JobName::new(name).unwrap_err().to_string();
            assert!(message.contains("control character"), "{message}");
            assert!(!message.contains(char::is_control), "{message}");
        }
        assert!(JobName::new(&"x".repeat(10_000)).is_err());
    }

    #[test]
    fn pack_ids_have_one_text() {
        let id = PackId::new(SessionId([0xab; 12]), 0x0506_0708, 0x0102_0304);
        assert_eq!((id.rank(), id.count()), (0x0506_0708, 0x0102_0304));
        assert_eq!(PackId::parse(&id.to_string()), Some(id));
        assert_eq!(id.session(), SessionId([0xab; 12]));
        assert_eq!(PackId::parse(&id.to_string().to_uppercase()), None);
        assert_eq!(PackId::parse("07"), None);
    }
}
