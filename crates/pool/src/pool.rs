//! A pool: its configuration, its targets, its log, and the state that work on it needs.

use crate::PoolConfig;
use crate::command::command;
use crate::descriptor::location::resolved;
use crate::descriptor::paths::PoolPaths;
use crate::environment::Environment;
use crate::layout::Layout;
use crate::log::replicas::{Lasting, ReplicaLookup, find_set};
use crate::opening::marker_check::{check, packs_elsewhere};
use crate::opening::rewrite::make_copy;
use crate::targets::{Member, TargetSet, TargetTable};
use crate::written::OpenSpreads;
use outlive_backend::{Location, ReadMode, Target};
use outlive_chunk::Policy;
use outlive_io::StagingPool;
use outlive_log::{Lock, ManifestLog};
use outlive_types::sync::plain::{Mutex, MutexGuard, RwLock};
use outlive_types::sync::sleep;
use outlive_types::{Error, Event, JobName, PAGE_BYTES, PackId, Result};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of packs whose layout over shards is kept in memory.
const LAYOUTS_MAX: usize = 1 << 15;

/// Pause between two attempts to take the lock of collectors from programs that fill.
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Number of attempts. Programs release the lock after a second, and after the pack in progress.
const LOCK_TRIES: usize = 500;

/// Targets used as one space, and the log beside them. Cheap to clone; all clones share the memory
/// bound of one staging pool.
#[derive(Clone)]
pub struct Pool {
    config: Arc<PoolConfig>,
    targets: Arc<RwLock<Arc<TargetSet>>>,
    /// Table that lists the targets.
    table: Option<Arc<TargetTable>>,
    log: Arc<dyn ManifestLog>,
    staging: Arc<StagingPool>,
    /// Buffers for parity, each for one container.
    parity: Arc<StagingPool>,
    /// Layouts of packs over shards, as far as they are known.
    layouts: Arc<Mutex<HashMap<PackId, Layout>>>,
    env: Environment,
    /// Name of its location, for a person.
    location: Option<Arc<str>>,
    /// Locations of the descriptor and the log, if it has them.
    paths: Option<Arc<PoolPaths>>,
    /// Spreads that record to which targets packs are written.
    written: Arc<OpenSpreads>,
    /// Warning about redundancy that was given last.
    said: Arc<Mutex<Option<String>>>,
    /// Experience of saves with compression: whether it pays.
    policy: Arc<Mutex<Policy>>,
    /// Number of steps done, which distinguishes work from a hang.
    pub(crate) progress: Arc<AtomicU64>,
    /// Whether the pool is read to be checked.
    is_checking: bool,
    /// Whether a program stands still until its reads end.
    is_urgent: bool,
}

impl Pool {
    /// Puts a pool together from its parts. The configuration must have been checked.
    pub fn new(
        config: PoolConfig,
        target: Arc<dyn Target>,
        log: Arc<dyn ManifestLog>,
        env: Environment,
    ) -> Pool {
        Pool::over(config, vec![target], log, env)
    }

    /// Does the same with several targets, at least one.
    pub fn over(
        config: PoolConfig,
        targets: Vec<Arc<dyn Target>>,
        log: Arc<dyn ManifestLog>,
        env: Environment,
    ) -> Pool {
        let alone = |(id, target)| Member::new(id, target);
        Pool::of((1..).zip(targets).map(alone).collect(), config, log, env)
    }

    /// Does the same with targets of which more is known.
    pub(crate) fn of(
        members: Vec<Member>,
        config: PoolConfig,
        log: Arc<dyn ManifestLog>,
        env: Environment,
    ) -> Pool {
        let targets = Arc::new(RwLock::new(Arc::new(TargetSet::new(members, &config))));
        let container_bytes = config.format.container_bytes as usize;
        let staging_bytes = config.tuning.staging_bytes as usize;
        let staging = StagingPool::new(staging_bytes, container_bytes);
        let geometry = config.geometry();
        let fragment_bytes = geometry.fragment_bytes(geometry.container_bytes) as usize;
        let parity_bytes = (usize::from(geometry.m) * fragment_bytes).max(PAGE_BYTES);
        // As many buffers as there are containers.
        let parity = StagingPool::new(staging_bytes / container_bytes * parity_bytes, parity_bytes);
        let (policy, layouts) = (Arc::new(Mutex::new(Policy::default())), Arc::default());
        let (config, location, paths) = (Arc::new(config), None, None);
        Pool {
            config,
            targets,
            table: None,
            log,
            staging,
            parity,
            layouts,
            env,
            location,
            paths,
            written: Arc::default(),
            said: Arc::default(),
            progress: Arc::default(),
            is_checking: false,
            is_urgent: false,
            policy,
        }
    }

