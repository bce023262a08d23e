//! Tests of a child whose program gets signals, changes threads, ends, runs another program, or may
//! not fork. A separate process plays each role: this program again, with one test.

use super::*;
use crate::{ChangeTracker, MemorySource};
use outlive_types::{FreezeMode, FreezeRequest, PageSource};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child as Process, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize};

const ROLE: &str = "OUTLIVE_TEST_ROLE";
/// The user id of an account without rights, the same on every Linux.
const NOBODY: u32 = 65534;

fn play(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "fork::tests::process::a_role", "--nocapture"]);
    command.env(ROLE, role).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// Returns the rest of the line of a role that begins so.
fn said(process: &mut Process, beginning: &str) -> String {
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(|l| l.ok());
    // The test's own name precedes it in the same line.
    let line = lines.find_map(|line| Some(line.split_once(beginning)?.1.to_owned()));
    line.unwrap_or_else(|| panic!("the role did not say {beginning:?}"))
}

/// Plays a role; not a test by itself.
#[test]
fn a_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match role.as_str() {
        "waits" | "executes" => {
            let image = take().unwrap();
            println!("CHILD {}", image.pid());
            if role == "executes" {
                let error = Command::new("sleep").arg("60").exec();
                panic!("{error}");
            }
            std::thread::sleep(Duration::from_secs(60));
        }
        "leaves" => {
            let image = take().unwrap();
            println!("CHILD {}", image.pid());
            std::mem::forget(image);
            std::process::exit(0);
        }
        "freezes" => freezes(),
        "is not dumpable" => {
            set(libc::PR_SET_DUMPABLE, 0);
            freezes();
        }
        "may not fork" => {
            let none = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
            // SAFETY: the limit is read from a value that lives.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const none) }, 0);
            freezes();
        }
        "may not read" => {
            forbid(libc::SYS_pread64 as u32);
            freezes();
        }
        "may not clone" => {
            // On this system, threads use clone3 and the fork uses clone.
            forbid(libc::SYS_clone as u32);
            freezes();
        }
        other => panic!("no role {other}"),
    }
}

fn set(what: libc::c_int, value: libc::c_ulong) {
    // SAFETY: these options take numbers.
    assert_eq!(unsafe { libc::prctl(what, value, 0, 0, 0) }, 0);
}

/// Makes a system call fail with EPERM from now on, in all threads that this one starts.
fn forbid(number: u32) {
    set(libc::PR_SET_NO_NEW_PRIVS, 1);
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let filter = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the filter is four instructions that live until the call returns.
    let set = unsafe {
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0)
    };
    assert_eq!(set, 0);
}

/// Freezes by fork, if possible, changes the memory, and prints the method.
fn freezes() {
    let mut memory = vec![5u8; 3 << 20];
    // SAFETY: the memory lives until the end, and is changed when no run is live.
    let region =
        unsafe { crate::Region::from_raw("m", "|u1", vec![], memory.as_ptr(), memory.len()) };
    let mut source = MemorySource::new(Arc::new(ChangeTracker::new()), vec![region], vec![], 1);
    let freeze = FreezeMode::Fork;
    let asked = FreezeRequest { freeze, freeze_bytes_max: 8 << 20, ..FreezeRequest::default() };
    let frozen = source.freeze(&asked).unwrap();
    assert_eq!(frozen.live_runs(), 0);
    memory.fill(6);
    let mut scratch = Vec::new();
    for run in 0..frozen.runs().len() {
        assert!(frozen.bytes(run, &mut scratch).unwrap().iter().all(|byte| *byte == 5));
    }
    println!("FREEZE {}", frozen.report().freeze);
}

/// True once nothing of a process runs any more (its new parent may not reap it).
fn is_over(pid: i32) -> bool {
    matches!(state(pid), None | Some('Z' | 'X'))
}

