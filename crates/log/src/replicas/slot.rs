//! The protocol by which a number gets its record in a log of several replicas: write-once
//! registers, as steps without input or output. Tests explore all orders of the answers.
//!
//! H. Howard and R. Mortier, "A Generalised Solution to Distributed Consensus", 2019 (Paxos over
//! registers that are written once). E. Gafni and L. Lamport, "Disk Paxos", 2003, has the same
//! replicas and failures.
//!
//! Each replica has a register for each round of a number. A register is free until a writer puts a
//! record into it, or closes it; neither is ever undone. A record *has its number* once a majority
//! of the replicas hold it in one round. Three rules prevent a second record:
//!
//! 1. Each round has a first replica, which is asked before the others; the next round has another
//!    one. Its register holds the round's only record: a writer that finds a record there puts that
//!    one, and not its own, into the others.
//! 2. A writer writes in a round only after a majority of the replicas have a closed register, or a
//!    record, in each round below. So no unseen record can get its number there any more.
//! 3. A record seen in a round below goes before the writer's own; of several, that of the highest
//!    round.

/// A round of a number.
pub type Round = u16;

/// Most rounds of a number. A writer uses one up if the round's first replica is away.
pub const ROUNDS_MAX: Round = 0xfffe;

/// The content of a register.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RegisterContent<V> {
    /// No record yet.
    Free,
    /// No record, forever.
    Closed,
    /// A record.
    Value(V),
}

/// An operation at a replica, in one round.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Operation<V> {
    /// Write nothing.
    Look,
    /// Write the record if the register is free.
    Put(V),
    /// Close the register if it is free.
    Close,
}

/// The answer of a replica after the operation. Everything in it is durable there.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ReplicaAnswer<V> {
    /// The present content of the register, and whether this operation wrote it.
    Holds(RegisterContent<V>, bool),
    /// The record of the number, which a process that knew it copied to the replica.
    Settled(V),
    /// All records up to this number were removed.
    Removed,
}

/// The reason why a number's record is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UnknownReason {
    /// Less than a majority of the replicas answer.
    TooFew,
    /// Two replicas hold different records in one round: one of them is damaged.
    Disagree,
    /// All rounds are used up.
    NoRoundLeft,
}

/// The state of a number.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum NumberState<V> {
    /// The number has this record.
    Has {
        /// The record.
        record: V,
        /// This very [`Slot`] put the record there as its own.
        ours: bool,
    },
    /// The number had no record during the call.
    Nothing,
    /// The record was removed.
    Removed,
    /// The record is unknown.
    Unknown(UnknownReason),
}

/// The phase of a slot.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Phase<V> {
    /// All replicas report their registers.
    Look,
    /// The round's first replica gets the operation.
    First,
    /// The first replica holds this record, and the others get it as well.
    Spread(V),
    /// The round gets closed.
    Close,
    Over(NumberState<V>),
}

/// A look at one number, or an attempt to give it a record.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Slot<V> {
    own: Option<V>,
    /// The record seen in the highest round below.
    seen: Option<V>,
    /// Whether the round's record is our own, and we put it into the first replica.
    ours: bool,
    round: Round,
    phase: Phase<V>,
    /// The answer of each replica in this phase.
    answers: Vec<Option<ReplicaAnswer<V>>>,
}

impl<V: Clone + Eq> Slot<V> {
    /// Asks `replicas` replicas for the record of a number.
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

    /// Returns the outcome; `None` if steps are left.
    pub fn outcome(&self) -> Option<&NumberState<V>> {
        match &self.phase {
            Phase::Over(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Returns the current round.
    pub fn round(&self) -> Round {
        self.round
    }

    /// Returns the next operations and their replicas, for any order or all at once. Pass each
    /// answer to [`Slot::told`]. When that returns true, or no more answers come, call
    /// [`Slot::go_on`].
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

    /// Takes a replica's answer. Returns true if enough came: further answers would change nothing.
    pub fn told(&mut self, replica: usize, answer: ReplicaAnswer<V>) -> bool {
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
                // Half-written, and a replica that is away may have it as well: the record gets its
                // number.
                true => Phase::First,
                false => Phase::Over(NumberState::Unknown(UnknownReason::TooFew)),
            }),
            Phase::First => self.first_answered(),
            Phase::Spread(_) => self.spread().unwrap_or(Phase::Close),
            Phase::Close => self.closed(),
            Phase::Over(_) => return,
        };
        match (&self.phase, &next) {
            // Keeps the first replica's answer.
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
            false => Phase::Over(NumberState::Unknown(UnknownReason::NoRoundLeft)),
        };
    }

