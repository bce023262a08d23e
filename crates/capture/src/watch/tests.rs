use super::*;
use crate::ahead::Ahead;
use crate::ahead::tests::Told;
use crate::track::*;
use crate::watch::policy::Patience;
use crate::{ChangeTracker, MemorySource, Region};
use outlive_chunk::PageHashes;
use outlive_io::AlignedBuf;
use outlive_types::{
    Epoch, FreezeMode, FreezeReport, FreezeRequest, PAGE_BYTES, PageRange, PageSource,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// A program's array under a tracker, with the last saved image.
struct Program {
    memory: AlignedBuf,
    /// Offset of the region in the memory.
    offset: usize,
    length: usize,
    /// Number of adjacent regions that make it up: x0, x1 and so on.
    regions: usize,
    tracker: Arc<ChangeTracker>,
    image: Vec<u8>,
    epoch: Epoch,
    freeze: FreezeMode,
    /// The last save's report of its freeze.
    report: FreezeReport,
}

impl Program {
    fn new(offset: usize, length: usize) -> Program {
        let memory = AlignedBuf::zeroed((offset + length).next_multiple_of(PAGE_BYTES));
        let tracker = Arc::new(ChangeTracker::with(TrackerChoice::Only(TrackerKind::WpAsync)));
        Program {
            memory,
            offset,
            length,
            regions: 1,
            tracker,
            image: vec![0; length],
            epoch: 0,
            freeze: FreezeMode::Copy,
            report: FreezeReport::default(),
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.offset..][..self.length]
    }

    /// Saves, and checks that the image equals the memory. Returns the number of saved pages.
    #[allow(unsafe_code)]
    fn save(&mut self, commit: bool) -> u64 {
        let each = self.length / self.regions;
        let parts = self.bytes().chunks_exact(each).map(<[u8]>::as_ptr).enumerate();
        // SAFETY: the buffer lives as long as this value, and no thread writes it during the call.
        let region = |(number, start)| unsafe {
            Region::from_raw(format!("x{number}"), "|u1", vec![each as u64], start, each)
        };
        let regions = parts.map(region).collect();
        let mut source = MemorySource::new(self.tracker.clone(), regions, Vec::new(), 2);
        let baseline = (self.epoch > 0).then_some(self.epoch);
        let freeze = self.freeze;
        let freeze_bytes_max = 1 << 30;
        let request = FreezeRequest { baseline, freeze, freeze_bytes_max, ..Default::default() };
        let frozen = source.freeze(&request).unwrap();
        let mut image = self.image.clone();
        for (number, run) in frozen.runs().iter().enumerate() {
            let mut scratch = Vec::new();
            let bytes = frozen.bytes(number, &mut scratch).unwrap();
            let start = run.stream as usize * each + run.first_page as usize * PAGE_BYTES;
            image[start..][..bytes.len()].copy_from_slice(bytes);
        }
        let changed = frozen.changed_pages();
        self.report = frozen.report();
        if commit {
            self.epoch += 1;
            frozen.commit_baseline(Some(self.epoch));
            assert!(image == self.bytes(), "epoch {}: a change was missed", self.epoch);
            self.image = image;
        } else {
            frozen.commit_baseline(None);
        }
        changed
    }

    fn write(&mut self, page: usize) {
        let at = page * PAGE_BYTES + page % 700;
        let byte = &mut self.bytes()[at];
        *byte = byte.wrapping_add(1);
    }
}

fn works_here() -> bool {
    let probed = probe();
    let found = probed.iter().find(|probed| probed.kind == TrackerKind::WpAsync);
    if let Some(Probed { outcome: Err(why), .. }) = found {
        eprintln!("not tested: {why}");
        return false;
    }
    true
}

#[test]
fn changed_pages_are_found_and_no_others() {
    if !works_here() {
        return;
    }
    for offset in [0, 16] {
        let mut program = Program::new(offset, 9 * MIB + 777);
        program.bytes().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 91) as u8);
        assert_eq!(program.save(true), 2305);
        // Large memory starts coarse; quiet blocks are armed with the second freeze.
        assert_eq!(program.save(true), 0);
        for round in 0..40 {
            let pages = [5, 6, 700 + round, 2304, 1 + 512 * (round % 4)];
            pages.iter().for_each(|page| program.write(*page));
            if round % 3 == 0 {
                // Written with its old value: filtered by hash.
                let byte = &mut program.bytes()[1500 * PAGE_BYTES];
                *byte = std::hint::black_box(*byte);
            }
            let mut apart = pages.to_vec();
            apart.sort_unstable();
            apart.dedup();
            assert_eq!(program.save(round % 5 != 4), apart.len() as u64);
            if round % 5 == 4 {
                // The save failed: the next one finds the same pages, although they are armed
                // again.
                assert_eq!(program.save(true), apart.len() as u64);
            }
        }
        let report = program.tracker.report();
        assert!(report.starts_with("wp-async: "), "{report}");
        assert!(!report.contains(" 0 of them page by page"), "{report}");
    }
}

