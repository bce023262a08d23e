//! Where memory that is being filled lies now: a program may move it (`mremap`), give up what it holds
//! (`MADV_DONTNEED`, `MADV_FREE`) or unmap it, whole or in parts.
//!
//! A fill speaks of *homes*, the addresses at which memory was registered. The table says where each
//! lies, and what of it is not to be filled any more. It is changed by the kernel's notices alone, and
//! the kernel keeps whoever causes one waiting, and refuses to place pages, until it is read.
//!
//! Memory changes before its notice is read, so two threads' notices may come in the wrong order: one
//! piece is told to have come to where another one still is, by the table. That one has left then, and
//! what is told next of leaving the place is told of it.

use std::ops::Range;

/// Memory side by side that has had one fate.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    /// Number of the region.
    region: usize,
    home: usize,
    at: Range<usize>,
    /// The program gave it up: what is missing there is zero.
    dropped: bool,
    /// It is not there any more: another piece is. The notice of where it went is under way.
    gone: bool,
}

impl Piece {
    fn home(&self) -> Range<usize> {
        self.home..self.home + self.at.len()
    }
}

/// What is known of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It is of this region, and has this home.
    Home(usize, usize),
    /// It is zero, if it is missing: it was given up, or became part of a mapping since, or is of a
    /// region that is whole.
    Zero,
}

/// Where a range of homes is; the first so many bytes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// Here, and to be filled.
    Here(usize, usize),
    /// Nowhere that is to be filled.
    Nowhere(usize),
}

/// The table of all regions of one restore.
#[derive(Debug)]
pub(super) struct Places {
    /// By home; apart, and so by region. None of a region that is whole: others may have its memory.
    pieces: Vec<Piece>,
    /// Of each region whether it is whole.
    over: Vec<bool>,
    any_moved: bool,
    /// Where moved memory was, of which the kernel has not said yet that it is unmapped there. It does,
    /// before or after something else has come to that place.
    left: Vec<Range<usize>>,
}

impl Places {
    /// Of regions that are where they were registered; ascending and apart.
    pub fn new(regions: impl Iterator<Item = Range<usize>>) -> Places {
        let piece = |(region, at): (usize, Range<usize>)| {
            let home = at.start;
            Piece { region, home, at, dropped: false, gone: false }
        };
        let pieces: Vec<Piece> = regions.enumerate().map(piece).collect();
        Places { over: vec![false; pieces.len()], pieces, any_moved: false, left: Vec::new() }
    }

    pub fn is_over(&self, region: usize) -> bool {
        self.over[region]
    }

    /// A region is whole, and registered nowhere any more: its pieces go.
    pub fn set_over(&mut self, region: usize) {
        self.over[region] = true;
        let pieces = self.pieces_of(region);
        self.pieces.drain(pieces);
    }

    /// What a thread that waits at `address` waits for.
    pub fn known(&self, address: usize) -> Known {
        let found = if self.any_moved {
            self.pieces.iter().find(|piece| !piece.gone && piece.at.contains(&address))
        } else {
            let at = self.pieces.partition_point(|piece| piece.at.end <= address);
            self.pieces.get(at).filter(|piece| piece.at.contains(&address))
        };
        match found {
            Some(piece) if !piece.dropped => {
                Known::Home(piece.region, piece.home + (address - piece.at.start))
            }
            _ => Known::Zero,
        }
    }

    /// Where the beginning of a range of homes is. The range is not empty.
    pub fn at(&self, home: &Range<usize>) -> At {
        let next = self.pieces.partition_point(|piece| piece.home().end <= home.start);
        match self.pieces.get(next) {
            Some(piece) if piece.home <= home.start => {
                let bytes = home.end.min(piece.home().end) - home.start;
                match piece.dropped {
                    false => At::Here(piece.at.start + (home.start - piece.home), bytes),
                    true => At::Nowhere(bytes),
                }
            }
            Some(piece) => At::Nowhere(home.end.min(piece.home) - home.start),
            None => At::Nowhere(home.len()),
        }
    }

