//! Schedules of the model that the code follows. [`ReplicatedLog`] must ask the model's questions,
//! hold the same records, and come to the same end.

use super::model::{Action, Asked, Number, State, What, Wish};
use outlive_log::replicas::slot::{NumberState, RegisterContent};
use outlive_log::{
    Asking, LogLocks, LogMedium, LogRecords, LogSeal, MemoryMedium, Put, ReplicatedLog,
};
use outlive_types::{Error, JobName, Result, SeededRng};
use stateright::Model;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

const CLOSED: &[u8] = b"outlive: no record gets its number in this round\n";

fn job() -> JobName {
    JobName::new("x").unwrap()
}

fn bytes(what: &What) -> Option<Vec<u8>> {
    match what {
        What::Look => None,
        What::Put(value) => Some(vec![*value]),
        What::Close => Some(CLOSED.to_vec()),
    }
}

/// A message of an actor.
enum Told {
    /// The actor is about to ask this question.
    Asks(Asked),
    /// The actor has ended; `None` if the state of the number is unknown.
    Ended(Option<End>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum End {
    Put(Put),
    Got(Option<Vec<u8>>),
}

/// A replica as one actor sees it: each question waits until the schedule decides its outcome.
#[derive(Debug)]
struct Gated {
    place: usize,
    medium: Arc<MemoryMedium>,
    tells: Sender<Told>,
    /// Whether the question is carried out and answered.
    hears: Arc<Mutex<Receiver<bool>>>,
    /// Whether a question is being carried out.
    within: Mutex<bool>,
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Told")
    }
}

impl Gated {
    fn ask(&self, register: u64, what: What) -> Result<()> {
        let round = (register & 0xffff) as u16;
        let asked = Asked { place: self.place, round, what };
        // After the schedule, no thread receives this.
        let _ = self.tells.send(Told::Asks(asked));
        match self.hears.lock().unwrap().recv() {
            Ok(true) => {
                *self.within.lock().unwrap() = true;
                Ok(())
            }
            _ => Err(Error::retry("the schedule says so")),
        }
    }
}

impl LogRecords for Gated {
    fn describe(&self) -> String {
        "a place of a schedule".to_owned()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.medium.jobs()
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        // Each question ends with this call.
        *self.within.lock().unwrap() = false;
        self.medium.list(job)
    }

    fn get(&self, job: &JobName, register: u64) -> Result<Option<Vec<u8>>> {
        let within = *self.within.lock().unwrap();
        if !within {
            self.ask(register, What::Look)?;
        }
        self.medium.get(job, register)
    }

    fn put_new(&self, job: &JobName, register: u64, record: &[u8]) -> Result<Put> {
        let what = if record == CLOSED { What::Close } else { What::Put(record[0]) };
        self.ask(register, what)?;
        self.medium.put_new(job, register, record)
    }

