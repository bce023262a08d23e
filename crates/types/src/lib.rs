//! The terms that all crates share: ids, units, and errors by the caller's next step. It also has
//! the interfaces to a program's memory ([`PageSource`]) and to the connection of its ranks
//! ([`Coordinator`]). No I/O happens here.

mod coordinator;
mod counted;
mod distribution;
mod env;
mod epoch_name;
mod error;
mod event;
mod ids;
pub mod metrics;
mod missing;
mod part;
mod path_text;
mod scalar;
mod shared;
mod source;
pub mod sync;
mod threads;
mod tracking;

pub use coordinator::Coordinator;
pub use counted::counted;
pub use distribution::Distribution;
pub use env::{Clock, FixedClock, Rng, SeededRng, SystemClock, SystemRng};
pub use epoch_name::{EPOCH_FORMS, EpochName};
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, NoObserver, Observer, Progress};
pub use ids::{COMMITTER, Codec, Epoch, Fingerprint, JobName, PackId, Rank, SessionId};
pub use missing::Missing;
pub use part::{Overlap, Part, uncovered};
pub use path_text::{path_of, shown_path};
pub use scalar::Scalar;
pub use shared::{SharedChild, SharedImage, SharedRun};
pub use source::{
    FreezeMode, FreezeReport, FreezeRequest, Frozen, PACKED_STREAM, PageRange, PageSource,
    RegionDesc, RegionLocation, Run, StreamDesc,
};
pub use threads::ThreadRank;
pub use tracking::{TrackerChoice, TrackerKind};

/// Bytes of a page: the unit of change tracking.
pub const PAGE_BYTES: usize = 4096;
/// Pages of a block: one leaf of the page tree describes one block.
pub const BLOCK_PAGES: usize = 512;
/// Bytes of a block (2 MiB).
pub const BLOCK_BYTES: usize = PAGE_BYTES * BLOCK_PAGES;
/// Regions smaller than this are packed together into the image's packed stream.
pub const PACKED_BELOW_BYTES: usize = 64 * 1024;

/// Returns bytes as text for people: "4.0 MiB".
pub fn shown_bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Returns the number of pages that `bytes` bytes touch; the last one may be partial.
pub const fn pages_of(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES as u64)
}

/// Returns the number of blocks that `bytes` bytes touch; the last one may be partial.
pub const fn blocks_of(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES as u64)
}
