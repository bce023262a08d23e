//! All tests of this crate that see it from outside: one program, as each takes long to link.

mod canonical;
mod damage;
mod golden;
mod overlay;
mod round_trip;
mod samples;
