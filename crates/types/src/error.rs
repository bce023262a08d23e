//! One error type; its kind tells the caller what to do next.

use std::fmt;
use std::io;
use std::path::Path;

/// Next step of the caller after an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ErrorKind {
    /// A temporary failure: the same call may succeed later.
    Retry,
    /// The request is not possible: correct it.
    Invalid,
    /// Stored bytes are missing or wrong: take an older checkpoint, or repair the store.
    Damaged,
    /// No room on the target: free some; nothing committed was lost.
    Full,
    /// Another writer has taken over this job: stop writing.
    Fenced,
    /// outlive contradicts itself: please report it.
    Bug,
}

impl ErrorKind {
    /// All kinds.
    pub const ALL: [ErrorKind; 6] = [
        ErrorKind::Retry,
        ErrorKind::Invalid,
        ErrorKind::Damaged,
        ErrorKind::Full,
        ErrorKind::Fenced,
        ErrorKind::Bug,
    ];

    /// Returns the kind's name, as used in messages, JSON and Python's class names.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Retry => "Retry",
            ErrorKind::Invalid => "Invalid",
            ErrorKind::Damaged => "Damaged",
            ErrorKind::Full => "Full",
            ErrorKind::Fenced => "Fenced",
            ErrorKind::Bug => "Bug",
        }
    }
}

/// An error: its kind, and a message with the fault, its location and the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    os: Option<io::ErrorKind>,
    is_away: bool,
    is_newer: bool,
    reach: Reach,
}

/// Extent of an error's effects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
enum Reach {
    /// The call has failed.
    #[default]
    Call,
    /// The program must learn of it, even if it continues after failed saves.
    Program,
    /// The ranks of its group are out of step.
    Group,
}

