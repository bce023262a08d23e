//! Ways to change memory that are not plain stores, and memory that is unmapped.
//!
//! A tracker may report, or refuse. None may report a page as unwritten if its content has changed.

use super::*;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

const PAGES: usize = 1536;
const RIGHTS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Returns populated memory, armed; each page holds its number.
fn numbered(tracker: &dyn PageTracker) -> Mapped {
    let memory = Mapped::small(PAGES);
    (0..PAGES).for_each(|page| memory.write(page, page as u64 + 1));
    watch_and_arm(tracker, &memory);
    memory
}

/// Checks that every page whose content differs from its number was reported, unless the collection
/// refused.
fn check(tracker: &dyn PageTracker, memory: &Mapped, found: Option<Vec<usize>>) {
    if let Some(mut found) = found {
        // A dropped page is reported either as written or as absent.
        let mut absent = Vec::new();
        tracker.absent(memory.pages(), &mut absent).unwrap();
        found.extend(numbers(memory, &absent));
        let changed = (0..PAGES).filter(|page| memory.read(*page) != *page as u64 + 1);
        let missed: Vec<usize> = changed.filter(|page| !found.contains(page)).collect();
        assert!(missed.is_empty(), "{}: pages {missed:?} went unreported", tracker.kind());
    }
}

fn advise(memory: &Mapped, first: usize, end: usize, advice: Advice) {
    let part = memory.part(first, end);
    // SAFETY: the test's own memory, which may lose its content.
    unsafe { rustix::mm::madvise(part.start as *mut _, part.end - part.start, advice) }.unwrap();
}

#[test]
fn dropped_pages_are_written_pages() {
    // One page, a whole block, one that is not aligned, all; read again or not before the
    // collection.
    for (first, end) in [(3, 4), (512, 1024), (300, 1300), (0, PAGES)] {
        for read in [false, true] {
            each(|tracker| {
                let memory = numbered(&**tracker);
                advise(&memory, first, end, Advice::LinuxDontNeed);
                if read {
                    (first..end).for_each(|page| assert_eq!(memory.read(page), 0));
                }
                let found = collect_all(&**tracker, &memory);
                check(&**tracker, &memory, found);
                // Again: dropping pages that were zero changes nothing; dropping pages that were
                // written since does.
                for page in first..end {
                    memory.write(page, page as u64 + 1);
                }
                tracker.arm(memory.pages()).unwrap();
                advise(&memory, first, end, Advice::LinuxDontNeed);
                let found = collect_all(&**tracker, &memory);
                check(&**tracker, &memory, found);
                tracker.unwatch(memory.pages());
            });
        }
    }
}

#[test]
fn dropped_huge_pages_are_written_pages() {
    each(|tracker| {
        let memory = Mapped::huge(PAGES);
        (0..PAGES).for_each(|page| memory.write(page, page as u64 + 1));
        watch_and_arm(&**tracker, &memory);
        advise(&memory, 512, 1024, Advice::LinuxDontNeed);
        memory.write(700, 701);
        let found = collect_all(&**tracker, &memory);
        check(&**tracker, &memory, found);
        (0..PAGES).for_each(|page| memory.write(page, page as u64 + 1));
        tracker.arm(memory.pages()).unwrap();
        advise(&memory, 10, 11, Advice::LinuxDontNeed);
        let found = collect_all(&**tracker, &memory);
        check(&**tracker, &memory, found);
        tracker.unwatch(memory.pages());
    });
}

#[test]
fn freed_pages_that_were_reclaimed_are_written_pages() {
    each(|tracker| {
        let memory = numbered(&**tracker);
        advise(&memory, 100, 200, Advice::LinuxFree);
        // The kernel takes them when it needs memory; this call causes it (Linux 5.4).
        advise(&memory, 100, 200, Advice::LinuxPageOut);
        let found = collect_all(&**tracker, &memory);
        check(&**tracker, &memory, found);
        tracker.unwatch(memory.pages());
    });
}

#[test]
fn a_new_mapping_at_the_old_place_is_noticed() {
    // All of it, or a part.
    for (first, end) in [(0, PAGES), (100, 101), (512, 1024)] {
        each(|tracker| {
            let memory = numbered(&**tracker);
            let part = memory.part(first, end);
            let (start, bytes) = (part.start as *mut _, part.end - part.start);
            // SAFETY: replaces memory of the test's own.
            unsafe {
                rustix::mm::munmap(start, bytes).unwrap();
                let flags = MapFlags::PRIVATE | MapFlags::FIXED;
                rustix::mm::mmap_anonymous(start, bytes, RIGHTS, flags).unwrap();
            }
            memory.write(first, 9);
            let found = collect_all(&**tracker, &memory);
            check(&**tracker, &memory, found);
            // It can be watched again.
            tracker.unwatch(memory.pages());
            (0..PAGES).for_each(|page| memory.write(page, page as u64 + 1));
            watch_and_arm(&**tracker, &memory);
            memory.write(1, 0);
            assert!(collect_all(&**tracker, &memory).unwrap().contains(&1));
            tracker.unwatch(memory.pages());
        });
    }
}

