use super::*;
use outlive_types::sync::{self, Condvar, pause};

fn run(seed: u64, programs: Vec<Start>) -> Ran {
    SeededScheduler::new(Policy::of(seed), true).run(programs)
}

/// Two programs that each read a number, and write it back increased by one.
fn lost_update(seed: u64) -> (u64, Ran) {
    let number = Arc::new(sync::Mutex::new(0));
    let add = |name: &str| -> Start {
        let number = number.clone();
        let work = move || {
            let seen = *number.lock();
            pause("between");
            *number.lock() = seen + 1;
        };
        (name.to_owned(), Box::new(work))
    };
    let ran = run(seed, vec![add("one"), add("two")]);
    (*number.lock(), ran)
}

#[test]
fn an_update_is_lost_in_some_schedules_and_in_the_same_ones_again() {
    let outcomes: Vec<(u64, Ran)> = (0..60).map(lost_update).collect();
    let lost = outcomes.iter().filter(|(number, _)| *number == 1).count();
    assert!((5..55).contains(&lost), "{lost} of 60");
    for (seed, (number, ran)) in (0..).zip(&outcomes) {
        let (again, repeated) = lost_update(seed);
        assert_eq!((again, &repeated.trace), (*number, &ran.trace));
        assert_eq!(repeated.digest, ran.digest);
    }
}

#[test]
fn threads_that_wait_for_each_other_are_found() {
    let outcome = |seed| {
        let locks = Arc::new((sync::Mutex::new(()), sync::Mutex::new(())));
        let crossed = locks.clone();
        let one = move || {
            let _first = locks.0.lock();
            pause("one lock");
            drop(locks.1.lock());
        };
        let two = move || {
            let _first = crossed.1.lock();
            pause("the other lock");
            drop(crossed.0.lock());
        };
        run(seed, vec![("one".to_owned(), Box::new(one)), ("two".to_owned(), Box::new(two))])
    };
    let failures: Vec<String> = (0..40).filter_map(|seed| outcome(seed).failure).collect();
    assert!(failures.len() < 40, "not every schedule ends so");
    assert!(failures[0].starts_with("deadlock"), "{}", failures[0]);
}

#[test]
fn threads_of_programs_take_turns_too_and_a_panic_is_told() {
    let told = Arc::new((sync::Mutex::new(Vec::new()), Condvar::new()));
    let (waits, tells) = (told.clone(), told.clone());
    let parent = move || {
        let tells = tells.clone();
        sync::spawn("child", move || {
            tells.0.lock().push("child");
            tells.1.notify_all();
        })
        .unwrap();
        let told = waits.0.lock();
        let told = waits.1.wait_while(told, |told| told.is_empty());
        assert_eq!(*told, ["child"]);
        panic!("on purpose");
    };
    let ran = run(3, vec![("parent".to_owned(), Box::new(parent))]);
    assert_eq!(ran.failure.as_deref(), Some("parent panicked: on purpose"));
    assert!(ran.trace.iter().any(|line| line.contains("parent/child")), "{:?}", ran.trace);
}

#[test]
fn a_held_thread_goes_on_when_no_other_can() {
    let turns = SeededScheduler::new(Policy::of(1), false);
    let hold = turns.clone();
    let order = Arc::new(Mutex::new(Vec::new()));
    let (first, second) = (order.clone(), order.clone());
    let held = move || {
        hold.hold("0", 1_000_000);
        pause("held up");
        first.lock().push(0);
    };
    let other = move || {
        (0..5).for_each(|_| pause("work"));
        second.lock().push(1);
    };
    let ran =
        turns.run(vec![("held".to_owned(), Box::new(held)), ("other".to_owned(), Box::new(other))]);
    assert_eq!((ran.failure, &*order.lock()), (None, &vec![1, 0]));
}

#[test]
fn a_thread_stands_still_before_the_step_that_was_named() {
    for seed in 0..20 {
        let turns = SeededScheduler::new(Policy::of(seed), false);
        let second = Moment::Before("write", 1);
        turns.suspend(&[
            Suspension { who: "0", at: second, until: Until::Ended(1) },
            Suspension::of("0/child", Moment::Decision(0)),
        ]);
        let order = Arc::new(Mutex::new(Vec::new()));
        let note = |what: &'static str| {
            let order = order.clone();
            move || order.lock().push(what)
        };
        let (written, child, ended) = (note("written"), note("child"), note("ended"));
        let first = move || {
            pause("write one");
            pause("read");
            pause("write two");
            written();
            sync::spawn("child", move || {
                pause("begin a child");
                child();
            })
            .unwrap();
            pause("end");
            ended();
        };
        let other = note("other");
        let ran =
            turns.run(vec![("0".to_owned(), Box::new(first)), ("1".to_owned(), Box::new(other))]);
        assert_eq!(ran.failure, None);
        assert_eq!(*order.lock(), ["other", "written", "ended", "child"]);
    }
}

#[test]
fn a_killed_thread_goes_no_further_than_the_next_pause() {
    let reached = Arc::new(Mutex::new(Vec::new()));
    let (steps, dead) = (reached.clone(), Arc::new(AtomicBool::new(false)));
    let fate = dead.clone();
    let work = move || {
        let done = mortal(
            move || fate.load(Ordering::Relaxed),
            || {
                pause("one");
                steps.lock().push("one");
                dead.store(true, Ordering::Relaxed);
                pause("two");
                steps.lock().push("two");
            },
        );
        assert_eq!(done, None);
        pause("afterwards");
        steps.lock().push("afterwards");
    };
    let ran = run(1, vec![("0".to_owned(), Box::new(work))]);
    assert_eq!((ran.failure, &*reached.lock()), (None, &vec!["one", "afterwards"]));
}

#[test]
fn time_passes_when_all_threads_wait_for_it() {
    const HOUR: Duration = Duration::from_secs(3600);
    for seed in 0..20 {
        let turns = SeededScheduler::new(Policy::of(seed), true);
        turns.keep_time();
        let (clock, shared) = (turns.clone(), Arc::new((sync::Mutex::new(false), Condvar::new())));
        let told = shared.clone();
        let sleeps = move || {
            let before = clock.now_ns();
            sync::sleep(HOUR);
            assert!(clock.now_ns() - before >= 3600 * 1_000_000_000);
            *told.0.lock() = true;
            told.1.notify_all();
        };
        let waits = move || {
            let guard = shared.0.lock();
            let (guard, passed) = shared.1.wait_timeout(guard, 2 * HOUR);
            assert!(*guard && !passed, "it was told in time");
            assert!(shared.1.wait_timeout(guard, HOUR).1, "no thread sends more");
        };
        let ran = turns.run(vec![
            ("sleeps".to_owned(), Box::new(sleeps)),
            ("waits".to_owned(), Box::new(waits)),
        ]);
        assert_eq!(ran.failure, None);
        let hours = turns.now_ns() / 1_000_000_000;
        assert!((7200..7300).contains(&hours), "{hours} s");
    }
}
