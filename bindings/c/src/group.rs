//! Jobs of groups of ranks.
#![allow(unsafe_code)]

use crate::arguments::{Out, text};
use crate::call::{CallResult, Failure, call, invalid};
use crate::core::{Core, JOBS, outlive_job};
use crate::exit;
use crate::job::every_of;
use crate::pool::{POOLS, outlive_pool};
use crate::status::outlive_status;
use ::outlive_pool::Pool;
use outlive_connect::{Functions, outlive_comm};
use outlive_interval::Every;
use outlive_store::JobOptions;
use outlive_store::group::{GroupOptions, PoolRanks, Schedule};
use outlive_types::{Coordinator, Rank};
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

/// Opens a job of a group of ranks: every rank opens it, and saves and restores become collective.
/// One checkpoint then holds the protected regions of all ranks. With MPI, use
/// outlive_job_open_mpi() of outlive_mpi.h.
///
/// `every_s`: as for outlive_job_open(); the clock of rank 0 decides. `comm` is copied.
/// `patience_s`: seconds without a message of a rank after which a save fails, at least 1; 0 for
/// 120. `schedule`: when ranks write: NULL or "coordinated", "staggered", "striped(WIDTH)",
/// "adaptive" (docs/groups.md). `*job` is the job, or NULL after an error; then `release` was not
/// called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_job_open_group(
    pool: *mut outlive_pool,
    name: *const c_char,
    every_s: f64,
    comm: *const outlive_comm,
    patience_s: f64,
    schedule: *const c_char,
    job: *mut *mut outlive_job,
) -> outlive_status {
    call(|| {
        // SAFETY: passed on to the caller.
        let (out, pool, name, options) =
            unsafe { asked(pool, name, every_s, patience_s, schedule, job)? };
        if comm.is_null() || !comm.is_aligned() {
            return Err(invalid("the communicator is NULL: give the address of an outlive_comm"));
        }
        // SAFETY: it is neither NULL nor misaligned, and the caller gives a valid one, whose
        // functions behave as the header describes.
        let functions = unsafe { Functions::new(*comm)? };
        open(&out, &pool, name, options, Arc::new(functions), Some(functions))
    })
}

/// Opens a job of a group of processes that share only the pool; otherwise as
/// outlive_job_open_group(). Their calls go through the pool's log, so a call of all ranks takes
/// some milliseconds. A rank that does not come to one within `patience_s` is given up.
///
/// `rank`: this process, from 0 on. `size`: number of processes. `run`: a text that is the same for
/// all of them and new for every start of the program. The id of its batch job and the number of
/// its restarts make one. A job that a run opens twice needs two.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // C has no other way
pub unsafe extern "C" fn outlive_job_open_ranks(
    pool: *mut outlive_pool,
    name: *const c_char,
    every_s: f64,
    rank: c_int,
    size: c_int,
    run: *const c_char,
    patience_s: f64,
    schedule: *const c_char,
    job: *mut *mut outlive_job,
) -> outlive_status {
    call(|| {
        // SAFETY: passed on to the caller.
        let (out, pool, name, options) =
            unsafe { asked(pool, name, every_s, patience_s, schedule, job)? };
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        let run = unsafe { text(run, "the name of the run")? };
        let (Ok(rank), Ok(size)) = (Rank::try_from(rank), u32::try_from(size)) else {
            return Err(invalid(format!(
                "rank {rank} of a group of {size}: ranks are counted from 0, and there is at least one"
            )));
        };
        let ranks = PoolRanks::new(&pool, name, rank, size, run, options.patience)?;
        open(&out, &pool, name, options, Arc::new(ranks), None)
    })
}

/// The options of a job of a group.
struct Asked {
    every: Every,
    patience: Duration,
    schedule: Schedule,
}

type Opening<'a> = (Out<*mut outlive_job>, Arc<Pool>, &'a str, Asked);

/// # Safety
/// As for [`outlive_job_open_group`].
unsafe fn asked<'a>(
    pool: *mut outlive_pool,
    name: *const c_char,
    every_s: f64,
    patience_s: f64,
    schedule: *const c_char,
    job: *mut *mut outlive_job,
) -> Result<Opening<'a>, Failure> {
    // SAFETY: the caller gives NULL, or a writable address.
    let out = unsafe { Out::new(job, "the job")? };
    out.set(null_mut());
    let pool = POOLS.get(pool)?;
    // SAFETY: the caller gives NULL, or a text that ends with a zero.
    let name = unsafe { text(name, "the job's name")? };
    let seconds = |what: &str, value: f64| {
        Duration::try_from_secs_f64(value)
            .map_err(|_| invalid(format!("{what} = {value}: must be a number of seconds, from 0")))
    };
    let (every, patience) = (every_of(every_s)?, seconds("patience_s", patience_s)?);
    let schedule = match schedule.is_null() {
        true => Schedule::default(),
        // SAFETY: it is not NULL, and the caller gives a text that ends with a zero.
        false => Schedule::from_name(unsafe { text(schedule, "the schedule")? })?,
    };
    let patience = if patience.is_zero() { GroupOptions::PATIENCE } else { patience };
    if patience < Duration::from_secs(1) {
        return Err(invalid(format!("patience_s = {patience_s}: must be 0, or 1 second or more")));
    }
    Ok((out, pool, name, Asked { every, patience, schedule }))
}

/// Opens the job. `functions` are released when it is closed.
fn open(
    out: &Out<*mut outlive_job>,
    pool: &Pool,
    name: &str,
    asked: Asked,
    coordinator: Arc<dyn Coordinator>,
    functions: Option<Functions>,
) -> CallResult {
    let Asked { every, patience, schedule } = asked;
    let group = GroupOptions { patience, schedule, ..GroupOptions::new(coordinator) };
    let core =
        Core::open(pool, name, JobOptions { every, group: Some(group), ..Default::default() })?;
    *core.release() = functions;
    exit::watch();
    out.set(JOBS.add(Arc::new(core)));
    Ok(())
}
