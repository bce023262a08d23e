//! Jobs, opened for C.
#![allow(unsafe_code)]

use crate::arguments::{Out, text};
use crate::call::{CallResult, Failure, call, invalid};
use crate::core::{Core, JOBS, outlive_job};
use crate::exit;
use crate::pool::{POOLS, outlive_pool};
use crate::status::{OUTLIVE_OK, outlive_status, status_of};
use outlive_client::{End, stop};
use outlive_interval::Every;
use outlive_store::{JobOptions, OnFailure, parse_every, seconds_between};
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

/// Opens a job of a pool. Reads and writes nothing yet. All handles of a job in one process are one
/// writer: they share its session.
///
/// `every_s`: a save is due once this many seconds have passed since the last one began; 0: always.
/// `*job` is the job, or NULL after an error. Close it with outlive_job_close().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_job_open(
    pool: *mut outlive_pool,
    name: *const c_char,
    every_s: f64,
    job: *mut *mut outlive_job,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::new(job, "the job")? };
        out.set(null_mut());
        let pool = POOLS.get(pool)?;
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        let name = unsafe { text(name, "the job's name")? };
        let every = every_of(every_s)?;
        let options = JobOptions { every, ..JobOptions::default() };
        let core = Core::open(&pool, name, options)?;
        exit::watch();
        out.set(JOBS.add(Arc::new(core)));
        Ok(())
    })
}

/// Returns the rule for the `every_s` of a call: 0 means that each save is due.
pub(crate) fn every_of(every_s: f64) -> Result<Every, Failure> {
    let every = seconds_between("every_s", every_s)?;
    Ok(if every == Every::Fixed(Duration::ZERO) { Every::Always } else { every })
}

/// The next save, wait or close returns the failure of a save. This is the default.
pub const OUTLIVE_RAISE: c_int = 0;
/// The program goes on after a failed save; see outlive_job_on_failure().
pub const OUTLIVE_WARN: c_int = 1;

/// Figures of the saves of a job, in this process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct outlive_health {
    /// Saves that have failed since the last commit.
    pub failed_in_a_row: u64,
    /// All saves that have failed.
    pub failed: u64,
    /// Saves that were committed.
    pub committed: u64,
    /// Seconds since the last commit; below 0 if nothing was committed.
    pub since_commit_s: f64,
    /// The status of the save that failed last, or OUTLIVE_OK.
    pub last_failure: outlive_status,
}

/// Waits until the last save is committed, and the slow tier of the pool has the copies that
/// pool.toml asks for; then closes the job. The handle is invalid afterwards, whatever this
/// returns. Handles of its saves stay valid. NULL is allowed. In a group every rank calls it, after
/// the same saves.
///
/// Returns the failure of the last save if no call has returned it yet. After OUTLIVE_WARN that is
/// only a warning, unless nothing was committed for `fail_after_s` seconds, or nothing at all.
/// OUTLIVE_INVALID: another rank saves or restores instead; the text names it.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_job_close(job: *mut outlive_job) -> outlive_status {
    call(|| close(job, End::Together))
}

/// Closes the job for a rank that ends early, as after an error of the program: it waits for no
/// other rank. Other ranks of outlive_job_open_ranks() see it at once; others when their
/// communicator notices.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_job_leave(job: *mut outlive_job) -> outlive_status {
    call(|| close(job, End::Alone))
}

fn close(job: *mut outlive_job, end: End) -> CallResult {
    if job.is_null() {
        return Ok(());
    }
    let core = JOBS.take(job)?;
    let mut turn = core.turn()?;
    let closed = core.client.close(end);
    turn.close();
    if let Some(functions) = core.release().take() {
        functions.release();
    }
    Ok(closed?)
}

/// Sets the policy for saves that fail. OUTLIVE_RAISE: the next save, outlive_due(),
/// outlive_restore() or outlive_job_close() returns the failure. OUTLIVE_WARN: the program goes on
/// with a warning, and the next save stores the data that the failed one could not store. Only
/// after `fail_after_s` seconds without a commit a call returns a failure. They count from the last
/// commit, or from this call. The policy covers only failures of storage: OUTLIVE_FENCED,
/// OUTLIVE_BUG and mistakes of the program are returned in any case. outlive_wait() returns the
/// failure of its save in any case.
///
/// `fail_after_s` is longer than the job's `every_s`; OUTLIVE_RAISE ignores it. The last call
/// counts for all handles of the job in this process. Every rank of a group gives the same policy;
/// the time of rank 0 counts.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_job_on_failure(
    job: *mut outlive_job,
    on_failure: c_int,
    fail_after_s: f64,
) -> outlive_status {
    call(|| {
        let core = JOBS.get(job)?;
        let on_failure = match on_failure {
            OUTLIVE_RAISE => OnFailure::Raise,
            OUTLIVE_WARN => {
                let fail_after = Duration::try_from_secs_f64(fail_after_s).map_err(|_| {
                    invalid(format!(
                        "fail_after_s = {fail_after_s}: must be a number of seconds above 0"
                    ))
                })?;
                OnFailure::Warn { fail_after }
            }
            other => {
                return Err(invalid(format!(
                    "on_failure = {other}: must be OUTLIVE_RAISE or OUTLIVE_WARN"
                )));
            }
        };
        Ok(core.job().on_failure(on_failure)?)
    })
}

