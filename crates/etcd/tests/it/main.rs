//! All integration tests of this crate in one program, since each program takes long to link.

mod cluster;
mod conformance;
mod faults;
mod fork;
mod support;
mod users;
