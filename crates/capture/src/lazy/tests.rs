//! Fills as in a restore, of memory whose content the tests know.
#![allow(unsafe_code)]

mod moved;

use super::*;
use crate::track::{TrackerChoice, TrackerKind};
use crate::{ChangeTracker, MemorySource, Region};
use moved::Mapping;
use outlive_types::{ErrorKind, FreezeMode, FreezeRequest, Frozen, PageSource, SeededRng};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Instant;

const MIB: usize = 1 << 20;

/// Content of byte `offset` of stream `stream`; every seventh page is zero.
fn expected(stream: usize, offset: usize) -> u8 {
    let page = offset / PAGE_BYTES;
    match page % 7 {
        3 => 0,
        _ => (offset % 251) as u8 ^ (page as u8) ^ (stream as u8) | 1,
    }
}

fn bytes_of(stream: usize, range: Range<usize>) -> Vec<u8> {
    range.map(|offset| expected(stream, offset)).collect()
}

/// Restores: eager streams and edges first, then runs the program, and brings pieces of
/// `piece_pages` pages in the order of `order`. A thread serves faults. `program` may touch lazy
/// memory meanwhile.
fn restore(memory: &LazyMemory, lengths: &[usize], seed: u64, program: &(dyn Fn() + Sync)) {
    let deliver = |missing: &Missing| deliver(memory, missing);
    restore_as(memory, lengths, seed, &deliver, &|release| {
        release();
        program();
    });
}

fn deliver(memory: &LazyMemory, missing: &Missing) {
    let from = missing.offset as usize;
    let bytes = bytes_of(missing.stream, from..from + missing.length);
    memory.deliver(missing, Some(&bytes));
}

/// Does the same, but the last piece comes when the program releases it, at its end at the latest.
/// Until then memory is being filled, whatever the program does.
fn restore_held(
    memory: &LazyMemory,
    lengths: &[usize],
    seed: u64,
    program: &(dyn Fn(&dyn Fn()) + Sync),
) {
    restore_as(memory, lengths, seed, &|missing| deliver(memory, missing), program);
}

/// Does the same; `serve` handles each fault.
fn restore_as(
    memory: &LazyMemory,
    lengths: &[usize],
    seed: u64,
    serve: &(dyn Fn(&Missing) + Sync),
    program: &(dyn Fn(&dyn Fn()) + Sync),
) {
    for (stream, edge) in memory.edges() {
        let bytes = bytes_of(stream, edge.start as usize..edge.end as usize);
        memory.write_edge(stream, edge.start, &bytes);
    }
    let rng = SeededRng::new(seed);
    let mut pieces = Vec::new();
    for (stream, length) in lengths.iter().enumerate() {
        let mut at = 0;
        while at < *length {
            let end = (at + (1 + rng.next_u64() as usize % 16) * PAGE_BYTES).min(*length);
            pieces.push((stream, at..end));
            at = end;
        }
    }
    let eager = |piece: &&(usize, Range<usize>)| !memory.is_lazy(piece.0);
    let bring = |(stream, range): &(usize, Range<usize>)| {
        let bytes = bytes_of(*stream, range.clone());
        match bytes.iter().all(|byte| *byte == 0) {
            true => memory.zero(*stream, range.start as u64, range.len() as u64),
            false => memory.write(*stream, range.start as u64, &bytes),
        }
    };
    pieces.iter().filter(eager).for_each(bring);
    pieces.retain(|piece| !eager(&piece));
    for last in (1..pieces.len()).rev() {
        pieces.swap(last, rng.next_u64() as usize % (last + 1));
    }
    // One of the last unit, where programs of tests touch memory before the unit is whole.
    let last = lengths.len() - 1;
    let late = lengths[last].saturating_sub(100 * PAGE_BYTES);
    let is_late = |piece: &(usize, Range<usize>)| piece.0 == last && piece.1.contains(&late);
    let held = match pieces.iter().position(is_late) {
        Some(at) => Some(pieces.swap_remove(at)),
        None => pieces.pop(),
    };
    let (next, released) = (AtomicUsize::new(0), std::sync::Once::new());
    let release = || released.call_once(|| held.iter().for_each(bring));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(missing) = memory.next_missing() {
                    serve(&missing);
                }
            });
            scope.spawn(|| {
                while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                    bring(piece);
                }
            });
        }
        program(&release);
        release();
        memory.wait(None, None);
        memory.stop();
    });
    assert_eq!(memory.failure(), None);
}

