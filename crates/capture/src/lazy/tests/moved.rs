//! Memory that the program moves, drops or unmaps while it is filled.
//!
//! Each of these tests needs a process of its own, as `cargo nextest` gives it; `cargo test` runs
//! them as threads of one. Some move memory to an old mapping of theirs. If another test had mapped
//! something there meanwhile, it would be overwritten.

use super::*;
use std::sync::Barrier;

/// Memory as a program maps it, which it may move; an `AlignedBuf` may not be moved.
pub(super) struct Mapping(pub usize, pub usize);

impl Mapping {
    pub fn new(bytes: usize) -> Mapping {
        let (flags, protection) =
            (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: advice is about memory of ours, and does not change its content. Huge pages are
        // split where parts of them move.
        unsafe { libc::madvise(at, bytes, libc::MADV_HUGEPAGE) };
        Mapping(at.expose_provenance(), bytes)
    }

    pub fn lazily(&self, user_only: bool) -> LazyMemory {
        lazily_all(&[self], user_only)
    }

    /// Moves a part to an address of the kernel's choice, `more` bytes longer; returns the address.
    fn move_part(&self, part: Range<usize>, more: usize) -> usize {
        let room = Mapping::new(part.len() + more);
        self.move_to(part, &room)
    }

    /// Moves a part to the address of another mapping, at least as long; returns the address.
    fn move_to(&self, part: Range<usize>, room: &Mapping) -> usize {
        self.move_by(part, room, 0)
    }

    fn move_by(&self, part: Range<usize>, room: &Mapping, flags: libc::c_int) -> usize {
        let from = (self.0 + part.start) as *mut libc::c_void;
        let flags = flags | libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both mappings are ours, and no reference points there. Where the second one is
        // unmapped, nothing else has come there: no other test is in this process (see the module's
        // head).
        let to =
            unsafe { libc::mremap(from, part.len(), room.1, flags, room.0 as *mut libc::c_void) };
        assert_ne!(to, libc::MAP_FAILED);
        room.0
    }

    fn advise(&self, part: Range<usize>, advice: i32) {
        let from = (self.0 + part.start) as *mut libc::c_void;
        // SAFETY: the mapping is ours, and no reference points there.
        assert_eq!(unsafe { libc::madvise(from, part.len(), advice) }, 0);
    }
}

fn lazily_all(mappings: &[&Mapping], user_only: bool) -> LazyMemory {
    // SAFETY: the mappings are ours, and stay until the test ends. They may move; the kernel
    // reports that.
    let region =
        |mapping: &&Mapping| unsafe { MutRegion::from_raw(mapping.0 as *mut u8, mapping.1) };
    let options = LazyOptions { user_only, ..LazyOptions::default() };
    let memory = LazyMemory::new(mappings.iter().map(region).collect(), options).unwrap();
    assert!((0..mappings.len()).all(|stream| memory.is_lazy(stream)), "{:?}", memory.how());
    memory
}

/// Brings whole pages of a stream.
fn bring(memory: &LazyMemory, stream: usize, part: Range<usize>) {
    memory.write(stream, part.start as u64, &bytes_of(stream, part));
}

/// Runs `program` while a thread reads notices and serves faults.
fn serving<T>(memory: &LazyMemory, program: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while let Some(missing) = memory.next_missing() {
                let from = missing.offset as usize;
                let bytes = bytes_of(missing.stream, from..from + missing.length);
                memory.deliver(&missing, Some(&bytes));
            }
        });
        /// Stops the fill, also if the program panics.
        struct Stop<'a>(&'a LazyMemory);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.stop();
            }
        }
        let _stop = Stop(memory);
        program()
    })
}

fn byte_at(address: usize) -> u8 {
    // SAFETY: callers name memory that they have mapped, which only the fill writes.
    unsafe { (address as *const u8).read_volatile() }
}

fn check_at(address: usize, offsets: Range<usize>) {
    check_stream_at(0, address, offsets);
}

