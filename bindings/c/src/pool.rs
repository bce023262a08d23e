//! Pools, opened for C.
#![allow(unsafe_code)]

use crate::arguments::{Out, path};
use crate::call::{CallResult, call};
use crate::handles::Handles;
use crate::notices::Notices;
use crate::status::outlive_status;
use ::outlive_pool::{Environment, Pool, open, open_or_create};
use outlive_store::retention::check_keep;
use std::ffi::c_char;
use std::ptr::null_mut;
use std::sync::Arc;

/// An open pool.
pub struct outlive_pool {
    _private: (),
}

pub(crate) static POOLS: Handles<Pool, outlive_pool> = Handles::new("pool", 1);

/// Opens a pool: a directory, its pool.toml, or s3://BUCKET/PREFIX. Creates a pool that does not
/// exist.
///
/// `*pool` is the pool, or NULL after an error. Close it with outlive_close().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_open(
    location: *const c_char,
    pool: *mut *mut outlive_pool,
) -> outlive_status {
    // SAFETY: passed on to the caller, as everywhere here: texts end with a zero, addresses for
    // results may be written.
    call(|| unsafe { opened(location, pool, true) })
}

/// Opens an existing pool; otherwise as outlive_open().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_open_existing(
    location: *const c_char,
    pool: *mut *mut outlive_pool,
) -> outlive_status {
    // SAFETY: passed on to the caller.
    call(|| unsafe { opened(location, pool, false) })
}

/// # Safety
/// `location` is NULL, or ends with a zero; `pool` is NULL, or writable until the call returns.
unsafe fn opened(
    location: *const c_char,
    pool: *mut *mut outlive_pool,
    may_create: bool,
) -> CallResult {
    // SAFETY: passed on to the caller.
    let out = unsafe { Out::new(pool, "the pool")? };
    out.set(null_mut());
    // SAFETY: passed on to the caller.
    let location = unsafe { path(location, "the pool's location")? };
    let env = Environment::observed(Arc::new(Notices));
    let opened = if may_create { open_or_create(location, env)? } else { open(location, env)? };
    check_keep(&opened).map_err(|e| e.context(location.display()))?;
    out.set(POOLS.add(Arc::new(opened)));
    Ok(())
}

/// Closes a pool. Its jobs stay open. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_close(pool: *mut outlive_pool) -> outlive_status {
    call(|| {
        if !pool.is_null() {
            POOLS.take(pool)?;
        }
        Ok(())
    })
}
