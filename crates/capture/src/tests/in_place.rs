//! Tests that unwritten memory which a child holds is read in place, and nothing else is.

use super::*;
use crate::fork::tests::alone;
use crate::in_place::{Guard, InPlace};
use crate::track::{
    OpenTracker, PageTracker, Pages, Refusal, Then, TrackerChoice, TrackerKind, WpAsync,
};
use crate::watch::Watches;
use outlive_types::BLOCK_BYTES;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use std::ffi::c_void;
use std::ops::Range;

const MIB: usize = 1 << 20;
/// Three blocks and a half, so that a part of it is no huge page.
const LENGTH: usize = 7 * MIB;

/// A mapping of its own, to which tests do what programs do.
struct Mapping {
    start: *mut u8,
}

impl Mapping {
    fn new() -> Mapping {
        let private = MapFlags::PRIVATE;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that is not in use.
        let start =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), LENGTH, prot, private) };
        let mapping = Mapping { start: start.unwrap().cast() };
        mapping.fill();
        mapping
    }

    /// Returns one that begins with a block.
    fn aligned() -> Mapping {
        const ROOM: usize = LENGTH + BLOCK_BYTES;
        let private = MapFlags::PRIVATE;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as in `new`; no other code has seen the parts that are cut off at both ends.
        let start = unsafe {
            let whole: *mut u8 =
                rustix::mm::mmap_anonymous(std::ptr::null_mut(), ROOM, prot, private)
                    .unwrap()
                    .cast();
            let before = whole.addr().next_multiple_of(BLOCK_BYTES) - whole.addr();
            if before > 0 {
                rustix::mm::munmap(whole.cast(), before).unwrap();
            }
            let end = whole.wrapping_add(before + LENGTH);
            rustix::mm::munmap(end.cast(), ROOM - before - LENGTH).unwrap();
            whole.wrapping_add(before)
        };
        let mapping = Mapping { start };
        mapping.fill();
        mapping
    }

    fn fill(&self) {
        self.bytes().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 999) as u8 | 1);
    }

    #[allow(clippy::mut_from_ref)] // the tests look at one slice at a time
    fn bytes(&self) -> &mut [u8] {
        // SAFETY: mapped, LENGTH long, and used by one test alone.
        unsafe { std::slice::from_raw_parts_mut(self.start, LENGTH) }
    }

    fn at(&self, offset: usize) -> *mut c_void {
        self.start.wrapping_add(offset).cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's; where the test has unmapped a part, nothing is
        // there.
        unsafe { rustix::mm::munmap(self.at(0), LENGTH) }.unwrap();
    }
}

/// Returns the kernel's tracker, if this kernel has one.
fn tracked() -> Option<Arc<ChangeTracker>> {
    let tracker = ChangeTracker::with(TrackerChoice::Only(TrackerKind::WpAsync));
    if tracker.report().starts_with("wp-async") {
        return Some(Arc::new(tracker));
    }
    println!("not tested here: {}", tracker.report());
    None
}

fn by_fork(tracker: &Arc<ChangeTracker>, bytes: &[u8], baseline: Option<u64>) -> Box<dyn Frozen> {
    let freeze_bytes_max = 0;
    let freeze_by = FreezeMode::Fork;
    let asked =
        FreezeRequest { freeze: freeze_by, freeze_bytes_max, baseline, ..FreezeRequest::default() };
    let frozen = freeze(tracker, vec![raw("a", bytes)], &asked).unwrap();
    assert!(frozen.report().freeze.starts_with("fork: "), "{}", frozen.report().freeze);
    frozen
}

