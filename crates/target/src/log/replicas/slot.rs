//! How a number gets its record where the log is in several places: a protocol of write-once registers,
//! as steps without any input or output. Tests explore all orders in which its questions may be answered.
//!
//! H. Howard and R. Mortier, "A Generalised Solution to Distributed Consensus", 2019 (Paxos over registers
//! that are written once). E. Gafni and L. Lamport, "Disk Paxos", 2003, has the same places and failures.
//!
//! Each place has a register for each round of a number. A register is free until somebody writes a record
//! into it, or closes it; neither is ever undone. A record *has its number* once a majority of the places
//! hold it in one round. Three rules keep there from being two:
//!
//! 1. Of each round one place is asked first, another one in the next round. What its register holds is
//!    the round's only record: whoever finds it there puts that, and not his own, into the others.
//! 2. Nobody writes in a round before a majority of the places have a closed register, or a record, in each
//!    round below it. So no record can get its number there any more unless it has been seen.
//! 3. A record that was seen in a round below goes before one's own, that of the highest round before
//!    others.

/// A round of a number.
pub type Round = u16;

/// So many rounds a number may have. One is used up where the place that is asked first is away.
pub const ROUNDS_MAX: Round = 0xfffe;

/// What a register holds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Held<V> {
    /// Nothing, yet.
    Free,
    /// Nothing, for ever.
    Closed,
    /// A record.
    Value(V),
}

/// What is done at a place, in one round.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Operation<V> {
    /// Nothing is written.
    Look,
    /// The record is written if the register is free.
    Put(V),
    /// The register is closed if it is free.
    Close,
}

/// What a place answers, after the operation. Whatever it says is durable there.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Answer<V> {
    /// What the register holds now, and whether this operation has written that.
    Holds(Held<V>, bool),
    /// The record that has the number, as the place was told by somebody who knew.
    Settled(V),
    /// All records up to this number were removed.
    Removed,
}

/// Why a number's record is not known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UnknownReason {
    /// Less than a majority of the places answer.
    TooFew,
    /// Two places hold different records in one round: one of them is damaged.
    Disagree,
    /// All rounds are used up.
    NoRoundLeft,
}

/// What became of a number.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Outcome<V> {
    /// It has this one.
    Has {
        /// The record.
        record: V,
        /// It was given to this very [`Slot`], which put it there.
        ours: bool,
    },
    /// It had none while this was asked.
    Nothing,
    /// It was removed.
    Removed,
    /// It is not known.
    Unknown(UnknownReason),
}

/// Where one is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Phase<V> {
    /// All places are asked what they hold.
    Look,
    /// The round's first place is asked.
    First,
    /// It holds this record, and the others are to have it as well.
    Spread(V),
    /// The round is closed.
    Close,
    Over(Outcome<V>),
}

/// One look at a number, or one attempt to give it a record.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Slot<V> {
    own: Option<V>,
    /// What was seen in the highest round below.
    seen: Option<V>,
    /// Whether the round's record was put there first by us, and is our own.
    ours: bool,
    round: Round,
    phase: Phase<V>,
    /// What each place has answered in this phase.
    answers: Vec<Option<Answer<V>>>,
}

impl<V: Clone + Eq> Slot<V> {
    /// Asks `places` places which record a number has.
    pub fn look(replicas: usize) -> Slot<V> {
        Slot::begin(replicas, None, Phase::Look)
    }

    /// Gives the number this record, unless it has one.
    pub fn put(replicas: usize, record: V) -> Slot<V> {
        Slot::begin(replicas, Some(record), Phase::First)
    }

    fn begin(replicas: usize, own: Option<V>, phase: Phase<V>) -> Slot<V> {
        let answers = vec![None; replicas];
        Slot { own, seen: None, ours: false, round: 0, phase, answers }
    }

