//! Events about the fate of checkpoints, for programs that wait for them: outputs must not become
//! visible before the state behind them is safe.

use outlive_pool::Pool;
use outlive_types::sync::{Mutex, MutexGuard};
use outlive_types::{Epoch, Error, JobName};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The fate of one checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommitEvent {
    /// The checkpoint exists from now on, whatever happens to this program.
    Committed {
        /// Its job.
        job: JobName,
        /// Its epoch.
        epoch: Epoch,
    },
    /// The checkpoint is not known to exist. The job's next checkpoint may get the same epoch.
    Failed {
        /// Its job.
        job: JobName,
        /// The epoch that it would have had.
        epoch: Epoch,
        /// The cause.
        error: Error,
    },
}

type Watcher = Arc<dyn Fn(&CommitEvent) + Send + Sync>;

/// Reports the fate of the checkpoints of one writer: of saves, puts and copies. Clones report the
/// same events.
///
/// Events come one after the other, in the order of the saves; committed epochs rise. A committed
/// epoch never fails afterwards. A save that was refused before its memory was frozen has no event:
/// its caller gets the error.
#[derive(Clone)]
pub struct CommitEvents(Arc<Shared>);

struct Shared {
    job: JobName,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    watchers: Vec<(u64, Watcher)>,
    next: u64,
    /// Newest epoch that was committed.
    committed: Epoch,
}

/// Keeps its watcher subscribed. An event that is being delivered when it is dropped may still
/// arrive.
pub struct CommitWatch {
    of: CommitEvents,
    number: u64,
}

impl CommitEvents {
    pub(crate) fn new(job: JobName) -> CommitEvents {
        CommitEvents(Arc::new(Shared { job, state: Mutex::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    /// Calls `watcher` with each event from now on, until the returned subscription is dropped. The
    /// thread that commits calls it before waiters for the save return. So `watcher` must return
    /// quickly, and must not save, wait for saves or close the job.
    #[must_use = "events are told as long as the watch is kept"]
    pub fn watch(&self, watcher: impl Fn(&CommitEvent) + Send + Sync + 'static) -> CommitWatch {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.watchers.push((number, Arc::new(watcher)));
        CommitWatch { of: self.clone(), number }
    }

    /// Reports that a checkpoint exists.
    pub(crate) fn committed(&self, pool: &Pool, epoch: Epoch) {
        self.state().committed = epoch;
        self.tell(pool, &CommitEvent::Committed { job: self.0.job.clone(), epoch });
    }

    /// Reports that a checkpoint will not be committed, unless it was committed.
    pub fn failed(&self, pool: &Pool, epoch: Epoch, error: &Error) {
        if epoch > self.state().committed {
            let (job, error) = (self.0.job.clone(), error.clone());
            self.tell(pool, &CommitEvent::Failed { job, epoch, error });
        }
    }

    fn tell(&self, pool: &Pool, event: &CommitEvent) {
        // Without the lock: a watcher may drop its own subscription.
        let watchers: Vec<Watcher> =
            self.state().watchers.iter().map(|(_, it)| it.clone()).collect();
        for watcher in watchers {
            if catch_unwind(AssertUnwindSafe(|| watcher(event))).is_err() {
                pool.warn(format!(
                    "a watcher of the checkpoints of job {} has panicked; the checkpoints are \
                     unchanged",
                    self.0.job
                ));
            }
        }
    }
}

impl fmt::Debug for CommitEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let watchers = self.state().watchers.len();
        f.debug_struct("CommitEvents")
            .field("job", &self.0.job)
            .field("watchers", &watchers)
            .finish()
    }
}

impl fmt::Debug for CommitWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommitWatch").field("of", &self.of).finish()
    }
}

impl Drop for CommitWatch {
    fn drop(&mut self) {
        self.of.state().watchers.retain(|(number, _)| *number != self.number);
    }
}
