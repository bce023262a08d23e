//! Options of a supervised run.

use outlive_types::JobName;
use std::ffi::OsString;
use std::time::Duration;

/// The command of a supervisor, and the limits that it keeps.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The job whose checkpoints show whether the command gets further.
    pub job: JobName,
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// Number of failures without a newer checkpoint after which it falls back to an older one, and
    /// then gives up; at least one.
    pub give_up: u32,
    /// Time without a sign of life after which the command counts as hung; `None`: never.
    pub hang: Option<Duration>,
    /// Time between a request to stop and the end, if the request names none.
    pub grace: Duration,
    /// Interval between saves that replaces the command's own, as `outlive_store::parse_every` reads
    /// it; `None`: the command's own counts.
    pub every: Option<String>,
    /// Command line of `outlive` that starts a helper, up to its subcommand; `None`: the command's
    /// saves have no helper.
    pub helper: Option<Vec<OsString>>,
    /// Whether what the command prints appears only once a checkpoint covers it.
    pub gate: bool,
    /// Time of day by which the command must have ended, in nanoseconds since 1970.
    pub stop_by_ns: Option<u64>,
}
