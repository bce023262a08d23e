//! Finds the containers of a state that become one region each.

use super::{DEPTH_MAX, address, is_plain, is_plain_key};
use crate::remembered::Remembered;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PyString, PyTuple};
use std::collections::HashSet;

/// Count of a container that no path can describe: it is one leaf, whatever its size.
const UNNAMEABLE: usize = 1 << 40;

/// Returns ids of the outermost containers that hold only plain values: those with `least` values
/// or more, and those with keys that no path can name.
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
    /// Containers that were searched and are not plain: a net of objects that refer to each other
    /// has endless paths.
    not_plain: HashSet<usize>,
    remembered: &'a mut Remembered,
}

impl Search<'_> {
    /// Searches a value: records it if it is a plain container, else the plain containers in it.
    fn child(&mut self, value: &Bound<'_, PyAny>) {
        if let Some(count) = self.count(value)
            && count >= self.least
            && !is_plain(value)
        {
            self.found.push(address(value));
        }
    }

    /// Returns the number of values in a plain value. If it is not plain, records its plain
    /// containers.
    fn count(&mut self, value: &Bound<'_, PyAny>) -> Option<usize> {
        if is_plain(value) {
            return Some(1);
        }
        let at = address(value);
        // A walk refuses a value that is nested too deeply, or contains itself.
        if self.open.len() >= DEPTH_MAX || self.not_plain.contains(&at) || self.open.contains(&at) {
            return None;
        }
        if let Some(count) = self.remembered.count(value) {
            return Some(count);
        }
        self.open.push(at);
        let mut inside = ContainerContents { total: Some(0), plain: Vec::new() };
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

/// Contents of a container, as far as it was searched.
struct ContainerContents {
    /// Number of values; `None` if not all are plain.
    total: Option<usize>,
    /// Plain containers in it, each with its number of values.
    plain: Vec<(usize, usize)>,
}

impl ContainerContents {
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