#[test]
fn dense_blocks_turn_coarse_and_cold_ones_are_armed() {
    if !works_here() {
        return;
    }
    let mut program = Program::new(0, 8 * MIB);
    program.save(true);
    program.save(true);
    let armed = |program: &Program| program.tracker.lock().watches.armed_bytes();
    assert_eq!(armed(&program), 8 * MIB);
    // The second block is swept again and again.
    for _ in 0..4 {
        (512..1024).for_each(|page| program.write(page));
        assert_eq!(program.save(true), 512);
    }
    assert_eq!(armed(&program), 6 * MIB);
    let mut quiet = 0;
    while armed(&program) < 8 * MIB {
        assert_eq!(program.save(true), 0);
        quiet += 1;
        assert!(quiet < 40, "a cold block is armed again");
    }
    program.write(600);
    assert_eq!(program.save(true), 1);
}

#[test]
fn memory_given_up_is_seen() {
    if !works_here() {
        return;
    }
    let mut program = Program::new(0, 8 * MIB);
    program.bytes().fill(7);
    program.save(true);
    program.save(true);
    let give_up = |program: &mut Program, offset: usize, length: usize| {
        let start = program.bytes()[offset..][..length].as_mut_ptr().cast();
        #[allow(unsafe_code)]
        // SAFETY: whole pages of the program's own buffer, which read as zeros afterwards.
        unsafe { rustix::mm::madvise(start, length, rustix::mm::Advice::LinuxDontNeed) }.unwrap();
    };
    give_up(&mut program, 4096, 4096);
    assert_eq!(program.save(true), 1);
    give_up(&mut program, 2 * MIB, 4 * MIB);
    assert_eq!(program.save(true), 1024);
    assert_eq!(program.save(true), 0);
    program.write(600);
    assert_eq!(program.save(true), 1);
    // Two blocks dropped at once, of which one had a written page; then a block that was dropped
    // and partly written again.
    program.bytes().fill(9);
    program.save(true);
    while program.tracker.lock().watches.armed_bytes() < 8 * MIB {
        assert_eq!(program.save(true), 0);
    }
    program.write(5);
    give_up(&mut program, 4096 * 7, 4096 * 3);
    give_up(&mut program, 2 * MIB, 2 * MIB);
    give_up(&mut program, 4 * MIB, 2 * MIB);
    program.write(1030);
    assert_eq!(program.save(true), 1 + 3 + 512 + 512);
    assert_eq!(program.save(true), 0);
}

