//! Inspects a job before a restore: its epochs, and the regions of a checkpoint.
#![allow(unsafe_code)]

use crate::arguments::{Out, region_name, text};
use crate::call::{Failure, call, invalid};
use crate::core::{JOBS, outlive_job};
use crate::handles::Handles;
use crate::restore::{no_checkpoint, select};
use crate::status::outlive_status;
use outlive_store::{MemoryImage, Select};
use outlive_types::{Distribution, RegionDesc};
use std::ffi::{CString, c_char, c_int};
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// The region belongs to its rank alone.
pub const OUTLIVE_LOCAL: c_int = 0;
/// The region is a part of a global array: see outlive_protect_sharded().
pub const OUTLIVE_SHARDED: c_int = 1;
/// Every rank has the same bytes: see outlive_protect_replicated().
pub const OUTLIVE_REPLICATED: c_int = 2;
/// The region is a part of a global array in blocks: see outlive_protect_cyclic() and
/// outlive_checkpoint_blocks().
pub const OUTLIVE_CYCLIC: c_int = 3;

/// A checkpoint that a program inspects.
pub struct outlive_checkpoint {
    _private: (),
}

/// A region of a checkpoint. The texts and lists belong to the checkpoint's handle, and stay valid
/// until it is closed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct outlive_region_info {
    /// Its name.
    pub name: *const c_char,
    /// Type of its elements, with the byte order, such as "<f8".
    pub dtype: *const c_char,
    /// Number of dimensions.
    pub ndim: usize,
    /// Its extents, the slowest first.
    pub shape: *const usize,
    /// Its length in bytes.
    pub bytes: usize,
    /// OUTLIVE_LOCAL, OUTLIVE_SHARDED, OUTLIVE_REPLICATED or OUTLIVE_CYCLIC.
    pub distribution: c_int,
    /// Extents of the global array that it is a part of; NULL if it is no part of one.
    pub global_shape: *const usize,
    /// Its offset in the global array; NULL if it is no part of one.
    pub offset: *const usize,
}

/// A region, with the fields that C sees.
#[derive(Debug)]
struct Shown {
    name: CString,
    dtype: CString,
    shape: Vec<usize>,
    bytes: usize,
    distribution: c_int,
    global_shape: Option<Vec<usize>>,
    offset: Option<Vec<usize>>,
    /// Block and stride along each dimension.
    blocks: Option<(Vec<usize>, Vec<usize>)>,
}

/// The object of a checkpoint's handle. C gets addresses of its contents, so it never changes.
#[derive(Debug)]
struct CheckpointView {
    epoch: u64,
    label: CString,
    metrics: Vec<(String, f64)>,
    regions: Vec<Shown>,
}

static CHECKPOINTS: Handles<CheckpointView, outlive_checkpoint> = Handles::new("checkpoint", 4);

fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\\0")).unwrap_or_default()
}

fn extents(extents: &[u64]) -> Vec<usize> {
    extents.iter().map(|extent| *extent as usize).collect()
}

impl Shown {
    fn of(region: &RegionDesc) -> Shown {
        let mut blocks = None;
        let (distribution, global_shape, offset) = match &region.distribution {
            Distribution::Local => (OUTLIVE_LOCAL, None, None),
            Distribution::Replicated => (OUTLIVE_REPLICATED, None, None),
            Distribution::Subarray { global_shape, offset } => {
                (OUTLIVE_SHARDED, Some(extents(global_shape)), Some(extents(offset)))
            }
            Distribution::BlockCyclic { global_shape, offset, block, stride } => {
                blocks = Some((extents(block), extents(stride)));
                (OUTLIVE_CYCLIC, Some(extents(global_shape)), Some(extents(offset)))
            }
        };
        Shown {
            name: c_text(&region.name),
            dtype: c_text(&region.dtype),
            shape: extents(&region.shape),
            bytes: region.bytes as usize,
            distribution,
            global_shape,
            offset,
            blocks,
        }
    }

