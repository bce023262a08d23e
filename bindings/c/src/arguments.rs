//! Arguments from C: texts, lists, addresses for results, and memory.
#![allow(unsafe_code)]

use crate::call::{Failure, invalid};
use crate::dtype::Dtype;
use outlive_types::Distribution;
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Most dimensions that an image keeps.
const DIMENSIONS_MAX: usize = 64;

/// A text; `what` names the argument in messages.
///
/// # Safety
/// `text` is NULL, or ends with a zero and stays unchanged while the result is used.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    // SAFETY: passed on to the caller.
    let bytes = unsafe { bytes(text, what)? };
    std::str::from_utf8(bytes).map_err(|_| {
        invalid(format!("{what} {:?} is not UTF-8: choose another", String::from_utf8_lossy(bytes)))
    })
}

/// A path, which need not be UTF-8.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn path<'a>(path: *const c_char, what: &str) -> Result<&'a Path, Failure> {
    // SAFETY: passed on to the caller.
    let bytes = unsafe { bytes(path, what)? };
    match bytes {
        [] => Err(invalid(format!("{what} is empty: name a directory, a pool.toml or a bucket"))),
        bytes => Ok(Path::new(OsStr::from_bytes(bytes))),
    }
}

/// A text as bytes.
///
/// # Safety
/// As for [`text`].
unsafe fn bytes<'a>(text: *const c_char, what: &str) -> Result<&'a [u8], Failure> {
    if text.is_null() {
        return Err(invalid(format!("{what} is NULL: give a text")));
    }
    // SAFETY: it is not NULL, and the caller promises the rest.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// A list of `count` entries.
///
/// # Safety
/// `first` is NULL, or points to `count` entries that stay unchanged while the result is used.
pub(crate) unsafe fn list<'a, T>(
    first: *const T,
    count: usize,
    what: &str,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if first.is_null() || !first.is_aligned() {
        return Err(invalid(format!("{what} is no list of {count} entries: give their address")));
    }
    if count.checked_mul(size_of::<T>()).is_none_or(|bytes| isize::try_from(bytes).is_err()) {
        return Err(invalid(format!("{what} cannot have {count} entries")));
    }
    // SAFETY: neither NULL nor too long, and the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// A list of texts.
///
/// # Safety
/// As for [`list`], and for each entry as for [`text`].
pub(crate) unsafe fn texts(
    first: *const *const c_char,
    count: usize,
    what: &str,
) -> Result<Vec<String>, Failure> {
    // SAFETY: passed on to the caller.
    let entries = unsafe { list(first, count, &format!("the list of {what}s"))? };
    // SAFETY: passed on to the caller.
    entries.iter().map(|entry| Ok(unsafe { text(*entry, what)? }.to_owned())).collect()
}

/// The address for a result.
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// An address that the caller must give.
    ///
    /// # Safety
    /// `place` is NULL, or may be written until the call returns.
    pub unsafe fn new(place: *mut T, what: &str) -> Result<Out<T>, Failure> {
        if place.is_null() {
            return Err(invalid(format!(
                "the place for {what} is NULL: give the address of a variable"
            )));
        }
        Ok(Out(place))
    }

    /// An address that may be NULL, if the caller does not need the result.
    ///
    /// # Safety
    /// As for [`Out::new`].
    pub unsafe fn optional(place: *mut T) -> Out<T> {
        Out(place)
    }

    /// Whether the caller wants the result.
    pub fn is_wanted(&self) -> bool {
        !self.0.is_null()
    }

    /// Writes the result.
    pub fn set(&self, value: T) {
        if self.is_wanted() {
            // SAFETY: it is not NULL, and the caller of `new` or `optional` promised the rest. The
            // variable in C may be uninitialised, and the value that we write there needs no drop.
            unsafe { self.0.write_unaligned(value) }
        }
    }
}

/// Memory of the program, with the description of its contents. Code touches it only inside calls
/// for which the program promises that the memory is there.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Memory {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<u64>,
    pub distribution: Distribution,
    pub start: usize,
    pub bytes: usize,
}

