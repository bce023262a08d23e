//! Long containers of the last save: their very objects, and the bytes that these became. Immutable
//! objects that are the same need no second look: comparing their addresses is enough.
#![allow(unsafe_code)]

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::collections::HashMap;
use std::ops::Range;

/// Shorter containers are encoded as fast as they are compared.
pub const LONG: usize = 4096;

/// Data that is remembered from a save.
#[derive(Default)]
pub struct Remembered {
    /// All values of the save, encoded one behind the other.
    pub bytes: Vec<u8>,
    /// By the address that each container had. Another object may have that address by now.
    pub containers: HashMap<usize, Long>,
}

/// A long container whose entries cannot change.
pub struct Long {
    /// Its entries; of a dict each key, and then its value. They are kept alive, so that no other
    /// object gets the address of one.
    pub items: Vec<Py<PyAny>>,
    /// The address of its class.
    pub kind: usize,
    /// Number of values that they count as.
    pub count: usize,
    /// Range of its bytes.
    pub place: Range<usize>,
    /// Offset of the bytes in their region: padding depends on it.
    pub begin: usize,
    /// Whether this save has found the same entries in it.
    pub is_same: bool,
}

impl Remembered {
    /// Begins a save: no container is known to be the same yet.
    pub fn begin(&mut self) {
        self.containers.values_mut().for_each(|long| long.is_same = false);
    }

    /// Checks that a container has the entries that it had; returns the number of values that they
    /// count as.
    pub fn count(&mut self, container: &Bound<'_, PyAny>) -> Option<usize> {
        let long = self.containers.get_mut(&(container.as_ptr() as usize))?;
        let is_of_kind = container.get_type().as_ptr() as usize == long.kind;
        long.is_same = is_of_kind && has(container, &long.items);
        long.is_same.then_some(long.count)
    }
}

/// Whether a container has these very entries, in this order.
fn has(container: &Bound<'_, PyAny>, items: &[Py<PyAny>]) -> bool {
    let object = container.as_ptr();
    if let Ok(list) = container.cast_exact::<PyList>() {
        list.len() == items.len()
            && items.iter().enumerate().all(|(at, item)| {
                // SAFETY: it is a live list with the GIL held, and no Python code runs since its
                // length was read, so `at` is in it. The borrowed entry is compared and not
                // dereferenced.
                unsafe { ffi::PyList_GetItem(object, at as ffi::Py_ssize_t) == item.as_ptr() }
            })
    } else if let Ok(tuple) = container.cast_exact::<PyTuple>() {
        tuple.len() == items.len()
            && tuple.iter_borrowed().zip(items).all(|(entry, item)| entry.as_ptr() == item.as_ptr())
    } else if let Ok(dict) = container.cast_exact::<PyDict>() {
        let mut place: ffi::Py_ssize_t = 0;
        dict.len() * 2 == items.len()
            && items.chunks_exact(2).all(|pair| {
                let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
                // SAFETY: it is a live dict with the GIL held, and no Python code runs meanwhile,
                // so `place` stays valid. The borrowed entries are compared and not dereferenced.
                let found = unsafe {
                    ffi::PyDict_Next(object, &raw mut place, &raw mut key, &raw mut value)
                };
                found != 0 && key == pair[0].as_ptr() && value == pair[1].as_ptr()
            })
    } else {
        false
    }
}
