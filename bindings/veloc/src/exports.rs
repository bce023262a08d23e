//! The functions that a program calls, under VELOC's names, except `VELOC_Init`
//! (bindings/veloc/mpi). Each returns 0 or -1, and writes its error to standard error. No panic
//! leaves them.
#![allow(unsafe_code)]
#![allow(non_snake_case)] // the names are VELOC's
#![allow(clippy::missing_safety_doc)] // veloc.h says what a caller must do

use crate::config::Config;
use crate::session::{IdSelection, Memory, VelocSession, say};
use outlive_connect::{Functions, outlive_comm};
use outlive_io::PerProcess;
use outlive_types::{Coordinator, Error, Result};
use std::cell::Cell;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const SUCCESS: c_int = 0;
const FAILURE: c_int = -1;
/// Bytes of the text that `VELOC_Route_file` may write, with its zero.
const MAX_NAME: usize = 1024;

/// The session of this process; a forked child has none.
static SESSION: PerProcess<Option<VelocSession>> = PerProcess::new(|_| None);
static IS_HOOKED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread is in a call: a signal handler, or an exit from it, would wait for
    /// itself.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Returns the value of a call, or reports its error and returns `failure`.
fn answer<T>(name: &str, failure: T, work: impl FnOnce() -> Result<T>) -> T {
    let outcome = if IS_INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true) {
        Err(Error::invalid(
            "it comes from a signal handler inside another call, and did nothing: set a flag there",
        ))
    } else {
        let outcome = catch_unwind(AssertUnwindSafe(work));
        let _ = IS_INSIDE.try_with(|inside| inside.set(false));
        outcome.unwrap_or_else(|_| Err(Error::bug("it panicked; please report this")))
    };
    outcome.unwrap_or_else(|error| {
        say("error", &format!("{name}: {error}"));
        failure
    })
}

/// Returns the status of a call that needs a session.
fn status(name: &str, work: impl FnOnce(&mut VelocSession) -> Result<()>) -> c_int {
    answer(name, FAILURE, || with(work).map(|()| SUCCESS))
}

fn with<T>(work: impl FnOnce(&mut VelocSession) -> Result<T>) -> Result<T> {
    let mut session = SESSION.lock();
    let session = session.as_mut().ok_or_else(|| {
        Error::invalid("VELOC was not initialised in this process: call VELOC_Init, or VELOC_Init_single, first")
    })?;
    work(session)
}

/// # Safety
/// `text` is NULL, or ends with a zero and stays unchanged while the result is used.
unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str> {
    if text.is_null() {
        return Err(Error::invalid(format!("{what} is NULL: give a text")));
    }
    // SAFETY: it is not NULL, and the caller promises the rest.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map_err(|_| Error::invalid(format!("{what} is not UTF-8: choose another")))
}

