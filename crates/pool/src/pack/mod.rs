//! Packs: filled container by container, read by ranges, listed and checked.

pub(crate) mod check;
pub(crate) mod container;
pub(crate) mod packs;
pub(crate) mod read;
pub(crate) mod writer;
