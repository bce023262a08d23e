//! Extended attributes, of things that are open and of things that only have a name.

use outlive_format::Attribute;
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr, lgetxattr, llistxattr, lsetxattr};
use rustix::io::{Errno, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Attributes and their names are at most so long on Linux.
const VALUE_BYTES_MAX: usize = 64 << 10;

/// The attributes of something open, sorted by name.
pub fn of_open(file: impl AsFd) -> Result<Vec<Attribute>> {
    let file = file.as_fd();
    read(|list| flistxattr(file, list), |name, value| fgetxattr(file, name, value))
}

/// The attributes of what is called `name` in `dir`; of a link, its own.
pub fn of_name(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<Attribute>> {
    let path = way_to(dir, name);
    let path = path.as_slice();
    read(|list| llistxattr(path, list), |name, value| lgetxattr(path, name, value))
}

fn read(
    list: impl Fn(&mut [u8]) -> Result<usize>,
    get: impl Fn(&[u8], &mut [u8]) -> Result<usize>,
) -> Result<Vec<Attribute>> {
    // Most files have none, or a short one.
    let mut short = [0; 256];
    let mut long = Vec::new();
    let names = match list(&mut short) {
        Ok(length) => &short[..length],
        Err(Errno::RANGE) => {
            long.resize(VALUE_BYTES_MAX, 0);
            let length = list(&mut long)?;
            &long[..length]
        }
        // File systems without attributes, and files on them.
        Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut attributes = Vec::new();
    let mut value = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        value.resize(VALUE_BYTES_MAX, 0);
        match get(name, &mut value) {
            Ok(length) => {
                attributes.push(Attribute { name: name.to_vec(), value: value[..length].to_vec() })
            }
            // It went away since it was listed.
            Err(Errno::NODATA) => {}
            Err(error) => return Err(error),
        }
    }
    attributes.sort();
    Ok(attributes)
}

/// Sets attributes of something open; answers those that were refused.
pub fn set_open(file: impl AsFd, attributes: &[Attribute]) -> impl Iterator<Item = (&[u8], Errno)> {
    set(attributes, move |name, value| fsetxattr(file.as_fd(), name, value, XattrFlags::empty()))
}

/// Sets attributes of what is called `name` in `dir`; answers those that were refused.
pub fn set_name<'a>(
    dir: BorrowedFd<'_>,
    name: &[u8],
    attributes: &'a [Attribute],
) -> impl Iterator<Item = (&'a [u8], Errno)> {
    let path = way_to(dir, name);
    set(attributes, move |name, value| lsetxattr(path.as_slice(), name, value, XattrFlags::empty()))
}

fn set(
    attributes: &[Attribute],
    set: impl Fn(&[u8], &[u8]) -> Result<()>,
) -> impl Iterator<Item = (&[u8], Errno)> {
    attributes.iter().filter_map(move |attribute| {
        set(&attribute.name, &attribute.value).err().map(|error| (attribute.name.as_slice(), error))
    })
}

/// There is no `getxattrat` before Linux 6.13, but a way through a directory that is open: only the
/// last part is a name that others could change, and it is not followed.
fn way_to(dir: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    path
}
