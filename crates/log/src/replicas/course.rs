//! The steps of a move of a log from some replicas to others, without input or output. So tests can
//! explore all orders in which several movers and programs meet.
//!
//! M. Balakrishnan and others, "Virtual Consensus in Delos", OSDI 2020: a log is sealed, and goes
//! on elsewhere.
//!
//! 1. The *successor* is decided once, in a register of the old replicas: of two movers one wins.
//! 2. The old replicas are sealed, and a majority of them reports what the log has: a record that
//!    comes later does not count.
//! 3. The content that the log *had* is decided once, in the same way. Two movers may have asked
//!    different replicas, and a record that only some of them hold is in, or out, forever.
//! 4. That content is copied to the new replicas. One is *opened* when it has everything; a
//!    majority of open ones is the log.

/// The next step of a move.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Step<S, H> {
    /// Decide on a successor, and propose this one.
    Succeed(S),
    /// Seal, and find out what the log has.
    Gather,
    /// Decide on what the log had, and propose this.
    End(H),
    /// Copy this, and open the replicas that have it.
    Copy(H),
    /// A majority of the new replicas are open.
    Over,
}

/// The state of a move.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Course<S, H> {
    step: Step<S, H>,
}

impl<S: Clone, H: Clone> Course<S, H> {
    /// Begins a move of the log.
    pub fn begin(successor: S) -> Course<S, H> {
        Course { step: Step::Succeed(successor) }
    }

    /// Continues a move whose successor a sealed replica names.
    pub fn sealed() -> Course<S, H> {
        Course { step: Step::Gather }
    }

    /// Returns the next step.
    pub fn step(&self) -> &Step<S, H> {
        &self.step
    }

    /// Notes that this successor was decided.
    pub fn succeeded(&mut self) {
        self.step = Step::Gather;
    }

    /// Notes what the log has.
    pub fn gathered(&mut self, had: H) {
        self.step = Step::End(had);
    }

    /// Notes the decision on what the log had.
    pub fn ended(&mut self, had: H) {
        self.step = Step::Copy(had);
    }

    /// Notes that `open` of `of` new replicas are open.
    pub fn opened(&mut self, open: usize, of: usize) {
        if open > of / 2 {
            self.step = Step::Over;
        }
    }
}