#[test]
fn a_child_ends_with_its_program_however_that_ends() {
    for role in ["waits", "leaves", "executes"] {
        let mut program = play(role).spawn().unwrap();
        let child: i32 = said(&mut program, "CHILD ").parse().unwrap();
        if role == "waits" {
            assert!(!is_over(child));
            program.kill().unwrap();
        }
        wait_until(&format!("the end of the child of one that {role}"), || is_over(child));
        if role == "executes" {
            assert!(program.try_wait().unwrap().is_none(), "the program itself goes on");
            program.kill().unwrap();
        }
        program.wait().unwrap();
    }
}

/// True for root, who may change to another user. Otherwise reports that the test is skipped.
fn can_change_user() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("not root: this was not tested");
    }
    is_root
}

#[test]
fn a_forbidden_fork_is_reported_and_memory_is_copied() {
    for (role, user, want) in [
        ("freezes", None, "fork: as freeze"),
        ("freezes", Some(NOBODY), "fork: as freeze"),
        ("is not dumpable", Some(NOBODY), "copy: no fork: the child may not be read"),
        ("may not fork", Some(NOBODY), "copy: no fork: no thread could be started"),
        ("may not read", None, "copy: no fork: the child may not be read"),
        ("may not clone", None, "copy: no fork: the system forbids it (clone"),
    ] {
        let mut command = play(role);
        if let Some(user) = user {
            if !can_change_user() {
                continue;
            }
            command.uid(user).gid(user);
        }
        let played = match command.output() {
            Ok(played) => played,
            Err(error) if user.is_some() => {
                println!("another user cannot start this program: {error}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let told = String::from_utf8_lossy(&played.stdout);
        assert!(played.status.success(), "{role}: {told}");
        assert!(told.contains(&format!("FREEZE {want}")), "{role}: {told}");
    }
}

static SIGNALS: AtomicUsize = AtomicUsize::new(0);
static OWN_PID: AtomicI32 = AtomicI32::new(0);
/// A counter in memory that a fork shares: it shows whether a handler ran in a child.
static IN_CHILD: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: getpid is safe in a handler; the address is that of a shared page.
    unsafe {
        if libc::getpid() != OWN_PID.load(Ordering::Relaxed) {
            let shared = IN_CHILD.load(Ordering::Relaxed) as *const AtomicUsize;
            (*shared).fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn signals_and_threads_come_and_go_meanwhile() {
    let _turn = alone();
    OWN_PID.store(std::process::id() as i32, Ordering::Relaxed);
    // SAFETY: a shared page that is never unmapped; a handler that only counts; a timer of 2 kHz.
    let shared = unsafe {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), PAGE_BYTES, prot, flags, -1, 0);
        IN_CHILD.store(page as usize, Ordering::Relaxed);
        libc::signal(libc::SIGALRM, count as *const () as libc::sighandler_t);
        let every = libc::timeval { tv_sec: 0, tv_usec: 500 };
        let timer = libc::itimerval { it_interval: every, it_value: every };
        libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
        &*page.cast::<AtomicUsize>()
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::thread::spawn(|| black_box(vec![1u8; 10_000])).join().unwrap();
            }
        });
        for round in 0..60u8 {
            let mut memory = vec![round; 100_000];
            // The thread that takes the image ends; the image stays.
            let image = std::thread::spawn(|| take().unwrap()).join().unwrap();
            memory.fill(255);
            let before = SIGNALS.load(Ordering::Relaxed);
            wait_until("a signal", || SIGNALS.load(Ordering::Relaxed) > before + 2);
            // A signal to the child, as its whole group may get: the child ignores it.
            // SAFETY: a signal to our own child.
            unsafe { libc::kill(image.pid(), libc::SIGALRM) };
            let mut seen = vec![0; 100_000];
            image.read(memory.as_ptr().addr(), &mut seen).unwrap();
            assert!(seen.iter().all(|byte| *byte == round));
        }
        stop.store(true, Ordering::Relaxed);
    });
    // SAFETY: ends the timer.
    unsafe {
        let none = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let timer = libc::itimerval { it_interval: none, it_value: none };
        libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
    }
    assert_eq!(shared.load(Ordering::Relaxed), 0, "a handler ran in a child");
}
