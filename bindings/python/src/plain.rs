//! Containers of nothing but plain values: finds those of a state, and turns each into the bytes of one
//! region and back. (`crates/format` has the bytes.)

use crate::errors::{invalid, to_py};
use crate::remembered::{LONG, Long, Remembered};
use outlive_format::{Numbers, Plain, PlainKind, PlainReader, PlainWriter};
use outlive_types::Error;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyBytes, PyComplex, PyComplexMethods, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple,
};
use std::collections::HashSet;
use std::os::raw::c_int;

/// The dtype of such a region.
pub const TREE: &str = "py:tree";
/// Deepest nesting of a state; `_tree.py` refuses more.
const DEPTH_MAX: usize = 200;
/// Fewer numbers are no run: one that becomes a text leaves the others where they are.
const RUN_LEAST: usize = 4;
/// What a container counts that no path can describe: it is one leaf, whatever its size.
const UNNAMEABLE: usize = 1 << 40;
/// Entries of a padded block at least, and about how many bytes it has: padding is 3 % of that.
const BLOCK_ENTRIES_MIN: usize = 1024;
const BLOCK_BYTES: usize = 64 * 1024;
/// Objects made from so many bytes are worth a pause of the garbage collector, which finds nothing.
const NO_COLLECTION_BYTES: usize = 16 * 1024;

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

/// Ids of the containers that hold nothing but plain values, of each the outermost: those with `least`
/// values or more, and those with keys that no path can name.
pub fn outermost(
    state: &Bound<'_, PyAny>,
    least: usize,
    remembered: &mut Remembered,
) -> Vec<usize> {
    remembered.begin();
    let (open, found, not_plain) = Default::default();
    let mut search = Search { least, open, found, not_plain, remembered };
    search.child(state);
    search.found
}

struct Search<'a> {
    least: usize,
    open: Vec<usize>,
    found: Vec<usize>,
    /// Containers that were looked at and are not plain: a net of objects that refer to each other has no end of
    /// ways through it.
    not_plain: HashSet<usize>,
    remembered: &'a mut Remembered,
}

impl Search<'_> {
    /// Looks at something. Unless it is plain, it finds what is inside.
    fn child(&mut self, value: &Bound<'_, PyAny>) {
        if let Some(count) = self.count(value)
            && count >= self.least
            && !is_plain(value)
        {
            self.found.push(address(value));
        }
    }

    /// How many values something plain has. If it is not, its plain containers are found.
    fn count(&mut self, value: &Bound<'_, PyAny>) -> Option<usize> {
        if is_plain(value) {
            return Some(1);
        }
        let at = address(value);
        // A walk refuses what is nested too deeply, and what contains itself.
        if self.open.len() >= DEPTH_MAX || self.not_plain.contains(&at) || self.open.contains(&at) {
            return None;
        }
        if let Some(count) = self.remembered.count(value) {
            return Some(count);
        }
        self.open.push(at);
        let mut inside = Inside { total: Some(0), plain: Vec::new() };
        if let Ok(list) = value.cast_exact::<PyList>() {
            for entry in list.iter() {
                inside.take(self, &entry);
            }
        } else if let Ok(tuple) = value.cast_exact::<PyTuple>() {
            for entry in tuple.iter_borrowed() {
                inside.take(self, &entry);
            }
        } else if let Ok(dict) = value.cast::<PyDict>() {
            let (mut texts, mut ints) = (false, false);
            for (key, entry) in dict.iter() {
                if key.is_exact_instance_of::<PyString>() {
                    texts = true;
                } else if key.is_exact_instance_of::<PyInt>() {
                    ints = true;
                } else if is_plain_key(&key) {
                    inside.total = inside.total.map(|total| total.saturating_add(UNNAMEABLE));
                } else {
                    inside.total = None;
                }
                inside.take(self, &entry);
            }
            if texts && ints {
                inside.total = inside.total.map(|total| total.saturating_add(UNNAMEABLE));
            }
            // An `OrderedDict` has an order of its own.
            if !dict.is_exact_instance_of::<PyDict>() {
                inside.total = None;
            }
        } else {
            inside.total = None;
        }
        self.open.pop();
        if inside.total.is_none() {
            self.not_plain.insert(at);
            let least = self.least;
            let large = inside.plain.into_iter().filter(|(_, count)| *count >= least);
            self.found.extend(large.map(|(at, _)| at));
        }
        inside.total
    }
}

/// What a container has, as far as it was looked at.
struct Inside {
    /// How many values; `None` if not all is plain.
    total: Option<usize>,
    /// Containers in it that are plain, each with how many values.
    plain: Vec<(usize, usize)>,
}

impl Inside {
    fn take(&mut self, search: &mut Search<'_>, entry: &Bound<'_, PyAny>) {
        if is_plain(entry) {
            self.total = self.total.map(|total| total + 1);
            return;
        }
        match search.count(entry) {
            Some(count) => {
                // Small ones matter only as a part of this one.
                if count >= search.least {
                    self.plain.push((address(entry), count));
                }
                self.total = self.total.map(|total| total.saturating_add(count));
            }
            None => self.total = None,
        }
    }
}

/// Whether a key of a dict is plain, or a tuple of such keys.
fn is_plain_key(key: &Bound<'_, PyAny>) -> bool {
    is_plain(key)
        || key
            .cast_exact::<PyTuple>()
            .is_ok_and(|tuple| tuple.iter_borrowed().all(|part| is_plain(&part)))
}

/// Appends the bytes of a container that [`outermost`] has found.
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
    /// Long containers of the save before, and of this one.
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

    /// Writes the bytes that a container had, if it has the same entries; false if it has not.
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

    /// Remembers a container that was written from `mark` on, if it is long and its entries cannot change.
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

    /// Writes a run of floats; false, and nothing, if it is none.
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

    /// Writes a run of integers; false, and nothing, if it is none.
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
        // Of dicts among the values. A key is none.
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
        // Keys that no path can name count for more than one value; such a dict is always looked at.
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

/// Pads a long container every so many entries, so that an entry that grows moves only those of its
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

    /// The first entries say how many make a block of the bytes wanted. A power of two of them, so
    /// that other first entries make other blocks only if they are of quite another length.
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

/// The value of an integer, or whether it is below or above what fits.
#[allow(unsafe_code)]
fn short(int: &Bound<'_, PyInt>) -> Result<i64, bool> {
    let mut overflow: c_int = 0;
    // SAFETY: it is a live `int` (and so nothing is raised), and the GIL is held.
    let value = unsafe { ffi::PyLong_AsLongLongAndOverflow(int.as_ptr(), &raw mut overflow) };
    if overflow == 0 { Ok(value) } else { Err(overflow < 0) }
}

/// The container that [`encode`] was given.
///
/// # Errors
/// `DamagedError` if the bytes are none of `encode`, `InvalidError` if they are of another version.
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

    /// The next value. `keys` are those of the last dict in the same container.
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

/// A list or tuple of numbers.
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