fn lazily(lengths: &[usize], options: LazyOptions) -> LazyMemory {
    let streams = lengths.iter().map(|length| MutRegion::zeroed(*length)).collect();
    LazyMemory::new(streams, options).unwrap()
}

fn check(memory: LazyMemory, lengths: &[usize]) {
    for (stream, length) in lengths.iter().enumerate() {
        let want = PageHashes::compute(&bytes_of(stream, 0..*length), 1);
        assert_eq!(memory.take_hashes(stream), Some(want), "hashes of stream {stream}");
    }
    for (stream, region) in memory.into_streams().into_iter().enumerate() {
        let got = region.into_bytes().unwrap();
        assert!(*got == bytes_of(stream, 0..lengths[stream]), "stream {stream}");
    }
}

/// The test delivers nothing for some faults: the background brings their units. Some of these
/// pages are zeros, which the fill does not place before the next fault.
#[test]
fn an_expected_window_is_there_once_its_unit_is_whole() {
    let lengths = [9 * MIB + 5];
    let memory = lazily(&lengths, LazyOptions::default());
    let (asked, expected_faults) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let serve = |missing: &Missing| {
        let (window, unit) = (missing.range(), missing.unit());
        assert!(unit.start <= window.start && window.end <= unit.end);
        assert!(unit.end - unit.start <= 2 * MIB as u64 && unit.end <= lengths[0] as u64);
        match asked.fetch_add(1, Ordering::Relaxed) % 4 {
            1 => deliver(&memory, missing),
            2 if missing.is_written => memory.deliver(missing, None),
            _ => {
                expected_faults.fetch_add(1, Ordering::Relaxed);
                memory.expect(missing);
            }
        }
    };
    restore_as(&memory, &lengths, 5, &serve, &|release| {
        std::thread::scope(|scope| {
            // The threads touch zeros and other pages of the last unit before it can be whole.
            let threads = [3, 4, 10, 7 * 20 + 3].map(|page| {
                let memory = &memory;
                let last = lengths[0] / PAGE_BYTES / 7 * 7 - 7 * 30;
                scope.spawn(move || {
                    let at = (last + page) * PAGE_BYTES;
                    assert_eq!(memory.touch(0, at, 0), expected(0, at), "page {page}");
                })
            });
            while asked.load(Ordering::Relaxed) < 2 {
                std::thread::yield_now();
            }
            release();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    });
    assert!(expected_faults.load(Ordering::Relaxed) > 0);
    check(memory, &lengths);
}

/// A background that restarts may bring an expected unit late.
#[test]
fn a_window_that_is_expected_no_more_is_asked_for_again() {
    let lengths = [4 * MIB];
    let memory = lazily(&lengths, LazyOptions::default());
    let asked = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while let Some(missing) = memory.next_missing() {
                match asked.fetch_add(1, Ordering::Relaxed) {
                    0 => memory.expect(&missing),
                    _ => deliver(&memory, &missing),
                }
            }
        });
        let touches = scope.spawn(|| memory.touch(0, 5, 0));
        while !touches.is_finished() {
            memory.expect_nothing();
            std::thread::yield_now();
        }
        assert_eq!(touches.join().unwrap(), expected(0, 5));
        memory.write(0, 0, &bytes_of(0, 0..lengths[0]));
        memory.wait(None, None);
        memory.stop();
    });
    assert!(asked.load(Ordering::Relaxed) >= 2);
    check(memory, &lengths);
}

#[test]
fn it_is_filled_in_any_order_while_threads_touch_it() {
    for user_only in [false, true] {
        let lengths = [9 * MIB + 5, 3, 2 * MIB, 300 * 1024 + 1, 100_000, 0];
        let memory = lazily(&lengths, LazyOptions { user_only, ..LazyOptions::default() });
        let how = memory.how();
        assert!(how.mode.is_some() && how.eager_because.is_empty(), "{how:?}");
        let lazy: Vec<bool> = (0..6).map(|stream| memory.is_lazy(stream)).collect();
        assert_eq!(lazy, [true, false, true, true, false, false]);
        restore(&memory, &lengths, 1, &|| {
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let memory = &memory;
                    scope.spawn(move || {
                        let rng = SeededRng::new(thread + 10);
                        for _ in 0..3000 {
                            let at = rng.next_u64() as usize % lengths[0];
                            assert_eq!(memory.touch(0, at, 0), expected(0, at), "at {at}");
                        }
                    });
                }
            });
        });
        assert!(memory.traffic().faults > 0, "{:?}", memory.traffic());
        check(memory, &lengths);
    }
}

