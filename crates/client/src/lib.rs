//! A program's side of one job: its saves, the memory that a restore fills, and the tracker between
//! them, so that the next save writes only what has changed. Every front door is built on it. A
//! program of several ranks has one client in each, and they save and restore together.
//!
//! [`Client`] opens a job and saves. A restore asks for the [`Destination`] of each region of a
//! checkpoint, and makes a plan of the answers. It fills memory by the plan, at once or lazily, and
//! primes the tracker with what it has filled.
//!
//! [`Client::events`] subscribes to the fate of the job's checkpoints. The [`Subscription`] keeps
//! each event until the program takes it.

mod client;
mod events;
mod gate;
mod helper;
mod job_gate;
mod jobs;
mod lazy;
mod named;
mod parts;
pub mod past;
mod plan;
mod restore;
mod sessions;
pub mod stop;
mod together;
mod transcript;
mod write_permit;

pub use client::{Client, End};
pub use events::{NextEvent, Subscription};
pub use gate::CLOSE_WAIT;
pub use helper::{await_helper, set_helper_command};
pub use jobs::{delete_job, rename_job};
pub use lazy::{Lazily, LazyRestore, MemoryFill};
pub use named::{NamedMemory, wish_for};
pub use plan::{Destination, Offer};
pub use restore::Filled;
pub use sessions::collect_and_let_go;
pub use transcript::covered_by;
pub use write_permit::{WritePermit, interrupted};
