//! A series of freezes, the cost of each, and whether its image was right.

use crate::{heap, seconds, stop};
use outlive_capture::track::TrackerChoice;
use outlive_capture::{ChangeTracker, MemorySource, Region, default_threads};
use outlive_chunk::{fingerprint, hash_pages};
use outlive_types::{
    Epoch, FreezeMode, FreezeRequest, Frozen, PAGE_BYTES, PageSource, Result, pages_of,
};
use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

/// Length of a save's longest chunks.
const CHUNK_BYTES: usize = 64 << 10;

/// Cost of one freeze.
struct Figures {
    /// Time until all threads stood.
    stop_s: f64,
    /// Time of the freeze, in which they stood.
    stall_s: f64,
    /// Processor time of the process in the freeze, which is all ours.
    stall_cpu_s: f64,
    /// Processor time to read and hash the frozen memory.
    drain_cpu_s: f64,
    changed_bytes: u64,
    copied_bytes: u64,
    /// Whether all memory was compared, while the program stood longer.
    checked: bool,
}

/// Freezes of one program under one tracker.
pub struct Rounds {
    tracker: Arc<ChangeTracker>,
    epoch: Epoch,
    figures: Vec<Figures>,
    /// Hashes of all pages as in the images, by region.
    seen: HashMap<String, Vec<u128>>,
    checked_pages: u64,
    wrong_pages: u64,
    /// Whether one page of the images is spoiled before each check, for a test of the check.
    spoils: bool,
    region_bytes: usize,
    how: String,
    error: Option<String>,
}

impl Rounds {
    /// Returns a series without freezes.
    pub fn new(choice: TrackerChoice, spoils: bool) -> Rounds {
        Rounds {
            tracker: Arc::new(ChangeTracker::with(choice)),
            epoch: 0,
            figures: Vec::new(),
            seen: HashMap::new(),
            checked_pages: 0,
            wrong_pages: 0,
            spoils,
            region_bytes: 0,
            how: String::new(),
            error: None,
        }
    }

    /// Number of freezes so far.
    pub fn taken(&self) -> usize {
        self.figures.len()
    }

    /// Freezes once more, if there is anything to freeze. With `checked`, compares all memory with
    /// the images.
    pub fn round(&mut self, checked: bool) {
        if self.error.is_none()
            && !heap::is_empty()
            && let Err(error) = self.freeze(checked)
        {
            self.error = Some(error.to_string());
        }
    }

    fn freeze(&mut self, checked: bool) -> Result<()> {
        let begun = Instant::now();
        let Some(standing) = stop::stop() else {
            self.error = Some("a thread of the program does not stand still".into());
            return Ok(());
        };
        let stop_s = begun.elapsed().as_secs_f64();
        let blocks = heap::blocks();
        if blocks.is_empty() {
            return Ok(());
        }
        self.region_bytes = blocks.iter().map(|(_, bytes)| bytes).sum();
        let regions = blocks.iter().map(|(start, bytes)| {
            // SAFETY: a block that the program has allocated and not freed. All threads that could
            // write or free it stand until the freeze is over. A freeze that may copy without limit
            // leaves no run live.
            unsafe {
                let at = *start as *const u8;
                Region::from_raw(name(*start), "|u1", vec![*bytes as u64], at, *bytes)
            }
        });
        let tracker = Arc::clone(&self.tracker);
        let baseline = tracker.baseline();
        let regions = regions.collect();
        let request = FreezeRequest {
            baseline,
            freeze_bytes_max: u64::MAX,
            freeze: FreezeMode::Copy,
            ..FreezeRequest::default()
        };
        let (began, cpu_s) = (Instant::now(), seconds(libc::CLOCK_PROCESS_CPUTIME_ID));
        let mut source = MemorySource::new(tracker, regions, Vec::new(), default_threads());
        let frozen = source.freeze(&request)?;
        let stall_cpu_s = seconds(libc::CLOCK_PROCESS_CPUTIME_ID) - cpu_s;
        let stall_s = began.elapsed().as_secs_f64();
        let standing = checked.then_some(standing);
        let mut drain_cpu_s = self.drain(&*frozen)?;
        if standing.is_some() {
            self.check(&blocks);
        }
        drop(standing);
        self.epoch += 1;
        let cpu_s = seconds(libc::CLOCK_THREAD_CPUTIME_ID);
        frozen.commit_baseline(Some(self.epoch));
        drain_cpu_s += seconds(libc::CLOCK_THREAD_CPUTIME_ID) - cpu_s;
        let report = frozen.report();
        self.how = report.tracker;
        self.figures.push(Figures {
            stop_s,
            stall_s,
            stall_cpu_s,
            drain_cpu_s,
            changed_bytes: frozen.changed_pages() * PAGE_BYTES as u64,
            copied_bytes: report.copied_bytes,
            checked,
        });
        Ok(())
    }