#[test]
fn a_sweep_that_leaves_its_blocks_behind_makes_them_coarse_no_more() {
    if !works_here() {
        return;
    }
    let mut program = Program::new(0, 16 * MIB);
    program.save(true);
    program.save(true);
    // Returns the blocks that are coarse after block `at` was swept.
    let sweep = |program: &mut Program, at: usize| -> Vec<usize> {
        (at * 512..(at + 1) * 512).for_each(|page| program.write(page));
        assert_eq!(program.save(true), 512);
        let (_, armed) = program.tracker.lock().watches.armed().unwrap();
        let start = program.memory.as_ptr().addr();
        let is_coarse = |block: &usize| {
            let middle = start + block * 2 * MIB + MIB;
            !armed.iter().any(|pages| (pages.start..pages.end).contains(&middle))
        };
        (0..8).filter(is_coarse).collect()
    };
    assert_eq!([0, 1].map(|block| sweep(&mut program, block)), [[0], [1]]);
    // By now it is known that the last one is not written again,
    assert_eq!([2, 3].map(|block| sweep(&mut program, block)), [[], []]);
    // and then, that the next one will be.
    assert_eq!([4, 5].map(|block| sweep(&mut program, block)), [[5], [6]]);
    // A block that is written again is made coarse nevertheless, and the next one is no longer
    // expected.
    assert_eq!([6, 6, 6].map(|block| sweep(&mut program, block)), [[7], [6], [6]]);
}

#[test]
fn regions_that_are_written_once_each_are_made_coarse_no_more() {
    if !works_here() {
        return;
    }
    let mut program = Program { regions: 8, ..Program::new(0, 32 * MIB) };
    program.save(true);
    program.save(true);
    let coarse: Vec<usize> = (0..8)
        .map(|region| {
            (region * 1024..(region + 1) * 1024).for_each(|page| program.write(page));
            assert_eq!(program.save(true), 1024);
            32 * MIB - program.tracker.lock().watches.armed_bytes()
        })
        .collect();
    // The region of the first round is armed again in the second, and by then the pattern is known.
    let edges = coarse[7];
    assert!(edges < MIB, "{coarse:?}");
    assert_eq!(coarse, [4 * MIB, edges, edges, edges, edges, edges, edges, edges]);
}

#[test]
fn canaries_that_are_mistaken_arm_nothing_for_long() {
    if !works_here() {
        return;
    }
    let mut program = Program::new(0, 8 * MIB);
    program.save(true);
    let start = program.memory.as_ptr().addr();
    assert_eq!(start % (2 * MIB), 0, "one block of the region is one of the hardware");
    // Only pages that the next freeze checks first stay unchanged.
    let canaries: Vec<usize> = {
        let state = program.tracker.lock();
        state.watches.watch_of("x0").canaries(1, 1).map(|page| page as usize).collect()
    };
    let written: Vec<usize> = (512..1024).filter(|page| !canaries.contains(page)).collect();
    assert!((504..512).contains(&written.len()), "{canaries:?}");
    written.iter().for_each(|page| program.write(*page));
    assert_eq!(program.save(true), written.len() as u64);
    let (_, armed) = program.tracker.lock().watches.armed().unwrap();
    let blocks: Vec<usize> = armed.iter().map(|pages| (pages.start - start) / (2 * MIB)).collect();
    assert_eq!(blocks, [0, 2, 3]);
}

#[test]
fn pages_that_are_written_and_stay_as_they_are_are_noticed_wherever_they_lie() {
    if !works_here() {
        return;
    }
    // One page in 64, never the first of them.
    let pages = (0..16 * MIB / PAGE_BYTES).skip(5).step_by(64);
    // With few of them it takes longer, since chance decides which are checked; but each gets its
    // turn.
    for (rewritten, rounds_max) in [(0..64, 20), (0..8, 100), (8..16, 100), (16..24, 100)] {
        let mut program = Program::new(0, 16 * MIB);
        program.save(true);
        program.save(true);
        for round in 0..10 {
            pages.clone().for_each(|page| program.write(page));
            assert_eq!(program.save(true), 64, "round {round}");
        }
        let noticed = (0..rounds_max).find(|_| {
            for page in pages.clone().skip(rewritten.start).take(rewritten.len()) {
                let byte = &mut program.bytes()[page * PAGE_BYTES];
                *byte = std::hint::black_box(*byte);
            }
            program.save(true) == 0
        });
        assert!(noticed.is_some_and(|round| round > 0), "of {rewritten:?}: {noticed:?}");
    }
}

