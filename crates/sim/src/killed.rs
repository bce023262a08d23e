//! Programs that are killed with a save in progress, and the helper that completes it.

use crate::actor::{Actor, Done};
use crate::hold::{Saving, also};
use crate::state::State;
use outlive_capture::ChangeTracker;
use outlive_helper::{Completed, HeldSave, complete};
use outlive_pool::Pool;
use outlive_store::{ImageKeeper, Job, JobOptions, KeptSave, Select};
use outlive_types::sync::Mutex;
use outlive_types::{ErrorKind, JobName, Result};
use std::sync::Arc;

/// The helper of one program, as the program sees it.
struct Helper {
    pool: Pool,
    job: JobName,
    held: Mutex<Option<HeldSave>>,
}

impl std::fmt::Debug for Helper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Helper")
    }
}

impl ImageKeeper for Helper {
    fn is_there(&self) -> bool {
        true
    }

    fn keep(&self, save: KeptSave<'_>) -> Result<()> {
        *self.held.lock() = Some(HeldSave::of(&self.pool, &self.job, &save)?);
        Ok(())
    }

    fn forget(&self) {
        *self.held.lock() = None;
    }
}

impl Actor {
    /// Continues a job, saves, and is killed. Its helper completes what it had saved.
    pub(crate) fn killed(self, job: &str, saves: u64) -> Done {
        let name = JobName::new(job).expect("a name");
        let (pool, held) = (self.pool.clone(), Mutex::new(None));
        let helper = Arc::new(Helper { pool, job: name.clone(), held });
        let options = JobOptions { keeper: Some(helper.clone()), ..JobOptions::default() };
        let job = Arc::new(Job::open(&self.pool, job, options).expect("a job's name"));
        let saving = Saving { actor: &self, job, tracker: Arc::new(ChangeTracker::new()) };
        let mut state = State::random(&self.rng, 6);
        if let Some((_, restored)) = saving.restore(Select::Newest)? {
            state = restored;
        }
        for _ in 1..saves {
            state.change(&self.rng);
            let handle = saving.save(&state)?;
            if self.rng.below(2) == 0 {
                saving.wait(&handle)?;
            }
        }
        state.change(&self.rng);
        let handle = saving.save(&state)?;
        self.dice.kill();
        self.process.kill_after(self.rng.below(6));
        // The dead program's further attempts have no effect on the pool.
        let _ = handle.wait(None);
        self.process.kill_after(0);
        let held = helper.held.lock().take();
        drop(saving);
        let Some(held) = held else { return Ok(()) };
        self.complete(&name, handle.epoch(), held)
    }

    fn complete(self, name: &JobName, epoch: u64, held: HeldSave) -> Done {
        let number = self.number;
        let Some((pool, process)) = self.pool_world.pool(number, self.rng.next_u64()) else {
            return Ok(());
        };
        let helper = Actor { pool, process, ..self };
        // As a worker does, which tries again for a while.
        let mut saves = [held];
        let (mut completed, mut has_failed) = (complete(&helper.pool, name, &mut saves), false);
        for _ in 0..helper.rng.below(4) {
            if !completed.as_ref().is_err_and(|error| error.kind() == ErrorKind::Retry) {
                break;
            }
            has_failed = true;
            completed = complete(&helper.pool, name, &mut saves);
        }
        let completed = helper.met("a completion", name, completed, &also(&helper, name))?;
        match completed {
            Completed::Committed(found) if found == epoch => {
                helper.oracle.told(number, name, epoch);
                helper.dice.achieved("complete");
                Ok(())
            }
            Completed::There if helper.oracle.last_epoch(name) >= epoch => Ok(()),
            Completed::Fenced if helper.oracle.is_fenced(number, name) => Ok(()),
            // The session of the earlier attempt is there. A worker returns that attempt's error.
            Completed::Fenced if has_failed && helper.oracle.holder(name) == Some(number) => Ok(()),
            _ if helper.may_be_damaged() => Ok(()),
            other => Err(helper.violate(format!(
                "epoch {epoch} of {name} was saved, and the helper said {other:?}"
            ))),
        }
    }
}
