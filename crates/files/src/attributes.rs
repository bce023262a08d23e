//! Extended attributes of open files and of names.

use outlive_format::Attribute;
use rustix::fs::{
    XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr, lgetxattr, llistxattr,
    lremovexattr, lsetxattr,
};
use rustix::io::{Errno, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Longest attribute, and longest list of names, on Linux.
const VALUE_BYTES_MAX: usize = 64 << 10;

/// Returns the attributes of an open file, sorted by name.
pub fn of_open(file: impl AsFd) -> Result<Vec<Attribute>> {
    let file = file.as_fd();
    read(|list| flistxattr(file, list), |name, value| fgetxattr(file, name, value))
}

/// Returns the attributes of `name` in `dir`; of a link, its own.
pub fn of_name(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<Attribute>> {
    let path = way_to(dir, name);
    let path = path.as_slice();
    read(|list| llistxattr(path, list), |name, value| lgetxattr(path, name, value))
}

fn read(
    list: impl Fn(&mut [u8]) -> Result<usize>,
    get: impl Fn(&[u8], &mut [u8]) -> Result<usize>,
) -> Result<Vec<Attribute>> {
    // Most files have no attributes, or a short list.
    let mut short = [0; 256];
    let mut long = Vec::new();
    let names = match list(&mut short) {
        Ok(length) => &short[..length],
        Err(Errno::RANGE) => {
            long.resize(VALUE_BYTES_MAX, 0);
            let length = list(&mut long)?;
            &long[..length]
        }
        // The file system has no attributes, or none for this file.
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
            // It was removed after the list was read.
            Err(Errno::NODATA) => {}
            Err(error) => return Err(error),
        }
    }
    attributes.sort();
    Ok(attributes)
}

/// An attribute that could not be set, removed or listed, and the error.
pub type Refused = (Vec<u8>, Errno);

/// Gives an open file the wanted attributes; returns those that were refused.
pub fn bring_open(file: impl AsFd, wanted: &[Attribute]) -> Vec<Refused> {
    let file = file.as_fd();
    bring(
        of_open(file),
        wanted,
        |name, value| fsetxattr(file, name, value, XattrFlags::empty()),
        |name| fremovexattr(file, name),
    )
}

/// Gives `name` in `dir` the wanted attributes; returns those that were refused.
pub fn bring_name(dir: BorrowedFd<'_>, name: &[u8], wanted: &[Attribute]) -> Vec<Refused> {
    let path = way_to(dir, name);
    let path = path.as_slice();
    bring(
        of_name(dir, name),
        wanted,
        |name, value| lsetxattr(path, name, value, XattrFlags::empty()),
        |name| lremovexattr(path, name),
    )
}

/// Sets missing or different attributes, and removes inherited and remaining ones. Right attributes
/// are not touched, or the file would count as changed.
fn bring(
    there: Result<Vec<Attribute>>,
    wanted: &[Attribute],
    set: impl Fn(&[u8], &[u8]) -> Result<()>,
    remove: impl Fn(&[u8]) -> Result<()>,
) -> Vec<Refused> {
    let mut refused = Vec::new();
    let there = there.unwrap_or_else(|error| {
        refused.push((b"*".to_vec(), error));
        Vec::new()
    });
    let is_wanted = |name: &[u8]| wanted.iter().any(|attribute| attribute.name == name);
    // Attributes that grant permissions are removed first.
    for Attribute { name, .. } in &there {
        if belongs_to_files(name) && !is_wanted(name) {
            match remove(name) {
                Ok(()) | Err(Errno::NODATA) => {}
                Err(error) => refused.push((name.clone(), error)),
            }
        }
    }
    for attribute in wanted.iter().filter(|attribute| !there.contains(attribute)) {
        if let Err(error) = set(&attribute.name, &attribute.value) {
            refused.push((attribute.name.clone(), error));
        }
    }
    refused
}

/// Access rights in addition to the mode.
const ACL: &[u8] = b"system.posix_acl_access";

/// Returns whether an attribute is a part of a file, and is removed if a checkpoint lacks it. The
/// others belong to the system: it assigns labels (`security.selinux`), and file systems show their
/// properties.
fn belongs_to_files(name: &[u8]) -> bool {
    let named = [ACL, b"system.posix_acl_default", b"security.capability"];
    named.contains(&name) || name.starts_with(b"user.") || name.starts_with(b"trusted.")
}

/// Returns whether a file has the wanted attributes, as far as this user may set them.
pub fn is_as_wanted(there: &[Attribute], wanted: &[Attribute], is_root: bool) -> bool {
    let counts = |attribute: &&Attribute| {
        let name = attribute.name.as_slice();
        let is_for_all = name == ACL || name.starts_with(b"user.");
        belongs_to_files(name) && (is_root || is_for_all)
    };
    there.iter().filter(counts).eq(wanted.iter().filter(counts))
}

/// Returns a path through an open directory, since Linux has no `getxattrat` before 6.13. Others
/// can change only the last part, and a link there is not followed.
fn way_to(dir: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    path
}
