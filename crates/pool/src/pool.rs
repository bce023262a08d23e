//! A pool: its configuration, its target, its log, and what the work on it needs.

use crate::PoolConfig;
use crate::command::command;
use crate::descriptor::make_copy;
use crate::environment::Environment;
use crate::layout::Layout;
use crate::location::Location;
use crate::log_replicas::{Found, Lasting, find_set};
use crate::marker_check::{check, packs_elsewhere};
use crate::paths::PoolPaths;
use crate::targets::{Member, TargetSet, TargetTable};
use crate::written::Written;
use outlive_chunk::Policy;
use outlive_io::StagingPool;
use outlive_target::{Lock, ManifestLog, ReadMode, Target};
use outlive_types::sync::plain::{Mutex, MutexGuard, RwLock};
use outlive_types::sync::sleep;
use outlive_types::{Error, Event, JobName, PAGE_BYTES, PackId, Result};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Packs of which it is known how they are spread over their shards.
const LAYOUTS_MAX: usize = 1 << 15;

/// Between two looks whether programs that fill have given the lock of collectors back.
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// So often. They give it back after a second and the pack in hand.
const LOCK_TRIES: usize = 500;

/// Targets used as one space, and the log beside them. Cheap to clone; all clones share the memory
/// bound of one staging pool.
#[derive(Clone)]
pub struct Pool {
    config: Arc<PoolConfig>,
    targets: Arc<RwLock<Arc<TargetSet>>>,
    /// What says which they are.
    table: Option<Arc<TargetTable>>,
    log: Arc<dyn ManifestLog>,
    staging: Arc<StagingPool>,
    /// Buffers for the parity of one container each.
    parity: Arc<StagingPool>,
    /// How packs are spread over shards, as far as it is known.
    layouts: Arc<Mutex<HashMap<PackId, Layout>>>,
    env: Environment,
    /// Where a person finds it.
    location: Option<Arc<str>>,
    /// Where descriptor and log are, if it has such.
    paths: Option<Arc<PoolPaths>>,
    /// Who asks on which targets packs are written.
    written: Arc<Written>,
    /// The warning about redundancy that was given last.
    said: Arc<Mutex<Option<String>>>,
    /// Whether compression pays: what saves have learnt.
    policy: Arc<Mutex<Policy>>,
    /// Counts what was done: for who must tell work from a hang.
    pub(crate) progress: Arc<AtomicU64>,
    /// Whether it is read to be checked.
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

    /// The same, over several targets, at least one.
    pub fn over(
        config: PoolConfig,
        targets: Vec<Arc<dyn Target>>,
        log: Arc<dyn ManifestLog>,
        env: Environment,
    ) -> Pool {
        let alone = |(id, target)| Member::new(id, target);
        Pool::of((1..).zip(targets).map(alone).collect(), config, log, env)
    }

    /// The same, over targets of which more is known.
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
        // As many as there are containers.
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

    /// Leaves this process so large a part of the memory for containers as one of `processes` has that share
    /// it, since they run on one host; but two containers at least, one to be filled while one is written.
    pub fn share_staging(&self, processes: usize) {
        let container_bytes = self.config.format.container_bytes as usize;
        let containers = self.config.tuning.staging_bytes as usize / container_bytes;
        let each = (containers / processes.max(1)).max(2).min(containers);
        self.staging.limit(each * container_bytes);
        self.parity.limit(each * self.parity.buffer_bytes());
    }

    /// The same pool, to be checked: every byte is read from where it is kept, whatever the system holds in memory, and
    /// a damaged segment is damage, whatever else tells where things are.
    #[must_use]
    pub fn to_check(&self) -> Pool {
        Pool { is_checking: true, ..self.clone() }
    }

    /// The same pool for a program that stands still until its reads end ([`ReadMode::is_urgent`]).
    #[must_use]
    pub fn urgently(&self) -> Pool {
        Pool { is_urgent: true, ..self.clone() }
    }

