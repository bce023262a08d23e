//! Decides which read of the background begins next, and when. Reads for which the program waits
//! come first, then their neighbours, then the rest in container order. Faults reduce the number of
//! reads in flight.

use super::LazyFill;
use crate::read::{ReadOrder, ReadPlan, Transfer};
use outlive_types::BLOCK_BYTES;
use outlive_types::sync::plain::{Condvar, Mutex, MutexGuard};
use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Reads that begin and end without a fault before the limit rises again: some milliseconds.
const CALM: usize = 4;
/// Number of faults for which the background yields. Each costs the time of some reads, and splits
/// a huge page. Every [`READS_FOR_FAULT`] reads earn one more.
const FAULTS_MAX: usize = 256;
const READS_FOR_FAULT: usize = 1024;
/// Most reads for which a fault waits, where the background does not yield.
const UNIT_READS_MAX: usize = 8;

/// Limits the reads in flight.
#[derive(Debug)]
struct Room {
    under_way: usize,
    limit: usize,
    limit_max: usize,
    /// Number of reads that must end before the limit rises.
    pause: usize,
    /// Number of reads that have ended.
    ended: usize,
    /// Number of faults for which the background yielded.
    faults: usize,
}

/// Most reads in the list of preferred ones; the oldest are dropped.
const PREFERRED_MAX: usize = 64;

/// The order of one plan's reads. Each is given out once.
///
/// The limit of reads in flight follows the congestion control of TCP (slow start, multiplicative
/// decrease: Jacobson 1988). It begins at one. Each fault halves it. Once some reads have ended
/// without a fault, each further one raises it. So a fault waits behind few reads of the
/// background, and without faults the background keeps the device busy. The limit is never zero.
#[derive(Debug)]
pub(super) struct ReadScheduler {
    room: Mutex<Room>,
    changed: Condvar,
    given: Vec<AtomicBool>,
    next: AtomicUsize,
    wishes: Mutex<Priorities>,
    /// All pieces, ascending.
    extents: Vec<PieceRead>,
}

/// Destination of a piece, and its read: stream, first byte, end, number of the read. A piece lies
/// within one block of its stream.
type PieceRead = (u32, u64, u64, u32);

/// Reads that come before container order.
#[derive(Debug, Default)]
struct Priorities {
    /// The program waits for these, in the order of its faults. The list keeps all of them.
    awaited: VecDeque<u32>,
    /// The program may wait for these soon; the newest come first.
    preferred: VecDeque<u32>,
}

impl ReadScheduler {
    /// Makes the order of `reads`. `numbers[n]` is the piece that the plan's `n`th item serves.
    pub fn new(
        reads: &ReadPlan,
        pieces: &[Transfer],
        numbers: &[u32],
        under_way_max: usize,
    ) -> ReadScheduler {
        let extent = |(piece, step): (&u32, u32)| {
            let piece = &pieces[*piece as usize];
            (piece.stream, piece.to, piece.to + u64::from(piece.length), step)
        };
        let extents = numbers.iter().zip(reads.step_of()).map(extent).collect();
        ReadScheduler::of(reads.reads(), extents, under_way_max)
    }

    fn of(reads: usize, mut extents: Vec<PieceRead>, under_way_max: usize) -> ReadScheduler {
        extents.sort_unstable();
        let limit_max = under_way_max.max(1);
        ReadScheduler {
            room: Mutex::new(Room {
                under_way: 0,
                limit: 1,
                limit_max,
                pause: CALM,
                ended: 0,
                faults: 0,
            }),
            changed: Condvar::new(),
            given: (0..reads).map(|_| AtomicBool::new(false)).collect(),
            next: AtomicUsize::new(0),
            wishes: Mutex::default(),
            extents,
        }
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock()
    }

    /// Takes room for a read. Without room an idle thread waits, since another thread has reads in
    /// flight. A thread that is not idle gets false.
    fn take_room(&self, is_idle: bool) -> bool {
        let mut room = self.room();
        while room.under_way >= room.limit {
            if !is_idle {
                return false;
            }
            room = self.changed.wait(room);
        }
        room.under_way += 1;
        true
    }

    fn give_room(&self, room: &mut Room) {
        room.under_way = room.under_way.saturating_sub(1);
        self.changed.notify_all();
    }

    /// Returns whether all reads of a unit have begun.
    pub fn is_given(&self, stream: usize, unit: Range<u64>) -> bool {
        self.reads_of(stream, unit).next().is_none()
    }