#[test]
fn a_sweep_with_holes_copies_no_more_than_it_writes() {
    if !works_here() {
        return;
    }
    let mut program = Program::new(0, 64 * MIB);
    program.save(true);
    program.save(true);
    for block in 0..16 {
        // One page in eight stays.
        let pages = (block * 1024..(block + 1) * 1024).filter(|page| page % 8 != 3);
        pages.for_each(|page| program.write(page));
        assert_eq!(program.save(true), 896, "block {block}");
    }
}

#[test]
fn where_a_sweep_is_expected_nothing_is_missed() {
    if !works_here() {
        return;
    }
    let mut program = Program::new(0, 32 * MIB);
    program.save(true);
    program.save(true);
    let mut next = 0;
    let mut sweep = |program: &mut Program, pages: usize| {
        (next..next + pages).for_each(|page| program.write(page));
        next += pages;
    };
    for _ in 0..5 {
        sweep(&mut program, 512);
        assert_eq!(program.save(true), 512);
    }
    // The save of a block that was swept as expected fails.
    sweep(&mut program, 512);
    assert_eq!(program.save(false), 512);
    sweep(&mut program, 512);
    assert_eq!(program.save(true), 1024);
    // The sweep comes half of the way, with a page behind it; the save fails.
    sweep(&mut program, 200);
    program.write(5000);
    assert_eq!(program.save(false), 201);
    assert_eq!(program.save(true), 201);
    assert_eq!(program.save(true), 0);
    // The sweep continues, and farther than expected.
    sweep(&mut program, 1000);
    assert_eq!(program.save(true), 1000);
    // The sweep does not come, but a single page is written there.
    program.write(6000);
    assert_eq!(program.save(true), 1);
    program.write(6001);
    assert_eq!(program.save(true), 1);
    assert_eq!(program.save(true), 0);
}

#[test]
fn a_second_tracker_of_the_same_memory_compares() {
    if !works_here() {
        return;
    }
    let mut program = Program::new(0, 4 * MIB);
    program.save(true);
    program.save(true);
    // Another job of the same process saves the same array.
    let other = Arc::new(ChangeTracker::with(TrackerChoice::Auto));
    let first = std::mem::replace(&mut program.tracker, other);
    let (epoch, image) = (program.epoch, program.image.clone());
    program.write(3);
    program.epoch = 0;
    program.save(true);
    assert!(program.tracker.report().contains("another job of this process tracks it"));
    program.write(4);
    assert_eq!(program.save(true), 1);
    program.tracker = first;
    (program.epoch, program.image) = (epoch, image);
    assert_eq!(program.save(true), 2, "the first job has missed nothing");
}

#[test]
fn memory_that_a_tracker_cannot_take_is_refused() {
    if !works_here() {
        return;
    }
    let tracker = WpAsync::open().unwrap();
    #[allow(unsafe_code)]
    // SAFETY: nothing is mapped at these addresses, or memory of the test's own; see the calls.
    let refused = |pages| unsafe { tracker.watch(pages) }.unwrap_err().0;
    assert!(
        refused(Pages { start: PAGE_BYTES, end: 2 * PAGE_BYTES }).contains("nothing is mapped")
    );
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    #[allow(unsafe_code)]
    // SAFETY: new mappings, which no other code uses.
    let (private, shared) = unsafe {
        let private = mmap(std::ptr::null_mut(), 8192, protection, MapFlags::PRIVATE, &file, 0);
        let shared = mmap_anonymous(std::ptr::null_mut(), 8192, protection, MapFlags::SHARED);
        (private.unwrap() as usize, shared.unwrap() as usize)
    };
    assert!(refused(Pages { start: private, end: private + 8192 }).contains("mapped from a file"));
    assert!(refused(Pages { start: shared, end: shared + 8192 }).contains("shared memory"));
}

