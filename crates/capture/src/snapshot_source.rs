//! The plan of a freeze, once the changes are known: how each dirty run is snapshotted.

use crate::ahead::Ahead;
use crate::arena::Source;
use crate::fork::Mappings;
use crate::layout::Layout;
use crate::memory::Memory;
use crate::runs;
use outlive_types::{PAGE_BYTES, Run};
use std::ops::Range;

/// Location of a run's bytes until the image is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SnapshotSource {
    /// Immutable bytes, or the packed stream.
    Immutable,
    /// The program's memory, which the program does not write until the bytes are read.
    Live,
    /// A copy at this offset of the arena.
    Copied(usize),
    /// A forked child, at this address.
    Forked(usize),
    /// Pieces of the plan, from the first number to the second: the run is partly copied ahead.
    Pieces(u32, u32),
}

/// Part of a run, by its addresses in the program's memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HeldPiece {
    pub addresses: Range<usize>,
    /// Offset in the arena; `None`: its pages were copied ahead.
    pub copied: Option<usize>,
}

/// Other snapshots than copies, if there are any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Holders<'a> {
    /// Memory that a child freezes.
    pub fork: Option<&'a Mappings>,
    /// Pages copied ahead.
    pub ahead: Option<&'a Ahead>,
}

/// The memory of an image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImageMemory<'a> {
    pub layout: &'a Layout,
    /// The packed stream, if other processes are to read the image: then bytes that never change
    /// are held, too, as they are in the program's memory.
    pub shared: Option<&'a Memory>,
}

/// Bytes to copy to the arena, and bytes that stay where they are.
#[derive(Debug, Default)]
pub(crate) struct HoldPlan<'a> {
    /// Snapshot source of each run.
    pub holds: Vec<SnapshotSource>,
    /// Pieces of runs that consist of pieces; those of one run are adjacent and sorted by address.
    pub pieces: Vec<HeldPiece>,
    /// Runs before this one may be live; none after.
    pub live_runs: usize,
    /// Bytes for the arena, one after another.
    pub sources: Vec<Source<'a>>,
    /// Bytes of `sources`.
    pub copied_bytes: u64,
    /// Bytes copied ahead.
    pub ahead_bytes: u64,
    /// Bytes of forked runs.
    pub forked_bytes: u64,
    /// Bytes of live runs.
    pub live_bytes: u64,
}

impl<'a> HoldPlan<'a> {
    /// Leaves to `holders` the runs that they hold. Of the rest, copies as many of the last runs as
    /// fit into `bytes_max`: the live ones, which the store reads first, stay.
    pub fn new(
        image: ImageMemory<'a>,
        runs: &[Run],
        bytes_max: u64,
        holders: Holders<'_>,
    ) -> HoldPlan<'a> {
        let holds = vec![SnapshotSource::Immutable; runs.len()];
        let mut plan = HoldPlan { holds, ..HoldPlan::default() };
        let mut left_bytes = bytes_max;
        for (number, run) in runs.iter().enumerate().rev() {
            let Some((source, at)) = image.in_program(run) else { continue };
            let bytes = source.length as u64;
            if holders.fork.is_some_and(|fork| fork.is_frozen(at..at + source.length)) {
                plan.forked_bytes += bytes;
                plan.holds[number] = SnapshotSource::Forked(at);
                continue;
            }
            let pieces = plan.pieces.len();
            let ahead_bytes = plan.cut(at..at + source.length, holders.ahead);
            let to_copy = bytes - ahead_bytes;
            if plan.live_runs == 0 && to_copy <= left_bytes {
                left_bytes -= to_copy;
                plan.ahead_bytes += ahead_bytes;
                plan.copied_bytes += to_copy;
                plan.holds[number] = match ahead_bytes {
                    0 => SnapshotSource::Copied(0),
                    _ => SnapshotSource::Pieces(pieces as u32, plan.pieces.len() as u32),
                };
            } else if image.is_immutable(run) {
                // Its bytes stay for this process, but no other one can read them.
                plan.pieces.truncate(pieces);
            } else {
                plan.pieces.truncate(pieces);
                plan.live_runs = plan.live_runs.max(number + 1);
                plan.live_bytes += bytes;
                plan.holds[number] = SnapshotSource::Live;
            }
        }
        plan.place(image, runs);
        plan
    }

    /// Cuts a run into pieces, if some of it was copied ahead; returns the number of those bytes.
    fn cut(&mut self, run: Range<usize>, ahead: Option<&Ahead>) -> u64 {
        let Some(ahead) = ahead.filter(|ahead| ahead.copied_bytes() > 0) else { return 0 };
        let first = self.pieces.len();
        let (mut at, mut found) = (run.start, 0);
        while at < run.end {
            let page = at - at % PAGE_BYTES;
            let end = run.end.min(page + PAGE_BYTES);
            let is_ahead = ahead.page(page).is_some();
            // A piece to be copied gets its offset later.
            let copied = (!is_ahead).then_some(0);
            match self.pieces[first..].last_mut() {
                Some(last) if last.copied == copied => last.addresses.end = end,
                _ => self.pieces.push(HeldPiece { addresses: at..end, copied }),
            }
            found += if is_ahead { (end - at) as u64 } else { 0 };
            at = end;
        }
        if found == 0 {
            self.pieces.truncate(first);
        }
        found
    }

    /// Gives the runs to be copied their offsets in the arena, in the order of the runs.
    fn place(&mut self, image: ImageMemory<'a>, runs: &[Run]) {
        let mut end = 0;
        for (run, hold) in runs.iter().zip(&mut self.holds) {
            let Some((source, at)) = image.in_program(run) else { continue };
            match hold {
                SnapshotSource::Copied(place) => {
                    *place = end;
                    end += source.length;
                    self.sources.push(source);
                }
                SnapshotSource::Pieces(from, to) => {
                    for piece in &mut self.pieces[*from as usize..*to as usize] {
                        let Some(place) = &mut piece.copied else { continue };
                        let (offset, length) = (piece.addresses.start - at, piece.addresses.len());
                        *place = end;
                        end += length;
                        let offset = source.offset + offset;
                        self.sources.push(Source { offset, length, ..source });
                    }
                }
                SnapshotSource::Immutable | SnapshotSource::Live | SnapshotSource::Forked(_) => {}
            }
        }
    }
}

