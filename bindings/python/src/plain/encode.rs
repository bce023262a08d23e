//! Turns a container of plain values into bytes.

use super::{DEPTH_MAX, address, is_plain_key};
use crate::errors::invalid;
use crate::remembered::{LONG, Long, Remembered};
use outlive_format::{PlainKind, PlainWriter};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyBytes, PyComplex, PyComplexMethods, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple,
};
use std::os::raw::c_int;

/// Fewer numbers are no run, so that one that becomes a text does not move the others.
const RUN_LEAST: usize = 4;
/// Least number of entries of a padded block, and its approximate bytes: padding is 3 % of them.
const BLOCK_ENTRIES_MIN: usize = 1024;
const BLOCK_BYTES: usize = 64 * 1024;

/// Appends the bytes of a container that [`outermost`](super::outermost) has found.
///
/// # Errors
/// `InvalidError` if it has changed since.
pub fn encode(
    container: &Bound<'_, PyAny>,
    to: &mut Vec<u8>,
    before: &mut Remembered,
    now: &mut Remembered,
) -> PyResult<()> {
    let begin = to.len();
    let to = PlainWriter::new(to);
    let mut encoder = Encoder { to, ints: Vec::new(), depth: 0, begin, before, now };
    encoder.value(container, &mut Vec::new())
}

struct Encoder<'a> {
    to: PlainWriter<'a>,
    ints: Vec<i64>,
    depth: usize,
    begin: usize,
    /// Long containers of the previous save, and of this one.
    before: &'a mut Remembered,
    now: &'a mut Remembered,
}