fn check_stream_at(stream: usize, address: usize, offsets: Range<usize>) {
    for at in offsets.clone().step_by(509) {
        assert_eq!(byte_at(address + at - offsets.start), expected(stream, at), "offset {at}");
    }
}

#[test]
fn memory_that_the_program_moves_is_filled_where_it_is() {
    for (seed, user_only) in [(0, false), (1, true), (2, false), (3, true)] {
        let mapping = Mapping::new(9 * MIB);
        let memory = mapping.lazily(user_only);
        restore_held(&memory, &[9 * MIB], seed, &|release| {
            // Some pages are there, some are not, and threads wait for some.
            let touched = mapping.0 + seed as usize * MIB;
            assert_eq!(byte_at(touched), expected(0, seed as usize * MIB));
            let part = 2 * MIB + 4096..6 * MIB - 8192;
            let at = mapping.move_part(part.clone(), MIB);
            check_at(at + part.len() - 70_000, part.end - 70_000..part.end);
            assert_eq!(byte_at(at + part.len() + 5000), 0, "it has grown by zeros");
            // The moved part moves on, in two parts.
            let moved = Mapping(at, part.len());
            let half = 2 * MIB..2 * MIB + 300 * 4096;
            let on = moved.move_part(half.clone(), 0);
            check_at(on, part.start + half.start..part.start + half.end);
            check_at(at, part.start..part.start + half.start);
            check_at(at + half.end, part.start + half.end..part.end);
            check_at(mapping.0, 0..part.start);
            check_at(mapping.0 + part.end, part.end..9 * MIB);
            release();
            assert!(memory.wait(Some(0), None));
            check_at(at, part.start..part.start + half.start);
            check_at(on, part.start + half.start..part.start + half.end);
        });
        assert!(memory.take_hashes(0).is_some());
    }
}

/// The memory moves before it is touched: no fault shows the new address.
#[test]
fn memory_that_moves_untouched_is_filled() {
    let mapping = Mapping::new(6 * MIB);
    let memory = mapping.lazily(true);
    let at = std::thread::scope(|scope| {
        let moving = scope.spawn(|| mapping.move_part(0..6 * MIB, 0));
        while is_mapped(mapping.0) {
            std::thread::yield_now();
        }
        // The thread that moves it waits until its notice is read, here by the background.
        assert!(!moving.is_finished());
        bring(&memory, 0, 0..6 * MIB);
        moving.join().unwrap()
    });
    assert!(memory.wait(None, None) && memory.failure().is_none());
    check_at(at, 0..6 * MIB);
}

#[test]
fn memory_that_the_program_gives_up_is_zero_and_stays_so() {
    for (seed, advice) in [(0, libc::MADV_DONTNEED), (1, libc::MADV_FREE)] {
        let mapping = Mapping::new(8 * MIB);
        let memory = mapping.lazily(seed == 1);
        let (gone, small) = (MIB + 4096..5 * MIB, 6 * MIB + 8192..6 * MIB + 3 * 4096);
        let written = 3 * MIB + 123;
        restore_held(&memory, &[8 * MIB], seed, &|_| {
            mapping.advise(gone.clone(), advice);
            mapping.advise(small.clone(), advice);
            // SAFETY: the mapping is ours, and no reference points there.
            unsafe { ((mapping.0 + written) as *mut u8).write_volatile(77) };
            check_at(mapping.0 + 5 * MIB, 5 * MIB..6 * MIB);
        });
        let is_gone = |at: &usize| gone.contains(at) || small.contains(at);
        for at in (0..8 * MIB).step_by(509).filter(|at| at.abs_diff(written) > 4096) {
            let got = byte_at(mapping.0 + at);
            // Existing content may come back after MADV_FREE.
            let free = advice == libc::MADV_FREE && got == expected(0, at);
            assert!(if is_gone(&at) { got == 0 || free } else { got == expected(0, at) }, "{at}");
        }
        assert_eq!(byte_at(mapping.0 + written), 77);
        assert_eq!(byte_at(mapping.0 + written + 1), 0);
    }
}

