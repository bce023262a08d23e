//! The seam between a program's memory and the store.
//!
//! A source knows a rank's regions and which of their pages changed since its *baseline*, the epoch
//! it last settled. The store asks it to freeze, reads the dirty runs, and settles it when the
//! checkpoint is committed. How the source finds changes (hashes, kernel tracking) and how it
//! freezes (copy, fork) stays on its side.

use crate::{Distribution, Epoch, PACKED_BELOW_BYTES, Result};
use std::ops::Range;

/// Name of the stream that holds all regions below [`crate::PACKED_BELOW_BYTES`]. No region may
/// have this name (names are non-empty).
pub const PACKED_STREAM: &str = "";

/// A named array or byte string, as the catalog of an image describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionDesc {
    /// Unique within the image, not empty.
    pub name: String,
    /// Opaque to the store; front doors use NumPy's notation (`<f8`) and `py:` names.
    pub dtype: String,
    /// Extents of the array, outermost first; empty for a scalar.
    pub shape: Vec<u64>,
    /// Length of its bytes.
    pub bytes: u64,
    /// Where the bytes are.
    pub location: RegionLocation,
    /// What other ranks of the checkpoint have of it.
    pub distribution: Distribution,
}

impl RegionDesc {
    /// Whether the ranks of a group compare its bytes before they save: it is the same on all ranks, and small.
    /// Arrays of floating-point numbers may differ in their last bits, or be statistics of each rank's own;
    /// structures and raw bytes may have pointers in them, and bytes that only fill up.
    pub fn is_compared(&self) -> bool {
        let dtype = self.dtype.trim_start_matches(['<', '>', '|', '=']);
        let kind = dtype.chars().next();
        let is_raw = matches!(kind, Some('V' | '[' | '{')) || dtype == "u1";
        let is_exact = matches!(kind, Some('b' | 'i' | 'u' | 'S' | 'U' | 'm' | 'M'));
        let is_value = dtype.contains(':');
        let is_one = match is_value {
            true => self.shape.iter().product::<u64>() == 1,
            false => self.shape.is_empty(),
        };
        self.distribution == Distribution::Replicated
            && self.bytes < PACKED_BELOW_BYTES as u64
            && !is_raw
            && (is_one || (is_exact && !is_value))
    }
}

/// Where a region's bytes are within its image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionLocation {
    /// At `offset` of the packed stream.
    Packed {
        /// Bytes from the stream's start.
        offset: u64,
    },
    /// A stream of its own, which has the region's name.
    Own,
}

/// One page-tracked run of bytes: a large region, or the packed stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamDesc {
    /// The region's name, or [`PACKED_STREAM`].
    pub name: String,
    /// Its length.
    pub bytes: u64,
}

/// A range of pages of one stream, counted from the stream's first byte.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PageRange {
    /// First page.
    pub first: u64,
    /// Number of pages.
    pub count: u64,
}

/// Dirty pages that lie side by side within one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Index into [`Frozen::streams`].
    pub stream: u32,
    /// Number of pages, 1 to 512.
    pub pages: u32,
    /// First page, counted from the stream's first byte.
    pub first_page: u64,
}

/// How dirty pages are held still while they are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FreezeMode {
    /// Whichever keeps the program least: by dirty bytes, budget, and what a fork would cost.
    #[default]
    Auto,
    /// Copied aside within the budget while the program stands; the rest is read while it waits.
    Copy,
    /// A child process that only sleeps holds them, and is read.
    Fork,
    /// Those that have gone quiet were copied before the freeze, in the background; the rest as
    /// with `Auto`.
    Precopy,
}

impl FreezeMode {
    /// All of them.
    pub const ALL: [FreezeMode; 4] =
        [FreezeMode::Auto, FreezeMode::Copy, FreezeMode::Fork, FreezeMode::Precopy];

