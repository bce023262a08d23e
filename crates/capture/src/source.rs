//! The freeze: finds the changes, copies as much as fits, leaves the rest live.

use crate::ahead::Ahead;
use crate::arena::{Arena, ArenaLimits};
use crate::fork::{ForkImage, Mappings};
use crate::freeze_method::{self, Dirty, ToHold};
use crate::frozen::FrozenMemory;
use crate::in_place::InPlace;
use crate::layout::Layout;
use crate::memory::Memory;
use crate::snapshot_source::{HoldPlan, Holders, ImageMemory, forked, unfrozen_bytes};
use crate::track::Refusal;
use crate::tracker::Changes;
use crate::{ChangeTracker, Region, lazy, runs};
use outlive_chunk::Diff;
use outlive_types::sync::plain::Mutex;
use outlive_types::{
    Error, FreezeMode, FreezeReport, FreezeRequest, Frozen, PageRange, PageSource, RegionDesc,
    Result, Run, pages_of, shown_bytes,
};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

/// The regions of a rank, tracked by hashes and frozen by copying. It may be frozen many times; the
/// tracker may outlive it and serve the next one.
#[derive(Debug)]
pub struct MemorySource {
    tracker: Arc<ChangeTracker>,
    image: SourceRegions,
    attachment: Arc<[u8]>,
    outputs: Arc<[u8]>,
    threads: usize,
    elsewhere: Vec<(RegionDesc, Memory)>,
}

#[derive(Debug)]
enum SourceRegions {
    Given(Vec<Region>),
    LaidOut(Arc<Layout>),
}

impl MemorySource {
    /// Returns a source of `regions`, in the program's order, and of `attachment`, which the store
    /// keeps with the image. A freeze works on up to `threads` threads
    /// ([`default_threads`](crate::default_threads) suits most).
    pub fn new(
        tracker: Arc<ChangeTracker>,
        regions: Vec<Region>,
        attachment: Vec<u8>,
        threads: usize,
    ) -> MemorySource {
        MemorySource {
            tracker,
            image: SourceRegions::Given(regions),
            attachment: attachment.into(),
            outputs: Arc::default(),
            threads,
            elsewhere: Vec::new(),
        }
    }

    /// Returns the same source for a rank with more regions, whose bytes another rank stores.
    #[must_use]
    pub fn with_elsewhere(self, elsewhere: Vec<Region>) -> MemorySource {
        let elsewhere = elsewhere.into_iter().map(|it| (it.description(), it.memory)).collect();
        MemorySource { elsewhere, ..self }
    }

    /// Sets the outputs that the checkpoint covers, encoded.
    pub fn set_outputs(&mut self, outputs: Vec<u8>) {
        self.outputs = outputs.into();
    }

    /// Waits until the regions miss nothing that a lazy restore of this process still brings,
    /// whichever job it belongs to. False if that takes longer than `timeout`. A freeze itself
    /// waits without limit.
    ///
    /// # Errors
    /// Regions that no image can hold; `Retry` if something will stay missing.
    pub fn wait_filled(&mut self, timeout: Option<Duration>) -> Result<bool> {
        let places: Vec<_> = self.layout()?.places().collect();
        lazy::wait_for(&places, timeout).map_or(Ok(false), |filled| filled.map(|()| true))
    }

    /// Returns the layout of the regions, which is computed once.
    fn layout(&mut self) -> Result<Arc<Layout>> {
        match &mut self.image {
            SourceRegions::LaidOut(layout) => Ok(Arc::clone(layout)),
            SourceRegions::Given(regions) => {
                Layout::check(regions)?;
                let layout = Arc::new(Layout::new(std::mem::take(regions)));
                self.image = SourceRegions::LaidOut(Arc::clone(&layout));
                Ok(layout)
            }
        }
    }
}

impl PageSource for MemorySource {
    fn regions(&mut self) -> Result<Vec<RegionDesc>> {
        let mut regions = self.layout()?.regions.clone();
        regions.extend(self.elsewhere.iter().map(|(region, _)| region.clone()));
        Ok(regions)
    }

