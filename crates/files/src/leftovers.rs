//! Temporary names of gets: they show that a get has ended and left its file behind.
//!
//! A name identifies the process uniquely. So no get removes a file of another get that may still
//! run, on any host or in any container.

use super::content::is_on_own_clock;
use super::names::read_names;
use outlive_format::checksum;
use outlive_pool::ProcessMark;
use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::os::fd::AsFd;

const BEFORE: &str = ".outlive-";
const AFTER: &str = ".tmp";

/// The process that makes temporary names, or searches for those of other processes.
pub struct Maker {
    mark: ProcessMark,
    /// Checksums of the boot id, and of the boot id with the namespaces of the process.
    sums: Option<(u32, u32)>,
}

/// Owner of a temporary name.
#[derive(PartialEq, Eq, Debug)]
struct Owner {
    process: u32,
    /// Start of the process, and both checksums. Names of builds before 1.0 lack them.
    rest: Option<(u64, u32, u32)>,
}

impl Maker {
    /// Returns this process.
    pub fn this() -> Maker {
        let mark = ProcessMark::of_this();
        let sum = |text: &str| checksum(text.as_bytes()) as u32;
        let boot = mark.system.split(' ').next().unwrap_or_default();
        let sums = (!boot.is_empty()).then(|| (sum(boot), sum(&mark.system)));
        Maker { mark, sums }
    }

    /// Returns a temporary name.
    pub fn name(&self, number: u64) -> Vec<u8> {
        let process = self.mark.process;
        let rest = match self.sums {
            None => String::new(),
            Some((boot, system)) => format!("-{:x}-{boot:08x}-{system:08x}", self.mark.started),
        };
        format!("{BEFORE}{process}-{number}{rest}{AFTER}").into_bytes()
    }

    /// Removes files of ended gets from a directory. A failure is harmless: a put omits such files.
    pub fn clean(&self, dir: impl AsFd, name: &[u8]) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(dir) = openat(dir, name, flags, Mode::empty()) else { return };
        let names = read_names(&dir).unwrap_or_default();
        for (name, owner) in names.iter().filter_map(|name| Some((name, owner_of(name)?))) {
            if self.is_over(&owner, || is_on_own_clock(&dir)) {
                let _ = unlinkat(&dir, &**name, AtFlags::empty());
            }
        }
    }

    /// Returns whether the get that made a name has ended. Only the kernel of this host writes to
    /// its own file systems, so a get from before its last boot has ended.
    fn is_over(&self, owner: &Owner, is_own: impl Fn() -> bool) -> bool {
        match (owner.rest, self.sums) {
            (Some((started, boot, system)), Some((our_boot, our_system))) => {
                let mark = ProcessMark { process: owner.process, started, ..self.mark.clone() };
                match (boot == our_boot, system == our_system) {
                    (true, true) => mark.is_dead(),
                    (true, false) => false,
                    (false, _) => is_own(),
                }
            }
            (Some(_), None) => false,
            (None, _) => {
                let process = i32::try_from(owner.process).ok().and_then(Pid::from_raw);
                is_own() && process.is_none_or(|p| test_kill_process(p) == Err(Errno::SRCH))
            }
        }
    }
}

/// Returns whether a name is that of an unfinished file of a get.
pub fn is_temporary(name: &[u8]) -> bool {
    owner_of(name).is_some()
}

fn owner_of(name: &[u8]) -> Option<Owner> {
    let text = std::str::from_utf8(name).ok()?;
    let mut parts = text.strip_prefix(BEFORE)?.strip_suffix(AFTER)?.split('-');
    let mut number = |radix| {
        let part = parts.next()?;
        let is_plain = part.bytes().all(|byte| byte.is_ascii_hexdigit());
        u64::from_str_radix(part, radix).ok().filter(|_| is_plain)
    };
    let process = u32::try_from(number(10)?).ok()?;
    number(10)?;
    let rest = match number(16) {
        None => None,
        Some(started) => {
            let mut sum = || number(16).and_then(|sum| u32::try_from(sum).ok());
            Some((started, sum()?, sum()?))
        }
    };
    // A further part is no number, or one too many.
    let is_all = text.matches('-').count() == if rest.is_some() { 5 } else { 2 };
    is_all.then_some(Owner { process, rest })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::{Command, Stdio};

    #[test]
    fn temporary_names_are_known_and_others_are_not() {
        let maker = Maker::this();
        let own = maker.name(17);
        let owner = owner_of(&own).unwrap();
        assert_eq!(owner.process, std::process::id());
        assert_eq!(owner.rest.map(|rest| rest.0), Some(maker.mark.started));
        assert!(is_temporary(b".outlive-12-0.tmp"));
        for name in [
            ".outlive-12.tmp",
            ".outlive-12-0",
            ".outlive-12-0.tmp~",
            ".outlive-a-0.tmp",
            ".outlive-12-+1.tmp",
            ".outlive-12-0-1.tmp",
            ".outlive-12-0-1-2-3-4.tmp",
            ".outlive-12-0-x.tmp",
            ".outlive-12--0.tmp",
            "x.outlive-12-0.tmp",
            ".outliveignore",
        ] {
            assert!(!is_temporary(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn only_leftovers_of_ended_gets_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let opened = fs::File::open(dir.path()).unwrap();
        let maker = Maker::this();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let started = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap();
        let of = |process: u32, started: u64, system: &str| {
            let mark = ProcessMark { process, started, ..maker.mark.clone() };
            let mut other = Maker { mark, sums: maker.sums };
            let sums = other.sums.as_mut().unwrap();
            match system {
                "boot" => (sums.0, sums.1) = (!sums.0, !sums.1),
                "container" => sums.1 = !sums.1,
                _ => {}
            }
            String::from_utf8(other.name(1)).unwrap()
        };
        let id = child.id();
        let child_name = of(id, started.parse().unwrap(), "");
        let old_name = format!(".outlive-{id}-3.tmp");
        let kept = [
            String::from_utf8(maker.name(0)).unwrap(),
            of(id, 1, "container"),
            ".outlive-mine.tmp".to_owned(),
        ];
        let gone = [of(id, 1, ""), of(std::process::id(), 1, "")];
        for name in kept.iter().chain(&gone).chain([&child_name, &old_name]) {
            fs::write(dir.path().join(name), "left").unwrap();
        }
        fs::create_dir(dir.path().join(of(id, 2, ""))).unwrap();
        let is_there = |name: &String| dir.path().join(name).exists();
        maker.clean(&opened, b".");
        assert!(kept.iter().all(is_there) && !gone.iter().any(is_there));
        assert!(is_there(&child_name) && is_there(&old_name), "the process lives");
        assert!(is_there(&of(id, 2, "")), "a directory is none");
        child.kill().unwrap();
        child.wait().unwrap();
        maker.clean(&opened, b".");
        assert!(!is_there(&child_name) && kept.iter().all(is_there));
        // On some file systems another host may write, too.
        let owner = |name: &String| owner_of(name.as_bytes()).unwrap();
        for is_own in [false, true] {
            assert_eq!(maker.is_over(&owner(&of(id, 1, "boot")), || is_own), is_own);
            assert_eq!(maker.is_over(&owner(&old_name), || is_own), is_own);
        }
    }
}
