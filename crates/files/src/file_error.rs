//! File errors: always reported, and never a reason to stop the put or get.

use outlive_format::path_cmp;
use rustix::io::Errno;
use std::fmt;

/// Number of errors that are kept with their texts; the others are only counted.
const KEPT_MAX: usize = 1000;

/// Kind of a file error.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FileErrorKind {
    /// The file vanished between the read of its directory and its own. Omitted.
    Vanished,
    /// The file could not be read. Omitted.
    Unreadable,
    /// The file changed at each read: the stored content may never have existed at one moment.
    Changed,
    /// A part of the file is missing: an attribute, an owner, or all of a device.
    Incomplete,
    /// The stored content is damaged. Omitted.
    Damaged,
}

impl FileErrorKind {
    /// Returns the kind's name for programs.
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

/// The failure of a put or get with one item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileError {
    /// Path of the item.
    pub path: Vec<u8>,
    /// Kind of the failure.
    pub kind: FileErrorKind,
    /// Cause of the failure.
    pub why: String,
}

impl FileError {
    pub(super) fn new(path: &[u8], kind: FileErrorKind, why: impl fmt::Display) -> FileError {
        FileError { path: path.to_vec(), kind, why: why.to_string() }
    }

    /// Returns the file error for an error of the system during a read.
    pub(super) fn reading(path: &[u8], error: Errno) -> FileError {
        let kind = match error {
            // Another file may have its name by now.
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

/// All file errors of a put or get.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Troubles {
    /// The first thousand.
    pub kept: Vec<FileError>,
    /// Number of errors of each kind: vanished, unreadable, changed, incomplete, damaged.
    counts: [u64; 5],
}

impl Troubles {
    pub(super) fn add(&mut self, trouble: FileError) {
        self.counts[trouble.kind as usize] += 1;
        if self.kept.len() < KEPT_MAX {
            self.kept.push(trouble);
        }
    }

    /// Adds the file errors of another part of the work.
    pub(super) fn join(&mut self, other: Troubles) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.kept.extend(other.kept);
        self.kept.truncate(KEPT_MAX);
    }

    /// Sorts the kept errors by path.
    pub(super) fn sort(&mut self) {
        self.kept.sort_by(|a, b| path_cmp(&a.path, &b.path));
    }

    /// Returns the number of errors of a kind.
    pub fn count(&self, kind: FileErrorKind) -> u64 {
        self.counts[kind as usize]
    }

    /// Returns the number of all errors.
    pub fn len(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns true if there are no errors.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true unless content is missing or doubtful. A vanished file is not missing.
    pub fn is_whole(&self) -> bool {
        self.len() == self.count(FileErrorKind::Vanished)
    }
}
