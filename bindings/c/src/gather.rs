//! Builds checkpoints region by region.
#![allow(unsafe_code)]

use crate::arguments::{Memory, Out, text};
use crate::call::{CallResult, call, invalid};
use crate::core::{Gathering, JOBS, outlive_job};
use crate::save::{outlive_saving, save};
use crate::status::outlive_status;
use std::ffi::{c_char, c_uint, c_void};

/// Begins a checkpoint of regions that outlive_region() names one by one; the protected regions do
/// not matter. outlive_end() saves it. `label` is a label for it, or NULL; see
/// outlive_next_label().
///
/// A job has at most one such checkpoint at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_begin(
    job: *mut outlive_job,
    label: *const c_char,
) -> outlive_status {
    call(|| {
        let core = JOBS.get(job)?;
        // SAFETY: the caller gives a text that ends with a zero.
        let label = (!label.is_null()).then(|| unsafe { text(label, "the label") }).transpose()?;
        let mut gathering = core.gathering();
        if gathering.is_some() {
            return Err(invalid(format!(
                "a checkpoint of job {} was begun already: call outlive_end or outlive_cancel first",
                core.job().name()
            )));
        }
        *gathering = Some(Gathering::default());
        if let Some(label) = label {
            label.clone_into(&mut core.next().label);
        }
        Ok(())
    })
}

/// Adds an array to the checkpoint that outlive_begin() began. The arguments are those of
/// outlive_protect(). outlive reads the memory until outlive_end() returns, and it must stay until
/// then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_region(
    job: *mut outlive_job,
    name: *const c_char,
    memory: *const c_void,
    dtype: *const c_char,
    ndim: usize,
    shape: *const usize,
) -> outlive_status {
    // SAFETY: passed on to the caller.
    call(|| add(job, unsafe { Memory::array(name, memory, dtype, ndim, shape)? }))
}

/// Adds `bytes` bytes, as an array of OUTLIVE_UINT8; otherwise as outlive_region().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_region_bytes(
    job: *mut outlive_job,
    name: *const c_char,
    memory: *const c_void,
    bytes: usize,
) -> outlive_status {
    // SAFETY: passed on to the caller.
    call(|| add(job, unsafe { Memory::plain(name, memory, bytes)? }))
}

fn add(job: *mut outlive_job, memory: Memory) -> CallResult {
    let core = JOBS.get(job)?;
    let mut gathering = core.gathering();
    let Some(begun) = gathering.as_mut() else {
        return Err(invalid(format!(
            "no checkpoint of job {} was begun: call outlive_begin first",
            core.job().name()
        )));
    };
    if begun.regions.iter().any(|region| region.name == memory.name) {
        return Err(invalid(format!(
            "the checkpoint has a region {:?} already: give each its own name",
            memory.name
        )));
    }
    begun.regions.push(memory);
    Ok(())
}

/// Saves the checkpoint that outlive_begin() began, as outlive_save() does, and closes it even
/// after an error. Until this returns, no thread may change the memory of its regions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_end(
    job: *mut outlive_job,
    flags: c_uint,
    saving: *mut *mut outlive_saving,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::optional(saving) };
        out.set(std::ptr::null_mut());
        let core = JOBS.get(job)?;
        let Some(Gathering { regions }) = core.gathering().take() else {
            let nothing = invalid(format!(
                "no checkpoint of job {} was begun: call outlive_begin first",
                core.job().name()
            ));
            return Err(core.declined(&core.turn()?, nothing));
        };
        save(&core, flags, &out, &|_| Ok(regions.clone()))
    })
}

/// Drops the checkpoint that outlive_begin() began, and the notes for it. Does nothing without one.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_cancel(job: *mut outlive_job) -> outlive_status {
    call(|| {
        let core = JOBS.get(job)?;
        if core.gathering().take().is_some() {
            *core.next() = Default::default();
        }
        Ok(())
    })
}
