//! All tests of this crate that see it from outside: one program, as each takes long to link.

mod cluster;
mod conformance;
mod faults;
mod fork;
mod support;
mod users;
