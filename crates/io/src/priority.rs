//! Threads that run at lower priority than the program.

use rustix::process::{getpid, getpriority_process, setpriority_process};

/// Niceness of a background thread above the program's. Where the program computes on all cores, it
/// keeps nine tenths of each; where a core is free, nothing changes. A higher value would starve the
/// persist phase of a save, and each thread that waits for this one.
const NICENESS: i32 = 10;
/// Highest niceness there is.
const NICENESS_MAX: i32 = 19;

/// Makes the calling thread, and those that it starts from now on, yield to the program. A thread
/// that a yielding one has started does not yield more. It cannot be undone, so it is only for
/// threads that end with their work. Where the system refuses, nothing changes.
pub fn make_way() {
    // The first thread has the number of the process.
    let (Ok(program), Ok(own)) = (getpriority_process(Some(getpid())), getpriority_process(None))
    else {
        return;
    };
    let wanted = (program + NICENESS).min(NICENESS_MAX);
    if wanted > own {
        let _ = setpriority_process(None, wanted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_makes_way_alone_and_no_thread_twice() {
        let niceness = || getpriority_process(None).unwrap();
        let before = niceness();
        let (there, started_there) = std::thread::spawn(move || {
            make_way();
            let again = move || {
                make_way();
                niceness()
            };
            (niceness(), std::thread::spawn(again).join().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!(there, (before + NICENESS).min(NICENESS_MAX));
        assert_eq!(started_there, there);
        assert_eq!(niceness(), before);
    }
}