    /// All places of a region.
    pub fn of(&self, region: usize) -> impl Iterator<Item = &Range<usize>> {
        self.pieces[self.pieces_of(region)].iter().map(|piece| &piece.at)
    }

    fn pieces_of(&self, region: usize) -> Range<usize> {
        let first = self.pieces.partition_point(|piece| piece.region < region);
        first..self.pieces.partition_point(|piece| piece.region <= region)
    }

    /// Regions that have anything at these addresses and are not whole; each once.
    pub fn overlapping(&self, parts: &[Range<usize>]) -> Vec<usize> {
        let overlaps = |piece: &&Piece| {
            let at = &piece.at;
            parts.iter().any(|part| part.start < at.end && at.start < part.end)
        };
        let mut found: Vec<usize> =
            self.pieces.iter().filter(overlaps).map(|piece| piece.region).collect();
        found.dedup();
        found
    }

    /// The program has moved what was at `from`.
    pub fn moved(&mut self, from: &Range<usize>, to: usize) {
        self.any_moved = true;
        self.change(&(to..to + from.len()), |piece| {
            piece.gone = true;
            true
        });
        self.leave(from, |piece| {
            piece.at = piece.at.start - from.start + to..piece.at.end - from.start + to;
            piece.gone = false;
            true
        });
        self.left.push(from.clone());
    }

    /// The program has given up what is there.
    pub fn dropped(&mut self, range: &Range<usize>) {
        self.change(range, |piece| {
            piece.dropped |= !piece.gone;
            true
        });
    }

    /// The program has unmapped it.
    pub fn unmapped(&mut self, range: &Range<usize>) {
        let mut rest = vec![range.clone()];
        let mut left = Vec::new();
        for place in self.left.drain(..) {
            let told = rest.iter().flat_map(|part| overlap(part, &place)).collect::<Vec<_>>();
            left.extend(told.iter().fold(vec![place], cut));
            rest = told.iter().fold(rest, cut);
        }
        self.left = left;
        for part in rest {
            self.leave(&part, |_| false);
        }
    }

    /// Changes the pieces that leave these addresses: where some are gone already it is those, and not
    /// what has come there since.
    fn leave(&mut self, range: &Range<usize>, mut change: impl FnMut(&mut Piece) -> bool) {
        let gone = self.pieces.iter().filter(|piece| piece.gone);
        let gone: Vec<_> = gone.flat_map(|piece| overlap(&piece.at, range)).collect();
        let rest = gone.iter().fold(vec![range.clone()], cut);
        for part in &gone {
            self.change(part, |piece| !piece.gone || change(piece));
        }
        for part in &rest {
            self.change(part, &mut change);
        }
    }

