//! All tests of this crate that see it from outside: one program, as each takes long to link.

mod conformance;
mod fuse;
mod open_files;
mod replicas;
