//! mprotect's handler among others, and at the limits of the kernel. Each case is a process of its
//! own, since most of them end badly.

use super::*;
use outlive_types::SeededRng;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const CASE: &str = "OUTLIVE_TEST_SIGNAL_CASE";

/// Runs a case in a process of its own, on the thread of this test.
fn run(case: &str) -> Output {
    let exe = std::env::current_exe().unwrap();
    let words = ["--exact", "page_trackers::signals::a_case", "--nocapture", "--test-threads=1"];
    Command::new(exe).args(words).env(CASE, case).output().unwrap()
}

fn succeeds(case: &str) {
    let output = run(case);
    assert!(output.status.success(), "{case}: {output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("case done"), "{case}: {output:?}");
}

/// Runs the case, if this process is one. The other tests start such processes, and check how they
/// end.
#[test]
fn a_case() {
    let Ok(case) = std::env::var(CASE) else { return };
    match &case[..] {
        "null" => write_to_null(),
        "sent" => drop(send_segv()),
        "full" => previous_handler(true),
        "plain" => previous_handler(false),
        "later" => later_handler(),
        "read-only" => write_to_read_only_memory(),
        "mappings" => no_more_mappings(),
        "stack" => small_alternate_stack(),
        other => panic!("no case: {other:?}"),
    }
    eprintln!("case done");
}

fn armed() -> (Mprotect, Mapped) {
    let tracker = Mprotect::new().unwrap();
    let memory = Mapped::small(100);
    watch_and_arm(&tracker, &memory);
    memory.write(1, 1);
    (tracker, memory)
}

fn set_handler(handler: usize, flags: i32) {
    // SAFETY: the handlers below only count and, the last of them, end the process.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()), 0);
    }
}

#[test]
fn other_faults_kill_as_without_us() {
    for case in ["null", "sent", "read-only"] {
        let output = run(case);
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{case}: {output:?}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("case done"));
    }
}

fn write_to_null() {
    set_handler(libc::SIG_DFL, 0);
    let _armed = armed();
    // SAFETY: it is not safe: that is the case.
    unsafe { std::ptr::null_mut::<u8>().wrapping_add(8).write_volatile(1) };
}

fn send_segv() -> (Mprotect, Mapped) {
    set_handler(libc::SIG_DFL, 0);
    let armed = armed();
    // SAFETY: ends this process.
    unsafe { libc::raise(libc::SIGSEGV) };
    armed
}

/// Read-only memory that was never tracked stays so, even if armed memory exists as well.
fn write_to_read_only_memory() {
    set_handler(libc::SIG_DFL, 0);
    let _armed = armed();
    let other = Mapped::small(3);
    // SAFETY: the case's own memory; the write is meant to fail.
    unsafe {
        let flags = rustix::mm::MprotectFlags::READ;
        rustix::mm::mprotect(other.page(0).cast(), 4096, flags).unwrap();
        other.page(0).write_volatile(1);
    }
}

static CALLED: AtomicUsize = AtomicUsize::new(0);
static PAGE: AtomicUsize = AtomicUsize::new(0);

/// Makes the page at `PAGE` writable and counts.
extern "C" fn opens_page(_: i32) {
    CALLED.fetch_add(1, SeqCst);
    // SAFETY: the case's own memory.
    unsafe {
        libc::mprotect(PAGE.load(SeqCst) as *mut _, 4096, libc::PROT_READ | libc::PROT_WRITE)
    };
}

extern "C" fn opens_page_of_fault(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the arguments are the kernel's, passed on by our handler.
    let address = unsafe { (*info).si_addr() as usize };
    assert_eq!(address & !4095, PAGE.load(SeqCst));
    opens_page(signal);
}

#[test]
fn an_earlier_handler_gets_its_faults() {
    succeeds("full");
    succeeds("plain");
}

fn previous_handler(full: bool) {
    if full {
        set_handler(opens_page_of_fault as *const () as usize, libc::SA_SIGINFO | libc::SA_NODEFER);
    } else {
        set_handler(opens_page as *const () as usize, 0);
    }
    let (tracker, memory) = armed();
    let other = Mapped::small(3);
    for round in 0..3 {
        PAGE.store(other.page(0) as usize, SeqCst);
        // SAFETY: the case's own memory; the earlier handler allows the write.
        unsafe {
            rustix::mm::mprotect(other.page(0).cast(), 4096, rustix::mm::MprotectFlags::READ)
                .unwrap();
        }
        other.write(0, round);
        assert_eq!(CALLED.load(SeqCst), round as usize + 1);
        memory.write(50, round);
        assert!(collect_all(&tracker, &memory).unwrap().contains(&50));
    }
    assert_eq!(CALLED.load(SeqCst), 3, "ours were not handed on");
}