    /// As `pool.toml` calls it.
    pub fn name(self) -> &'static str {
        match self {
            FreezeMode::Auto => "auto",
            FreezeMode::Copy => "copy",
            FreezeMode::Fork => "fork",
            FreezeMode::Precopy => "precopy",
        }
    }

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<FreezeMode> {
        FreezeMode::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// What was done to freeze an image.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FreezeReport {
    /// The way that was taken and why, such as "copy: 12.0 KiB fit into freeze_bytes_max".
    pub freeze: String,
    /// How changes were found.
    pub tracker: String,
    /// Bytes of large regions copied aside while the program stood.
    pub copied_bytes: u64,
    /// Bytes that had been copied before the freeze and were still valid.
    pub ahead_bytes: u64,
    /// Bytes held by a forked child.
    pub forked_bytes: u64,
    /// Bytes read from the program's memory while it waits.
    pub live_bytes: u64,
}

/// What the store asks of a freeze.
#[derive(Clone, Debug, Default)]
pub struct FreezeRequest {
    /// The epoch whose tree the store holds. A source with another baseline reports every page.
    pub baseline: Option<Epoch>,
    /// Clean pages that the store wants all the same, by stream name: it rewrites them to keep
    /// restores fast. Ranges beyond a stream's end are ignored.
    pub also: Vec<(String, PageRange)>,
    /// How many bytes of dirty pages may be copied aside. The rest is read from the program's
    /// memory while it waits.
    pub freeze_bytes_max: u64,
    /// How they are to be held still.
    pub freeze: FreezeMode,
}

/// A rank's memory as the store sees it.
pub trait PageSource {
    /// The regions that a freeze would have, as far as they are known before.
    ///
    /// # Errors
    /// `Invalid` for regions that no image can hold.
    fn regions(&mut self) -> Result<Vec<RegionDesc>> {
        Ok(Vec::new())
    }

    /// Names and bytes of the regions that ranks compare ([`RegionDesc::is_compared`]), as they are now.
    ///
    /// # Errors
    /// As [`PageSource::regions`].
    fn compared(&mut self) -> Result<Vec<(String, Vec<u8>)>> {
        Ok(Vec::new())
    }

    /// Finds what changed and fixes it. The program's regions must be quiescent from before this
    /// call until [`Frozen::release_live`] was called on the result (at once if
    /// [`Frozen::live_runs`] is 0).
    ///
    /// # Errors
    /// `Invalid` for duplicate or empty names and for regions that cannot be read.
    fn freeze(&mut self, request: &FreezeRequest) -> Result<Box<dyn Frozen>>;
}

/// An image at its freeze.
pub trait Frozen: Send + Sync {
    /// Every region of the image, in the program's order.
    fn regions(&self) -> &[RegionDesc];

    /// Bytes that the front door keeps with the image (the shape of a Python tree, say).
    fn attachment(&self) -> &[u8];

    /// Every stream of the image; the packed stream, if there is one, comes first.
    fn streams(&self) -> &[StreamDesc];

    /// The dirty runs, ordered by stream and page; none crosses a block, none overlap.
    fn runs(&self) -> &[Run];

    /// How many pages of the runs differ from the baseline; the others were asked for.
    fn changed_pages(&self) -> u64;

    /// How many runs, from the first on, are read from the program's memory itself. While they
    /// are unread the program waits.
    fn live_runs(&self) -> usize;

    /// The bytes of `runs()[run]`: its pages, cut off at the stream's end. They are lent where they
    /// lie in memory, else they are read into `scratch`, which grows to their length.
    ///
    /// # Errors
    /// `Retry` if what held them still is gone: a forked child may be killed by anybody.
    fn bytes<'a>(&'a self, run: usize, scratch: &'a mut Vec<u8>) -> Result<&'a [u8]>;

    /// Some pages of `runs()[run]`, numbered from its first; to be asked for once, and
    /// stored soon: what the source wants to learn of them it learns while they are in the processor's
    /// cache. `scratch` as for [`Frozen::bytes`].
    ///
    /// # Errors
    /// As for [`Frozen::bytes`].
    fn read<'a>(
        &'a self,
        run: usize,
        pages: Range<u32>,
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8]>;

    /// What was done to freeze it.
    fn report(&self) -> FreezeReport;

    /// Says that no live run will be read again; the program may go on.
    fn release_live(&self);

    /// Ends this freeze: with the epoch that was committed, which becomes the source's baseline, or
    /// with `None` after a failure, which leaves the baseline as it was.
    fn commit_baseline(&self, committed: Option<Epoch>);
}