#[test]
fn writes_of_the_program_stay() {
    let lengths = [5 * MIB];
    let memory = lazily(&lengths, LazyOptions::default());
    restore(&memory, &lengths, 2, &|| {
        for page in (0..5 * MIB / PAGE_BYTES).step_by(3) {
            memory.touch(0, page * PAGE_BYTES + 9, 0x55);
        }
    });
    let want = PageHashes::compute(&bytes_of(0, 0..5 * MIB), 1);
    assert_eq!(memory.take_hashes(0), Some(want), "hashes are of what was stored");
    let got = memory.into_streams().pop().unwrap().into_bytes().unwrap();
    for (at, byte) in got.iter().enumerate() {
        let changed = at % PAGE_BYTES == 9 && (at / PAGE_BYTES).is_multiple_of(3);
        let want = expected(0, at) ^ if changed { 0x55 } else { 0 };
        assert_eq!(*byte, want, "at {at}");
    }
}

/// Programs' arrays begin and end anywhere, beside other memory that must not be touched.
#[test]
fn arrays_off_page_boundaries_keep_their_neighbours() {
    for (skip, length) in [(16, 4 * MIB + 100), (4095, 2 * MIB), (1, 600_000), (2048, 260_000)] {
        let mut buffer = AlignedBuf::zeroed(5 * MIB);
        buffer.fill(0xEE);
        let start = buffer.as_mut_ptr();
        // SAFETY: the bytes lie within the buffer, which outlives the memory. No other code uses
        // them until the memory is dropped.
        let region = unsafe { MutRegion::from_raw(start.add(skip), length) };
        let memory = LazyMemory::new(vec![region], LazyOptions::default()).unwrap();
        assert!(memory.is_lazy(0) == (length > 2 * PAGE_BYTES + LAZY_FROM_BYTES), "{length}");
        restore(&memory, &[length], 3, &|| {});
        drop(memory);
        assert!(buffer[..skip].iter().chain(&buffer[skip + length..]).all(|byte| *byte == 0xEE));
        assert!(buffer[skip..][..length] == bytes_of(0, 0..length), "skip {skip}");
    }
}

#[test]
fn a_fork_waits_for_the_fill_and_its_child_sees_everything() {
    let lengths = [8 * MIB];
    let memory = lazily(&lengths, LazyOptions::default());
    restore(&memory, &lengths, 4, &|| {
        // SAFETY: the child calls nothing but `touch`, which reads memory, and `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let same =
                (0..8 * MIB).step_by(777).all(|at| memory.touch(0, at, 0) == expected(0, at));
            // SAFETY: it ends the child.
            unsafe { libc::_exit(i32::from(!same)) }
        }
        let mut status = -1;
        // SAFETY: the status may be written.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child read something else");
    });
    check(memory, &lengths);
}

