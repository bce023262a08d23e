//! Jobs, opened for C.
#![allow(unsafe_code)]

use crate::arguments::{Out, text};
use crate::call::{Failure, call, invalid};
use crate::core::{Core, JOBS, outlive_job};
use crate::exit;
use crate::pool::{POOLS, outlive_pool};
use crate::status::outlive_status;
use outlive_store::JobOptions;
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

/// Opens a job of a pool. Nothing is read or written yet. Within a process, all handles of a job of one process are
/// one writer: they share its session.
///
/// `every_s`: saves are due once so many seconds have passed since the last one began; 0: always.
/// `*job` is the job, or NULL after an error. Close it with outlive_job_close().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_job_open(
    pool: *mut outlive_pool,
    name: *const c_char,
    every_s: f64,
    job: *mut *mut outlive_job,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a place that may be written.
        let out = unsafe { Out::new(job, "the job")? };
        out.set(null_mut());
        let pool = POOLS.get(pool)?;
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        let name = unsafe { text(name, "the job's name")? };
        let every = Duration::try_from_secs_f64(every_s).map_err(|_| {
            invalid(format!("every_s = {every_s}: must be a number of seconds, from 0"))
        })?;
        let options = JobOptions { every: (!every.is_zero()).then_some(every), group: None };
        let core = Core::open(&pool, name, options)?;
        exit::watch();
        out.set(JOBS.add(Arc::new(core)));
        Ok(())
    })
}

/// Waits until the last save is committed, and the slow tier of the pool has what pool.toml asks for;
/// then closes the job. The handle is not valid any more, whatever is returned. Handles of its saves
/// stay. NULL is allowed.
///
/// Returns the failure of the last save if nobody was told of it yet.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_job_close(job: *mut outlive_job) -> outlive_status {
    call(|| {
        if job.is_null() {
            return Ok(());
        }
        let core = JOBS.take(job)?;
        let mut turn = core.turn()?;
        let closed = core.client.close(false);
        turn.close();
        if let Some(functions) = core.release().take() {
            functions.release();
        }
        Ok(closed?)
    })
}

/// Waits until no save of the job is under way.
///
/// Returns the failure of the last save if nobody was told of it yet.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_job_wait(job: *mut outlive_job) -> outlive_status {
    call(|| Ok(JOBS.get(job)?.job().wait()?))
}

/// Lets the next save go on from this program's state, although another program has saved the job since
/// this one restored. Otherwise that save returns OUTLIVE_FENCED. The other program's checkpoints stay,
/// as older epochs, and its next save returns OUTLIVE_FENCED.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_job_take_over(job: *mut outlive_job) -> outlive_status {
    call(|| {
        JOBS.get(job)?.job().take_over();
        Ok(())
    })
}

/// Sets `*due` to 1 if a save is due, else to 0.
///
/// Returns the failure of an earlier save if nobody was told of it yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_due(job: *mut outlive_job, due: *mut c_int) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a place that may be written.
        let out = unsafe { Out::new(due, "the answer")? };
        out.set(0);
        let core = JOBS.get(job)?;
        // In a group it is a call of all ranks, which must not come in the middle of another.
        let _turn = core.job().is_group().then(|| core.turn()).transpose()?;
        out.set(c_int::from(core.client.due().map_err(Failure::Error)?));
        Ok(())
    })
}
