//! Ranks that are threads of one process: for tests, and for programs that have no other ranks.

use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::{Coordinator, Error, Rank, Result};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Connects one of several threads. When it is dropped, its rank has left, and calls of the others
/// that need it fail.
#[derive(Debug)]
pub struct ThreadRank {
    rank: Rank,
    size: u32,
    /// Number of calls that this rank has made.
    calls: AtomicU64,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Calls by their number.
    calls: HashMap<u64, Call>,
    /// Ranks that have left, each with its reason if it gave one.
    left: Vec<(Rank, Option<Error>)>,
}

#[derive(Debug)]
struct Call {
    given: Vec<Option<Vec<u8>>>,
    read: usize,
}

impl ThreadRank {
    /// Returns `size` connected ranks.
    pub fn group(size: u32) -> Vec<Arc<ThreadRank>> {
        let shared = Arc::new(Shared::default());
        let of = |rank| {
            Arc::new(ThreadRank { rank, size, calls: AtomicU64::new(0), shared: shared.clone() })
        };
        (0..size).map(of).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }

    /// Returns the bytes of all ranks, once all have called.
    fn exchange(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let size = self.size as usize;
        let mut state = self.state();
        let begin = || Call { given: vec![None; size], read: 0 };
        let call = state.calls.entry(number).or_insert_with(begin);
        call.given[self.rank as usize] = Some(bytes.to_vec());
        self.shared.changed.notify_all();
        loop {
            let State { calls, left } = &mut *state;
            let call = calls.get_mut(&number).ok_or_else(|| Error::bug("a call is missing"))?;
            let missing = call.given.iter().position(Option::is_none);
            let Some(missing) = missing else {
                let all = call.given.iter().flatten().cloned().collect();
                call.read += 1;
                if call.read == size {
                    calls.remove(&number);
                }
                return Ok(all);
            };
            let is_missed = |(rank, _): &&(Rank, _)| call.given[*rank as usize].is_none();
            if let Some((gone, why)) = left.iter().find(is_missed) {
                let left = format!("rank {gone} has left its group");
                return Err(why
                    .clone()
                    .map_or_else(|| Error::retry(left.clone()), |why| why.context(&left)));
            }
            debug_assert!(missing < size);
            let waited = self.shared.changed.wait(state);
            state = waited;
        }
    }
}

impl Coordinator for ThreadRank {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let all = self.exchange(bytes)?;
        Ok(if self.rank == 0 { all } else { Vec::new() })
    }

    fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        Ok(self.exchange(bytes)?.swap_remove(0))
    }

    fn leave(&self, why: &Error) {
        self.state().left.push((self.rank, Some(why.clone())));
        self.shared.changed.notify_all();
    }
}

impl Drop for ThreadRank {
    fn drop(&mut self) {
        self.state().left.push((self.rank, None));
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn all_ranks_make_each_call() {
        let ranks = ThreadRank::group(4);
        let work = |rank: Arc<ThreadRank>| {
            for call in 0..50u8 {
                let mine = [rank.rank() as u8, call];
                let gathered = rank.gather(&mine).unwrap();
                match rank.rank() {
                    0 => assert_eq!(gathered, [[0, call], [1, call], [2, call], [3, call]]),
                    _ => assert!(gathered.is_empty()),
                }
                assert_eq!(rank.broadcast(&mine).unwrap(), [0, call]);
                rank.barrier().unwrap();
            }
        };
        thread::scope(|scope| {
            ranks.into_iter().for_each(|rank| drop(scope.spawn(move || work(rank))))
        });
    }

    #[test]
    fn a_rank_that_has_left_is_missed() {
        let mut ranks = ThreadRank::group(3);
        let last = ranks.pop();
        thread::scope(|scope| {
            for rank in &ranks {
                scope.spawn(move || {
                    let error = rank.barrier().unwrap_err();
                    assert_eq!(error.message(), "rank 2 has left its group");
                });
            }
            drop(last);
        });
    }
}
