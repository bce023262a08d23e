//! Programs that delete and rename jobs beside others.

use crate::actor::{Actor, Done};
use crate::oracle::Pending;
use outlive_store::copy::rename_job;
use outlive_store::gc::{DropJob, drop_job};
use outlive_types::{ErrorKind, JobName};

impl Actor {
    /// Saves a job, and then deletes it.
    pub(crate) fn delete(&self, job: &str) -> Done {
        self.saver(job, 1 + self.rng.below(2), self.rng.below(2) == 0, true)?;
        let name = JobName::new(job).expect("a job's name");
        self.oracle.drops(self.number, &name, None);
        let options = DropJob { fence: self.rng.below(4) > 0, ..DropJob::default() };
        let dropped = drop_job(&self.pool, &name, options, &mut || Ok(()));
        // Another program has the job open, or has opened it meanwhile, or has deleted it.
        let also = [ErrorKind::Invalid, ErrorKind::Retry];
        let dropped = self.met("a deletion", &name, dropped, &also)?;
        self.dice.turns().remark(|| format!("deleted {dropped:?} of {name}"));
        self.dice.achieved("delete a job");
        Ok(())
    }

    /// Saves a job, and then renames it.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Done {
        self.saver(from, 1 + self.rng.below(2), self.rng.below(2) == 0, true)?;
        let [from, to] = [from, to].map(|job| JobName::new(job).expect("a job's name"));
        self.oracle.will_commit(self.number, &to, Pending::Renamed(from.clone()));
        self.oracle.drops(self.number, &from, Some(to.clone()));
        let fence = self.rng.below(4) > 0;
        let renamed = rename_job(&self.pool, &from, &to, fence, &mut || Ok(()));
        let mut also = vec![ErrorKind::Invalid, ErrorKind::Retry];
        if self.oracle.is_fenced(self.number, &to) {
            also.push(ErrorKind::Fenced); // by another rename to the same name
        }
        let epochs = self.met("a rename", &from, renamed, &also)?;
        self.dice.turns().remark(|| format!("{epochs:?} of {from} are called {to}"));
        for epoch in epochs {
            self.oracle.told_of_another(&to, epoch);
        }
        self.dice.achieved("rename a job");
        Ok(())
    }
}