#[test]
fn a_later_handler_is_found_out() {
    succeeds("later");
}

fn later_handler() {
    let (tracker, memory) = armed();
    set_handler(opens_page as *const () as usize, 0);
    PAGE.store(memory.page(7) as usize, SeqCst);
    memory.write(7, 1);
    assert_eq!(CALLED.load(SeqCst), 1, "the later handler has them");
    let mut found = Vec::new();
    let refusal = tracker.collect(memory.pages(), Then::Rearm, &mut found).unwrap_err();
    assert!(refusal.0.contains("another handler of SIGSEGV"), "{refusal}");
    tracker.arm(memory.pages()).unwrap_err();
    let other = Mapped::small(2);
    // SAFETY: the case's own memory.
    unsafe { tracker.watch(other.pages()) }.unwrap_err();
    tracker.unwatch(memory.pages());
    (0..100).for_each(|page| memory.write(page, 2));
    // The default action has no owner: our handler replaces it again.
    set_handler(libc::SIG_DFL, 0);
    watch_and_arm(&tracker, &memory);
    memory.write(3, 3);
    assert_eq!(collect_all(&tracker, &memory), Some(vec![3]));
}

/// Writes every second page of far more pages than there may be mappings, in a random order.
#[test]
fn scattered_writes_do_not_use_up_the_mappings() {
    let tracker = Mprotect::new().unwrap();
    let pages = 100_000;
    let memory = Mapped::small(pages);
    watch_and_arm(&tracker, &memory);
    let rng = SeededRng::new(5);
    for round in 1..3 {
        let mut order: Vec<usize> = (0..pages).step_by(2).collect();
        (1..order.len()).for_each(|last| order.swap(last, rng.below(last as u64 + 1) as usize));
        order.iter().for_each(|page| memory.write(*page, round));
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        assert!(maps < 40_000, "{maps} mappings");
        let found = collect_all(&tracker, &memory).unwrap();
        assert!(order.iter().all(|page| found.binary_search(page).is_ok()));
        memory.write(7, round);
        assert_eq!(collect_all(&tracker, &memory), Some(vec![7]));
    }
    tracker.unwatch(memory.pages());
}

#[test]
fn a_handler_that_gets_no_more_mappings_opens_all_and_says_so() {
    succeeds("mappings");
}

fn no_more_mappings() {
    let (tracker, memory) = armed();
    assert!(collect_all(&tracker, &memory).is_some());
    // The program takes all available mappings, once our memory is armed.
    let many = Mapped::small(80_000);
    for page in (0..80_000).step_by(2) {
        // SAFETY: the case's own memory.
        let done = unsafe {
            rustix::mm::mprotect(many.page(page).cast(), 4096, rustix::mm::MprotectFlags::READ)
        };
        if done.is_err() {
            break;
        }
    }
    (0..100).step_by(2).for_each(|page| memory.write(page, 4));
    let mut found = Vec::new();
    let refusal = tracker.collect(memory.pages(), Then::Rearm, &mut found).unwrap_err();
    assert!(refusal.0.contains("too many mappings"), "{refusal}");
    drop(many);
    tracker.unwatch(memory.pages());
    watch_and_arm(&tracker, &memory);
    memory.write(9, 9);
    assert_eq!(collect_all(&tracker, &memory), Some(vec![9]));
}

#[test]
fn the_smallest_alternate_stack_is_enough() {
    succeeds("stack");
}

/// The handler runs on a small alternate stack also where it searches for moved memory.
fn small_alternate_stack() {
    let mut stack = vec![0u8; libc::MINSIGSTKSZ.max(4096) + 4096];
    // SAFETY: the stack is this thread's until it is removed below.
    unsafe {
        let alternate =
            libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
        assert_eq!(libc::sigaltstack(&raw const alternate, std::ptr::null_mut()), 0);
    }
    let (tracker, memory) = armed();
    (0..100).for_each(|page| memory.write(page, 4));
    assert_eq!(collect_all(&tracker, &memory).map(|found| found.len()), Some(100));
    let Pages { start, end } = memory.pages();
    // SAFETY: moves the case's own memory to where there is room.
    let moved = unsafe {
        let room = Mapped::small(100);
        let to = room.pages().start as *mut _;
        rustix::mm::mremap_fixed(
            start as *mut _,
            end - start,
            end - start,
            rustix::mm::MremapFlags::MAYMOVE,
            to,
        )
        .unwrap();
        memory.forget();
        room
    };
    (0..100).for_each(|page| moved.write(page, 5));
    assert!(stack.iter().any(|byte| *byte != 0), "the handler was on this stack");
    let disabled =
        libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: removes the stack before it is freed.
    unsafe { libc::sigaltstack(&raw const disabled, std::ptr::null_mut()) };
}
