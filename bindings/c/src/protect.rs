//! Protects the memory of a program: names it once, to be saved and restored.
#![allow(unsafe_code)]

use crate::arguments::{Memory, extents, region_name};
use crate::call::{CallResult, Failure, call};
use crate::core::{JOBS, outlive_job};
use crate::status::outlive_status;
use outlive_types::Distribution;
use std::ffi::{c_char, c_void};

/// Protects an array: from now on outlive_save() saves it, and outlive_restore() fills it.
///
/// `name` is the region's name in the checkpoint. A region of that name that is protected already
/// is replaced. `dtype` is the type of an element, such as OUTLIVE_FLOAT64 or "V24". `shape` has
/// `ndim` extents, the slowest first, as in C; a scalar has none. The array is contiguous. Nothing
/// is read yet. The memory must stay until it is unprotected, or the job is closed; outlive_save()
/// and outlive_restore() describe when it is used. It may be NULL if it has no bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_protect(
    job: *mut outlive_job,
    name: *const c_char,
    memory: *mut c_void,
    dtype: *const c_char,
    ndim: usize,
    shape: *const usize,
) -> outlive_status {
    // SAFETY: passed on to the caller, as everywhere here.
    call(|| protect(job, unsafe { Memory::array(name, memory, dtype, ndim, shape)? }))
}

/// Protects `bytes` bytes, as an array of OUTLIVE_UINT8; otherwise as outlive_protect().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_protect_bytes(
    job: *mut outlive_job,
    name: *const c_char,
    memory: *mut c_void,
    bytes: usize,
) -> outlive_status {
    // SAFETY: passed on to the caller.
    call(|| protect(job, unsafe { Memory::plain(name, memory, bytes)? }))
}

/// Protects a part of a global array, of which other ranks have other parts; otherwise as
/// outlive_protect(). The part of shape `shape` begins at `offset` of the array of shape
/// `global_shape`, each with `ndim` extents, at least one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_protect_sharded(
    job: *mut outlive_job,
    name: *const c_char,
    memory: *mut c_void,
    dtype: *const c_char,
    ndim: usize,
    shape: *const usize,
    global_shape: *const usize,
    offset: *const usize,
) -> outlive_status {
    call(|| {
        // SAFETY: passed on to the caller.
        let array = unsafe { Memory::array(name, memory, dtype, ndim, shape)? };
        // SAFETY: passed on to the caller.
        let global_shape = unsafe { extents(global_shape, ndim, "the global shape")? };
        // SAFETY: passed on to the caller.
        let offset = unsafe { extents(offset, ndim, "the offset")? };
        protect(job, array.distributed(Distribution::Subarray { global_shape, offset })?)
    })
}

/// Protects a part of a global array that is dealt out to the ranks in blocks, along each dimension
/// separately, as ScaLAPACK and MPI_Type_create_darray() do; otherwise as
/// outlive_protect_sharded().
///
/// Along each dimension, a block has `block` elements, and the next block begins `stride` elements
/// of the global array after it began. So element l of the part is element `offset + l / block *
/// stride + l % block` of the array. The last block may have fewer elements. In a grid of `p` ranks
/// along a dimension, number `r` has `offset` = r * block and `stride` = p * block. A dimension
/// that is not dealt out has `offset` 0, and its extent as `block` and `stride`, or 1 if that is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_protect_cyclic(
    job: *mut outlive_job,
    name: *const c_char,
    memory: *mut c_void,
    dtype: *const c_char,
    ndim: usize,
    shape: *const usize,
    global_shape: *const usize,
    offset: *const usize,
    block: *const usize,
    stride: *const usize,
) -> outlive_status {
    call(|| {
        // SAFETY: passed on to the caller.
        let array = unsafe { Memory::array(name, memory, dtype, ndim, shape)? };
        // SAFETY: passed on to the caller.
        let list = |first, what| unsafe { extents(first, ndim, what) };
        let (global_shape, offset) =
            (list(global_shape, "the global shape")?, list(offset, "the offset")?);
        let (block, stride) = (list(block, "the block")?, list(stride, "the stride")?);
        let distribution = Distribution::BlockCyclic { global_shape, offset, block, stride };
        protect(job, array.distributed(distribution)?)
    })
}

/// Protects an array of which every rank holds the same bytes; otherwise as outlive_protect().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_protect_replicated(
    job: *mut outlive_job,
    name: *const c_char,
    memory: *mut c_void,
    dtype: *const c_char,
    ndim: usize,
    shape: *const usize,
) -> outlive_status {
    call(|| {
        // SAFETY: passed on to the caller.
        let array = unsafe { Memory::array(name, memory, dtype, ndim, shape)? };
        protect(job, array.distributed(Distribution::Replicated)?)
    })
}

fn protect(job: *mut outlive_job, memory: Memory) -> CallResult {
    let core = JOBS.get(job)?;
    // Wait for a save or restore of another thread.
    let _turn = core.turn()?;
    let mut regions = core.regions();
    match regions.iter_mut().find(|region| region.name == memory.name) {
        Some(before) => *before = memory,
        None => regions.push(memory),
    }
    Ok(())
}

/// Ends the protection of a region; then its memory may go. Saved data of it stays.
///
/// Returns OUTLIVE_NOTHING if no region of that name is protected.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_unprotect(
    job: *mut outlive_job,
    name: *const c_char,
) -> outlive_status {
    call(|| {
        let core = JOBS.get(job)?;
        // SAFETY: passed on to the caller.
        let name = unsafe { region_name(name)? };
        let _turn = core.turn()?;
        let mut regions = core.regions();
        match regions.iter().position(|region| region.name == name) {
            Some(at) => regions.remove(at),
            None => return Err(Failure::Nothing(format!("no region {name:?} is protected"))),
        };
        Ok(())
    })
}

/// Ends the protection of all regions; then all memory may go.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_clear(job: *mut outlive_job) -> outlive_status {
    call(|| {
        let core = JOBS.get(job)?;
        let _turn = core.turn()?;
        core.regions().clear();
        Ok(())
    })
}
