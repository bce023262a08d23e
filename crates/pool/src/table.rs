//! The table of targets of a pool: a job of its own in the log, whose newest record is the table, and the
//! places that the pool's descriptor gives them. Before there is a record, the log's marker has the targets
//! that the pool was made with.

use crate::config::{FormatConfig, PoolConfig};
use crate::environment::Environment;
use crate::home::{DESCRIPTOR, Home};
use crate::host::this_host;
use crate::log_open::check_log;
use crate::marker::{Marker, targets_of};
use crate::place::{TARGET_MARKER, check_target, read_descriptor, read_text};
use crate::places::{
    LOG_STAYS, SLOW_STAYS, check_in_memory, holds_something, make_target, refuse_memory,
    refuse_used, write_target,
};
use crate::redundancy::{TargetConfig, Tier};
use crate::targets::{Claim, OpenTarget, TargetTable};
use outlive_target::{Append, ManifestLog, Previous};
use outlive_types::{Error, ErrorKind, JobName, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How often a table is read again that others replace meanwhile.
const ATTEMPTS: usize = 16;

/// A record of the table, as TOML.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TableText {
    /// A number that no target has or had.
    next_target: u32,
    /// Who changes the table just now, where the log has no locks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changed_by: Option<String>,
    /// All targets that the pool has, where they were when they were added.
    #[serde(default)]
    target: Vec<TargetConfig>,
}

/// The table as it is written down.
struct Written {
    /// The record, or that there is none yet.
    previous: Previous,
    text: Option<TableText>,
}

/// The table of a pool in a directory or a bucket.
#[derive(Clone)]
pub(crate) struct HomeTable {
    home: Home,
    format: FormatConfig,
    log: Arc<dyn ManifestLog>,
    env: Environment,
    /// Our claim, while we have one.
    claimed: Arc<Mutex<Option<String>>>,
}

impl fmt::Debug for HomeTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the targets of {}", self.home.root)
    }
}

impl HomeTable {
    pub fn new(
        home: &Home,
        format: &FormatConfig,
        log: &Arc<dyn ManifestLog>,
        env: &Environment,
    ) -> HomeTable {
        let (home, format, log) = (home.clone(), format.clone(), log.clone());
        HomeTable { home, format, log, env: env.clone(), claimed: Arc::default() }
    }

