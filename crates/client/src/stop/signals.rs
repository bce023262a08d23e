//! Signals that ask this process to stop. Their handlers only note the signal's number.
#![allow(unsafe_code)] // handlers of signals

use outlive_io::PerProcess;
use outlive_types::{Error, Result};
use signal_hook::consts::{SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::low_level::{emulate_default_handler, register};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

/// Signals with which schedulers announce the end: Kubernetes and systemd send SIGTERM; Slurm's
/// `--signal` and submitit send SIGUSR1 or SIGUSR2.
const SIGNALS: [(i32, &str); 3] =
    [(SIGTERM, "SIGTERM"), (SIGUSR1, "SIGUSR1"), (SIGUSR2, "SIGUSR2")];

static NOTED: PerProcess<Option<Noted>> = PerProcess::new(|_| None);

#[derive(Clone)]
struct Noted {
    /// Number of the last signal; 0 before the first.
    signal: Arc<AtomicI32>,
    grace: Duration,
}

/// Installs the handlers, once in a process. A second SIGTERM ends the process, and so does the
/// first one a forked child: as they would without a handler. Handlers that were there before are
/// called, too. `grace` is the time between the signal and the end; a later call may change it.
///
/// # Errors
/// `Invalid` if the system refuses.
pub fn install(grace: Duration) -> Result<()> {
    let mut noted = NOTED.lock();
    if let Some(noted) = &mut *noted {
        noted.grace = grace;
        return Ok(());
    }
    let signal = Arc::new(AtomicI32::new(0));
    let was_terminated = Arc::new(AtomicBool::new(false));
    let owner = process::id();
    for (number, _) in SIGNALS {
        let (signal, was_terminated) = (signal.clone(), was_terminated.clone());
        let handler = move || {
            signal.store(number, Ordering::Relaxed);
            let is_second = number == SIGTERM && was_terminated.swap(true, Ordering::Relaxed);
            if is_second || process::id() != owner {
                let _ = emulate_default_handler(number);
            }
        };
        // SAFETY: the handler reads and writes atomics, asks for the process's number, and ends
        // the process as the default action does: all of these are allowed in a handler.
        unsafe { register(number, handler) }
            .map_err(|e| Error::invalid(format!("no handler of signals can be installed: {e}")))?;
    }
    *noted = Some(Noted { signal, grace });
    Ok(())
}

/// Returns the name of the signal that has come, and the time that the process then has.
pub fn noted() -> Option<(&'static str, Duration)> {
    let noted = NOTED.lock().clone()?;
    let number = noted.signal.load(Ordering::Relaxed);
    SIGNALS.iter().find(|(signal, _)| *signal == number).map(|(_, name)| (*name, noted.grace))
}
