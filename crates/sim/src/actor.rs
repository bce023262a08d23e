//! A running program, and the judgement of its errors.

use crate::chance::Chance;
use crate::oracle::Oracle;
use crate::state::{RestoredRegions, State};
use crate::world::PoolWorld;
use outlive_backend::FaultProcess;
use outlive_pool::Pool;
use outlive_store::Job;
use outlive_types::sync::pause;
use outlive_types::{Epoch, Error, ErrorKind, JobName, Result, SeededRng};
use std::sync::Arc;

/// The early end of a program: an expected error, or the end of the schedule.
pub(crate) struct End;

pub(crate) type Done<T = ()> = std::result::Result<T, End>;

/// A running program.
pub(crate) struct Actor {
    pub number: usize,
    pub pool_world: PoolWorld,
    pub oracle: Oracle,
    pub pool: Pool,
    pub process: FaultProcess,
    pub rng: SeededRng,
    pub dice: Arc<Chance>,
}

impl Actor {
    /// Whether the program was killed, or the power cut.
    pub fn is_dead(&self) -> bool {
        self.process.is_killed() || self.pool_world.world.crashed()
    }

    /// Lets others take some steps, fewer than `most`.
    pub fn let_time_pass(&self, most: u64) {
        (0..self.rng.below(most)).for_each(|_| pause("time passes"));
    }

    /// Whether the pool promises nothing any more: it is damaged beyond its redundancy, or all has
    /// crashed.
    pub fn is_over(&self) -> bool {
        let is_damaged = self.oracle.is_damaged() || self.oracle.is_rolled_back();
        is_damaged || self.pool_world.world.crashed()
    }

    /// Whether checkpoints may be damaged: beyond redundancy, or by a loss of memory or of records.
    pub fn may_be_damaged(&self) -> bool {
        self.oracle.is_damaged() || self.oracle.is_rolled_back() || self.oracle.is_wiped()
    }

    pub fn violate(&self, what: String) -> End {
        self.oracle.violate(format!("program {}: {what}", self.number));
        End
    }

    /// Judges an error that the program met while it did `what` with a job.
    pub fn met<T>(
        &self,
        what: &str,
        job: &JobName,
        outcome: Result<T>,
        also: &[ErrorKind],
    ) -> Done<T> {
        let error = match outcome {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        self.dice.turns().remark(|| format!("{what} ended: {error}"));
        self.oracle.met(format!("{what} ended: {error}"));
        let is_damaged = self.oracle.is_damaged() || self.oracle.is_rolled_back();
        let is_expected = match error.kind() {
            _ if self.is_dead() => true,
            ErrorKind::Fenced => {
                is_damaged
                    || self.oracle.is_fenced(self.number, job)
                    || self.dice.has_lock_ended(self.number) && has_lost_lock(&error)
            }
            // A save that has written to a leaving target begins again.
            ErrorKind::Retry if self.pool_world.space.operated && has_left(&error) => true,
            ErrorKind::Retry => {
                self.dice.has_failed() || self.dice.has_any_lock_ended() && has_collided(&error)
            }
            ErrorKind::Damaged => self.may_be_damaged(),
            ErrorKind::Invalid => self.oracle.is_rolled_back(),
            _ => false,
        };
        match is_expected || also.contains(&error.kind()) {
            true => {
                if error.kind() == ErrorKind::Fenced {
                    self.dice.achieved("fence");
                }
                Err(End)
            }
            false => Err(self.violate(format!(
                "{what} ended with an error that nothing explains: {}: {error}",
                error.kind().name()
            ))),
        }
    }

    pub fn epochs(&self, job: &Job) -> Done<Vec<Epoch>> {
        let infos = self.met("a list", job.name(), job.epochs(), &[])?;
        Ok(infos.iter().map(|info| info.epoch).collect())
    }

    /// Checks a restored epoch; returns its state if it is right.
    pub fn check(&self, job: &JobName, epoch: Epoch, restored: &RestoredRegions) -> Done<State> {
        match self.oracle.committed(job).remove(&epoch) {
            Some(committed) if committed.is(restored) => Ok(committed.ranks[0].clone()),
            _ if self.oracle.is_rolled_back() => Err(End),
            Some(committed) => Err(self.violate(format!(
                "epoch {epoch} of {job} came back as {restored:?} and was {:?}",
                committed.ranks
            ))),
            None => Err(self.violate(format!("epoch {epoch} of {job} was never committed"))),
        }
    }
}

fn has_lost_lock(error: &Error) -> bool {
    error.message().contains("the lock has ended, and others may have taken it")
}

/// Whether two programs moved the same shard, or collected, at once.
fn has_collided(error: &Error) -> bool {
    let told = ["another process has made it meanwhile", "which goes on instead of this one"];
    told.iter().any(|told| error.message().contains(told))
}

fn has_left(error: &Error) -> bool {
    error.message().contains("was removed from the pool while this was written")
}