    fn compared(&mut self) -> Result<Vec<(String, Vec<u8>)>> {
        let layout = self.layout()?;
        let elsewhere = self.elsewhere.iter().map(|(region, memory)| (region, memory));
        let compared = layout.packed().chain(elsewhere).filter(|(region, _)| region.is_compared());
        Ok(compared
            .map(|(region, memory)| (region.name.clone(), memory.bytes().to_vec()))
            .collect())
    }

    fn freeze(&mut self, request: &FreezeRequest) -> Result<Box<dyn Frozen>> {
        // Waits before anything is read, and also for pages that are not read: a child would hold
        // zeros there.
        self.wait_filled(None)?;
        let layout = self.layout()?;
        let streams = u32::try_from(layout.streams.len()).map_err(|_| {
            Error::invalid("more than 4,294,967,295 large regions cannot be saved: join some")
        })?;
        let (freeze, mut spare) = self.tracker.begin()?;
        // Copies made ahead lie in memory of this process alone.
        let mut ahead = self.tracker.stop_ahead().filter(|_| !request.is_shared);
        layout.pack(&mut spare.packed);
        let packed = request.is_shared.then(|| Memory::Shared(spare.packed[..].into()));
        let image = ImageMemory { layout: &layout, shared: packed.as_ref() };
        let bytes = layout.stream_bytes(&spare.packed);
        let copies = ahead.as_mut().and_then(|stopped| stopped.as_mut().ok());
        let Changes { diffs, learn } =
            self.tracker.diff(request.baseline, &layout, &bytes, copies, self.threads);
        let (all, changed_pages) = runs_of(request, &layout, streams, &diffs);
        let fresh = diffs.iter().map(|diff| diff.is_none().then(Mutex::default)).collect();
        let Keeping { plan, ahead, fork, in_place, freeze: way } =
            self.keep(request, image, &all, ahead, &mut spare.arena);
        let report = FreezeReport {
            freeze: way,
            tracker: self.tracker.report(),
            copied_bytes: plan.copied_bytes,
            ahead_bytes: plan.ahead_bytes,
            forked_bytes: plan.forked_bytes,
            live_bytes: plan.live_bytes,
        };
        let HoldPlan { holds, pieces, live_runs, .. } = plan;
        let copies_ahead = request.freeze == FreezeMode::Precopy && !request.is_shared;
        let hashed = all.iter().map(|_| AtomicU32::new(0)).collect();
        Ok(Box::new(FrozenMemory {
            tracker: Arc::clone(&self.tracker),
            freeze,
            layout,
            attachment: Arc::clone(&self.attachment),
            outputs: Arc::clone(&self.outputs),
            runs: all,
            changed_pages,
            live_runs,
            holds,
            pieces,
            ahead,
            fork,
            in_place,
            report,
            spare,
            freeze_bytes_max: request.freeze_bytes_max,
            released: AtomicBool::new(false),
            diffs: Mutex::new(Some(diffs)),
            fresh,
            learn,
            hashed,
            copies_ahead,
            is_shared: request.is_shared,
            is_committed: AtomicBool::new(false),
        }))
    }
}

/// The snapshot sources of the runs of a freeze, and the text for the report.
struct Keeping<'a> {
    plan: HoldPlan<'a>,
    ahead: Option<Ahead>,
    fork: Option<ForkImage>,
    in_place: Option<InPlace>,
    freeze: String,
}

