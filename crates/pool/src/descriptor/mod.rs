//! Says what a pool is: its descriptor and markers, where they and the log are, and how they
//! compare.

pub(crate) mod compare;
pub(crate) mod config;
pub(crate) mod encryption;
pub(crate) mod location;
pub(crate) mod log_configuration;
pub(crate) mod marker;
pub(crate) mod paths;
pub(crate) mod redundancy;
pub(crate) mod vacant;