/// Returns the image of one region, read in pieces of `pages`; `base` is its predecessor.
fn image(frozen: &dyn Frozen, pages: u32, base: &[u8]) -> Vec<u8> {
    let mut image = base.to_vec();
    for (number, run) in frozen.runs().iter().enumerate() {
        for first in (0..run.pages).step_by(pages as usize) {
            let end = run.pages.min(first + pages);
            let mut scratch = Vec::new();
            let bytes = frozen.read(number, first..end, &mut scratch).unwrap();
            let at = (run.first_page as usize + first as usize) * PAGE_BYTES;
            image[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }
    image
}

/// Returns the parts of the region that are read from the child, in pieces of 16 pages, as offsets.
/// All else equals the region.
fn from_child(in_place: &InPlace, region: &[u8]) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let start = region.as_ptr().addr();
    let mut scratch = vec![0; 16 * PAGE_BYTES];
    for at in (0..region.len()).step_by(16 * PAGE_BYTES) {
        let now = &region[at..region.len().min(at + 16 * PAGE_BYTES)];
        let into = &mut scratch[..now.len()];
        into.fill(0);
        let record = |address: usize, part: &mut [u8]| {
            let from = address - start;
            part.copy_from_slice(&region[from..from + part.len()]);
            match found.last_mut() {
                Some(last) if last.end == from => last.end += part.len(),
                _ => found.push(from..from + part.len()),
            }
            Ok(())
        };
        in_place.read(start + at, into, record).unwrap();
        assert!(into == now, "at {at}");
    }
    found
}

fn guard(tracker: &ChangeTracker, region: &[u8]) -> InPlace {
    let start = region.as_ptr().addr();
    let all = start..start + region.len();
    tracker.guard(vec![all]).unwrap()
}

#[test]
fn unwritten_pages_are_read_in_place() {
    let _turn = alone();
    let Some(tracker) = tracked() else { return };
    let mapping = Mapping::new();
    // The region neither begins nor ends at a page; the pages at its edges are not its own.
    let region = &mapping.bytes()[16..LENGTH - 16];
    let edges = [0..PAGE_BYTES - 16, LENGTH - PAGE_BYTES - 16..LENGTH - 32];
    let frozen = by_fork(&tracker, region, None);
    let said = frozen.report().freeze;
    assert!(said.ends_with("; what is not written meanwhile is read in place"), "{said}");
    let in_place = guard(&tracker, region);
    assert_eq!(from_child(&in_place, region), edges);
    mapping.bytes()[3 * MIB] ^= 0xFF;
    let written = 3 * MIB - 16..3 * MIB + PAGE_BYTES - 16;
    let [head, tail] = edges;
    assert_eq!(from_child(&in_place, region), [head.clone(), written.clone(), tail.clone()]);
    // Armed once more by other code: the table now describes another state, and must not be used.
    let (kernel, _) = tracker.lock().watches.armed().unwrap();
    let page = mapping.at(3 * MIB).addr();
    kernel.arm(Pages { start: page, end: page + PAGE_BYTES }).unwrap();
    let mut untouched = Vec::new();
    kernel.untouched(Pages { start: page, end: page + PAGE_BYTES }, &mut untouched).unwrap();
    assert_eq!(untouched.len(), 1);
    assert_eq!(from_child(&in_place, region), [head, written, tail]);
    // Without a child nothing is shared.
    drop(frozen);
    assert!(from_child(&in_place, region).iter().eq([&(0..region.len())]));
}

/// Bytes that this thread has read from files so far, including a child's memory. `None` where the
/// kernel does not count them.
fn file_bytes_read() -> Option<usize> {
    let counts = std::fs::read_to_string("/proc/thread-self/io").ok()?;
    counts.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse().ok()
}

#[test]
fn an_image_asks_its_child_only_for_written_pages() {
    let _turn = alone();
    let Some(tracker) = tracked() else { return };
    let mapping = Mapping::new();
    let then = mapping.bytes().to_vec();
    let frozen = by_fork(&tracker, mapping.bytes(), None);
    let read = || {
        let before = file_bytes_read()?;
        assert!(image(&*frozen, 16, &[0; LENGTH]) == then);
        Some(file_bytes_read()? - before)
    };
    let Some(read_bytes) = read() else { return println!("not tested here: no rchar") };
    assert!(read_bytes < LENGTH / 50, "{read_bytes}: more than the page table");
    mapping.bytes()[..2 * MIB].fill(0);
    let read_bytes = read().unwrap();
    assert!((2 * MIB..2 * MIB + LENGTH / 50).contains(&read_bytes), "{read_bytes}");
}

#[test]
fn arming_anew_or_letting_go_ends_reads_in_place_first() {
    let _turn = alone();
    type Deed = (&'static str, fn(&Arc<ChangeTracker>, &dyn Frozen, &[u8]));
    let deeds: [Deed; 8] = [
        ("commits", |_, frozen, _| frozen.commit_baseline(Some(1))),
        ("fails", |_, frozen, _| frozen.commit_baseline(None)),
        ("lets go", |tracker, _, _| tracker.detach()),
        ("forgets", |tracker, _, _| tracker.forget()),
        ("primes", |tracker, _, bytes| tracker.prime(1, &[("a", bytes)], 1)),
        ("primes with hashes", |tracker, _, _| tracker.prime_hashes(1, Vec::new())),
        ("guards anew", |tracker, _, bytes| drop(guard(tracker, bytes))),
        ("copies ahead", |tracker, _, _| {
            let (kernel, _) = tracker.lock().watches.armed().unwrap();
            tracker.copy_ahead(kernel, &[], &[], 0).unwrap();
        }),
    ];
    for (what, deed) in deeds {
        let Some(tracker) = tracked() else { return };
        let mapping = Mapping::new();
        let frozen = by_fork(&tracker, mapping.bytes(), None);
        let in_place = guard(&tracker, mapping.bytes());
        assert!(from_child(&in_place, mapping.bytes()).is_empty());
        deed(&tracker, &*frozen, mapping.bytes());
        let found = from_child(&in_place, mapping.bytes());
        assert!(found.iter().eq([&(0..LENGTH)]), "a tracker that {what}: {found:?}");
    }
}

#[test]
fn no_page_is_copied_ahead_of_a_freeze_that_has_begun() {
    let _turn = alone();
    let Some(tracker) = tracked() else { return };
    let mapping = Mapping::new();
    for (epoch, before) in [(1, None), (2, Some(1))] {
        let frozen = freeze(&tracker, vec![raw("a", mapping.bytes())], &since(before)).unwrap();
        image(&*frozen, 16, &[0; LENGTH]);
        frozen.commit_baseline(Some(epoch));
    }
    mapping.bytes()[5] ^= 1;
    let precopy = FreezeRequest { freeze: FreezeMode::Precopy, ..since(Some(2)) };
    let first = freeze(&tracker, vec![raw("a", mapping.bytes())], &precopy).unwrap();
    first.commit_baseline(Some(3));
    mapping.bytes().iter_mut().step_by(9 * PAGE_BYTES).for_each(|byte| *byte ^= 5);
    let then = mapping.bytes().to_vec();
    let next = by_fork(&tracker, mapping.bytes(), Some(3));
    // It would begin now.
    drop(first);
    assert!(tracker.stop_ahead().is_none());
    mapping.bytes().fill(7);
    assert!(image(&*next, 16, &then) == then);
}

type Deed = (&'static str, fn(&Mapping));

/// Actions of a program on its memory while an image of it is persisted.
const DEEDS: &[Deed] = &[
    ("nothing", |_| {}),
    ("writes all", |mapping| mapping.bytes().fill(0)),
    ("writes every other page", |mapping| {
        mapping.bytes().iter_mut().step_by(2 * PAGE_BYTES).for_each(|byte| *byte ^= 0xFF);
    }),
    ("unmaps a part", |mapping| {
        // SAFETY: the mapping is the test's (as in the next ones), which does not read bytes that
        // are unmapped.
        unsafe { rustix::mm::munmap(mapping.at(MIB), 3 * MIB) }.unwrap();
    }),
    ("maps another there", |mapping| {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: as above.
        unsafe { rustix::mm::mmap_anonymous(mapping.at(MIB), 3 * MIB, prot, flags) }.unwrap();
        mapping.bytes()[MIB..2 * MIB].fill(9);
    }),
    ("moves it away and maps another", |mapping| {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: as above; the moved memory stays mapped.
        unsafe {
            rustix::mm::mremap(mapping.at(0), LENGTH, 2 * LENGTH, MremapFlags::MAYMOVE).unwrap();
            rustix::mm::mmap_anonymous(mapping.at(0), LENGTH, prot, flags).unwrap();
        }
        mapping.bytes().fill(8);
    }),
    ("gives blocks up", |mapping| {
        // SAFETY: as above.
        unsafe { rustix::mm::madvise(mapping.at(0), 5 * MIB, Advice::LinuxDontNeed) }.unwrap();
    }),
    ("gives pages up and reads them", |mapping| {
        // SAFETY: as above.
        unsafe { rustix::mm::madvise(mapping.at(2 * MIB), MIB / 2, Advice::LinuxDontNeed) }
            .unwrap();
        assert!(mapping.bytes()[2 * MIB..][..MIB / 2].iter().all(|byte| *byte == 0));
    }),
    ("makes it unreadable", |mapping| {
        // SAFETY: as above.
        unsafe { rustix::mm::mprotect(mapping.at(0), 4 * MIB, MprotectFlags::empty()) }.unwrap();
    }),
    ("forks and writes", |mapping| {
        let child = crate::fork::tests::take().unwrap();
        mapping.bytes()[..2 * MIB].fill(3);
        let other = crate::fork::tests::take().unwrap();
        mapping.bytes()[MIB..3 * MIB].fill(4);
        drop((child, other));
    }),
    ("has the kernel write", |mapping| {
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        rustix::io::read(zeros, &mut mapping.bytes()[4 * MIB..5 * MIB]).unwrap();
    }),
];

/// State of the memory at the freeze.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// New: armed only until the image is persisted.
    Coarse,
    /// New, in huge pages.
    Huge,
    /// Watched page by page, some of them written.
    Armed,
}

#[test]
fn an_image_stands_through_all_deeds_of_the_program() {
    let _turn = alone();
    for kind in [Kind::Coarse, Kind::Huge, Kind::Armed] {
        for (what, deed) in DEEDS {
            let Some(tracker) = tracked() else { return };
            let mapping = Mapping::new();
            let mut base = vec![0; LENGTH];
            if kind == Kind::Huge {
                // SAFETY: the mapping is ours; the call changes no byte.
                let advised = unsafe {
                    rustix::mm::madvise(mapping.at(0), LENGTH, Advice::LinuxDontNeed).unwrap();
                    rustix::mm::madvise(mapping.at(0), LENGTH, Advice::LinuxHugepage)
                };
                println!("huge pages: {advised:?}");
                mapping.fill();
            }
            let baseline = (kind == Kind::Armed).then_some(2);
            if kind == Kind::Armed {
                for (epoch, before) in [(1, None), (2, Some(1))] {
                    let asked = since(before);
                    let frozen = freeze(&tracker, vec![raw("a", mapping.bytes())], &asked).unwrap();
                    base = image(&*frozen, 16, &base);
                    frozen.commit_baseline(Some(epoch));
                }
                assert!(tracker.report().contains(&format!("{LENGTH} of them page by page")));
                mapping.bytes().iter_mut().step_by(9 * PAGE_BYTES).for_each(|byte| *byte ^= 5);
                mapping.bytes()[2 * MIB..5 * MIB / 2].fill(77);
            }
            let then = mapping.bytes().to_vec();
            let frozen = by_fork(&tracker, mapping.bytes(), baseline);
            assert!(image(&*frozen, 16, &base) == then, "{kind:?}, before the program {what}");
            deed(&mapping);
            for pages in [1, 16, 512] {
                assert!(image(&*frozen, pages, &base) == then, "{kind:?}, the program {what}");
            }
        }
    }
}

#[test]
fn a_settled_image_takes_no_pages_that_were_armed_since() {
    let _turn = alone();
    let Some(tracker) = tracked() else { return };
    let mapping = Mapping::new();
    let then = mapping.bytes().to_vec();
    let base = vec![0; LENGTH];
    let old = by_fork(&tracker, mapping.bytes(), None);
    assert!(image(&*old, 16, &base) == then);
    old.commit_baseline(Some(1));
    mapping.bytes().iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte ^= 0xFF);
    // All of it is armed once more, with other bytes.
    let next = by_fork(&tracker, mapping.bytes(), Some(1));
    assert_eq!(next.changed_pages() as usize, LENGTH / PAGE_BYTES);
    assert!(image(&*old, 16, &base) == then);
    assert!(image(&*next, 16, &base) == mapping.bytes());
}

#[test]
fn pages_that_are_written_while_an_image_drains_are_not_armed_afterwards() {
    let _turn = alone();
    let Some(tracker) = tracked() else { return };
    let mapping = Mapping::new();
    let (start, end) = (mapping.at(0).addr(), mapping.at(LENGTH).addr());
    // Whole blocks only: in partial blocks, a few written pages do not count as many.
    let whole = Pages { start: start.next_multiple_of(2 * MIB), end: end / (2 * MIB) * (2 * MIB) };
    let armed = || {
        let (kernel, areas) = tracker.lock().watches.armed().unwrap();
        let apart = |area: &Pages| area.end <= whole.start || whole.end <= area.start;
        assert!(areas.iter().all(apart), "the policy has armed none of it");
        let mut found = Vec::new();
        kernel.untouched(whole, &mut found).unwrap();
        found.iter().map(Pages::count).sum::<usize>()
    };
    for (epoch, commit) in [(1, true), (2, false)] {
        let baseline = (epoch > 1).then_some(epoch - 1);
        let frozen = by_fork(&tracker, mapping.bytes(), baseline);
        assert_eq!(armed(), whole.count());
        image(&*frozen, 16, &[0; LENGTH]);
        mapping.bytes().iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte ^= 0xFF);
        frozen.commit_baseline(commit.then_some(epoch));
        assert_eq!(armed(), 0);
    }
}

