//! Methods of finding and copying changed memory.

use super::mprotect::Protected;
use outlive_capture::track::{OwnedPages, Refusal, TrackerChoice, WpAsync};
use outlive_capture::{ChangeTracker, OwnedSource};
use outlive_io::{AlignedBuf, gather_past_cache};
use outlive_types::{Error, FreezeMode, FreezeRequest, PAGE_BYTES, PageSource, Result};
use rustix::time::{ClockId, clock_gettime};
use std::ops::Range;
use std::slice::from_ref;

/// A compared method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// mprotect and SIGSEGV, page by page: the paper's PGCK.
    Pgck,
    /// The same, with runs that grow where faults are adjacent: ACCK as published.
    Acck,
    /// WP_ASYNC, page by page.
    WpAsync,
    /// The policy of a job.
    Auto,
    /// Every page is hashed and compared.
    Hash,
    /// Everything is copied.
    CopyAll,
}

/// All policies.
pub const POLICIES: [Policy; 6] =
    [Policy::Pgck, Policy::Acck, Policy::WpAsync, Policy::Auto, Policy::Hash, Policy::CopyAll];

impl Policy {
    /// Returns the name for tables and pictures.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Pgck => "mprotect",
            Policy::Acck => "mprotect, growing runs",
            Policy::WpAsync => "wp-async",
            Policy::Auto => "auto",
            Policy::Hash => "hash",
            Policy::CopyAll => "copy all",
        }
    }
}

/// Longest run of ACCK: 64 MiB.
const RUN_PAGES_MAX: usize = 16_384;

/// A program's memory under a policy, with the image that its copies make.
pub struct Tracked {
    memory: Memory,
    /// Destination of copies, for policies without one of their own.
    aside: AlignedBuf,
    image: AlignedBuf,
    epoch: u64,
}

enum Memory {
    Protected(Protected),
    Pages(OwnedPages),
    Source(OwnedSource),
    Plain(AlignedBuf),
}

/// Cost of one image.
#[derive(Clone, Copy, Default, Debug)]
pub struct Took {
    /// While the program stands: time to find, compare, re-arm and copy the written pages.
    pub stall_s: f64,
    /// While it runs again: hashes that are computed when the copies are read.
    pub drain_s: f64,
    /// Copied pages, and pages whose bytes had changed.
    pub copied_pages: usize,
    pub changed_pages: usize,
}

impl Tracked {
    /// Returns memory of `bytes` bytes, armed if the policy arms any.
    pub fn new(policy: Policy, bytes: usize) -> Result<Tracked> {
        let fill = |memory: &mut [u8]| super::super::state::fill(memory, 1);
        let protected =
            |run_pages_max| Protected::new(bytes, run_pages_max, fill).map(Memory::Protected);
        let source = |tracker: ChangeTracker| -> Result<Memory> {
            let mut source = OwnedSource::tracked("state", bytes, 1, tracker);
            fill(super::super::state::edit(&mut source)?);
            Ok(Memory::Source(source))
        };
        let memory = match policy {
            Policy::Pgck => protected(1)?,
            Policy::Acck => protected(RUN_PAGES_MAX)?,
            Policy::WpAsync => {
                let tracker = WpAsync::open().map_err(refused)?;
                let pages = OwnedPages::new(bytes, Box::new(tracker), fill).map_err(refused)?;
                Memory::Pages(pages)
            }
            Policy::Auto => source(ChangeTracker::with(TrackerChoice::Auto))?,
            Policy::Hash => source(ChangeTracker::new())?,
            Policy::CopyAll => {
                let mut memory = AlignedBuf::zeroed(bytes);
                fill(&mut memory);
                Memory::Plain(memory)
            }
        };
        Tracked::begin(memory)
    }

    /// Returns the same with one kind of tracker under the policy of a job.
    pub fn forced(choice: TrackerChoice, bytes: usize) -> Result<Tracked> {
        let mut source = OwnedSource::tracked("state", bytes, 1, ChangeTracker::with(choice));
        super::super::state::fill(super::super::state::edit(&mut source)?, 1);
        Tracked::begin(Memory::Source(source))
    }

    /// Returns memory without a tracker.
    pub fn bare(bytes: usize) -> Result<Tracked> {
        Tracked::new(Policy::CopyAll, bytes)
    }

    fn begin(memory: Memory) -> Result<Tracked> {
        let none = || AlignedBuf::zeroed(0);
        let mut tracked = Tracked { memory, aside: none(), image: none(), epoch: 0 };
        let bytes = tracked.bytes().len();
        let mut image = AlignedBuf::zeroed(bytes);
        image.copy_from_slice(tracked.bytes());
        let mut aside = AlignedBuf::zeroed(bytes);
        aside.fill(1); // its page faults must not count
        (tracked.image, tracked.aside) = (image, aside);
        Ok(tracked)
    }

    fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Protected(memory) => memory.bytes(),
            Memory::Pages(pages) => pages.bytes(),
            Memory::Source(source) => source.bytes(),
            Memory::Plain(memory) => memory,
        }
    }

    /// Returns the bytes, for the program.
    pub fn edit(&mut self) -> Result<&mut [u8]> {
        match &mut self.memory {
            Memory::Protected(memory) => Ok(memory.edit()),
            Memory::Pages(pages) => Ok(pages.edit()),
            Memory::Source(source) => super::super::state::edit(source),
            Memory::Plain(memory) => Ok(memory),
        }
    }

    /// Takes an image.
    ///
    /// # Errors
    /// `Bug` if the image differs from the memory.
    pub fn take(&mut self) -> Result<Took> {
        let changed_pages = pages_that_differ(&self.image, self.bytes());
        let mut took = Took { changed_pages, ..Took::default() };
        let Tracked { memory, aside, image, epoch } = self;
        match memory {
            Memory::Protected(memory) => {
                let start = cpu_s();
                let found = memory.collect()?;
                copy(&found, memory.bytes(), aside);
                took.stall_s = cpu_s() - start;
                took.copied_pages = apply(&found, aside, image);
            }
            Memory::Pages(pages) => {
                let start = cpu_s();
                let found: Vec<Range<usize>> = pages.collect().map_err(refused)?.collect();
                copy(&found, pages.bytes(), aside);
                took.stall_s = cpu_s() - start;
                took.copied_pages = apply(&found, aside, image);
            }
            Memory::Source(source) => {
                let baseline = (*epoch > 0).then_some(*epoch);
                let request = FreezeRequest {
                    baseline,
                    freeze_bytes_max: u64::MAX,
                    freeze: FreezeMode::Copy,
                    ..FreezeRequest::default()
                };
                let start = cpu_s();
                let frozen = source.freeze(&request)?;
                let stalled = cpu_s();
                // As the persist phase does for the tracker, reads each run, which may be hashed
                // then. Copied pages are returned as a view, without another copy.
                let mut unused = Vec::new();
                for run in 0..frozen.runs().len() {
                    frozen.bytes(run, &mut unused)?;
                }
                *epoch += 1;
                frozen.commit_baseline(Some(*epoch));
                (took.stall_s, took.drain_s) = (stalled - start, cpu_s() - stalled);
                for (number, run) in frozen.runs().iter().enumerate() {
                    let bytes = frozen.bytes(number, &mut unused)?;
                    image[run.first_page as usize * PAGE_BYTES..][..bytes.len()]
                        .copy_from_slice(bytes);
                    took.copied_pages += bytes.len() / PAGE_BYTES;
                }
            }
            Memory::Plain(memory) => {
                let (start, all) = (cpu_s(), 0..memory.len());
                copy(from_ref(&all), memory, aside);
                took.stall_s = cpu_s() - start;
                took.copied_pages = apply(from_ref(&all), aside, image);
            }
        }
        if self.image[..] != *self.bytes() {
            return Err(Error::bug("a tracker has missed a change: the image is not the memory"));
        }
        Ok(took)
    }

    /// Returns a text on how changes were found.
    pub fn report(&self) -> String {
        match &self.memory {
            Memory::Source(source) => source.tracker().report(),
            _ => String::new(),
        }
    }
}

/// Copies parts to `aside`, one after another, as a freeze does.
fn copy(parts: &[Range<usize>], from: &[u8], aside: &mut [u8]) {
    let bytes = parts.iter().map(Range::len).sum();
    gather_past_cache(parts.iter().map(|part| &from[part.clone()]), &mut aside[..bytes]);
}

/// Copies the parts from `aside` to their place in the image. Returns the number of their pages.
fn apply(parts: &[Range<usize>], mut aside: &[u8], image: &mut [u8]) -> usize {
    for part in parts {
        let (now, later) = aside.split_at(part.len());
        image[part.clone()].copy_from_slice(now);
        aside = later;
    }
    parts.iter().map(|part| part.len() / PAGE_BYTES).sum()
}

fn refused(refusal: Refusal) -> Error {
    Error::invalid(format!("a tracker does not work here: {refusal}"))
}

fn pages_that_differ(a: &[u8], b: &[u8]) -> usize {
    a.chunks(PAGE_BYTES).zip(b.chunks(PAGE_BYTES)).filter(|(a, b)| a != b).count()
}

/// Returns the processor time of this process, including the kernel's.
pub fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
