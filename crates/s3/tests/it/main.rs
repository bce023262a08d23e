//! All tests of this crate that see it from outside: one program, as each takes long to link.

mod conformance;
mod faults;
mod fork;
mod probe;
mod signatures;
mod support;
mod tls;
mod uploads;
