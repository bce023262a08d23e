//! The table of targets: a job of its own in the log, whose newest record lists the pool's targets
//! and their states. One conditional append changes a row, and `repair` makes the pool match.

use crate::descriptor::redundancy::TargetConfig;
use crate::host::ProcessMark;
use outlive_backend::{Target, TargetWatch};
use outlive_log::{Append, LockGuard, ManifestLog, Previous};
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{Error, ErrorKind, JobName, Result, Rng};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::{Arc, Weak};

/// Attempts to change or read a table that others change meanwhile.
const ATTEMPTS: usize = 16;

/// Check of whether a target is where it was.
pub type StillThere = dyn Fn() -> Result<()> + Send + Sync;

/// A target, and a way to find out whether it is there.
pub type OpenTarget = (Arc<dyn Target>, Option<Box<StillThere>>);

/// Contents of a location that is to become a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FoundTarget {
    /// Nothing: it can become a new target.
    Free,
    /// The target of this pool with this number, and whether it holds shards.
    Own {
        /// Its number.
        id: u32,
        /// Whether it holds shards.
        holds_shards: bool,
    },
}

/// Locations of the targets of a table: directories, buckets, markers, `pool.toml`.
pub trait TargetLocations: Send + Sync + fmt::Debug {
    /// Returns the targets that are written down for a person. A process reads them before the
    /// table: a command puts a row into the table first and then writes it down, so the table has
    /// all of them.
    ///
    /// # Errors
    /// Errors of the medium.
    fn written_down(&self) -> Result<Vec<TargetConfig>> {
        Ok(Vec::new())
    }

    /// Returns the table of a pool whose targets were never changed. `written_down` was read
    /// before.
    ///
    /// # Errors
    /// `Invalid` for an impossible table; errors of the medium.
    fn first(&self, written_down: &[TargetConfig]) -> Result<Rows>;

    /// Returns the rows as this process sees them: other hosts may have other names for a location.
    /// `written_down` was read before the rows.
    ///
    /// # Errors
    /// `Invalid` for rows that do not fit what is written down.
    fn seen(&self, rows: Rows, _written_down: &[TargetConfig]) -> Result<Vec<TargetConfig>> {
        Ok(rows.targets)
    }

    /// Returns a target, and a way to find out whether it is there.
    ///
    /// # Errors
    /// `Invalid` for an impossible location.
    fn open(&self, row: &TargetConfig, is_only: bool) -> Result<OpenTarget>;

    /// Returns the watch that leaves a target alone while it is silent, if there is one: the same
    /// for each target that [`TargetLocations::open`] opens for the row.
    fn watch(&self, _row: &TargetConfig) -> Option<Arc<TargetWatch>> {
        None
    }

    /// Returns whether a row names the pool's own location.
    fn is_own(&self, _row: &TargetConfig) -> bool {
        false
    }

    /// Finds out what is in the location that a row names.
    ///
    /// # Errors
    /// `Invalid` if something else is there.
    fn find(&self, row: &TargetConfig) -> Result<FoundTarget>;

    /// Makes a free location, or one of this pool, the target of a row, before the table names it.
    /// `rows` are those of the table.
    ///
    /// # Errors
    /// `Invalid` for a location that cannot be a target of this pool; errors of the medium.
    fn prepare(&self, row: &TargetConfig, rows: &[TargetConfig]) -> Result<()>;

    /// Writes the rows down for a person.
    ///
    /// # Errors
    /// Errors of the medium.
    fn write_down(&self, rows: &[TargetConfig]) -> Result<()> {
        let _ = rows;
        Ok(())
    }

    /// Returns whether both rows name the same location.
    fn is_same(&self, one: &TargetConfig, other: &TargetConfig) -> bool {
        one.location == other.location
    }

    /// Returns whether a volatile target is in the memory of this host.
    fn is_ours(&self, _row: &TargetConfig) -> bool {
        false
    }

    /// Returns whether a volatile target of this host has lost everything: it is as a restart of
    /// the host leaves it, and it was not recreated.
    ///
    /// # Errors
    /// Errors of the medium.
    fn is_wiped(&self, _row: &TargetConfig) -> Result<bool> {
        Ok(false)
    }

