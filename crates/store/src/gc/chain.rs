//! Finds what each checkpoint of a chain needs. From one to the next it looks only at the
//! differences: it holds the subtrees that both have, and releases those that no later one has.

use super::chains::at_fault;
use super::chains::{RankLine, inline_segments, lines};
use super::mark::{live_of, load, stored_apart};
use super::pack_marks::PackMarks;
use super::share::{HeldEntry, Shares};
use super::survey::JobState;
use crate::images::only_image;
use crate::index::{FingerprintRange, Locator, Pages};
use crate::read::{Live, Lost, NeedsVisitor, Subtree};
use outlive_format::Manifest;
use outlive_pool::{PackExtent, Pool};
use outlive_types::{Epoch, Error, ErrorKind, Fingerprint, PackId, Result};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Findings about a chain, besides its shares.
#[derive(Debug, Default)]
pub struct LineReport {
    /// Checkpoints that cannot be read.
    pub unknown: BTreeMap<Epoch, Error>,
    /// Packs that its segments name or lie in.
    pub named: HashSet<PackId>,
}

/// Counts the needs of each of `kept`, checkpoints of one rank of a job, oldest first. Each is the
/// next unit of `shares`.
///
/// # Errors
/// Errors of targets and log, except damage.
pub fn line(
    pool: &Pool,
    packs: &mut HashMap<PackId, PackMarks>,
    shares: &mut Shares,
    job: &JobState,
    kept: &[&Manifest],
) -> Result<LineReport> {
    let first_unit = shares.at_work() + 1;
    kept.iter().for_each(|_| shares.next_unit());
    // A gc looks for pack extents in this order.
    let newest_first: Vec<&Manifest> = kept.iter().rev().copied().collect();
    let segments = inline_segments(&newest_first);
    let mut found = LineReport::default();
    found.named.extend(segments.iter().map(|segment| segment.pack));
    for part in FingerprintRange::of(&segments, pool.config().tuning.index_bytes_max) {
        let mut walk = |units: &[&Manifest], first_unit, found: &mut LineReport| {
            let newest_first: Vec<&Manifest> = units.iter().rev().copied().collect();
            let of_them = lines(pool, job, &newest_first).map_err(|(_, error)| error)?;
            let nothing = RankLine::default();
            let locator = load(pool, job, of_them.first().unwrap_or(&nothing), part)?;
            found.named.extend(locator.packs());
            let mut line = Line::new(pool, packs, shares, &locator, part);
            for (unit, manifest) in (first_unit..).zip(units) {
                if let Err(error) = line.next(job, manifest, unit) {
                    line.leave_all(unit);
                    let error = damage(error)?;
                    found
                        .unknown
                        .insert(manifest.epoch, at_fault(pool, job, manifest.epoch, error));
                }
            }
            line.leave_all(first_unit + units.len() as u32 - 1);
            Ok(())
        };
        let Err(error) = walk(kept, first_unit, &mut found) else { continue };
        damage(error)?;
        // One of their segments cannot be read: take each checkpoint by itself.
        for (unit, manifest) in (first_unit..).zip(kept) {
            if let Err(error) = walk(&[manifest], unit, &mut found) {
                let error = at_fault(pool, job, manifest.epoch, damage(error)?);
                found.unknown.insert(manifest.epoch, error);
            }
        }
    }
    Ok(found)
}

fn damage(error: Error) -> Result<Error> {
    if error.kind() == ErrorKind::Damaged { Ok(error) } else { Err(error) }
}

/// Needs of a checkpoint or a subtree.
#[derive(Default)]
struct Needed {
    /// Number of checkpoints and subtrees that need it.
    by: u32,
    entries: Vec<HeldEntry>,
    subtrees: Vec<Subtree>,
}

