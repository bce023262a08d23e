//! Threads that run at lower priority than the program.

/// Niceness added to a background thread. Where the program computes on all cores, it keeps nine
/// tenths of each; where a core is free, nothing changes. A higher value would starve the persist
/// phase of a save.
const NICENESS: i32 = 10;

/// Makes the calling thread, and those that it starts from now on, yield to the program. It cannot
/// be undone, so it is only for threads that end with their work. Where the system refuses, nothing
/// changes.
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
