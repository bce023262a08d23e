//! Threads that work behind a running program.

/// Added to the niceness of a thread that nobody waits for: where the program computes on all cores
/// it keeps nine tenths of each, and where a core is free nothing changes. More would let a drain
/// starve.
const NICENESS: i32 = 10;

/// Lets the calling thread, and those that it starts from now on, make way for the program. There is
/// no way back, so only for threads that end with their work. Where the system refuses, all stays as
/// it was.
pub fn make_way() {
    let _ = rustix::process::nice(NICENESS);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_makes_way_alone() {
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let before = niceness();
        let (there, started_there) = std::thread::spawn(move || {
            make_way();
            (niceness(), std::thread::spawn(niceness).join().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!(there, (before + NICENESS).min(19));
        assert_eq!(started_there, there);
        assert_eq!(niceness(), before);
    }
}