    /// Decides about a fault in this unit. True: the background brings the unit. Its reads have all
    /// begun, or come next, since the program touches so much that whole units serve it faster.
    /// False: the caller reads the missing window by itself, and the background yields.
    pub fn takes_on(&self, stream: usize, unit: Range<u64>) -> bool {
        let left: Vec<u32> = self.reads_of(stream, unit).take(UNIT_READS_MAX + 1).collect();
        if left.is_empty() {
            return true;
        }
        let mut room = self.room();
        if room.faults >= FAULTS_MAX + room.ended / READS_FOR_FAULT {
            let is_short = left.len() <= UNIT_READS_MAX;
            if is_short {
                self.wishes().awaited.extend(left);
            }
            return is_short;
        }
        room.faults += 1;
        room.limit = (room.limit / 2).max(1);
        room.pause = room.under_way + CALM;
        false
    }

    fn wishes(&self) -> MutexGuard<'_, Priorities> {
        self.wishes.lock()
    }

    /// Returns the reads for this range that have not begun, each once.
    fn reads_of(&self, stream: usize, range: Range<u64>) -> impl Iterator<Item = u32> {
        let stream = stream as u32;
        // A piece that begins in the block before may end in the range.
        let from = (stream, range.start.saturating_sub(BLOCK_BYTES as u64));
        let first = self.extents.partition_point(|(of, to, ..)| (*of, *to) < from);
        let mut seen = HashSet::new();
        self.extents[first..]
            .iter()
            .take_while(move |(of, to, ..)| *of == stream && *to < range.end)
            .filter(move |(_, _, end, _)| *end > range.start)
            .map(|(.., read)| *read)
            .filter(|read| !self.given[*read as usize].load(Ordering::Relaxed))
            .filter(move |read| seen.insert(*read))
    }

    /// Returns the next read; `None` if all were given out.
    fn next_read(&self) -> Option<usize> {
        let take = |read: usize| !self.given[read].swap(true, Ordering::Relaxed);
        loop {
            let mut wishes = self.wishes();
            let wish = wishes.awaited.pop_front().or_else(|| wishes.preferred.pop_front());
            match wish {
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

    /// Moves the reads for this range ahead of container order, after those for which the program
    /// waits. The list keeps the newest [`PREFERRED_MAX`].
    pub fn prefer(&self, stream: usize, range: Range<u64>) {
        let reads: Vec<u32> = self.reads_of(stream, range).take(PREFERRED_MAX).collect();
        let preferred = &mut self.wishes().preferred;
        for read in reads.into_iter().rev() {
            preferred.push_front(read);
        }
        preferred.truncate(PREFERRED_MAX);
    }
}

impl ReadOrder for ReadScheduler {
    fn next(&self, is_idle: bool) -> Option<usize> {
        if !self.take_room(is_idle) {
            return None;
        }
        let next = self.next_read();
        if next.is_none() {
            self.give_room(&mut self.room());
        }
        next
    }

    fn ended(&self) {
        let mut room = self.room();
        room.ended += 1;
        match room.pause {
            0 => room.limit = (room.limit + 1).min(room.limit_max),
            _ => room.pause -= 1,
        }
        self.give_room(&mut room);
    }
}

/// The order of a fill until the fill must stop.
pub(super) struct WhileWanted<'a>(pub &'a ReadScheduler, pub &'a LazyFill);

impl ReadOrder for WhileWanted<'_> {
    fn next(&self, is_idle: bool) -> Option<usize> {
        if self.1.is_stopping() { None } else { self.0.next(is_idle) }
    }

    fn ended(&self) {
        self.0.ended();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ_BYTES: u64 = 1 << 20;

    /// Makes adjacent reads of stream 0, `READ_BYTES` each; at most eight in flight.
    fn order(reads: u32) -> ReadScheduler {
        let extent = |read: u32| {
            let to = u64::from(read) * READ_BYTES;
            (0, to, to + READ_BYTES, read)
        };
        ReadScheduler::of(reads as usize, (0..reads).map(extent).collect(), 8)
    }

    fn unit(number: u64) -> Range<u64> {
        2 * number * READ_BYTES..2 * (number + 1) * READ_BYTES
    }

    /// Begins as many reads as the limit allows. Returns the number in flight.
    fn begin(order: &ReadScheduler) -> usize {
        while order.next(false).is_some() {}
        order.room().under_way
    }

    /// Ends reads one by one, and begins others in their place. Returns the number in flight.
    fn go_on(order: &ReadScheduler, reads: usize) -> usize {
        for _ in 0..reads {
            order.ended();
            begin(order);
        }
        order.room().under_way
    }

    #[test]
    fn reads_begin_one_by_one_and_make_way_for_faults() {
        let order = order(1000);
        assert_eq!(begin(&order), 1);
        assert_eq!(go_on(&order, CALM), 1);
        assert_eq!(go_on(&order, 1), 2);
        assert_eq!(go_on(&order, 20), 8, "no more than that");
        assert!(!order.takes_on(0, unit(200)));
        assert_eq!(order.room().limit, 4);
        assert!(!order.takes_on(0, unit(220)));
        assert!(!order.takes_on(0, unit(240)));
        assert!(!order.takes_on(0, unit(230)));
        assert_eq!(go_on(&order, 8 + CALM), 1, "one goes on, whatever the program does");
        assert_eq!(go_on(&order, 20), 8, "a while later");
    }

    #[test]
    fn reads_under_way_are_waited_for() {
        let order = order(1000);
        go_on(&order, 20);
        let before = order.room().limit;
        assert!(order.takes_on(0, unit(0)));
        assert_eq!(order.room().limit, before);
        // The plan has no piece there: an earlier pass has brought it.
        assert!(order.takes_on(1, unit(0)));
        // The reads of a fault come first, so they are in flight soon.
        assert!(!order.takes_on(0, unit(100)));
        order.prefer(0, unit(100));
        go_on(&order, 20);
        assert!(order.takes_on(0, unit(100)));
    }

    #[test]
    fn a_program_that_touches_much_waits_for_whole_units() {
        let order = order(10_000);
        for fault in 0..FAULTS_MAX as u64 {
            assert!(!order.takes_on(0, unit(fault)), "fault {fault}");
        }
        assert!(order.takes_on(0, unit(2000)));
        assert_eq!(order.next(false), Some(4000), "its reads come first");
        // A fault does not wait for a unit of too many reads.
        assert!(!order.takes_on(0, unit(2001).start..unit(2010).end));
        go_on(&order, READS_FOR_FAULT);
        assert!(!order.takes_on(0, unit(2200)));
        assert!(order.takes_on(0, unit(2300)));
    }

    /// Units begin at multiples of 2 MiB of the address, pieces end at multiples in the stream. So
    /// a unit may need the end of a piece that begins before it.
    #[test]
    fn a_unit_waits_for_the_piece_that_begins_before_it() {
        let order = order(1000);
        for read in [10, 11, 12] {
            order.given[read].store(true, Ordering::Relaxed);
        }
        let unit = 10 * READ_BYTES - 16..12 * READ_BYTES - 16;
        assert!(!order.is_given(0, unit.clone()) && !order.takes_on(0, unit.clone()));
        order.given[9].store(true, Ordering::Relaxed);
        assert!(order.is_given(0, unit.clone()) && order.takes_on(0, unit));
        assert!(order.is_given(0, 9 * READ_BYTES..9 * READ_BYTES + 1));
        assert!(!order.is_given(0, 9 * READ_BYTES - 1..9 * READ_BYTES));
        assert!(!order.is_given(0, 0..4096));
    }

    /// Later faults and preferences do not drop the reads of an earlier fault.
    #[test]
    fn reads_that_a_program_waits_for_are_not_forgotten() {
        let order = order(10_000);
        order.room().faults = FAULTS_MAX;
        assert!(order.takes_on(0, unit(100)));
        for other in 0..1000 {
            assert!(order.takes_on(0, unit(1000 + other)));
            order.prefer(0, unit(3000 + other).start..u64::MAX);
        }
        assert_eq!(order.next(false), Some(200));
        order.ended();
        assert_eq!(order.next(false), Some(201));
    }

    /// An idle thread waits while another thread's read takes the only room, and reads the rest.
    #[test]
    fn a_thread_without_reads_waits_for_room_and_reads_the_rest() {
        let order = order(3);
        assert_eq!(order.next(true), Some(0));
        assert_eq!(order.next(false), None);
        let (order, (began, waits)) = (&order, std::sync::mpsc::channel());
        std::thread::scope(|scope| {
            let other = scope.spawn(move || {
                began.send(()).unwrap();
                let mut reads = Vec::new();
                while let Some(read) = order.next(true) {
                    reads.push(read);
                    order.ended();
                }
                reads
            });
            waits.recv().unwrap();
            order.ended();
            assert_eq!(other.join().unwrap(), [1, 2]);
        });
        assert_eq!(order.room().under_way, 0);
    }
}
