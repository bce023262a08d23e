//! The content of jobs' logs, and its meaning to each reader.

/// A set of packs, one bit each.
pub type Packs = u32;
/// A set of epochs, one bit each.
pub type Epochs = u8;

/// Maximum number of packs that a session writes.
pub const PACKS_EACH: u8 = 4;

/// Returns the pack with this number in a session (rule 7).
pub fn pack(session: u8, number: u8) -> u8 {
    session * PACKS_EACH + number
}

/// Returns the set of one pack.
pub fn only(pack: u8) -> Packs {
    1 << pack
}

/// Returns the members of a set, in order.
pub fn each(packs: Packs) -> impl Iterator<Item = u8> {
    (0..32).filter(move |pack| packs & only(*pack) != 0)
}

/// A checkpoint: one chunk, and the pack extents in its segments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Manifest {
    pub session: u8,
    pub epoch: u8,
    pub next_pack: u8,
    /// The chunk, named by the pack that it was first written to.
    pub chunk: u8,
    /// Packs that its segments list, also those whose chunks are no longer needed.
    pub lists: Packs,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Record {
    Session(u8),
    Manifest(Manifest),
    Close(u8),
    Prune(Epochs),
    Sweep(Packs),
    Archive(Archive),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Archive {
    pub session: Option<(u8, bool)>,
    pub last_epoch: u8,
    pub condemned: Packs,
    pub manifests: Vec<Manifest>,
}

/// Changes by others since a writer's last look.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Changes {
    pub condemned: Packs,
    pub dropped: Epochs,
    pub moved: Option<Moved>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Moved {
    pub number: u8,
    pub lists: Packs,
    pub epochs: Epochs,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.condemned == 0 && self.moved.is_none()
    }

    pub fn then(&mut self, later: Changes) {
        self.condemned |= later.condemned;
        self.dropped |= later.dropped;
        self.moved = later.moved.or(self.moved);
    }
}

/// A log that a gc has read to its end.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Job {
    pub number: u8,
    /// Manifests that no prune has dropped, oldest first.
    pub manifests: Vec<Manifest>,
    pub session: Option<(u8, bool)>,
    pub last_epoch: u8,
    pub pruned: bool,
    /// Packs condemned before the last append of the job's writer.
    pub released: Packs,
    /// Packs condemned since then.
    pub held: Packs,
}

impl Job {
    pub fn is_open(&self) -> bool {
        self.session.is_some_and(|(_, open)| open)
    }

    pub fn lists(&self) -> Packs {
        self.manifests.iter().fold(0, |lists, manifest| lists | manifest.lists)
    }

    /// Rule 6: whether a pack belongs to a save under way.
    pub fn has_in_progress(&self, pack: u8) -> bool {
        let Some((session, true)) = self.session else { return false };
        let own = self.manifests.iter().rev().find(|manifest| manifest.session == session);
        pack / PACKS_EACH == session
            && pack % PACKS_EACH >= own.map_or(0, |manifest| manifest.next_pack)
    }
}

/// A job's log. An archive deletes all older records at once.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Log {
    /// Number of the newest record; the numbers of the others follow from it.
    pub number: u8,
    pub records: Vec<Record>,
}

impl Log {
    pub fn append(&mut self, record: Record) {
        if matches!(record, Record::Archive(_)) {
            self.records.clear();
        }
        self.records.push(record);
        self.number += 1;
    }

    pub fn read(&self) -> Job {
        let mut job = Job { number: self.number, ..Job::default() };
        for record in &self.records {
            match record {
                Record::Session(session) => job.session = Some((*session, true)),
                Record::Close(closed) => {
                    job.session = job.session.map(|(id, open)| (id, open && id != *closed));
                }
                Record::Manifest(manifest) => {
                    job.last_epoch = manifest.epoch;
                    job.manifests.push(*manifest);
                }
                Record::Prune(epochs) => {
                    job.pruned = true;
                    job.manifests.retain(|manifest| epochs & 1 << manifest.epoch == 0);
                }
                Record::Sweep(packs) => job.held |= packs,
                Record::Archive(archive) => {
                    let Archive { session, last_epoch, condemned, ref manifests } = *archive;
                    (job.session, job.last_epoch, job.held) = (session, last_epoch, condemned);
                    job.manifests.clone_from(manifests);
                }
            }
            if matches!(record, Record::Session(_) | Record::Close(_) | Record::Manifest(_)) {
                job.released |= std::mem::take(&mut job.held);
            }
        }
        job.released &= !job.held;
        job
    }

    /// Returns the changes since record `seen`.
    pub fn since(&self, seen: u8) -> Changes {
        let mut changes = Changes::default();
        let older = self.number as usize - self.records.len();
        for (at, record) in self.records.iter().enumerate() {
            let number = (older + at + 1) as u8;
            if number <= seen {
                continue;
            }
            match record {
                Record::Prune(epochs) => changes.dropped |= epochs,
                Record::Sweep(packs) => changes.condemned |= packs,
                Record::Archive(archive) => {
                    let (mut lists, mut epochs) = (0, 0);
                    for manifest in &archive.manifests {
                        lists |= manifest.lists;
                        epochs |= 1 << manifest.epoch;
                    }
                    changes.condemned |= archive.condemned;
                    changes.moved = Some(Moved { number, lists, epochs });
                }
                _ => {}
            }
        }
        changes
    }

    /// Returns the packs that another save may share.
    pub fn index(&self) -> Packs {
        let Job { held, released, .. } = self.read();
        self.read().lists() & !held & !released
    }
}