/// Result with outlive's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns an error of `kind`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error {
            kind,
            message: message.into(),
            os: None,
            is_away: false,
            is_newer: false,
            reach: Reach::Call,
        }
    }

    /// [`ErrorKind::Retry`].
    pub fn retry(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Retry, message)
    }

    /// [`ErrorKind::Retry`]: the data is only on targets that are away, so a retry at once cannot
    /// help.
    pub fn away(message: impl Into<String>) -> Error {
        Error { is_away: true, ..Error::retry(message) }
    }

    /// [`ErrorKind::Retry`]: the system started no thread for `work`.
    pub fn no_thread(work: &str, error: &io::Error) -> Error {
        Error::retry(format!(
            "no thread for {work} could be started ({error}): if a limit of processes and threads is \
             reached (`ulimit -u`, pids.max of the control group), raise it, or set `threads` to 1"
        ))
    }

    /// [`ErrorKind::Full`]: the system allocates no memory for `what`.
    pub fn no_memory(what: &str, bytes: usize) -> Error {
        Error::full(format!(
            "there is no memory for {what} of {bytes} bytes: raise the limit (`ulimit -v`, the control \
             group's) or have the program use less"
        ))
    }

    /// [`ErrorKind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    /// [`ErrorKind::Invalid`]: a later build has written the data, so this one cannot read it, and
    /// must not take it for damaged.
    pub fn newer(message: impl Into<String>) -> Error {
        Error { is_newer: true, ..Error::invalid(message) }
    }

    /// [`ErrorKind::Damaged`].
    pub fn damaged(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Damaged, message)
    }

    /// [`ErrorKind::Full`].
    pub fn full(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Full, message)
    }

    /// [`ErrorKind::Fenced`].
    pub fn fenced(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Fenced, message)
    }

    /// [`ErrorKind::Bug`].
    pub fn bug(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Bug, message)
    }

    /// Classifies an operating-system error for a caller that creates, writes, renames, syncs or
    /// removes something in a store. `doing` is a phrase such as "writing a pack"; `path` is the
    /// file. The kind is never `Damaged`: unwritten data cannot be damaged, and a missing directory
    /// is gone or not mounted.
    pub fn io(doing: &str, path: &Path, error: &io::Error) -> Error {
        Error::of_system(doing, path, error, |meaning| match meaning {
            Meaning::Missing => (
                ErrorKind::Retry,
                ": if its directory has gone, mount its file system or put it back",
            ),
            Meaning::Cut => (ErrorKind::Retry, ""),
            Meaning::BadMedium => (
                ErrorKind::Invalid,
                ": the device or the file system reports damage: replace it, or choose another location",
            ),
        })
    }

    /// Classifies an error for a caller that reads stored data, such as a shard or a record, and
    /// has found no other copy: the kind may be `Damaged`.
    pub fn io_stored(doing: &str, path: &Path, error: &io::Error) -> Error {
        Error::of_system(doing, path, error, |meaning| match meaning {
            Meaning::Missing | Meaning::Cut => (ErrorKind::Damaged, ""),
            Meaning::BadMedium => {
                (ErrorKind::Damaged, ": the device or the file system reports damage")
            }
        })
    }

    /// Classifies an error for a file that the caller named and that is not part of any store: if
    /// it is missing, nothing stored is damaged.
    pub fn io_named(doing: &str, path: &Path, error: &io::Error) -> Error {
        Error::of_system(doing, path, error, |meaning| match meaning {
            Meaning::Missing | Meaning::Cut => (ErrorKind::Invalid, ""),
            Meaning::BadMedium => {
                (ErrorKind::Invalid, ": the device or the file system reports damage")
            }
        })
    }

    fn of_system(
        doing: &str,
        path: &Path,
        error: &io::Error,
        decide: fn(Meaning) -> (ErrorKind, &'static str),
    ) -> Error {
        use io::ErrorKind as Io;
        let is_one_of = |list: &[i32]| error.raw_os_error().is_some_and(|it| list.contains(&it));
        let (kind, advice) = match error.kind() {
            Io::StorageFull | Io::QuotaExceeded => (ErrorKind::Full, ": free space there"),
            Io::Interrupted | Io::TimedOut | Io::WouldBlock => (ErrorKind::Retry, ""),
            Io::PermissionDenied => {
                (ErrorKind::Invalid, ": give this user access, or choose another location")
            }
            Io::ReadOnlyFilesystem => {
                (ErrorKind::Invalid, ": choose a location that can be written")
            }
            Io::NotFound => decide(Meaning::Missing),
            Io::UnexpectedEof => decide(Meaning::Cut),
            Io::FileTooLarge => (ErrorKind::Full, ": the file size limit is too small"),
            _ if is_one_of(&[EMFILE, ENFILE]) => {
                (ErrorKind::Retry, ": raise the limit on open files (ulimit -n)")
            }
            _ if is_one_of(&GONE) => {
                (ErrorKind::Retry, ": its server or device has gone: bring it back, and mount it")
            }
            _ if is_one_of(&DAMAGE) => decide(Meaning::BadMedium),
            _ => (ErrorKind::Invalid, ""),
        };
        let message = format!("{doing} {}: {error}{advice}", path.display());
        Error {
            kind,
            message,
            os: Some(error.kind()),
            is_away: false,
            is_newer: false,
            reach: Reach::Call,
        }
    }

    /// Returns whether the data is only on targets that are away: see [`Error::away`].
    pub fn is_away(&self) -> bool {
        self.is_away
    }

    /// Returns whether only a later build can read the data ([`Error::newer`]).
    pub fn is_newer(&self) -> bool {
        self.is_newer
    }

    /// Returns the error that describes the whole, if several parts failed: a temporary failure
    /// rather than a target that is away, and both rather than damage.
    #[must_use]
    pub fn or_rather(self, other: Error) -> Error {
        let weight = |error: &Error| match error.kind {
            ErrorKind::Damaged => 0,
            _ if error.is_away => 1,
            _ => 2,
        };
        if weight(&other) > weight(&self) { other } else { self }
    }

    /// Returns the kind: what the caller can do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the message without the kind.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the kind of the operating system's error, if it caused this one.
    pub fn os(&self) -> Option<io::ErrorKind> {
        self.os
    }

    /// Marks the error as one that the operating system reported to another rank.
    #[must_use]
    pub fn of_other_system(self) -> Error {
        Error { os: Some(io::ErrorKind::Other), ..self }
    }

    /// Marks the error: the program must learn of it, even if it continues after failed saves.
    #[must_use]
    pub fn for_program(self) -> Error {
        Error { reach: self.reach.max(Reach::Program), ..self }
    }

    /// Marks the error: the ranks are out of step, and no further collective call can succeed.
    #[must_use]
    pub fn for_group(self) -> Error {
        Error { reach: Reach::Group, ..self }
    }

    /// Returns whether [`Error::for_program`] or [`Error::for_group`] was called.
    pub fn must_be_told(&self) -> bool {
        self.reach >= Reach::Program
    }

    /// Returns whether [`Error::for_group`] was called.
    pub fn ends_group(&self) -> bool {
        self.reach == Reach::Group
    }

    /// Puts `context` before the message.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Error {
        Error { message: format!("{context}: {}", self.message), ..self }
    }
}

