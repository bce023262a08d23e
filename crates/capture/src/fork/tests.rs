//! Children that hold memory still, and how they end.
#![allow(unsafe_code)]

mod process;

use super::*;
use outlive_types::{BLOCK_BYTES, ErrorKind};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

/// The state letter of a process, `None` if there is none.
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

/// Tests that count on a fork: they take turns, as the pause after a lost child is everybody's.
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    PAUSE.store(0, Ordering::Relaxed);
    turn
}

#[test]
fn a_child_keeps_what_was_there() {
    let _turn = alone();
    for length in [PAGE_BYTES, 3 * BLOCK_BYTES + 5] {
        let mut memory = AlignedBuf::zeroed(length);
        memory.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 777) as u8);
        let then = memory.to_vec();
        let image = ForkImage::take().unwrap();
        memory.fill(0xEE);
        let mut seen = vec![0; length];
        image.read(memory.as_ptr().addr(), &mut seen).unwrap();
        assert!(seen == then);
        let mut part = vec![0; 100];
        image.read(memory.as_ptr().addr() + length - 100, &mut part).unwrap();
        assert_eq!(part, then[length - 100..]);
        // Memory that is gone by now.
        let address = memory.as_ptr().addr();
        drop(memory);
        image.read(address, &mut seen).unwrap();
        assert!(seen == then);
    }
}

#[test]
fn nothing_is_left_of_a_child() {
    let _turn = alone();
    let image = ForkImage::take().unwrap();
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
    let image = ForkImage::take().unwrap();
    let mut other = Command::new("true").spawn().unwrap();
    let own = other.id();
    // SAFETY: wait(2) without a place for the status.
    let waited = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
    assert!(waited == 0 || waited == own as i32, "{waited}");
    let _ = other.wait();
    // Other tests may have children; ours is none of those that a wait finds.
    // SAFETY: as above.
    let waited = unsafe { libc::waitpid(image.pid(), std::ptr::null_mut(), libc::WNOHANG) };
    assert_eq!(waited, -1, "no such child");
    assert!(state(image.pid()).is_some());
}

#[test]
fn descriptors_are_shared_and_not_kept_open() {
    let _turn = alone();
    let (reader, writer) = std::io::pipe().unwrap();
    let image = ForkImage::take().unwrap();
    drop(writer);
    // With a copy of the writing end in the child this would wait for ever.
    assert_eq!(std::io::read_to_string(reader).unwrap(), "");
    drop(image);
}

#[test]
fn a_killed_child_is_named_and_none_is_forked_for_a_while() {
    let _turn = alone();
    let memory = [7u8; 100];
    let image = ForkImage::take().unwrap();
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
        let refusal = ForkImage::take().unwrap_err();
        assert!(refusal.0.contains("an earlier child"), "{refusal}");
    }
    ForkImage::take().unwrap();
}

#[test]
fn a_child_that_somebody_waited_for_is_lost_and_nothing_else_is_read() {
    let _turn = alone();
    let memory = [7u8; 100];
    let image = ForkImage::take().unwrap();
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
    let image = ForkImage::take().unwrap();
    assert!(image.read(PAGE_BYTES, &mut [0; 10]).is_err());
}

#[test]
fn a_fork_freezes_what_mappings_say_it_does() {
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
    assert!(mappings.anonymous_bytes >= length as u64);
    let mut seen = vec![0; length];
    for other in others {
        other.fill(1);
        assert!(!mappings.is_frozen(range(other)));
        let image = ForkImage::take().unwrap();
        (other[5], plain[5]) = (2, 2);
        let read = image.read(other.as_ptr().addr(), &mut seen);
        assert!(read.is_err() || seen[5] != 1, "and indeed it is not");
        image.read(plain.as_ptr().addr(), &mut seen).unwrap();
        assert_eq!(seen[5], 1);
        plain[5] = 1;
    }
}

#[test]
fn many_threads_read_one_child() {
    let _turn = alone();
    let memory: Vec<u8> = (0..1 << 20).map(|at| (at / 4096) as u8).collect();
    let image = ForkImage::take().unwrap();
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
