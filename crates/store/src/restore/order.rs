//! Which read comes next: what the program waits for and its neighbours first, else container order.

use crate::read::{ReadPlan, Transfer};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Reads that may wait to be preferred; the oldest wishes are dropped.
const PREFERRED_MAX: usize = 64;

/// The order of one plan's reads. Each is given out once.
#[derive(Debug)]
pub(super) struct Order {
    given: Vec<AtomicBool>,
    next: AtomicUsize,
    preferred: Mutex<VecDeque<u32>>,
    /// Where each piece goes, and the read that brings it: (stream, offset, read), ascending.
    places: Vec<(u32, u64, u32)>,
}

impl Order {
    /// `numbers[n]` is the piece for which the plan's `n`th wanted is.
    pub fn new(reads: &ReadPlan, pieces: &[Transfer], numbers: &[u32]) -> Order {
        let place = |(piece, step): (&u32, u32)| {
            let piece = &pieces[*piece as usize];
            (piece.stream, piece.to, step)
        };
        let mut places: Vec<_> = numbers.iter().zip(reads.step_of()).map(place).collect();
        places.sort_unstable();
        Order {
            given: (0..reads.reads()).map(|_| AtomicBool::new(false)).collect(),
            next: AtomicUsize::new(0),
            preferred: Mutex::default(),
            places,
        }
    }

    /// The next read; `None` if all were given.
    pub fn next(&self) -> Option<usize> {
        let take = |read: usize| !self.given[read].swap(true, Ordering::Relaxed);
        loop {
            let preferred =
                self.preferred.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            match preferred {
                Some(read) if take(read as usize) => return Some(read as usize),
                Some(_) => {}
                None => break,
            }
        }
        loop {
            let read = self.next.fetch_add(1, Ordering::Relaxed);
            if read >= self.given.len() {
                return None;
            }
            if take(read) {
                return Some(read);
            }
        }
    }

    /// Has what goes to this range read before all else.
    pub fn prefer(&self, stream: usize, range: Range<u64>) {
        let stream = stream as u32;
        let first = self.places.partition_point(|(of, to, _)| (*of, *to) < (stream, range.start));
        let wanted = self.places[first..]
            .iter()
            .take_while(|(of, to, _)| *of == stream && *to < range.end)
            .map(|(_, _, read)| *read)
            .filter(|read| !self.given[*read as usize].load(Ordering::Relaxed));
        let mut reads: Vec<u32> = Vec::new();
        for read in wanted {
            if reads.last() != Some(&read) {
                reads.push(read);
            }
        }
        let mut preferred = self.preferred.lock().unwrap_or_else(PoisonError::into_inner);
        for read in reads.into_iter().rev() {
            preferred.push_front(read);
        }
        preferred.truncate(PREFERRED_MAX);
    }
}
