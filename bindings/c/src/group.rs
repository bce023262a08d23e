//! Jobs of groups of ranks.
#![allow(unsafe_code)]

use crate::arguments::{Out, text};
use crate::call::{call, invalid};
use crate::core::{Core, JOBS, outlive_job};
use crate::exit;
use crate::pool::{POOLS, outlive_pool};
use crate::status::outlive_status;
use outlive_connect::{Functions, outlive_comm};
use outlive_store::JobOptions;
use outlive_store::group::{GroupOptions, Schedule};
use std::ffi::c_char;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

/// Opens a job of a group of ranks: every rank opens it, and saves and restores become collective. One
/// checkpoint then holds what all ranks protect. With MPI, use outlive_job_open_mpi() of outlive_mpi.h.
///
/// `every_s` as for outlive_job_open(); the clock of rank 0 decides. `comm` is copied. `patience_s`: seconds
/// without a word of a rank after which a save fails, at least 1; 0 for 120. `schedule`: when ranks write: NULL or
/// "coordinated", "staggered", "striped(WIDTH)", "adaptive" (docs/groups.md). `*job` is the job, or NULL
/// after an error; then `release` was not called.
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
        // SAFETY: the caller gives NULL, or a place that may be written.
        let out = unsafe { Out::new(job, "the job")? };
        out.set(null_mut());
        let pool = POOLS.get(pool)?;
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        let name = unsafe { text(name, "the job's name")? };
        let seconds = |what: &str, value: f64| {
            Duration::try_from_secs_f64(value).map_err(|_| {
                invalid(format!("{what} = {value}: must be a number of seconds, from 0"))
            })
        };
        let (every, patience) = (seconds("every_s", every_s)?, seconds("patience_s", patience_s)?);
        let schedule = match schedule.is_null() {
            true => Schedule::default(),
            // SAFETY: it is not NULL, and the caller gives a text that ends with a zero.
            false => Schedule::from_name(unsafe { text(schedule, "the schedule")? })?,
        };
        if comm.is_null() || !comm.is_aligned() {
            return Err(invalid("the communicator is NULL: give the address of an outlive_comm"));
        }
        // SAFETY: it is neither NULL nor misaligned, and the caller gives one that is there, whose functions
        // are as the header says.
        let functions = unsafe { Functions::new(*comm)? };
        let coordinator = Arc::new(functions);
        let patience = if patience.is_zero() { GroupOptions::PATIENCE } else { patience };
        if patience < Duration::from_secs(1) {
            return Err(invalid(format!(
                "patience_s = {patience_s}: must be 0, or 1 second or more"
            )));
        }
        let group = GroupOptions { coordinator, patience, schedule };
        let every = (!every.is_zero()).then_some(every);
        let options = JobOptions { every, group: Some(group) };
        let core = Core::open(&pool, name, options)?;
        *core.release() = Some(functions);
        exit::watch();
        out.set(JOBS.add(Arc::new(core)));
        Ok(())
    })
}
