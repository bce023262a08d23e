//! The pool of a [`PoolWorld`], as a program sees it, and as the checks at the end see it.

use crate::chance::Chance;
use crate::faulty_view::{noted, seen, seen_log};
use crate::replicas::log_of;
use crate::table::{SimLocations, is_settled};
use crate::world::{Me, PoolWorld};
use outlive_backend::{FaultProcess, Target};
use outlive_dir::DirectoryMedium;
use outlive_log::{ManifestLog, RecordLog};
use outlive_pool::{
    Environment, FormatConfig, Pool, PoolConfig, ProcessMark, TargetConfig, TargetTable,
    TiersConfig, Tuning,
};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, ErrorKind, Event, NoObserver, Observer, PackId, SeededRng};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

impl PoolWorld {
    /// Returns the log without faults.
    pub fn log(&self) -> Arc<dyn ManifestLog> {
        match &self.directory {
            Some(directory) => Arc::new(RecordLog::over(DirectoryMedium::open(directory.1.path()))),
            None if self.has_replicas() => log_of(self, None),
            None => self.world.log(),
        }
    }

    /// Returns the pool as the program `number` sees it; none if it cannot be opened.
    pub fn pool(&self, number: usize, seed: u64) -> Option<(Pool, FaultProcess)> {
        let (pool, me) = self.pool_of_thread(number, &number.to_string(), seed)?;
        Some((pool, me.process.clone()))
    }

    /// Returns the pool as one process of the program `number` sees it; here that is a thread named
    /// `who`.
    pub(crate) fn pool_of_thread(
        &self,
        number: usize,
        who: &str,
        seed: u64,
    ) -> Option<(Pool, Arc<Me>)> {
        let (targets, mut log, process) = self.world.process_with(self.space.targets_max());
        if self.is_directory() {
            log = self.log();
        }
        let (who, pool_world, has_failed) = (who.to_owned(), self.clone(), AtomicBool::default());
        let me = Arc::new(Me { number, who, pool_world, process, has_failed });
        if self.has_replicas() {
            log = log_of(self, Some(&me));
        }
        let targets = targets.into_iter().map(|target| seen(target, &me)).collect();
        let pool = self.pool_of(targets, seen_log(log, &me), self.env(seed), true);
        match pool {
            Ok(pool) => Some((pool, me)),
            Err(error) => {
                self.judge_opening(&me, &error);
                None
            }
        }
    }

    /// Judges an opening that failed: an event must explain it.
    fn judge_opening(&self, me: &Me, error: &Error) {
        self.dice.turns().remark(|| format!("the pool cannot be opened: {error}"));
        let is_expected = match error.kind() {
            _ if me.is_dead() || self.oracle.is_damaged() || self.oracle.is_rolled_back() => true,
            ErrorKind::Retry => self.dice.has_failed(),
            _ => false,
        };
        if !is_expected {
            let (who, kind) = (&me.who, error.kind().name());
            self.oracle.violate(format!(
                "program {who}: the pool cannot be opened, and nothing explains that: {kind}: {error}"
            ));
        }
    }

    /// Returns the pool without faults, and a note of each pack that is read.
    pub fn quiet_pool(&self, seed: u64) -> (Pool, Arc<Mutex<BTreeSet<PackId>>>) {
        let read = Arc::new(Mutex::default());
        let targets = self.all_targets().into_iter().map(|target| noted(target, &read)).collect();
        let pool = self.pool_of(targets, self.log(), self.env(seed), false);
        (pool.expect("nothing keeps it from being opened"), read)
    }

    fn env(&self, seed: u64) -> Environment {
        Environment {
            clock: self.dice.clone(),
            rng: Arc::new(SeededRng::new(seed)),
            observer: Arc::new(Remarks(self.dice.clone())),
            process: match self.space.leases {
                true => on_a_host_of_its_own,
                false => ProcessMark::of_this,
            },
        }
    }

    /// Builds a pool of small sizes, where nothing depends on the speed of the machine.
    fn pool_of(
        &self,
        targets: Vec<Arc<dyn Target>>,
        log: Arc<dyn ManifestLog>,
        env: Environment,
        pauses: bool,
    ) -> outlive_types::Result<Pool> {
        let format = FormatConfig {
            container_bytes: 64 << 10,
            pack_bytes: self.space.containers * (64 << 10),
            chunk_bytes_max: 4 << 10,
            ..FormatConfig::new([7; 16])
        };
        let tuning = Tuning {
            staging_bytes: 512 << 10,
            freeze_bytes_max: 1 << 20,
            freeze: "copy".to_owned(),
            tracker: "hash".to_owned(),
            threads: 1,
            reads_around: false,
            compression: "none".to_owned(),
            ..Tuning::default()
        };
        let redundancy = self.space.redundancy.clone();
        // Threads unknown to the scheduler would not repeat themselves.
        let tiers = TiersConfig {
            fill: self.dice.is_active(),
            keep_fast: self.space.keeps,
            ..TiersConfig::default()
        };
        let config = PoolConfig { redundancy, tiers, ..PoolConfig::new(format, tuning) };
        if !self.space.has_table() {
            return Ok(Pool::over(config, targets, log, env));
        }
        let locations = self.locations_of(targets, pauses);
        let table = TargetTable::new(log.clone(), Arc::new(locations), env.rng.clone());
        Pool::over(config, Vec::new(), log, env).with_table(Arc::new(table))
    }
}

impl PoolWorld {
    /// Notes that a program has read or written this record of the table. If no loss is left to be
    /// recorded, saves are possible from then on.
    pub(crate) fn table_is_seen(&self, record: &[u8]) {
        if is_settled(record, &self.markers) {
            self.oracle.settled();
        }
    }

    fn locations_of(&self, targets: Vec<Arc<dyn Target>>, pauses: bool) -> SimLocations {
        let (space, markers) = (self.space.clone(), self.markers.clone());
        let written_down = self.written_down.clone();
        SimLocations { space, targets, markers, written_down, pauses }
    }

    /// Returns the present rows of the table, read while other programs stand; none without a
    /// table.
    pub(crate) fn rows(&self) -> Vec<TargetConfig> {
        let locations = Arc::new(self.locations_of(self.all_targets(), false));
        let table = TargetTable::new(self.log(), locations, Arc::new(SeededRng::new(0)));
        table.read().map(|rows| rows.targets).unwrap_or_default()
    }
}

/// Writes warnings into the trace.
struct Remarks(Arc<Chance>);

impl Observer for Remarks {
    fn event(&self, event: Event) {
        match event {
            Event::Warning(text) => self.0.turns().remark(|| text),
            other => NoObserver.event(other),
        }
    }
}

/// Marks a program as one on its own host, so that no other program can check whether it runs.
fn on_a_host_of_its_own() -> ProcessMark {
    ProcessMark { system: String::new(), ..ProcessMark::of_this() }
}
