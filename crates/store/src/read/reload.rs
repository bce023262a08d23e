//! Repeats reads after moves. Readers have no session, so gcs and prunes do not wait for them: a gc
//! may move, and a prune may drop, the data of a read. A gc reports to every log before it deletes.
//! So if data is missing and a log has changed, the reader looks again at the log as it is now.

use outlive_pool::Pool;
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{Error, ErrorKind, JobName, Result, sync};
use std::fmt;
use std::sync::Arc;

/// Most looks of a reader at the logs.
const ATTEMPTS: usize = 16;

/// The logs that may report moves of the data.
#[derive(Clone, Copy)]
pub(crate) enum Logs<'a> {
    /// The logs of these jobs.
    Of(&'a [&'a JobName]),
    /// The logs of all jobs that there are.
    All,
}

/// Decides whether a reader that misses data should look again.
pub(crate) struct Reload<'a> {
    pool: &'a Pool,
    logs: Logs<'a>,
    /// The newest record of each log before the reader began.
    seen: Vec<(JobName, u64)>,
    left: usize,
}

impl<'a> Reload<'a> {
    /// Makes a `Reload` for a reader that begins now.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn new(pool: &'a Pool, logs: Logs<'a>) -> Result<Reload<'a>> {
        let mut again = Reload { pool, logs, seen: Vec::new(), left: ATTEMPTS };
        again.seen = again.newest()?;
        Ok(again)
    }

    /// Makes a `Reload` for a reader that began when record `number` was the newest of `job`'s log.
    pub fn since(pool: &'a Pool, logs: Logs<'a>, job: &JobName, number: u64) -> Reload<'a> {
        Reload { pool, logs, seen: vec![(job.clone(), number)], left: ATTEMPTS }
    }

    fn newest(&self) -> Result<Vec<(JobName, u64)>> {
        let newest = |job: &JobName| Ok((job.clone(), self.pool.log().latest(job)?));
        match self.logs {
            Logs::Of(jobs) => jobs.iter().map(|job| newest(job)).collect(),
            Logs::All => self.pool.jobs()?.iter().map(newest).collect(),
        }
    }

    /// Returns whether a log has changed since the reader began, or since the last call.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn is_worth_it(&mut self) -> Result<bool> {
        if self.left == 0 {
            return Ok(false);
        }
        let newest = self.newest()?;
        self.left -= 1;
        Ok(std::mem::replace(&mut self.seen, newest) != self.seen)
    }
}

/// Does `work`, and repeats it if data was missing that a gc or prune may have moved.
///
/// # Errors
/// Errors of `work` and of the log.
pub(crate) fn while_moving<T>(
    pool: &Pool,
    logs: Logs<'_>,
    work: &mut dyn FnMut() -> Result<T>,
) -> Result<T> {
    let mut again = Reload::new(pool, logs)?;
    loop {
        let done = work();
        if !done.as_ref().is_err_and(is_missing) || !again.is_worth_it()? {
            return done;
        }
    }
}

fn is_missing(error: &Error) -> bool {
    error.kind() == ErrorKind::Damaged
}

/// Opens an object again; `None` if it has not moved.
type Reopen<T> = dyn Fn(&T) -> Result<Option<T>> + Send + Sync;

/// An object that was opened as of some record of the log, and is opened again when the log has
/// moved it. For long readers; many threads may use it at once.
pub(crate) struct Current<T> {
    pool: Pool,
    job: JobName,
    now: Mutex<Now<T>>,
    /// Locked during a look at the log, since one thread that reads it is enough. `now` is locked
    /// only for a moment, so a page fault that misses nothing waits for no such look.
    looking: sync::Mutex<()>,
    reopen: Box<Reopen<T>>,
}

struct Now<T> {
    /// The newest record of the log when this was up to date.
    listed: u64,
    opened: Arc<T>,
}

impl<T> Current<T> {
    /// Takes `opened`, which was up to date when `listed` was the newest record of the job's log.
    pub fn new(
        pool: &Pool,
        job: &JobName,
        listed: u64,
        opened: T,
        reopen: Box<Reopen<T>>,
    ) -> Current<T> {
        let now = Mutex::new(Now { listed, opened: Arc::new(opened) });
        let looking = sync::Mutex::new(());
        Current { pool: pool.clone(), job: job.clone(), now, looking, reopen }
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the object, as far as it is known.
    pub fn get(&self) -> Arc<T> {
        self.now().opened.clone()
    }

    fn now(&self) -> MutexGuard<'_, Now<T>> {
        self.now.lock()
    }

    /// Returns whether the object differs from `seen` by now, after a look at the log.
    ///
    /// # Errors
    /// Errors of the log and of opening it again.
    pub fn moved_since(&self, seen: &Arc<T>) -> Result<bool> {
        let _looking = self.looking.lock();
        let (opened, known) = {
            let now = self.now();
            (now.opened.clone(), now.listed)
        };
        if !Arc::ptr_eq(&opened, seen) {
            return Ok(true);
        }
        let listed = self.pool.log().latest(&self.job)?;
        if listed == known {
            return Ok(false);
        }
        let opened = (self.reopen)(&opened)?;
        let mut now = self.now();
        now.listed = listed;
        let Some(opened) = opened else { return Ok(false) };
        now.opened = Arc::new(opened);
        Ok(true)
    }

    /// Reads from the object, and repeats that if data was missing that has moved.
    ///
    /// # Errors
    /// Errors of `work` and of the log.
    pub fn read<R>(&self, work: &mut dyn FnMut(&T) -> Result<R>) -> Result<R> {
        for _ in 0..ATTEMPTS {
            let seen = self.get();
            match work(&seen) {
                Err(error) if is_missing(&error) && self.moved_since(&seen)? => {}
                read => return read,
            }
        }
        work(&self.get())
    }
}

impl<T: fmt::Debug> fmt::Debug for Current<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Current").field("job", &self.job).field("opened", &self.get()).finish()
    }
}