#[test]
fn unmapped_memory_is_refused() {
    for (first, end) in [(0, PAGES), (0, 1), (PAGES - 1, PAGES), (700, 701)] {
        each(|tracker| {
            let memory = numbered(&**tracker);
            let part = memory.part(first, end);
            // SAFETY: the test's own memory.
            unsafe { rustix::mm::munmap(part.start as *mut _, part.end - part.start) }.unwrap();
            // A collection need not refuse: its caller reads the memory next.
            tracker.unwatch(memory.pages());
            // SAFETY: refused: not all of it is mapped; the mapped part is the test's.
            unsafe { tracker.watch(memory.pages()) }.unwrap_err();
        });
    }
}

#[test]
fn memory_that_moved_can_be_written_and_is_refused_at_its_old_place() {
    for renewed in [false, true] {
        each(|tracker| {
            let memory = numbered(&**tracker);
            let Pages { start, end } = memory.pages();
            // SAFETY: moves the test's own memory to a free address; `Mapped` unmaps either.
            let moved = unsafe {
                let flags = MremapFlags::MAYMOVE;
                // With a neighbour behind it, it must move to grow.
                let fixed = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
                let behind = rustix::mm::mmap_anonymous(end as *mut _, 4096, RIGHTS, fixed);
                let to =
                    rustix::mm::mremap(start as *mut _, end - start, end - start + 4096, flags);
                if let Ok(behind) = behind {
                    rustix::mm::munmap(behind, 4096).unwrap();
                }
                if renewed {
                    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
                    rustix::mm::mmap_anonymous(start as *mut _, end - start, RIGHTS, flags)
                        .unwrap();
                }
                Mapped::at(to.unwrap() as usize, PAGES + 1)
            };
            assert_ne!(moved.pages().start, start);
            (0..PAGES).for_each(|page| assert_eq!(moved.read(page), page as u64 + 1));
            (0..=PAGES).for_each(|page| moved.write(page, 5));
            let found = collect_all(&**tracker, &memory);
            if renewed {
                check(&**tracker, &memory, found);
            }
            tracker.unwatch(memory.pages());
            (0..=PAGES).for_each(|page| moved.write(page, 6));
            if !renewed {
                memory.forget();
            }
        });
    }
}

/// Reads a file of sevens into pages 99 to 102.
fn read_file(tracker: &dyn PageTracker, file: &File) {
    let memory = numbered(tracker);
    let part = memory.part(99, 102);
    // SAFETY: the test's own memory, writable except for the tracker.
    let count = unsafe { libc::pread(file.as_raw_fd(), part.start as *mut _, 3 * 4096, 0) };
    assert_eq!(count, 3 * 4096, "{}", std::io::Error::last_os_error());
    assert_eq!(memory.read(100), 0x0707_0707_0707_0707);
    let found = collect_all(tracker, &memory);
    check(tracker, &memory, found);
    tracker.unwatch(memory.pages());
}

#[test]
fn writes_of_the_kernel_for_a_system_call_are_seen() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[7; 3 * 4096]).unwrap();
    each(|tracker| read_file(&**tracker, &file));
}

#[test]
fn writes_of_a_device_are_seen() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("sevens");
    std::fs::write(&path, [7; 3 * 4096]).unwrap();
    let direct = {
        use std::os::unix::fs::OpenOptionsExt;
        File::options().read(true).custom_flags(libc::O_DIRECT).open(&path)
    };
    match direct {
        Ok(file) => each(|tracker| read_file(&**tracker, &file)),
        Err(error) => eprintln!("not tested: no O_DIRECT here ({error})"),
    }
}

#[test]
fn writes_of_another_process_are_seen() {
    each(|tracker| {
        let memory = numbered(&**tracker);
        let value = 4711u64;
        let target = memory.word(77) as *const _ as *mut libc::c_void;
        let parent = std::process::id() as i32;
        // SAFETY: the child only makes a system call and ends.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                let from = libc::iovec { iov_base: (&raw const value) as *mut _, iov_len: 8 };
                let to = libc::iovec { iov_base: target, iov_len: 8 };
                let count =
                    libc::process_vm_writev(parent, &raw const from, 1, &raw const to, 1, 0);
                libc::_exit(if count == 8 { 0 } else { *libc::__errno_location() });
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            libc::WEXITSTATUS(status)
        };
        match status {
            0 => assert_eq!(memory.read(77), value),
            libc::EPERM => eprintln!("not tested: process_vm_writev is not allowed here"),
            error => panic!("process_vm_writev: error {error}"),
        }
        let found = collect_all(&**tracker, &memory);
        check(&**tracker, &memory, found);
        tracker.unwatch(memory.pages());
    });
}

