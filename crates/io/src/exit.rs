//! The exit code of this process, for a function that is called at its end.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

unsafe extern "C" {
    /// Of the GNU C library: a function of `atexit` learns no exit code.
    #[link_name = "on_exit"]
    fn c_on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

static FUNCTION: OnceLock<fn(i32)> = OnceLock::new();

/// Calls a function with the exit code when the process ends by `exit` or returns from `main`, also in
/// a forked child. Only the first function counts.
pub fn on_exit(function: fn(i32)) {
    if FUNCTION.set(function).is_ok() {
        // SAFETY: `call` does not use the argument. It stays to the end of the process: outlive's C
        // library is linked with `nodelete`, and Python unloads no modules.
        let _ = unsafe { c_on_exit(call, ptr::null_mut()) };
    }
}

extern "C" fn call(code: c_int, _: *mut c_void) {
    if let Some(function) = FUNCTION.get() {
        function(code);
    }
}
