//! All tests of this crate that see it from outside: one program, as each takes long to link.

mod bugs;
mod checks;
mod explore;
mod protocol;
