//! All tests of this crate from outside, in one program, as each program takes long to link.

mod conformance;
mod fuse;
mod leases;
mod open_files;
mod protocol;
