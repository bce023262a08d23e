//! Causes for which an attempt ended.

use rustix::process::WaitStatus;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Cause of the end of an attempt.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The command ended with code 0.
    Finished,
    /// The command ended with another code.
    Failed(i32),
    /// A signal ended the command.
    Killed(i32),
    /// The command ended with an error after the kernel had ended a process in the supervisor's memory
    /// cgroup, as that was full.
    OutOfMemory,
    /// The supervisor ended the command, which gave no sign of life.
    Hung,
    /// The command ended after it was asked to stop, or was ended when its time was over.
    Stopped,
    /// The supervisor itself was killed; its successor noted that.
    SupervisorLost,
}

/// Exit code by which a command asks to be started again later, as in `sysexits.h`.
pub(crate) const REQUEUE: i32 = 75;
/// Exit code of an `outlive run` that was asked to stop and has saved; a command may be one.
pub(crate) const SAVED: i32 = 76;

impl Cause {
    /// Returns the cause that a status shows by itself.
    pub(crate) fn of(status: WaitStatus) -> Cause {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(0), _) => Cause::Finished,
            (Some(code), _) => Cause::Failed(code),
            (None, Some(signal)) => Cause::Killed(signal),
            (None, None) => Cause::Failed(-1),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Finished => f.write_str("finished"),
            Cause::Failed(code) => write!(f, "failed with exit code {code}"),
            Cause::Killed(signal) => match signal_hook::low_level::signal_name(*signal) {
                Some(name) => write!(f, "ended by {name}"),
                None => write!(f, "ended by signal {signal}"),
            },
            Cause::OutOfMemory => f.write_str("out of memory"),
            Cause::Hung => f.write_str("hung"),
            Cause::Stopped => f.write_str("stopped"),
            Cause::SupervisorLost => f.write_str("its supervisor was killed"),
        }
    }
}

/// Returns the number of processes that the kernel has ended in this process's memory cgroup, since
/// that was full; 0 where the system does not say.
pub(crate) fn out_of_memory_kills() -> u64 {
    let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let count = |path: &str| {
        let text = std::fs::read_to_string(path).ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
        value.trim().parse().ok()
    };
    let of = cgroups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        match controllers {
            "" => count(&format!("/sys/fs/cgroup{path}/memory.events")),
            _ if controllers.split(',').any(|name| name == "memory") => {
                count(&format!("/sys/fs/cgroup/memory{path}/memory.oom_control"))
            }
            _ => None,
        }
    });
    of.unwrap_or(0)
}