impl Memory {
    /// An array.
    ///
    /// # Safety
    /// `name` and `dtype` as for [`text`], `shape` as for [`list`].
    pub unsafe fn array(
        name: *const c_char,
        memory: *const c_void,
        dtype: *const c_char,
        ndim: usize,
        shape: *const usize,
    ) -> Result<Memory, Failure> {
        // SAFETY: passed on to the caller.
        let name = unsafe { region_name(name)? };
        let of = |failure| context(failure, name);
        // SAFETY: passed on to the caller.
        let dtype = Dtype::parse(unsafe { text(dtype, "the dtype") }.map_err(of)?).map_err(of)?;
        // SAFETY: passed on to the caller.
        let shape = unsafe { extents(shape, ndim, "the shape") }.map_err(of)?;
        let items = shape.iter().try_fold(1u64, |items, extent| items.checked_mul(*extent));
        let bytes = items.and_then(|items| items.checked_mul(dtype.bytes));
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| {
            of(invalid(format!("an array of shape {shape:?} is larger than memory can be")))
        })?;
        Memory { dtype: dtype.text, shape, ..Memory::bytes(name, memory, 0)? }.of_length(bytes)
    }

    /// Bytes.
    ///
    /// # Safety
    /// `name` as for [`text`].
    pub unsafe fn plain(
        name: *const c_char,
        memory: *const c_void,
        bytes: usize,
    ) -> Result<Memory, Failure> {
        // SAFETY: passed on to the caller.
        Memory::bytes(unsafe { region_name(name)? }, memory, bytes)
    }

    fn bytes(name: &str, memory: *const c_void, bytes: usize) -> Result<Memory, Failure> {
        let (name, dtype, shape) = (name.to_owned(), "|u1".to_owned(), vec![bytes as u64]);
        let (distribution, start) = (Distribution::Local, memory.expose_provenance());
        Memory { name, dtype, shape, distribution, start, bytes: 0 }.of_length(bytes)
    }

    fn of_length(self, bytes: usize) -> Result<Memory, Failure> {
        let refuse = |why: String| Err(context(invalid(why), &self.name));
        if bytes > 0 && self.start == 0 {
            return refuse(format!("its memory is NULL, and it has {bytes} bytes"));
        }
        let is_possible = isize::try_from(bytes).is_ok() && self.start.checked_add(bytes).is_some();
        if !is_possible {
            let start = self.start;
            return refuse(format!("there cannot be {bytes} bytes of memory at {start:#x}"));
        }
        Ok(Memory { bytes, ..self })
    }

    /// The same memory, as the part of this rank of a distributed region.
    pub fn distributed(self, distribution: Distribution) -> Result<Memory, Failure> {
        match distribution.check(&self.shape) {
            Ok(()) => Ok(Memory { distribution, ..self }),
            Err(why) => Err(context(invalid(why), &self.name)),
        }
    }
}

/// Extents of an array, or an offset in it.
///
/// # Safety
/// As for [`list`].
pub(crate) unsafe fn extents(
    first: *const usize,
    ndim: usize,
    what: &str,
) -> Result<Vec<u64>, Failure> {
    if ndim > DIMENSIONS_MAX {
        return Err(invalid(format!("it has {ndim} dimensions; at most {DIMENSIONS_MAX} fit")));
    }
    // SAFETY: passed on to the caller.
    let extents = unsafe { list(first, ndim, what)? };
    Ok(extents.iter().map(|extent| *extent as u64).collect())
}

/// The name of a region.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn region_name<'a>(name: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: passed on to the caller.
    match unsafe { text(name, "the region's name")? } {
        "" => Err(invalid("the region's name is empty: give it one")),
        name => Ok(name),
    }
}

fn context(failure: Failure, name: &str) -> Failure {
    match failure {
        Failure::Error(error) => Failure::Error(error.context(format!("region {name:?}"))),
        nothing => nothing,
    }
}
