//! Targets that answer too late: the caller gives an operation up, and it happens afterwards. Behind a
//! watch, a program uses such a target no more until all that it gave up has happened. Behind a broken
//! connection it does not know of it, and goes on.

use super::{FaultProcess, FaultWorld, Owner, World};
use crate::ShardName;
use outlive_types::Error;
use std::fmt;
use std::sync::Arc;

/// An operation that was given up.
pub(super) struct Late {
    pub(super) target: usize,
    process: FaultProcess,
    /// Whether the program leaves the target alone until it has happened.
    is_left_alone: bool,
    name: String,
    /// The shard that it deletes, if it deletes a finished one.
    deletes: Option<ShardName>,
    happens: Box<dyn FnOnce(&mut World) + Send>,
}

impl fmt::Debug for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on target {}", self.name, self.target)
    }
}

impl FaultWorld {
    /// Makes a target slow: what finishes or deletes a shard fails, and happens later. If it is left
    /// alone, all else fails for a program that has given something up, until that has happened. All else
    /// fails if it is away, too.
    pub fn set_slow(&self, number: usize, is_away: bool, is_left_alone: bool) {
        let mut world = self.lock();
        world.slow.insert(number, is_left_alone);
        if is_away {
            world.away.insert(number);
        }
    }

    /// Makes a target answer at once again, and reachable. Operations that were given up have still not
    /// happened.
    pub fn set_quick(&self, number: usize) {
        let mut world = self.lock();
        world.slow.remove(&number);
        world.away.remove(&number);
    }

    /// Returns the number of operations that were given up and have not happened yet.
    pub fn late(&self) -> usize {
        self.lock().late.len()
    }

    /// Returns the finished shards that these will delete, by target.
    pub fn late_deletes(&self) -> Vec<(usize, ShardName)> {
        let world = self.lock();
        let of = |late: &Late| Some((late.target, late.deletes?));
        world.late.iter().filter_map(of).collect()
    }

    /// Lets one of them happen, and returns its name. Not a numbered operation.
    pub fn let_happen(&self, number: usize) -> Option<String> {
        let mut world = self.lock();
        if number >= world.late.len() {
            return None;
        }
        let Late { target, name, happens, .. } = world.late.remove(number);
        happens(&mut world);
        Some(format!("{name} on target {target}"))
    }
}

impl World {
    /// Keeps an operation for later, and returns the error for its program, if the target is slow and
    /// the program does not leave it alone.
    pub(super) fn delay(
        &mut self,
        (owner, target): (&Owner, usize),
        name: impl FnOnce() -> String,
        deletes: Option<ShardName>,
        happens: impl FnOnce(&mut World) + Send + 'static,
    ) -> Result<(), Error> {
        let slow = self.slow.get(&target).copied();
        let slow = slow.filter(|_| self.alive(owner).is_ok() && !self.is_left_alone(owner, target));
        let Some(is_left_alone) = slow else { return Ok(()) };
        let process = owner.process.clone();
        let happens = Box::new(happens);
        self.late.push(Late { target, process, is_left_alone, name: name(), deletes, happens });
        Err(Error::retry("the simulated target has not answered"))
    }

    /// Whether a program leaves a target alone: what it gave up there has not happened yet.
    pub(super) fn is_left_alone(&self, owner: &Owner, target: usize) -> bool {
        let mut of_it = self.late.iter().filter(|late| late.target == target && late.is_left_alone);
        of_it.any(|late| Arc::ptr_eq(&late.process.0, &owner.process.0))
    }
}
