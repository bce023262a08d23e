//! The thread that releases.

use outlive_types::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Longest wait for the end of a pass: a sink may block.
const END_WAIT: Duration = Duration::from_secs(1);
/// Longest wait between two passes.
const A_WHILE: Duration = Duration::from_secs(1);

/// Waits for work, at most for a time.
pub type Wait = Box<dyn FnOnce(Duration)>;

/// Runs passes until it is dropped.
pub struct Releaser {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    process: u32,
}

impl Releaser {
    /// Starts a thread that calls `pass` again and again, and the returned wait in between. It ends
    /// once `pass` returns `None`, and at last calls `end`.
    ///
    /// # Errors
    /// `Retry` if there can be no thread.
    pub fn start(
        pass: impl Fn() -> Option<Wait> + Send + 'static,
        end: impl FnOnce() + Send + 'static,
    ) -> Result<Releaser> {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let work = move || {
            while !over.load(Ordering::Relaxed) {
                let Some(wait) = pass() else { break };
                if !over.load(Ordering::Relaxed) {
                    wait(A_WHILE);
                }
            }
            end();
        };
        let thread = thread::Builder::new().name("outlive-gate".to_owned()).spawn(work);
        let thread = thread.map_err(|error| Error::no_thread("the gate", &error))?;
        Ok(Releaser { is_over, thread: Some(thread), process: std::process::id() })
    }
}

impl Drop for Releaser {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return };
        // The thread itself may hold the last reference; a forked child has no such thread.
        if thread.thread().id() == thread::current().id() || self.process != std::process::id() {
            return;
        }
        let begun = Instant::now();
        while !thread.is_finished() && begun.elapsed() < END_WAIT {
            thread::sleep(Duration::from_millis(1));
        }
        // A sink that blocks keeps its thread, which does nothing more once it returns.
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}