#[test]
fn pages_that_are_armed_for_a_drain_that_fails_are_not_armed_afterwards() {
    let _turn = alone();
    let Some(tracker) = tracked() else { return };
    let mapping = Mapping::new();
    by_fork(&tracker, mapping.bytes(), None).commit_baseline(None);
    assert_eq!(tracker.lock().watches.armed_bytes(), 0);
}

/// A tracker that gives random results: one before a copy, another after it.
#[derive(Debug)]
struct Oracle {
    seed: u64,
    /// The guard that it ends after the copy.
    guard: Option<Guard>,
}

impl Oracle {
    fn tell(seed: u64, pages: Pages, out: &mut Vec<Pages>) {
        for start in (pages.start..pages.end).step_by(PAGE_BYTES) {
            if is_told(seed, start) {
                match out.last_mut() {
                    Some(last) if last.end == start => last.end += PAGE_BYTES,
                    _ => out.push(Pages { start, end: start + PAGE_BYTES }),
                }
            }
        }
    }
}

impl PageTracker for Oracle {
    fn kind(&self) -> TrackerKind {
        TrackerKind::WpAsync
    }

    unsafe fn watch(&self, _: Pages) -> std::result::Result<(), Refusal> {
        Ok(())
    }

    fn unwatch(&self, _: Pages) {}

