//! A program that saves: crates/store/src/save and commit/session.rs.

use super::log::{Changes, Manifest, Packs, Record, each, only, pack};
use super::{Fault, Lie, Protocol, World};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Phase {
    /// It has read nothing yet.
    #[default]
    Away,
    /// It has restored the newest checkpoint, and not opened a session yet.
    Restored,
    Idle,
    /// A save has begun: it takes up the changes by others so far.
    Begun,
    /// Its pack is being written.
    Writing,
    /// The manifest is ready.
    Ready,
    /// It must first copy the condemned chunk out of this pack.
    Rescue(u8),
    Closed,
    Fenced,
}

/// The checkpoint that the next save follows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Base {
    pub epoch: u8,
    pub chunk: u8,
    pub lists: Packs,
    pub as_of: u8,
}

/// The source of a save's chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Hit {
    /// The save has written it.
    #[default]
    None,
    /// The pack in the segments of its base.
    Base,
    /// A pack that another checkpoint lists.
    At(u8),
}

/// A save in progress.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Draft {
    chunk: u8,
    hit: Hit,
    /// Packs of its own.
    own: Packs,
    lists: Packs,
    /// Changes by others since it began.
    seen: Changes,
    pub mended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Saver {
    pub phase: Phase,
    pub base: Option<Base>,
    /// The newest record that it knows.
    pub head: u8,
    /// Changes that it has seen and not handled.
    pub pending: Changes,
    pub condemned: Packs,
    /// The pool index: packs that it may share. It is kept from one save to the next.
    pub index: Packs,
    pub packs: u8,
    pub saves_left: u8,
    pub draft: Draft,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Restores.
    Restore,
    /// Opens a session, even if another one is open.
    Open,
    /// Begins a save.
    Begin,
    /// Reads the pool index.
    Index,
    /// Writes the chunk to a pack of its own.
    Write,
    /// Finishes that pack.
    Finish,
    /// Shares a chunk.
    Share(u8),
    /// Offers the manifest.
    Commit,
    /// Copies a chunk that was condemned.
    Rescue,
    /// Ends the session.
    Close,
}

impl Saver {
    pub fn steps(&self, world: &World, session: u8) -> Vec<Step> {
        let of = (session / 2) as usize;
        let is_room = world.is_room(self.packs);
        match self.phase {
            Phase::Away if self.saves_left > 0 => vec![Step::Restore],
            Phase::Restored => vec![Step::Open],
            Phase::Idle if self.saves_left > 0 => vec![Step::Begin, Step::Close],
            Phase::Idle => vec![Step::Close],
            Phase::Begun => {
                let mut steps = Vec::new();
                if is_room {
                    steps.push(Step::Write);
                }
                let fresh = world.logs[of].index() | world.logs[1 - of].index();
                if fresh & !self.condemned != self.index {
                    steps.push(Step::Index);
                }
                let base = self.base.map_or(0, |base| base.lists);
                steps.extend(each(self.index | base).map(Step::Share));
                steps
            }
            Phase::Writing => vec![Step::Finish],
            Phase::Ready => vec![Step::Commit],
            Phase::Rescue(_) if is_room => vec![Step::Rescue],
            Phase::Away | Phase::Rescue(_) | Phase::Closed | Phase::Fenced => Vec::new(),
        }
    }
}

impl World {
    pub fn save(&mut self, protocol: &Protocol, session: u8, step: Step) {
        let of = (session / 2) as usize;
        let mut saver = self.savers[session as usize];
        match step {
            Step::Restore => {
                let job = self.logs[of].read();
                saver.base = job.manifests.last().map(|m| Base {
                    epoch: m.epoch,
                    chunk: m.chunk,
                    lists: m.lists,
                    as_of: job.number,
                });
                saver.phase = Phase::Restored;
            }
            Step::Open => {
                saver.pending = self.logs[of].since(0);
                self.logs[of].append(Record::Session(session));
                saver.head = self.logs[of].number;
                saver.phase = Phase::Idle;
            }
            Step::Begin => {
                if self.look(&mut saver, session) {
                    saver.absorb();
                    saver.phase = Phase::Begun;
                }
            }
            // Reads the logs of all jobs, and their condemned packs; rule 1 puts it after `Open`.
            Step::Index => {
                let found = self.logs[of].index() | self.logs[1 - of].index();
                saver.index = found & !saver.condemned;
            }
            Step::Write => {
                let own = pack(session, saver.packs);
                saver.draft = saver.begin_with(own, Hit::None);
                saver.draft.own = only(own);
                saver.packs += 1;
                self.chunks[own as usize] = own;
                if protocol.unfinished {
                    self.unfinished |= only(own);
                    saver.phase = Phase::Writing;
                } else {
                    self.finished |= only(own);
                    saver.phase = Phase::Ready;
                }
            }
            Step::Finish => {
                let own = saver.draft.own;
                if self.unfinished & own == 0 {
                    saver.fail(); // a gc took it for a leftover
                } else {
                    self.unfinished &= !own;
                    self.finished |= own;
                    saver.phase = Phase::Ready;
                }
            }
            Step::Share(place) => {
                let is_base = saver.base.is_some_and(|base| base.lists & only(place) != 0);
                let hit = if is_base { Hit::Base } else { Hit::At(place) };
                let chunk = self.chunks[place as usize];
                saver.draft = saver.begin_with(chunk, hit);
                saver.draft.lists |= only(place);
                saver.phase = Phase::Ready;
            }
            Step::Commit => self.commit(protocol, &mut saver, session),
            Step::Rescue => {
                if let Phase::Rescue(from) = saver.phase {
                    self.check(self.finished & only(from) != 0, Fault::NothingToRescue);
                    let own = pack(session, saver.packs);
                    saver.packs += 1;
                    self.chunks[own as usize] = saver.draft.chunk;
                    self.finished |= only(own);
                    saver.draft.own |= only(own);
                    saver.draft.lists |= only(own);
                    saver.draft.hit = Hit::None;
                    saver.phase = Phase::Ready;
                }
            }
            Step::Close => {
                if self.look(&mut saver, session) {
                    self.logs[of].append(Record::Close(session));
                    saver = Saver { phase: Phase::Closed, packs: saver.packs, ..Saver::default() };
                }
            }
        }
        if saver.phase == Phase::Fenced {
            let (packs, draft) = (saver.packs, Draft::default());
            saver = Saver { phase: Phase::Fenced, packs, draft, ..Saver::default() };
        }
        self.savers[session as usize] = saver;
    }