/// Meaning of an error whose kind depends on the operation.
enum Meaning {
    /// A file or directory is missing.
    Missing,
    /// A file ends too early.
    Cut,
    /// The medium cannot read or write its bytes.
    BadMedium,
}

// The numbers are the same on x86 and Arm.
/// EIO, and the other errors of devices and file systems for bad media and wrong checksums:
/// ENODATA, EBADMSG, EILSEQ, EUCLEAN, EREMOTEIO.
const DAMAGE: [i32; 6] = [5, 61, 74, 84, 117, 121];
/// Errors of a file system whose server or device is gone: ENXIO, ENODEV, ENOTCONN, ESHUTDOWN,
/// EHOSTDOWN, EHOSTUNREACH, ESTALE.
const GONE: [i32; 7] = [6, 19, 107, 108, 112, 113, 116];
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of the three constructors, with the kinds that it gives to errors of the system.
    #[test]
    fn errors_of_the_system_have_a_meaning() {
        use ErrorKind::{Damaged, Full, Invalid, Retry};
        for (errno, [written, read, named]) in [
            (5, [Invalid, Damaged, Invalid]),   // EIO
            (61, [Invalid, Damaged, Invalid]),  // ENODATA: a bad sector, by the block layer
            (74, [Invalid, Damaged, Invalid]),  // EBADMSG: a wrong checksum, by the file system
            (117, [Invalid, Damaged, Invalid]), // EUCLEAN
            (2, [Retry, Damaged, Invalid]),     // ENOENT
            (13, [Invalid; 3]),                 // EACCES
            (20, [Invalid; 3]),                 // ENOTDIR
            (30, [Invalid; 3]),                 // EROFS
            (28, [Full; 3]),                    // ENOSPC
            (24, [Retry; 3]),                   // EMFILE
            (116, [Retry; 3]),                  // ESTALE: gone on the server
            (107, [Retry; 3]),                  // ENOTCONN: the server of a FUSE mount has ended
        ] {
            let error = io::Error::from_raw_os_error(errno);
            for (say, kind) in [
                (Error::io as fn(&str, &Path, &io::Error) -> Error, written),
                (Error::io_stored, read),
                (Error::io_named, named),
            ] {
                let told = say("doing", Path::new("/p/x y"), &error);
                assert_eq!(told.kind(), kind, "{told}");
                assert!(told.message().contains("/p/x y") && told.os() == Some(error.kind()));
            }
        }
    }

    /// No error of the system during a write means that stored data is damaged.
    #[test]
    fn no_write_finds_damage() {
        for errno in 1..134 {
            let error = io::Error::from_raw_os_error(errno);
            let told = Error::io("writing", Path::new("x"), &error);
            assert_ne!(told.kind(), ErrorKind::Damaged, "{errno}: {told}");
        }
        let cut = io::Error::from(io::ErrorKind::UnexpectedEof);
        assert_eq!(Error::io("writing", Path::new("x"), &cut).kind(), ErrorKind::Retry);
    }
}