    fn arm(&self, _: Pages) -> std::result::Result<(), Refusal> {
        Ok(())
    }

    fn collect(&self, _: Pages, _: Then, _: &mut Vec<Pages>) -> std::result::Result<(), Refusal> {
        Ok(())
    }

    fn disarm(&self, _: Pages) -> std::result::Result<(), Refusal> {
        Ok(())
    }

    fn absent(&self, _: Pages, _: &mut Vec<Pages>) -> std::result::Result<(), Refusal> {
        Ok(())
    }

    fn shared(&self, pages: Pages, out: &mut Vec<Pages>) -> std::result::Result<(), Refusal> {
        Oracle::tell(self.seed, pages, out);
        Ok(())
    }

    fn untouched(&self, pages: Pages, out: &mut Vec<Pages>) -> std::result::Result<(), Refusal> {
        Oracle::tell(self.seed + 1000, pages, out);
        self.guard.iter().for_each(Guard::end);
        Ok(())
    }
}

fn is_told(seed: u64, page: usize) -> bool {
    let mixed = (seed ^ page as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 40) % 8 > seed % 4
}

#[test]
fn every_byte_comes_from_where_it_is_as_it_was() {
    // The program's bytes are 1 and the child's 2, which shows the source of each byte.
    let mut memory = outlive_io::AlignedBuf::zeroed(3 * MIB);
    memory.fill(1);
    let start = memory.as_ptr().addr();
    let mut in_place_bytes = 0;
    for seed in 0..200u64 {
        let at = |page: u64| start + (page as usize % (3 * MIB / PAGE_BYTES)) * PAGE_BYTES;
        let (a, b) = (at(seed * 37), at(seed * 101 + 5));
        let area = Pages { start: a.min(b), end: a.max(b) + PAGE_BYTES };
        let also =
            Pages { start: area.end, end: (area.end + 64 * PAGE_BYTES).min(start + 3 * MIB) };
        let areas = [area, also].into_iter().filter(|area| area.start < area.end);
        let guard = Guard::default();
        let ends = seed % 10 == 9;
        let tracker = Arc::new(Oracle { seed, guard: ends.then(|| guard.clone()) });
        let in_place =
            InPlace::new(tracker, &areas.clone().collect::<Vec<_>>(), guard.clone()).unwrap();
        let from = (seed as usize * 7919) % (2 * MIB);
        let length = 1 + (seed as usize * 104_729) % (3 * MIB - from);
        let mut into = vec![0; length];
        in_place
            .read(start + from, &mut into, |_, into| {
                into.fill(2);
                Ok(())
            })
            .unwrap();
        for (offset, byte) in into.iter().enumerate() {
            let address = start + from + offset;
            let page = address / PAGE_BYTES * PAGE_BYTES;
            let inside = areas.clone().any(|area| area.start <= page && page < area.end);
            let may = inside && !ends && is_told(seed, page) && is_told(seed + 1000, page);
            assert!(*byte == 2 || (*byte == 1 && may), "seed {seed}, offset {offset}: {byte}");
            in_place_bytes += usize::from(*byte == 1);
        }
        guard.end();
        let mut none = Vec::new();
        in_place
            .read(start, &mut [0; 100], |address, into| {
                none.push((address, into.len()));
                Ok(())
            })
            .unwrap();
        assert_eq!(none, [(start, 100)], "an ended guard gives nothing");
    }
    assert!(in_place_bytes > 10 * MIB, "{in_place_bytes} bytes were read in place");
}

