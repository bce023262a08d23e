//! Sends notices of the engine to standard error, or to a callback of the program.
#![allow(unsafe_code)]

use crate::call::{CallMark, call};
use crate::status::outlive_status;
use outlive_io::PerProcess;
use outlive_types::{Event, Observer};
use std::ffi::{CString, c_char, c_int, c_void};
use std::io::Write;

/// A normal step.
pub const OUTLIVE_LOG_INFO: c_int = 1;
/// A warning for a person, such as a damaged checkpoint that a restore skipped.
pub const OUTLIVE_LOG_WARNING: c_int = 2;

/// Takes a notice: its level, its text, and the `user` that was given to outlive_set_log().
pub type outlive_log =
    Option<unsafe extern "C" fn(level: c_int, text: *const c_char, user: *mut c_void)>;

/// The callback that receives notices.
#[derive(Clone, Copy)]
struct Listener {
    log: outlive_log,
    user: *mut c_void,
}

#[allow(clippy::non_send_fields_in_send_ty)]
// SAFETY: the program that sets a callback promises that any thread may call it with its `user`.
unsafe impl Send for Listener {}

const NOBODY: Listener = Listener { log: None, user: std::ptr::null_mut() };

/// The callback; a child has its parent's. Its lock is held during each call, so that a replaced
/// callback is not called afterwards.
static LISTENER: PerProcess<Listener> = PerProcess::new(|old| old.copied().unwrap_or(NOBODY));

/// Sends all notices of all pools to `log`. NULL, as at the start, sends warnings to standard error
/// and drops the others.
///
/// Any thread may call `log`, also threads of outlive, but never two at once. It must return soon,
/// must not wait for another thread, and must not call outlive: such calls return OUTLIVE_INVALID.
/// Once this function has returned, the previous callback is not called any more. When the program
/// ends, notices go to standard error.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_set_log(log: outlive_log, user: *mut c_void) -> outlive_status {
    call(|| {
        *LISTENER.lock() = Listener { log, user };
        Ok(())
    })
}

/// Sends later notices to standard error, since data that the callback needs may be gone.
pub(crate) fn forget_listener() {
    *LISTENER.lock() = NOBODY;
}

/// Writes a line to standard error.
pub(crate) fn to_stderr(level: &str, text: &str) {
    // One write, so that lines of several threads do not mix. A failure of it is ignored.
    let line = format!("outlive: {level}: {text}\n");
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Receives the events of a pool.
#[derive(Debug)]
pub(crate) struct Notices;

impl Observer for Notices {
    fn event(&self, event: Event) {
        let (level, text) = match event {
            Event::Info(text) => (OUTLIVE_LOG_INFO, text),
            Event::Warning(text) => (OUTLIVE_LOG_WARNING, text),
            Event::Progress(_) => return,
        };
        let listener = LISTENER.lock();
        match listener.log {
            Some(log) => {
                let text = CString::new(text.replace('\0', "\\0")).unwrap_or_default();
                // If the thread is inside a call already, `enter` returns `None` and changes
                // nothing.
                let _inside = CallMark::enter();
                // SAFETY: the program has set this callback to be called, with this `user`.
                unsafe { log(level, text.as_ptr(), listener.user) }
            }
            None if level == OUTLIVE_LOG_WARNING => to_stderr("warning", &text),
            None => {}
        }
    }
}
