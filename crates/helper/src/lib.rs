//! The helper: a process beside the programs of one user on a host. It holds the frozen images of
//! their saves, and completes a save whose program was killed (docs/helper.md).
//!
//! | File | Content |
//! |---|---|
//! | `socket.rs` | messages with descriptors, between processes of one user |
//! | `message.rs` | what programs, helper and workers say to each other |
//! | `connection.rs` | a program's side |
//! | `server.rs` | the helper: which images it holds, and when a worker completes them |
//! | `image.rs` | a held image, as the store reads it |
//! | `complete.rs` | the worker: completes the save of a program that is gone |

mod complete;
mod connection;
mod image;
mod message;
mod server;
mod socket;
mod start;

pub use complete::{Completed, HeldSave, complete, work};
pub use connection::{HelperConnection, HelperGuard, settle};
pub use server::serve;
pub use start::detach;