#[test]
fn pages_that_are_quiet_while_the_first_image_drains_are_never_compared() {
    let _turn = alone();
    let Some(tracker) = tracked() else { return };
    let mapping = Mapping::new();
    let region = &mapping.bytes()[..];
    let start = region.as_ptr().addr();
    let block = start.next_multiple_of(2 * MIB) - start;
    let frozen = by_fork(&tracker, region, None);
    let then = region.to_vec();
    // The program sweeps over a block, and writes a page of another.
    mapping.bytes()[block..block + 2 * MIB].fill(0xEE);
    mapping.bytes()[block + 3 * MIB] ^= 0xFF;
    assert!(image(&*frozen, 512, &vec![0; LENGTH]) == then);
    frozen.commit_baseline(Some(1));
    drop(frozen);
    assert_eq!(tracker.lock().watches.armed_bytes(), LENGTH - 2 * MIB);
    mapping.bytes()[100] ^= 0xFF;
    let request = FreezeRequest { freeze: FreezeMode::Copy, ..since(Some(1)) };
    let frozen = freeze(&tracker, vec![raw("a", region)], &request).unwrap();
    let looked_at = tracker.lock().watches.watch_of("a").pending_pages();
    assert_eq!(looked_at, 512 + 2, "the block that was swept, and two pages");
    assert!(image(&*frozen, 512, &then) == *region);
    frozen.commit_baseline(Some(2));
}

