//! The methods that find changed pages, and their names.

use crate::{Error, Result};
use std::fmt;

/// Method that finds written pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TrackerKind {
    /// The kernel notes the first write to each armed page: userfaultfd with `WP_ASYNC`, read by
    /// `PAGEMAP_SCAN` (Linux 6.7).
    WpAsync,
    /// All pages are hashed and compared.
    Hash,
}

/// Tracker that a job uses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum TrackerChoice {
    /// The cheapest that works on this system.
    #[default]
    Auto,
    /// This tracker; where it does not work, a comparison by hash.
    Only(TrackerKind),
}

impl TrackerKind {
    /// All trackers, the cheapest first.
    pub const ALL: [TrackerKind; 2] = [TrackerKind::WpAsync, TrackerKind::Hash];

    /// Returns the tracker's name in options and statistics.
    pub fn name(self) -> &'static str {
        match self {
            TrackerKind::WpAsync => "wp-async",
            TrackerKind::Hash => "hash",
        }
    }
}

impl fmt::Display for TrackerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl TrackerChoice {
    /// Parses a choice: `auto`, or the name of a tracker.
    ///
    /// # Errors
    /// `Invalid` for another word.
    pub fn parse(word: &str) -> Result<TrackerChoice> {
        if word == "auto" {
            return Ok(TrackerChoice::Auto);
        }
        let kind = TrackerKind::ALL.into_iter().find(|kind| kind.name() == word);
        kind.map(TrackerChoice::Only).ok_or_else(|| {
            Error::invalid(format!(
                "tracker = {word:?} is not possible: give auto, wp-async or hash"
            ))
        })
    }
}
