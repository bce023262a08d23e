//! Makes a container of plain values from its bytes.

use crate::errors::to_py;
use outlive_format::{Numbers, Plain, PlainKind, PlainReader};
use outlive_types::Error;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyComplex, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

/// With this many bytes, a pause of the garbage collector is worth its cost: it would find nothing.
const NO_COLLECTION_BYTES: usize = 16 * 1024;

/// Returns the container that [`encode`](super::encode) was given.
///
/// # Errors
/// `DamagedError` if `encode` cannot have written the bytes, `InvalidError` if they are of another
/// version.
pub fn decode<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let _paused = (bytes.len() >= NO_COLLECTION_BYTES).then(|| Paused::begin(py)).transpose()?;
    let mut decoder = Decoder { py, from: PlainReader::new(bytes).map_err(|e| to_py(py, &e))? };
    let value = decoder.value(&mut Vec::new())?;
    match decoder.from.next() {
        Ok(None) => Ok(value),
        Ok(Some(_)) => Err(decoder.wrong("something follows it")),
        Err(error) => Err(to_py(py, &error)),
    }
}

struct Decoder<'a, 'py> {
    py: Python<'py>,
    from: PlainReader<'a>,
}

impl<'py> Decoder<'_, 'py> {
    fn wrong(&self, why: &str) -> PyErr {
        to_py(self.py, &Error::damaged(format!("a tree of plain values cannot be: {why}")))
    }

    /// Returns the next value. `keys` are those of the last dict in the same container.
    fn value(&mut self, keys: &mut Vec<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let mut next = self.from.next().map_err(|error| to_py(py, &error))?;
        while next == Some(Plain::Pad) {
            next = self.from.next().map_err(|error| to_py(py, &error))?;
        }
        let Some(next) = next else { return Err(self.wrong("it ends too early")) };
        Ok(match next {
            Plain::Pad => return Err(self.wrong("it ends in padding")),
            Plain::None => py.None().into_bound(py),
            Plain::Bool(value) => PyBool::new(py, value).to_owned().into_any(),
            Plain::Int(value) => value.into_pyobject(py)?.into_any(),
            Plain::Unsigned(value) => value.into_pyobject(py)?.into_any(),
            Plain::Big(bytes) => {
                let signed = PyDict::new(py);
                signed.set_item("signed", true)?;
                let arguments = (PyBytes::new(py, bytes), "little");
                py.get_type::<PyInt>().call_method("from_bytes", arguments, Some(&signed))?
            }
            Plain::Float(value) => PyFloat::new(py, value).into_any(),
            Plain::Complex(real, imaginary) => {
                PyComplex::from_doubles(py, real, imaginary).into_any()
            }
            Plain::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => PyString::new(py, text).into_any(),
                Err(_) => PyBytes::new(py, bytes)
                    .call_method1("decode", ("utf-8", "surrogatepass"))
                    .map_err(|_| self.wrong("a text is none"))?,
            },
            Plain::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
            Plain::Run(kind, count, numbers) => run(py, kind, count, numbers)?,
            Plain::Open(PlainKind::Dict, count) => {
                let dict = PyDict::new(py);
                keys.clear();
                let mut inner = Vec::new();
                for _ in 0..count {
                    let key = self.value(&mut Vec::new())?;
                    let value = self.value(&mut inner)?;
                    self.put(&dict, &key, value)?;
                    keys.push(key);
                }
                dict.into_any()
            }
            Plain::Again(count) => {
                let dict = PyDict::new(py);
                let mut inner = Vec::new();
                for at in 0..count {
                    let value = self.value(&mut inner)?;
                    let key = keys.get(at).ok_or_else(|| self.wrong("a dict has no keys"))?;
                    self.put(&dict, key, value)?;
                }
                dict.into_any()
            }
            Plain::Open(kind, count) => {
                let mut entries = Vec::with_capacity(count);
                let mut inner = Vec::new();
                for _ in 0..count {
                    entries.push(self.value(&mut inner)?);
                }
                match kind {
                    PlainKind::Tuple => PyTuple::new(py, entries)?.into_any(),
                    _ => PyList::new(py, entries)?.into_any(),
                }
            }
        })
    }

    fn put(
        &self,
        dict: &Bound<'py, PyDict>,
        key: &Bound<'py, PyAny>,
        value: Bound<'py, PyAny>,
    ) -> PyResult<()> {
        dict.set_item(key, value).map_err(|_| self.wrong("a key of a dict is none"))
    }
}

/// Makes a list or tuple of numbers.
fn run<'py>(
    py: Python<'py>,
    kind: PlainKind,
    count: usize,
    numbers: Numbers<'_>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut entries: Vec<Bound<'py, PyAny>> = Vec::with_capacity(count);
    let int = |value: i64| match value.into_pyobject(py) {
        Ok(int) => int.into_any(),
        Err(never) => match never {},
    };
    numbers.each(int, |value| PyFloat::new(py, value).into_any(), |entry| entries.push(entry));
    Ok(match kind {
        PlainKind::Tuple => PyTuple::new(py, entries)?.into_any(),
        _ => PyList::new(py, entries)?.into_any(),
    })
}

/// A pause of Python's garbage collector.
struct Paused<'py>(Option<Bound<'py, PyModule>>);

impl<'py> Paused<'py> {
    fn begin(py: Python<'py>) -> PyResult<Paused<'py>> {
        let gc = py.import("gc")?;
        let enabled: bool = gc.call_method0("isenabled")?.extract()?;
        if enabled {
            gc.call_method0("disable")?;
        }
        Ok(Paused(enabled.then_some(gc)))
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        if let Some(gc) = &self.0 {
            let _ = gc.call_method0("enable");
        }
    }
}
