//! The border: how a call from C becomes a call of the engine, and an error a status and a text.
#![allow(unsafe_code)]

use crate::status::{OUTLIVE_BUG, OUTLIVE_INVALID, OUTLIVE_NOTHING, OUTLIVE_OK};
use crate::status::{outlive_status, status_of};
use outlive_types::Error;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call did not do what was asked.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// An error.
    Error(Error),
    /// There is nothing of that kind.
    Nothing(String),
}

impl Failure {
    /// As the other ranks of a group are told.
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

/// What a call does.
pub(crate) type Outcome = Result<(), Failure>;

/// The error of a caller who must correct the call.
pub(crate) fn invalid(message: impl Into<String>) -> Failure {
    Failure::Error(Error::invalid(message))
}

thread_local! {
    /// Of the last call of this thread that failed.
    static MESSAGE: RefCell<CString> = RefCell::new(CString::default());
    /// Whether this thread is in a call, or in the log callback.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// While it is held, this thread's calls are refused: it is inside one already.
#[derive(Debug)]
pub(crate) struct Inside(());

impl Inside {
    /// Enters; `None` if this thread is inside already, or at its very end.
    pub fn enter() -> Option<Inside> {
        // Not made where it is not wanted: its drop ends the stay.
        IS_INSIDE.try_with(|inside| (!inside.replace(true)).then(|| Inside(()))).ok()?
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = IS_INSIDE.try_with(|inside| inside.set(false));
    }
}

/// Does what a function of the interface does. No panic leaves it. What is called from inside another call
/// of the same thread is refused: it would wait for itself.
pub(crate) fn call(work: impl FnOnce() -> Outcome) -> outlive_status {
    let Some(_inside) = Inside::enter() else {
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

/// Keeps the text for `outlive_error_message`.
fn tell(failure: Failure) -> outlive_status {
    let (status, text) = match failure {
        Failure::Error(error) => (status_of(error.kind()), error.message().to_owned()),
        Failure::Nothing(text) => (OUTLIVE_NOTHING, text),
    };
    keep(&text);
    status
}

fn keep(text: &str) {
    let text = CString::new(text.replace('\0', "\\0")).unwrap_or_default();
    // A signal handler may come between, and then keeps the old text.
    let _ = MESSAGE.try_with(|message| message.try_borrow_mut().map(|mut kept| *kept = text));
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}

/// The text of the calling thread's last error; empty if no call of this thread has failed. It stays
/// until the next call of this thread that fails. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_error_message() -> *const c_char {
    let text = MESSAGE.try_with(|message| message.try_borrow().map(|text| text.as_ptr()));
    text.ok().and_then(Result::ok).unwrap_or(c"".as_ptr())
}

/// For front doors that stand on this one, such as the Fortran module: makes `text` the calling
/// thread's last error, and returns OUTLIVE_INVALID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_refuse(text: *const c_char) -> outlive_status {
    // SAFETY: the caller gives NULL or a text that ends with a zero.
    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
    let keeping = || keep(&text.map(CStr::to_string_lossy).unwrap_or_default());
    if catch_unwind(AssertUnwindSafe(keeping)).is_err() {
        return OUTLIVE_BUG;
    }
    OUTLIVE_INVALID
}
