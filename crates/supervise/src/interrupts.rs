//! Signals to the supervisor, as values that its loop takes.

use outlive_types::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::SigId;
use signal_hook::consts::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH,
};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Signals that ask for the end, with time for a last save.
const STOPS: [i32; 4] = [SIGTERM, SIGUSR1, SIGUSR2, SIGHUP];
/// Signals that go on to the command as they are.
const FORWARDED: [i32; 4] = [SIGINT, SIGQUIT, SIGCONT, SIGWINCH];

/// A signal that has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupt {
    /// Ask the command to save and to end.
    Stop(i32),
    /// Send this signal to the command.
    Forward(i32),
}

/// Takes signals until it is dropped.
pub struct Interrupts {
    wakes: UnixStream,
    flags: Vec<(i32, Arc<AtomicBool>)>,
    registered: Vec<SigId>,
}

impl Interrupts {
    /// Begins to take signals.
    ///
    /// # Errors
    /// `Invalid` if the system refuses.
    pub fn begin() -> Result<Interrupts> {
        let refuse = |e| Error::invalid(format!("signals cannot be taken: {e}"));
        let (wakes, wake) = UnixStream::pair().map_err(refuse)?;
        wakes.set_nonblocking(true).map_err(refuse)?;
        let mut interrupts = Interrupts { wakes, flags: Vec::new(), registered: Vec::new() };
        // A signal that is ignored stays so, as under nohup, for this process and for the command.
        let ignored = ignored_signals();
        let wanted = STOPS.into_iter().chain(FORWARDED);
        let wanted = wanted.filter(|signal| ignored & 1 << (signal - 1) == 0);
        for signal in wanted.chain([SIGCHLD]) {
            let flag = Arc::new(AtomicBool::new(false));
            // The flag first: the byte wakes the loop that looks at it.
            let set = signal_hook::flag::register(signal, flag.clone()).map_err(refuse)?;
            interrupts.registered.push(set);
            let wake = wake.try_clone().map_err(refuse)?;
            let woken = signal_hook::low_level::pipe::register(signal, wake).map_err(refuse)?;
            interrupts.registered.push(woken);
            interrupts.flags.push((signal, flag));
        }
        Ok(interrupts)
    }

    /// Waits for at most `limit`, or until a signal comes; also for SIGCHLD.
    pub fn wait(&mut self, limit: Duration) {
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // An error means that a signal came, or that the next look comes too early.
        let _ = poll(&mut [PollFd::new(&self.wakes, PollFlags::IN)], Some(&limit));
        let mut bytes = [0; 64];
        while self.wakes.read(&mut bytes).is_ok_and(|read| read > 0) {}
    }

    /// Returns whether a signal has come that [`Interrupts::take`] will return.
    pub fn has_come(&self) -> bool {
        self.flags.iter().any(|(signal, flag)| *signal != SIGCHLD && flag.load(Ordering::SeqCst))
    }

    /// Returns the signals since the last call, in the order of their numbers.
    pub fn take(&self) -> Vec<Interrupt> {
        let came = self.flags.iter().filter(|(_, flag)| flag.swap(false, Ordering::SeqCst));
        came.filter_map(|(signal, _)| match signal {
            signal if STOPS.contains(signal) => Some(Interrupt::Stop(*signal)),
            signal if FORWARDED.contains(signal) => Some(Interrupt::Forward(*signal)),
            _ => None,
        })
        .collect()
    }
}

/// Returns the signals that this process ignores: bit N - 1 for signal N.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}
