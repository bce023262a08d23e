//! Sets owner, attributes, mode and times of restored files, and reports refusals. Values that are
//! right already are not touched.

use super::attributes::{self, Refused};
use outlive_format::{FileTime, Item, ItemKind};
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, chmod, chownat, fchmod, fchown,
    fstat, futimens, openat, statat, utimensat,
};
use rustix::io::{Errno, Result};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
/// The bits of a mode that give the rights of an owner to others.
pub const SET_ID: u32 = SET_USER_ID | SET_GROUP_ID;

/// Settings that were refused, as text.
pub type Refusals = Vec<String>;

/// A file to describe: open, or a name in a directory.
trait Described {
    fn stat(&self) -> Result<Stat>;
    fn chown(&self, user: Option<Uid>, group: Option<Gid>) -> Result<()>;
    fn bring(&self, item: &Item) -> Vec<Refused>;
    fn chmod(&self, mode: Mode) -> Result<()>;
    fn set_times(&self, times: &Timestamps) -> Result<()>;
}

struct Open<'a>(&'a OwnedFd);

impl Described for Open<'_> {
    fn stat(&self) -> Result<Stat> {
        fstat(self.0)
    }
    fn chown(&self, user: Option<Uid>, group: Option<Gid>) -> Result<()> {
        fchown(self.0, user, group)
    }
    fn bring(&self, item: &Item) -> Vec<Refused> {
        attributes::bring_open(self.0, &item.attributes)
    }
    fn chmod(&self, mode: Mode) -> Result<()> {
        fchmod(self.0, mode)
    }
    fn set_times(&self, times: &Timestamps) -> Result<()> {
        futimens(self.0, times)
    }
}

struct Named<'a>(BorrowedFd<'a>, &'a [u8]);

impl Described for Named<'_> {
    fn stat(&self) -> Result<Stat> {
        statat(self.0, self.1, AtFlags::SYMLINK_NOFOLLOW)
    }
    fn chown(&self, user: Option<Uid>, group: Option<Gid>) -> Result<()> {
        chownat(self.0, self.1, user, group, AtFlags::SYMLINK_NOFOLLOW)
    }
    fn bring(&self, item: &Item) -> Vec<Refused> {
        attributes::bring_name(self.0, self.1, &item.attributes)
    }
    /// There is no `chmod` that does not follow links, but one for a held file.
    fn chmod(&self, mode: Mode) -> Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        chmod_held(&openat(self.0, self.1, flags, Mode::empty())?, mode)
    }
    fn set_times(&self, times: &Timestamps) -> Result<()> {
        utimensat(self.0, self.1, times, AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// Sets the mode of a file that is held open, if only by `O_PATH`.
///
/// # Errors
/// Errors of the system.
pub fn chmod_held(held: &OwnedFd, mode: Mode) -> Result<()> {
    chmod(format!("/proc/self/fd/{}", held.as_raw_fd()), mode)
}

/// Describes an open file.
pub fn describe_open(file: &OwnedFd, item: &Item, is_root: bool) -> Refusals {
    describe(&Open(file), item, is_root)
}

/// Describes `name` in `dir`.
pub fn describe_name(dir: BorrowedFd<'_>, name: &[u8], item: &Item, is_root: bool) -> Refusals {
    describe(&Named(dir, name), item, is_root)
}

/// Describes a file in a fixed order. A new owner removes set-id bits and capabilities, so it comes
/// first. Attributes change the mode; everything changes the times, so they come last.
fn describe(what: &dyn Described, item: &Item, is_root: bool) -> Refusals {
    let mut refusals = Vec::new();
    let mode = own(what, item, is_root, &mut refusals);
    refusals.extend(what.bring(item).into_iter().map(|(name, error)| {
        let name = String::from_utf8_lossy(&name);
        refused(&format!("its attribute {}", name.escape_debug()), error)
    }));
    let has_mode = || what.stat().is_ok_and(|now| now.st_mode & 0o7777 == mode);
    if item.kind != ItemKind::Symlink
        && !has_mode()
        && let Err(error) = what.chmod(Mode::from_raw_mode(mode))
    {
        refusals.push(refused("its mode", error));
    }
    if let Err(why) = bring_times(what, item) {
        refusals.push(why);
    }
    refusals
}

/// Sets owner and group as far as this user may. Returns the mode that the file can have then:
/// set-id bits would give away the rights of its present owner.
fn own(what: &dyn Described, item: &Item, is_root: bool, refusals: &mut Refusals) -> u32 {
    let (user, group) = (Uid::from_raw(item.uid), Gid::from_raw(item.gid));
    let kept = match what.stat() {
        Ok(now) if (now.st_uid, now.st_gid) == (item.uid, item.gid) => SET_ID,
        _ if is_root => match what.chown(Some(user), Some(group)) {
            Ok(()) => SET_ID,
            Err(error) => {
                refusals.push(refused("its owner", error));
                0
            }
        },
        Ok(now) if now.st_uid == item.uid => {
            let has_group = what.chown(None, Some(group)).is_ok();
            SET_USER_ID | if has_group { SET_GROUP_ID } else { 0 }
        }
        _ => 0,
    };
    item.mode & !SET_ID | item.mode & kept
}

/// Sets the modification time. File systems silently change a time that they cannot hold, so the
/// stored time is read again.
fn bring_times(what: &dyn Described, item: &Item) -> std::result::Result<(), String> {
    let now = || what.stat().map(|stat| mtime_of(&stat));
    let fails = |error| refused("its times", error);
    if now().is_ok_and(|now| now == item.mtime) {
        return Ok(());
    }
    let time = Timespec { tv_sec: item.mtime.s, tv_nsec: item.mtime.ns.into() };
    // Access times are not kept: the last read of a file is set to its last write.
    let times = Timestamps { last_access: time, last_modification: time };
    what.set_times(&times).map_err(fails)?;
    match now().map_err(fails)? {
        stored if stored == item.mtime => Ok(()),
        stored => Err(format!(
            "its time: this file system cannot hold @{} and stored @{} (seconds since 1970)",
            seconds(item.mtime),
            seconds(stored)
        )),
    }
}

/// Returns the time of the last change.
pub fn mtime_of(stat: &Stat) -> FileTime {
    FileTime { s: stat.st_mtime, ns: stat.st_mtime_nsec as u32 }
}

/// Returns seconds since 1970 as a decimal number: a fraction counts forward from the second before
/// it.
fn seconds(time: FileTime) -> String {
    let ns = i128::from(time.s) * 1_000_000_000 + i128::from(time.ns);
    let (sign, ns) = (if ns < 0 { "-" } else { "" }, ns.unsigned_abs());
    match ns % 1_000_000_000 {
        0 => format!("{sign}{}", ns / 1_000_000_000),
        part => format!("{sign}{}.{part:09}", ns / 1_000_000_000),
    }
}

fn refused(what: &str, error: Errno) -> String {
    format!("{what}: {}", std::io::Error::from(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_decimal_numbers() {
        for (s, ns, text) in [
            (0, 0, "0"),
            (1, 5, "1.000000005"),
            (-1, 999_999_999, "-0.000000001"),
            (-3, 500_000_000, "-2.500000000"),
            (i64::MIN, 0, "-9223372036854775808"),
        ] {
            assert_eq!(seconds(FileTime { s, ns }), text);
        }
    }
}
