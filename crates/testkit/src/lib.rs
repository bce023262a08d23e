//! Tools for the tests of several crates: a proxy that spoils requests, and forked children.

mod fork;
mod proxy;

pub use fork::succeeds_in_a_child;
pub use proxy::{Fault, Proxy};
