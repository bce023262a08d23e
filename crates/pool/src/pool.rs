//! A pool: its configuration, its target, its log, and what the work on it needs.

use crate::PoolConfig;
use crate::command::command;
use crate::environment::Environment;
use crate::place::{check, packs_elsewhere};
use crate::target_set::TargetSet;
use outlive_chunk::Policy;
use outlive_io::StagingPool;
use outlive_target::{ManifestLog, Target};
use outlive_types::{Event, JobName, Result};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Targets used as one space, and the log beside them. Cheap to clone; all clones share the memory
/// bound of one staging pool.
#[derive(Clone)]
pub struct Pool {
    config: Arc<PoolConfig>,
    /// Each by itself.
    targets: Arc<[Arc<dyn Target>]>,
    /// All of them.
    target: Arc<dyn Target>,
    log: Arc<dyn ManifestLog>,
    staging: Arc<StagingPool>,
    env: Environment,
    /// Where a person finds it.
    location: Option<Arc<str>>,
    /// The directory that holds descriptor and log, if one does.
    directory: Option<Arc<Path>>,
    /// Whether compression pays: what saves have learnt.
    policy: Arc<Mutex<Policy>>,
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
        let (target, targets) = (TargetSet::of(&targets), targets.into());
        let container_bytes = config.format.container_bytes as usize;
        let staging = StagingPool::new(config.tuning.staging_bytes as usize, container_bytes);
        let policy = Arc::new(Mutex::new(Policy::default()));
        let (config, location, directory) = (Arc::new(config), None, None);
        Pool { config, targets, target, log, staging, env, location, directory, policy }
    }

    /// The same pool, knowing what a person calls its place.
    #[must_use]
    pub fn at(self, location: &Path) -> Pool {
        Pool { location: location.to_str().map(Arc::from), ..self }
    }

    /// The same pool, which lies in a directory: see [`Pool::check_place`].
    #[must_use]
    pub fn in_directory(self, directory: &Path) -> Pool {
        Pool { directory: Some(Arc::from(directory)), ..self }
    }

    /// Makes sure that the pool is still where it was opened. Whoever opens a session asks before
    /// and after, and whoever commits asks before: a log that is made anew where one has vanished acknowledges what is lost.
    ///
    /// # Errors
    /// `Damaged` if the log or the target has vanished, `Invalid` if the descriptor or the pool has, or is
    /// another's.
    pub fn check_place(&self) -> Result<()> {
        self.directory.as_ref().map_or(Ok(()), |dir| check(dir, &self.config))
    }

    /// The directories of its packs that are on this machine and outside of the pool's own: what is put
    /// into the pool leaves them out.
    pub fn packs_elsewhere(&self) -> Vec<PathBuf> {
        self.directory.as_ref().map_or_else(Vec::new, |dir| packs_elsewhere(dir, &self.config))
    }

    /// A command of `outlive` about this pool, for messages: `words` follow the pool's place.
    pub fn command(&self, verb: &str, words: &[&str]) -> String {
        command(verb, self.location.as_deref(), words)
    }

    /// The pool's descriptor.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// The same pool with other tuning, in memory only (its staging pool is a new one).
    #[must_use]
    pub fn with_tuning(&self, tuning: crate::Tuning) -> Pool {
        let config = PoolConfig { tuning, ..PoolConfig::clone(&self.config) };
        let pool = Pool::over(config, self.targets.to_vec(), self.log.clone(), self.env.clone());
        let (location, directory) = (self.location.clone(), self.directory.clone());
        Pool { location, directory, ..pool }
    }

    /// Its targets, in the order of the descriptor.
    pub(crate) fn targets(&self) -> &[Arc<dyn Target>] {
        &self.targets
    }

    /// Where shards are kept: all targets as one.
    pub(crate) fn target(&self) -> &Arc<dyn Target> {
        &self.target
    }

    /// Where manifests are committed.
    pub fn log(&self) -> &Arc<dyn ManifestLog> {
        &self.log
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

    /// What saves have learnt of the target's speed and of compression, and decide by.
    pub fn policy(&self) -> MutexGuard<'_, Policy> {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner)
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
        f.debug_struct("Pool").field("target", &self.target).field("log", &self.log).finish()
    }
}