#[test]
fn a_block_that_stays_coarse_gets_its_huge_page_back() {
    if !works_here() {
        return;
    }
    // One block of ten, which is compared each time; then all of them, of which a sample suffices.
    for written in [512..1024, 0..5120] {
        let mut program = Program::new(0, 20 * MIB);
        program.bytes().fill(1);
        let start = program.bytes().as_ptr() as usize;
        let tracker = WpAsync::open().unwrap();
        let is_huge = |block: usize| {
            let start = start + block * 2 * MIB;
            tracker.is_huge(Pages { start, end: start + 2 * MIB })
        };
        if !is_huge(1) {
            eprintln!("not tested: this system gives no huge pages");
            return;
        }
        program.save(true);
        program.save(true);
        let blocks = written.start / 512..written.end / 512;
        blocks.clone().for_each(|block| program.write(block * 512));
        assert!(!blocks.clone().any(is_huge), "tracking splits them");
        let started = Instant::now();
        for save in 0.. {
            written.clone().for_each(|page| program.write(page));
            program.save(true);
            // This happens in the background, at some time.
            if blocks.clone().all(is_huge) {
                assert!(save >= 3, "too soon to know that they stay coarse");
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            assert!(started.elapsed() < Duration::from_secs(300), "{written:?}");
        }
    }
}

#[test]
fn pages_that_were_copied_ahead_are_saved_and_the_rest_as_well() {
    if !works_here() {
        return;
    }
    for offset in [0, 16] {
        let mut program = Program::new(offset, 6 * MIB);
        program.freeze = FreezeMode::Precopy;
        program.bytes().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 91) as u8);
        program.save(true);
        program.save(true);
        for round in 0..6 {
            // Some pages go quiet early, some are written to the end, one is written again after
            // its copy.
            (0..40).for_each(|page| program.write(7 * page + round));
            for _ in 0..4 {
                program.tracker.wait_for_rounds();
                (600..610).for_each(|page| program.write(page));
            }
            program.write(7 + round);
            program.write(1400);
            let changed = program.save(round != 3);
            assert!((51..=150).contains(&changed), "{changed} pages");
            if round != 3 {
                // A failed save leaves nothing to copy ahead from.
                let ahead = program.report.ahead_bytes;
                assert!(round == 4 || ahead >= 30 * PAGE_BYTES as u64, "{ahead} bytes");
            }
        }
        assert_eq!(program.save(true), 0, "what was learnt from the copies is right");
    }
}

#[test]
fn memory_that_was_let_go_is_compared_and_watched_anew() {
    if !works_here() {
        return;
    }
    let mut program = Program::new(16, 4 * MIB);
    program.save(true);
    program.save(true);
    program.write(700);
    program.tracker.detach();
    program.write(3);
    // Another tracker may take the memory now.
    let other = WpAsync::open().unwrap();
    let start = (program.bytes().as_ptr() as usize).next_multiple_of(PAGE_BYTES);
    let pages = Pages { start, end: start + MIB };
    #[allow(unsafe_code)]
    // SAFETY: the program's own memory.
    unsafe { other.watch(pages) }.unwrap();
    assert_eq!(program.save(true), 2);
    assert!(program.tracker.report().contains("another job of this process"));
    other.unwatch(pages);
    program.write(4);
    assert_eq!(program.save(true), 1);
    program.write(5);
    assert_eq!(program.save(true), 1);
    assert!(!program.tracker.report().contains("another job"));
}

