//! The C library's streams for standard output and standard error.
#![allow(unsafe_code)]

use std::io::{self, Write};

unsafe extern "C" {
    static stdout: *mut libc::FILE;
    static stderr: *mut libc::FILE;
}

/// Writes out what the C library, and Rust's own, keep of this program's standard output and
/// standard error.
///
/// # Errors
/// Those of the files behind them. The buffers keep the rest.
pub fn flush_stdio() -> io::Result<()> {
    io::stdout().flush()?;
    // Not all streams at once: a thread that waits for input holds the lock of that stream.
    //
    // SAFETY: the C library initialises both before `main`, and they name streams to its end.
    let streams = unsafe { [stdout, stderr] };
    for stream in streams {
        // SAFETY: as above. Another thread may use the stream meanwhile: it has a lock.
        if unsafe { libc::fflush(stream) } != 0 {
            let error = io::Error::last_os_error();
            // A program may have closed its standard output; then nothing is left to write.
            if error.raw_os_error() != Some(libc::EBADF) {
                return Err(error);
            }
        }
    }
    Ok(())
}
