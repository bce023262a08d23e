//! The model of a move: programs put or read a record, while others move the log. The steps are
//! those of [`Slot`], [`Course`] and [`Who`] themselves. The registers of the old replicas are
//! modelled one by one. Their single decision (what the log had) is one step, since the other model
//! shows that a number has one record.

use outlive_log::replicas::course::{Course, Step};
use outlive_log::replicas::slot::{
    NumberState, Operation, RegisterContent, ReplicaAnswer, Round, Slot, UnknownReason,
};
use outlive_log::replicas::who::Who;
use stateright::{Model, Property};

type Value = u8;
/// The content of the log at its move: its record, if it had one.
type Had = Option<Value>;

/// A broken rule, to show that the model finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// One program counts answers of sealed replicas.
    IgnoresSeals,
    /// Programs check for the seal before an operation, and not after it.
    LooksFirst,
    /// A mover asks the replicas first, and seals them later.
    AsksUnsealed,
    /// A mover copies what it found, whatever was decided.
    DecidesAlone,
    /// A replica is opened before it has the copied records.
    OpensFirst,
    /// A removal deletes a copied record, and does not record that.
    NotesNothing,
}

impl Lie {
    pub const ALL: [Lie; 6] = [
        Lie::IgnoresSeals,
        Lie::LooksFirst,
        Lie::AsksUnsealed,
        Lie::DecidesAlone,
        Lie::OpensFirst,
        Lie::NotesNothing,
    ];
}

/// The goal of an actor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wish {
    Put(Value),
    Look,
    Move,
    /// Remove the record from the new replicas, once others have come after it.
    Remove,
}

#[derive(Clone, Debug)]
pub struct Move {
    pub old: usize,
    pub new: usize,
    pub wishes: Vec<Wish>,
    /// Highest round that an actor enters.
    pub rounds: Round,
    /// Number of questions that stay without an answer.
    pub failures: usize,
    pub lie: Option<Lie>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Asked {
    place: usize,
    round: Round,
    what: What,
    by_mover: bool,
    /// The state of the seal that the actor saw, if it does not check last.
    believes: Option<bool>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum What {
    Look,
    Put(Value),
    Close,
}

/// The progress of an actor.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Phase {
    NotBegun,
    /// Asks the old replicas.
    Old(Slot<Value>),
    /// Moves the log, and asks what it had.
    Gather(Course<(), Had>, Slot<Value>),
    /// Moves the log; each next step of the move is one step here.
    Moves(Course<(), Had>),
    /// The new replicas are the log.
    New,
    /// The result: the record of the number, and whether this actor put it.
    Over(Option<Value>, bool),
    /// The actor knows nothing.
    GaveUp,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Actor {
    phase: Phase,
    waiting: Vec<Asked>,
    has_enough: bool,
    saw_seal: bool,
    must_find: bool,
    may_find: bool,
}

/// A new replica.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct NewReplica {
    has: Option<Had>,
    is_open: bool,
    /// The replica has a note that the record was removed.
    is_noted: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    registers: Vec<Vec<RegisterContent<Value>>>,
    sealed: Vec<bool>,
    had: Option<Had>,
    new: Vec<NewReplica>,
    /// The record put into the new replicas, where none had been copied.
    put: Option<Value>,
    /// Others came after the copied record, and it was removed.
    removed: bool,
    actors: Vec<Actor>,
    stale: Vec<Asked>,
    failures: usize,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    Begin(usize),
    /// An actor's question to an old replica is carried out, and the actor gets the answer.
    Answer(usize, usize),
    Fail(usize, usize),
    Late(usize),
    GoOn(usize),
    /// Decides what the log had.
    End(usize),
    /// A new replica gets its content, and is opened.
    Fill(usize, usize),
    /// A majority of the new replicas are open.
    Opened(usize),
    /// Asks the new replicas except one.
    AskNew(usize, usize),
}

impl Move {
    fn ask(&self, state: &mut State, number: usize) {
        let (slot, by_mover) = match &state.actors[number].phase {
            Phase::Old(slot) => (slot, false),
            Phase::Gather(_, slot) => (slot, true),
            _ => return,
        };
        let round = slot.round();
        let asked = |(place, what): (usize, Operation<Value>)| {
            let what = match what {
                Operation::Look => What::Look,
                Operation::Put(value) => What::Put(value),
                Operation::Close => What::Close,
            };
            let believes = match self.lie {
                Some(Lie::LooksFirst) => Some(state.sealed[place]),
                Some(Lie::IgnoresSeals) if number == 0 => Some(false),
                _ => None,
            };
            Asked { place, round, what, by_mover, believes }
        };
        let waiting: Vec<Asked> = slot.questions().into_iter().map(asked).collect();
        let actor = &mut state.actors[number];
        (actor.waiting, actor.has_enough) = (waiting, false);
        actor.waiting.sort_unstable();
    }

