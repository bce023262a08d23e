//! Memory of Python objects by the buffer protocol, with the unsafe code for it.
#![allow(unsafe_code)]

use outlive_capture::Region;
use outlive_capture::fill::MutRegion;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::os::raw::c_int;

/// The contiguous memory of a Python object. While this exists the memory stays at its address: an
/// array is not freed, a `bytearray` cannot be resized.
pub struct Buffer {
    // Boxed, since the exporter may rely on the address of the structure.
    view: Box<ffi::Py_buffer>,
    writable: bool,
}

// SAFETY: the view is only data. Its memory is reached only through `RawBytes` and the methods
// below, under the rules stated there, and it is released with the GIL held (see `drop`).
unsafe impl Send for Buffer {}
// SAFETY: as above; there is no interior mutability.
unsafe impl Sync for Buffer {}

/// Address and length of a buffer, which may go to another thread.
#[derive(Clone, Copy, Debug)]
pub struct RawBytes {
    start: *mut u8,
    length: usize,
}

// SAFETY: it is only an address; the code that dereferences it must prove that it may.
unsafe impl Send for RawBytes {}
// SAFETY: as above.
unsafe impl Sync for RawBytes {}

impl Buffer {
    /// Returns the memory of `object`, to be read.
    ///
    /// # Errors
    /// `BufferError` or `TypeError` if it has none that is contiguous.
    pub fn read(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        Buffer::get(object, false)
    }

    /// Returns the memory of `object`, to be filled.
    ///
    /// # Errors
    /// `BufferError` or `TypeError` if it has none that is contiguous and writable.
    pub fn write(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        Buffer::get(object, true)
    }

    fn get(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Buffer> {
        // Asks for no format: NumPy refuses to name one for dates, and no caller needs it.
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

    /// Returns its length in bytes.
    pub fn length(&self) -> usize {
        self.view.len.unsigned_abs()
    }

    /// Whether the object refuses writes to it.
    pub fn is_readonly(&self) -> bool {
        self.view.readonly != 0
    }

    /// Offers it as memory that no code has used yet; see [`outlive_io::fresh::offer`]. The second
    /// result is a notice for the user.
    ///
    /// # Safety
    /// It must be a private anonymous mapping that no code has used, and stay one until the first
    /// result is dropped.
    pub unsafe fn offer(&self) -> (outlive_io::fresh::Offered, Option<String>) {
        let start = self.view.buf.expose_provenance();
        // SAFETY: passed on to the caller.
        unsafe { outlive_io::fresh::offer(start..start + self.length()) }
    }

    /// Returns its address and length.
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

    /// Fills it with `from`, which must have the same length. The GIL is held.
    ///
    /// # Panics
    /// If the lengths differ, or it was not opened for writing.
    pub fn copy_from(&self, _py: Python<'_>, from: &[u8]) {
        assert!(self.writable && from.len() == self.length(), "the plan checked the lengths");
        if !from.is_empty() {
            // SAFETY: the exporter promises `length` writable bytes at `buf`; `from` is memory of
            // ours of the same length, so the two do not overlap.
            unsafe {
                self.view.buf.cast::<u8>().copy_from_nonoverlapping(from.as_ptr(), from.len())
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Functions that Python called hold buffers, so this thread has the GIL already.
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

    /// Address and length of bytes that the caller owns.
    pub fn of(bytes: &[u8]) -> RawBytes {
        RawBytes { start: bytes.as_ptr().cast_mut(), length: bytes.len() }
    }

    /// Makes a region over these bytes.
    ///
    /// # Safety
    /// As for [`Region::from_raw`]: while the region may be read, the caller keeps the buffer or
    /// slice of these bytes, and no code writes them.
    pub unsafe fn region(&self, name: &str, dtype: &str, shape: Vec<u64>) -> Region {
        // SAFETY: passed on to the caller.
        unsafe { Region::from_raw(name, dtype, shape, self.start, self.length) }
    }

    /// Makes a region over these bytes, which never change.
    ///
    /// # Safety
    /// As for [`Region::from_constant`]: while anything frozen from the region exists, the caller
    /// keeps the buffer of these bytes, and they do not change.
    pub unsafe fn constant(&self, name: &str, dtype: &str, shape: Vec<u64>) -> Region {
        // SAFETY: passed on to the caller.
        unsafe { Region::from_constant(name, dtype, shape, self.start, self.length) }
    }

    /// Returns the memory as a destination of a restore.
    ///
    /// # Safety
    /// As for [`MutRegion::from_raw`]: these bytes are of a writable buffer. The caller keeps it
    /// until the region is dropped, or until its advice has ended and no code uses the region any
    /// more. No other code uses the bytes meanwhile. They count as initialised, also those of
    /// `numpy.empty`, since the memory was made outside of Rust.
    pub unsafe fn to_fill(self) -> MutRegion {
        // SAFETY: passed on to the caller.
        unsafe { MutRegion::from_raw(self.start, self.length) }
    }
}
