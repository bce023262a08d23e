//! Current addresses of memory that is being filled. A program may move it (`mremap`), drop its
//! content (`MADV_DONTNEED`, `MADV_FREE`) or unmap it, whole or in parts.
//!
//! A fill refers to *homes*, the addresses at which memory was registered. The table says where
//! each lies now, and which of it is not to be filled any more. Only notices of the kernel change
//! it. Until a notice is read, the thread that caused it waits, and the kernel places no pages.
//!
//! Memory changes before its notice is read, so the notices of two threads may come in the wrong
//! order. Then a piece arrives where, by the table, another piece still is. That other piece counts
//! as gone, and the next notice that something left this address is about it.

use std::ops::Range;

/// Adjacent memory with one history.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HomePiece {
    /// Number of the region.
    region: usize,
    home: usize,
    at: Range<usize>,
    /// Whether the program dropped it: missing pages are zero.
    dropped: bool,
    /// Whether another piece is at its address: the notice of its new address is still to come.
    gone: bool,
}

impl HomePiece {
    fn home(&self) -> Range<usize> {
        self.home..self.home + self.at.len()
    }
}

/// Known facts about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The address belongs to this region, and has this home.
    Home(usize, usize),
    /// A missing page is zero. The memory was dropped, became part of a mapping since, or belongs
    /// to a region that is whole.
    Zero,
}

/// Location of the first bytes of a range of homes, with their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// At this address, and to be filled.
    Here(usize, usize),
    /// Nowhere that is to be filled.
    Nowhere(usize),
}

/// The table of all regions of one restore.
#[derive(Debug)]
pub(super) struct AddressMap {
    /// Pieces by home; disjoint, and so by region. It has none of a region that is whole: other
    /// regions may have its memory.
    pieces: Vec<HomePiece>,
    /// Whether each region is whole.
    over: Vec<bool>,
    any_moved: bool,
    /// Old addresses of moved memory that the kernel has not yet reported as unmapped. It reports
    /// them before or after something else comes to that address. A move that unmaps nothing
    /// (`MREMAP_DONTUNMAP`) is different. There the report comes once the program unmaps the
    /// emptied memory, or moves it on. One entry stands for one such notice: a second entry would
    /// consume a notice about something else.
    left: Vec<Range<usize>>,
}

impl AddressMap {
    /// Returns the table of regions at their registered addresses; ascending and disjoint.
    pub fn new(regions: impl Iterator<Item = Range<usize>>) -> AddressMap {
        let piece = |(region, at): (usize, Range<usize>)| {
            let home = at.start;
            HomePiece { region, home, at, dropped: false, gone: false }
        };
        let pieces: Vec<HomePiece> = regions.enumerate().map(piece).collect();
        AddressMap { over: vec![false; pieces.len()], pieces, any_moved: false, left: Vec::new() }
    }

    pub fn is_over(&self, region: usize) -> bool {
        self.over[region]
    }

    /// Notes that a region is whole, and registered nowhere any more: drops its pieces.
    pub fn set_over(&mut self, region: usize) {
        self.over[region] = true;
        let pieces = self.pieces_of(region);
        self.pieces.drain(pieces);
    }

    /// Returns the origin of the page that a thread at `address` waits for.
    pub fn known(&self, address: usize) -> Origin {
        let found = if self.any_moved {
            self.pieces.iter().find(|piece| !piece.gone && piece.at.contains(&address))
        } else {
            let at = self.pieces.partition_point(|piece| piece.at.end <= address);
            self.pieces.get(at).filter(|piece| piece.at.contains(&address))
        };
        match found {
            Some(piece) if !piece.dropped => {
                Origin::Home(piece.region, piece.home + (address - piece.at.start))
            }
            _ => Origin::Zero,
        }
    }

    /// Returns the location of the beginning of a range of homes. The range is not empty.
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

    /// Returns all current address ranges of a region.
    pub fn of(&self, region: usize) -> impl Iterator<Item = &Range<usize>> {
        self.pieces[self.pieces_of(region)].iter().map(|piece| &piece.at)
    }

    fn pieces_of(&self, region: usize) -> Range<usize> {
        let first = self.pieces.partition_point(|piece| piece.region < region);
        first..self.pieces.partition_point(|piece| piece.region <= region)
    }

    /// Returns the regions that have memory at these addresses and are not whole; each once.
    pub fn overlapping(&self, parts: &[Range<usize>]) -> Vec<usize> {
        let overlaps = |piece: &&HomePiece| {
            let at = &piece.at;
            parts.iter().any(|part| part.start < at.end && at.start < part.end)
        };
        let mut found: Vec<usize> =
            self.pieces.iter().filter(overlaps).map(|piece| piece.region).collect();
        found.dedup();
        found
    }

    /// Records that the program has moved the memory at `from`.
    pub fn moved(&mut self, from: &Range<usize>, to: usize) {
        self.any_moved = true;
        self.change(&(to..to + from.len()), |piece| {
            piece.gone = true;
            true
        });
        let mut parts = Vec::new();
        self.leave(from, |piece| {
            parts.push(piece.at.clone());
            piece.at = piece.at.start - from.start + to..piece.at.end - from.start + to;
            piece.gone = false;
            true
        });
        // The rest was empty. If an earlier move has emptied it, its entry exists already.
        let rest = parts.iter().chain(&self.left).fold(vec![from.clone()], cut);
        self.left.extend(parts.into_iter().chain(rest));
    }

    /// Records that the program has dropped the content of a range.
    pub fn dropped(&mut self, range: &Range<usize>) {
        self.change(range, |piece| {
            piece.dropped |= !piece.gone;
            true
        });
    }

    /// Records that the program has unmapped a range.
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

    /// Changes the pieces that leave these addresses. Where some are gone already, it changes
    /// those, and not the pieces that came there since.
    fn leave(&mut self, range: &Range<usize>, mut change: impl FnMut(&mut HomePiece) -> bool) {
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

    /// Changes the pieces within these addresses, and removes those for which `change` returns
    /// false.
    fn change(&mut self, range: &Range<usize>, mut change: impl FnMut(&mut HomePiece) -> bool) {
        let mut pieces = Vec::with_capacity(self.pieces.len() + 2);
        for piece in self.pieces.drain(..) {
            let (start, end) = (range.start.max(piece.at.start), range.end.min(piece.at.end));
            if start >= end {
                pieces.push(piece);
                continue;
            }
            let part = |at: Range<usize>| HomePiece {
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

/// Returns the rest of some ranges without another.
fn cut(ranges: Vec<Range<usize>>, away: &Range<usize>) -> Vec<Range<usize>> {
    let parts = |range: Range<usize>| {
        let before = range.start..range.end.min(away.start);
        let after = range.start.max(away.end)..range.end;
        [before, after].into_iter().filter(|part| part.start < part.end)
    };
    ranges.into_iter().flat_map(parts).collect()
}

#[cfg(test)]
mod tests;