    /// Carries out a question; `None` if the answer does not count.
    fn carry_out(&self, state: &mut State, asked: &Asked) -> Option<ReplicaAnswer<Value>> {
        let Asked { place, round, what, by_mover, believes } = asked;
        let who = if *by_mover { Who::Mover } else { Who::User };
        let seals_late = self.lie == Some(Lie::AsksUnsealed);
        if who.seals_first() && !seals_late {
            state.sealed[*place] = true;
        }
        let register = &mut state.registers[*place][usize::from(*round)];
        let is_free = *register == RegisterContent::Free;
        let made = is_free && *what != What::Look;
        match what {
            What::Put(value) if is_free => *register = RegisterContent::Value(*value),
            What::Close if is_free => *register = RegisterContent::Closed,
            _ => {}
        }
        let answer = ReplicaAnswer::Holds(register.clone(), made);
        let counts = who.counts(believes.unwrap_or(state.sealed[*place]));
        counts.then_some(answer)
    }

    /// Takes the next step after the answers of the old replicas.
    fn after_old(&self, state: &mut State, number: usize) {
        let actor = &mut state.actors[number];
        let next = match &actor.phase {
            Phase::Old(slot) => match slot.outcome() {
                None => return,
                Some(NumberState::Has { record, ours }) => Phase::Over(Some(*record), *ours),
                Some(NumberState::Nothing | NumberState::Removed) => Phase::Over(None, false),
                // It follows the seal.
                Some(NumberState::Unknown(_)) if actor.saw_seal => {
                    Phase::Gather(Course::sealed(), Slot::look(self.old))
                }
                Some(NumberState::Unknown(_)) => Phase::GaveUp,
            },
            Phase::Gather(course, slot) => {
                let mut course = course.clone();
                match slot.outcome() {
                    None => return,
                    Some(NumberState::Has { record, .. }) => course.gathered(Some(*record)),
                    Some(NumberState::Nothing | NumberState::Removed) => course.gathered(None),
                    Some(NumberState::Unknown(_)) => {
                        actor.phase = Phase::GaveUp;
                        return;
                    }
                }
                Phase::Moves(course)
            }
            _ => return,
        };
        actor.phase = next;
        actor.waiting.clear();
        self.ask(state, number);
    }

    fn fill(&self, place: &mut NewReplica, had: Had) {
        match self.lie {
            Some(Lie::OpensFirst) if !place.is_open => place.is_open = true,
            _ => {
                place.has.get_or_insert(had);
                place.is_open = true;
            }
        }
    }

