//! Looking again. Readers have no session, so gcs and prunes do not wait for them: what a reader looks
//! for may be moved, or dropped, meanwhile. A gc tells every log before it deletes; so if something is
//! missing and a log has changed, the reader looks again at what the log says now.

use outlive_pool::Pool;
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{Error, ErrorKind, JobName, Result, sync};
use std::fmt;
use std::sync::Arc;

/// How often a reader looks again at most.
const ATTEMPTS: usize = 16;

/// Whose logs may tell of what is looked for.
#[derive(Clone, Copy)]
pub(crate) enum Logs<'a> {
    /// Those of these jobs.
    Of(&'a [&'a JobName]),
    /// Those of all jobs, whichever there are.
    All,
}

/// Tells whether a reader who has missed something should look again.
pub(crate) struct Reload<'a> {
    pool: &'a Pool,
    logs: Logs<'a>,
    /// The newest record of each log before the reader looked.
    seen: Vec<(JobName, u64)>,
    left: usize,
}

impl<'a> Reload<'a> {
    /// For a reader who begins now.
    ///
    /// # Errors
    /// What the log reports.
    pub fn new(pool: &'a Pool, logs: Logs<'a>) -> Result<Reload<'a>> {
        let mut again = Reload { pool, logs, seen: Vec::new(), left: ATTEMPTS };
        again.seen = again.newest()?;
        Ok(again)
    }

    /// For a reader who began when record `number` was the newest of `job`'s log.
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

    /// Whether a log has changed since the reader began, or since this was last asked.
    ///
    /// # Errors
    /// What the log reports.
    pub fn is_worth_it(&mut self) -> Result<bool> {
        if self.left == 0 {
            return Ok(false);
        }
        let newest = self.newest()?;
        self.left -= 1;
        Ok(std::mem::replace(&mut self.seen, newest) != self.seen)
    }
}

/// Does `work`, and does it again if something was missing that a gc or prune may have moved.
///
/// # Errors
/// Those of `work`; what the log reports.
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

/// Opens something anew; `None` if it is where it was.
type Reopen<T> = dyn Fn(&T) -> Result<Option<T>> + Send + Sync;

/// Something that was opened by what the log said, and is opened anew when that changes. For readers
/// that last: many may use it at once.
pub(crate) struct Current<T> {
    pool: Pool,
    job: JobName,
    now: Mutex<Now<T>>,
    /// Held by whoever looks again, which takes reads of the log: one is enough. `now` is held for a moment
    /// only, so that a page fault that misses nothing waits for none of that.
    looking: sync::Mutex<()>,
    reopen: Box<Reopen<T>>,
}

struct Now<T> {
    /// The newest record of the log when this was true.
    listed: u64,
    opened: Arc<T>,
}

impl<T> Current<T> {
    /// `opened` when `listed` was the newest record of the job's log.
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

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// As far as it is known.
    pub fn get(&self) -> Arc<T> {
        self.now().opened.clone()
    }

    fn now(&self) -> MutexGuard<'_, Now<T>> {
        self.now.lock()
    }

    /// Whether it is another by now than `seen`, after a look at the log.
    ///
    /// # Errors
    /// What the log reports, and whoever opens it.
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

    /// Reads by it, and again if something is missing that was moved.
    ///
    /// # Errors
    /// Those of `work`; what the log reports.
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