/// Sets the interval between saves, in place of the job's `every_s`. "auto": outlive learns it from
/// the costs of saves and from the failures of the job. "continuous": the next save is due as soon
/// as the last one is durable, while saves take at most `slowdown_max` of the time (0: the default,
/// 0.03). A time such as "30s" or "10m": as `every_s`. `outlive run --every` overrides it.
///
/// Call it before the first save: it forgets the costs that outlive has learned. Every rank of a group gives the same interval.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_job_every(
    job: *mut outlive_job,
    every: *const c_char,
    slowdown_max: f64,
) -> outlive_status {
    call(|| {
        let core = JOBS.get(job)?;
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        let every = unsafe { text(every, "the interval")? };
        let budget = (slowdown_max != 0.0).then_some(slowdown_max);
        Ok(core.client.set_every(parse_every(every, budget)?)?)
    })
}

/// Returns figures of the saves of a job, in this process. Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_job_health(
    job: *mut outlive_job,
    health: *mut outlive_health,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::new(health, "the health")? };
        let health = JOBS.get(job)?.job().health();
        out.set(outlive_health {
            failed_in_a_row: health.failed_in_a_row,
            failed: health.failed,
            committed: health.committed,
            since_commit_s: health.since_commit.map_or(-1.0, |time| time.as_secs_f64()),
            last_failure: health.last_error.map_or(OUTLIVE_OK, |error| status_of(error.kind())),
        });
        Ok(())
    })
}

/// Waits until no save of the job is under way.
///
/// Returns the failure of the last save if no call has returned it yet.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_job_wait(job: *mut outlive_job) -> outlive_status {
    call(|| Ok(JOBS.get(job)?.job().wait()?))
}

/// Lets the next save continue from this program's state, although another program has saved the
/// job since this one restored. Without this call, that save returns OUTLIVE_FENCED. The other
/// program's checkpoints stay, as older epochs, and its next save returns OUTLIVE_FENCED.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_job_take_over(job: *mut outlive_job) -> outlive_status {
    call(|| {
        JOBS.get(job)?.job().take_over();
        Ok(())
    })
}

/// Lets SIGTERM, SIGUSR1 and SIGUSR2 ask this process to save and to end. A handler only sets a
/// flag: see outlive_should_stop(). A SIGTERM that comes a second or more after the first one ends
/// the process. Handlers that were there before are called, too.
///
/// `grace_s` is the number of seconds between the signal and the end, as the scheduler gives them.
/// If the last save took longer, a warning says so when the signal comes.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_on_preempt(grace_s: f64) -> outlive_status {
    call(|| Ok(stop::grace(grace_s).and_then(stop::on_signals)?))
}

/// Sets `*stops` to 1 if the program is to save once more and to end, else to 0. It is to do so
/// after a signal (see outlive_on_preempt()), or at a request of the commands `outlive run` and
/// `outlive stop`. The next outlive_save() is then made whether it is due or not, and returns when
/// its checkpoint is committed. Collective in a group: all ranks get 1 as soon as one of them was
/// asked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_should_stop(
    job: *mut outlive_job,
    stops: *mut c_int,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::new(stops, "the answer")? };
        out.set(0);
        let core = JOBS.get(job)?;
        // In a group all ranks make this call, so it must not come in the middle of another.
        let _turn = core.job().is_group().then(|| core.turn()).transpose()?;
        out.set(c_int::from(core.client.should_stop().map_err(Failure::Error)?));
        Ok(())
    })
}

/// Sets `*due` to 1 if a save is due, else to 0.
///
/// Returns the failure of an earlier save if no call has returned it yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_due(job: *mut outlive_job, due: *mut c_int) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::new(due, "the answer")? };
        out.set(0);
        let core = JOBS.get(job)?;
        // In a group all ranks make this call, so it must not come in the middle of another.
        let _turn = core.job().is_group().then(|| core.turn()).transpose()?;
        out.set(c_int::from(core.client.due().map_err(Failure::Error)?));
        Ok(())
    })
}
