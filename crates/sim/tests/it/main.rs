//! All tests of this crate from outside, in one program, as each program takes long to link.

mod bugs;
mod checks;
mod explore;
mod protocol;
