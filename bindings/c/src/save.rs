//! Saves, and the handles by which a program waits for them.
#![allow(unsafe_code)]

use crate::arguments::{Memory, Out, texts};
use crate::call::{CallResult, Failure, call, invalid};
use crate::core::{Core, JOBS, outlive_job};
use crate::exit;
use crate::handles::Handles;
use crate::status::outlive_status;
use outlive_store::{SaveHandle, SaveStats};
use outlive_types::Error;
use std::ffi::{c_char, c_int, c_uint};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

/// Save if it is due; see outlive_job_open().
pub const OUTLIVE_DUE: c_uint = 0;
/// Save now, whether it is due or not.
pub const OUTLIVE_FORCE: c_uint = 1;
/// Return only when the checkpoint is committed, or has failed.
pub const OUTLIVE_WAIT: c_uint = 2;

/// A save that is under way or over.
pub struct outlive_saving {
    _private: (),
}

static SAVES: Handles<SaveHandle, outlive_saving> = Handles::new("save", 3);

/// Figures of a committed save. Bytes are exact.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct outlive_figures {
    /// The epoch of the checkpoint.
    pub epoch: u64,
    /// All bytes of its regions.
    pub state_bytes: u64,
    /// Bytes of the pages that have changed since the last save.
    pub changed_bytes: u64,
    /// Bytes of zero pages among them, which take no space.
    pub zero_bytes: u64,
    /// Bytes that the pool had already.
    pub known_bytes: u64,
    /// Bytes of the new chunks before compression.
    pub raw_bytes: u64,
    /// All bytes written.
    pub new_bytes: u64,
    /// Seconds for which the program stood still.
    pub stall_s: f64,
    /// Seconds from the call to the commit.
    pub total_s: f64,
}

impl outlive_figures {
    fn of(stats: &SaveStats) -> outlive_figures {
        let SaveStats { epoch, state_bytes, changed_bytes, zero_bytes, .. } = *stats;
        let SaveStats { known_bytes, raw_bytes, new_bytes, .. } = *stats;
        let (stall_s, total_s) = (stats.stall.as_secs_f64(), stats.total.as_secs_f64());
        outlive_figures {
            epoch,
            state_bytes,
            changed_bytes,
            zero_bytes,
            known_bytes,
            raw_bytes,
            new_bytes,
            stall_s,
            total_s,
        }
    }
}

/// Saves all protected regions, if a save is due. Returns when the program may change its memory
/// again. A background thread writes the data that changed since the last save. If another save of
/// the job is under way, this first waits for it.
///
/// Until it returns, no thread may change the protected memory.
///
/// `flags`: OUTLIVE_DUE, or OUTLIVE_FORCE and OUTLIVE_WAIT, joined by |. `*saving` is the handle of
/// the save, or NULL if nothing was saved; free it with outlive_save_free(). `saving` may be NULL.
///
/// Returns the failure of an earlier save if no call has returned it yet; then no save has begun.
/// OUTLIVE_FENCED: see outlive_job_take_over().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_save(
    job: *mut outlive_job,
    flags: c_uint,
    saving: *mut *mut outlive_saving,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::optional(saving) };
        save(&*JOBS.get(job)?, flags, &out, &|core| Ok(core.regions().clone()))
    })
}

/// Saves the protected regions with these `count` names, and no others; otherwise as
/// outlive_save(). The checkpoint has only these.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_save_some(
    job: *mut outlive_job,
    names: *const *const c_char,
    count: usize,
    flags: c_uint,
    saving: *mut *mut outlive_saving,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::optional(saving) };
        out.set(null_mut());
        let core = JOBS.get(job)?;
        // SAFETY: the caller gives a list of `count` texts.
        let names = unsafe { texts(names, count, "region's name") };
        save(&core, flags, &out, &|core| chosen(core, names.as_ref().map_err(Failure::clone)?))
    })
}

/// The protected regions with these names.
pub(crate) fn chosen(core: &Core, names: &[String]) -> Result<Vec<Memory>, Failure> {
    let regions = core.regions();
    let named = |name: &String| {
        let found = regions.iter().find(|region| region.name == *name).cloned();
        found.ok_or_else(|| {
            invalid(format!("no region {name:?} is protected: protect it, or leave it out"))
        })
    };
    names.iter().map(named).collect()
}

