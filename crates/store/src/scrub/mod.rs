//! Scrubbing: `check` reads every byte of a pack, and `scrub` checks all packs at a given rate.
//! `heal` moves whole data out of damaged packs (`rescue`) and condemns them. Why:
//! docs/design/010-scrub.md.

mod check;
mod heal;
mod listed;
mod rescue;
mod run;

pub use heal::HealReport;
pub(crate) use heal::{Missing, heal_alone};
pub use run::{ScrubOptions, ScrubReport, scrub};
