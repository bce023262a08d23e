//! Watches regions of a job, block by block, and decides which of their pages must be compared.
//!
//! [`crate::track`] reports written hardware pages. This module translates them to pages of regions
//! (`region`), for all regions of a job (`watches`), and decides where watching pays (`policy`).

#![allow(unsafe_code)] // watched memory must be the program's

mod policy;
mod ranges;
mod region;
mod watches;

pub(crate) use region::{FreezePages, RegionSpan};
pub(crate) use watches::Watches;

#[cfg(test)]
mod tests;