    /// Changes the pieces within these addresses; those for which `change` says no go.
    fn change(&mut self, range: &Range<usize>, mut change: impl FnMut(&mut Piece) -> bool) {
        let mut pieces = Vec::with_capacity(self.pieces.len() + 2);
        for piece in self.pieces.drain(..) {
            let (start, end) = (range.start.max(piece.at.start), range.end.min(piece.at.end));
            if start >= end {
                pieces.push(piece);
                continue;
            }
            let part = |at: Range<usize>| Piece {
                home: piece.home + (at.start - piece.at.start),
                at,
                ..piece.clone()
            };
            let before = part(piece.at.start..start);
            let mut inside = part(start..end);
            let after = part(end..piece.at.end);
            let stays = change(&mut inside);
            let parts = [(before, true), (inside, stays), (after, true)].into_iter();
            pieces.extend(
                parts.filter(|(part, stays)| *stays && !part.at.is_empty()).map(|(part, _)| part),
            );
        }
        self.pieces = pieces;
    }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> Option<Range<usize>> {
    let both = one.start.max(other.start)..one.end.min(other.end);
    (both.start < both.end).then_some(both)
}

/// What remains of some ranges without another.
fn cut(ranges: Vec<Range<usize>>, away: &Range<usize>) -> Vec<Range<usize>> {
    let parts = |range: Range<usize>| {
        let before = range.start..range.end.min(away.start);
        let after = range.start.max(away.end)..range.end;
        [before, after].into_iter().filter(|part| part.start < part.end)
    };
    ranges.into_iter().flat_map(parts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Places {
        Places::new([100..200, 300..500].into_iter())
    }

    #[test]
    fn what_stays_is_where_it_was() {
        let places = two();
        assert_eq!(places.known(99), Known::Zero);
        assert_eq!(places.known(100), Known::Home(0, 100));
        assert_eq!(places.known(499), Known::Home(1, 499));
        assert_eq!(places.known(500), Known::Zero);
        assert_eq!(places.at(&(150..170)), At::Here(150, 20));
        assert_eq!(places.at(&(150..400)), At::Here(150, 50));
        assert_eq!(places.at(&(200..400)), At::Nowhere(100));
        assert_eq!(places.at(&(500..600)), At::Nowhere(100));
        assert_eq!(places.overlapping(&[0..100, 200..300, 500..600]), []);
        assert_eq!(places.overlapping(&[480..600, 0..101]), [0, 1]);
    }

    #[test]
    fn parts_are_moved_given_up_and_unmapped() {
        let mut places = two();
        places.moved(&(350..400), 1000);
        assert_eq!(places.known(1010), Known::Home(1, 360));
        assert_eq!(places.known(360), Known::Zero, "it has moved away");
        assert_eq!(places.at(&(340..500)), At::Here(340, 10));
        assert_eq!(places.at(&(350..500)), At::Here(1000, 50));
        assert_eq!(places.overlapping(&[0..0, 1049..1050]), [1]);
        // The kernel says after a move that the old place is unmapped.
        places.unmapped(&(350..400));
        assert_eq!(places.known(1010), Known::Home(1, 360));
        places.dropped(&(1020..1030));
        assert_eq!(places.known(1025), Known::Zero);
        assert_eq!(places.at(&(370..500)), At::Nowhere(10));
        assert_eq!(places.at(&(380..500)), At::Here(1030, 20));
        // It moves on, and what was given up with it.
        places.moved(&(1000..1050), 2000);
        assert_eq!(places.at(&(370..380)), At::Nowhere(10));
        assert_eq!(places.known(2025), Known::Zero);
        assert_eq!(places.at(&(380..500)), At::Here(2030, 20));
        places.unmapped(&(0..1000));
        assert_eq!(places.at(&(100..200)), At::Nowhere(100));
        assert_eq!(places.at(&(300..400)), At::Nowhere(50));
        assert_eq!(places.of(1).cloned().collect::<Vec<_>>(), [2000..2020, 2020..2030, 2030..2050]);
        assert_eq!(places.of(0).count(), 0);
    }

    #[test]
    fn a_region_that_is_whole_is_nobodys() {
        let mut places = two();
        places.moved(&(300..350), 1000);
        places.set_over(1);
        assert!(places.is_over(1) && !places.is_over(0));
        assert_eq!((places.of(1).count(), places.of(0).count()), (0, 1));
        assert_eq!(places.known(400), Known::Zero);
        // Its addresses are free for other memory, which moves on without it.
        places.moved(&(100..200), 400);
        assert_eq!(places.known(410), Known::Home(0, 110));
        places.moved(&(400..500), 2000);
        assert_eq!(places.known(2010), Known::Home(0, 110));
        assert_eq!(places.known(410), Known::Zero);
        assert_eq!(places.overlapping(&[0..9, 9..9000]), [0]);
    }

    #[test]
    fn what_has_come_to_a_place_is_not_what_leaves_it() {
        // It moves to where another region was: that one has moved on, or is unmapped.
        for another_moves in [false, true] {
            let mut places = two();
            places.moved(&(300..400), 100);
            assert_eq!(places.known(150), Known::Home(1, 350));
            if another_moves {
                places.moved(&(100..200), 1000);
                assert_eq!(places.at(&(100..200)), At::Here(1000, 100));
            }
            places.unmapped(&(100..150));
            places.unmapped(&(150..200));
            places.unmapped(&(300..400));
            assert_eq!(places.at(&(300..350)), At::Here(100, 50));
            assert_eq!(places.at(&(350..400)), At::Here(150, 50));
            assert_eq!(places.known(150), Known::Home(1, 350));
            if !another_moves {
                assert_eq!(places.at(&(100..200)), At::Nowhere(100));
            }
            // And is unmapped itself.
            places.unmapped(&(100..160));
            assert_eq!(places.at(&(300..350)), At::Nowhere(50));
            assert_eq!(places.at(&(350..400)), At::Nowhere(10));
            assert_eq!(places.at(&(360..400)), At::Here(160, 40));
        }
        // The place is told to be free only after something else has come there.
        let mut places = two();
        places.moved(&(100..200), 1000);
        places.moved(&(300..400), 100);
        places.unmapped(&(100..200));
        places.unmapped(&(300..400));
        assert_eq!(places.at(&(300..400)), At::Here(100, 100));
        places.unmapped(&(100..200));
        assert_eq!(places.at(&(300..400)), At::Nowhere(100));
    }

    /// A program of some threads, each of which waits until what it has caused is told.
    struct Program {
        /// By home, of 10 bytes each: where it is.
        truth: std::collections::BTreeMap<usize, usize>,
        free: Vec<usize>,
        waiting: Vec<std::collections::VecDeque<Told>>,
        places: Places,
    }

    #[derive(Clone, Copy)]
    enum Told {
        Moved(usize, usize),
        Unmapped(usize),
    }

    const LENGTH: usize = 10;

    impl Program {
        fn tell(&mut self, thread: usize) {
            match self.waiting[thread].pop_front() {
                Some(Told::Moved(from, to)) => self.places.moved(&(from..from + LENGTH), to),
                Some(Told::Unmapped(at)) => self.places.unmapped(&(at..at + LENGTH)),
                None => {}
            }
        }

        /// Whether it is still to be told that something has left the place, or come to it. A second one
        /// that leaves could not be told from the first; and who has not come yet is moved by nobody.
        fn is_changing(&self, at: usize) -> bool {
            let mut first = self.waiting.iter().filter_map(|told| told.front());
            first.any(|told| match told {
                Told::Moved(from, to) => *from == at || *to == at,
                Told::Unmapped(place) => *place == at,
            })
        }
    }

    #[test]
    fn whatever_the_order_of_two_threads_notices_everything_is_found() {
        use outlive_types::SeededRng;
        use std::collections::VecDeque;
        for seed in 0..3000 {
            let rng = SeededRng::new(seed);
            let luck = |below: usize| rng.next_u64() as usize % below;
            let homes: Vec<usize> = (0..6).map(|number| number * 100).collect();
            let places = Places::new(homes.iter().map(|home| *home..home + LENGTH));
            let truth = homes.iter().map(|home| (*home, *home)).collect();
            let free = vec![1000, 2000];
            let waiting = vec![VecDeque::new(); 3];
            let mut program = Program { truth, free, waiting, places };
            for _ in 0..60 {
                let thread = luck(3);
                let home = homes[luck(homes.len())];
                if !program.waiting[thread].is_empty() {
                    program.tell(thread);
                } else if let Some(at) = program.truth.get(&home).copied()
                    && !program.is_changing(at)
                {
                    if luck(5) > 0 {
                        let to = luck(program.free.len());
                        let to = std::mem::replace(&mut program.free[to], at);
                        program.truth.insert(home, to);
                        let told = [Told::Moved(at, to), Told::Unmapped(at)];
                        program.waiting[thread].extend(told);
                    } else {
                        program.truth.remove(&home);
                        program.free.push(at);
                        program.waiting[thread].push_back(Told::Unmapped(at));
                    }
                }
            }
            (0..9).for_each(|number| program.tell(number % 3));
            for home in &homes {
                let found = program.places.at(&(*home..home + LENGTH));
                let expected = match program.truth.get(home) {
                    Some(at) => At::Here(*at, LENGTH),
                    None => At::Nowhere(LENGTH),
                };
                assert_eq!(found, expected, "seed {seed}, home {home}");
            }
        }
    }
}
