//! A model of how savers, prunes and collectors avoid harming each other (docs/design/009-gc.md),
//! checked in every state within its bounds. The explorer runs the code itself along some thousands
//! of schedules. This model runs along all schedules, but only of the rules.
//!
//! Each operation on a log or target is one step. Any actor may be held up before any step, also
//! forever: to the others that looks like a crash. Reading a log is one step, as a reader begins
//! again if the log has changed. A conditional append is one step with the look that follows if it
//! is lost. Bounds: two jobs with two programs each, two collectors without a lock, one chunk in a
//! checkpoint and one in a pack, and [`Bounds`]. Segments are part of the manifests. Nothing is
//! damaged.

mod collector;
mod log;
mod saver;

use collector::{Gc, Phase as Collecting};
use log::{Log, Manifest, PACKS_EACH, Packs, Record, each, only, pack};
use saver::{Base, Phase as Saving, Saver, Step};
use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};

/// A broken rule of the protocol, to show that the model finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lie {
    /// Rule 2: a saver appends its manifest even if the log has changed.
    SaversAppendBlindly,
    /// Rule 2: a collector does so.
    CollectorsAppendBlindly,
    /// Rule 3: a collector keeps its marks for a job although its record was lost.
    MarksOnce,
    /// Rule 3: a collector reports only to jobs with an open session.
    TellsOnlyOpenJobs,
    /// Rule 4: a collector deletes condemned packs at once.
    DeletesWhatIsHeld,
    /// Rule 6: a collector deletes a leftover although it was finished meanwhile.
    DeletesFinishedLeftOvers,
    /// A collector makes sure that it is not fenced, and only then reads a job's log.
    ChecksBeforeItReads,
}

/// A violation in a step that no later state shows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Fault {
    FencedCommit,
    CondemnedListed,
    NothingToRescue,
}

/// The size of the model.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Number of saves of each job's two programs. The first runs at the beginning; with `None`, it
    /// has ended. The second restores and takes over, at any time.
    saves: [(Option<u8>, u8); 2],
    /// Maximum number of packs that a program writes.
    packs: u8,
    prunes: u8,
    collectors: usize,
}

#[derive(Clone, Debug)]
struct Protocol {
    bounds: Bounds,
    /// Whether packs begin in one step and are finished in another.
    unfinished: bool,
    lie: Option<Lie>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    logs: [Log; 2],
    /// Packs that a job's log condemned, without a later release.
    condemned: [Packs; 2],
    /// The collector with the newest session in the log of collectors.
    newest_gc: Option<u8>,
    finished: Packs,
    unfinished: Packs,
    /// The content of each pack, present or deleted.
    chunks: [u8; 6 * PACKS_EACH as usize],
    /// Two savers for each job, by session.
    savers: [Saver; 4],
    gcs: Vec<Gc>,
    prunes_left: u8,
    packs_max: u8,
    fault: Option<Fault>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Save(u8, Step),
    Prune(usize, u8),
    Collect(usize, Option<u8>),
}

impl World {
    fn check(&mut self, holds: bool, fault: Fault) {
        if !holds {
            self.fault = Some(fault);
        }
    }

    fn is_room(&self, packs: u8) -> bool {
        packs < self.packs_max
    }

    /// Returns the packs that were ever begun.
    fn written(&self) -> Packs {
        let savers = self.savers.iter().map(|saver| saver.packs);
        let counts = savers.chain(self.gcs.iter().map(|gc| gc.packs));
        let packs = |(session, count)| (0..count).map(move |n| only(pack(session as u8, n)));
        counts.enumerate().flat_map(packs).sum()
    }

    /// Returns the pack that has a chunk, by the listed segments.
    fn find(&self, chunk: u8, lists: Packs) -> Option<u8> {
        each(lists).find(|place| self.chunks[*place as usize] == chunk)
    }
}

