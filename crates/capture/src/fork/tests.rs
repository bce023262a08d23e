//! Tests of frozen children, and of how they end.
#![allow(unsafe_code)]

mod process;

use super::*;
use outlive_types::{BLOCK_BYTES, ErrorKind};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

/// Returns the state letter of a process; `None` if it does not exist.
fn state(pid: i32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(300), "{what} did not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Lock for tests that need a fork: they take turns, as the pause after a lost child affects all.
pub(crate) fn alone() -> outlive_types::sync::plain::MutexGuard<'static, ()> {
    static TURN: outlive_types::sync::plain::Mutex<()> = outlive_types::sync::plain::Mutex::new(());
    let turn = TURN.lock();
    PAUSE.store(0, Ordering::Relaxed);
    turn
}

/// Returns an image of all memory.
pub(crate) fn take() -> std::result::Result<ForkImage, Refusal> {
    ForkImage::take(Vec::new(), false)
}

#[test]
fn a_child_keeps_the_memory_as_it_was() {
    let _turn = alone();
    for length in [PAGE_BYTES, 3 * BLOCK_BYTES + 5] {
        let mut memory = AlignedBuf::zeroed(length);
        memory.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 777) as u8);
        let then = memory.to_vec();
        let image = take().unwrap();
        memory.fill(0xEE);
        let mut seen = vec![0; length];
        image.read(memory.as_ptr().addr(), &mut seen).unwrap();
        assert!(seen == then);
        let mut part = vec![0; 100];
        image.read(memory.as_ptr().addr() + length - 100, &mut part).unwrap();
        assert_eq!(part, then[length - 100..]);
        // The image also has memory that is unmapped by now.
        let address = memory.as_ptr().addr();
        drop(memory);
        image.read(address, &mut seen).unwrap();
        assert!(seen == then);
    }
}

#[test]
fn nothing_is_left_of_a_child() {
    let _turn = alone();
    let image = take().unwrap();
    let pid = image.pid();
    wait_until("the child's name", || {
        fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim() == "outlive-frozen"
    });
    wait_until("its place in the queue of the killer", || {
        fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim() == "1000"
    });
    drop(image);
    assert_eq!(state(pid), None, "neither a process nor its remains");
}

#[test]
fn a_wait_of_the_program_does_not_see_it() {
    let _turn = alone();
    let image = take().unwrap();
    let mut other = Command::new("true").spawn().unwrap();
    let own = other.id();
    // SAFETY: wait(2) without a place for the status.
    let waited = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
    assert!(waited == 0 || waited == own as i32, "{waited}");
    let _ = other.wait();
    // Other tests may have children; a wait finds none of ours.
    // SAFETY: as above.
    let waited = unsafe { libc::waitpid(image.pid(), std::ptr::null_mut(), libc::WNOHANG) };
    assert_eq!(waited, -1, "no such child");
    assert!(state(image.pid()).is_some());
}

#[test]
fn descriptors_are_shared_and_not_kept_open() {
    let _turn = alone();
    let (reader, writer) = std::io::pipe().unwrap();
    let image = take().unwrap();
    drop(writer);
    // With a copy of the writing end in the child this would wait forever.
    assert_eq!(std::io::read_to_string(reader).unwrap(), "");
    drop(image);
}

#[test]
fn a_killed_child_is_named_and_none_is_forked_for_a_while() {
    let _turn = alone();
    let memory = [7u8; 100];
    let image = take().unwrap();
    // SAFETY: a signal to our own child.
    unsafe { libc::kill(image.pid(), libc::SIGKILL) };
    wait_until("its end", || state(image.pid()) == Some('Z'));
    let error = image.read(memory.as_ptr().addr(), &mut [0; 100]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry);
    for part in [&image.pid().to_string(), "signal 9", "for want of memory", "copy"] {
        assert!(error.message().contains(part), "{error}");
    }
    drop(image);
    for _ in 0..PAUSE_FREEZES {
        let refusal = take().unwrap_err();
        assert!(refusal.0.contains("an earlier child"), "{refusal}");
    }
    take().unwrap();
}

#[test]
fn a_child_that_the_program_waited_for_is_lost_and_nothing_else_is_read() {
    let _turn = alone();
    let memory = [7u8; 100];
    let image = take().unwrap();
    // SAFETY: a signal to our own child; a wait without a place for the status.
    unsafe {
        libc::kill(image.pid(), libc::SIGKILL);
        assert_eq!(libc::waitpid(image.pid(), std::ptr::null_mut(), libc::__WALL), image.pid());
    }
    let error = image.read(memory.as_ptr().addr(), &mut [0; 100]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry);
}

#[test]
fn memory_that_is_not_there_is_an_error() {
    let _turn = alone();
    let image = take().unwrap();
    assert!(image.read(PAGE_BYTES, &mut [0; 10]).is_err());
}

#[test]
fn mappings_tell_which_memory_a_fork_freezes() {
    let _turn = alone();
    let length = 4 * PAGE_BYTES;
    let map = |flags, advice| {
        // SAFETY: a new mapping of our own, never unmapped; advice about it.
        unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let flags = flags | libc::MAP_ANONYMOUS;
            let start = libc::mmap(std::ptr::null_mut(), length, prot, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            if advice != 0 {
                assert_eq!(libc::madvise(start, length, advice), 0);
            }
            std::slice::from_raw_parts_mut(start.cast::<u8>(), length)
        }
    };
    let plain = map(libc::MAP_PRIVATE, 0);
    let others = [
        map(libc::MAP_SHARED, 0),
        map(libc::MAP_PRIVATE, libc::MADV_DONTFORK),
        map(libc::MAP_PRIVATE, libc::MADV_WIPEONFORK),
    ];
    plain.fill(1);
    let range = |memory: &[u8]| memory.as_ptr().addr()..memory.as_ptr().addr() + memory.len();
    let mappings = Mappings::read().unwrap();
    assert!(mappings.is_frozen(range(plain)));
    assert!(mappings.filled.bytes >= length as u64);
    let mut seen = vec![0; length];
    for other in others {
        other.fill(1);
        assert!(!mappings.is_frozen(range(other)));
        let image = take().unwrap();
        (other[5], plain[5]) = (2, 2);
        let read = image.read(other.as_ptr().addr(), &mut seen);
        assert!(read.is_err() || seen[5] != 1, "and indeed it is not");
        image.read(plain.as_ptr().addr(), &mut seen).unwrap();
        assert_eq!(seen[5], 1);
        plain[5] = 1;
    }
}

