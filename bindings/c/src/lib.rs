//! The binding for C: `outlive.h`, which Fortran's module and the C++ header use. A program names
//! its memory once, saves it, and restores it at its next start.
//!
//! Every exported function goes through [`call::call`], which lets no panic out and turns errors
//! into a status and a text. Handles are numbers and not addresses ([`handles`]), so a handle that
//! was closed, or of another process, is refused and not dereferenced.
//!
//! `unsafe` is allowed in the files that take arguments from C: addresses, texts, lists, memory.
#![allow(non_camel_case_types)] // the names are C's
#![allow(clippy::missing_safety_doc)] // C's texts list what a caller must do

#[cfg(not(target_pointer_width = "64"))]
compile_error!("handles hold the number of a process and a counter, which takes 64 bits");

mod arguments;
mod call;
mod checkpoint;
mod core;
mod dtype;
mod events;
mod exit;
mod gate;
mod gather;
mod group;
mod handles;
mod job;
mod notes;
mod notices;
mod pool;
mod protect;
mod prune;
mod regions;
mod restore;
mod save;
mod status;

pub use self::core::outlive_job;
pub use call::outlive_error_message;
pub use checkpoint::*;
pub use events::*;
pub use gate::*;
pub use gather::*;
pub use job::*;
pub use notes::*;
pub use notices::*;
pub use pool::*;
pub use protect::*;
pub use prune::*;
pub use restore::*;
pub use save::*;
pub use status::*;