    /// Recreates the location of a volatile target, empty, before the table names the new one.
    ///
    /// # Errors
    /// `Invalid` if the location is not in memory; errors of the medium.
    fn make_location(&self, _row: &TargetConfig) -> Result<()> {
        Ok(())
    }

    /// Makes an empty location the target of a row of the table.
    ///
    /// # Errors
    /// Errors of the medium.
    fn mark(&self, row: &TargetConfig) -> Result<()>;
}

/// Contents of a record of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rows {
    /// A number that no target has or had.
    pub next_id: u32,
    /// The targets, each with its number.
    pub targets: Vec<TargetConfig>,
}

impl Rows {
    /// Reads a record of the table.
    ///
    /// # Errors
    /// `Damaged` for bytes that are no such record.
    pub fn parse(record: &[u8]) -> Result<Rows> {
        TableText::parse(record).map(TableText::rows)
    }

    /// Returns the row of a target.
    pub fn get(&self, id: u32) -> Option<&TargetConfig> {
        self.targets.iter().find(|row| row.id.unwrap_or(1) == id)
    }

    /// Returns the same, to be changed.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut TargetConfig> {
        self.targets.iter_mut().find(|row| row.id.unwrap_or(1) == id)
    }

    /// Gives a row a number that no target has or had, and adds it.
    pub fn push(&mut self, row: TargetConfig) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        self.targets.push(TargetConfig { id: Some(id), ..row });
        id
    }
}

/// A record, as TOML.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TableText {
    next_target: u32,
    /// The process that moves shards now, where the log has no locks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changed_by: Option<Holder>,
    /// Targets, with their locations when they were added.
    #[serde(default)]
    target: Vec<TargetConfig>,
}

impl TableText {
    fn of(rows: Rows, changed_by: Option<Holder>) -> TableText {
        let Rows { next_id: next_target, targets: target } = rows;
        TableText { next_target, changed_by, target }
    }

    fn parse(record: &[u8]) -> Result<TableText> {
        toml::from_str(&String::from_utf8_lossy(record))
            .map_err(|error| Error::damaged(format!("it is no table of targets: {error}")))
    }

    fn rows(self) -> Rows {
        let TableText { next_target: next_id, target: targets, .. } = self;
        Rows { next_id, targets }
    }
}

/// The holder of a claim.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Holder {
    #[serde(flatten)]
    process: ProcessMark,
    /// Distinguishes the claims of one process.
    claim: String,
}

/// The newest record; `text` is `None` before the first one.
struct NewestRecord {
    previous: Previous,
    text: Option<TableText>,
}

/// The table at a moment, and the targets that were written down before that moment.
struct TableSnapshot {
    written_down: Result<Vec<TargetConfig>>,
    written: NewestRecord,
    rows: Rows,
}

/// The table of targets of a pool, for all programs that use it.
pub struct TargetTable {
    log: Arc<dyn ManifestLog>,
    locations: Arc<dyn TargetLocations>,
    rng: Arc<dyn Rng>,
    /// The claim of this process, while it has one.
    claimed: Mutex<Option<Holder>>,
    /// The locks of collectors that commands of this process hold. One of them may have ended.
    locks: Mutex<Vec<Weak<LockGuard>>>,
    /// Claims of this process that have ended, and that the log may still have, as it could not be
    /// written then.
    unreturned: Mutex<Vec<Holder>>,
}

impl fmt::Debug for TargetTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the table of {:?}", self.locations)
    }
}

impl TargetTable {
    /// Returns the table in a log, for targets at these locations.
    pub fn new(
        log: Arc<dyn ManifestLog>,
        locations: Arc<dyn TargetLocations>,
        rng: Arc<dyn Rng>,
    ) -> TargetTable {
        TargetTable {
            log,
            locations,
            rng,
            claimed: Mutex::default(),
            unreturned: Mutex::default(),
            locks: Mutex::default(),
        }
    }

    /// Returns the locations of the targets.
    pub fn locations(&self) -> &dyn TargetLocations {
        &*self.locations
    }

