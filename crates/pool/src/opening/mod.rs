//! Checks what is there before a pool is made, opened or written, and keeps its descriptor true.

pub(crate) mod home_targets;
pub(crate) mod init_check;
pub(crate) mod marker_check;
pub(crate) mod rewrite;
