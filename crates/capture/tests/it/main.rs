//! All tests of this crate that see it from outside: one program, since each takes long to link.

mod ground_truth;
mod page_trackers;
