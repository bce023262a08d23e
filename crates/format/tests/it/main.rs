//! All integration tests of this crate in one program, since each program takes long to link.

mod canonical;
mod damage;
mod golden;
mod overlay;
mod round_trip;
mod samples;