    pub(crate) fn read_mode(&self) -> ReadMode {
        ReadMode { may_be_cached: !self.is_checking, is_urgent: self.is_urgent }
    }

    /// Whether it is read to be checked.
    pub fn is_checking(&self) -> bool {
        self.is_checking
    }

    /// The same pool, knowing what a person calls its place.
    #[must_use]
    pub fn at(self, location: &Path) -> Pool {
        Pool { location: location.to_str().map(Arc::from), ..self }
    }

    /// The same pool, whose targets are those of a table.
    ///
    /// # Errors
    /// What the table reports.
    pub fn with_table(self, table: Arc<TargetTable>) -> Result<Pool> {
        let pool = Pool { table: Some(table), ..self };
        pool.refresh_targets()?;
        Ok(pool)
    }

    /// The same pool, which lies in a directory: see [`Pool::check_markers`].
    #[must_use]
    pub fn in_directory(self, directory: &Path) -> Pool {
        self.in_home(PoolPaths::directory(directory))
    }

    pub(crate) fn in_home(self, paths: PoolPaths) -> Pool {
        Pool { paths: Some(Arc::new(paths)), ..self }
    }

    /// Makes sure that the pool is still where it was opened. Whoever opens a session asks before
    /// and after, and whoever commits asks before: a log that is made anew where one has vanished acknowledges what is lost.
    ///
    /// # Errors
    /// `Retry` if the log or the target has vanished, `Invalid` if the descriptor or the pool has, or is
    /// another's.
    pub fn check_markers(&self) -> Result<()> {
        let targets = || {
            self.refresh_targets()?;
            self.targets().check()
        };
        let Some(paths) = &self.paths else { return targets() };
        check(paths, &self.config, targets)?;
        if paths.wants_copy() {
            // Pools of older builds have no copy. If this process may not write there, it saves all the same.
            let _ = make_copy(paths, &*self.env.rng);
        }
        Ok(())
    }

    /// The places of its log, and of each why it is away, if it is.
    pub fn log_replicas(&self) -> Vec<(String, Option<Error>)> {
        let Some(paths) = &self.paths else { return vec![(self.log.describe(), None)] };
        let found = find_set(paths, &self.config.format, paths.log(), Lasting::Now)
            .into_iter()
            .map(|found| match found {
                Found::There(_) => None,
                Found::Away(error) | Found::Another(error) => Some(error),
            });
        paths.log().named.iter().map(Location::to_string).zip(found).collect()
    }

    /// The pool's id and its place, which together differ from those of every other pool and copy.
    pub fn identity(&self) -> (String, String) {
        let place = self.paths().map_or_else(|| self.log.describe(), |paths| paths.root.resolved());
        (self.config.format.pool_id.clone(), place)
    }

    pub(crate) fn paths(&self) -> Option<&PoolPaths> {
        self.paths.as_deref()
    }

    /// The same without its targets: why they cannot be asked for.
    pub(crate) fn place_says(&self) -> Result<()> {
        self.paths.as_ref().map_or(Ok(()), |paths| check(paths, &self.config, || Ok(())))
    }

    /// The directories of its packs that are on this machine and outside of the pool's own: what is put
    /// into the pool leaves them out.
    pub fn packs_elsewhere(&self) -> Vec<PathBuf> {
        let table = self.table.as_deref();
        self.paths
            .as_ref()
            .map_or_else(Vec::new, |paths| packs_elsewhere(paths, &self.config, table))
    }

    /// A command of `outlive` about this pool, for messages: `words` follow the pool's place.
    pub fn command(&self, verb: &str, words: &[&str]) -> String {
        command(verb, self.location.as_deref(), words)
    }

    /// Makes sure that the logs know what was lost with targets in memory: a program that saves before may
    /// share what is lost. To be asked behind [`Pool::check_markers`].
    ///
    /// # Errors
    /// `Retry` if they do not know yet.
    pub fn check_settled(&self) -> Result<()> {
        self.targets().check_settled()
    }

