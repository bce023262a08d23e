//! Limits the reads of a file that changes meanwhile.

use super::content::FileChange;
use outlive_format::Item;

/// Most reads of a file that changes while it is read.
pub const ATTEMPTS: u8 = 3;

/// The reads of one file.
#[derive(Clone, Default)]
pub struct Attempts {
    count: u8,
    /// Result of the last read.
    last: Option<Box<Item>>,
}

impl Attempts {
    /// Records the result of one more read, and the file's change meanwhile. Returns `None` if the
    /// file must be read again, otherwise whether the result is the file at one moment.
    pub fn end(&mut self, change: FileChange, found: &Item) -> Option<bool> {
        self.count += 1;
        let is_same = |last: &Item| {
            let times = Item { ctime: found.ctime, unsettled: found.unsettled, ..last.clone() };
            times == *found
        };
        let is_steady = match change {
            FileChange::No => true,
            FileChange::Status => self.last.as_deref().is_some_and(is_same),
            FileChange::Yes => false,
        };
        self.last = Some(Box::new(found.clone()));
        (is_steady || self.count >= ATTEMPTS).then_some(is_steady)
    }
}
