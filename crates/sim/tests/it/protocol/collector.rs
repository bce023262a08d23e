//! A gc: crates/store/src/gc. Other actors may act between its steps.

use super::log::{Archive, Job, Manifest, PACKS_EACH, Packs, Record, each, only, pack};
use super::{Lie, Protocol, World};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Phase {
    /// It opens its session and lists packs.
    #[default]
    Away,
    /// It reads this job's log for the first time.
    Survey(u8),
    /// It chooses which packs go, and copies what is in use there.
    Plan,
    /// It finishes a copy, and goes on to visit or to append.
    Finish(Option<u8>),
    /// It reports to every job; next is this one. The flag says whether this round appended a
    /// report.
    Visit(u8, bool),
    /// It reads this job's log again.
    Read(u8),
    /// It makes sure that no later gc has fenced it.
    Check(u8),
    /// It appends its record.
    Append(u8),
    /// It makes sure again, before it deletes.
    CheckLast,
    Delete,
    Done,
    Fenced,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Gc {
    pub phase: Phase,
    listed: Packs,
    unfinished: Packs,
    /// The jobs as of its last reading or report.
    jobs: [Option<Job>; 2],
    told: [bool; 2],
    /// Packs in use.
    live: Packs,
    named: [Packs; 2],
    condemned: Packs,
    copies: Packs,
    pub packs: u8,
}

/// The session of a gc.
pub fn session(gc: usize) -> u8 {
    4 + gc as u8
}

impl Gc {
    fn mark(&mut self, world: &World, of: usize, job: &Job) {
        let lists = job.lists();
        self.named[of] |= lists;
        for manifest in &job.manifests {
            self.live |= world.find(manifest.chunk, lists).map_or(0, only);
        }
    }

    fn is_named(&self) -> Packs {
        self.named[0] | self.named[1]
    }

    /// A condemned pack that is named again must be reported again.
    fn forget_named_packs(&self, job: &mut Job) {
        job.held &= !self.is_named();
        job.released &= !self.is_named();
    }

    fn in_progress(&self, pack: u8) -> bool {
        self.jobs.iter().flatten().any(|job| job.has_in_progress(pack))
    }

    /// Returns the packs that may be rewritten: any listed pack in use.
    pub fn choices(&self) -> Vec<Option<u8>> {
        let live = each(self.listed & self.live).filter(|pack| !self.in_progress(*pack));
        live.map(Some).chain([None]).collect()
    }

    /// Returns the phase after a visit.
    fn next(&self, of: u8, news: bool) -> Phase {
        match (of, news) {
            (0, _) => Phase::Visit(1, news),
            (_, true) => Phase::Visit(0, false),
            _ => Phase::CheckLast,
        }
    }

    /// Returns a condemned pack that a job needs and that has no copy yet.
    fn late(&self, world: &World, job: &Job) -> Option<u8> {
        let needed = job.manifests.iter().filter_map(|m| world.find(m.chunk, job.lists()));
        let mut needed = needed.filter(|place| self.condemned & only(*place) != 0);
        needed.find(|place| self.copy_of(world, *place).is_none())
    }

    fn copy_of(&self, world: &World, place: u8) -> Option<u8> {
        world.find(world.chunks[place as usize], self.copies)
    }

    /// Returns one set of segments for a job's checkpoints: the chunks in use, at their present
    /// packs. Packs that were not listed stay named.
    fn relist(&self, world: &World, lists: Packs) -> Packs {
        let mut seen = 0;
        let mut now = 0;
        for place in each(lists) {
            let chunk = only(world.chunks[place as usize]);
            let is_live = self.listed & only(place) == 0 || self.live & only(place) != 0;
            if is_live && seen & chunk == 0 {
                seen |= chunk;
                let copy = self.copy_of(world, place).filter(|_| self.condemned & only(place) != 0);
                now |= only(copy.unwrap_or(place));
            }
        }
        now
    }
}

impl World {
    /// Takes the next step of a gc; `choice` is the pack that its plan rewrites.
    pub fn collect(&mut self, protocol: &Protocol, number: usize, choice: Option<u8>) {
        let mut gc = std::mem::take(&mut self.gcs[number]);
        let is_fenced = self.newest_gc != Some(number as u8);
        match gc.phase {
            Phase::Away => {
                self.newest_gc = Some(number as u8);
                (gc.listed, gc.unfinished) = (self.finished, self.unfinished);
                gc.phase = Phase::Survey(0);
            }
            Phase::Survey(of) => {
                let job = self.logs[of as usize].read();
                if job.number > 0 {
                    gc.mark(self, of as usize, &job);
                    gc.jobs[of as usize] = Some(job);
                }
                gc.phase = if of == 0 { Phase::Survey(1) } else { Phase::Plan };
            }
            Phase::Plan => self.plan(protocol, &mut gc, number, choice),
            Phase::Finish(then) => {
                let own = only(pack(session(number), gc.packs - 1));
                gc.phase = match then {
                    // A later gc took it for a leftover.
                    _ if self.unfinished & own == 0 => Phase::Fenced,
                    Some(of) => Phase::Append(of),
                    None => Phase::Visit(0, false),
                };
                self.finished |= self.unfinished & own;
                self.unfinished &= !own;
            }
            Phase::Visit(of, news) => {
                let at = of as usize;
                let latest = self.logs[at].number;
                let first = !gc.told[at];
                let is_told = gc.jobs[at]
                    .as_ref()
                    .is_some_and(|job| gc.told[at] && (job.is_open() || job.number == latest));
                gc.phase = if latest == 0 || is_told {
                    gc.next(of, news)
                } else if first && gc.jobs[at].is_some() {
                    if is_fenced { Phase::Fenced } else { Phase::Append(of) }
                } else {
                    protocol.read_again(of)
                };
            }
            Phase::Read(of) => {
                let mut job = self.logs[of as usize].read();
                if protocol.lie != Some(Lie::MarksOnce) {
                    gc.mark(self, of as usize, &job);
                }
                gc.forget_named_packs(&mut job);
                gc.jobs[of as usize] = Some(job);
                let checks_first = protocol.lie == Some(Lie::ChecksBeforeItReads);
                gc.phase = if checks_first { Phase::Append(of) } else { Phase::Check(of) };
            }
            Phase::Check(of) => {
                let checks_first = protocol.lie == Some(Lie::ChecksBeforeItReads);
                gc.phase = match checks_first {
                    _ if is_fenced => Phase::Fenced,
                    true => Phase::Read(of),
                    false => Phase::Append(of),
                };
            }
            Phase::Append(of) => self.tell(protocol, &mut gc, number, of),
            Phase::CheckLast => {
                gc.phase = if is_fenced { Phase::Fenced } else { Phase::Delete };
            }
            Phase::Delete => self.delete(protocol, &mut gc),
            Phase::Done | Phase::Fenced => {}
        }
        if matches!(gc.phase, Phase::Done | Phase::Fenced) {
            gc = Gc { phase: gc.phase, packs: gc.packs, ..Gc::default() };
        }
        self.gcs[number] = gc;
    }

    fn plan(&mut self, protocol: &Protocol, gc: &mut Gc, number: usize, choice: Option<u8>) {
        let mut jobs = std::mem::take(&mut gc.jobs);
        jobs.iter_mut().flatten().for_each(|job| gc.forget_named_packs(job));
        gc.jobs = jobs;
        // Unfinished packs are listed again after the logs; those without an open session are
        // leftovers.
        gc.unfinished &= self.unfinished;
        let open: Vec<u8> = gc
            .jobs
            .iter()
            .flatten()
            .filter_map(|j| j.session)
            .filter(|s| s.1)
            .map(|s| s.0)
            .collect();
        let left_over = each(gc.unfinished).filter(|pack| !open.contains(&(pack / PACKS_EACH)));
        gc.unfinished = left_over.map(only).sum();
        let dead = each(gc.listed & !gc.live).filter(|pack| !gc.in_progress(*pack));
        gc.condemned = dead.map(only).sum();
        gc.phase = Phase::Visit(0, false);
        if let Some(from) = choice {
            gc.condemned |= only(from);
            self.copy(protocol, gc, number, from);
        }
    }

    fn copy(&mut self, protocol: &Protocol, gc: &mut Gc, number: usize, from: u8) {
        if self.finished & only(from) == 0 || gc.packs == PACKS_EACH {
            gc.phase = Phase::Fenced; // it fails: another gc has deleted the pack
            return;
        }
        let own = pack(session(number), gc.packs);
        gc.packs += 1;
        gc.copies |= only(own);
        self.chunks[own as usize] = self.chunks[from as usize];
        if !protocol.unfinished {
            self.finished |= only(own);
            return;
        }
        self.unfinished |= only(own);
        gc.phase = Phase::Finish(match gc.phase {
            Phase::Append(of) => Some(of),
            _ => None,
        });
    }

    fn tell(&mut self, protocol: &Protocol, gc: &mut Gc, number: usize, of: u8) {
        let at = of as usize;
        let Some(mut job) = gc.jobs[at].clone() else { return };
        let marks_once = protocol.lie == Some(Lie::MarksOnce);
        if let Some(from) = gc.late(self, &job).filter(|_| !marks_once) {
            self.copy(protocol, gc, number, from);
            return;
        }
        let anew = gc.condemned & !job.held & !job.released;
        let archived = job.pruned || gc.named[at] & gc.condemned != 0;
        let only_open = protocol.lie == Some(Lie::TellsOnlyOpenJobs) && !job.is_open();
        let blind = protocol.lie == Some(Lie::CollectorsAppendBlindly);
        let says_nothing = !archived && (anew == 0 || only_open);
        if !says_nothing && self.logs[at].number != job.number && !blind {
            gc.phase = protocol.read_again(of);
            return;
        }
        job.held |= anew;
        if archived {
            let lists = gc.relist(self, job.lists());
            let relisted = |manifest: &Manifest| Manifest { lists, ..*manifest };
            let manifests = job.manifests.iter().map(relisted).collect();
            let condemned = if job.is_open() { job.held } else { anew };
            let (session, last_epoch) = (job.session, job.last_epoch);
            let archive = Archive { session, last_epoch, condemned, manifests };
            self.logs[at].append(Record::Archive(archive));
            // A checkpoint may name a pack that an earlier gc condemned; this takes the pack back.
            // That gc is fenced, and was before it could delete: otherwise no checkpoint would name
            // the pack.
            self.condemned[at] &= !gc.is_named();
        } else if !says_nothing {
            self.logs[at].append(Record::Sweep(anew));
        }
        if !says_nothing {
            job.number = self.logs[at].number;
            self.condemned[at] |= anew;
        }
        gc.jobs[at] = Some(job);
        gc.told[at] = true;
        gc.phase = gc.next(of, true);
    }

    /// Rules 4 and 6.
    fn delete(&mut self, protocol: &Protocol, gc: &mut Gc) {
        let unheard = protocol.lie != Some(Lie::DeletesWhatIsHeld);
        let needed = |pack: &u8| {
            let holds = |job: &Job| job.is_open() && job.released & only(*pack) == 0;
            unheard && gc.jobs.iter().flatten().any(holds)
        };
        let gone: Packs = each(gc.condemned).filter(|pack| !needed(pack)).map(only).sum();
        self.finished &= !gone;
        self.unfinished &= !gc.unfinished;
        if protocol.lie == Some(Lie::DeletesFinishedLeftOvers) {
            self.finished &= !gc.unfinished;
        }
        gc.phase = Phase::Done;
    }
}
