//! Memory of Python objects by the buffer protocol: the only unsafe code of the Python front door.
#![allow(unsafe_code)]

use outlive_capture::Region;
use outlive_capture::fill::MutRegion;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::os::raw::c_int;

/// The contiguous memory of a Python object. While this exists the object keeps it where it is: an
/// array is not freed, a `bytearray` cannot be resized.
pub struct Buffer {
    // Boxed, since the exporter may rely on the address of the structure.
    view: Box<ffi::Py_buffer>,
    writable: bool,
}

// SAFETY: the view is only data; its memory is reached through `RawBytes` and the methods below
// only, under the rules stated there, and it is released with the GIL held (see `drop`).
unsafe impl Send for Buffer {}
// SAFETY: as above; there is no interior mutability.
unsafe impl Sync for Buffer {}

/// Address and length of a buffer, as one may send it to another thread.
#[derive(Clone, Copy, Debug)]
pub struct RawBytes {
    start: *mut u8,
    length: usize,
}

// SAFETY: it is only an address; whoever follows it must answer for that.
unsafe impl Send for RawBytes {}
// SAFETY: as above.
unsafe impl Sync for RawBytes {}

impl Buffer {
    /// The memory of `object`, to be read.
    ///
    /// # Errors
    /// `BufferError` or `TypeError` if it has none that is contiguous.
    pub fn read(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        Buffer::get(object, false)
    }

    /// The memory of `object`, to be filled.
    ///
    /// # Errors
    /// `BufferError` or `TypeError` if it has none that is contiguous and writable.
    pub fn write(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        Buffer::get(object, true)
    }

    fn get(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Buffer> {
        // No format is asked for: NumPy refuses to name one for dates, and nobody here needs it.
        let flags: c_int = if writable { ffi::PyBUF_WRITABLE } else { ffi::PyBUF_SIMPLE };
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: `object` is a live object and the GIL is held (it is `Bound`); `view` may be
        // written, and stays at its address until it is released.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        let buffer = Buffer { view, writable };
        if buffer.view.len < 0 || (buffer.view.buf.is_null() && buffer.view.len > 0) {
            return Err(PyBufferError::new_err("the object gives an impossible buffer"));
        }
        Ok(buffer)
    }

    /// Its length in bytes.
    pub fn length(&self) -> usize {
        self.view.len.unsigned_abs()
    }

    /// True if it cannot be written by way of the object.
    pub fn is_readonly(&self) -> bool {
        self.view.readonly != 0
    }

    /// Takes it on as memory that nobody has used yet; see [`outlive_io::fresh::offer`]. Answers what
    /// to tell people.
    ///
    /// # Safety
    /// It must be a private anonymous mapping that nobody has used, and stay one until what is answered
    /// is dropped.
    pub unsafe fn offer(&self) -> (outlive_io::fresh::Offered, Option<String>) {
        let start = self.view.buf.expose_provenance();
        // SAFETY: passed on to the caller.
        unsafe { outlive_io::fresh::offer(start..start + self.length()) }
    }

    /// Where it is.
    pub fn raw(&self) -> RawBytes {
        RawBytes { start: self.view.buf.cast(), length: self.length() }
    }

    /// Appends its bytes to `to`. The GIL is held, so no Python code runs meanwhile.
    pub fn copy_to(&self, _py: Python<'_>, to: &mut Vec<u8>) {
        if self.length() > 0 {
            // SAFETY: the exporter promises `length` readable bytes at `buf` until the release;
            // they are not null (checked in `get`), and `to` is memory of ours, so the two do not
            // overlap. The bytes are copied at once, no reference to them remains.
            to.extend_from_slice(unsafe {
                std::slice::from_raw_parts(self.view.buf.cast::<u8>(), self.length())
            });
        }
    }

    /// Fills it with `from`, which must be as long. The GIL is held.
    ///
    /// # Panics
    /// If the lengths differ, or it was not opened for writing.
    pub fn copy_from(&self, _py: Python<'_>, from: &[u8]) {
        assert!(self.writable && from.len() == self.length(), "the plan checked the lengths");
        if !from.is_empty() {
            // SAFETY: the exporter promises `length` writable bytes at `buf`; `from` is memory of
            // ours and as long, so the two do not overlap.
            unsafe {
                self.view.buf.cast::<u8>().copy_from_nonoverlapping(from.as_ptr(), from.len())
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Buffers are held by functions that Python called, so the GIL is at hand already.
        Python::attach(|_| {
            // SAFETY: the view was filled by `PyObject_GetBuffer`, is released once, and the GIL is
            // held.
            unsafe { ffi::PyBuffer_Release(&raw mut *self.view) }
        });
    }
}

impl RawBytes {
    /// Address of the first byte.
    pub fn address(&self) -> usize {
        self.start as usize
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Of bytes that the caller owns.
    pub fn of(bytes: &[u8]) -> RawBytes {
        RawBytes { start: bytes.as_ptr().cast_mut(), length: bytes.len() }
    }

    /// A region over these bytes.
    ///
    /// # Safety
    /// What [`Region::from_raw`] asks: as long as the region may be read, the buffer or slice that
    /// this came from must be kept, and the bytes must not be written.
    pub unsafe fn region(&self, name: &str, dtype: &str, shape: Vec<u64>) -> Region {
        // SAFETY: passed on to the caller.
        unsafe { Region::from_raw(name, dtype, shape, self.start, self.length) }
    }

    /// A region over these bytes, which nobody changes.
    ///
    /// # Safety
    /// What [`Region::from_constant`] asks: the buffer that this came from must be kept, and its bytes
    /// stay as they are, as long as anything frozen from the region exists.
    pub unsafe fn constant(&self, name: &str, dtype: &str, shape: Vec<u64>) -> Region {
        // SAFETY: passed on to the caller.
        unsafe { Region::from_constant(name, dtype, shape, self.start, self.length) }
    }

    /// Memory to be filled.
    ///
    /// # Safety
    /// What [`MutRegion::from_raw`] asks: it came from a writable buffer, which is kept until the
    /// region is dropped, or its advice has ended and nobody uses it any more; and nobody else uses the
    /// bytes meanwhile. (They count as
    /// initialised, also of `numpy.empty`: the memory was made outside of Rust.)
    pub unsafe fn to_fill(self) -> MutRegion {
        // SAFETY: passed on to the caller.
        unsafe { MutRegion::from_raw(self.start, self.length) }
    }
}
