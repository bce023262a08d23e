//! Who asks a place of a log that may be moved to other places, and which answers count for whom. These rules,
//! and the order of the steps of a move ([`Course`](super::course::Course)), are what keeps two sets of places
//! from having a history each; tests explore them with all that may come between.

use crate::LogMedium;
use outlive_types::{Error, Result};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Who {
    /// A program. It looks last whether the place is sealed: what was done before that, whoever moves the
    /// log sees, since he reads only behind the seal.
    User,
    /// Somebody who wants the log moved, and has not sealed anything yet.
    Founder,
    /// Somebody who moves it. He seals a place before he asks it anything.
    Mover,
}

impl Who {
    /// Whether a place is to be sealed before it is asked.
    pub fn seals_first(self) -> bool {
        self == Who::Mover
    }

    /// Whether it is to be known, after its answer, whether the place is sealed.
    pub fn looks_last(self) -> bool {
        self == Who::User
    }

    /// Whether an answer counts.
    pub fn counts(self, is_sealed: bool) -> bool {
        !self.looks_last() || !is_sealed
    }
}

/// What somebody asks with.
#[derive(Clone)]
pub(super) struct Asker {
    who: Who,
    /// The successor: what a mover seals places with, or a user has seen there.
    successor: Arc<OnceLock<Vec<u8>>>,
}

impl Asker {
    pub fn user() -> Asker {
        Asker { who: Who::User, successor: Arc::default() }
    }

    pub fn founder() -> Asker {
        Asker { who: Who::Founder, successor: Arc::default() }
    }

    pub fn mover(successor: &[u8]) -> Asker {
        Asker { who: Who::Mover, successor: Arc::new(OnceLock::from(successor.to_vec())) }
    }

    /// What comes instead of these places, if any has said that it is sealed.
    pub fn successor(&self) -> Option<&[u8]> {
        self.successor.get().map(Vec::as_slice)
    }

    /// Asks a place.
    pub fn ask<T>(
        &self,
        medium: &dyn LogMedium,
        question: impl FnOnce(&dyn LogMedium) -> Result<T>,
    ) -> Result<T> {
        if self.who.seals_first() {
            let successor =
                self.successor().ok_or_else(|| Error::bug("a mover without a place to go to"))?;
            medium.seal(successor)?;
        }
        let answer = question(medium);
        match self.who.looks_last() {
            true => self.look(medium).and(answer),
            false => answer,
        }
    }

    /// Whether the place counts still.
    pub fn look(&self, medium: &dyn LogMedium) -> Result<()> {
        let sealed = medium.sealed()?;
        if self.who.counts(sealed.is_some()) {
            return Ok(());
        }
        let _ = sealed.map(|successor| self.successor.set(successor)); // all say the same
        Err(Error::retry(format!("the log was moved away from {}", medium.describe())))
    }
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.who.fmt(f)
    }
}
