//! All integration tests of this crate in one program, since each program takes long to link.

mod access;
mod certificates;
mod conformance;
mod faults;
mod odd;
mod refusals;
mod relay;
mod requests;
mod storm;
mod support;
