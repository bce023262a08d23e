//! The freeze: find what changed, copy what fits, leave the rest live.

use crate::arena::Source;
use crate::frozen::FrozenMemory;
use crate::layout::Layout;
use crate::memory::Memory;
use crate::{HashTracker, Region, runs};
use outlive_types::{Error, FreezeRequest, Frozen, PageRange, PageSource, Result, Run, pages_of};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};

/// The regions of a rank, tracked by hashes and frozen by copying. It may be frozen many times; the
/// tracker may outlive it and serve the next one.
#[derive(Debug)]
pub struct MemorySource {
    tracker: Arc<HashTracker>,
    image: Image,
    attachment: Arc<[u8]>,
    threads: usize,
}

#[derive(Debug)]
enum Image {
    Given(Vec<Region>),
    LaidOut(Arc<Layout>),
}

impl MemorySource {
    /// A source of `regions`, in the program's order, and of `attachment`, which the store keeps
    /// with the image. A freeze works on up to `threads` threads
    /// ([`default_threads`](crate::default_threads) suits most).
    pub fn new(
        tracker: Arc<HashTracker>,
        regions: Vec<Region>,
        attachment: Vec<u8>,
        threads: usize,
    ) -> MemorySource {
        MemorySource {
            tracker,
            image: Image::Given(regions),
            attachment: attachment.into(),
            threads,
        }
    }

    /// The regions' places, worked out once.
    fn layout(&mut self) -> Result<Arc<Layout>> {
        match &mut self.image {
            Image::LaidOut(layout) => Ok(Arc::clone(layout)),
            Image::Given(regions) => {
                Layout::check(regions)?;
                let layout = Arc::new(Layout::new(std::mem::take(regions)));
                self.image = Image::LaidOut(Arc::clone(&layout));
                Ok(layout)
            }
        }
    }
}

impl PageSource for MemorySource {
    fn freeze(&mut self, request: &FreezeRequest) -> Result<Box<dyn Frozen>> {
        let layout = self.layout()?;
        let streams = u32::try_from(layout.streams.len()).map_err(|_| {
            Error::invalid("more than 4,294,967,295 large regions cannot be saved: join some")
        })?;
        let (freeze, mut spare) = self.tracker.begin()?;
        layout.pack(&mut spare.packed);
        let bytes = layout.stream_bytes(&spare.packed);
        let diffs = self.tracker.diff(request.baseline, &layout, &bytes, self.threads);
        let mut also = runs::wanted(request, &layout.streams);
        let mut all = Vec::new();
        let mut fresh = Vec::new();
        let mut changed_pages = 0;
        for (stream, diff) in (0..streams).zip(&diffs) {
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
            fresh.push(match diff {
                Some(_) => None,
                None => Some(Mutex::new(vec![0; pages as usize])),
            });
        }
        let (live_runs, offsets) = {
            let copy = plan_copy(&layout, &all, request.freeze_bytes_max);
            spare.arena.fill(&copy.sources, request.freeze_bytes_max, self.threads);
            (copy.live_runs, copy.offsets)
        };
        let hashed = all.iter().map(|_| AtomicU32::new(0)).collect();
        Ok(Box::new(FrozenMemory {
            tracker: Arc::clone(&self.tracker),
            freeze,
            layout,
            attachment: Arc::clone(&self.attachment),
            runs: all,
            changed_pages,
            live_runs,
            offsets,
            spare,
            freeze_bytes_max: request.freeze_bytes_max,
            released: AtomicBool::new(false),
            diffs: Mutex::new(Some(diffs)),
            fresh,
            hashed,
        }))
    }
}

/// What is copied aside.
struct CopyPlan<'a> {
    /// Runs before this one are live, as far as they lie in the program's memory; none after.
    live_runs: usize,
    /// For each run from `live_runs` on, where the arena holds its bytes, if it does.
    offsets: Vec<usize>,
    sources: Vec<Source<'a>>,
}

/// Takes the last runs, as many as fit: the live ones, which the store reads first, stay.
fn plan_copy<'a>(layout: &'a Layout, runs: &[Run], bytes_max: u64) -> CopyPlan<'a> {
    let source = |run: &Run| match layout.memory(run.stream as usize) {
        Some(memory @ Memory::Raw(_)) => {
            let (offset, length) = runs::extent(run, memory.length() as u64);
            Some(Source { memory, offset, length })
        }
        _ => None,
    };
    let mut left_bytes = bytes_max;
    let live_runs = runs
        .iter()
        .rposition(|run| match source(run) {
            None => false,
            Some(source) => match left_bytes.checked_sub(source.length as u64) {
                None => true,
                Some(less) => {
                    left_bytes = less;
                    false
                }
            },
        })
        .map_or(0, |last_live| last_live + 1);
    let mut plan = CopyPlan { live_runs, offsets: Vec::new(), sources: Vec::new() };
    let mut end = 0;
    for run in &runs[live_runs..] {
        plan.offsets.push(end);
        if let Some(source) = source(run) {
            end += source.length;
            plan.sources.push(source);
        }
    }
    plan
}
