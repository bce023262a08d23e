//! The log of a job: reading its history, opening a session, committing a manifest.

mod history;
mod session;

pub use history::{Entry, History, history};
pub use session::{Changes, Commit, Committed, LogHead, Moved, append_note};