    /// Returns the replica that this round asks first.
    fn first(&self) -> usize {
        usize::from(self.round) % self.answers.len()
    }

    fn majority(&self) -> usize {
        self.answers.len() / 2 + 1
    }

    fn count(&self, is: impl Fn(&ReplicaAnswer<V>) -> bool) -> usize {
        self.answers.iter().flatten().filter(|answer| is(answer)).count()
    }

    fn has_majority(&self) -> bool {
        self.count(|_| true) >= self.majority()
    }

    /// Returns the outcome if an answer decides alone, without a majority.
    fn known(&self) -> Option<NumberState<V>> {
        self.answers.iter().flatten().find_map(|answer| match answer {
            ReplicaAnswer::Settled(record) => {
                Some(NumberState::Has { record: record.clone(), ours: false })
            }
            ReplicaAnswer::Removed => Some(NumberState::Removed),
            ReplicaAnswer::Holds(..) => None,
        })
    }

    /// Returns the record that most replicas hold in this round, their number, and whether another
    /// record was seen.
    fn value(&self) -> Option<(&V, usize, bool)> {
        let values: Vec<&V> = (self.answers.iter().flatten())
            .filter_map(|answer| match answer {
                ReplicaAnswer::Holds(RegisterContent::Value(record), _) => Some(record),
                _ => None,
            })
            .collect();
        let votes = |record: &V| values.iter().filter(|other| **other == record).count();
        let most = values.iter().max_by_key(|record| votes(record))?;
        Some((most, votes(most), votes(most) < values.len()))
    }

    fn has(&self, record: &V) -> Phase<V> {
        Phase::Over(NumberState::Has { record: record.clone(), ours: self.ours })
    }

    /// Returns the next phase after the answers; `None` if more answers are needed.
    fn looked(&self) -> Option<Phase<V>> {
        // A majority must answer, so that no removal is missed.
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
            // The record does not have its number in this round now.
            Some(_) => Some(Phase::Look),
            None if self
                .count(|answer| *answer != ReplicaAnswer::Holds(RegisterContent::Free, false))
                == 0 =>
            {
                Some(Phase::Over(NumberState::Nothing))
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
            Some(ReplicaAnswer::Holds(RegisterContent::Value(record), made)) => {
                let record = record.clone();
                self.ours = *made && self.own.as_ref() == Some(&record);
                Phase::Spread(record)
            }
            _ => Phase::Close,
        }
    }

    /// Whether a majority hold the round's record; `None` if that is open.
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
            return Phase::Over(NumberState::Unknown(UnknownReason::TooFew));
        }
        match self.value().map(|(record, votes, differ)| (record.clone(), votes, differ)) {
            Some((record, votes, _)) if votes >= self.majority() => return self.has(&record),
            Some((_, votes, true)) => {
                // A replica that is away may show which of them is damaged.
                let unknown = self.answers.len() - self.count(|_| true);
                return match votes + unknown >= self.majority() {
                    true => Phase::Over(NumberState::Unknown(UnknownReason::TooFew)),
                    false => disagree(),
                };
            }
            Some((record, ..)) => self.seen = Some(record),
            None => {}
        }
        let has_record = self.seen.is_some() || self.own.is_some();
        let was_free = |answer: &ReplicaAnswer<V>| {
            *answer == ReplicaAnswer::Holds(RegisterContent::Closed, true)
        };
        // No writer was in this round before, so none is in a later one.
        match !has_record && self.count(was_free) >= self.majority() {
            true => Phase::Over(NumberState::Nothing),
            false => Phase::First,
        }
    }
}

fn disagree<V>() -> Phase<V> {
    Phase::Over(NumberState::Unknown(UnknownReason::Disagree))
}
