//! A job's records, newest first.

use outlive_format::{Archive, Body, Images, Manifest, Record, Remarks, fingerprint};
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, ErrorKind, Fingerprint, JobName, Result};
use std::collections::{HashMap, HashSet, VecDeque};

/// A record of the log, as far as it can be read. A manifest that an archive keeps is an entry of
/// its own, after the archive's, as if its record still existed.
#[derive(Debug)]
pub struct Entry {
    /// Number of the record, or of the archive that keeps it.
    pub number: u64,
    /// The record, or the error of reading it.
    pub record: Result<Record>,
    /// Length of its bytes; 0 for a manifest in an archive.
    pub bytes: u64,
    /// Fingerprint of its bytes, whole or not; zero for a manifest in an archive, or if it is
    /// missing.
    pub fp: Fingerprint,
    /// Whether an archive lists this checkpoint as incomplete.
    pub incomplete: bool,
}

impl Entry {
    /// Returns the damage of the record, if it is damaged.
    pub fn damage(&self) -> Option<&Error> {
        self.record.as_ref().err().filter(|error| error.kind() == ErrorKind::Damaged)
    }

    /// Returns this entry, whole or damaged.
    ///
    /// # Errors
    /// The error of reading it, unless that is damage of the record.
    pub fn unless_unread(self) -> Result<Entry> {
        match self.record {
            Err(error) if error.kind() != ErrorKind::Damaged => Err(error),
            _ => Ok(self),
        }
    }

    /// Returns whether this is a whole record other than the one with the fingerprint `fp`. A
    /// record that cannot be read may be that one.
    pub fn is_other_than(&self, fp: Fingerprint) -> bool {
        self.record.is_ok() && !self.fp.is_zero() && self.fp != fp
    }

    /// Returns the manifest, if this is one and can be read.
    pub fn manifest(&self) -> Option<&Manifest> {
        match &self.record {
            Ok(Record { body: Body::Manifest(manifest), .. }) => Some(manifest),
            _ => None,
        }
    }
}

/// Iterates over a log.
pub struct History<'a> {
    pool: &'a Pool,
    job: &'a JobName,
    /// Ascending; the next record is the last one.
    numbers: Vec<u64>,
    /// The number that the next record must have, since records are removed from the oldest on, and
    /// only before an archive; 0 before the first record and after an archive.
    expected: u64,
    /// Manifests of the archive that was reached, newest first.
    archived: VecDeque<Entry>,
    /// Remarks from later notes.
    notes: HashMap<Epoch, Remarks>,
    /// Epochs that were dropped.
    dropped: HashSet<Epoch>,
    /// Epoch of the last manifest that was returned.
    lowest: Epoch,
}

/// Reads the job's records one by one, newest first. The manifests already have the remarks of
/// later notes, and the iterator omits checkpoints that a later prune has dropped.
///
/// # Errors
/// Errors of listing the log; damaged records are [`Entry`]s.
pub fn history<'a>(pool: &'a Pool, job: &'a JobName) -> Result<History<'a>> {
    let numbers = pool.log().numbers(job)?;
    let (archived, notes, dropped) = Default::default();
    Ok(History { pool, job, numbers, expected: 0, archived, notes, dropped, lowest: Epoch::MAX })
}

impl Iterator for History<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        loop {
            let entry = self.step()?;
            if !self.is_dropped(&entry) {
                return Some(entry);
            }
        }
    }
}

