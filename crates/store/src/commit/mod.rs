//! The log of a job: reading its history, opening a session, committing a manifest.

mod history;
mod position;
mod session;

pub use history::{Entry, History, history};
pub use position::{Position, Reading};
pub use session::{Changes, Commit, Committed, LogHead, Moved, Opened, append_note};