    fn claimed(&self) -> MutexGuard<'_, Option<String>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest record.
    fn written(&self) -> Result<Written> {
        let job = JobName::targets();
        let mut attempts = 0;
        loop {
            let number = self.log.latest(&job)?;
            if number == 0 {
                return Ok(Written { previous: Previous::NONE, text: None });
            }
            match self.log.read(&job, number) {
                Ok(bytes) => {
                    let previous = Previous::of(number, &bytes);
                    let text = String::from_utf8_lossy(&bytes);
                    let text = toml::from_str(&text).map_err(|error| {
                        Error::damaged(format!(
                            "record {number} of the table of targets in {} is no table: {error}",
                            self.log.describe()
                        ))
                    })?;
                    return Ok(Written { previous, text: Some(text) });
                }
                // Removed, since there is a newer one.
                Err(error) if error.kind() == ErrorKind::Damaged && attempts < ATTEMPTS => {
                    attempts += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The log's marker, with the table as it is now.
    fn marker(&self) -> Result<Marker> {
        self.with_table(check_log(&self.home, &self.format)?.0)
    }

    /// A marker with the table as it is now.
    pub fn with_table(&self, marker: Marker) -> Result<Marker> {
        Ok(match self.written()?.text {
            None => marker,
            Some(TableText { next_target, target, .. }) => {
                Marker { next_target: Some(next_target), target, ..marker }
            }
        })
    }

    fn read(&self) -> Result<(PoolConfig, Marker)> {
        let marker = self.marker()?;
        Ok((read_descriptor(&self.home.root)?, marker))
    }

    /// Appends a table behind the one that was read.
    fn append(&self, behind: Previous, table: &TableText) -> Result<()> {
        let job = JobName::targets();
        let text = toml::to_string(table)
            .map_err(|e| Error::bug(format!("the table of targets cannot be written: {e}")))?;
        let appended = self.log.append_if(&job, behind, text.as_bytes())?;
        let number = behind.number + 1;
        // One that came too late, when others had come and were removed, is none.
        if appended == Append::Lost || self.log.latest(&job)? != number {
            return Err(Error::retry(
                "another process has just changed the targets of this pool: try again",
            ));
        }
        // What is left of old tables is in nobody's way.
        let _ = self.log.remove_before(&job, number);
        Ok(())
    }

    /// The table as it is, or was made.
    fn text(&self, written: &Written) -> Result<TableText> {
        Ok(match &written.text {
            Some(text) => text.clone(),
            None => {
                TableText { next_target: self.next_id()?, changed_by: None, target: self.rows()? }
            }
        })
    }
}

impl HomeTable {
    /// Makes sure that the host may lose its memory, and log and slow targets are still there.
    fn check_outlives_memory(&self) -> Result<()> {
        let root = &self.home.root;
        for log in &self.home.log().named {
            refuse_memory(root, log, LOG_STAYS).map_err(|error| {
                error.context("the log has to move before a target in memory is added")
            })?;
        }
        for row in self.rows()?.iter().filter(|row| row.tier == Tier::Slow) {
            let (slow, id) = (row.seen_from(root)?, row.id.unwrap_or(1));
            refuse_memory(root, &slow, SLOW_STAYS).map_err(|error| {
                error.context(format!("slow target {id} has to be replaced before"))
            })?;
        }
        Ok(())
    }
}

impl TargetTable for HomeTable {
    fn version(&self) -> Result<u64> {
        Ok(self.log.latest(&JobName::targets())? + 1)
    }

    fn rows(&self) -> Result<Vec<TargetConfig>> {
        let (descriptor, marker) = self.read()?;
        let mut rows = targets_of(&descriptor, &marker)
            .map_err(|error| error.context(self.home.descriptor()))?;
        if rows.is_empty() {
            rows.push(TargetConfig::at("."));
        }
        if let [only] = &mut rows[..] {
            only.id = Some(only.id.unwrap_or(1));
        }
        Ok(rows)
    }

    fn open(&self, row: &TargetConfig) -> Result<OpenTarget> {
        let location = row.seen_from(&self.home.root)?;
        let is_own = location.is_same(&self.home.root);
        let probe = self.home.root.as_directory().map(|dir| dir.join(DESCRIPTOR));
        let target = location.open_target(probe.as_deref(), is_own, &self.env)?;
        if is_own {
            return Ok((target, None)); // the descriptor is beside it
        }
        // The only target of a pool may be moved as docs/format.md says, without a number.
        let is_only = || self.rows().is_ok_and(|rows| rows.len() == 1);
        let id = row.id.filter(|_| row.volatile || !is_only());
        if row.volatile && !self.is_ours(row) {
            let (id, host) = (row.id.unwrap_or(1), row.host.clone().unwrap_or_default());
            let elsewhere = move || {
                Err(Error::invalid(format!(
                    "target {id} is in the memory of the host {host}, and only programs there can use it"
                )))
            };
            return Ok((target, Some(Box::new(elsewhere))));
        }
        let (home, format, is_volatile) = (self.home.clone(), self.format.clone(), row.volatile);
        let still_there = move || {
            let found = check_target(&home, &format, &location, id);
            found.map_err(|error| if is_volatile { in_memory(error) } else { error })
        };
        Ok((target, Some(Box::new(still_there))))
    }

    fn prepare(&self, row: &TargetConfig) -> Result<()> {
        let (_, marker) = self.read()?;
        let root = &self.home.root;
        let location = row.seen_from(root)?;
        for other in self.rows()? {
            if location.is_same(&other.seen_from(root)?) {
                return Err(Error::invalid(format!(
                    "{} is target {} of this pool already",
                    row.location,
                    other.id.unwrap_or(1)
                )));
            }
        }
        if location.is_same(root) {
            return Ok(());
        }
        if row.volatile {
            check_in_memory(&location)?;
            self.check_outlives_memory()?;
        }
        if row.tier == Tier::Slow && self.rows()?.iter().any(|other| other.volatile) {
            refuse_memory(root, &location, SLOW_STAYS)?;
        }
        refuse_used(&self.home, &location)?;
        write_target(&location, &marker.on(row.id), &*self.env.rng)
    }

    fn is_ours(&self, row: &TargetConfig) -> bool {
        row.volatile && row.host.as_deref() == Some(this_host().as_str())
    }

    fn is_wiped(&self, row: &TargetConfig) -> Result<bool> {
        let location = row.seen_from(&self.home.root)?;
        let Some(dir) = location.as_directory().filter(|_| self.is_ours(row)) else {
            return Ok(false);
        };
        // Something without a marker is no new place: somebody has to look at it.
        Ok(location.read(TARGET_MARKER)?.is_none() && !holds_something(&dir.join("packs"))?)
    }

    fn make_place(&self, row: &TargetConfig) -> Result<()> {
        let location = row.seen_from(&self.home.root)?;
        check_in_memory(&location)?;
        make_target(&location)
    }

    fn mark(&self, row: &TargetConfig) -> Result<()> {
        let (_, marker) = self.read()?;
        let location = row.seen_from(&self.home.root)?;
        write_target(&location, &marker.on(row.id), &*self.env.rng)
    }

    fn claim(&self) -> Result<Option<Claim>> {
        let written = self.written()?;
        let text = self.text(&written)?;
        if let Some(holder) = &text.changed_by {
            return Err(Error::retry(format!(
                "{holder} changes the targets of this pool: try again when it has ended; if it was \
                 killed, first run: {}",
                crate::command::command("pool release", Some(&self.home.root.to_string()), &[])
            )));
        }
        let mut random = [0; 8];
        self.env.rng.fill(&mut random);
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let (process, number) = (std::process::id(), u64::from_le_bytes(random));
        let changed_by = format!("process {process} on {} ({number:016x})", host.trim());
        let claimed = TableText { changed_by: Some(changed_by.clone()), ..text };
        self.append(written.previous, &claimed)?;
        *self.claimed() = Some(changed_by.clone());
        Ok(Some(Box::new(Claimed { table: self.clone(), changed_by })))
    }

    fn release(&self) -> Result<Option<String>> {
        let written = self.written()?;
        let Some(text) = &written.text else { return Ok(None) };
        if text.changed_by.is_some() {
            self.append(written.previous, &TableText { changed_by: None, ..text.clone() })?;
        }
        Ok(text.changed_by.clone())
    }

    fn next_id(&self) -> Result<u32> {
        let (_, marker) = self.read()?;
        let highest = self.rows()?.iter().filter_map(|row| row.id).max().unwrap_or(1);
        Ok(marker.next_target.unwrap_or(0).max(highest + 1))
    }

    fn replace(&self, rows: &[TargetConfig]) -> Result<()> {
        let written = self.written()?;
        let descriptor = read_descriptor(&self.home.root)?;
        let changed_by = written.text.as_ref().and_then(|text| text.changed_by.clone());
        if changed_by != *self.claimed() {
            return Err(Error::fenced(
                "somebody has said that this command was killed, and may have changed the targets since: look \
                 at `outlive pool status`, and give the command again if it is still wanted",
            ));
        }
        let table = TableText { next_target: self.next_id()?, changed_by, target: rows.to_vec() };
        self.append(written.previous, &table)?;
        // What was removed would be refused there; what is new is found without it.
        let text = descriptor_text(&self.home, &descriptor, rows)?;
        self.home.root.replace(DESCRIPTOR, &text, &*self.env.rng)
    }
}

/// A target in memory that is not there has been lost with it.
fn in_memory(error: Error) -> Error {
    if error.kind() != ErrorKind::Damaged {
        return error;
    }
    let what = "it is in memory: if all of it is lost, the next program that restores or saves makes it anew";
    Error::damaged(format!("{} ({what})", error.message()))
}

/// The right to change the targets, taken back when its holder ends in peace.
struct Claimed {
    table: HomeTable,
    changed_by: String,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        *self.table.claimed() = None;
        // What stays is found, and told of, by whoever comes next.
        let Ok(written) = self.table.written() else { return };
        let ours = Some(&self.changed_by);
        if let Some(text) = written.text.filter(|text| text.changed_by.as_ref() == ours) {
            let _ = self.table.append(written.previous, &TableText { changed_by: None, ..text });
        }
    }
}

/// The descriptor with other targets: what a person wrote in it stays as it is, if that can be.
fn descriptor_text(home: &Home, before: &PoolConfig, rows: &[TargetConfig]) -> Result<String> {
    let wanted = PoolConfig { target: rows.to_vec(), ..before.clone() };
    let text = read_text(&home.root)?;
    let mut kept = String::new();
    let mut is_target = false;
    for line in text.lines() {
        if line.trim_start().starts_with('[') {
            is_target = line.trim_start().starts_with("[[target]]");
        }
        if !is_target {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    let whole = wanted.to_text()?;
    let tables = whole.find("[[target]]").map_or("", |at| &whole[at..]);
    let edited = format!("{}\n\n{tables}", kept.trim_end());
    match PoolConfig::parse(&edited, DESCRIPTOR) {
        Ok(config) if config == wanted => Ok(edited),
        _ => Ok(whole),
    }
}