    fn delete(&self, job: &JobName, register: u64) -> Result<()> {
        self.medium.delete(job, register)
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.medium.sync(job)
    }
}

impl LogLocks for Gated {}

impl LogSeal for Gated {}

/// Returns a random schedule of the model, in which each actor asks one replica after the other.
pub fn schedule(model: &Number, seed: u64) -> (Vec<Action>, State) {
    let rng = SeededRng::new(seed);
    let mut state = model.init_states().remove(0);
    let mut taken = Vec::new();
    loop {
        let mut actions = Vec::new();
        model.actions(&state, &mut actions);
        actions.retain(|action| match action {
            Action::Answer(actor, place) | Action::Fail(actor, place) => {
                state.actors[*actor].waiting[0].place == *place
            }
            _ => true,
        });
        let mut next = None;
        while next.is_none() && !actions.is_empty() {
            let action = actions.swap_remove(rng.below(actions.len() as u64) as usize);
            // The model omits actions without effect, but here each is a step.
            let unchanged = matches!(action, Action::Late(_));
            let after = model.next_state(&state, action.clone());
            next = after.or_else(|| unchanged.then(|| state.clone())).map(|after| (action, after));
        }
        let Some((action, after)) = next else { return (taken, state) };
        if taken.len() > 300 {
            return (taken, state);
        }
        taken.push(action);
        state = after;
    }
}

struct Actor {
    told: Receiver<Told>,
    says: Sender<bool>,
    /// The last message of the actor; only one actor runs at a time.
    now: Told,
}

/// Makes the code follow a schedule.
pub fn follow(model: &Number, schedule: &[Action], end: &State) {
    let media: Vec<Arc<MemoryMedium>> = (0..model.places).map(|_| Arc::default()).collect();
    let mut state = model.init_states().remove(0);
    thread::scope(|scope| {
        let mut actors: Vec<Option<Actor>> = model.wishes.iter().map(|_| None).collect();
        for action in schedule {
            match action {
                Action::Begin(number) => {
                    let (tells, told) = channel();
                    let (says, hears) = channel();
                    let hears = Arc::new(Mutex::new(hears));
                    let gated = |(place, medium): (usize, &Arc<MemoryMedium>)| {
                        let (medium, tells) = (medium.clone(), tells.clone());
                        let (hears, within) = (hears.clone(), Mutex::default());
                        Arc::new(Gated { place, medium, tells, hears, within })
                            as Arc<dyn LogMedium>
                    };
                    let places = media.iter().enumerate().map(gated).collect();
                    let places = ReplicatedLog::new(places, Asking::InTurn).unwrap();
                    let wish = model.wishes[*number];
                    scope.spawn(move || {
                        let end = match wish {
                            Wish::Put(value) => places.put_new(&job(), 1, &[value]).map(End::Put),
                            Wish::Look => places.get(&job(), 1).map(End::Got),
                        };
                        // Perhaps no thread receives this any more.
                        let _ = tells.send(Told::Ended(end.ok()));
                    });
                    let now = told.recv().expect("it is at work");
                    actors[*number] = Some(Actor { told, says, now });
                }
                Action::Answer(number, place) | Action::Fail(number, place) => {
                    let actor = actors[*number].as_mut().expect("it has begun");
                    let expected = &state.actors[*number].waiting[0];
                    assert_eq!(expected.place, *place);
                    match &actor.now {
                        Told::Asks(asked) => assert_eq!(asked, expected, "{action:?}"),
                        Told::Ended(end) => panic!("{action:?}: it has ended with {end:?}"),
                    }
                    actor.says.send(matches!(action, Action::Answer(..))).expect("it waits");
                    actor.now = actor.told.recv().expect("it is at work");
                }
                Action::Late(at) => {
                    let asked = &state.stale[*at];
                    let record = bytes(&asked.what).expect("it writes");
                    let register = 1 << 16 | u64::from(asked.round);
                    media[asked.place].put_new(&job(), register, &record).unwrap();
                }
                Action::GoOn(_) => {}
            }
            if let Some(after) = model.next_state(&state, action.clone()) {
                state = after;
            } else if let Action::Late(at) = action {
                state.stale.remove(*at);
            }
        }
        for (number, actor) in actors.iter().enumerate() {
            let (Some(actor), Some(outcome)) = (actor, state.actors[number].slot.outcome()) else {
                continue;
            };
            let ended = match &actor.now {
                Told::Ended(ended) => ended.clone(),
                Told::Asks(asked) => panic!("{number} asks {asked:?}, and should have {outcome:?}"),
            };
            let is_put = matches!(model.wishes[number], Wish::Put(_));
            let expected = match outcome {
                NumberState::Has { ours: true, .. } if is_put => Some(End::Put(Put::Made)),
                NumberState::Has { .. } if is_put => Some(End::Put(Put::Taken)),
                NumberState::Has { record, .. } => Some(End::Got(Some(vec![*record]))),
                NumberState::Nothing | NumberState::Removed => Some(End::Got(None)),
                NumberState::Unknown(_) => None,
            };
            assert_eq!(ended, expected, "{number}");
        }
        // Actors in the middle of an operation get no more answers.
        drop(actors);
        for (place, registers) in end.registers.iter().enumerate() {
            for (round, held) in registers.iter().enumerate() {
                let there = media[place].get(&job(), 1 << 16 | round as u64).unwrap();
                let expected = match held {
                    RegisterContent::Free => None,
                    RegisterContent::Closed => Some(CLOSED.to_vec()),
                    RegisterContent::Value(value) => Some(vec![*value]),
                };
                assert_eq!(there, expected, "place {place}, round {round}");
            }
        }
    });
}
