//! The interface between a program's memory and the store.
//!
//! A source knows a rank's regions, and which of their pages changed since its *baseline*, the
//! epoch that was last committed to it. The store asks it to freeze, reads the dirty runs, and
//! commits the baseline when the checkpoint is committed. The store does not see how the source
//! finds changes (hashes, kernel tracking) and how it freezes (copy, fork).

use crate::{Distribution, Epoch, Error, PACKED_BELOW_BYTES, Result, SharedImage};
use std::ops::Range;

/// Name of the stream that holds all regions below [`crate::PACKED_BELOW_BYTES`]. No region may
/// have this name (names are non-empty).
pub const PACKED_STREAM: &str = "";

/// A named array or byte string, as the catalog of an image describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionDesc {
    /// Unique within the image, not empty.
    pub name: String,
    /// Type of the elements. Opaque to the store; language bindings use NumPy's notation (`<f8`)
    /// and `py:` names.
    pub dtype: String,
    /// Extents of the array, outermost first; empty for a scalar.
    pub shape: Vec<u64>,
    /// Length of its bytes.
    pub bytes: u64,
    /// Location of the bytes in the image.
    pub location: RegionLocation,
    /// Distribution over the ranks of the checkpoint.
    pub distribution: Distribution,
}

impl RegionDesc {
    /// Returns whether the ranks of a group compare its bytes before they save: it is the same on
    /// all ranks, and small. Floating-point arrays are excluded: they may differ in their last
    /// bits, or be statistics of each rank. So are structures and raw bytes, which may contain
    /// pointers and padding.
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

/// Location of a region's bytes in its image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionLocation {
    /// At `offset` of the packed stream.
    Packed {
        /// Bytes from the stream's start.
        offset: u64,
    },
    /// In a stream of its own, which has the region's name.
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

/// Method that keeps dirty pages unchanged while they are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FreezeMode {
    /// The method that stops the program least: by dirty bytes, budget, and the cost of a fork.
    #[default]
    Auto,
    /// The pages are copied within the budget while the program stands; the rest is read while it
    /// waits.
    Copy,
    /// A child process that only sleeps keeps the pages, and the store reads its memory.
    Fork,
    /// Pages that the program no longer writes were copied before the freeze, in the background;
    /// the rest as with `Auto`.
    Precopy,
    /// As `Auto`, and a helper process holds the image too: if the program is killed, the helper
    /// completes the save.
    Helper,
}

impl FreezeMode {
    /// All modes.
    pub const ALL: [FreezeMode; 5] = [
        FreezeMode::Auto,
        FreezeMode::Copy,
        FreezeMode::Fork,
        FreezeMode::Precopy,
        FreezeMode::Helper,
    ];

    /// Returns the mode's name in `pool.toml`.
    pub fn name(self) -> &'static str {
        match self {
            FreezeMode::Auto => "auto",
            FreezeMode::Copy => "copy",
            FreezeMode::Fork => "fork",
            FreezeMode::Precopy => "precopy",
            FreezeMode::Helper => "helper",
        }
    }

    /// Returns the mode of that name.
    pub fn from_name(name: &str) -> Option<FreezeMode> {
        FreezeMode::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// Statistics of one freeze.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FreezeReport {
    /// Method and reason, such as "copy: 12.0 KiB fit into freeze_bytes_max".
    pub freeze: String,
    /// Method that found the changes.
    pub tracker: String,
    /// Bytes of large regions that were copied while the program stood.
    pub copied_bytes: u64,
    /// Bytes that had been copied before the freeze and were still valid.
    pub ahead_bytes: u64,
    /// Bytes that a forked child keeps.
    pub forked_bytes: u64,
    /// Bytes that are read from the program's memory while it waits.
    pub live_bytes: u64,
}

impl FreezeReport {
    /// Returns the bytes of large regions that the freeze had to hold, by whatever method.
    pub fn held_bytes(&self) -> u64 {
        self.copied_bytes + self.ahead_bytes + self.forked_bytes + self.live_bytes
    }
}

