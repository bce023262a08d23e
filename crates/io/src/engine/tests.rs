use super::*;
use std::sync::Barrier;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

#[test]
fn does_all_jobs_with_no_more_threads_than_its_depth() {
    let engine = DiskEngine::new(3);
    let running = Arc::new(AtomicUsize::new(0));
    let peak = Arc::new(AtomicUsize::new(0));
    // The first three jobs run at the same time, or never end.
    let together = Arc::new(Barrier::new(3));
    let tickets: Vec<_> = (0..60)
        .map(|number| {
            let (running, peak) = (running.clone(), peak.clone());
            let together = together.clone();
            engine.submit(move || {
                peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                if number < 3 {
                    together.wait();
                }
                running.fetch_sub(1, Ordering::SeqCst);
                number
            })
        })
        .collect();
    let sum: usize = tickets.into_iter().map(Ticket::wait).sum();
    assert_eq!(sum, 59 * 60 / 2);
    assert_eq!(peak.load(Ordering::SeqCst), 3);
}

#[test]
fn a_panicking_job_reaches_its_waiter_and_the_engine_lives() {
    let engine = DiskEngine::new(1);
    let bad = engine.submit(|| -> u32 { panic!("as the test wants") });
    let good = engine.submit(|| 7);
    assert!(catch_unwind(AssertUnwindSafe(|| bad.wait())).is_err());
    assert_eq!(good.wait(), 7);
}

#[test]
fn queued_jobs_are_done_after_the_engine_was_dropped() {
    let engine = DiskEngine::new(1);
    let (dropped, first_waits) = channel();
    let mut tickets = vec![engine.submit(move || first_waits.recv().unwrap())];
    tickets.extend((1..5).map(|number| engine.submit(move || number)));
    drop(engine);
    dropped.send(0).unwrap();
    assert_eq!(tickets.into_iter().map(Ticket::wait).sum::<i32>(), 10);
}

/// Forks while other threads keep the shared engine busy, as a Python program may, and has the
/// child use it. All threads have started before the first fork. Under Rust's own `main` a thread
/// that starts or ends holds a lock of the standard library: a child that inherits it can start no
/// thread.
#[test]
fn a_forked_child_gets_a_working_engine() {
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let started = Arc::new(Barrier::new(2 + DEPTH_DEFAULT + 1));
    let busy: Vec<_> = (0..2)
        .map(|_| {
            let (stop, started) = (stop.clone(), started.clone());
            thread::spawn(move || {
                started.wait();
                while !stop.load(Ordering::Relaxed) {
                    DiskEngine::shared().submit(|| ()).wait();
                }
            })
        })
        .collect();
    for _ in 0..DEPTH_DEFAULT {
        let started = started.clone();
        drop(DiskEngine::shared().submit(move || started.wait()));
    }
    started.wait();
    for _ in 0..20 {
        let (forked, waits) = channel();
        let of_parent = DiskEngine::shared().submit(move || waits.recv().unwrap());
        // SAFETY: the child uses memory and threads of its own, and ends with `_exit`, so that no
        // destructor of the test runner runs twice.
        let child = unsafe { fork() };
        if child == 0 {
            let mine = DiskEngine::shared();
            let inherited_waits = of_parent.ready();
            let ok = mine.pid == process::id() && mine.submit(|| 5).wait() == 5 && inherited_waits;
            // SAFETY: ends this process and touches nothing.
            unsafe { _exit(i32::from(!ok)) }
        }
        assert!(child > 0, "fork failed");
        assert_eq!(exit_status(child), Some(0), "the child could not use its engine");
        forked.send(()).unwrap();
        of_parent.wait();
    }
    stop.store(true, Ordering::Relaxed);
    busy.into_iter().for_each(|thread| thread.join().unwrap());
}

// SAFETY: these are libc's functions, with their types on Linux.
unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
    fn kill(pid: i32, signal: i32) -> i32;
}

/// Returns the child's exit status. Kills a child that hangs for five minutes, and returns `None`.
fn exit_status(child: i32) -> Option<i32> {
    use rustix::process::{Pid, WaitOptions, waitpid};
    let until = Instant::now() + Duration::from_secs(300);
    loop {
        match waitpid(Pid::from_raw(child), WaitOptions::NOHANG).expect("it is our child") {
            Some((_, status)) => return status.exit_status(),
            None if Instant::now() > until => {
                // SAFETY: a signal to our own child.
                unsafe { kill(child, 9) };
                let _ = waitpid(Pid::from_raw(child), WaitOptions::empty());
                return None;
            }
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
}
