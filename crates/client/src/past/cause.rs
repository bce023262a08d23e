//! Causes for which an attempt ended.

use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGINT;
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
    /// The program had no supervisor, and has not closed its job; its successor noted that.
    Gone,
}

/// Exit code by which a command asks to be started again later, as in `sysexits.h`.
pub const REQUEUE: i32 = 75;
/// Exit code of an `outlive run` that was asked to stop and has saved; a command may be one.
pub const SAVED: i32 = 76;
/// Exit code of a shell whose command a person has interrupted.
const INTERRUPTED: i32 = 128 + SIGINT;

impl Cause {
    /// Returns whether the attempt failed. A request to stop, and a person who ends the command, are
    /// no failures.
    pub fn is_failure(&self) -> bool {
        match self {
            Cause::Finished | Cause::Stopped => false,
            Cause::Failed(code) => ![REQUEUE, SAVED, INTERRUPTED].contains(code),
            Cause::Killed(signal) => *signal != SIGINT,
            Cause::OutOfMemory | Cause::Hung | Cause::SupervisorLost | Cause::Gone => true,
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
            Cause::Gone => f.write_str("gone without a close"),
        }
    }
}
