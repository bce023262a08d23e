//! Status codes, which every function returns.
#![allow(unsafe_code)]

use outlive_types::ErrorKind;
use std::ffi::{c_char, c_int};

/// Result of a call: OUTLIVE_OK, or a kind of error, which names what the caller can do.
/// outlive_error_message() returns its text.
pub type outlive_status = c_int;

/// Done.
pub const OUTLIVE_OK: outlive_status = 0;
/// A temporary failure: the same call may succeed later.
pub const OUTLIVE_RETRY: outlive_status = 1;
/// The request is not possible: correct it.
pub const OUTLIVE_INVALID: outlive_status = 2;
/// Stored bytes are missing or wrong: take an older checkpoint, or repair the pool.
pub const OUTLIVE_DAMAGED: outlive_status = 3;
/// No room: free some. Nothing that was committed is lost.
pub const OUTLIVE_FULL: outlive_status = 4;
/// Another process has taken over this job: stop saving, or restore again.
pub const OUTLIVE_FENCED: outlive_status = 5;
/// outlive contradicts itself: please report it.
pub const OUTLIVE_BUG: outlive_status = 6;
/// The requested thing does not exist: no checkpoint yet, or no region of that name.
pub const OUTLIVE_NOTHING: outlive_status = 7;

/// Returns the status for a kind of error.
pub(crate) fn status_of(kind: ErrorKind) -> outlive_status {
    match kind {
        ErrorKind::Retry => OUTLIVE_RETRY,
        ErrorKind::Invalid => OUTLIVE_INVALID,
        ErrorKind::Damaged => OUTLIVE_DAMAGED,
        ErrorKind::Full => OUTLIVE_FULL,
        ErrorKind::Fenced => OUTLIVE_FENCED,
        ErrorKind::Bug => OUTLIVE_BUG,
    }
}

/// Returns the name of a status, such as "OUTLIVE_FENCED". Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_status_name(status: outlive_status) -> *const c_char {
    let name = match status {
        OUTLIVE_OK => c"OUTLIVE_OK",
        OUTLIVE_RETRY => c"OUTLIVE_RETRY",
        OUTLIVE_INVALID => c"OUTLIVE_INVALID",
        OUTLIVE_DAMAGED => c"OUTLIVE_DAMAGED",
        OUTLIVE_FULL => c"OUTLIVE_FULL",
        OUTLIVE_FENCED => c"OUTLIVE_FENCED",
        OUTLIVE_BUG => c"OUTLIVE_BUG",
        OUTLIVE_NOTHING => c"OUTLIVE_NOTHING",
        _ => c"(no status of outlive)",
    };
    name.as_ptr()
}

/// Returns the version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn outlive_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
