//! Signals that ask this process to stop. Their handlers only note the signal's number.
#![allow(unsafe_code)] // handlers of signals

use crate::stop::{RunFolder, monotonic};
use outlive_io::PerProcess;
use outlive_types::{Error, Result};
use rustix::fs::{Access, access};
use rustix::thread::{Timespec, nanosleep};
use signal_hook::consts::{SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::low_level::{emulate_default_handler, register};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

/// Signals with which schedulers announce the end: Kubernetes and systemd send SIGTERM; Slurm's
/// `--signal` and submitit send SIGUSR1 or SIGUSR2.
const SIGNALS: [(i32, &str); 3] =
    [(SIGTERM, "SIGTERM"), (SIGUSR1, "SIGUSR1"), (SIGUSR2, "SIGUSR2")];

/// Time after a SIGTERM in which further ones belong to it. At the end of a job's time Slurm sends
/// two within some milliseconds, and scripts pass on what Slurm has sent to all processes.
pub const TERMS_TOGETHER: Duration = Duration::from_secs(1);

/// Longest time between a scheduler's SIGTERM to this process and its SIGTERM to the supervisor.
const SUPERVISOR_PATIENCE: Duration = Duration::from_secs(3);

static NOTED: PerProcess<Option<Noted>> = PerProcess::new(|_| None);

#[derive(Clone, Default)]
struct Noted {
    /// Number of the last signal; 0 before the first.
    signal: Arc<AtomicI32>,
    /// Nanoseconds of the monotonic clock at the first SIGTERM; 0 before it.
    termed_ns: Arc<AtomicU64>,
    /// Whether the program wants the signals itself. Otherwise a SIGTERM is a request only if the
    /// supervisor gets one, too.
    is_wanted: Arc<AtomicBool>,
    /// Signals that have their handler.
    handled: Vec<i32>,
    /// Time between a signal and the end; `None` if it is not known.
    grace: Option<Duration>,
}

/// Installs the handlers, once in a process. A SIGTERM that comes [`TERMS_TOGETHER`] after the first
/// one ends the process, and so does the first one a forked child: as they would without a handler.
/// Handlers that were there before are called, too. `grace` is the time between the signal and the
/// end; a later call may change it.
///
/// # Errors
/// `Invalid` if the system refuses.
pub fn install(grace: Duration) -> Result<()> {
    let mut noted = NOTED.lock();
    let noted = noted.get_or_insert_default();
    noted.grace = Some(grace);
    noted.is_wanted.store(true, Ordering::Relaxed);
    handle(noted, |_| true, None)
}

/// In a job of Slurm, installs handlers of the signals that would end this supervised process
/// otherwise. Slurm sends SIGTERM to all processes of a job: not only to the supervisor, which would
/// give this process time. `folder` is the supervisor's, if that is on this host.
///
/// A SIGTERM that does not reach the supervisor ends this process all the same: `srun` and `mpirun`
/// end the other ranks so when one has failed.
///
/// # Errors
/// `Invalid` if the system refuses.
pub fn install_in_slurm(folder: Option<&RunFolder>) -> Result<()> {
    if std::env::var_os("SLURM_JOB_ID").is_none_or(|id| id.is_empty()) {
        return Ok(());
    }
    let stop = folder.and_then(|it| CString::new(it.stop_file().as_os_str().as_bytes()).ok());
    let taken = taken_signals();
    let is_free = |number: i32| taken & 1 << (number - 1) == 0;
    handle(NOTED.lock().get_or_insert_default(), is_free, stop)
}

/// Installs handlers of the signals that are wanted and have none yet. `stop` is the file by which
/// the supervisor asks.
fn handle(noted: &mut Noted, wants: impl Fn(i32) -> bool, stop: Option<CString>) -> Result<()> {
    let owner = process::id();
    for (number, _) in SIGNALS {
        if noted.handled.contains(&number) || !wants(number) {
            continue;
        }
        let Noted { signal, termed_ns, is_wanted, .. } = noted.clone();
        let stop = stop.clone();
        let handler = move || {
            let is_end = process::id() != owner
                || number == SIGTERM && {
                    let is_meant = || match &stop {
                        Some(stop) => is_wanted.load(Ordering::Relaxed) || appears(stop),
                        None => true,
                    };
                    !is_first_term(&termed_ns, is_meant)
                };
            if is_end {
                let _ = emulate_default_handler(number);
            }
            signal.store(number, Ordering::Relaxed);
        };
        // SAFETY: the handler reads and writes atomics, asks for the time, the process's number and
        // a file, sleeps, and ends the process as the default action does. All of these are allowed
        // in a handler.
        unsafe { register(number, handler) }
            .map_err(|e| Error::invalid(format!("no handler of signals can be installed: {e}")))?;
        noted.handled.push(number);
    }
    Ok(())
}

/// Returns whether a SIGTERM is the first one, or belongs to it. The first one must be meant for this
/// process.
fn is_first_term(termed_ns: &AtomicU64, is_meant: impl Fn() -> bool) -> bool {
    let first_ns = termed_ns.load(Ordering::Relaxed);
    if first_ns > 0 {
        return monotonic().saturating_sub(Duration::from_nanos(first_ns)) < TERMS_TOGETHER;
    }
    let is_meant = is_meant();
    let now_ns = u64::try_from(monotonic().as_nanos()).unwrap_or(u64::MAX).max(1);
    termed_ns.store(now_ns, Ordering::Relaxed);
    is_meant
}

/// Returns whether a file is there within the patience.
fn appears(file: &CString) -> bool {
    let end = monotonic().saturating_add(SUPERVISOR_PATIENCE);
    loop {
        match access(file.as_c_str(), Access::EXISTS) {
            Ok(()) => return true,
            Err(_) if monotonic() >= end => return false,
            Err(_) => _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: 5_000_000 }),
        }
    }
}

/// Returns the signals that this process ignores or has a handler for: bit N - 1 for signal N. All
/// count as taken if the system does not say.
fn taken_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = |name: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    };
    mask("SigIgn:").zip(mask("SigCgt:")).map_or(u64::MAX, |(ignored, caught)| ignored | caught)
}

/// Returns the name of the signal that has come, and the time that the process then has, if that is
/// known.
pub fn noted() -> Option<(&'static str, Option<Duration>)> {
    let noted = NOTED.lock().clone()?;
    let number = noted.signal.load(Ordering::Relaxed);
    SIGNALS.iter().find(|(signal, _)| *signal == number).map(|(_, name)| (*name, noted.grace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sigterms_of_one_moment_are_one_request() {
        let termed_ns = AtomicU64::new(0);
        assert!(is_first_term(&termed_ns, || true));
        assert_ne!(termed_ns.load(Ordering::Relaxed), 0);
        // As if it had come a moment ago, and a second ago.
        let ago_ns =
            |ago: Duration| u64::try_from(monotonic().saturating_sub(ago).as_nanos()).unwrap();
        termed_ns.store(ago_ns(TERMS_TOGETHER / 100), Ordering::Relaxed);
        assert!(is_first_term(&termed_ns, || false), "within the time of the first");
        termed_ns.store(ago_ns(TERMS_TOGETHER), Ordering::Relaxed);
        assert!(!is_first_term(&termed_ns, || true));
        assert!(!is_first_term(&AtomicU64::new(0), || false), "it is for another process");
    }
}
