//! Measures how fast a target is, and derives a pool's tuning from that.
//!
//! [`measure`] writes scratch shards through the seam [`Target`](outlive_backend::Target), reads and
//! deletes them. So it works alike on every kind of target, and overwrites nothing. [`proposals`] is
//! pure: it turns measurements into settings, each with its reason.

mod codecs;
mod curve;
mod measure;
mod measurement;
mod proposal;
mod scratch;

pub use codecs::{CodecSpeed, Processor};
pub use curve::{Knee, Point, gap_bytes, knee, least_depth, rising};
pub use measure::measure;
pub use measurement::{Measurement, Options};
pub use proposal::{Present, Proposal, Setting, compression_word, lasting, proposals};
