//! Copies whole data out of damaged packs, and finds the rest in other packs. Data that it finds in
//! neither way is lost.

use super::heal::Heal;
use super::listed::{Form, PackExtents, SegmentContents};
use crate::index::{Locator, ReadItem};
use crate::read::{ReadPlan, Verified};
use crate::save::{Lane, Packer};
use crate::verify::is_damage;
use outlive_format::EntryKind;
use outlive_pool::PackExtent;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Fingerprint, Result};
use std::collections::{HashMap, HashSet};

/// An object that a bad pack lists, and its extent: there, or as a whole chunk elsewhere.
#[derive(Clone, Copy)]
struct Wanted {
    form: Form,
    kind: EntryKind,
    item: ReadItem,
}

impl Wanted {
    fn new(form: Form, kind: EntryKind, extent: PackExtent) -> Wanted {
        Wanted { form, kind, item: ReadItem { fp: form.0, extent } }
    }

    /// Orders chunks before nodes, each by extent.
    fn order(&self) -> (bool, PackExtent) {
        (self.kind != EntryKind::Chunk, self.item.extent)
    }
}

impl Heal<'_> {
    /// Takes care of the objects that bad packs list: finds each elsewhere, or copies it if it is
    /// whole.
    pub(super) fn save(&mut self, listed: &SegmentContents, write: bool) -> Result<()> {
        let is_new = |form: &Form, extent: &PackExtent| {
            self.bad.contains(&extent.pack)
                && !self.found.contains_key(form)
                && !self.lost.contains(form)
        };
        let mut wanted: PackExtents = listed
            .extents
            .iter()
            .filter(|(form, (_, extent))| is_new(form, extent))
            .map(|(form, there)| (*form, *there))
            .collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let spare = self.find_elsewhere(&mut wanted)?;
        let mut entries: Vec<Wanted> = wanted
            .into_iter()
            .map(|(form, (kind, extent))| Wanted::new(form, kind, extent))
            .collect();
        entries.sort_by_key(Wanted::order);
        let mut lost = self.copy(&entries, write)?;
        let extent_of =
            |one: &Wanted| Some(Wanted::new(one.form, one.kind, *spare.get(&one.form)?));
        let second: Vec<Wanted> = lost.iter().filter_map(extent_of).collect();
        if !second.is_empty() {
            lost.retain(|one| !spare.contains_key(&one.form));
            lost.extend(self.copy(&second, write)?);
        }
        self.report.lost += lost.len() as u64;
        self.lost.extend(lost.into_iter().map(|one| one.form));
        Ok(())
    }

    /// Reads the directories of good packs, and checks that the objects that they list are there.
    /// An object in a pack that a job names can stay. Returns the extents in other packs, which a
    /// gc may delete at any moment. A whole chunk serves for its slices.
    fn find_elsewhere(&mut self, wanted: &mut PackExtents) -> Result<HashMap<Form, PackExtent>> {
        let mut forms: HashMap<Fingerprint, Vec<(Form, EntryKind)>> = HashMap::new();
        for (form, (kind, _)) in wanted.iter() {
            forms.entry(form.0).or_default().push((*form, *kind));
        }
        let mut others: Vec<Wanted> = Vec::new();
        for pack in &self.good {
            let directory = match self.pool.directory_of(*pack) {
                Ok((directory, _)) => directory,
                Err(error) if is_damage(&error) => continue,
                Err(error) => return Err(error),
            };
            for entry in &directory.entries {
                let extent = PackExtent::of(*pack, entry);
                for (form, kind) in forms.get(&entry.fp).into_iter().flatten() {
                    let is_same = entry.kind.slice() == form.1 && entry.kind.is_resolved();
                    if entry.kind == *kind || is_same && entry.kind.is_content() {
                        others.push(Wanted::new(*form, *kind, extent));
                    }
                }
            }
        }
        let items: Vec<ReadItem> = others.iter().map(|other| other.item).collect();
        let whole = Mutex::new(Vec::new());
        let take = |at: usize, there: Verified<'_>| {
            self.pace.spend(there.stored.len() as u64);
            whole.lock().push(others[at]);
            Ok(())
        };
        let faults = ReadPlan::new(self.pool, &items).execute(self.pool, 1, true, &take);
        other_than_damage(faults.into_iter().map(|fault| fault.error))?;
        let whole = whole.into_inner();
        let (stay, go): (Vec<Wanted>, Vec<Wanted>) =
            whole.into_iter().partition(|other| self.named.contains(&other.item.extent.pack));
        for other in stay {
            if wanted.remove(&other.form).is_some() {
                self.found.insert(other.form, other.item.extent);
                self.report.found_elsewhere += 1;
            }
        }
        Ok(go.into_iter().map(|other| (other.form, other.item.extent)).collect())
    }

    /// Copies whole objects, chunks first. Returns the others.
    fn copy(&mut self, entries: &[Wanted], write: bool) -> Result<Vec<Wanted>> {
        let total_bytes: u64 = entries.iter().map(|one| u64::from(one.item.extent.length)).sum();
        let packer = Packer::new(self.pool, &self.packs, total_bytes);
        let split = entries.partition_point(|one| one.kind == EntryKind::Chunk);
        let mut lost = Vec::new();
        let mut whole = Vec::new();
        for part in [&entries[..split], &entries[split..]] {
            let wanted: Vec<ReadItem> = part.iter().map(|one| one.item).collect();
            let lane = write.then(|| packer.lane());
            let sink: Mutex<(Option<Lane<'_>>, Option<Error>)> = Mutex::new((lane, None));
            let take = |at: usize, there: Verified<'_>| {
                let bytes = there.stored;
                self.pace.spend(bytes.len() as u64);
                let ReadItem { fp, extent } = wanted[at];
                let kind = extent.slice.map_or(part[at].kind, EntryKind::Slice);
                let mut sink = sink.lock();
                let (lane, fault) = &mut *sink;
                let stored = match lane {
                    None => Ok(()),
                    Some(lane) if kind.is_content() => lane.append_as(bytes, fp, kind),
                    Some(_) => packer.append(bytes, fp, kind).map(|_| ()),
                };
                // A failure here is one of writing, not one of the pack that is read.
                stored.inspect_err(|error| {
                    fault.get_or_insert_with(|| error.clone());
                })
            };
            let faults = ReadPlan::new(self.pool, &wanted)
                .beside_writes()
                .execute(self.pool, 1, true, &take);
            let (lane, fault) = sink.into_inner();
            if let Some(fault) = fault {
                return Err(fault);
            }
            let bad: HashSet<usize> = faults.iter().map(|fault| fault.wanted).collect();
            other_than_damage(faults.into_iter().map(|fault| fault.error))?;
            for (at, one) in part.iter().enumerate() {
                if bad.contains(&at) { lost.push(*one) } else { whole.push(*one) }
            }
            if let Some(lane) = lane {
                lane.finish()?;
                packer.join_lanes()?;
            }
        }
        let packed = packer.close()?;
        let extents = Locator::load(self.pool, &packed.own)?;
        for Wanted { form, item: ReadItem { fp, extent }, .. } in whole {
            let is_bad = self.bad.contains(&extent.pack);
            let copy = || extents.forms(&fp).find(|now| now.slice == extent.slice);
            let now = if write { copy().map_or_else(|| extents.find(&fp), Ok)? } else { extent };
            self.found.insert(form, now);
            match is_bad {
                true => self.report.moved += 1,
                false => self.report.found_elsewhere += 1,
            }
            self.report.moved_bytes += u64::from(extent.length);
        }
        Ok(lost)
    }
}

/// Returns the first error that is no damage: a target that cannot be read has lost nothing yet.
fn other_than_damage(errors: impl Iterator<Item = Error>) -> Result<()> {
    errors.into_iter().find(|error| !is_damage(error)).map_or(Ok(()), Err)
}
