//! Memory of other packages' arrays by DLPack, for the dtypes that NumPy does not know. The
//! structures are those of `dlpack.h`, version 1; an exporter may still use the older ones.
#![allow(unsafe_code)]

use crate::named::named;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::{CStr, c_void};
use std::os::raw::c_int;

/// Devices whose memory the processor reaches: its own, and memory that CUDA and ROCm pin for it.
const HOST_DEVICES: [i32; 3] = [1, 3, 11];
const READ_ONLY: u64 = 1;

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: i32,
    _device_number: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    offset_bytes: u64,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    _context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct Versioned {
    major: u32,
    _minor: u32,
    _context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// Contents of a capsule, given back when this is dropped.
enum Owned {
    Plain(*mut Managed),
    Versioned(*mut Versioned),
}

impl Drop for Owned {
    fn drop(&mut self) {
        // The GIL is held: a function that Python called drops this, or a Python object that owns
        // it.
        match *self {
            // SAFETY: the pointer came from a capsule that is marked as used, so only this code
            // gives it back, and it does so once. `borrow` has checked that it is not null.
            Owned::Plain(held) => unsafe {
                if let Some(delete) = (*held).deleter {
                    delete(held);
                }
            },
            // SAFETY: as above.
            Owned::Versioned(held) => unsafe {
                if let Some(delete) = (*held).deleter {
                    delete(held);
                }
            },
        }
    }
}

/// Bytes of another package's array, as a buffer. While this exists, the array keeps them at their
/// address.
#[pyclass(frozen, module = "outlive._core")]
pub struct Lent {
    _owned: Owned,
    start: *mut u8,
    length: isize,
    read_only: bool,
}

// SAFETY: it is an address and the owner of that memory; both are used only with the GIL held.
unsafe impl Send for Lent {}
// SAFETY: as above; nothing of it changes.
unsafe impl Sync for Lent {}

#[pymethods]
impl Lent {
    /// Fills `view` for Python's buffer protocol.
    ///
    /// # Safety
    /// Python's buffer protocol calls it, with a writable view.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let lent = slf.get();
        // SAFETY: `view` may be written, by the protocol. The bytes stay as long as `lent`, and the
        // filled view holds a reference to it.
        let status = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                lent.start.cast(),
                lent.length,
                c_int::from(lent.read_only),
                flags,
            )
        };
        if status == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// Takes a capsule from `__dlpack__`. Before version 1 a capsule cannot say that its memory is
/// read-only, so `is_mutable` does for those. Returns the array's memory, from its lowest byte to
/// its highest, its dtype, its extents, its strides in bytes, and the offset of its first element.
#[pyfunction(name = "borrow_dlpack")]
pub fn borrow<'py>(capsule: &Bound<'py, PyAny>, is_mutable: bool) -> PyResult<Bound<'py, PyDict>> {
    let py = capsule.py();
    let owned = take(capsule)?;
    let (tensor, flags) = match owned {
        // SAFETY: the exporter's structure stays until it is given back, which `owned` does.
        Owned::Plain(held) => unsafe { (&(*held).tensor, if is_mutable { 0 } else { READ_ONLY }) },
        Owned::Versioned(held) => {
            // SAFETY: as above. All versions agree on the fields up to `flags`.
            let major = unsafe { (*held).major };
            if major != 1 {
                return Err(refused(format!("it is of DLPack {major}, and this knows 1")));
            }
            // SAFETY: as above; this is the structure of version 1.
            unsafe { (&(*held).tensor, (*held).flags) }
        }
    };
    if !HOST_DEVICES.contains(&tensor.device) {
        return Err(refused("its memory is on a device: copy it to the host".to_owned()));
    }
    let dimensions = usize::try_from(tensor.dimensions).unwrap_or(0);
    // SAFETY: the exporter gives as many extents as dimensions; and as many strides, or none.
    let (shape, strides) =
        unsafe { (list(tensor.shape, dimensions), Some(list(tensor.strides, dimensions))) };
    let strides = strides.filter(|_| !tensor.strides.is_null());
    let item_bits = u64::from(tensor.bits) * u64::from(tensor.lanes);
    if item_bits == 0 || !item_bits.is_multiple_of(8) {
        return Err(refused(format!("its elements have {item_bits} bits, which are no bytes")));
    }
    let too_large = || refused("it is larger than memory can be".to_owned());
    let span = Span::of(&shape, strides.as_deref(), item_bits / 8).ok_or_else(too_large)?;
    let first = tensor
        .data
        .cast::<u8>()
        .wrapping_add(usize::try_from(tensor.offset_bytes).map_err(|_| too_large())?);
    let before = usize::try_from(span.before).map_err(|_| too_large())?;
    let length = isize::try_from(span.length).map_err(|_| too_large())?;
    if first.is_null() && length > 0 {
        return Err(refused("it has no memory".to_owned()));
    }
    let dtype = named!(py; ..tensor { code, bits, lanes },);
    let lent = Lent {
        start: first.wrapping_sub(before),
        length,
        read_only: flags & READ_ONLY != 0,
        _owned: owned,
    };
    Ok(named!(py;
        lent: Bound::new(py, lent)?,
        dtype: dtype,
        shape: shape,
        strides: span.strides,
        offset: span.before,
    ))
}