impl History<'_> {
    /// Returns the next entry, dropped or not, for callers that count the records read.
    pub fn step(&mut self) -> Option<Entry> {
        let entry = match self.archived.pop_front() {
            Some(entry) => entry,
            None => self.next_record()?,
        };
        Some(self.met(entry))
    }

    /// Returns whether a later prune has dropped the checkpoint that an entry holds.
    pub fn is_dropped(&self, entry: &Entry) -> bool {
        entry.manifest().is_some_and(|manifest| self.dropped.contains(&manifest.epoch))
    }

    /// Keeps what an entry says about older ones, and adds what newer ones say about it.
    fn met(&mut self, mut entry: Entry) -> Entry {
        match entry.record.as_mut().map(|record| &mut record.body) {
            Ok(Body::Manifest(manifest)) => {
                self.lowest = manifest.epoch;
                if let Some(remarks) = self.notes.get(&manifest.epoch) {
                    manifest.remarks.clone_from(remarks);
                }
            }
            Ok(Body::Note(note)) => {
                self.notes.entry(note.epoch).or_insert_with(|| note.remarks.clone());
            }
            Ok(Body::Archive(archive)) => {
                // Older records are replaced, even where they could not be removed yet.
                self.numbers.clear();
                self.expected = 0;
                self.archived = unpack(entry.number, archive, self.lowest);
            }
            Ok(Body::Prune(prune)) => self.dropped.extend(&prune.epochs),
            _ => {}
        }
        entry
    }

    /// Returns about how many records are still to be read; 0 after the last.
    pub fn records_left(&self) -> usize {
        self.numbers.len() + usize::from(!self.archived.is_empty())
    }

    /// Returns the next record, or one entry for all that are missing before it.
    fn next_record(&mut self) -> Option<Entry> {
        let next = self.numbers.last().copied().unwrap_or(0);
        let missing = self.expected;
        if missing > next {
            let mut entry = self.read(missing);
            self.expected = missing - 1;
            if let Err(error) = entry.record {
                self.expected = next;
                let all = match next + 1 {
                    first if first == missing => "a log record is missing".to_owned(),
                    first => format!("log records {first} to {missing} are missing"),
                };
                entry.record = Err(error.context(all));
            }
            return Some(entry);
        }
        self.numbers.pop()?;
        self.expected = next.saturating_sub(1);
        Some(self.read(next))
    }

    fn read(&mut self, number: u64) -> Entry {
        let mut read = self.pool.log().read(self.job, number);
        if read.is_err() {
            match self.archive_instead(number) {
                Ok(Some(archive)) => return archive,
                Ok(None) => {}
                // It is unknown whether the record was removed on purpose.
                Err(unknown) => read = Err(unknown),
            }
        }
        let bytes = read.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let fp = read.as_ref().map_or(Fingerprint::ZERO, |bytes| fingerprint(bytes));
        let record = read.and_then(|bytes| decode(&bytes, number));
        Entry { number, record, bytes, fp, incomplete: false }
    }

    /// Returns the archive that has replaced a record since the log was listed, if it is gone for
    /// that reason. This history omits records after the archive: they are newer than the listing.
    fn archive_instead(&self, number: u64) -> Result<Option<Entry>> {
        let mut now = self.pool.log().numbers(self.job)?;
        loop {
            if now.contains(&number) {
                return Ok(None);
            }
            for newer in now.iter().rev().copied().take_while(|newer| *newer > number) {
                let bytes = match self.pool.log().read(self.job, newer) {
                    Err(error) if error.kind() == ErrorKind::Damaged => continue,
                    bytes => bytes?,
                };
                let Ok(record) = decode(&bytes, newer) else { continue };
                if matches!(record.body, Body::Archive(_)) {
                    let (fp, length) = (fingerprint(&bytes), bytes.len() as u64);
                    let record = Ok(record);
                    return Ok(Some(Entry {
                        number: newer,
                        record,
                        bytes: length,
                        fp,
                        incomplete: false,
                    }));
                }
            }
            // The archive itself may have been replaced by a later one.
            let before = std::mem::replace(&mut now, self.pool.log().numbers(self.job)?);
            if before == now {
                return Ok(None);
            }
        }
    }
}

/// Returns the manifests of an archive, as readers of the log see them.
pub fn manifests_of(archive: &Archive) -> impl Iterator<Item = Manifest> {
    let entries = unpack(0, archive, Epoch::MAX).into_iter();
    entries.filter_map(|entry| entry.manifest().cloned())
}

/// Returns the manifests of an archive that are older than `below`, newest first.
fn unpack(number: u64, archive: &Archive, below: Epoch) -> VecDeque<Entry> {
    let entry = |manifest: &Manifest| {
        let incomplete = archive.incomplete.binary_search(&manifest.epoch).is_ok();
        let mut manifest = manifest.clone();
        match &mut manifest.images {
            Images::One(image) => image.segments.clone_from(&archive.segments),
            Images::Table(table) => table.lists.clone_from(&archive.lists),
        }
        let body = Body::Manifest(manifest);
        let record = Record { number, previous: Fingerprint::ZERO, body };
        Entry { number, record: Ok(record), bytes: 0, fp: Fingerprint::ZERO, incomplete }
    };
    let older = archive.manifests.iter().rev().filter(|manifest| manifest.epoch < below);
    older.map(entry).collect()
}

fn decode(bytes: &[u8], number: u64) -> Result<Record> {
    let record =
        Record::decode(bytes).map_err(|error| error.context(format!("log record {number}")))?;
    if record.number != number {
        return Err(Error::damaged(format!(
            "log record {number} says that it is number {}",
            record.number
        )));
    }
    Ok(record)
}
