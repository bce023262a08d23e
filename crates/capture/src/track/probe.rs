//! Trackers that work on this system, found by a trial: versions and capabilities do not show it.

use super::{PageTracker, Pages, Refusal, Then, TrackerChoice, TrackerKind, WpAsync};
use outlive_chunk::hash_pages;
use outlive_io::AlignedBuf;
use outlive_types::sync::plain::Mutex;
use outlive_types::{BLOCK_PAGES, PAGE_BYTES};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

/// Costs of a tracker on this system, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// Cost of the first write to an armed page.
    pub fault_ns: f64,
    /// Cost of hashing a page.
    pub compare_ns: f64,
}

/// Result of a trial of one tracker.
#[derive(Clone, PartialEq, Debug)]
pub struct Probed {
    /// Kind of the tracker.
    pub kind: TrackerKind,
    /// Its costs, or the reason why it does not work here.
    pub outcome: Result<Costs, Refusal>,
}

/// Pages on which a tracker is tried: enough to time a fault.
const PAGES: usize = 512;
const ATTEMPTS: usize = 4;

/// Tries every tracker on memory of its own; takes a few milliseconds, once for each process.
pub fn probe() -> Vec<Probed> {
    static FOUND: Mutex<Option<(u32, Vec<Probed>)>> = Mutex::new(None);
    let mut found = FOUND.lock();
    match &*found {
        Some((process_id, probed)) if *process_id == std::process::id() => probed.clone(),
        _ => {
            let wp_async = WpAsync::open().and_then(|tracker| attempt(&tracker));
            let probed = vec![Probed { kind: TrackerKind::WpAsync, outcome: wp_async }];
            *found = Some((std::process::id(), probed.clone()));
            probed
        }
    }
}

/// An opened tracker, and the number of written pages from which a block is cheaper compared.
pub(crate) struct OpenTracker {
    pub tracker: Arc<dyn PageTracker>,
    pub dense_pages: usize,
}

/// Opens the chosen tracker; `None` for hashing.
///
/// # Errors
/// Reason why the choice does not work here.
pub(crate) fn open(choice: TrackerChoice) -> Result<Option<OpenTracker>, Refusal> {
    let kind = match choice {
        TrackerChoice::Auto => TrackerKind::WpAsync,
        TrackerChoice::Only(TrackerKind::Hash) => return Ok(None),
        TrackerChoice::Only(kind) => kind,
    };
    let probed = probe().into_iter().find(|probed| probed.kind == kind);
    let outcome = probed.map_or_else(|| Err(Refusal("it is not built in".into())), |p| p.outcome);
    let opened = outcome.and_then(|costs| {
        let dense_pages = dense_pages(costs.fault_ns, costs.compare_ns);
        Ok(Some(OpenTracker { tracker: Arc::new(WpAsync::open()?), dense_pages }))
    });
    opened.map_err(|Refusal(why)| Refusal(format!("{kind} does not work here: {why}")))
}

/// Tries all functions of a tracker.
fn attempt(tracker: &dyn PageTracker) -> Result<Costs, Refusal> {
    let mut memory = AlignedBuf::zeroed(PAGES * PAGE_BYTES);
    memory.fill(1);
    let start = memory.as_ptr() as usize;
    let pages = Pages { start, end: start + PAGES * PAGE_BYTES };
    watch(tracker, pages)?;
    let outcome = exercise(tracker, &mut memory, pages);
    tracker.unwatch(pages);
    outcome
}

#[allow(unsafe_code)]
fn watch(tracker: &dyn PageTracker, pages: Pages) -> Result<(), Refusal> {
    // SAFETY: the pages are those of a buffer that the caller keeps until they are unwatched.
    unsafe { tracker.watch(pages) }
}

fn exercise(
    tracker: &dyn PageTracker,
    memory: &mut AlignedBuf,
    pages: Pages,
) -> Result<Costs, Refusal> {
    let write = |memory: &mut AlignedBuf, page: usize| {
        memory[page * PAGE_BYTES] = 2;
        black_box(&mut memory[page * PAGE_BYTES]);
    };
    let expect = |then: Then, want: &[usize]| {
        let mut written = Vec::new();
        tracker.collect(pages, then, &mut written)?;
        let each = written.iter().flat_map(|part| (part.start..part.end).step_by(PAGE_BYTES));
        let found: Vec<usize> = each.map(|at| (at - pages.start) / PAGE_BYTES).collect();
        if found == want {
            return Ok(());
        }
        Err(Refusal(format!("pages {want:?} were written and pages {found:?} reported")))
    };
    tracker.arm(pages)?;
    expect(Then::Rearm, &[])?;
    write(memory, 3);
    write(memory, 200);
    expect(Then::Leave, &[3, 200])?;
    expect(Then::Rearm, &[3, 200])?;
    expect(Then::Rearm, &[])?;
    let mut costs = Costs { fault_ns: f64::INFINITY, compare_ns: f64::INFINITY };
    // The best of a few: other work on this machine only adds time.
    for _ in 0..ATTEMPTS {
        let fault_ns = ns_a_page(|| (0..PAGES).for_each(|page| write(memory, page)));
        let compare_ns = ns_a_page(|| drop(black_box(hash_pages(&memory[..]))));
        costs.fault_ns = costs.fault_ns.min(fault_ns);
        costs.compare_ns = costs.compare_ns.min(compare_ns);
        tracker.arm(pages)?;
    }
    tracker.disarm(pages)?;
    Ok(costs)
}

fn ns_a_page(work: impl FnOnce()) -> f64 {
    let started = Instant::now();
    work();
    started.elapsed().as_nanos() as f64 / PAGES as f64
}

/// Number of written pages of a block from which faults cost more than a comparison of all of it.
fn dense_pages(fault_ns: f64, compare_page_ns: f64) -> usize {
    let even = BLOCK_PAGES as f64 * compare_page_ns / fault_ns.max(1.0);
    (even as usize).clamp(BLOCK_PAGES / 16, BLOCK_PAGES / 4 * 3)
}