    /// Returns a number that changes whenever the table does.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn version(&self) -> Result<u64> {
        Ok(self.log.latest(&JobName::targets())? + 1)
    }

    /// Returns the table as it is in the log.
    ///
    /// # Errors
    /// `Invalid` for an impossible table; `Damaged` if its record is damaged; errors of the log.
    pub fn read(&self) -> Result<Rows> {
        self.look().map(|look| look.rows)
    }

    /// Returns the targets as this process sees them.
    ///
    /// # Errors
    /// As [`TargetTable::read`].
    pub fn rows(&self) -> Result<Vec<TargetConfig>> {
        self.seen().map(|rows| rows.targets)
    }

    /// Returns the table as this process sees it: other hosts may have other names for a location.
    ///
    /// # Errors
    /// As [`TargetTable::read`].
    pub(crate) fn seen(&self) -> Result<Rows> {
        let TableSnapshot { written_down, written, rows } = self.look()?;
        // Before there is a record, the rows are as this process sees them.
        Ok(match written.text {
            Some(_) => Rows { targets: self.locations.seen(rows.clone(), &written_down?)?, ..rows },
            None => rows,
        })
    }

    /// Changes the table in one step. `change` gets it as it is, and is called again if another
    /// process was faster. A table that it leaves as it was is not written. Returns the table as it
    /// is then.
    ///
    /// # Errors
    /// Those of `change`; `Fenced` if the claim or a lock of this process was ended; `Retry` if others are
    /// faster again and again. After an error of the log, the change was made or not.
    pub fn change(&self, change: &mut dyn FnMut(&mut Rows) -> Result<()>) -> Result<Rows> {
        for _ in 0..ATTEMPTS {
            let TableSnapshot { written, rows: before, .. } = self.look()?;
            let mut rows = before.clone();
            change(&mut rows)?;
            if rows == before {
                // A killed command may have left this undone.
                let _ = self.locations.write_down(&rows.targets);
                return Ok(rows);
            }
            let changed_by = self.still_claimed(&written)?;
            self.check_locks()?;
            if self.append(written.previous, &TableText::of(rows.clone(), changed_by))? {
                self.locations.write_down(&rows.targets)?;
                return Ok(rows);
            }
        }
        Err(too_busy())
    }

    /// Reads what is written down, and then the newest record, which alone counts once there is
    /// one.
    fn look(&self) -> Result<TableSnapshot> {
        let written_down = self.locations.written_down();
        let written = self.written()?;
        let rows = match &written.text {
            None => self.locations.first(written_down.as_ref().map_err(Clone::clone)?)?,
            Some(text) => text.clone().rows(),
        };
        Ok(TableSnapshot { written_down, written, rows })
    }

    /// Returns the newest record.
    fn written(&self) -> Result<NewestRecord> {
        let job = JobName::targets();
        let mut attempts = 0;
        loop {
            let number = self.log.latest(&job)?;
            if number == 0 {
                return Ok(NewestRecord { previous: Previous::NONE, text: None });
            }
            match self.log.read(&job, number) {
                Ok(bytes) => {
                    let text = TableText::parse(&bytes).map_err(|error| {
                        let log = self.log.describe();
                        error.context(format!("record {number} of the table of targets in {log}"))
                    })?;
                    return Ok(NewestRecord {
                        previous: Previous::of(number, &bytes),
                        text: Some(text),
                    });
                }
                // Removed, since there is a newer one.
                Err(error) if error.kind() == ErrorKind::Damaged && attempts < ATTEMPTS => {
                    attempts += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Appends a table behind the one that was read. Returns false if another process was faster.
    fn append(&self, behind: Previous, table: &TableText) -> Result<bool> {
        let job = JobName::targets();
        let text = toml::to_string(table)
            .map_err(|e| Error::bug(format!("the table of targets cannot be written: {e}")))?;
        let appended = self.log.append_if(&job, behind, text.as_bytes())?;
        if appended == Append::Lost {
            return Ok(false);
        }
        // Old tables that are left do no harm.
        let _ = self.log.remove_before(&job, behind.number + 1);
        Ok(true)
    }
}

fn too_busy() -> Error {
    Error::retry("other processes change the targets of this pool all the time: try again")
}

/// The claim of a process, where the log has no locks that end with their holder.
impl TargetTable {
    fn claimed(&self) -> MutexGuard<'_, Option<Holder>> {
        self.claimed.lock()
    }

    fn unreturned(&self) -> MutexGuard<'_, Vec<Holder>> {
        self.unreturned.lock()
    }

    /// Returns whether the process that made a claim still works under it, as far as is known here.
    fn is_at_work(&self, holder: &Holder) -> bool {
        !holder.process.is_dead() && !self.unreturned().contains(holder)
    }

    /// Returns the claim in a record, which must be ours if we have one.
    fn still_claimed(&self, written: &NewestRecord) -> Result<Option<Holder>> {
        let there = written.text.as_ref().and_then(|text| text.changed_by.clone());
        match &*self.claimed() {
            Some(ours) if there.as_ref() != Some(ours) => Err(Error::fenced(
                "`outlive pool release` has ended the claim of this command, and others may have moved shards \
                 since: look at `outlive pool status`, and give the command again if it is still wanted",
            )),
            _ => Ok(there),
        }
    }

    /// Notes a lock of collectors that this process took.
    pub(crate) fn is_locked_by(&self, lock: &Arc<LockGuard>) {
        let mut locks = self.locks.lock();
        locks.retain(|lock| lock.strong_count() > 0);
        locks.push(Arc::downgrade(lock));
    }

    /// Makes sure that no lock of collectors that this process holds has ended. Asks nothing of the
    /// log.
    ///
    /// # Errors
    /// `Fenced` if one has ended.
    pub fn check_locks(&self) -> Result<()> {
        let held: Vec<Arc<LockGuard>> =
            self.locks.lock().iter().filter_map(Weak::upgrade).collect();
        held.iter().try_for_each(|lock| lock.check())
    }

    /// Makes sure that the lock or the claim of this process, if it has one, has not ended. A caller
    /// checks this before it deletes a shard.
    ///
    /// # Errors
    /// `Fenced` if it has ended; errors of the log.
    pub fn check_alone(&self) -> Result<()> {
        self.check_locks()?;
        if self.claimed().is_none() {
            return Ok(());
        }
        self.still_claimed(&self.written()?).map(drop)
    }

    /// Keeps other processes from moving shards. It takes over the claim of a dead process on this
    /// host.
    ///
    /// # Errors
    /// `Retry` if another process has a claim, and the error names the command `release`; errors of
    /// the log.
    pub fn claim(self: &Arc<Self>, release: &str) -> Result<Claim> {
        let mut random = [0; 8];
        self.rng.fill(&mut random);
        let claim = format!("{:016x}", u64::from_le_bytes(random));
        let ours = Holder { process: ProcessMark::of_this(), claim };
        for _ in 0..ATTEMPTS {
            let TableSnapshot { written, rows, .. } = self.look()?;
            let holder = written.text.and_then(|text| text.changed_by);
            if let Some(holder) = holder.filter(|holder| self.is_at_work(holder)) {
                return Err(Error::retry(format!(
                    "{} moves shards of this pool: try again when it has ended; if it was killed, first run: {release}",
                    holder.process
                )));
            }
            let table = TableText::of(rows, Some(ours.clone()));
            let appended = self.append(written.previous, &table);
            if appended.is_err() {
                self.unreturned().push(ours.clone());
            }
            if appended? {
                self.unreturned().clear();
                *self.claimed() = Some(ours.clone());
                return Ok(Claim { table: self.clone(), ours });
            }
        }
        Err(too_busy())
    }

    /// Ends the claim of a killed process. Returns its holder.
    ///
    /// # Errors
    /// Errors of the log; `Retry` if others are faster again and again.
    pub fn release(&self) -> Result<Option<String>> {
        let Some(holder) = self.written()?.text.and_then(|text| text.changed_by) else {
            return Ok(None);
        };
        self.end(&holder)?;
        Ok(Some(holder.process.to_string()))
    }

    /// Ends a claim, unless it has ended.
    fn end(&self, holder: &Holder) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let written = self.written()?;
            let is_its = |text: &TableText| text.changed_by.as_ref() == Some(holder);
            let Some(text) = written.text.filter(is_its) else { return Ok(()) };
            let free = TableText { changed_by: None, ..text };
            if self.append(written.previous, &free)? {
                return Ok(());
            }
        }
        Err(too_busy())
    }
}

/// The right to move shards, which ends when the value is dropped.
pub struct Claim {
    table: Arc<TargetTable>,
    ours: Holder,
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the claim of {}", self.ours.process)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        *self.table.claimed() = None;
        // The next claim of this table ignores a record that is left. Another process takes it over
        // once this one is dead.
        if self.table.end(&self.ours).is_err() {
            self.table.unreturned().push(self.ours.clone());
        }
    }
}