/// Request of the store for a freeze.
#[derive(Clone, Debug, Default)]
pub struct FreezeRequest {
    /// Epoch whose tree the store holds. A source with another baseline reports every page.
    pub baseline: Option<Epoch>,
    /// Clean pages that the store also wants, by stream name: it rewrites them to keep restores
    /// fast. Ranges beyond a stream's end are ignored.
    pub also: Vec<(String, PageRange)>,
    /// Bytes of dirty pages that may be copied. The rest is read from the program's memory while it
    /// waits.
    pub freeze_bytes_max: u64,
    /// Method that keeps the pages unchanged.
    pub freeze: FreezeMode,
    /// Whether other processes are to read the image ([`Frozen::shared`]).
    pub is_shared: bool,
}

/// A rank's memory as the store sees it.
pub trait PageSource {
    /// Returns the regions that a freeze would have, as far as they are known before it.
    ///
    /// # Errors
    /// `Invalid` for regions that no image can hold.
    fn regions(&mut self) -> Result<Vec<RegionDesc>> {
        Ok(Vec::new())
    }

    /// Returns names and present bytes of the regions that ranks compare
    /// ([`RegionDesc::is_compared`]).
    ///
    /// # Errors
    /// As [`PageSource::regions`].
    fn compared(&mut self) -> Result<Vec<(String, Vec<u8>)>> {
        Ok(Vec::new())
    }

    /// Finds the changes and fixes them. The program must not write its regions from before this
    /// call until [`Frozen::release_live`] was called on the result (at once if
    /// [`Frozen::live_runs`] is 0).
    ///
    /// # Errors
    /// `Invalid` for duplicate or empty names and for regions that cannot be read.
    fn freeze(&mut self, request: &FreezeRequest) -> Result<Box<dyn Frozen>>;
}

/// An image at its freeze.
pub trait Frozen: Send + Sync {
    /// Returns every region of the image, in the program's order.
    fn regions(&self) -> &[RegionDesc];

    /// Returns bytes that the language binding keeps with the image (the shape of a Python tree,
    /// say).
    fn attachment(&self) -> &[u8];

    /// Returns the outputs that the checkpoint covers, encoded; empty if there are none.
    fn outputs(&self) -> &[u8] {
        &[]
    }

    /// Returns every stream of the image; the packed stream, if there is one, comes first.
    fn streams(&self) -> &[StreamDesc];

    /// Returns the dirty runs, ordered by stream and page. None crosses a block, and none overlap.
    fn runs(&self) -> &[Run];

    /// Returns the number of pages of the runs that differ from the baseline; the store requested
    /// the others.
    fn changed_pages(&self) -> u64 {
        self.runs().iter().map(|run| u64::from(run.pages)).sum()
    }

    /// Returns the number of runs, from the first on, that are read from the program's own memory.
    /// The program waits until they are read.
    fn live_runs(&self) -> usize {
        0
    }

    /// Returns the bytes of `runs()[run]`: its pages, cut off at the stream's end. They are a view
    /// of memory where possible; otherwise they are read into `scratch`, which grows to their
    /// length.
    ///
    /// # Errors
    /// `Retry` if the snapshot source is gone: any process may kill a forked child.
    fn bytes<'a>(&'a self, run: usize, scratch: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        self.read(run, 0..self.runs()[run].pages, scratch)
    }

    /// Reads some pages of `runs()[run]`, numbered from its first. The store reads each page once,
    /// and stores it soon: the source computes its own data about the pages while they are in the
    /// processor's cache. `scratch` as for [`Frozen::bytes`].
    ///
    /// # Errors
    /// As for [`Frozen::bytes`].
    fn read<'a>(
        &'a self,
        run: usize,
        pages: Range<u32>,
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8]>;

    /// Returns the image as other processes can read it. Only if the freeze was asked for that
    /// ([`FreezeRequest::is_shared`]).
    ///
    /// # Errors
    /// Why they cannot: most often, bytes were left in the program's own memory.
    fn shared(&self) -> Result<SharedImage> {
        Err(Error::invalid("this source shares no memory with other processes"))
    }

    /// Returns the statistics of the freeze.
    fn report(&self) -> FreezeReport;

    /// Declares that no live run will be read again; the program may continue.
    fn release_live(&self);

    /// Ends this freeze. A committed epoch becomes the source's baseline; after a failure, `None`
    /// leaves the baseline as it was.
    fn commit_baseline(&self, committed: Option<Epoch>);
}
