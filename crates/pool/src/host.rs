//! Identifies this host and process. Finds out whether another process of this host still runs, and
//! which directories are in the host's memory.

use outlive_types::{Error, Result};
use rustix::fs::statfs;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::path::Path;

/// Variable that names this host, if its own name is not unique.
const VARIABLE: &str = "OUTLIVE_HOST";

/// Types of file systems that are in memory: tmpfs and ramfs.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Returns the name of this host, which stays the same after a restart.
pub(crate) fn this_host() -> String {
    let given = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty());
    given.unwrap_or_else(|| {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().to_owned()
    })
}

/// Returns the same, for a target that will belong to this host.
///
/// # Errors
/// `Invalid` for names that many hosts have.
pub(crate) fn this_host_or_refuse() -> Result<String> {
    let host = this_host();
    match ["", "(none)", "localhost", "localhost.localdomain"].contains(&host.as_str()) {
        false => Ok(host),
        true => Err(Error::invalid(format!(
            "this host is called {host:?}, as others may be, and a target in memory belongs to one host: set \
             {VARIABLE} to a name of its own, here and for every program that uses the pool"
        ))),
    }
}

/// Returns whether data in a directory, which need not exist yet, is in memory.
pub(crate) fn is_in_memory(dir: &Path) -> bool {
    let there = dir.ancestors().find(|above| above.exists());
    let stat = there.and_then(|there| statfs(there).ok());
    stat.is_some_and(|stat| IN_MEMORY.contains(&(stat.f_type.cast_unsigned() & 0xFFFF_FFFF)))
}

/// Mark that distinguishes a process from all others: from later ones with its number, and from
/// those of other hosts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessMark {
    /// Number of the process.
    pub process: u32,
    /// Time at which it was started, in ticks since the host's start.
    pub started: u64,
    /// Name of its host.
    pub host: String,
    /// Boot id and namespaces of process ids and time; empty if unknown.
    pub system: String,
}

impl ProcessMark {
    /// Returns the mark of this process.
    pub fn of_this() -> ProcessMark {
        let process = std::process::id();
        // /proc may be that of another namespace.
        let is_shown = fs::read_link("/proc/self")
            .is_ok_and(|shown| shown.as_os_str() == process.to_string().as_str());
        let (started, system) = match started(process).filter(|_| is_shown) {
            Some(started) => (started, this_system()),
            None => (0, String::new()),
        };
        ProcessMark { process, started, host: this_host(), system }
    }

    /// Returns whether the process is one of this system, so that this process can see whether it
    /// runs.
    pub fn is_of_this_system(&self) -> bool {
        !self.system.is_empty() && self.system == this_system()
    }

    /// Returns whether the process is known to have ended. Of other systems nothing is known.
    pub fn is_dead(&self) -> bool {
        if !self.is_of_this_system() {
            return false;
        }
        match started(self.process) {
            Some(started) => started != self.started,
            // It may be hidden, as `hidepid` hides the processes of other users.
            None => !is_hidden(self.process),
        }
    }
}

impl fmt::Display for ProcessMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {}", self.process, self.host)
    }
}

/// Fields of /proc/PID/stat, counted from the state: the number of threads, and the start time.
const THREADS: usize = 17;
const STARTED: usize = 19;

/// Returns when a process was started; `None` if no process has that number, or if it has ended and
/// its parent has not waited for it.
fn started(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let threads = fields.get(THREADS)?.parse().unwrap_or(1);
    match *fields.first()? {
        // A process lives on while any thread does, even after its first thread has ended.
        "Z" | "X" if threads <= 1 => None,
        _ => fields.get(STARTED)?.parse().ok(),
    }
}

/// Returns whether there is a process of that number that /proc does not show.
fn is_hidden(process: u32) -> bool {
    let is_shown = fs::read_to_string(format!("/proc/{process}/stat")).is_ok();
    let number = i32::try_from(process).ok().and_then(Pid::from_raw);
    !is_shown && number.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// Returns an id of this system; empty if the system does not give one.
fn this_system() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = |name: &str| fs::read_link(format!("/proc/self/ns/{name}"));
    // The kernel gives start times in the reader's time namespace. Linux before 5.6 has none.
    match (boot.trim(), space("pid"), space("time").unwrap_or_default()) {
        ("", ..) | (_, Err(_), _) => String::new(),
        (boot, Ok(pids), time) => format!("{boot} {} {}", pids.display(), time.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_dead_once_it_has_ended() {
        let ours = ProcessMark::of_this();
        assert!(ours.started > 0 && !ours.is_dead());
        let later = ProcessMark { started: ours.started + 1, ..ours.clone() };
        assert!(later.is_dead(), "another one has its number");
        let elsewhere = ProcessMark { system: "another".to_owned(), ..later };
        assert!(!elsewhere.is_dead(), "nothing is known of it");
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = child.id();
        let started = started(process).unwrap();
        let child_mark = ProcessMark { process, started, ..ours };
        assert!(!child_mark.is_dead());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(child_mark.is_dead());
    }
}
