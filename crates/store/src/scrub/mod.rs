//! Scrubbing: `check` (read a pack, every byte of it) -> `scrub` (all of them, at a rate) -> `heal`
//! (what is whole moves out: `rescue`; what is damaged is condemned). Why: docs/design/010-scrub.md.

mod check;
mod heal;
mod listed;
mod rescue;
mod run;

pub use heal::HealReport;
pub(crate) use heal::{Missing, heal_alone};
pub use run::{ScrubOptions, ScrubReport, scrub};