/// A thread that holds a lock at a fork does not exist in the child, which would wait for it
/// forever.
#[test]
fn a_child_that_is_forked_in_the_middle_of_something_fills_memory_too() {
    let mut status = -1;
    under_way::holding_the_lock(|| {
        // The C library's `fork` would wait for the lock, and another thread take it right
        // afterwards.
        // SAFETY: with no stack of its own it is a fork. No other thread of this test is in the
        // allocator or holds any lock that the child takes. The child ends by `_exit`, or the alarm
        // kills it if it waits forever.
        unsafe {
            let child = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32;
            if child == 0 {
                libc::alarm(60);
                let options = LazyOptions { user_only: true, ..LazyOptions::default() };
                let memory = lazily(&[MIB], options);
                let part = memory.streams[0].0.start()..usize::MAX;
                let waits = wait_for(std::slice::from_ref(&part), Some(Duration::ZERO));
                let is_right = memory.is_lazy(0) && waits.is_none();
                libc::_exit(i32::from(!is_right));
            }
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
    });
    assert_eq!(status, 0, "the child waited, or knew nothing of its own fill");
}

/// A child has a copy of the parent's value, and drops it at some time.
#[test]
fn a_child_lets_go_of_its_parents_memory_though_locks_were_held_at_the_fork() {
    let memory = lazily(&[MIB], LazyOptions::default());
    let mut status = -1;
    memory.fill.as_ref().unwrap().with_the_lock(|| {
        // SAFETY: as above. The child's copy of the value is dropped once, as nothing else runs
        // there.
        unsafe {
            let child = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32;
            if child == 0 {
                libc::alarm(60);
                drop(std::ptr::read(&raw const memory));
                libc::_exit(0);
            }
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
    });
    assert_eq!(status, 0, "the child waited");
    restore(&memory, &[MIB], 8, &|| {});
    check(memory, &[MIB]);
}

/// Freezes as another job that saves the same memory would. It uses a fork, so nothing is read
/// meanwhile.
fn freeze(memory: &LazyMemory, stream: usize, part: Range<usize>) -> Result<Box<dyn Frozen>> {
    let start = memory.streams[stream].0.start() + part.start;
    let start = std::ptr::with_exposed_provenance(start);
    let shape = vec![part.len() as u64];
    // SAFETY: the memory stays until the test ends, and only the fill writes it.
    let region = unsafe { Region::from_raw("shared", "|u1", shape, start, part.len()) };
    let tracker = Arc::new(ChangeTracker::new());
    let mut source = MemorySource::new(tracker, vec![region], Vec::new(), 1);
    let before = source.wait_filled(Some(Duration::ZERO));
    assert!(matches!(before, Ok(false) | Err(_)), "nothing was brought: {before:?}");
    source.freeze(&FreezeRequest { freeze: FreezeMode::Fork, ..FreezeRequest::default() })
}

#[test]
fn a_freeze_waits_for_the_fill_of_its_memory() {
    for user_only in [false, true] {
        let lengths = [MIB, 6 * MIB + 5];
        let memory = lazily(&lengths, LazyOptions { user_only, ..LazyOptions::default() });
        let part = MIB + 77..5 * MIB + 9;
        std::thread::scope(|scope| {
            let saving = scope.spawn(|| freeze(&memory, 1, part.clone()).unwrap());
            // Nothing is brought before the save waits, or has wrongly finished.
            while memory.fill.as_ref().unwrap().waiting() == 0 && !saving.is_finished() {
                std::thread::yield_now();
            }
            restore(&memory, &lengths, 7, &|| {});
            let frozen = saving.join().unwrap();
            let report = frozen.report();
            assert!(report.freeze.starts_with("fork"), "{report:?}");
            let mut scratch = Vec::new();
            for (number, run) in frozen.runs().iter().enumerate() {
                let got = frozen.bytes(number, &mut scratch).unwrap();
                let start = part.start + run.first_page as usize * PAGE_BYTES;
                assert!(got == bytes_of(1, start..start + got.len()), "{run:?}");
            }
        });
        check(memory, &lengths);
    }
}

#[test]
fn a_freeze_refuses_memory_that_will_never_be_whole() {
    let memory = lazily(&[MIB, MIB], LazyOptions::default());
    memory.give_up();
    let refused = freeze(&memory, 1, 0..MIB).err().expect("it has holes");
    assert_eq!(refused.kind(), ErrorKind::Retry);
    assert!(refused.message().contains("lazy restore"), "{refused}");
    // Other memory does not wait for it.
    let other = lazily(&[MIB], LazyOptions { eager: true, ..LazyOptions::default() });
    assert!(freeze_at_once(&other).is_ok());
}

fn freeze_at_once(memory: &LazyMemory) -> Result<Box<dyn Frozen>> {
    let start = std::ptr::with_exposed_provenance(memory.streams[0].0.start());
    // SAFETY: as above.
    let region = unsafe { Region::from_raw("own", "|u1", vec![MIB as u64], start, MIB) };
    let tracker = Arc::new(ChangeTracker::new());
    let mut source = MemorySource::new(tracker, vec![region], Vec::new(), 1);
    assert!(source.wait_filled(Some(Duration::ZERO))?);
    source.freeze(&FreezeRequest::default())
}

#[test]
fn the_restore_or_job_that_has_the_memory_is_named() {
    let mapping = Mapping::new(2 * MIB);
    let because = || {
        // SAFETY: the mapping is ours, and stays until the test ends.
        let region = unsafe { MutRegion::from_raw(mapping.0 as *mut u8, mapping.1) };
        let memory = LazyMemory::new(vec![region], LazyOptions::default()).unwrap();
        assert!(!memory.is_lazy(0));
        memory.how().eager_because.clone()
    };
    let first = mapping.lazily(true);
    assert!(because().contains("another restore of this process fills it"), "{}", because());
    drop(first);
    let tracker = ChangeTracker::for_job(TrackerChoice::Only(TrackerKind::WpAsync), "finetune");
    let tracker = Arc::new(tracker);
    let start = std::ptr::with_exposed_provenance(mapping.0);
    let shape = vec![mapping.1 as u64];
    // SAFETY: as above, and no thread writes it.
    let region = unsafe { Region::from_raw("x", "|u1", shape, start, mapping.1) };
    let mut source = MemorySource::new(tracker.clone(), vec![region], Vec::new(), 1);
    source.freeze(&FreezeRequest::default()).unwrap().commit_baseline(Some(1));
    if tracker.report().starts_with("wp-async") {
        let said = because();
        assert!(said.contains("job \"finetune\" of this process tracks it (wp-async)"), "{said}");
    }
}

/// In the full mode the kernel waits as the program does; otherwise it must return an error.
#[test]
fn system_calls_into_missing_memory() {
    let lengths = [2 * MIB];
    for user_only in [false, true] {
        let memory = lazily(&lengths, LazyOptions { user_only, ..LazyOptions::default() });
        let mode = memory.how().mode.unwrap();
        assert!(!user_only || mode == Mode::UserOnly);
        let address = memory.streams[0].0.start();
        restore(&memory, &lengths, 5, &|| {
            let page = (MIB + 5 * PAGE_BYTES) as *const u8;
            let page = address + page.addr();
            let mut pipe = [0; 2];
            // SAFETY: the array may be written; the kernel checks the address that it reads from.
            let written = unsafe {
                libc::pipe(pipe.as_mut_ptr());
                libc::write(pipe[1], page as *const _, PAGE_BYTES)
            };
            match mode {
                Mode::Full => assert_eq!(written, PAGE_BYTES as isize),
                // The background may have brought it by now.
                Mode::UserOnly => assert!(
                    written == PAGE_BYTES as isize
                        || std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
                ),
            }
            memory.wait(Some(0), None);
            // SAFETY: as above.
            let written = unsafe { libc::write(pipe[1], page as *const _, PAGE_BYTES) };
            assert_eq!(written, PAGE_BYTES as isize, "what is whole is whole for the kernel, too");
        });
        check(memory, &lengths);
    }
}

#[test]
fn shared_memory_is_filled_before_the_program_goes_on() {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), MIB, protection, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: the mapping is ours, and stays.
    let region = unsafe { MutRegion::from_raw(start.cast(), MIB) };
    let memory = LazyMemory::new(vec![region], LazyOptions::default()).unwrap();
    assert!(!memory.is_lazy(0) && memory.how().eager_because.contains("shared"));
    restore(&memory, &[MIB], 6, &|| {});
    drop(memory);
    // SAFETY: the mapping is ours, and no thread writes it now.
    let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), MIB) };
    assert!(bytes == bytes_of(0, 0..MIB));
}