    fn found(state: &State) -> impl Iterator<Item = (Value, bool)> {
        state.actors.iter().filter_map(|actor| match actor.phase {
            Phase::Over(Some(record), ours) => Some((record, ours)),
            _ => None,
        })
    }
}

impl Model for Move {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let actor = Actor {
            phase: Phase::NotBegun,
            waiting: Vec::new(),
            has_enough: false,
            saw_seal: false,
            must_find: false,
            may_find: true,
        };
        vec![State {
            registers: vec![vec![RegisterContent::Free; usize::from(self.rounds) + 1]; self.old],
            sealed: vec![false; self.old],
            had: None,
            new: vec![NewReplica::default(); self.new],
            put: None,
            removed: false,
            actors: vec![actor; self.wishes.len()],
            stale: Vec::new(),
            failures: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, actor) in state.actors.iter().enumerate() {
            match &actor.phase {
                Phase::NotBegun => actions.push(Action::Begin(number)),
                Phase::Old(_) | Phase::Gather(..) => {
                    for asked in &actor.waiting {
                        actions.push(Action::Answer(number, asked.place));
                        if actor.has_enough || state.failures < self.failures {
                            actions.push(Action::Fail(number, asked.place));
                        }
                    }
                    if actor.waiting.is_empty() {
                        actions.push(Action::GoOn(number));
                    }
                }
                Phase::Moves(course) => match course.step() {
                    Step::End(_) => actions.push(Action::End(number)),
                    Step::Copy(_) => {
                        let fill = |place| Action::Fill(number, place);
                        actions.extend((0..self.new).map(fill));
                        actions.push(Action::Opened(number));
                    }
                    _ => {}
                },
                Phase::New => {
                    actions.extend((0..=self.new).map(|but| Action::AskNew(number, but)));
                }
                Phase::Over(..) | Phase::GaveUp => {}
            }
        }
        actions.extend((0..state.stale.len()).map(Action::Late));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin(number) => {
                let must_find = Move::found(last).next().is_some();
                let actor = &mut state.actors[number];
                actor.must_find = must_find;
                actor.may_find = !last.removed;
                actor.phase = match self.wishes[number] {
                    Wish::Put(value) => Phase::Old(Slot::put(self.old, value)),
                    Wish::Look | Wish::Remove => Phase::Old(Slot::look(self.old)),
                    Wish::Move => {
                        let mut course = Course::begin(());
                        course.succeeded(); // there is only one successor
                        Phase::Gather(course, Slot::look(self.old))
                    }
                };
                self.ask(&mut state, number);
            }
            Action::Answer(number, place) => {
                let waiting = &mut state.actors[number].waiting;
                let at = waiting.iter().position(|asked| asked.place == place)?;
                let asked = waiting.remove(at);
                let answer = self.carry_out(&mut state, &asked);
                let actor = &mut state.actors[number];
                match (&mut actor.phase, answer) {
                    (Phase::Old(slot) | Phase::Gather(_, slot), Some(answer)) => {
                        actor.has_enough |= slot.told(place, answer);
                    }
                    _ => actor.saw_seal = true,
                }
            }
            Action::Fail(number, place) => {
                let actor = &mut state.actors[number];
                let at = actor.waiting.iter().position(|asked| asked.place == place)?;
                let asked = actor.waiting.remove(at);
                state.failures += usize::from(!actor.has_enough);
                if asked.what != What::Look || asked.by_mover {
                    state.stale.push(asked);
                    state.stale.sort_unstable();
                }
            }
            Action::Late(at) => {
                let asked = state.stale.remove(at);
                self.carry_out(&mut state, &asked);
            }
            Action::GoOn(number) => {
                match &mut state.actors[number].phase {
                    Phase::Old(slot) | Phase::Gather(_, slot) => {
                        slot.go_on();
                        if slot.round() > self.rounds {
                            return None;
                        }
                    }
                    _ => return None,
                }
                let by_mover = matches!(state.actors[number].phase, Phase::Gather(..));
                if by_mover && self.lie == Some(Lie::AsksUnsealed) {
                    state.sealed.fill(true);
                }
                self.ask(&mut state, number);
                self.after_old(&mut state, number);
            }
            Action::End(number) => {
                let Phase::Moves(course) = &mut state.actors[number].phase else { return None };
                let Step::End(mine) = course.step().clone() else { return None };
                let decided = *state.had.get_or_insert(mine);
                course.ended(if self.lie == Some(Lie::DecidesAlone) { mine } else { decided });
            }
            Action::Fill(number, place) => {
                let Phase::Moves(course) = &state.actors[number].phase else { return None };
                let Step::Copy(had) = course.step().clone() else { return None };
                self.fill(&mut state.new[place], had);
            }
            Action::Opened(number) => {
                let open = state.new.iter().filter(|place| place.is_open).count();
                let Phase::Moves(course) = &mut state.actors[number].phase else { return None };
                course.opened(open, self.new);
                if *course.step() != Step::Over {
                    return None;
                }
                state.actors[number].phase = match self.wishes[number] {
                    Wish::Move => Phase::GaveUp, // its task is done
                    _ => Phase::New,
                };
            }
            Action::AskNew(number, but) => {
                let asked = state.new.iter().enumerate();
                let asked = asked.filter(|(place, there)| *place != but && there.is_open);
                let asked: Vec<NewReplica> = asked.map(|(_, there)| *there).collect();
                if asked.len() <= self.new / 2 {
                    return None;
                }
                let is_noted = asked.iter().any(|place| place.is_noted);
                let copied = asked.iter().find_map(|place| place.has.flatten());
                let copied = copied.filter(|_| !is_noted);
                let before = state.put;
                if self.wishes[number] == Wish::Remove && copied.is_some() {
                    state.removed = true;
                    let open = state.new.iter_mut().enumerate();
                    for (_, place) in open.filter(|(place, there)| *place != but && there.is_open) {
                        place.is_noted = self.lie != Some(Lie::NotesNothing);
                        place.has = None;
                    }
                    state.actors[number].phase = Phase::GaveUp; // its task is done
                    return Some(state);
                }
                let there = match self.wishes[number] {
                    _ if copied.is_some() => copied,
                    // There are newer records.
                    _ if state.removed => None,
                    Wish::Put(value) => Some(*state.put.get_or_insert(value)),
                    _ => state.put,
                };
                let ours = copied.is_none() && before.is_none() && there.is_some();
                state.actors[number].phase = Phase::Over(there, ours);
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("a number has one record", |_, state: &State| {
                let mut found = Move::found(state).map(|(record, _)| record);
                let first = found.next();
                found.all(|record| Some(record) == first)
            }),
            Property::always(
                "a record that one program finds is found by all later ones",
                |_, state: &State| {
                    let missed = |actor: &Actor| {
                        actor.must_find && matches!(actor.phase, Phase::Over(None, _))
                    };
                    state.removed || !state.actors.iter().any(missed)
                },
            ),
            Property::always("a removed record comes back to no program", |_, state: &State| {
                let found = |actor: &Actor| {
                    !actor.may_find && matches!(actor.phase, Phase::Over(Some(_), _))
                };
                !state.actors.iter().any(found)
            }),
            Property::always("one is told that his is there", |_, state: &State| {
                Move::found(state).filter(|(_, ours)| *ours).count() <= 1
            }),
            Property::always("places do not disagree", |_, state: &State| {
                let disagree = NumberState::Unknown(UnknownReason::Disagree);
                !state.actors.iter().any(|actor| {
                    matches!(&actor.phase, Phase::Old(slot) | Phase::Gather(_, slot)
                        if slot.outcome() == Some(&disagree))
                })
            }),
            Property::sometimes("the log is moved", |model: &Move, state: &State| {
                state.new.iter().filter(|place| place.is_open).count() > model.new / 2
            }),
        ];
        if self.wishes.contains(&Wish::Remove) {
            properties.push(Property::sometimes(
                "what was removed is copied once more",
                |_, state: &State| state.new.iter().any(|new| new.is_noted && new.has.is_some()),
            ));
        }
        if self.wishes.iter().any(|wish| matches!(wish, Wish::Put(_))) {
            properties.extend([
                Property::sometimes("a record is copied", |_, state: &State| {
                    state.new.iter().any(|place| place.has.is_some_and(|had| had.is_some()))
                }),
                Property::sometimes("a record is put in the new places", |_, state: &State| {
                    state.put.is_some()
                }),
                Property::sometimes("a record that was begun stays behind", |_, state: &State| {
                    let begun = |register: &RegisterContent<Value>| {
                        matches!(register, RegisterContent::Value(_))
                    };
                    state.had == Some(None) && state.registers.iter().flatten().any(begun)
                }),
            ]);
        }
        properties
    }
}