impl Protocol {
    /// Returns the phase of a collector whose record was lost, or that learns of a job late.
    fn read_again(&self, of: u8) -> Collecting {
        match self.lie {
            Some(Lie::ChecksBeforeItReads) => Collecting::Check(of),
            _ => Collecting::Read(of),
        }
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    /// Each job has one checkpoint. The first job had another one, which was dropped: its chunk is
    /// in a pack that is listed and dead.
    fn init_states(&self) -> Vec<World> {
        let mut world = World {
            logs: Default::default(),
            condemned: [0; 2],
            newest_gc: None,
            finished: 0,
            unfinished: 0,
            chunks: [0; 6 * PACKS_EACH as usize],
            savers: Default::default(),
            gcs: vec![Gc::default(); self.bounds.collectors],
            prunes_left: self.bounds.prunes,
            packs_max: self.bounds.packs,
            fault: None,
        };
        for (of, (first, second)) in self.bounds.saves.into_iter().enumerate() {
            let session = 2 * of as u8;
            let log = &mut world.logs[of];
            log.append(Record::Session(session));
            let (mut saver, mut lists) = (Saver::default(), 0);
            for epoch in 1..3 - of as u8 {
                let chunk = pack(session, saver.packs);
                saver.packs += 1;
                lists |= only(chunk);
                world.chunks[chunk as usize] = chunk;
                let next_pack = saver.packs;
                log.append(Record::Manifest(Manifest { session, epoch, next_pack, chunk, lists }));
                saver.base = Some(Base { epoch, chunk, lists, as_of: log.number });
            }
            world.finished |= lists;
            if of == 0 {
                log.append(Record::Prune(1 << 1));
            }
            saver.head = log.number;
            saver.saves_left = first.unwrap_or(0);
            saver.phase = Saving::Idle;
            if first.is_none() {
                log.append(Record::Close(session));
                saver = Saver { phase: Saving::Closed, packs: saver.packs, ..Saver::default() };
            }
            world.savers[2 * of] = saver;
            world.savers[2 * of + 1].saves_left = second;
        }
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (session, saver) in world.savers.iter().enumerate() {
            let session = session as u8;
            let steps = saver.steps(world, session);
            actions.extend(steps.into_iter().map(|step| Action::Save(session, step)));
        }
        for (of, log) in world.logs.iter().enumerate().filter(|_| world.prunes_left > 0) {
            let job = log.read();
            let newest_stays = usize::from(job.is_open());
            let go = job.manifests.len().saturating_sub(newest_stays);
            actions.extend(job.manifests[..go].iter().map(|m| Action::Prune(of, m.epoch)));
        }
        for (number, gc) in world.gcs.iter().enumerate() {
            // They are alike, so the first begins first.
            let may_begin = number == 0 || world.gcs[number - 1].phase != Collecting::Away;
            match gc.phase {
                Collecting::Done | Collecting::Fenced => {}
                Collecting::Plan => {
                    let choices = gc.choices().into_iter();
                    actions.extend(choices.map(|choice| Action::Collect(number, choice)));
                }
                _ if may_begin => actions.push(Action::Collect(number, None)),
                _ => {}
            }
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        match action {
            Action::Save(session, step) => world.save(self, session, step),
            Action::Prune(of, epoch) => {
                world.logs[of].append(Record::Prune(1 << epoch));
                world.prunes_left -= 1;
            }
            Action::Collect(number, choice) => world.collect(self, number, choice),
        }
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("every checkpoint has its packs", |_, world: &World| {
                world.logs.iter().all(|log| {
                    let mut kept = log.read().manifests.into_iter();
                    kept.all(|manifest| manifest.lists & !world.finished == 0)
                })
            }),
            Property::always("no fenced saver commits", |_, world: &World| {
                world.fault != Some(Fault::FencedCommit)
            }),
            Property::always("no manifest lists what was condemned", |_, world: &World| {
                world.fault != Some(Fault::CondemnedListed)
            }),
            Property::always("who must mend finds what to copy", |_, world: &World| {
                world.fault != Some(Fault::NothingToRescue)
            }),
            Property::sometimes("a save is mended", |_, world: &World| {
                let is_mended = |s: &Saver| s.phase == Saving::Ready && s.draft.mended;
                world.savers.iter().any(is_mended)
            }),
            Property::sometimes("a save copies what was condemned", |_, world: &World| {
                world.savers.iter().any(|s| matches!(s.phase, Saving::Rescue(_)))
            }),
            Property::sometimes("a gc is fenced", |_, world: &World| {
                world.gcs.iter().any(|gc| gc.phase == Collecting::Fenced)
            }),
            Property::sometimes("a gc reads a job again", |_, world: &World| {
                world.gcs.iter().any(|gc| matches!(gc.phase, Collecting::Read(_)))
            }),
            Property::sometimes("a pack is deleted", |_, world: &World| {
                world.written() & !world.finished & !world.unfinished != 0
            }),
        ]
    }
}

/// The result of checking every state, on one thread, so that it is always the same.
struct Found {
    /// Properties that hold sometimes.
    happens: Vec<&'static str>,
    /// Properties that do not hold, with the steps that lead there.
    fails: Vec<(&'static str, String)>,
}

/// Checks every state, or until a property does not hold.
fn explore(protocol: Protocol) -> Found {
    let checker = protocol.clone().checker().finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    println!("{} states of {protocol:?}", checker.unique_state_count());
    let mut found = Found { happens: Vec::new(), fails: Vec::new() };
    for (name, path) in checker.discoveries() {
        if protocol.property(name).expectation == Expectation::Sometimes {
            found.happens.push(name);
            continue;
        }
        let steps = path.into_vec().into_iter().map(|(world, action)| match action {
            Some(Action::Collect(number, choice)) => {
                let phase = world.gcs[number].phase;
                format!("gc {number}: {phase:?}, rewrites {choice:?}")
            }
            Some(Action::Save(session, step)) => {
                format!("job {}, session {session}: {step:?}", session / 2)
            }
            Some(Action::Prune(of, epoch)) => format!("job {of}: drop checkpoint {epoch}"),
            None => format!("{world:#?}"),
        });
        found.fails.push((name, steps.collect::<Vec<_>>().join("\n")));
    }
    found.happens.sort_unstable();
    found
}

fn assert_holds(bounds: Bounds, unfinished: bool) -> Vec<&'static str> {
    let found = explore(Protocol { bounds, unfinished, lie: None });
    if let Some((name, steps)) = found.fails.first() {
        panic!("it does not hold that {name}:\n{steps}");
    }
    found.happens
}

/// Two collectors, and one program that saves once; the other job's program has ended.
const OVERLAP: Bounds =
    Bounds { saves: [(Some(1), 0), (None, 0)], packs: 3, prunes: 0, collectors: 2 };

#[test]
fn collectors_overlap() {
    let all = [
        "a gc is fenced",
        "a gc reads a job again",
        "a pack is deleted",
        "a save copies what was condemned",
        "a save is mended",
    ];
    assert_eq!(assert_holds(OVERLAP, true), all);
}

#[test]
fn a_prune_beside_a_gc() {
    let few = Bounds { prunes: 1, collectors: 1, ..OVERLAP };
    let happens = assert_holds(within(few, Bounds { prunes: 1, ..OVERLAP }), true);
    assert!(happens.contains(&"a pack is deleted"), "{happens:?}");
}

#[test]
fn a_program_restarts_beside_a_gc() {
    let saves = [(Some(0), 0), (None, 1)];
    let few = Bounds { saves, collectors: 1, ..OVERLAP };
    let happens = assert_holds(within(few, Bounds { saves, ..OVERLAP }), false);
    assert!(happens.contains(&"a pack is deleted"), "{happens:?}");
}

#[test]
fn programs_share_with_each_other() {
    let saves = [(Some(1), 0), (Some(1), 0)];
    let happens = assert_holds(Bounds { saves, collectors: 1, ..OVERLAP }, false);
    assert!(happens.contains(&"a save copies what was condemned"), "{happens:?}");
}

#[test]
fn programs_take_over() {
    let few = Bounds { saves: [(Some(1), 1), (None, 0)], collectors: 1, ..OVERLAP };
    let many = Bounds { saves: [(Some(1), 1), (Some(1), 0)], ..few };
    let happens = assert_holds(within(few, many), false);
    assert!(happens.contains(&"a save is mended"), "{happens:?}");
}

/// Returns the bounds of a test: large ones, which take minutes and gigabytes, if the environment
/// has `OUTLIVE_MODEL=large`.
fn within(few: Bounds, many: Bounds) -> Bounds {
    match std::env::var("OUTLIVE_MODEL").as_deref() {
        Ok("large") => many,
        Ok(other) => panic!("OUTLIVE_MODEL can be `large`, and is {other:?}"),
        Err(_) => few,
    }
}

/// Each broken rule shows: data is lost, or about to be.
macro_rules! lies {
    ($($test:ident: $lie:ident, $unfinished:literal, $fails:literal;)*) => {$(
        #[test]
        fn $test() {
            let lie = Some(Lie::$lie);
            let found = explore(Protocol { bounds: OVERLAP, unfinished: $unfinished, lie });
            assert!(found.fails.iter().any(|(name, _)| *name == $fails), "{:?}", found.fails);
        }
    )*};
}

lies! {
    savers_must_append_behind_the_records_that_they_read:
        SaversAppendBlindly, false, "no manifest lists what was condemned";
    collectors_must_append_behind_the_records_that_they_read:
        CollectorsAppendBlindly, false, "no manifest lists what was condemned";
    records_that_are_read_again_must_be_marked_again:
        MarksOnce, false, "every checkpoint has its packs";
    jobs_without_a_session_must_be_told:
        TellsOnlyOpenJobs, false, "every checkpoint has its packs";
    packs_that_a_saver_may_need_must_wait:
        DeletesWhatIsHeld, false, "who must mend finds what to copy";
    a_finished_pack_is_no_left_over:
        DeletesFinishedLeftOvers, true, "every checkpoint has its packs";
    a_collector_must_ask_whether_it_is_fenced_behind_the_records_that_it_read:
        ChecksBeforeItReads, false, "every checkpoint has its packs";
}