/// Returns memory in small pages that each hold their number, and the quarter of it that a child
/// needs.
fn big() -> (AlignedBuf, Range<usize>) {
    let mut memory = AlignedBuf::zeroed(24 * BLOCK_BYTES);
    // SAFETY: advice about memory of our own.
    unsafe { libc::madvise(memory.as_mut_ptr().cast(), memory.len(), libc::MADV_NOHUGEPAGE) };
    for (number, page) in memory.chunks_mut(PAGE_BYTES).enumerate() {
        page[..8].copy_from_slice(&number.to_le_bytes());
    }
    let start = memory.as_ptr().addr();
    (memory, start..start + 6 * BLOCK_BYTES)
}

#[test]
fn a_child_gets_the_needed_memory_and_little_else() {
    let _turn = alone();
    let (memory, needed) = big();
    // From now on forks of the program are seen.
    drop(take().unwrap());
    let mappings = Mappings::read().unwrap();
    let kept = mappings.kept_from(std::slice::from_ref(&needed));
    assert!(kept.filled.bytes > 0 && kept.filled.bytes < mappings.filled.bytes);
    let image = ForkImage::take(kept.ranges, false).unwrap();
    let mut seen = vec![0; needed.len()];
    image.read(needed.start, &mut seen).unwrap();
    assert!(seen == memory[..needed.len()]);
    let end = memory.as_ptr().addr() + memory.len();
    // The holder's stack may lie before or after the memory.
    let middle = needed.start + memory.len() / 2;
    assert!(image.read(middle, &mut [0; 8]).is_err(), "it was not needed");
    // The next child, and children of the program, get all memory.
    assert!(Mappings::read().unwrap().is_frozen(needed.start..end));
    let mut seen = vec![0; memory.len()];
    take().unwrap().read(needed.start, &mut seen).unwrap();
    assert!(seen == memory[..]);
}

/// Forks a child of the program and returns its wait status: 0 if it sees all memory.
fn fork_and_look(memory: &[u8]) -> i32 {
    // SAFETY: the child reads memory, calls nothing that allocates, and ends.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            let is_there = |page: usize| memory[page * PAGE_BYTES..][..8] == page.to_le_bytes();
            let is_whole = (0..memory.len() / PAGE_BYTES).all(is_there);
            // A freeze in the child must not wait for a thread of its parent.
            drop(CloneGuard::wait());
            libc::_exit(i32::from(!is_whole));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        status
    }
}

/// The kernel may copy the program's memory for its child at any moment until its fork is over.
#[test]
fn while_the_program_forks_nothing_is_kept_back() {
    let _turn = alone();
    let (memory, needed) = big();
    drop(take().unwrap());
    let kept = Mappings::read().unwrap().kept_from(std::slice::from_ref(&needed)).ranges;
    apart::before_fork();
    let image = ForkImage::take(kept, false).unwrap();
    apart::after_fork();
    let mut seen = vec![0; memory.len()];
    image.read(needed.start, &mut seen).unwrap();
    assert!(seen == memory[..]);
}

#[test]
fn a_child_of_the_program_gets_all_also_while_images_are_taken() {
    let _turn = alone();
    let (memory, needed) = big();
    let end = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let (memory, needed, end) = (&memory[..], &needed, &end);
        for at in 0..2 {
            scope.spawn(move || {
                // One image needs the first quarter, the other one the last.
                let start = needed.start + at * (memory.len() - needed.len());
                let needed = start..start + needed.len();
                let mut seen = vec![0; needed.len()];
                let mut count = 0;
                while end.load(Ordering::Relaxed) == 0 || count < 20 {
                    let kept = Mappings::read().unwrap().kept_from(std::slice::from_ref(&needed));
                    // Memory that the other thread withholds just now must not seem withheld from
                    // all.
                    assert!(kept.filled.bytes >= needed.len() as u64);
                    let image = ForkImage::take(kept.ranges, false).unwrap();
                    image.read(start, &mut seen).unwrap();
                    assert!(seen == memory[start - memory.as_ptr().addr()..][..seen.len()]);
                    count += 1;
                }
            });
        }
        let ends: Vec<i32> = (0..100).map(|_| fork_and_look(memory)).collect();
        end.store(1, Ordering::Relaxed);
        assert_eq!(ends, [0; 100]);
    });
}

#[test]
fn many_threads_read_one_child() {
    let _turn = alone();
    let memory: Vec<u8> = (0..1 << 20).map(|at| (at / 4096) as u8).collect();
    let image = take().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (image, memory) = (&image, &memory);
            scope.spawn(move || {
                let mut seen = vec![0; 65_536];
                for at in (thread * 65_536..memory.len()).step_by(4 * 65_536) {
                    image.read(memory[at..].as_ptr().addr(), &mut seen).unwrap();
                    assert!(seen == memory[at..at + 65_536]);
                }
            });
        }
    });
}
