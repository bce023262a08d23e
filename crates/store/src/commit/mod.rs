//! The log of a job: reads its history, opens sessions, commits manifests.

mod history;
mod position;
mod session;
mod suspect;

pub use history::{Entry, History, history, manifests_of};
pub use outlive_format::{Changes, Committed, Moved, Opened};
pub use position::{Position, PositionReader};
pub use session::{Commit, LogHead, Reached, append_note, segments_of};
pub use suspect::mark_suspect;