    /// What became of it; `None` if there is more to do.
    pub fn outcome(&self) -> Option<&Outcome<V>> {
        match &self.phase {
            Phase::Over(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// The round it is in.
    pub fn round(&self) -> Round {
        self.round
    }

    /// What is to be done now, at which places, in any order or at once. Each answer goes to
    /// [`Slot::told`]; when that says so, or none is to come any more, [`Slot::go_on`] is called.
    pub fn questions(&self) -> Vec<(usize, Operation<V>)> {
        let first = self.first();
        let all = 0..self.answers.len();
        match &self.phase {
            Phase::Look => all.map(|replica| (replica, Operation::Look)).collect(),
            Phase::First => {
                let proposed = self.seen.as_ref().or(self.own.as_ref());
                let put = |record: &V| Operation::Put(record.clone());
                vec![(first, proposed.map_or(Operation::Look, put))]
            }
            Phase::Spread(record) => {
                let put = |replica| (replica, Operation::Put(record.clone()));
                all.filter(|replica| *replica != first).map(put).collect()
            }
            Phase::Close => all.map(|replica| (replica, Operation::Close)).collect(),
            Phase::Over(_) => Vec::new(),
        }
    }

    /// A place has answered. True if enough have: what the others say, or whether they do, changes nothing.
    pub fn told(&mut self, replica: usize, answer: Answer<V>) -> bool {
        self.answers[replica] = Some(answer);
        match &self.phase {
            Phase::Look => self.looked().is_some(),
            Phase::First => true,
            Phase::Spread(_) => self.spread().is_some(),
            Phase::Close => self.count(|_| true) >= self.majority(),
            Phase::Over(_) => true,
        }
    }

    /// Takes the next step, with the answers that have come.
    pub fn go_on(&mut self) {
        let next = match &self.phase {
            Phase::Look => self.looked().unwrap_or_else(|| match self.has_majority() {
                // Half-written, and whoever is away may have it as well: it gets its number.
                true => Phase::First,
                false => Phase::Over(Outcome::Unknown(UnknownReason::TooFew)),
            }),
            Phase::First => self.first_answered(),
            Phase::Spread(_) => self.spread().unwrap_or(Phase::Close),
            Phase::Close => self.closed(),
            Phase::Over(_) => return,
        };
        match (&self.phase, &next) {
            // The first place counts.
            (Phase::First, Phase::Spread(_)) => {}
            _ => self.answers.iter_mut().for_each(|answer| *answer = None),
        }
        match (&self.phase, &next) {
            (Phase::Look, Phase::Look) | (Phase::Close, Phase::First) => self.round += 1,
            (Phase::Look, Phase::First) => self.round = 0,
            _ => {}
        }
        self.phase = match self.round < ROUNDS_MAX {
            true => next,
            false => Phase::Over(Outcome::Unknown(UnknownReason::NoRoundLeft)),
        };
    }

    /// The place that this round asks first.
    fn first(&self) -> usize {
        usize::from(self.round) % self.answers.len()
    }

    fn majority(&self) -> usize {
        self.answers.len() / 2 + 1
    }

    fn count(&self, is: impl Fn(&Answer<V>) -> bool) -> usize {
        self.answers.iter().flatten().filter(|answer| is(answer)).count()
    }

    fn has_majority(&self) -> bool {
        self.count(|_| true) >= self.majority()
    }

    /// What those say who know, rather than vote.
    fn known(&self) -> Option<Outcome<V>> {
        self.answers.iter().flatten().find_map(|answer| match answer {
            Answer::Settled(record) => Some(Outcome::Has { record: record.clone(), ours: false }),
            Answer::Removed => Some(Outcome::Removed),
            Answer::Holds(..) => None,
        })
    }

    /// A record that was seen in this round, and how many places hold it: the one that most do, and whether
    /// there is another.
    fn value(&self) -> Option<(&V, usize, bool)> {
        let values: Vec<&V> = (self.answers.iter().flatten())
            .filter_map(|answer| match answer {
                Answer::Holds(Held::Value(record), _) => Some(record),
                _ => None,
            })
            .collect();
        let votes = |record: &V| values.iter().filter(|other| **other == record).count();
        let most = values.iter().max_by_key(|record| votes(record))?;
        Some((most, votes(most), votes(most) < values.len()))
    }

    fn has(&self, record: &V) -> Phase<V> {
        Phase::Over(Outcome::Has { record: record.clone(), ours: self.ours })
    }

    /// What follows from what the places hold; `None` if more has to be known.
    fn looked(&self) -> Option<Phase<V>> {
        // Of a majority each, so that nothing is missed of what was removed.
        let answered = self.count(|_| true);
        if answered < self.majority() {
            return None;
        }
        if let Some(known) = self.known() {
            return Some(Phase::Over(known));
        }
        let unknown = self.answers.len() - answered;
        match self.value() {
            Some((record, votes, _)) if votes >= self.majority() => Some(self.has(record)),
            Some((_, votes, _)) if votes + unknown >= self.majority() => None,
            Some((_, _, true)) => Some(disagree()),
            // It does not have its number now, in this round.
            Some(_) => Some(Phase::Look),
            None if self.count(|answer| *answer != Answer::Holds(Held::Free, false)) == 0 => {
                Some(Phase::Over(Outcome::Nothing))
            }
            None => Some(Phase::Look),
        }
    }

    fn first_answered(&mut self) -> Phase<V> {
        self.ours = false;
        if let Some(known) = self.known() {
            return Phase::Over(known);
        }
        match &self.answers[self.first()] {
            Some(Answer::Holds(Held::Value(record), made)) => {
                let record = record.clone();
                self.ours = *made && self.own.as_ref() == Some(&record);
                Phase::Spread(record)
            }
            _ => Phase::Close,
        }
    }

    /// Whether a majority hold the round's record; `None` if that is not known yet.
    fn spread(&self) -> Option<Phase<V>> {
        if let Some(known) = self.known() {
            return Some(Phase::Over(known));
        }
        let (record, votes, differ) = self.value()?;
        let unknown = self.answers.len() - self.count(|_| true);
        match votes >= self.majority() {
            true => Some(self.has(record)),
            false => (differ && votes + unknown < self.majority()).then(disagree),
        }
    }

    fn closed(&mut self) -> Phase<V> {
        if let Some(known) = self.known() {
            return Phase::Over(known);
        }
        if !self.has_majority() {
            return Phase::Over(Outcome::Unknown(UnknownReason::TooFew));
        }
        match self.value().map(|(record, votes, differ)| (record.clone(), votes, differ)) {
            Some((record, votes, _)) if votes >= self.majority() => return self.has(&record),
            Some((_, votes, true)) => {
                // Whoever is away may tell which of them is damaged.
                let unknown = self.answers.len() - self.count(|_| true);
                return match votes + unknown >= self.majority() {
                    true => Phase::Over(Outcome::Unknown(UnknownReason::TooFew)),
                    false => disagree(),
                };
            }
            Some((record, ..)) => self.seen = Some(record),
            None => {}
        }
        let has_record = self.seen.is_some() || self.own.is_some();
        let was_free = |answer: &Answer<V>| *answer == Answer::Holds(Held::Closed, true);
        // Nobody was in this round before, so nobody is in a later one.
        match !has_record && self.count(was_free) >= self.majority() {
            true => Phase::Over(Outcome::Nothing),
            false => Phase::First,
        }
    }
}

fn disagree<V>() -> Phase<V> {
    Phase::Over(Outcome::Unknown(UnknownReason::Disagree))
}
