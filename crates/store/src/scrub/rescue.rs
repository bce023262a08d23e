//! Copies what is whole out of damaged packs, and looks for the rest in others; what is found neither
//! way is lost.

use super::heal::Heal;
use super::listed::SegmentContents;
use crate::index::Locator;
use crate::index::ReadItem;
use crate::read::ReadPlan;
use crate::save::{Lane, Packer};
use crate::verify::is_damage;
use outlive_format::EntryKind;
use outlive_pool::Place;
use outlive_types::{Error, Fingerprint, Result};
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

impl Heal<'_> {
    /// Takes care of what is listed in bad packs: finds it elsewhere, or copies it if it is whole.
    pub(super) fn save(&mut self, listed: &SegmentContents, write: bool) -> Result<()> {
        let is_new = |fp: &Fingerprint, place: &Place| {
            self.bad.contains(&place.pack)
                && !self.found.contains_key(fp)
                && !self.lost.contains(fp)
        };
        let mut wanted: HashMap<Fingerprint, (EntryKind, Place)> = listed
            .places
            .iter()
            .filter(|(fp, (_, place))| is_new(fp, place))
            .map(|(fp, there)| (*fp, *there))
            .collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let spare = self.find_elsewhere(&mut wanted)?;
        let mut entries: Vec<(EntryKind, ReadItem)> =
            wanted.into_iter().map(|(fp, (kind, place))| (kind, ReadItem { fp, place })).collect();
        entries.sort_by_key(|(kind, wanted)| (*kind, wanted.place));
        let mut lost = self.copy(&entries, write)?;
        let place_of = |(kind, fp): &(EntryKind, Fingerprint)| {
            spare.get(fp).map(|place| (*kind, ReadItem { fp: *fp, place: *place }))
        };
        let second: Vec<_> = lost.iter().filter_map(place_of).collect();
        if !second.is_empty() {
            lost.retain(|(_, fp)| !spare.contains_key(fp));
            lost.extend(self.copy(&second, write)?);
        }
        self.report.lost += lost.len() as u64;
        self.lost.extend(lost.into_iter().map(|(_, fp)| fp));
        Ok(())
    }

    /// Looks into the directories of good packs, and makes sure that what they list is there. In a pack
    /// that a job names it can stay. Answers what lies in others: they may be deleted at any moment.
    fn find_elsewhere(
        &mut self,
        wanted: &mut HashMap<Fingerprint, (EntryKind, Place)>,
    ) -> Result<HashMap<Fingerprint, Place>> {
        let mut others: Vec<ReadItem> = Vec::new();
        for pack in &self.good {
            let directory = match self.pool.directory_of(*pack) {
                Ok((directory, _)) => directory,
                Err(error) if is_damage(&error) => continue,
                Err(error) => return Err(error),
            };
            for entry in &directory.entries {
                if wanted.get(&entry.fp).is_some_and(|(kind, _)| *kind == entry.kind) {
                    let (offset, length, frame) = (entry.offset, entry.length, entry.frame);
                    let place = Place { pack: *pack, offset, length, frame };
                    others.push(ReadItem { fp: entry.fp, place });
                }
            }
        }
        let whole = Mutex::new(Vec::new());
        let take = |at: usize, bytes: &[u8]| {
            self.pace.spend(bytes.len() as u64);
            whole.lock().unwrap_or_else(PoisonError::into_inner).push(others[at]);
            Ok(())
        };
        let faults = ReadPlan::new(self.pool, &others).execute(self.pool, 1, true, &take);
        other_than_damage(faults.into_iter().map(|fault| fault.error))?;
        let whole = whole.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (stay, go): (Vec<ReadItem>, Vec<ReadItem>) =
            whole.into_iter().partition(|other| self.named.contains(&other.place.pack));
        for other in stay {
            if wanted.remove(&other.fp).is_some() {
                self.found.insert(other.fp, other.place);
                self.report.mended += 1;
            }
        }
        Ok(go.into_iter().map(|other| (other.fp, other.place)).collect())
    }

    /// Copies what is whole, chunks first. Answers the rest.
    fn copy(
        &mut self,
        entries: &[(EntryKind, ReadItem)],
        write: bool,
    ) -> Result<Vec<(EntryKind, Fingerprint)>> {
        let total_bytes: u64 = entries.iter().map(|(_, w)| u64::from(w.place.length)).sum();
        let packer = Packer::new(self.pool, &self.packs, total_bytes);
        let split = entries.partition_point(|(kind, _)| *kind == EntryKind::Chunk);
        let mut lost = Vec::new();
        let mut whole = Vec::new();
        for part in [&entries[..split], &entries[split..]] {
            let wanted: Vec<ReadItem> = part.iter().map(|(_, wanted)| *wanted).collect();
            let lane = write.then(|| packer.lane());
            let sink: Mutex<(Option<Lane<'_>>, Option<Error>)> = Mutex::new((lane, None));
            let take = |at: usize, bytes: &[u8]| {
                self.pace.spend(bytes.len() as u64);
                let (kind, fp) = (part[at].0, wanted[at].fp);
                let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
                let (lane, fault) = &mut *sink;
                let stored = match lane {
                    None => Ok(()),
                    Some(lane) if kind == EntryKind::Chunk => lane.append(bytes, fp),
                    Some(_) => packer.append(bytes, fp, kind).map(|_| ()),
                };
                // What fails here is our writing, not the pack that is read.
                stored.inspect_err(|error| {
                    fault.get_or_insert_with(|| error.clone());
                })
            };
            let faults = ReadPlan::new(self.pool, &wanted)
                .beside_writes()
                .execute(self.pool, 1, true, &take);
            let (lane, fault) = sink.into_inner().unwrap_or_else(PoisonError::into_inner);
            if let Some(fault) = fault {
                return Err(fault);
            }
            let bad: HashSet<usize> = faults.iter().map(|fault| fault.wanted).collect();
            other_than_damage(faults.into_iter().map(|fault| fault.error))?;
            for (at, wanted) in wanted.iter().enumerate() {
                match bad.contains(&at) {
                    true => lost.push((part[at].0, wanted.fp)),
                    false => whole.push(*wanted),
                }
            }
            if let Some(lane) = lane {
                lane.finish()?;
                packer.join_lanes()?;
            }
        }
        let packed = packer.close()?;
        let places = Locator::load(self.pool, &packed.own)?;
        for ReadItem { fp, place } in whole {
            let is_bad = self.bad.contains(&place.pack);
            let now = if write { places.find(&fp)? } else { place };
            self.found.insert(fp, now);
            match is_bad {
                true => self.report.moved += 1,
                false => self.report.mended += 1,
            }
            self.report.moved_bytes += u64::from(place.length);
        }
        Ok(lost)
    }
}

/// A medium that cannot be asked has lost nothing yet.
fn other_than_damage(errors: impl Iterator<Item = Error>) -> Result<()> {
    errors.into_iter().find(|error| !is_damage(error)).map_or(Ok(()), Err)
}
