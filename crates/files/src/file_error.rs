//! What could not be done as it should: never silent, and never a reason to give up the rest.

use outlive_format::path_cmp;
use rustix::io::Errno;
use std::fmt;

/// So many are kept with their words; the others are counted.
const KEPT_MAX: usize = 1000;

/// What kind of trouble it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FileErrorKind {
    /// It was there when its directory was read, and no longer when its turn came. Left out.
    Vanished,
    /// It could not be read. Left out.
    Unreadable,
    /// It changed each time it was read: what is stored may never have been there at once.
    Changed,
    /// Something of it is missing: an attribute, an owner, or all of a device.
    Incomplete,
    /// What is stored of it is damaged. Left out.
    Damaged,
}

impl FileErrorKind {
    /// A word for programs.
    pub fn name(self) -> &'static str {
        match self {
            FileErrorKind::Vanished => "vanished",
            FileErrorKind::Unreadable => "unreadable",
            FileErrorKind::Changed => "changed",
            FileErrorKind::Incomplete => "incomplete",
            FileErrorKind::Damaged => "damaged",
        }
    }
}

/// Something that could not be done as it should.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileError {
    /// With what.
    pub path: Vec<u8>,
    /// What kind.
    pub kind: FileErrorKind,
    /// Why.
    pub why: String,
}

impl FileError {
    pub(super) fn new(path: &[u8], kind: FileErrorKind, why: impl fmt::Display) -> FileError {
        FileError { path: path.to_vec(), kind, why: why.to_string() }
    }

    /// What an error at reading something means.
    pub(super) fn reading(path: &[u8], error: Errno) -> FileError {
        let kind = match error {
            // Something else may have its name by now.
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP => FileErrorKind::Vanished,
            _ => FileErrorKind::Unreadable,
        };
        FileError::new(path, kind, std::io::Error::from(error))
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = String::from_utf8_lossy(&self.path);
        write!(f, "{}: {}: {}", path.escape_debug(), self.kind.name(), self.why)
    }
}

/// All troubles of a put or get.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Troubles {
    /// The first thousand.
    pub kept: Vec<FileError>,
    /// How many there were of each kind: vanished, unreadable, changed, incomplete, damaged.
    counts: [u64; 5],
}

impl Troubles {
    pub(super) fn add(&mut self, trouble: FileError) {
        self.counts[trouble.kind as usize] += 1;
        if self.kept.len() < KEPT_MAX {
            self.kept.push(trouble);
        }
    }

    /// Adds the troubles of another part of the work.
    pub(super) fn join(&mut self, other: Troubles) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.kept.extend(other.kept);
        self.kept.truncate(KEPT_MAX);
    }

    /// Orders those that are kept by path.
    pub(super) fn sort(&mut self) {
        self.kept.sort_by(|a, b| path_cmp(&a.path, &b.path));
    }

    /// How many of a kind.
    pub fn count(&self, kind: FileErrorKind) -> u64 {
        self.counts[kind as usize]
    }

    /// How many in all.
    pub fn len(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// True if all went well.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True unless something is missing or doubtful. What vanished was not there to be kept.
    pub fn is_whole(&self) -> bool {
        self.len() == self.count(FileErrorKind::Vanished)
    }
}
