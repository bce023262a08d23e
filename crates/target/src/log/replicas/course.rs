//! The steps of a move of a log from some places to others, without any input or output, so that tests can
//! explore all orders in which several movers and programs may meet.
//!
//! M. Balakrishnan and others, "Virtual Consensus in Delos", OSDI 2020: a log is sealed, and goes on elsewhere.
//!
//! 1. The *successor* is decided once, in a register of the old places: of two movers one has his way.
//! 2. The old places are sealed, and a majority of them is asked what the log has: nothing counts any more
//!    that is not there yet.
//! 3. What it *had* is decided once, in the same way: two movers may have asked different places, and
//!    a record that only some of them hold is in, or out, for good.
//! 4. That is copied to the new places. One is *opened* when it has all; a majority of open ones is the log.

/// What is to be done next.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Step<S, H> {
    /// Decide on a successor, and propose this one.
    Succeed(S),
    /// Seal, and find out what the log has.
    Gather,
    /// Decide on what it had, and propose this.
    End(H),
    /// Copy this, and open what has it.
    Copy(H),
    /// A majority of the new places are open.
    Over,
}

/// Where a move is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Course<S, H> {
    step: Step<S, H>,
}

impl<S: Clone, H: Clone> Course<S, H> {
    /// Somebody wants to have the log moved.
    pub fn begin(successor: S) -> Course<S, H> {
        Course { step: Step::Succeed(successor) }
    }

    /// The successor is known, from whoever has sealed a place.
    pub fn sealed() -> Course<S, H> {
        Course { step: Step::Gather }
    }

    /// What is to be done.
    pub fn step(&self) -> &Step<S, H> {
        &self.step
    }

    /// This successor was decided upon.
    pub fn succeeded(&mut self) {
        self.step = Step::Gather;
    }

    /// The log has this.
    pub fn gathered(&mut self, had: H) {
        self.step = Step::End(had);
    }

    /// It was decided that it had this.
    pub fn ended(&mut self, had: H) {
        self.step = Step::Copy(had);
    }

    /// So many of the new places are open, of so many.
    pub fn opened(&mut self, open: usize, of: usize) {
        if open > of / 2 {
            self.step = Step::Over;
        }
    }
}