impl Encoder<'_> {
    /// Writes a value. `keys` are the addresses of the keys of the last dict in the same container.
    fn value(&mut self, value: &Bound<'_, PyAny>, keys: &mut Vec<usize>) -> PyResult<()> {
        if let Ok(float) = value.cast_exact::<PyFloat>() {
            self.to.float(float.value());
        } else if let Ok(text) = value.cast_exact::<PyString>() {
            self.text(text)?;
        } else if let Ok(int) = value.cast_exact::<PyInt>() {
            self.int(int)?;
        } else if value.is_none() {
            self.to.none();
        } else if let Ok(value) = value.cast_exact::<PyBool>() {
            self.to.bool(value.is_true());
        } else if let Ok(list) = value.cast_exact::<PyList>() {
            self.sequence(value, PlainKind::List, || list.iter())?;
        } else if let Ok(tuple) = value.cast_exact::<PyTuple>() {
            self.sequence(value, PlainKind::Tuple, || tuple.iter())?;
        } else if let Ok(dict) = value.cast_exact::<PyDict>() {
            self.dict(dict, keys)?;
        } else if let Ok(bytes) = value.cast_exact::<PyBytes>() {
            self.to.bytes(bytes.as_bytes());
        } else if let Ok(number) = value.cast_exact::<PyComplex>() {
            self.to.complex(number.real(), number.imag());
        } else {
            return Err(invalid(value.py(), "the state has changed while it was saved".into()));
        }
        Ok(())
    }

    fn enter(&mut self, py: Python<'_>) -> PyResult<()> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(invalid(py, "the state is nested too deeply".into()));
        }
        Ok(())
    }

    /// Writes the bytes that a container had, if it has the same entries; false otherwise.
    fn again(&mut self, container: &Bound<'_, PyAny>) -> bool {
        let (at, begin) = (address(container), self.to.mark() - self.begin);
        match self.before.containers.remove(&at) {
            Some(long) if long.is_same && long.begin == begin => {
                let mark = self.to.mark();
                self.to.encoded(&self.before.bytes[long.place.clone()]);
                let place = mark..self.to.mark();
                self.now.containers.insert(at, Long { place, is_same: false, ..long });
                true
            }
            _ => false,
        }
    }

    /// Remembers a container that was written from `mark` on, if it is long and its entries cannot
    /// change.
    fn remember<'py>(
        &mut self,
        container: &Bound<'py, PyAny>,
        mark: usize,
        entries: impl Iterator<Item = Bound<'py, PyAny>>,
        count: usize,
    ) {
        let mut items = Vec::with_capacity(count);
        for entry in entries {
            if !is_plain_key(&entry) {
                return;
            }
            items.push(entry.unbind());
        }
        let (place, begin) = (mark..self.to.mark(), mark - self.begin);
        let kind = container.get_type().as_ptr() as usize;
        let long = Long { items, kind, count, place, begin, is_same: false };
        self.now.containers.insert(address(container), long);
    }

    fn sequence<'py, I: ExactSizeIterator<Item = Bound<'py, PyAny>>>(
        &mut self,
        container: &Bound<'py, PyAny>,
        kind: PlainKind,
        entries: impl Fn() -> I,
    ) -> PyResult<()> {
        let count = entries().len();
        if count < LONG {
            return self.entries(container.py(), kind, entries);
        }
        if !self.again(container) {
            let mark = self.to.mark();
            self.entries(container.py(), kind, &entries)?;
            self.remember(container, mark, entries(), count);
        }
        Ok(())
    }

    fn entries<'py, I: ExactSizeIterator<Item = Bound<'py, PyAny>>>(
        &mut self,
        py: Python<'py>,
        kind: PlainKind,
        entries: impl Fn() -> I,
    ) -> PyResult<()> {
        let count = entries().len();
        if count >= RUN_LEAST && (self.floats(kind, entries()) || self.ints(kind, entries())) {
            return Ok(());
        }
        self.to.open(kind, count);
        self.enter(py)?;
        let mut keys = Vec::new();
        let mut blocks = Blocks::new(&self.to);
        for entry in entries() {
            blocks.before_entry(&mut self.to);
            self.value(&entry, &mut keys)?;
        }
        self.depth -= 1;
        Ok(())
    }

    /// Writes a run of floats; if they are none, writes nothing and returns false.
    fn floats<'py>(
        &mut self,
        kind: PlainKind,
        entries: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
    ) -> bool {
        let mark = self.to.mark();
        self.to.floats(kind, entries.len());
        for entry in entries {
            let Ok(float) = entry.cast_exact::<PyFloat>() else {
                self.to.back_to(mark);
                return false;
            };
            self.to.float_of_run(float.value());
        }
        true
    }

    /// Writes a run of integers; if they are none, writes nothing and returns false.
    fn ints<'py>(
        &mut self,
        kind: PlainKind,
        entries: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
    ) -> bool {
        self.ints.clear();
        for entry in entries {
            let Ok(int) = entry.cast_exact::<PyInt>() else { return false };
            let Ok(value) = short(int) else { return false };
            self.ints.push(value);
        }
        self.to.ints(kind, &self.ints);
        true
    }

    fn dict(&mut self, dict: &Bound<'_, PyDict>, before: &mut Vec<usize>) -> PyResult<()> {
        let is_long = dict.len() >= LONG && before.is_empty();
        if is_long && self.again(dict) {
            let long = &self.now.containers[&address(dict)];
            before.extend(long.items.iter().step_by(2).map(|key| key.as_ptr() as usize));
            return Ok(());
        }
        let mark = self.to.mark();
        let same = !before.is_empty()
            && before.len() == dict.len()
            && dict.iter().zip(&*before).all(|((key, _), was)| address(&key) == *was);
        if same {
            self.to.again();
        } else {
            self.to.open(PlainKind::Dict, dict.len());
            before.clear();
        }
        self.enter(dict.py())?;
        // Keys of the last dict among the values; keys of the dict are no dicts.
        let mut keys = Vec::new();
        let mut blocks = Blocks::new(&self.to);
        for (key, value) in dict.iter() {
            blocks.before_entry(&mut self.to);
            if !same {
                before.push(address(&key));
                self.value(&key, &mut Vec::new())?;
            }
            self.value(&value, &mut keys)?;
        }
        self.depth -= 1;
        // Keys that no path can name count for more than one value; such a dict is searched each
        // time.
        let nameable = || {
            dict.iter().all(|(key, _)| key.is_exact_instance_of::<PyString>())
                || dict.iter().all(|(key, _)| key.is_exact_instance_of::<PyInt>())
        };
        if is_long && nameable() {
            let items = dict.iter().flat_map(|(key, value)| [key, value]);
            self.remember(dict, mark, items, dict.len());
        }
        Ok(())
    }

    fn text(&mut self, text: &Bound<'_, PyString>) -> PyResult<()> {
        match text.to_str() {
            Ok(text) => self.to.text(text.as_bytes()),
            // Lone surrogates, such as in names of files that are not UTF-8.
            Err(_) => {
                let bytes = text.call_method1("encode", ("utf-8", "surrogatepass"))?;
                self.to.text(bytes.cast::<PyBytes>()?.as_bytes());
            }
        }
        Ok(())
    }

    fn int(&mut self, int: &Bound<'_, PyInt>) -> PyResult<()> {
        let is_negative = match short(int) {
            Ok(value) => {
                self.to.int(value);
                return Ok(());
            }
            Err(is_negative) => is_negative,
        };
        let bits: usize = int.call_method0("bit_length")?.extract()?;
        if !is_negative && bits <= 64 {
            self.to.unsigned(int.extract()?);
            return Ok(());
        }
        let signed = PyDict::new(int.py());
        signed.set_item("signed", true)?;
        let bytes = int.call_method("to_bytes", (bits / 8 + 1, "little"), Some(&signed))?;
        self.to.big(bytes.cast::<PyBytes>()?.as_bytes());
        Ok(())
    }
}

/// Pads a long container at regular distances, so that an entry that grows moves only those of its
/// own block, and a save finds the other pages unchanged.
struct Blocks {
    begin: usize,
    entries: usize,
    /// Entries of a block.
    length: usize,
}

impl Blocks {
    fn new(to: &PlainWriter<'_>) -> Blocks {
        Blocks { begin: to.mark(), entries: 0, length: BLOCK_ENTRIES_MIN }
    }

    /// Computes the length of a block from the bytes of the first entries. It is a power of two, so
    /// that other first entries change the blocks only if their length differs much.
    fn before_entry(&mut self, to: &mut PlainWriter<'_>) {
        if self.entries == BLOCK_ENTRIES_MIN {
            let bytes = (to.mark() - self.begin).max(1);
            self.length = BLOCK_ENTRIES_MIN * BLOCK_BYTES.div_ceil(bytes).next_power_of_two();
        }
        if self.entries > 0 && self.entries.is_multiple_of(self.length) {
            to.pad();
        }
        self.entries += 1;
    }
}

/// Returns the value of an integer, or whether it is too small or too large.
#[allow(unsafe_code)]
fn short(int: &Bound<'_, PyInt>) -> Result<i64, bool> {
    let mut overflow: c_int = 0;
    // SAFETY: it is a live `int` (and so nothing is raised), and the GIL is held.
    let value = unsafe { ffi::PyLong_AsLongLongAndOverflow(int.as_ptr(), &raw mut overflow) };
    if overflow == 0 { Ok(value) } else { Err(overflow < 0) }
}