    fn info(&self) -> outlive_region_info {
        outlive_region_info {
            name: self.name.as_ptr(),
            dtype: self.dtype.as_ptr(),
            ndim: self.shape.len(),
            shape: self.shape.as_ptr(),
            bytes: self.bytes,
            distribution: self.distribution,
            global_shape: self.global_shape.as_ref().map_or(null(), Vec::as_ptr),
            offset: self.offset.as_ref().map_or(null(), Vec::as_ptr),
        }
    }
}

impl CheckpointView {
    fn of(image: &MemoryImage) -> CheckpointView {
        let manifest = image.manifest();
        CheckpointView {
            epoch: image.epoch(),
            label: c_text(&manifest.remarks.label),
            metrics: manifest.metrics.clone(),
            regions: image.regions().iter().map(Shown::of).collect(),
        }
    }
}

/// Sets `*epoch` to the epoch of the newest checkpoint, which a restore would try first.
///
/// Returns OUTLIVE_NOTHING if the job has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_newest(job: *mut outlive_job, epoch: *mut u64) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::new(epoch, "the epoch")? };
        out.set(0);
        let core = JOBS.get(job)?;
        core.settle_last();
        let found = core.job().image(Select::Newest)?;
        let (image, _) = found.ok_or_else(|| no_checkpoint(&core))?;
        out.set(image.epoch());
        Ok(())
    })
}

/// Lists the epochs of the committed checkpoints of memory, oldest first. `*count` is their number.
/// If there are more than `capacity`, only the newest `capacity` are written to `epochs`, which may
/// be NULL if `capacity` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_epochs(
    job: *mut outlive_job,
    epochs: *mut u64,
    capacity: usize,
    count: *mut usize,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::new(count, "the number of epochs")? };
        out.set(0);
        if capacity > 0 && (epochs.is_null() || !epochs.is_aligned()) {
            return Err(invalid(format!("the place for {capacity} epochs is no list: give one")));
        }
        let core = JOBS.get(job)?;
        core.settle_last();
        let found = core.job().epochs()?;
        let memory = found.iter().filter(|info| !info.manifest.is_of_files());
        let found: Vec<u64> = memory.map(|info| info.epoch).collect();
        let newest = found.len().saturating_sub(capacity);
        for (at, epoch) in found[newest..].iter().enumerate() {
            // SAFETY: the caller gives room for `capacity` epochs, and it is neither NULL nor
            // misaligned.
            unsafe { epochs.add(at).write(*epoch) };
        }
        out.set(found.len());
        Ok(())
    })
}

/// Opens a checkpoint for inspection: the newest that can be opened (`epoch` 0), or this one. It
/// reads only the catalog; of several ranks, that of this rank's number. `*checkpoint` is the
/// handle; close it with outlive_checkpoint_close().
///
/// Returns OUTLIVE_NOTHING if the job has no checkpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_checkpoint_open(
    job: *mut outlive_job,
    epoch: u64,
    checkpoint: *mut *mut outlive_checkpoint,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::new(checkpoint, "the checkpoint")? };
        out.set(null_mut());
        let core = JOBS.get(job)?;
        core.settle_last();
        let (job, select) = (core.job(), select(epoch));
        let found = job.image_of_rank(select, job.rank())?;
        let (image, _) = found.ok_or_else(|| no_checkpoint(&core))?;
        out.set(CHECKPOINTS.add(Arc::new(CheckpointView::of(&image))));
        Ok(())
    })
}

/// Closes the handle of a checkpoint; texts and lists from it are invalid then. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_checkpoint_close(checkpoint: *mut outlive_checkpoint) -> outlive_status {
    call(|| {
        if !checkpoint.is_null() {
            CHECKPOINTS.take(checkpoint)?;
        }
        Ok(())
    })
}