#[test]
fn it_can_be_asked_to_wait_and_dropped_early() {
    let memory = lazily(&[3 * MIB], LazyOptions { eager: true, ..LazyOptions::default() });
    assert!(!memory.is_lazy(0) && memory.next_missing().is_none() && memory.wait(None, None));
    assert_eq!(memory.how().eager_because, "it was asked for");
    let memory = lazily(&[3 * MIB], LazyOptions::default());
    assert!(!memory.wait(None, Some(Duration::from_millis(5))));
    memory.give_up();
    assert!(memory.wait(None, None) && memory.failure().is_some());
    drop(memory);
    // SAFETY: `MemoryFill` is dropped, so there is none to wait for: a fork now ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: it ends the child.
        unsafe { libc::_exit(0) }
    }
    // SAFETY: no status is requested.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
}

/// An array may lie in mappings with different advice; the kernel handles each by itself.
#[test]
fn an_array_across_mappings() {
    for seed in 0..10 {
        let length = 7 * MIB + 4096;
        let mut buffer = AlignedBuf::zeroed(8 * MIB);
        let start = buffer.as_mut_ptr();
        for at in [5 * 4096, MIB, MIB + 40 * 4096, 3 * MIB - 4096, 5 * MIB + 65536] {
            // SAFETY: the advice is about memory of ours, and does not change its content.
            let advised =
                unsafe { libc::madvise(start.add(at).cast(), 3 * 4096, libc::MADV_DONTDUMP) };
            assert_eq!(advised, 0);
        }
        // SAFETY: the bytes lie within the buffer, which outlives the memory. No other code uses
        // them until the memory is dropped, except for the sweep, which only reads lazy memory.
        let region = unsafe { MutRegion::from_raw(start.add(777), length) };
        let memory = LazyMemory::new(vec![region], LazyOptions::default()).unwrap();
        let address = memory.streams[0].0.start();
        restore(&memory, &[length], seed, &|| {
            for at in (0..length).step_by(4096).filter(|_| seed % 2 == 0) {
                // SAFETY: the address lies within the buffer.
                let got = unsafe { ((address + at) as *const u8).read_volatile() };
                assert_eq!(got, expected(0, at), "at {at}");
            }
        });
        // Without faults, all pages except zeros are moved, if in parts.
        let traffic = memory.traffic();
        assert!(seed % 2 == 0 || traffic.moved_bytes > length as u64 * 9 / 10, "{traffic:?}");
        drop(memory);
        assert!(buffer[777..][..length] == bytes_of(0, 0..length));
    }
}