impl MemorySource {
    /// Snapshots `all` as it is now: from copies ahead, in a child, in place, or by a copy.
    fn keep<'a>(
        &self,
        request: &FreezeRequest,
        image: ImageMemory<'a>,
        all: &[Run],
        ahead: Option<std::result::Result<Ahead, Refusal>>,
        arena: &mut Arena,
    ) -> Keeping<'a> {
        let bytes_max = request.freeze_bytes_max;
        let (mut ahead, prelude) = ahead_of(request.freeze, ahead);
        let ahead_bytes = ahead.as_ref().map_or(0, Ahead::copied_bytes);
        let arena_bytes_max = bytes_max.saturating_sub(ahead_bytes);
        let holders = Holders { fork: None, ahead: ahead.as_ref() };
        let mut plan = HoldPlan::new(image, all, arena_bytes_max, holders);
        let bytes = plan.copied_bytes + plan.live_bytes + ahead_bytes;
        let dirty = Dirty { bytes, unfrozen_bytes: 0, bytes_max };
        let mut with_child = None;
        let mut in_place = None;
        let to_hold = |mappings: &Mappings| {
            // The child will hold all written pages; copies of them are not needed.
            let holders = Holders { fork: Some(mappings), ahead: None };
            let plan = with_child.insert(HoldPlan::new(image, all, bytes_max, holders));
            let ranges = forked(all, &plan.holds, image.layout);
            ToHold { ranges, unfrozen_bytes: unfrozen_bytes(image, all, mappings) }
        };
        // Armed before the child has its image, as always: a write between the two would be neither
        // in the image nor noted for the next one.
        let arm = |held: &[Range<usize>]| in_place = self.tracker.guard(held.to_vec());
        let freeze_method::ForkOutcome { fork, why } =
            freeze_method::take(request.freeze, request.is_shared, dirty, to_hold, arm);
        let (fork, mappings) = fork.unzip();
        match with_child {
            Some(planned) if fork.is_some() => {
                plan = planned;
                self.tracker.keep_ahead(ahead.take());
            }
            _ => {
                in_place = None;
                self.tracker.end_guard();
            }
        }
        let mut suffix = match in_place {
            Some(_) => "; what is not written meanwhile is read in place",
            None => "",
        };
        let state_bytes = image.layout.streams.iter().map(|stream| stream.bytes).sum();
        let limits = ArenaLimits { bytes_max, state_bytes, is_shared: request.is_shared };
        if !arena.make_room_for(&plan.sources, limits) {
            suffix = "; there is no memory for copies, so the program waits until all is written";
            let holders = Holders { fork: mappings.as_ref(), ahead: ahead.as_ref() };
            plan = HoldPlan::new(image, all, 0, holders);
        }
        arena.fill(&plan.sources, self.threads);
        Keeping { plan, ahead, fork, in_place, freeze: prelude + &why + suffix }
    }
}

/// Returns the runs to be saved, changed or requested, and the number of changed pages.
fn runs_of(
    request: &FreezeRequest,
    layout: &Layout,
    streams: u32,
    diffs: &[Option<Diff>],
) -> (Vec<Run>, u64) {
    let mut also = runs::wanted(request, &layout.streams);
    let (mut all, mut changed_pages) = (Vec::new(), 0);
    for (stream, diff) in (0..streams).zip(diffs) {
        let pages = pages_of(layout.streams[stream as usize].bytes);
        let whole = PageRange { first: 0, count: pages };
        match diff {
            Some(diff) => {
                let also = also.remove(&(stream as usize));
                runs::push_runs(&mut all, stream, diff.runs(), also);
                changed_pages += diff.pages();
            }
            None if pages > 0 => {
                runs::push_runs(&mut all, stream, &[whole], None);
                changed_pages += pages;
            }
            None => {}
        }
    }
    (all, changed_pages)
}

/// Returns the copies made ahead, and the beginning of the report.
fn ahead_of(
    mode: FreezeMode,
    ahead: Option<std::result::Result<Ahead, Refusal>>,
) -> (Option<Ahead>, String) {
    match (mode, ahead) {
        (_, Some(Ok(ahead))) => {
            let bytes = shown_bytes(ahead.copied_bytes());
            (Some(ahead), format!("precopy: {bytes} had been copied ahead; in all, "))
        }
        (_, Some(Err(refusal))) => (None, format!("precopy: what was copied is void: {refusal}; ")),
        (FreezeMode::Precopy, None) => {
            (None, "precopy: nothing had been copied ahead; ".to_owned())
        }
        (_, None) => (None, String::new()),
    }
}