#[test]
#[allow(unsafe_code)]
fn copies_of_memory_that_was_given_up_since_do_not_count() {
    const PAGES: usize = 400;
    let mut memory = AlignedBuf::zeroed(PAGES * PAGE_BYTES);
    memory.fill(7);
    let hashes = PageHashes::compute(&memory, 1);
    let told = Told::new(memory.as_ptr().addr());
    let place = RegionSpan { start: memory.as_ptr().addr(), length: memory.len() };
    // SAFETY: the tracker only returns what the test notes; it does nothing to the memory.
    let mut watch = unsafe { region::RegionWatch::begin(&told, place, PAGES) }.unwrap();
    watch.settle();
    let mut ahead = Ahead::new(&[told.pages(0..PAGES)], &[], 1 << 20, Ahead::default());
    memory[5 * PAGE_BYTES..6 * PAGE_BYTES].fill(9);
    told.write(5);
    (0..3).for_each(|_| ahead.round(&told, &|| false).unwrap());
    let copy = told.pages(5..6).start;
    assert_eq!(ahead.page(copy), Some(&[9; PAGE_BYTES][..]));
    // Many kernels do not report memory without a page table as written.
    memory.fill(0);
    told.give_up();
    ahead.finish(&told).unwrap();
    let look = watch
        .collect(&told, &hashes, &memory, Some(&mut ahead), &mut Patience::default(), 1)
        .unwrap();
    assert_eq!(ahead.page(copy), None, "the page is zero now");
    let all = PageRange { first: 0, count: PAGES as u64 };
    assert_eq!((look.compare, look.dirty), (vec![all], vec![]));
}

/// A state of many arrays, or one that is written here and there, has as many areas as blocks.
#[test]
#[allow(unsafe_code)]
fn the_cost_of_armed_areas_grows_in_proportion() {
    const BLOCKS: usize = 4096;
    const BLOCK: usize = 2 * MIB;
    let start = 1 << 40;
    let told = Told::new(start);
    let place = RegionSpan { start, length: BLOCKS * BLOCK };
    // SAFETY: nothing reads the memory.
    let mut watch = unsafe { region::RegionWatch::begin(&told, place, 100) }.unwrap();
    let area = |at: usize| Pages { start: start + at * BLOCK, end: start + (at + 1) * BLOCK };
    let areas: Vec<Pages> = (0..BLOCKS).step_by(2).map(area).collect();
    told.write(512 * 4 + 9);
    (0..150).for_each(|page| told.write(512 * 6 + page));
    region::COUNTED.with(|counted| counted.set(0));
    let held: Vec<_> = areas.iter().map(|area| area.start..area.end).collect();
    watch.keep_armed(&told, &areas, &held);
    assert_eq!(region::COUNTED.with(std::cell::Cell::get), BLOCKS / 2);
    let armed: Vec<Pages> = watch.armed().collect();
    let sparse = |at: usize| at.is_multiple_of(2) && at != 6;
    assert_eq!(armed, (0..BLOCKS).filter(|at| sparse(*at)).map(area).collect::<Vec<_>>());
}

/// A hardware page holds the end of one page of such an array and most of another.
#[test]
fn arrays_off_page_boundaries_are_not_compared_where_all_is_changed() {
    if !works_here() {
        return;
    }
    for offset in [0, 16, 2048, 4080] {
        let mut program = Program::new(offset, 9 * MIB + 777);
        program.bytes().fill(1);
        program.save(true);
        program.save(true);
        for round in 0..6 {
            let pages: Vec<usize> = (0..100).map(|number| number * 20 + round).collect();
            for page in &pages {
                // In the middle of a hardware page, whichever page of the region that is.
                let at = page * PAGE_BYTES + (PAGE_BYTES / 2 + PAGE_BYTES - offset) % PAGE_BYTES;
                program.bytes()[at] ^= 0xFF;
            }
            assert_eq!(program.save(true), 100, "offset {offset}");
        }
        let compares = program.tracker.lock().watches.watch_of("x0").compares_written();
        assert!(!compares, "offset {offset}");
    }
}