/// Fresh memory that begins anywhere, read in order while it is filled.
#[test]
fn a_sweep_through_fresh_memory_keeps_up_with_the_fill() {
    for round in 0..60 {
        let (skip, length) = (0xB_9B80 + round * 0x1_0010, 8_000_000);
        let mut buffer = AlignedBuf::zeroed(16 * MIB);
        if round % 2 == 1 {
            buffer.fill(0xEE);
        }
        let start = buffer.as_mut_ptr();
        // SAFETY: the bytes lie within the buffer, which outlives the memory. No other code uses
        // them until the memory is dropped, except for the sweep, which only reads lazy memory.
        let region = unsafe { MutRegion::from_raw(start.add(skip), length) };
        let memory = LazyMemory::new(vec![region], LazyOptions::default()).unwrap();
        let address = memory.streams[0].0.start();
        restore(&memory, &[length], round as u64, &|| {
            for at in (0..length).step_by(512) {
                // SAFETY: the address lies within the buffer.
                let got = unsafe { ((address + at) as *const u8).read_volatile() };
                assert_eq!(got, expected(0, at), "round {round}, at {at}, {:x}", address + at);
            }
        });
        drop(memory);
        assert!(buffer[skip..][..length] == bytes_of(0, 0..length), "round {round}");
    }
}

/// A thread may meet a missing page at the very moment at which its region becomes whole.
#[test]
fn no_thread_waits_for_a_region_that_is_whole() {
    const LENGTH: usize = 512 * 1024;
    let rng = SeededRng::new(1);
    for round in 0..3000 {
        let memory = lazily(&[LENGTH], LazyOptions::default());
        let (pause, at) = (rng.next_u64() % 20_000, rng.next_u64() as usize % LENGTH);
        let (begin, done) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begin.store(true, Ordering::Release);
                let began = Instant::now();
                while began.elapsed() < Duration::from_nanos(pause) {}
                // A page that is missing when all is whole is zero.
                assert_eq!(memory.touch(0, at, 0), 0);
                done.store(true, Ordering::Release);
            });
            while !begin.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            memory.zero(0, 0, LENGTH as u64);
            let began = Instant::now();
            while !done.load(Ordering::Acquire) {
                if began.elapsed() > Duration::from_secs(300) {
                    end_program(&format!("round {round}: a thread waits for what is whole"));
                }
                std::thread::yield_now();
            }
        });
    }
}