/// Forks a child that runs `child` and ends with 0. `meanwhile` runs here before the child ends; it
/// gets a function that waits until `child` is over.
fn forked(child: impl FnOnce(), meanwhile: impl FnOnce(&dyn Fn())) {
    let (read, write) = rustix::pipe::pipe().unwrap();
    let (over, tell_over) = rustix::pipe::pipe().unwrap();
    // SAFETY: the child writes memory, waits for the pipe to close and ends.
    unsafe {
        let process = libc::fork();
        if process == 0 {
            drop((write, over));
            child();
            drop(tell_over);
            let _ = rustix::io::read(&read, &mut [0u8; 1]);
            libc::_exit(0);
        }
        drop((read, tell_over));
        meanwhile(&|| {
            let _ = rustix::io::read(&over, &mut [0u8; 1]);
        });
        drop(write);
        let mut status = 0;
        assert_eq!(libc::waitpid(process, &raw mut status, 0), process);
        assert_eq!(status, 0, "the child was killed or failed");
    }
}

#[test]
fn a_forked_child_is_another_program() {
    each(|tracker| {
        let memory = numbered(&**tracker);
        forked(
            || (0..PAGES).for_each(|page| memory.write(page, 0)),
            |wait_for_child| {
                wait_for_child();
                memory.write(9, 99);
                let found = collect_all(&**tracker, &memory).unwrap();
                assert!(found.contains(&9), "{found:?}");
                check(&**tracker, &memory, Some(found));
                memory.write(9, 10);
                memory.write(10, 99);
                // Pages that are shared with a child are dropped, and read again as zeros.
                advise(&memory, 20, 22, Advice::LinuxDontNeed);
                assert_eq!(memory.read(20), 0);
                let found = collect_all(&**tracker, &memory).unwrap();
                assert!(found.contains(&10));
                check(&**tracker, &memory, Some(found));
            },
        );
        memory.write(11, 99);
        let found = collect_all(&**tracker, &memory).unwrap();
        assert!(found.contains(&11));
        tracker.unwatch(memory.pages());
    });
}

#[test]
fn a_childs_own_tracker_works_and_its_parents_is_refused() {
    each(|tracker| {
        let memory = numbered(&**tracker);
        forked(
            || {
                let own = trackers().into_iter().find(|own| own.kind() == tracker.kind()).unwrap();
                watch_and_arm(&*own, &memory);
                memory.write(5, 55);
                let found = collect_all(&*own, &memory).unwrap();
                assert!(found.contains(&5), "{found:?}");
                memory.write(6, 55);
                assert!(collect_all(&*own, &memory).unwrap().contains(&6));
            },
            |_| (),
        );
        memory.write(5, 4);
        assert!(collect_all(&**tracker, &memory).unwrap().contains(&5));
        tracker.unwatch(memory.pages());
    });
}

#[test]
fn memory_that_several_see_is_refused_or_followed() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(PAGES as u64 * 4096).unwrap();
    for flags in [MapFlags::SHARED, MapFlags::PRIVATE] {
        // SAFETY: new mappings at addresses of the kernel's choice.
        let mapped = unsafe {
            [
                rustix::mm::mmap(null_mut(), PAGES * 4096, RIGHTS, flags, &file, 0).unwrap(),
                rustix::mm::mmap_anonymous(null_mut(), PAGES * 4096, RIGHTS, MapFlags::SHARED)
                    .unwrap(),
            ]
        };
        for start in mapped {
            let memory = Mapped::at(start as usize, PAGES);
            each(|tracker| {
                // SAFETY: the memory is mapped, and this test's.
                let refusal = unsafe { tracker.watch(memory.pages()) }.unwrap_err();
                assert!(refusal.0.contains("shared") || refusal.0.contains("file"), "{refusal}");
                memory.write(1, 1);
            });
        }
    }
}

#[test]
fn memory_of_another_tracker_is_refused() {
    each(|tracker| {
        let memory = numbered(&**tracker);
        let other = trackers().into_iter().find(|other| other.kind() == tracker.kind()).unwrap();
        // SAFETY: the memory is mapped, and this test's.
        unsafe { other.watch(memory.pages()) }.unwrap_err();
        other.unwatch(memory.pages());
        memory.write(8, 0);
        assert_eq!(collect_all(&**tracker, &memory), Some(vec![8]));
        tracker.unwatch(memory.pages());
        watch_and_arm(&*other, &memory);
        memory.write(8, 9);
        assert_eq!(collect_all(&*other, &memory), Some(vec![8]));
        other.unwatch(memory.pages());
    });
}
