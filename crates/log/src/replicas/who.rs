//! The kinds of callers that ask a log replica that may be moved away, and the answers that count
//! for each. These rules, and the order of the steps of a move ([`Course`](super::course::Course)),
//! keep two configurations from having a history each. Tests explore them with all possible
//! interruptions.

use crate::medium::LogMedium;
use outlive_types::{Error, Result};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// A kind of caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Who {
    /// A program. It checks last whether the replica is sealed. A mover sees everything done before
    /// the seal, since it reads only behind the seal.
    User,
    /// A process that wants to move the log, and has not sealed any replica.
    Founder,
    /// A process that moves the log. It seals a replica before it asks it.
    Mover,
}

impl Who {
    /// Whether this caller seals a replica before it asks.
    pub fn seals_first(self) -> bool {
        self == Who::Mover
    }

    /// Whether this caller checks for a seal after each answer.
    pub fn looks_last(self) -> bool {
        self == Who::User
    }

    /// Whether an answer counts.
    pub fn counts(self, is_sealed: bool) -> bool {
        !self.looks_last() || !is_sealed
    }
}

/// The identity with which a process asks.
#[derive(Clone)]
pub(super) struct Asker {
    who: Who,
    /// The successor: a mover seals replicas with it, and a user finds it there.
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

    /// Returns the successor of these replicas, if any of them reported a seal.
    pub fn successor(&self) -> Option<&[u8]> {
        self.successor.get().map(Vec::as_slice)
    }

    /// Asks a replica.
    pub fn ask<T>(
        &self,
        medium: &dyn LogMedium,
        question: impl FnOnce(&dyn LogMedium) -> Result<T>,
    ) -> Result<T> {
        if self.who.seals_first() {
            let successor =
                self.successor().ok_or_else(|| Error::bug("a mover without a replica to go to"))?;
            medium.seal(successor)?;
        }
        let answer = question(medium);
        match self.who.looks_last() {
            true => self.look(medium).and(answer),
            false => answer,
        }
    }

    /// Checks that the replica still counts.
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
