//! Scoped threads for work on large memory. There is no permanent thread pool: it would not survive
//! a fork of the program, and starting a thread takes microseconds, the work milliseconds.

use outlive_types::sync::plain::Mutex;
use std::thread;

/// Below this length of memory, one thread is fastest.
pub const PARALLEL_FROM_BYTES: usize = 4 << 20;

/// Returns the default number of threads while the program waits: the processors that this process
/// may use, at most 4. More do not make memory faster, and ranks share a node.
pub fn default_threads() -> usize {
    thread::available_parallelism().map_or(2, usize::from).min(4)
}

/// Applies `work` to every item on up to `threads` threads, of which the caller's is one. Returns
/// the results in the items' order. Each thread takes the next item when it is free. If the system
/// refuses to start a thread, the others do its work.
///
/// # Panics
/// If `work` panics.
pub fn parallel<T: Send, R: Send>(
    items: Vec<T>,
    threads: usize,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let helpers = threads.min(items.len()).saturating_sub(1);
    if helpers == 0 {
        return items.into_iter().map(work).collect();
    }
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let queue = Mutex::new(items.into_iter().zip(&mut results));
    let drain = || {
        loop {
            let Some((item, result)) = queue.lock().next() else { return };
            *result = Some(work(item));
        }
    };
    on_threads(helpers + 1, drain);
    drop(queue);
    results.into_iter().map(|result| result.expect("every item was worked on")).collect()
}

/// Calls `work` on up to `threads` threads at once, of which the caller's is one. Each call takes
/// its share of the work until nothing remains. If the system refuses to start a thread, the others
/// do its work.
///
/// # Panics
/// If `work` panics.
pub fn on_threads(threads: usize, work: impl Fn() + Sync) {
    thread::scope(|scope| {
        // Named like the caller's thread: they do the same.
        let name = thread::current().name().unwrap_or("outlive-work").to_owned();
        for _ in 1..threads {
            let helper = thread::Builder::new().name(name.clone());
            if helper.spawn_scoped(scope, &work).is_err() {
                break;
            }
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Barrier;

    #[test]
    fn results_keep_the_order() {
        for threads in 0..5 {
            let squares = parallel((0..1000u64).collect(), threads, |n| n * n);
            assert_eq!(squares, (0..1000u64).map(|n| n * n).collect::<Vec<_>>());
        }
        assert!(parallel(Vec::<u8>::new(), 4, |n| n).is_empty());
    }

    #[test]
    fn the_threads_do_run_side_by_side() {
        // Each item waits until threads work on all three.
        let barrier = Barrier::new(3);
        let ids = parallel(vec![(); 3], 3, |()| {
            barrier.wait();
            thread::current().id()
        });
        assert_eq!(ids.into_iter().collect::<HashSet<_>>().len(), 3);
    }

    #[test]
    fn items_may_be_mutable_slices() {
        let mut bytes = [0u8; 100];
        let pieces: Vec<_> = bytes.chunks_mut(7).enumerate().collect();
        parallel(pieces, 3, |(at, piece)| piece.fill(at as u8 + 1));
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte as usize == at / 7 + 1));
    }
}