#[test]
fn pages_that_are_quiet_from_a_restore_to_the_first_save_are_compared_once() {
    let _turn = alone();
    let Some(tracker) = tracked() else { return };
    // A block stays coarse if one of its canaries has changed. Their positions depend on the
    // alignment of the region. So it always has the same alignment, and no canary is a page that
    // changes.
    let mapping = Mapping::aligned();
    let region = &mapping.bytes()[..];
    tracker.prime(1, &[("a", region)], 1);
    mapping.bytes()[5 * MIB] ^= 0xFF;
    for (baseline, pages) in [(1, LENGTH / PAGE_BYTES), (2, 1)] {
        mapping.bytes()[100] ^= 0xFF;
        let request = FreezeRequest { freeze: FreezeMode::Copy, ..since(Some(baseline)) };
        let frozen = freeze(&tracker, vec![raw("a", region)], &request).unwrap();
        assert_eq!(tracker.lock().watches.watch_of("a").pending_pages(), pages as u64);
        assert_eq!(frozen.changed_pages(), 3 - baseline);
        frozen.commit_baseline(Some(baseline + 1));
    }
}

type Meanwhile = Box<dyn Fn() + Send + Sync>;

/// A tracker that lets the program write just before the next `arm`: that breaks the rule, but
/// loses no write.
#[derive(Clone)]
struct Unruly {
    tracker: Arc<WpAsync>,
    before_arm: Arc<outlive_types::sync::plain::Mutex<Option<Meanwhile>>>,
}