/// Marks a capsule as used and takes its contents.
fn take(capsule: &Bound<'_, PyAny>) -> PyResult<Owned> {
    const NAMES: [(&CStr, &CStr); 2] =
        [(c"dltensor_versioned", c"used_dltensor_versioned"), (c"dltensor", c"used_dltensor")];
    for (name, used) in NAMES {
        // SAFETY: any live object may be asked, and `PyCapsule_GetPointer` returns no null pointer
        // for a valid capsule. The new name is static.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) == 0 {
                continue;
            }
            let held = ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr());
            if held.is_null() || ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) != 0 {
                return Err(PyErr::fetch(capsule.py()));
            }
            return Ok(match name == c"dltensor" {
                true => Owned::Plain(held.cast()),
                false => Owned::Versioned(held.cast()),
            });
        }
    }
    Err(refused("`__dlpack__` gave no capsule of a tensor".to_owned()))
}

fn refused(why: String) -> PyErr {
    PyBufferError::new_err(why)
}

/// Copies `length` numbers.
///
/// # Safety
/// `numbers` must be null or point to `length` numbers.
unsafe fn list(numbers: *const i64, length: usize) -> Vec<i64> {
    if numbers.is_null() || length == 0 {
        return Vec::new();
    }
    // SAFETY: the caller promises this.
    unsafe { std::slice::from_raw_parts(numbers, length) }.to_vec()
}

/// The bytes that an array covers.
struct Span {
    /// Bytes below its first element.
    before: u64,
    length: u64,
    /// In bytes.
    strides: Vec<i64>,
}

impl Span {
    /// `None` if a number does not fit.
    fn of(shape: &[i64], strides: Option<&[i64]>, item_bytes: u64) -> Option<Span> {
        let item = i64::try_from(item_bytes).ok()?;
        let strides = match strides {
            Some(strides) => strides.iter().map(|s| s.checked_mul(item)).collect::<Option<_>>()?,
            None => {
                let mut step = item;
                let mut strides = Vec::with_capacity(shape.len());
                for extent in shape.iter().rev() {
                    strides.push(step);
                    step = step.checked_mul((*extent).max(1))?;
                }
                strides.reverse();
                strides
            }
        };
        if shape.iter().any(|extent| *extent <= 0) {
            return Some(Span { before: 0, length: 0, strides });
        }
        let (mut lowest, mut highest) = (0i64, item);
        for (extent, stride) in shape.iter().zip(&strides) {
            let reach = stride.checked_mul(extent - 1)?;
            if reach < 0 {
                lowest = lowest.checked_add(reach)?;
            } else {
                highest = highest.checked_add(reach)?;
            }
        }
        let length = u64::try_from(highest.checked_sub(lowest)?).ok()?;
        Some(Span { before: lowest.unsigned_abs(), length, strides })
    }
}
