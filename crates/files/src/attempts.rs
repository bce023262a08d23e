//! How often a file is read that changes meanwhile.

use super::content::Change;
use outlive_format::Item;

/// A file that changes while it is read is read so often in all.
pub const ATTEMPTS: u8 = 3;

/// The readings of one file.
#[derive(Clone, Default)]
pub struct Attempts {
    count: u8,
    /// What the last one found.
    last: Option<Box<Item>>,
}

impl Attempts {
    /// Notes what one more has found, with what happened to the file meanwhile. Returns `None` if the
    /// file is to be read again, and otherwise whether this was the file at one moment.
    pub fn end(&mut self, change: Change, found: &Item) -> Option<bool> {
        self.count += 1;
        let is_same = |last: &Item| {
            let times = Item { ctime: found.ctime, unsettled: found.unsettled, ..last.clone() };
            times == *found
        };
        let is_steady = match change {
            Change::No => true,
            Change::Status => self.last.as_deref().is_some_and(is_same),
            Change::Yes => false,
        };
        self.last = Some(Box::new(found.clone()));
        (is_steady || self.count >= ATTEMPTS).then_some(is_steady)
    }
}