    /// Limits the memory for containers to this process's part, if `processes` on one host share
    /// it. At least two containers remain: one is filled while the other is written.
    pub fn share_staging(&self, processes: usize) {
        let container_bytes = self.config.format.container_bytes as usize;
        let containers = self.config.tuning.staging_bytes as usize / container_bytes;
        let each = (containers / processes.max(1)).max(2).min(containers);
        self.staging.limit(each * container_bytes);
        self.parity.limit(each * self.parity.buffer_bytes());
    }

    /// Returns the same pool for a check: it reads every byte from the medium, whatever the system
    /// caches. A damaged segment counts as damage, even if other data says where things are.
    #[must_use]
    pub fn to_check(&self) -> Pool {
        Pool { is_checking: true, ..self.clone() }
    }

    /// Returns the same pool for a program that stands still until its reads end
    /// ([`ReadMode::is_urgent`]).
    #[must_use]
    pub fn urgently(&self) -> Pool {
        Pool { is_urgent: true, ..self.clone() }
    }

    pub(crate) fn read_mode(&self) -> ReadMode {
        ReadMode { may_be_cached: !self.is_checking, is_urgent: self.is_urgent }
    }

    /// Returns whether it is read to be checked.
    pub fn is_checking(&self) -> bool {
        self.is_checking
    }

    /// Returns the same pool, with the name of its location for a person.
    #[must_use]
    pub fn at(self, location: &Path) -> Pool {
        Pool { location: location.to_str().map(Arc::from), ..self }
    }

    /// Returns the same pool with the targets of a table.
    ///
    /// # Errors
    /// Errors of the table.
    pub fn with_table(self, table: Arc<TargetTable>) -> Result<Pool> {
        let pool = Pool { table: Some(table), ..self };
        pool.refresh_targets()?;
        Ok(pool)
    }

    /// Returns the same pool as one in a directory: see [`Pool::check_markers`].
    #[must_use]
    pub fn in_directory(self, directory: &Path) -> Pool {
        self.in_home(PoolPaths::directory(directory))
    }

    pub(crate) fn in_home(self, paths: PoolPaths) -> Pool {
        Pool { paths: Some(Arc::new(paths)), ..self }
    }

    /// Makes sure that the pool is still where it was opened. A process checks this before and
    /// after it opens a session, and before it commits. A log that is recreated in place of one
    /// that vanished would acknowledge data that is lost.
    ///
    /// # Errors
    /// `Retry` if the log or the target has vanished; `Invalid` if the descriptor or the pool has
    /// vanished, or belongs to another pool.
    pub fn check_markers(&self) -> Result<()> {
        let targets = || {
            self.refresh_targets()?;
            self.targets().check()
        };
        let Some(paths) = &self.paths else { return targets() };
        check(paths, &self.config, targets)?;
        if paths.wants_copy() {
            // Pools of older builds have no copy. If this process may not write there, it saves all
            // the same.
            let _ = make_copy(paths);
        }
        Ok(())
    }

    /// Returns the replicas of its log, each with the reason why it is away, if it is.
    pub fn log_replicas(&self) -> Vec<(String, Option<Error>)> {
        let Some(paths) = &self.paths else { return vec![(self.log.describe(), None)] };
        let found = find_set(paths, &self.config.format, paths.log(), Lasting::Now)
            .into_iter()
            .map(|found| match found {
                ReplicaLookup::There(_) => None,
                ReplicaLookup::Away(error) | ReplicaLookup::Another(error) => Some(error),
            });
        paths.log().named.iter().map(Location::to_string).zip(found).collect()
    }

    /// Returns the pool's id and its location, which together differ from those of every other pool
    /// and copy.
    pub fn identity(&self) -> (String, String) {
        let place = self.paths().map_or_else(|| self.log.describe(), |paths| resolved(&paths.root));
        (self.config.format.pool_id.clone(), place)
    }

    pub(crate) fn paths(&self) -> Option<&PoolPaths> {
        self.paths.as_deref()
    }

    /// Checks the same without the targets, to find out why these are not known.
    pub(crate) fn place_says(&self) -> Result<()> {
        self.paths.as_ref().map_or(Ok(()), |paths| check(paths, &self.config, || Ok(())))
    }

    /// Returns the directories of its packs that are on this machine and outside of the pool's own:
    /// a put into the pool leaves them out.
    pub fn packs_elsewhere(&self) -> Vec<PathBuf> {
        let table = self.table.as_deref();
        self.paths
            .as_ref()
            .map_or_else(Vec::new, |paths| packs_elsewhere(paths, &self.config, table))
    }

    /// Returns a command of `outlive` about this pool, for messages: `words` follow the pool's
    /// location.
    pub fn command(&self, verb: &str, words: &[&str]) -> String {
        command(verb, self.location.as_deref(), words)
    }