/// Returns the addresses of runs that a child holds, sorted and disjoint: regions may overlap.
pub(crate) fn forked(runs: &[Run], holds: &[SnapshotSource], layout: &Layout) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for (run, hold) in runs.iter().zip(holds) {
        let &SnapshotSource::Forked(at) = hold else { continue };
        let (_, length) = runs::extent(run, layout.streams[run.stream as usize].bytes);
        found.push(at..at + length);
    }
    found.sort_unstable_by_key(|part| part.start);
    let mut apart: Vec<Range<usize>> = Vec::new();
    for part in found {
        match apart.last_mut() {
            Some(last) if part.start <= last.end => last.end = last.end.max(part.end),
            _ => apart.push(part),
        }
    }
    apart
}

/// Bytes of runs in the program's memory that a fork would not freeze.
pub(crate) fn unfrozen_bytes(image: ImageMemory<'_>, runs: &[Run], fork: &Mappings) -> u64 {
    let sources = runs.iter().filter_map(|run| image.in_program(run));
    let unfrozen = sources.filter(|(source, at)| !fork.is_frozen(*at..at + source.length));
    unfrozen.map(|(source, _)| source.length as u64).sum()
}

impl<'a> ImageMemory<'a> {
    /// Whether the program never changes the bytes of a run, or they are a copy.
    fn is_immutable(self, run: &Run) -> bool {
        self.layout.memory(run.stream as usize).and_then(Memory::place).is_none()
    }

    /// Returns the source and address of a run, if it is to be held.
    fn in_program(self, run: &Run) -> Option<(Source<'a>, usize)> {
        let memory = self.layout.memory(run.stream as usize);
        let (memory, start) = match self.shared {
            Some(packed) => {
                let memory = memory.unwrap_or(packed);
                (memory, memory.bytes().as_ptr().addr())
            }
            None => (memory?, memory?.place()?.start),
        };
        let (offset, length) = runs::extent(run, memory.length() as u64);
        Some((Source { memory, offset, length }, start + offset))
    }
}

/// Gathers `addresses` of a run that consists of `pieces`, from `arena` and from the copies ahead,
/// into `into`, which has their length.
pub(crate) fn gather(
    pieces: &[HeldPiece],
    addresses: Range<usize>,
    arena: &[u8],
    ahead: &Ahead,
    mut into: &mut [u8],
) {
    let first = pieces.partition_point(|piece| piece.addresses.end <= addresses.start);
    for piece in &pieces[first..] {
        let (start, end) =
            (piece.addresses.start.max(addresses.start), piece.addresses.end.min(addresses.end));
        let mut at = start;
        while at < end {
            let (from, length) = match piece.copied {
                Some(place) => (&arena[place + at - piece.addresses.start..], end - at),
                None => {
                    let inside = at % PAGE_BYTES;
                    let page = ahead.page(at - inside).expect("the plan saw this copy");
                    (&page[inside..], (PAGE_BYTES - inside).min(end - at))
                }
            };
            let (now, later) = std::mem::take(&mut into).split_at_mut(length);
            now.copy_from_slice(&from[..length]);
            (into, at) = (later, at + length);
        }
    }
}