struct Line<'a> {
    pool: &'a Pool,
    packs: &'a mut HashMap<PackId, PackMarks>,
    shares: &'a mut Shares,
    locator: &'a Locator,
    part: FingerprintRange,
    /// Subtrees of the current checkpoint and of the one before it.
    subtrees: HashMap<Subtree, Needed>,
    before: Needed,
    at_work: Needed,
    is_incomplete: bool,
}

impl<'a> Line<'a> {
    fn new(
        pool: &'a Pool,
        packs: &'a mut HashMap<PackId, PackMarks>,
        shares: &'a mut Shares,
        locator: &'a Locator,
        part: FingerprintRange,
    ) -> Line<'a> {
        let (before, at_work) = (Needed::default(), Needed::default());
        let subtrees = HashMap::new();
        Line { pool, packs, shares, locator, part, subtrees, before, at_work, is_incomplete: false }
    }

    /// Holds what a checkpoint needs, then releases what only the one before it needs.
    fn next(&mut self, job: &JobState, manifest: &Manifest, unit: u32) -> Result<()> {
        self.shares.go_to(unit);
        self.before = std::mem::take(&mut self.at_work);
        if self.part.is_first() {
            for extent in stored_apart(&only_image(manifest)?.segments) {
                self.hold(extent, Pages::Whole, None);
            }
        }
        // Missing data of an incomplete checkpoint keeps nothing alive.
        self.is_incomplete = job.incomplete.contains(&manifest.epoch);
        let mut lost = |_: Fingerprint| ();
        let lost: Lost<'_> = self.is_incomplete.then_some(&mut lost);
        let image = only_image(manifest)?.reference;
        let walked = live_of(self.pool, self.locator, &image, self, lost);
        let before = std::mem::take(&mut self.before);
        self.leave(before, unit - 1);
        self.shares.needs_what_is_held();
        walked
    }

    /// Releases all that is held; `unit` is the last unit that needs it.
    fn leave_all(&mut self, unit: u32) {
        let at_work = std::mem::take(&mut self.at_work);
        self.leave(at_work, unit);
    }

    fn leave(&mut self, needed: Needed, unit: u32) {
        let mut gone = vec![needed];
        while let Some(needed) = gone.pop() {
            needed.entries.into_iter().for_each(|held| self.shares.release(held, unit));
            for subtree in needed.subtrees {
                let Some(below) = self.subtrees.get_mut(&subtree) else { continue };
                below.by -= 1;
                if below.by == 0 {
                    gone.extend(self.subtrees.remove(&subtree));
                }
            }
        }
    }

    fn hold(&mut self, extent: PackExtent, pages: Pages, of: Option<Subtree>) {
        let Some(pack) = self.packs.get_mut(&extent.pack) else { return };
        let Some((at, bytes)) = pack.mark_for_any(&extent, pages) else { return };
        let held = self.shares.hold(extent.pack, pack.entries(), at, bytes);
        self.needed(of).entries.push(held);
    }

    fn needed(&mut self, of: Option<Subtree>) -> &mut Needed {
        match of {
            Some(subtree) => self.subtrees.entry(subtree).or_default(),
            None => &mut self.at_work,
        }
    }
}

impl NeedsVisitor for Line<'_> {
    fn enter(&mut self, subtree: Subtree, of: Option<Subtree>) -> bool {
        self.needed(of).subtrees.push(subtree);
        let entered = self.subtrees.entry(subtree).or_default();
        entered.by += 1;
        entered.by == 1
    }

    fn add(&mut self, of: Subtree, live: Live) -> Result<()> {
        match live {
            // Each part reads all nodes, but only the first counts them.
            Live::Node(node) if self.part.is_first() => {
                self.hold(node.extent, Pages::Whole, Some(of))
            }
            Live::Chunk(fp, pages) if self.part.holds(&fp) => {
                match self.locator.find_pages(&fp, pages) {
                    Err(_) if self.is_incomplete => {}
                    extent => self.hold(extent?, pages, Some(of)),
                }
            }
            _ => {}
        }
        Ok(())
    }
}
