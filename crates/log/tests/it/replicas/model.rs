//! The model. Its steps are those of [`Slot`] itself; it models everything around them. A question
//! may be carried out at any later time, or never. Its answer may be lost, which also stands for a
//! crash and for a replica that is away. An actor with enough answers may go on without the others.

use outlive_log::replicas::slot::{
    NumberState, Operation, RegisterContent, ReplicaAnswer, Round, Slot, UnknownReason,
};
use stateright::{Model, Property};

/// A record.
pub type Value = u8;

/// A broken rule of the replicas, to show that the model finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// A register can be written again.
    Replaces,
    /// One replica forgets what it acknowledged.
    Forgets,
    /// The second writer begins with another replica.
    AnotherOrder,
    /// A replica reports a register as closed, and leaves it free.
    ClosesNothing,
}

impl Lie {
    /// All broken rules.
    pub const ALL: [Lie; 4] = [Lie::Replaces, Lie::Forgets, Lie::AnotherOrder, Lie::ClosesNothing];
}

/// The goal of an actor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wish {
    Put(Value),
    Look,
}

#[derive(Clone, Debug)]
pub struct Number {
    pub places: usize,
    pub wishes: Vec<Wish>,
    /// Highest round that an actor enters.
    pub rounds: Round,
    /// Number of questions that stay without an answer.
    pub failures: usize,
    pub lie: Option<Lie>,
}

/// A question to a replica.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Asked {
    pub place: usize,
    pub round: Round,
    pub what: What,
}

/// As [`Operation`], with an order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum What {
    Look,
    Put(Value),
    Close,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Actor {
    pub slot: Slot<Value>,
    pub waiting: Vec<Asked>,
    pub has_enough: bool,
    /// An actor had learnt of a record when this one began.
    pub must_find: bool,
    pub has_begun: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// The registers by replica and round.
    pub registers: Vec<Vec<RegisterContent<Value>>>,
    pub actors: Vec<Actor>,
    /// Questions whose actors no longer wait for an answer.
    pub stale: Vec<Asked>,
    pub failures: usize,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    Begin(usize),
    /// An actor's question to a replica is carried out, and the actor gets the answer.
    Answer(usize, usize),
    /// The actor stops waiting for the answer.
    Fail(usize, usize),
    /// A question is carried out although no actor waits for its answer.
    Late(usize),
    GoOn(usize),
}

impl Number {
    fn ask(&self, number: usize, actor: &mut Actor) {
        let shift = usize::from(self.lie == Some(Lie::AnotherOrder) && number == 1);
        let round = actor.slot.round();
        let asked = |(place, what): (usize, Operation<Value>)| {
            let what = match what {
                Operation::Look => What::Look,
                Operation::Put(value) => What::Put(value),
                Operation::Close => What::Close,
            };
            Asked { place: (place + shift) % self.places, round, what }
        };
        actor.waiting = actor.slot.questions().into_iter().map(asked).collect();
        actor.waiting.sort_unstable();
        actor.has_enough = false;
    }

    /// Carries out a question.
    fn carry_out(
        &self,
        registers: &mut [Vec<RegisterContent<Value>>],
        asked: &Asked,
    ) -> ReplicaAnswer<Value> {
        let Asked { place, round, what } = asked;
        let register = &mut registers[*place][usize::from(*round)];
        let new = match what {
            What::Look => return ReplicaAnswer::Holds(register.clone(), false),
            What::Put(value) => RegisterContent::Value(*value),
            What::Close => RegisterContent::Closed,
        };
        let is_free = *register == RegisterContent::Free || self.lie == Some(Lie::Replaces);
        let closes_nothing = self.lie == Some(Lie::ClosesNothing) && *what == What::Close;
        let forgets = self.lie == Some(Lie::Forgets) && *place == 2;
        if is_free && (closes_nothing || forgets) {
            return ReplicaAnswer::Holds(new, true);
        }
        if is_free {
            *register = new;
        }
        ReplicaAnswer::Holds(register.clone(), is_free)
    }

    fn found(state: &State) -> impl Iterator<Item = (&Value, bool)> {
        state.actors.iter().filter_map(|actor| match actor.slot.outcome() {
            Some(NumberState::Has { record, ours }) => Some((record, *ours)),
            _ => None,
        })
    }
}

