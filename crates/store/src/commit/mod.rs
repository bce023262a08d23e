//! The log of a job: reads its history, opens sessions, commits manifests.

mod history;
mod position;
mod remarks;
mod session;

pub use history::{Entry, History, history, manifests_of};
pub use outlive_format::{Changes, Committed, Moved, Opened};
pub use position::{Position, PositionReader};
pub use remarks::{change_remarks, mark_suspect};
pub use session::{Commit, LogHead, Reached, segments_of};