impl std::fmt::Debug for Unruly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.tracker.fmt(f)
    }
}

impl PageTracker for Unruly {
    fn kind(&self) -> TrackerKind {
        self.tracker.kind()
    }

    unsafe fn watch(&self, pages: Pages) -> std::result::Result<(), Refusal> {
        // SAFETY: passed on.
        unsafe { self.tracker.watch(pages) }
    }

    fn unwatch(&self, pages: Pages) {
        self.tracker.unwatch(pages);
    }

    fn arm(&self, pages: Pages) -> std::result::Result<(), Refusal> {
        if let Some(write) = self.before_arm.lock().take() {
            write();
        }
        self.tracker.arm(pages)
    }

    fn collect(
        &self,
        pages: Pages,
        then: Then,
        written: &mut Vec<Pages>,
    ) -> std::result::Result<(), Refusal> {
        self.tracker.collect(pages, then, written)
    }

    fn disarm(&self, pages: Pages) -> std::result::Result<(), Refusal> {
        self.tracker.disarm(pages)
    }

    fn absent(&self, pages: Pages, out: &mut Vec<Pages>) -> std::result::Result<(), Refusal> {
        self.tracker.absent(pages, out)
    }

    fn tells_untouched(&self) -> bool {
        self.tracker.tells_untouched()
    }

    fn shared(&self, pages: Pages, out: &mut Vec<Pages>) -> std::result::Result<(), Refusal> {
        self.tracker.shared(pages, out)
    }

    fn untouched(&self, pages: Pages, out: &mut Vec<Pages>) -> std::result::Result<(), Refusal> {
        self.tracker.untouched(pages, out)
    }
}

/// The program writes after its memory was compared, before that is armed for the child. The write
/// is in this image or in the next.
#[test]
fn a_write_during_a_forked_freeze_is_in_one_of_two_images() {
    let _turn = alone();
    if tracked().is_none() {
        return;
    }
    // All of the region is saved, or a page of each block: then the others were compared as well.
    for is_first in [true, false] {
        let Ok(wp_async) = WpAsync::open() else { return };
        let unruly = Unruly { tracker: Arc::new(wp_async), before_arm: Arc::default() };
        let tracker = Arc::new(ChangeTracker::new());
        let opened = OpenTracker { tracker: Arc::new(unruly.clone()), dense_pages: 100 };
        tracker.lock().watches = Watches::new(Some(opened));
        let mapping = Mapping::aligned();
        let region = &mapping.bytes()[..];
        let mut then = vec![0; LENGTH];
        let mut baseline = None;
        if !is_first {
            // Every canary of every block has changed, so all blocks stay coarse.
            tracker.prime(1, &[("a", region)], 1);
            then.copy_from_slice(region);
            baseline = Some(1);
            (0..LENGTH).step_by(2 * PAGE_BYTES).for_each(|at| mapping.bytes()[at] ^= 0xFF);
        }
        // One page that the child holds, and one that was unchanged so far.
        let start = mapping.start.addr();
        let write: Meanwhile = Box::new(move || {
            for page in [64, 65] {
                let at: *mut u8 = std::ptr::with_exposed_provenance_mut(start + page * PAGE_BYTES);
                // SAFETY: within the mapping, which lives longer; the test's thread is inside
                // `freeze`.
                unsafe { at.add(7).write_volatile(0x77) };
            }
        });
        mapping.start.expose_provenance();
        *unruly.before_arm.lock() = Some(write);
        let frozen = by_fork(&tracker, region, baseline);
        assert!(unruly.before_arm.lock().is_none(), "something was armed");
        then = image(&*frozen, 512, &then);
        frozen.commit_baseline(Some(2));
        drop(frozen);
        let request = FreezeRequest { freeze: FreezeMode::Copy, ..since(Some(2)) };
        let frozen = freeze(&tracker, vec![raw("a", region)], &request).unwrap();
        assert!(image(&*frozen, 512, &then) == *region, "saved whole first: {is_first}");
        frozen.commit_baseline(Some(3));
    }
}