    /// Looks at the log. Returns false if the session is over.
    fn look(&self, saver: &mut Saver, session: u8) -> bool {
        let log = &self.logs[(session / 2) as usize];
        if log.read().session.map(|(newest, _)| newest) != Some(session) {
            saver.phase = Phase::Fenced;
            return false;
        }
        saver.pending.then(log.since(saver.head));
        saver.head = log.number;
        true
    }

    /// Rule 2.
    fn commit(&mut self, protocol: &Protocol, saver: &mut Saver, session: u8) {
        let of = (session / 2) as usize;
        let is_blind = protocol.lie == Some(Lie::SaversAppendBlindly);
        let draft = saver.draft;
        if self.logs[of].number == saver.head || is_blind {
            let job = self.logs[of].read();
            let fenced = job.session.map(|(newest, _)| newest) != Some(session);
            self.check(!fenced, Fault::FencedCommit);
            self.check(draft.lists & self.condemned[of] == 0, Fault::CondemnedListed);
            let epoch = job.last_epoch + 1;
            let (chunk, lists, next_pack) = (draft.chunk, draft.lists, saver.packs);
            let manifest = Manifest { session, epoch, next_pack, chunk, lists };
            self.logs[of].append(Record::Manifest(manifest));
            saver.head = self.logs[of].number;
            saver.base = Some(Base { epoch, chunk, lists, as_of: saver.head });
            saver.end();
            return;
        }
        if !self.look(saver, session) {
            return;
        }
        // A prune by itself moves nothing. Its changes are kept for the next save.
        if saver.pending.is_empty() {
            return;
        }
        saver.draft.seen.then(std::mem::take(&mut saver.pending));
        self.mend(saver);
    }

    /// Models save/rebase.rs.
    fn mend(&mut self, saver: &mut Saver) {
        let Draft { chunk, hit, own, seen, .. } = saver.draft;
        saver.condemned |= seen.condemned;
        saver.index = 0;
        let moved = seen.moved.filter(|moved| saver.base.is_some_and(|b| b.as_of < moved.number));
        if let Some(base) = saver.base {
            let epoch = 1 << base.epoch;
            if seen.dropped & epoch != 0 || moved.is_some_and(|moved| moved.epochs & epoch == 0) {
                saver.base = None;
                saver.fail();
                return;
            }
        }
        let old = saver.base.map_or(0, |base| base.lists);
        let before = moved.map_or(old, |moved| moved.lists);
        saver.draft.lists = before | own;
        saver.draft.mended = true;
        if hit == Hit::None {
            return;
        }
        let found = self.find(chunk, before);
        if found.is_some_and(|place| seen.condemned & only(place) == 0) {
            return;
        }
        let place = match hit {
            Hit::At(place) => Some(place),
            _ => self.find(chunk, old),
        };
        match place {
            None => self.check(false, Fault::NothingToRescue),
            Some(place) if seen.condemned & only(place) != 0 => saver.phase = Phase::Rescue(place),
            Some(place) => saver.draft.lists |= only(place),
        }
    }
}

impl Saver {
    fn begin_with(&self, chunk: u8, hit: Hit) -> Draft {
        let lists = self.base.map_or(0, |base| base.lists);
        let lists = if hit == Hit::None { lists | only(chunk) } else { lists };
        Draft { chunk, hit, lists, ..Draft::default() }
    }

    /// Models `Writer::absorb`.
    fn absorb(&mut self) {
        let changes = std::mem::take(&mut self.pending);
        self.base = self.base.filter(|base| changes.dropped & 1 << base.epoch == 0);
        if changes.is_empty() {
            return;
        }
        self.condemned |= changes.condemned;
        self.index = 0;
        if let (Some(moved), Some(base)) = (changes.moved, self.base)
            && base.as_of < moved.number
        {
            let kept = moved.epochs & 1 << base.epoch != 0;
            let (lists, as_of) = (moved.lists, moved.number);
            self.base = kept.then_some(Base { lists, as_of, ..base });
        }
    }

    fn end(&mut self) {
        self.phase = Phase::Idle;
        self.saves_left -= 1;
        self.draft = Draft::default();
    }

    /// The next save must handle the changes that this one did not.
    fn fail(&mut self) {
        let mut changes = self.draft.seen;
        changes.then(std::mem::take(&mut self.pending));
        self.pending = changes;
        self.end();
    }
}