    /// The pool's descriptor.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// The same pool with other tuning, in memory only (its staging pool is a new one).
    #[must_use]
    pub fn with_tuning(&self, tuning: crate::Tuning) -> Pool {
        let config = PoolConfig { tuning, ..PoolConfig::clone(&self.config) };
        let pool = Pool::of(Vec::new(), config, self.log.clone(), self.env.clone());
        let (location, paths) = (self.location.clone(), self.paths.clone());
        let (targets, table) = (self.targets.clone(), self.table.clone());
        let written = self.written.clone();
        Pool { location, paths, targets, table, written, ..pool }
    }

    /// Where shards are kept.
    pub(crate) fn targets(&self) -> Arc<TargetSet> {
        self.targets.read().clone()
    }

    pub(crate) fn set_targets(&self, targets: Arc<TargetSet>) {
        *self.targets.write() = targets;
    }

    /// What says which targets there are, if anything does.
    pub(crate) fn table(&self) -> Option<&Arc<TargetTable>> {
        self.table.as_ref()
    }

    /// Buffers for parity.
    pub(crate) fn parity(&self) -> &Arc<StagingPool> {
        &self.parity
    }

    /// How a pack is spread over its shards, if that is known.
    pub(crate) fn known_layout(&self, pack: PackId) -> Option<Layout> {
        // Only tried: a forked child may inherit it locked.
        self.layouts.try_lock()?.get(&pack).cloned()
    }

    /// Notes how a pack is spread over its shards.
    pub(crate) fn knows_layout(&self, pack: PackId, layout: Layout) {
        if let Some(mut layouts) = self.layouts.try_lock() {
            // They are read again where they are needed.
            if layouts.len() >= LAYOUTS_MAX {
                layouts.clear();
            }
            layouts.insert(pack, layout);
        }
    }

    /// Who asks on which targets packs are written.
    pub(crate) fn written(&self) -> &Written {
        &self.written
    }

    /// Says that a pack is written without some of its shards.
    pub(crate) fn lacks_redundancy(&self, why: &Error) {
        let warning = format!(
            "what is saved now has less redundancy than it should have: {}; when the target is back, or \
             replaced, run: {}",
            why.message(),
            self.command("pool repair", &[])
        );
        // Once, and not for every pack.
        let mut said = self.said.lock();
        if said.as_ref() != Some(&warning) {
            *said = Some(warning.clone());
            drop(said);
            self.warn(warning);
        }
    }

    /// Where manifests are committed.
    pub fn log(&self) -> &Arc<dyn ManifestLog> {
        &self.log
    }

    /// Takes the lock of whoever collects, moves or repairs packs. Where programs fill a slow tier, it waits for
    /// them: they give it back again and again.
    ///
    /// # Errors
    /// What the log reports.
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

    /// Every program's job that has a record, sorted.
    ///
    /// # Errors
    /// What the log reports.
    pub fn jobs(&self) -> Result<Vec<JobName>> {
        let mut jobs = self.log.jobs()?;
        jobs.retain(|job| !job.is_gc());
        Ok(jobs)
    }

    /// The bounded memory that all I/O goes through.
    pub fn staging(&self) -> &Arc<StagingPool> {
        &self.staging
    }

    /// Counts a step of work: something was read or written, or a block was looked at.
    pub fn note_progress(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// How many steps of work this process has done. If the number stands still while there is work, it hangs.
    pub fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// What saves have learnt of the target's speed and of compression, and decide by.
    pub fn policy(&self) -> MutexGuard<'_, Policy> {
        self.policy.lock()
    }

    /// Time, randomness, observer.
    pub fn env(&self) -> &Environment {
        &self.env
    }

    /// Tells the observer something a person should know.
    pub fn warn(&self, message: impl Into<String>) {
        self.env.observer.event(Event::Warning(message.into()));
    }

    /// Tells the observer of a normal step.
    pub fn info(&self, message: impl Into<String>) {
        self.env.observer.event(Event::Info(message.into()));
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("targets", &self.targets).field("log", &self.log).finish()
    }
}