    /// Makes sure that the logs know what was lost with targets in memory: before that, a save may
    /// share data that is lost. The caller calls [`Pool::check_markers`] first.
    ///
    /// # Errors
    /// `Retry` if the logs do not know yet.
    pub fn check_settled(&self) -> Result<()> {
        self.targets().check_settled()
    }

    /// Returns the pool's descriptor.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Returns the same pool with other tuning, in memory only, and with a new staging pool.
    #[must_use]
    pub fn with_tuning(&self, tuning: crate::Tuning) -> Pool {
        let config = PoolConfig { tuning, ..PoolConfig::clone(&self.config) };
        let pool = Pool::of(Vec::new(), config, self.log.clone(), self.env.clone());
        let (location, paths) = (self.location.clone(), self.paths.clone());
        let (targets, table) = (self.targets.clone(), self.table.clone());
        let written = self.written.clone();
        Pool { location, paths, targets, table, written, ..pool }
    }

    /// Returns the targets, which keep the shards.
    pub(crate) fn targets(&self) -> Arc<TargetSet> {
        self.targets.read().clone()
    }

    pub(crate) fn set_targets(&self, targets: Arc<TargetSet>) {
        *self.targets.write() = targets;
    }

    /// Returns the table that lists the targets, if there is one.
    pub(crate) fn table(&self) -> Option<&Arc<TargetTable>> {
        self.table.as_ref()
    }

    /// Returns the buffers for parity.
    pub(crate) fn parity(&self) -> &Arc<StagingPool> {
        &self.parity
    }

    /// Returns the layout of a pack over its shards, if that is known.
    pub(crate) fn known_layout(&self, pack: PackId) -> Option<Layout> {
        // Does not wait: a forked child may inherit the lock in use.
        self.layouts.try_lock()?.get(&pack).cloned()
    }

    /// Notes the layout of a pack over its shards.
    pub(crate) fn knows_layout(&self, pack: PackId, layout: Layout) {
        if let Some(mut layouts) = self.layouts.try_lock() {
            // Layouts are read again where they are needed.
            if layouts.len() >= LAYOUTS_MAX {
                layouts.clear();
            }
            layouts.insert(pack, layout);
        }
    }

    /// Returns the spreads that record to which targets packs are written.
    pub(crate) fn written(&self) -> &OpenSpreads {
        &self.written
    }

    /// Warns that a pack is written without some of its shards.
    pub(crate) fn lacks_redundancy(&self, why: &Error) {
        let warning = format!(
            "what is saved now has less redundancy than it should have: {}; when the target is back, or \
             replaced, run: {}",
            why.message(),
            self.command("pool repair", &[])
        );
        // Once, not for every pack.
        let mut said = self.said.lock();
        if said.as_ref() != Some(&warning) {
            *said = Some(warning.clone());
            drop(said);
            self.warn(warning);
        }
    }

    /// Returns the log, to which manifests are committed.
    pub fn log(&self) -> &Arc<dyn ManifestLog> {
        &self.log
    }

    /// Takes the lock for collecting, moving or repairing packs. Where programs fill a slow tier,
    /// it waits for them: they release the lock again and again.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn lock_collecting(&self) -> Result<Lock> {
        let is_shared = self.has_slow_tier() || self.targets().has_volatile();
        let tries = if is_shared { LOCK_TRIES } else { 1 };
        for _ in 1..tries {
            match self.log.lock_collecting()? {
                Lock::Busy => sleep(LOCK_PAUSE),
                lock => return Ok(lock),
            }
        }
        self.log.lock_collecting()
    }

    /// Returns every program's job that has a record, sorted.
    ///
    /// # Errors
    /// Errors of the log.
    pub fn jobs(&self) -> Result<Vec<JobName>> {
        let mut jobs = self.log.jobs()?;
        jobs.retain(|job| !job.is_gc());
        Ok(jobs)
    }

    /// Returns the bounded memory for all I/O.
    pub fn staging(&self) -> &Arc<StagingPool> {
        &self.staging
    }

    /// Counts a step of work: a read, a write, or the check of a block.
    pub fn note_progress(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many steps of work this process has done. If the number stands still while there
    /// is work, the process hangs.
    pub fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Returns the experience of saves with the targets' speed and with compression, by which they
    /// decide.
    pub fn policy(&self) -> MutexGuard<'_, Policy> {
        self.policy.lock()
    }

    /// Returns the time, randomness and observer.
    pub fn env(&self) -> &Environment {
        &self.env
    }

    /// Sends the observer a warning for a person.
    pub fn warn(&self, message: impl Into<String>) {
        self.env.observer.event(Event::Warning(message.into()));
    }

    /// Sends the observer a message about a normal step.
    pub fn info(&self, message: impl Into<String>) {
        self.env.observer.event(Event::Info(message.into()));
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("targets", &self.targets).field("log", &self.log).finish()
    }
}
