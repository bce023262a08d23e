//! The boundary: turns a call from C into a call of the engine, and an error into a status and a
//! text.
#![allow(unsafe_code)]

use crate::status::{OUTLIVE_BUG, OUTLIVE_INVALID, OUTLIVE_NOTHING, OUTLIVE_OK};
use crate::status::{outlive_status, status_of};
use outlive_types::Error;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The reason why a call failed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// An error.
    Error(Error),
    /// The requested thing does not exist.
    Nothing(String),
}

impl Failure {
    /// The error that the other ranks of a group get.
    pub fn to_error(&self) -> Error {
        match self {
            Failure::Error(error) => error.clone(),
            Failure::Nothing(text) => Error::invalid(text.as_str()),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Error(error)
    }
}

/// Result of a call.
pub(crate) type CallResult = Result<(), Failure>;

/// The error of a caller who must correct the call.
pub(crate) fn invalid(message: impl Into<String>) -> Failure {
    Failure::Error(Error::invalid(message))
}

thread_local! {
    /// Text of the last call of this thread that failed, or of the last failed save that it took.
    static MESSAGE: RefCell<CString> = RefCell::new(CString::default());
    /// Whether this thread is in a call, or in the log callback.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as inside a call; while it is held, further calls of the thread are refused.
#[derive(Debug)]
pub(crate) struct CallMark(());

impl CallMark {
    /// Marks the thread; `None` if it is inside a call already, or at its very end.
    pub fn enter() -> Option<CallMark> {
        // `CallMark` is created only on success, since its drop clears the mark.
        IS_INSIDE.try_with(|inside| (!inside.replace(true)).then(|| CallMark(()))).ok()?
    }
}

impl Drop for CallMark {
    fn drop(&mut self) {
        let _ = IS_INSIDE.try_with(|inside| inside.set(false));
    }
}

/// Runs the body of an exported function. No panic leaves it. A call from inside another call of
/// the same thread is refused, since it would wait for itself.
pub(crate) fn call(work: impl FnOnce() -> CallResult) -> outlive_status {
    let Some(_inside) = CallMark::enter() else {
        return tell(invalid(
            "this call comes from a signal handler or the log callback, inside another call of outlive. \
             Nothing was done. Set a flag there, and call outlive where the program does so next",
        ));
    };
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => OUTLIVE_OK,
        Ok(Err(failure)) => tell(failure),
        Err(panic) => tell(Failure::Error(Error::bug(format!(
            "outlive panicked: {}; please report this",
            text_of(&*panic)
        )))),
    }
}

/// Stores the text for `outlive_error_message`.
fn tell(failure: Failure) -> outlive_status {
    let (status, text) = match failure {
        Failure::Error(error) => (status_of(error.kind()), error.message().to_owned()),
        Failure::Nothing(text) => (OUTLIVE_NOTHING, text),
    };
    keep_text(&text);
    status
}

/// Makes a text the calling thread's last error.
pub(crate) fn keep_text(text: &str) {
    let text = CString::new(text.replace('\0', "\\0")).unwrap_or_default();
    // If a signal handler interrupts this and fails too, it keeps the old text.
    let _ = MESSAGE.try_with(|message| message.try_borrow_mut().map(|mut kept| *kept = text));
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}

/// Returns the text of the calling thread's last error, or of the failed save in the last event
/// that it took; empty if there was none. It stays valid until the next error or failed save of
/// this thread. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_error_message() -> *const c_char {
    let text = MESSAGE.try_with(|message| message.try_borrow().map(|text| text.as_ptr()));
    text.ok().and_then(Result::ok).unwrap_or(c"".as_ptr())
}

/// For bindings on top of this one, such as the Fortran module: makes `text` the calling thread's
/// last error, and returns OUTLIVE_INVALID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_refuse(text: *const c_char) -> outlive_status {
    // SAFETY: the caller gives NULL or a text that ends with a zero.
    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
    let keeping = || keep_text(&text.map(CStr::to_string_lossy).unwrap_or_default());
    if catch_unwind(AssertUnwindSafe(keeping)).is_err() {
        return OUTLIVE_BUG;
    }
    OUTLIVE_INVALID
}
