//! Python's own values as bytes and back. Arrays and byte strings are not copied here: the engine
//! reads their memory (`buffer.rs`).

use crate::errors::to_py;
use crate::plain::{self, TREE};
use outlive_types::Error;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyComplex, PyComplexMethods, PyDict, PyFloat, PyInt, PyString};

/// Integers beyond 64 bits grow in steps of this, so that a generator's 128-bit state keeps its
/// length, and the data after it in the image keeps its offset.
const LONG_INT_BYTES: usize = 32;

/// Appends the bytes of `leaf`; false if its dtype is not known here.
///
/// # Errors
/// If the leaf does not fit its dtype.
pub fn encode(leaf: &Bound<'_, PyAny>, dtype: &str, to: &mut Vec<u8>) -> PyResult<bool> {
    match dtype {
        "py:float" => {
            to.extend_from_slice(&leaf.cast::<PyFloat>()?.value().to_le_bytes());
        }
        "py:int" => match leaf.extract::<i64>() {
            Ok(value) => to.extend_from_slice(&value.to_le_bytes()),
            Err(_) => {
                let bits: usize = leaf.call_method0("bit_length")?.extract()?;
                let length = (bits / 8 + 1).next_multiple_of(LONG_INT_BYTES);
                let signed = PyDict::new(leaf.py());
                signed.set_item("signed", true)?;
                let bytes = leaf.call_method("to_bytes", (length, "little"), Some(&signed))?;
                to.extend_from_slice(bytes.cast::<PyBytes>()?.as_bytes());
            }
        },
        "py:bool" => to.push(u8::from(leaf.cast::<PyBool>()?.is_true())),
        "py:none" => {}
        "py:complex" => {
            let value = leaf.cast::<PyComplex>()?;
            to.extend_from_slice(&value.real().to_le_bytes());
            to.extend_from_slice(&value.imag().to_le_bytes());
        }
        "py:str" => match leaf.cast::<PyString>()?.to_str() {
            Ok(text) => to.extend_from_slice(text.as_bytes()),
            // Lone surrogates, such as in names of files that are not UTF-8.
            Err(_) => {
                let bytes = leaf.call_method1("encode", ("utf-8", "surrogatepass"))?;
                to.extend_from_slice(bytes.cast::<PyBytes>()?.as_bytes());
            }
        },
        _ => return Ok(false),
    }
    Ok(true)
}

/// Returns the value that [`encode`] was given; for unknown dtypes its bytes as `bytes`.
///
/// # Errors
/// `DamagedError` if the bytes cannot be a value of that dtype.
pub fn decode<'py>(
    py: Python<'py>,
    name: &str,
    dtype: &str,
    bytes: &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    let wrong = || {
        to_py(
            py,
            &Error::damaged(format!(
                "region {name:?} of dtype {dtype} has {} bytes, which cannot be",
                bytes.len()
            )),
        )
    };
    let number = |bytes: &[u8]| -> PyResult<f64> {
        Ok(f64::from_le_bytes(bytes.try_into().map_err(|_| wrong())?))
    };
    Ok(match dtype {
        "py:float" => PyFloat::new(py, number(bytes)?).into_any(),
        "py:int" => match <[u8; 8]>::try_from(bytes) {
            Ok(bytes) => i64::from_le_bytes(bytes).into_pyobject(py)?.into_any(),
            Err(_) => {
                let signed = PyDict::new(py);
                signed.set_item("signed", true)?;
                let arguments = (PyBytes::new(py, bytes), "little");
                py.get_type::<PyInt>().call_method("from_bytes", arguments, Some(&signed))?
            }
        },
        "py:bool" => match bytes {
            [0] => PyBool::new(py, false).to_owned().into_any(),
            [1] => PyBool::new(py, true).to_owned().into_any(),
            _ => return Err(wrong()),
        },
        "py:none" => py.None().into_bound(py),
        "py:complex" => {
            let (real, imag) = bytes.split_at_checked(8).ok_or_else(wrong)?;
            PyComplex::from_doubles(py, number(real)?, number(imag)?).into_any()
        }
        "py:str" => match std::str::from_utf8(bytes) {
            Ok(text) => PyString::new(py, text).into_any(),
            Err(_) => PyBytes::new(py, bytes)
                .call_method1("decode", ("utf-8", "surrogatepass"))
                .map_err(|_| wrong())?,
        },
        TREE => plain::decode(py, bytes)?,
        _ => PyBytes::new(py, bytes).into_any(),
    })
}