/// Returns a checkpoint's epoch, the number of its regions, and its label. Each address may be
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_checkpoint_about(
    checkpoint: *mut outlive_checkpoint,
    epoch: *mut u64,
    regions: *mut usize,
    label: *mut *const c_char,
) -> outlive_status {
    call(|| {
        let look = CHECKPOINTS.get(checkpoint)?;
        // SAFETY: the caller gives NULL, or writable addresses.
        let (epoch, regions, label) =
            unsafe { (Out::optional(epoch), Out::optional(regions), Out::optional(label)) };
        epoch.set(look.epoch);
        regions.set(look.regions.len());
        label.set(look.label.as_ptr());
        Ok(())
    })
}

/// Describes region number `index` of a checkpoint, from 0, in the order in which they were saved.
///
/// Returns OUTLIVE_NOTHING if it has no such region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_checkpoint_region(
    checkpoint: *mut outlive_checkpoint,
    index: usize,
    info: *mut outlive_region_info,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::new(info, "the region")? };
        let look = CHECKPOINTS.get(checkpoint)?;
        let region = look.regions.get(index).ok_or_else(|| {
            let (epoch, count) = (look.epoch, look.regions.len());
            Failure::Nothing(format!(
                "checkpoint {epoch} has {count} regions, and no number {index}"
            ))
        })?;
        out.set(region.info());
        Ok(())
    })
}

/// Describes the region of that name.
///
/// Returns OUTLIVE_NOTHING if the checkpoint has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_checkpoint_find(
    checkpoint: *mut outlive_checkpoint,
    name: *const c_char,
    info: *mut outlive_region_info,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::new(info, "the region")? };
        let look = CHECKPOINTS.get(checkpoint)?;
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        let name = unsafe { region_name(name)? };
        let mut regions = look.regions.iter();
        let found = regions.find(|region| region.name.as_bytes() == name.as_bytes());
        out.set(
            found
                .ok_or_else(|| {
                    let epoch = look.epoch;
                    Failure::Nothing(format!("checkpoint {epoch} has no region {name:?}"))
                })?
                .info(),
        );
        Ok(())
    })
}

/// Returns the block and the stride, along each dimension, of a region whose distribution is
/// OUTLIVE_CYCLIC: see outlive_protect_cyclic(). The lists belong to the checkpoint's handle, and
/// stay valid until it is closed.
///
/// Returns OUTLIVE_NOTHING if the checkpoint has no region of that name, or if it is not in blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_checkpoint_blocks(
    checkpoint: *mut outlive_checkpoint,
    name: *const c_char,
    block: *mut *const usize,
    stride: *mut *const usize,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or writable addresses.
        let outs = unsafe { (Out::new(block, "the block")?, Out::new(stride, "the stride")?) };
        outs.0.set(null());
        outs.1.set(null());
        let look = CHECKPOINTS.get(checkpoint)?;
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        let name = unsafe { region_name(name)? };
        let mut regions = look.regions.iter();
        let found = regions.find(|region| region.name.as_bytes() == name.as_bytes());
        let (block, stride) = found.and_then(|region| region.blocks.as_ref()).ok_or_else(|| {
            let epoch = look.epoch;
            Failure::Nothing(format!("checkpoint {epoch} has no region {name:?} that is in blocks"))
        })?;
        outs.0.set(block.as_ptr());
        outs.1.set(stride.as_ptr());
        Ok(())
    })
}

/// Returns a metric of a checkpoint: see outlive_next_metric().
///
/// Returns OUTLIVE_NOTHING if it has none of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_checkpoint_metric(
    checkpoint: *mut outlive_checkpoint,
    name: *const c_char,
    value: *mut f64,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::new(value, "the metric")? };
        let look = CHECKPOINTS.get(checkpoint)?;
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        let name = unsafe { text(name, "the metric's name")? };
        let found = look.metrics.iter().find(|(known, _)| known == name);
        let (_, value) = found.ok_or_else(|| {
            Failure::Nothing(format!("checkpoint {} has no metric {name:?}", look.epoch))
        })?;
        out.set(*value);
        Ok(())
    })
}