impl Model for Number {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let actor = |wish: &Wish| Actor {
            slot: match wish {
                Wish::Put(value) => Slot::put(self.places, *value),
                Wish::Look => Slot::look(self.places),
            },
            waiting: Vec::new(),
            has_enough: false,
            must_find: false,
            has_begun: false,
        };
        let rounds = usize::from(self.rounds) + 1;
        vec![State {
            registers: vec![vec![RegisterContent::Free; rounds]; self.places],
            actors: self.wishes.iter().map(actor).collect(),
            stale: Vec::new(),
            failures: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, actor) in state.actors.iter().enumerate() {
            if !actor.has_begun {
                actions.push(Action::Begin(number));
                continue;
            }
            if actor.slot.outcome().is_some() {
                continue;
            }
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
        actions.extend((0..state.stale.len()).map(Action::Late));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin(number) => {
                let must_find = Number::found(last).next().is_some();
                let actor = &mut state.actors[number];
                (actor.has_begun, actor.must_find) = (true, must_find);
                self.ask(number, actor);
            }
            Action::Answer(number, place) => {
                let actor = &mut state.actors[number];
                let at = actor.waiting.iter().position(|asked| asked.place == place)?;
                let asked = actor.waiting.remove(at);
                let answer = self.carry_out(&mut state.registers, &asked);
                let shift = usize::from(self.lie == Some(Lie::AnotherOrder) && number == 1);
                let place = (place + self.places - shift) % self.places;
                actor.has_enough |= actor.slot.told(place, answer);
            }
            Action::Fail(number, place) => {
                let actor = &mut state.actors[number];
                let at = actor.waiting.iter().position(|asked| asked.place == place)?;
                let asked = actor.waiting.remove(at);
                // A question that only looks changes nothing, whenever it is carried out.
                if asked.what != What::Look {
                    state.stale.push(asked);
                    state.stale.sort_unstable();
                }
                state.failures += usize::from(!actor.has_enough);
            }
            Action::Late(at) => {
                let asked = state.stale.remove(at);
                self.carry_out(&mut state.registers, &asked);
            }
            Action::GoOn(number) => {
                let actor = &mut state.actors[number];
                actor.slot.go_on();
                if actor.slot.round() > self.rounds {
                    return None;
                }
                self.ask(number, actor);
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("a number has one record", |_, state: &State| {
                let mut found = Number::found(state).map(|(record, _)| record);
                let first = found.next();
                found.all(|record| Some(record) == first)
            }),
            Property::always("it is one that was put", |model: &Number, state: &State| {
                Number::found(state).all(|(record, _)| model.wishes.contains(&Wish::Put(*record)))
            }),
            Property::always(
                "a record that one program finds is found by all later ones",
                |_, state: &State| {
                    let missed = |actor: &Actor| {
                        actor.must_find && actor.slot.outcome() == Some(&NumberState::Nothing)
                    };
                    !state.actors.iter().any(missed)
                },
            ),
            Property::always("places do not disagree", |_, state: &State| {
                let disagree = NumberState::Unknown(UnknownReason::Disagree);
                !state.actors.iter().any(|actor| actor.slot.outcome() == Some(&disagree))
            }),
            Property::always(
                "of two that put one is told that his is there",
                |_, state: &State| Number::found(state).filter(|(_, ours)| *ours).count() <= 1,
            ),
            Property::sometimes("a record is put", |_, state: &State| {
                Number::found(state).any(|(_, ours)| ours)
            }),
        ];
        let looks = self.wishes.contains(&Wish::Look);
        if self.failures > 0 && self.rounds > 0 {
            properties.push(Property::sometimes(
                "a record is put in a later round",
                |_, state: &State| {
                    let late = |actor: &Actor| {
                        matches!(actor.slot.outcome(), Some(NumberState::Has { ours: true, .. }))
                            && actor.slot.round() > 0
                    };
                    state.actors.iter().any(late)
                },
            ));
        }
        if looks && self.failures > 0 {
            properties.push(Property::sometimes(
                "a program completes what another began",
                |model: &Number, state: &State| {
                    let looker = |(wish, actor): (&Wish, &Actor)| {
                        *wish == Wish::Look
                            && matches!(actor.slot.outcome(), Some(NumberState::Has { .. }))
                    };
                    let alone = state.actors.iter().filter(|actor| actor.slot.outcome().is_some());
                    alone.count() == 1 && model.wishes.iter().zip(&state.actors).any(looker)
                },
            ));
        }
        properties
    }
}