/// Saves the result of `regions`, which runs once no other call of the job does.
pub(crate) fn save(
    core: &Core,
    flags: c_uint,
    out: &Out<*mut outlive_saving>,
    regions: &dyn Fn(&Core) -> Result<Vec<Memory>, Failure>,
) -> CallResult {
    out.set(null_mut());
    if flags & !(OUTLIVE_FORCE | OUTLIVE_WAIT) != 0 {
        let wrong = invalid(format!(
            "flags = {flags:#x}: must be OUTLIVE_DUE, or OUTLIVE_FORCE and OUTLIVE_WAIT, joined by |"
        ));
        return Err(core.declined(&core.turn()?, wrong));
    }
    // In a group all ranks ask this together; else a rank that need not save need not wait.
    let asking = core.job().is_group().then(|| core.turn()).transpose()?;
    let is_due = core.client.due()?;
    if !(is_due || flags & OUTLIVE_FORCE != 0 || core.next().forces()) {
        return Ok(());
    }
    let turn = asking.map_or_else(|| core.turn(), Ok)?;
    let memory = regions(core).and_then(|memory| match memory.is_empty() {
        false => Ok(memory),
        true => Err(invalid(format!(
            "job {} has nothing to save: first protect some memory",
            core.job().name()
        ))),
    });
    let memory = memory.map_err(|failure| core.declined(&turn, failure))?;
    let taken = std::mem::take(&mut *core.next());
    let notes = match taken.to_notes() {
        Ok(notes) => notes,
        Err(error) => {
            *core.next() = taken;
            return Err(core.declined(&turn, error.into()));
        }
    };
    let regions = memory.iter().map(Memory::region).collect();
    let is_last = core.client.saves_to_stop();
    let handle = match core.client.save(regions, Vec::new(), notes) {
        Ok(handle) => handle,
        Err(error) => {
            // They are for a later checkpoint.
            *core.next() = taken;
            return Err(error.into());
        }
    };
    drop(turn);
    if flags & OUTLIVE_WAIT != 0 || is_last || exit::has_ended() {
        // Of a request to stop, other ranks may not know yet: they are in their next call already.
        let keepalive = is_last.then(|| core.job().keepalive());
        let settled = core.job().settle_save(&handle);
        drop(keepalive);
        if is_last {
            core.client.saved_to_stop(&handle);
        }
        settled?;
    }
    core.client.wait_if_full();
    if out.is_wanted() {
        out.set(SAVES.add(Arc::new(handle)));
    }
    Ok(())
}

fn settled(handle: &SaveHandle) -> Result<SaveStats, Failure> {
    let outcome = handle.wait(None).ok_or_else(|| Error::bug("a wait without limit ended"))?;
    Ok(outcome?)
}

/// Waits until a save is committed. Returns its failure if it fails, also at later calls. NULL is a
/// save that was not due.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_wait(saving: *mut outlive_saving) -> outlive_status {
    call(|| {
        if saving.is_null() {
            return Ok(());
        }
        settled(&*SAVES.get(saving)?).map(drop)
    })
}

/// Waits for a save for at most `timeout_s` seconds. `*done` is 1 if the save is over, else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_wait_for(
    saving: *mut outlive_saving,
    timeout_s: f64,
    done: *mut c_int,
) -> outlive_status {
    call(|| {
        if timeout_s.is_nan() {
            return Err(invalid("timeout_s is not a number: give seconds, from 0"));
        }
        // SAFETY: the caller gives NULL, or a writable address.
        let done = unsafe { Out::new(done, "the answer")? };
        // A time beyond the range of a duration means forever.
        wait_for(saving, Duration::try_from_secs_f64(timeout_s.max(0.0)).ok(), &done)
    })
}

/// Sets `*done` to 1 if a save is over, else to 0. Never waits. Returns the failure of a save that
/// has failed. NULL is a save that was not due.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_test(
    saving: *mut outlive_saving,
    done: *mut c_int,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let done = unsafe { Out::new(done, "the answer")? };
        wait_for(saving, Some(Duration::ZERO), &done)
    })
}

fn wait_for(saving: *mut outlive_saving, limit: Option<Duration>, done: &Out<c_int>) -> CallResult {
    done.set(0);
    if saving.is_null() {
        done.set(1);
        return Ok(());
    }
    if let Some(outcome) = SAVES.get(saving)?.wait(limit) {
        done.set(1);
        outcome?;
    }
    Ok(())
}

/// Returns the epoch that a save's checkpoint has once it is committed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_save_epoch(
    saving: *mut outlive_saving,
    epoch: *mut u64,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::new(epoch, "the epoch")? };
        out.set(SAVES.get(saving)?.epoch());
        Ok(())
    })
}

/// Waits until a save is committed, and returns its figures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_save_figures(
    saving: *mut outlive_saving,
    figures: *mut outlive_figures,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::new(figures, "the figures")? };
        out.set(outlive_figures::of(&settled(&*SAVES.get(saving)?)?));
        Ok(())
    })
}

/// Frees the handle of a save. A save under way goes on; if it fails, the job's next save or its
/// close returns the failure. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_save_free(saving: *mut outlive_saving) -> outlive_status {
    call(|| {
        if !saving.is_null() {
            SAVES.take(saving)?;
        }
        Ok(())
    })
}