/// # Safety
/// `ids` is NULL, or points to `count` numbers.
unsafe fn choice(mode: c_int, ids: *const c_int, count: c_int) -> Result<IdSelection> {
    let list = || {
        let count = usize::try_from(count)
            .map_err(|_| Error::invalid(format!("there cannot be {count} ids: give 0 or more")))?;
        if count == 0 {
            return Ok(Vec::new());
        }
        if ids.is_null() {
            return Err(Error::invalid(format!("the list of {count} ids is NULL")));
        }
        // SAFETY: it is not NULL, and the caller promises the rest.
        Ok(unsafe { std::slice::from_raw_parts(ids, count) }.to_vec())
    };
    match mode {
        0 => Ok(IdSelection::All),
        1 => list().map(IdSelection::Some),
        2 => list().map(IdSelection::Rest),
        _ => Err(Error::invalid(format!("mode {mode}: must be 0 (all), 1 (some) or 2 (rest)"))),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Init_single(id: c_uint, config: *const c_char) -> c_int {
    // SAFETY: passed on to the caller.
    answer("VELOC_Init_single", FAILURE, || unsafe { init(id, config, None) }.map(|()| SUCCESS))
}

/// Opens the session for `VELOC_Init` with the ranks that `comm` connects. With NULL, it ends a
/// session, since another rank could not open its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_veloc_init_group(
    comm: *const outlive_comm,
    config: *const c_char,
) -> c_int {
    answer("VELOC_Init", FAILURE, || {
        if comm.is_null() {
            return match SESSION.lock().take() {
                Some(session) => session.close().map(|()| SUCCESS),
                None => Ok(SUCCESS),
            };
        }
        // SAFETY: it is not NULL, and the caller gives a valid one, whose functions behave as
        // `outlive_comm` describes.
        let functions = unsafe { Functions::new(*comm)? };
        // SAFETY: passed on to the caller.
        unsafe { init(functions.rank(), config, Some(functions)) }.map(|()| SUCCESS)
    })
}

/// # Safety
/// `config` is NULL, or ends with a zero.
unsafe fn init(id: c_uint, config: *const c_char, group: Option<Functions>) -> Result<()> {
    let variable = |name: &str| std::env::var(name).ok();
    // SAFETY: the caller gives NULL, or a text that ends with a zero.
    let path = (!config.is_null()).then(|| unsafe { CStr::from_ptr(config) }.to_bytes());
    let path = path.filter(|path| !path.is_empty()).map(|path| Path::new(OsStr::from_bytes(path)));
    let config = Config::read(path, &variable)?;
    let mut session = SESSION.lock();
    if session.is_some() && group.is_some() {
        return Err(Error::invalid("VELOC is initialised already: call VELOC_Finalize first"));
    }
    if session.is_none() {
        *session = Some(VelocSession::open(id, config, group)?);
        if !IS_HOOKED.swap(true, Ordering::Relaxed) {
            // SAFETY: the function takes nothing, lets no panic out, and stays loaded
            // (scripts/link-shared).
            unsafe { libc::atexit(at_exit) };
        }
    }
    Ok(())
}

/// Completes the session of a program that ends without a finalize, so that it loses nothing.
extern "C" fn at_exit() {
    let _ = answer("the end of the program", FAILURE, || match SESSION.lock().take() {
        Some(session) => session.close().map(|()| SUCCESS),
        None => Ok(SUCCESS),
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Finalize(_drain: c_int) -> c_int {
    answer("VELOC_Finalize", FAILURE, || {
        let session = SESSION.lock().take();
        let session = session.ok_or_else(|| Error::invalid("VELOC was not initialised"))?;
        session.close().map(|()| SUCCESS)
    })
}

fn protect(name: &str, id: c_int, memory: *mut c_void, count: usize, size: usize) -> Result<()> {
    let bytes = count.checked_mul(size).filter(|bytes| isize::try_from(*bytes).is_ok());
    let start = memory.expose_provenance();
    match bytes {
        Some(bytes) if bytes == 0 || start != 0 && start.checked_add(bytes).is_some() => {}
        _ => {
            return Err(Error::invalid(format!(
                "region {id}: there cannot be {count} elements of {size} bytes at {start:#x}"
            )));
        }
    }
    with(|session| {
        session.protect(name, id, Memory { start, count, element_bytes: size });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Mem_protect(
    id: c_int,
    memory: *mut c_void,
    count: usize,
    size: usize,
) -> c_int {
    answer("VELOC_Mem_protect", FAILURE, || protect("", id, memory, count, size).map(|()| SUCCESS))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Region_protect(
    id: c_int,
    memory: *mut c_void,
    count: usize,
    size: usize,
    name: *const c_char,
) -> c_int {
    answer("VELOC_Region_protect", FAILURE, || {
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        let name = unsafe { text(name, "the name")? };
        protect(name, id, memory, count, size).map(|()| SUCCESS)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Mem_unprotect(id: c_int) -> c_int {
    status("VELOC_Mem_unprotect", |session| session.unprotect("", id))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Region_unprotect(id: c_int, name: *const c_char) -> c_int {
    status("VELOC_Region_unprotect", |session| {
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        session.unprotect(unsafe { text(name, "the name")? }, id)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Mem_clear() -> c_int {
    status("VELOC_Mem_clear", |session| {
        session.clear("");
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Region_clear(name: *const c_char) -> c_int {
    status("VELOC_Region_clear", |session| {
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        session.clear(unsafe { text(name, "the name")? });
        Ok(())
    })
}

/// The path depends on the checkpoint alone, as in VELOC. So `original` is not read: programs pass
/// buffers that they have not filled, or `routed` itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Route_file(_original: *const c_char, routed: *mut c_char) -> c_int {
    status("VELOC_Route_file", |session| {
        if routed.is_null() {
            return Err(Error::invalid("the place for the path is NULL"));
        }
        // SAFETY: it is not NULL, and has MAX_NAME bytes (veloc.h).
        unsafe { routed.write(0) };
        let place = session.route()?;
        let path = place.as_os_str().as_bytes();
        if path.len() >= MAX_NAME {
            return Err(Error::invalid(format!(
                "{} is longer than {} bytes: shorten scratch",
                place.display(),
                MAX_NAME - 1
            )));
        }
        // SAFETY: as above; the path and its zero fit.
        unsafe {
            routed.copy_from_nonoverlapping(path.as_ptr().cast(), path.len());
            routed.add(path.len()).write(0);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Cleanup(name: *const c_char) -> c_int {
    // SAFETY: the caller gives NULL, or a text that ends with a zero.
    status("VELOC_Cleanup", |session| session.cleanup(unsafe { text(name, "the name")? }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Checkpoint_begin(name: *const c_char, version: c_int) -> c_int {
    status("VELOC_Checkpoint_begin", |session| {
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        session.checkpoint_begin(unsafe { text(name, "the name")? }, version)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Checkpoint_selective(
    mode: c_int,
    ids: *mut c_int,
    count: c_int,
) -> c_int {
    status("VELOC_Checkpoint_selective", |session| {
        // SAFETY: the caller gives `count` numbers.
        session.checkpoint_choose(unsafe { choice(mode, ids, count)? })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Checkpoint_mem() -> c_int {
    status("VELOC_Checkpoint_mem", |session| session.checkpoint_choose(IdSelection::All))
}

#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Checkpoint_end(success: c_int) -> c_int {
    status("VELOC_Checkpoint_end", |session| session.checkpoint_end(success != 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Checkpoint_wait() -> c_int {
    status("VELOC_Checkpoint_wait", VelocSession::wait)
}

#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Checkpoint_finished() -> c_int {
    answer("VELOC_Checkpoint_finished", FAILURE, || {
        Ok(if with(|session| session.is_finished())? { SUCCESS } else { FAILURE })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Checkpoint(name: *const c_char, version: c_int) -> c_int {
    status("VELOC_Checkpoint", |session| {
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        session.checkpoint(unsafe { text(name, "the name") }, version)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Restart_test(name: *const c_char, version: c_int) -> c_int {
    answer("VELOC_Restart_test", FAILURE, || {
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        let name = unsafe { text(name, "the name") };
        Ok(with(|session| session.newest_version(name, version))?.unwrap_or(FAILURE))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Restart_begin(name: *const c_char, version: c_int) -> c_int {
    status("VELOC_Restart_begin", |session| {
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        session.restart_begin(unsafe { text(name, "the name") }, version)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Recover_selective(
    mode: c_int,
    ids: *mut c_int,
    count: c_int,
) -> c_int {
    status("VELOC_Recover_selective", |session| {
        // SAFETY: the caller gives `count` numbers.
        session.recover(&unsafe { choice(mode, ids, count)? })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Recover_mem() -> c_int {
    status("VELOC_Recover_mem", |session| session.recover(&IdSelection::All))
}

#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Recover_size(id: c_int) -> c_int {
    answer("VELOC_Recover_size", FAILURE, || {
        let bytes = with(|session| session.recover_size(id))?.unwrap_or(0);
        c_int::try_from(bytes).map_err(|_| {
            Error::invalid(format!("region {id} has {bytes} bytes, which an int cannot tell"))
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Restart_end(_success: c_int) -> c_int {
    status("VELOC_Restart_end", VelocSession::restart_end)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Restart(name: *const c_char, version: c_int) -> c_int {
    status("VELOC_Restart", |session| {
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        session.restart(unsafe { text(name, "the name") }, version)
    })
}
