//! Compares images with the memory that they are of, for every way to find changed pages. Programs
//! write while images are persisted, in several threads, in patterns that are easy and hard for
//! trackers.
//!
//! `OUTLIVE_TEST_INTERVALS` sets the number of images for each case (default 40).
#![allow(unsafe_code)] // regions lie in memory that others write

mod never_pausing;
mod pausing;
mod program;

use outlive_capture::ChangeTracker;
use outlive_capture::track::{TrackerChoice, TrackerKind};
use std::sync::Arc;

/// Returns every choice of a tracker, with its name.
fn choices() -> Vec<(&'static str, TrackerChoice)> {
    let only = |kind: TrackerKind| (kind.name(), TrackerChoice::Only(kind));
    let mut choices = vec![("auto", TrackerChoice::Auto)];
    choices.extend(TrackerKind::ALL.map(only));
    choices
}

/// Returns a tracker; prints a note on standard error if it is not the chosen one.
fn tracker(name: &str, choice: TrackerChoice) -> Arc<ChangeTracker> {
    let tracker = Arc::new(ChangeTracker::with(choice));
    let report = tracker.report();
    if name != "auto" && !report.starts_with(name) {
        eprintln!("not tested: {name}: {report}");
    }
    tracker
}

fn intervals() -> u64 {
    let text = std::env::var("OUTLIVE_TEST_INTERVALS").unwrap_or_default();
    text.parse().unwrap_or(40)
}