#[test]
fn memory_may_be_unmapped_and_mapped_anew_while_it_is_filled() {
    for seed in 0..20 {
        let mapping = Mapping::new(6 * MIB);
        let memory = mapping.lazily(seed % 2 == 0);
        let gone = MIB + 4096..4 * MIB;
        restore_held(&memory, &[6 * MIB], seed, &|_| {
            let start = (mapping.0 + gone.start) as *mut libc::c_void;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            // SAFETY: the mapping is ours, and no reference points there.
            let anew = unsafe { libc::mmap(start, gone.len(), libc::PROT_READ, flags, -1, 0) };
            assert_eq!(anew, start);
            check_at(mapping.0, 0..gone.start);
        });
        for at in gone.clone().step_by(4096) {
            assert_eq!(byte_at(mapping.0 + at), 0, "what is mapped again is not filled");
        }
        check_at(mapping.0 + gone.end, gone.end..6 * MIB);
    }
}

/// The history of a region that is whole says nothing about memory that the program puts there
/// later.
#[test]
fn memory_that_moves_to_where_a_whole_region_was_is_filled() {
    for (user_only, first_moves) in [(false, false), (true, true)] {
        let (first, second) = (Mapping::new(2 * MIB), Mapping::new(5 * MIB));
        let memory = lazily_all(&[&first, &second], user_only);
        serving(&memory, || {
            let mut at = first.0;
            if first_moves {
                at = first.move_part(0..2 * MIB, 0);
            }
            bring(&memory, 0, 0..2 * MIB);
            assert!(memory.wait(Some(0), None));
            check_at(at, 0..2 * MIB);
            // The memory moves to the region's old address, and on.
            let part = MIB..3 * MIB;
            let moved = Mapping(second.move_to(part.clone(), &Mapping(at, 2 * MIB)), 2 * MIB);
            assert_eq!(moved.0, at);
            let touched = byte_at(at + 5 * PAGE_BYTES);
            assert_eq!(touched, expected(1, MIB + 5 * PAGE_BYTES), "it is waited for");
            let on = moved.move_part(0..2 * MIB, 0);
            bring(&memory, 1, 0..5 * MIB);
            assert!(memory.wait(None, None));
            check_stream_at(1, on, part.clone());
            check_stream_at(1, second.0, 0..part.start);
            check_stream_at(1, second.0 + part.end, part.end..5 * MIB);
        });
        assert_eq!(memory.failure(), None);
    }
}

fn is_mapped(page: usize) -> bool {
    let mut found = 0;
    // SAFETY: the kernel looks the address up, and writes one byte.
    0 == unsafe { libc::mincore(page as *mut libc::c_void, PAGE_BYTES, &raw mut found) }
}

/// Maps the test's program file at a free address.
fn map_file_at(at: usize, bytes: usize) {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: a new mapping at a free address disturbs nothing.
    let got = unsafe { libc::mmap(at as *mut _, bytes, libc::PROT_READ, flags, fd, 0) };
    assert_eq!(got.expose_provenance(), at);
}

