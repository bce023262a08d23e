//! What outlive tells while it works: to standard error, or to a callback of the program.
#![allow(unsafe_code)]

use crate::call::{Inside, call};
use crate::status::outlive_status;
use outlive_io::PerProcess;
use outlive_types::{Event, Observer};
use std::ffi::{CString, c_char, c_int, c_void};
use std::io::Write;

/// A normal step.
pub const OUTLIVE_LOG_INFO: c_int = 1;
/// Something that a person should know, such as a damaged checkpoint that was passed over.
pub const OUTLIVE_LOG_WARNING: c_int = 2;

/// Takes a notice: its level, its text, and what was given to outlive_set_log().
pub type outlive_log =
    Option<unsafe extern "C" fn(level: c_int, text: *const c_char, user: *mut c_void)>;

/// Who listens.
#[derive(Clone, Copy)]
struct Listener {
    log: outlive_log,
    user: *mut c_void,
}

#[allow(clippy::non_send_fields_in_send_ty)]
// SAFETY: whoever sets a callback promises that it may be called from any thread, with what it is given.
unsafe impl Send for Listener {}

const NOBODY: Listener = Listener { log: None, user: std::ptr::null_mut() };

/// The callback; a child has its parent's. Its lock is held while it is called, so that none is called any
/// more once it was replaced.
static LISTENER: PerProcess<Listener> = PerProcess::new(|old| old.copied().unwrap_or(NOBODY));

/// Sends all notices of all pools to `log`. NULL sends warnings to standard error again, and drops the
/// others; it is so at the start.
///
/// `log` is called by any thread, also by threads of outlive, but never by two at once. It must return
/// soon, must not wait for another thread, and must not call outlive: such calls return OUTLIVE_INVALID.
/// Once this function has returned, what was set before is not called any more. When the program ends,
/// notices go to standard error.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_set_log(log: outlive_log, user: *mut c_void) -> outlive_status {
    call(|| {
        *LISTENER.lock() = Listener { log, user };
        Ok(())
    })
}

/// From now on notices go to standard error: what the callback needs may be gone.
pub(crate) fn forget_listener() {
    *LISTENER.lock() = NOBODY;
}

/// Writes a line to standard error.
pub(crate) fn to_stderr(level: &str, text: &str) {
    // In one write, so that lines of several threads do not mix. Nobody hears of it if that fails.
    let line = format!("outlive: {level}: {text}\n");
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Hears the events of a pool.
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
                // Held also if this thread is in a call of the program, and enters nothing then.
                let _inside = Inside::enter();
                // SAFETY: the program has given it for this, with what it wants to be given.
                unsafe { log(level, text.as_ptr(), listener.user) }
            }
            None if level == OUTLIVE_LOG_WARNING => to_stderr("warning", &text),
            None => {}
        }
    }
}
