//! Which regions of a job are watched, block by block, and what of them must be compared.
//!
//! [`crate::track`] says which hardware pages were written. Here that is made pages of regions (`region`),
//! for all regions of a job (`watches`), and decided where watching pays (`policy`).

#![allow(unsafe_code)] // what is watched must be the program's memory

mod policy;
mod ranges;
mod region;
mod watches;

pub(crate) use region::{Look, RegionSpan};
pub(crate) use watches::Watches;

#[cfg(test)]
mod tests;