/// A region may become whole at the very moment at which the program moves it. Then its memory is
/// no longer registered, wherever it is: a thread that touched a missing page there would wait
/// forever.
#[test]
fn a_region_that_moves_as_it_becomes_whole_is_let_go() {
    for files in [false, true] {
        let (mapping, other) = (Mapping::new(4 * MIB), Mapping::new(MIB));
        let memory = lazily_all(&[&mapping, &other], true);
        let fill = memory.fill.as_ref().unwrap();
        // All except the last step: the bytes are placed, as for faults, but do not count as
        // brought.
        for offset in (0..4 * MIB).step_by(unit::WINDOW_BYTES) {
            let (from, length) = (offset as u64, unit::WINDOW_BYTES);
            let (unit_offset, unit_length, is_written) = (from, length, false);
            let missing =
                Missing { stream: 0, offset: from, length, is_written, unit_offset, unit_length };
            let bytes = bytes_of(0, offset..offset + length);
            memory.deliver(&missing, Some(&bytes));
        }
        let part = MIB..2 * MIB;
        let at = std::thread::scope(|scope| {
            let moving = scope.spawn(|| mapping.move_part(part.clone(), 0));
            // The memory has moved, and its thread waits until the notice is read.
            while is_mapped(mapping.0 + part.start) {
                std::thread::yield_now();
            }
            if files {
                map_file_at(mapping.0 + part.start, part.len());
            }
            assert!(!moving.is_finished());
            bring(&memory, 0, 0..4 * MIB);
            moving.join().unwrap()
        });
        assert!(memory.wait(Some(0), None));
        for page in [mapping.0, mapping.0 + part.end, at, at + part.len() - PAGE_BYTES] {
            assert!(!fill.is_registered(page), "{page:x} of {:x} and {at:x}", mapping.0);
        }
        assert!(fill.is_registered(other.0), "the other one is not whole");
        check_at(at, part.clone());
        check_at(mapping.0, 0..part.start);
        check_at(mapping.0 + part.end, part.end..4 * MIB);
    }
}

/// Such a move leaves an empty mapping behind, of which the kernel reports nothing until it goes.
#[test]
fn memory_that_moves_to_where_a_move_has_left_its_mapping_is_filled() {
    for goes_first in [false, true] {
        let (first, second) = (Mapping::new(2 * MIB), Mapping::new(5 * MIB));
        let memory = lazily_all(&[&first, &second], true);
        serving(&memory, || {
            let at = first.move_by(0..2 * MIB, &Mapping::new(2 * MIB), libc::MREMAP_DONTUNMAP);
            assert_eq!(byte_at(first.0 + MIB), 0, "nothing is left there");
            if goes_first {
                // SAFETY: the mapping is ours, and no reference points there.
                assert_eq!(unsafe { libc::munmap(first.0 as *mut _, 2 * MIB) }, 0);
            }
            let part = MIB..3 * MIB;
            assert_eq!(second.move_to(part.clone(), &first), first.0);
            bring(&memory, 0, 0..2 * MIB);
            bring(&memory, 1, 0..5 * MIB);
            assert!(memory.wait(None, None));
            check_at(at, 0..2 * MIB);
            check_stream_at(1, first.0, part);
        });
        assert_eq!(memory.failure(), None);
    }
}

/// The kernel reports a move in two notices: the new address, and then that the old one is
/// unmapped. By then another thread's memory may be there.
#[test]
fn memory_that_moves_to_where_another_thread_moves_away_is_filled() {
    let (first, second) = (Mapping::new(2 * MIB), Mapping::new(2 * MIB));
    let memory = lazily_all(&[&first, &second], true);
    let gone = |mapping: &Mapping| {
        while is_mapped(mapping.0) {
            std::thread::yield_now();
        }
    };
    // Both threads are started before: nothing else may be mapped to the address.
    let start = Barrier::new(3);
    let at = std::thread::scope(|scope| {
        let moving = scope.spawn(|| {
            start.wait();
            first.move_part(0..2 * MIB, 0)
        });
        scope.spawn(|| {
            start.wait();
            gone(&first);
            second.move_to(0..2 * MIB, &first)
        });
        start.wait();
        gone(&second);
        // No notice of either was read.
        bring(&memory, 0, 0..2 * MIB);
        bring(&memory, 1, 0..2 * MIB);
        moving.join().unwrap()
    });
    assert!(memory.wait(None, None) && memory.failure().is_none());
    memory.stop();
    check_stream_at(0, at, 0..2 * MIB);
    check_stream_at(1, first.0, 0..2 * MIB);
}
