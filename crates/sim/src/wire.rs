//! The connection of a group's ranks: others may run first at each call, and dead ranks send
//! nothing.

use crate::world::{Me, killed};
use outlive_types::sync::pause;
use outlive_types::{Coordinator, Error, Rank, Result};
use std::any::Any;
use std::sync::Arc;

/// The end of one rank.
#[derive(Debug)]
pub(crate) struct Wire {
    pub inner: Arc<dyn Coordinator>,
    pub me: Arc<Me>,
}

impl Wire {
    fn step<T>(&self, what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        pause(what);
        if self.me.is_dead() { Err(killed()) } else { work() }
    }
}

impl Coordinator for Wire {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.step("gather", || self.inner.gather(bytes))
    }

    fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        self.step("broadcast", || self.inner.broadcast(bytes))
    }

    fn check(&self) -> Result<()> {
        self.step("check", || self.inner.check())
    }

    fn leave(&self, why: &Error) {
        if !self.me.is_dead() {
            self.inner.leave(why);
        }
    }

    fn keepalive(&self) -> Option<Box<dyn Any + Send>> {
        self.inner.keepalive()
    }
}
