//! Restores into the program's memory.
#![allow(unsafe_code)]

use crate::arguments::{Memory, Out, texts};
use crate::call::{Failure, call, invalid};
use crate::core::{Core, JOBS, outlive_job};
use crate::save::chosen;
use crate::status::outlive_status;
use outlive_client::{Destination, NamedMemory, Offer, WritePermit, wish_for};
use outlive_store::Select;
use outlive_types::{Epoch, Error, RegionDesc};
use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// Selects the checkpoint for an epoch of the interface.
pub(crate) fn select(epoch: u64) -> Select {
    if epoch == 0 { Select::Newest } else { Select::Epoch(epoch) }
}

/// Fills all protected regions from the newest whole checkpoint (`epoch` 0), or from this one.
/// Every byte is verified. Program and checkpoint must have the same regions, with the same dtypes
/// and shapes; otherwise it returns OUTLIVE_INVALID and writes nothing. `*restored` is the epoch of
/// the checkpoint; `restored` may be NULL.
///
/// With `epoch` 0, a damaged checkpoint is skipped with a warning, and the next older one taken.
/// Any other epoch is never replaced. Memory is filled while the checkpoint is read, so after an
/// error, such as OUTLIVE_DAMAGED, it may hold parts of a checkpoint. Until this returns, no thread
/// may use the protected memory.
///
/// Returns OUTLIVE_NOTHING if the job has no checkpoint: the program begins from its start.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_restore(
    job: *mut outlive_job,
    epoch: u64,
    restored: *mut u64,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::optional(restored) };
        out.set(0);
        let core = JOBS.get(job)?;
        let turn = core.turn()?;
        let memory = core.regions().clone();
        if memory.is_empty() {
            return Err(core.declined(&turn, nothing_protected(&core)));
        }
        // The restore overwrites the memory, so the baseline no longer describes it.
        core.client.detach();
        let permit = Arc::new(WritePermit::default());
        let mut targets = || memory.iter().map(target).collect();
        let outcome = core.client.restore_named(select(epoch), &permit, &mut targets);
        permit.withdraw();
        let taken = outcome?.ok_or_else(|| no_checkpoint(&core))?;
        out.set(taken.epoch);
        core.client.roll_back_gate()?;
        Ok(())
    })
}

/// Fills the protected regions with these `count` names, and no others; otherwise as
/// outlive_restore(). The checkpoint may have more regions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_restore_some(
    job: *mut outlive_job,
    epoch: u64,
    names: *const *const c_char,
    count: usize,
    restored: *mut u64,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::optional(restored) };
        out.set(0);
        let core = JOBS.get(job)?;
        // SAFETY: the caller gives a list of `count` texts.
        let names = unsafe { texts(names, count, "region's name") };
        let turn = core.turn()?;
        let memory = names.and_then(|names| chosen(&core, &names));
        let memory = memory.map_err(|failure| core.declined(&turn, failure))?;
        if memory.is_empty() {
            return Err(core.declined(&turn, nothing_protected(&core)));
        }
        core.client.detach();
        out.set(fill(&core, epoch, &memory, true)?);
        Ok(())
    })
}

/// Copies one region of a checkpoint, protected or not, into a buffer of exactly `bytes` bytes.
/// `epoch` and `*restored` are those of outlive_restore().
///
/// Returns OUTLIVE_NOTHING if the job has no checkpoint, or the checkpoint no such region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_copy_region(
    job: *mut outlive_job,
    epoch: u64,
    name: *const c_char,
    buffer: *mut c_void,
    bytes: usize,
    restored: *mut u64,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::optional(restored) };
        out.set(0);
        let core = JOBS.get(job)?;
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        let memory = unsafe { Memory::plain(name, buffer, bytes) };
        let turn = core.turn()?;
        let memory = memory.map_err(|failure| core.declined(&turn, failure))?;
        out.set(fill(&core, epoch, &[memory], false)?);
        Ok(())
    })
}

fn target(memory: &Memory) -> NamedMemory {
    let Memory { name, dtype, shape, distribution, .. } = memory.clone();
    NamedMemory { name, dtype, shape, memory: memory.to_fill(), distribution }
}

/// Fills some regions. With `is_same`, dtype and shape must be those of the checkpoint; else only
/// the length.
fn fill(core: &Core, epoch: u64, wanted: &[Memory], is_same: bool) -> Result<Epoch, Failure> {
    let lacks = Cell::new(None);
    let mut ask = |offer: Offer| -> outlive_types::Result<Vec<Destination>> {
        let mut destinations: Vec<Destination> =
            offer.regions.iter().map(|_| Destination::Nothing).collect();
        for memory in wanted {
            let Some(at) = offer.regions.iter().position(|region| region.name == memory.name)
            else {
                let text = format!("checkpoint {} has no region {:?}", offer.epoch, memory.name);
                lacks.set(Some(text.clone()));
                return Err(Error::invalid(text));
            };
            let region = &offer.regions[at];
            if !is_same && region.bytes != memory.bytes as u64 {
                return Err(Error::invalid(format!(
                    "region {:?} of checkpoint {} has {} bytes, and the buffer {}: give one of that length",
                    region.name, offer.epoch, region.bytes, memory.bytes
                )));
            }
            if !is_same && offer.ranks != core.job().ranks() && is_part(region) {
                return Err(Error::invalid(format!(
                    "{} ranks have saved parts of {:?} of checkpoint {}: protect the part that is wanted with \
                     outlive_protect_sharded, and restore it",
                    offer.ranks, region.name, offer.epoch
                )));
            }
            if !matches!(destinations[at], Destination::Nothing) {
                return Err(Error::invalid(format!(
                    "the region {:?} is named twice: name each once",
                    memory.name
                )));
            }
            destinations[at] = match is_same {
                true => wish_for(&offer, region, target(memory))?,
                false => Destination::Into(memory.to_fill()),
            };
        }
        Ok(destinations)
    };
    let permit = Arc::new(WritePermit::default());
    let outcome = core.client.restore(select(epoch), &permit, &mut ask);
    permit.withdraw();
    match (outcome, lacks.take()) {
        (Err(_), Some(text)) => Err(Failure::Nothing(text)),
        (outcome, _) => Ok(outcome?.ok_or_else(|| no_checkpoint(core))?.restored.epoch),
    }
}

/// The failure for a job without a checkpoint.
pub(crate) fn no_checkpoint(core: &Core) -> Failure {
    Failure::Nothing(format!("job {} has no checkpoint yet", core.job().name()))
}

fn nothing_protected(core: &Core) -> Failure {
    invalid(format!(
        "job {} has no memory to restore into: first protect what is to be filled",
        core.job().name()
    ))
}

fn is_part(region: &RegionDesc) -> bool {
    region.distribution.global_shape().is_some()
}