    /// Reads and hashes all frozen memory as a save does, and keeps hashes of its own. Returns the
    /// seconds of the reading and hashing.
    fn drain(&mut self, frozen: &dyn Frozen) -> Result<f64> {
        let streams = frozen.streams();
        self.seen.retain(|name, _| streams.iter().any(|stream| stream.name == *name));
        for stream in streams {
            let pages = pages_of(stream.bytes) as usize;
            self.seen.entry(stream.name.clone()).or_default().resize(pages, 0);
        }
        let mut scratch = Vec::new();
        let mut drain_cpu_s = 0.0;
        for (number, run) in frozen.runs().iter().enumerate() {
            let cpu_s = seconds(libc::CLOCK_THREAD_CPUTIME_ID);
            let bytes = frozen.read(number, 0..run.pages, &mut scratch)?;
            for chunk in bytes.chunks(CHUNK_BYTES) {
                black_box(fingerprint(chunk));
            }
            drain_cpu_s += seconds(libc::CLOCK_THREAD_CPUTIME_ID) - cpu_s;
            let hashes = hash_pages(bytes);
            if let Some(seen) = self.seen.get_mut(&streams[run.stream as usize].name) {
                seen[run.first_page as usize..][..hashes.len()].copy_from_slice(&hashes);
            }
        }
        Ok(drain_cpu_s)
    }

    /// Compares all memory with the images: pages taken for unchanged must be unchanged.
    fn check(&mut self, blocks: &[(usize, usize)]) {
        if self.spoils
            && let Some(page) = self.seen.values_mut().find_map(|pages| pages.first_mut())
        {
            *page = u128::MAX;
        }
        for (start, bytes) in blocks {
            // SAFETY: as for the region above; the program stands still.
            let bytes = unsafe { std::slice::from_raw_parts(*start as *const u8, *bytes) };
            let hashes = hash_pages(bytes);
            let seen = self.seen.get(&name(*start)).map_or(&[][..], |seen| seen);
            let same = hashes.iter().zip(seen).filter(|(hash, seen)| hash == seen).count();
            self.checked_pages += hashes.len() as u64;
            self.wrong_pages += (hashes.len() - same) as u64;
        }
    }

    /// Formats the figures as members of a JSON object, with a comma before each.
    pub fn json(&self) -> String {
        let freezes: Vec<String> = self.figures.iter().map(Figures::json).collect();
        let error = self.error.as_ref().map_or("null".to_owned(), |error| quoted(error));
        format!(
            ", \"tracker\": {}, \"region_bytes\": {}, \"checked_pages\": {}, \"wrong_pages\": {}, \
             \"error\": {error}, \"freezes\": [{}]",
            quoted(&self.how),
            self.region_bytes,
            self.checked_pages,
            self.wrong_pages,
            freezes.join(", "),
        )
    }
}

impl Figures {
    fn json(&self) -> String {
        let Figures { stop_s, stall_s, stall_cpu_s, drain_cpu_s, .. } = self;
        let Figures { changed_bytes, copied_bytes, checked, .. } = self;
        format!(
            "{{\"stop_s\": {stop_s}, \"stall_s\": {stall_s}, \"stall_cpu_s\": {stall_cpu_s}, \
             \"drain_cpu_s\": {drain_cpu_s}, \"changed_bytes\": {changed_bytes}, \
             \"copied_bytes\": {copied_bytes}, \"checked\": {checked}}}"
        )
    }
}

/// Name of a region.
fn name(start: usize) -> String {
    format!("{start:#x}")
}

/// Quotes text for JSON.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " "))
}
