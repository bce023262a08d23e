//! Containers that hold only plain values: finds those of a state, and converts each into the bytes
//! of one region and back. `crates/format` defines the bytes.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyComplex, PyFloat, PyInt, PyString, PyTuple};

mod decode;
mod encode;
mod find;

pub use decode::decode;
pub use encode::encode;
pub use find::outermost;

/// The dtype of such a region.
pub const TREE: &str = "py:tree";
/// Deepest nesting of a state; `_tree.py` refuses deeper ones.
const DEPTH_MAX: usize = 200;

/// Whether a value is plain: immutable, of a built-in type, and without parts.
fn is_plain(value: &Bound<'_, PyAny>) -> bool {
    value.is_exact_instance_of::<PyFloat>()
        || value.is_exact_instance_of::<PyInt>()
        || value.is_exact_instance_of::<PyString>()
        || value.is_none()
        || value.is_exact_instance_of::<PyBool>()
        || value.is_exact_instance_of::<PyBytes>()
        || value.is_exact_instance_of::<PyComplex>()
}

fn address(value: &Bound<'_, PyAny>) -> usize {
    value.as_ptr() as usize
}

/// Whether a key of a dict is plain, or a tuple of such keys.
fn is_plain_key(key: &Bound<'_, PyAny>) -> bool {
    is_plain(key)
        || key
            .cast_exact::<PyTuple>()
            .is_ok_and(|tuple| tuple.iter_borrowed().all(|part| is_plain(&part)))
}
