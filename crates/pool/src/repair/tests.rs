//! A pool over places of one world, and its promise whatever happens: all data can be read,
//! whichever m targets are lost.

mod claims;
mod commands;
mod copies;
mod given_up;
mod looks;
mod slow;

use crate::targets::{FoundTarget, OpenTarget, Rows, TargetLocations, TargetTable};
use crate::{Container, Environment, FormatConfig, Named, PackWriter, Pool, PoolConfig};
use crate::{Redundancy, RepairOptions, Spread, TargetConfig, TargetState, Tier, Tuning};
use outlive_backend::{CutMode, FaultProcess, FaultWorld, ShardName, Target};
use outlive_format::{EntryKind, fingerprint};
use outlive_io::AlignedBuf;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, ErrorKind, PackId, Result, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const CONTAINER: usize = 64 << 10;
const PACKS: u32 = 4;
/// Places that targets may be in.
const PLACES: usize = 8;

/// Places of targets, each with the number of the target there.
#[derive(Clone, Debug)]
struct Places {
    targets: Vec<Arc<dyn Target>>,
    markers: Arc<Mutex<BTreeMap<usize, u32>>>,
    first: usize,
    looks: Looks,
}

/// Counts the health checks of one process, and calls a hook with the number of each one before it.
#[derive(Clone, Default)]
struct Looks(Arc<Mutex<(u64, Option<Hook>)>>);

type Hook = Box<dyn FnMut(u64) + Send>;

impl Looks {
    fn hook(hook: impl FnMut(u64) + Send + 'static) -> Looks {
        Looks(Arc::new(Mutex::new((0, Some(Box::new(hook))))))
    }

    fn next(&self) {
        let (count, hook) = &mut *self.0.lock();
        if let Some(hook) = hook {
            hook(*count);
        }
        *count += 1;
    }
}

impl std::fmt::Debug for Looks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Looks")
    }
}

fn location_of(row: &TargetConfig) -> Result<usize> {
    row.location.parse().map_err(|_| Error::invalid("a location is a number"))
}

impl TargetLocations for Places {
    fn first(&self, _: &[TargetConfig]) -> Result<Rows> {
        let row = |place: usize| TargetConfig {
            id: Some(place as u32 + 1),
            ..TargetConfig::at(place.to_string())
        };
        let targets: Vec<TargetConfig> = (0..self.first).map(row).collect();
        Ok(Rows { next_id: self.first as u32 + 1, targets })
    }

    fn open(&self, row: &TargetConfig, _: bool) -> Result<OpenTarget> {
        let (place, id, markers) = (location_of(row)?, row.id, self.markers.clone());
        let looks = self.looks.clone();
        let look = move || {
            looks.next();
            match markers.lock().get(&place).copied() == id {
                true => Ok(()),
                false => Err(Error::damaged("it is not mounted")),
            }
        };
        Ok((self.targets[place].clone(), Some(Box::new(look))))
    }

    fn find(&self, row: &TargetConfig) -> Result<FoundTarget> {
        let place = location_of(row)?;
        let marker = self.markers.lock().get(&place).copied();
        Ok(match marker {
            None => FoundTarget::Free,
            Some(id) => {
                let holds_shards = !self.targets[place].list()?.is_empty();
                FoundTarget::Own { id, holds_shards }
            }
        })
    }

    fn prepare(&self, row: &TargetConfig, _: &[TargetConfig]) -> Result<()> {
        self.mark(row)
    }

    fn mark(&self, row: &TargetConfig) -> Result<()> {
        self.markers.lock().insert(location_of(row)?, row.id.unwrap());
        Ok(())
    }
}

/// A pool over places of one world.
struct Fixture {
    world: FaultWorld,
    markers: Arc<Mutex<BTreeMap<usize, u32>>>,
    first: usize,
    rule: Redundancy,
}

impl Fixture {
    fn new(targets: usize, rule: Redundancy, has_locks: bool) -> Fixture {
        let world = if has_locks { FaultWorld::with_locks() } else { FaultWorld::new() };
        let markers = (0..targets).map(|place| (place, place as u32 + 1)).collect();
        let fixture =
            Fixture { world, markers: Arc::new(Mutex::new(markers)), first: targets, rule };
        let pool = fixture.pool();
        (0..PACKS).for_each(|number| write(&pool, number).unwrap());
        fixture
    }

    /// Makes the same with a slow target in place 5. Returns its number.
    fn with_slow(targets: usize, rule: Redundancy, has_locks: bool) -> (Fixture, u32) {
        let fixture = Fixture::new(targets, rule, has_locks);
        let slow = fixture.pool().add_target("5", None, Tier::Slow).unwrap();
        (fixture, slow)
    }

    /// Opens the pool as a new process.
    fn process(&self) -> (Pool, FaultProcess) {
        self.process_that(Looks::default())
    }

    /// Does the same, with a hook before each health check of a target.
    fn process_that(&self, looks: Looks) -> (Pool, FaultProcess) {
        let (targets, log, process) = self.world.process_with(PLACES);
        let (markers, first) = (self.markers.clone(), self.first);
        let locations = Places { targets, markers, first, looks };
        let env = Environment::system();
        let table = TargetTable::new(log.clone(), Arc::new(locations), env.rng.clone());
        let format = FormatConfig {
            container_bytes: CONTAINER as u64,
            pack_bytes: 2 * CONTAINER as u64,
            ..FormatConfig::new([7; 16])
        };
        let tuning = Tuning { reads_around: false, threads: 1, ..Tuning::default() };
        let redundancy = self.rule.clone();
        let config = PoolConfig { redundancy, ..PoolConfig::new(format, tuning) };
        let pool = Pool::over(config, Vec::new(), log, env).with_table(Arc::new(table)).unwrap();
        (pool, process)
    }

    fn pool(&self) -> Pool {
        self.process().0
    }

    /// Takes a target away, with all its data. Returns its number.
    fn take(&self, place: usize) -> u32 {
        self.markers.lock().remove(&place).unwrap()
    }

    fn bring_back(&self, place: usize, id: u32) {
        self.markers.lock().insert(place, id);
    }

    /// Cuts the power of all targets at once: names that were visible and not durable are gone.
    fn cut_targets(&self) {
        (0..PLACES).for_each(|place| self.world.cut_target(place, CutMode::Lost));
    }

    fn repair(&self) -> crate::RepairReport {
        let report = self.pool().repair(RepairOptions::default(), &All).unwrap();
        assert!(report.is_whole(), "{report:?}");
        report
    }

    /// Checks that the pool matches its table: each shard of each pack once, on targets that fail
    /// by themselves, and every set of m targets may be away.
    fn check(&self, what: &str) {
        let pool = self.pool();
        let targets = pool.targets();
        let listed = targets.list().unwrap();
        for number in 0..PACKS {
            let mine = listed.iter().filter(|(name, _)| name.pack == pack(number));
            let (shards, on): (Vec<u8>, Vec<usize>) =
                mine.map(|(name, on)| (name.shard, *on)).unzip();
            let all: Vec<u8> = (0..pool.shards_of(pack(number)).len() as u8).collect();
            assert_eq!(shards, all, "{what}: pack {number} on {on:?}");
            assert_eq!(on.iter().collect::<BTreeSet<_>>().len(), on.len(), "{what}: {on:?}");
            assert!(on.iter().all(|on| targets.members()[*on].is_active()), "{what}: {on:?}");
        }
        assert!(targets.members().iter().all(|member| !member.is_lost()), "{what}");
        let redundancy = pool.redundancy().unwrap();
        let m = self.rule.survives() as i64;
        assert!(redundancy.values().all(|pack| pack.spare == m), "{what}: {redundancy:?}");
        let there: Vec<usize> = self.markers.lock().keys().copied().collect();
        for lost in losses(&there, self.rule.survives()) {
            let ids: Vec<u32> = lost.iter().map(|place| self.take(*place)).collect();
            let reader = self.pool();
            (0..PACKS).for_each(|number| read(&reader, number, &format!("{what}, {lost:?}")));
            lost.iter().zip(ids).for_each(|(place, id)| self.bring_back(*place, id));
        }
    }
}

fn losses(of: &[usize], m: usize) -> Vec<Vec<usize>> {
    let sets = 0u32..1 << of.len();
    let chosen =
        |set: u32| (0..of.len()).filter(|at| set >> at & 1 == 1).map(|at| of[at]).collect();
    sets.filter(|set| set.count_ones() as usize == m).map(chosen).collect()
}

fn pack(number: u32) -> PackId {
    PackId::new(SessionId([5; 12]), 0, number)
}

fn chunk(number: u32, at: u32) -> Vec<u8> {
    (0..30_000).map(|byte: u32| (byte * 7 + number * 31 + at) as u8).collect()
}

/// Writes a pack of two containers.
fn write(pool: &Pool, number: u32) -> Result<()> {
    let mut writer = PackWriter::new(pool, pack(number), 2 * CONTAINER as u64)?;
    for at in 0..4 {
        let chunk = chunk(number, at);
        if writer.needs_buffer(chunk.len()) {
            writer.open(Container::new(AlignedBuf::zeroed(CONTAINER)))?;
        }
        writer.append(&chunk, fingerprint(&chunk), EntryKind::Chunk)?;
    }
    writer.finish()?.wait()
}

fn read(pool: &Pool, number: u32, what: &str) {
    let mut found = 0;
    let mut each = |directory: &outlive_format::Directory, offset: u64, bytes: &[u8]| {
        for entry in &directory.entries {
            let start = u64::from(entry.offset).wrapping_sub(offset) as usize;
            if let Some(chunk) = bytes.get(start..).and_then(|rest| rest.get(..30_000)) {
                assert_eq!(fingerprint(chunk), entry.fp, "{what}");
                found += 1;
            }
        }
        Ok(())
    };
    pool.check_pack(pack(number), &mut each).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(found, 4, "{what}");
}

fn rules() -> Vec<(usize, Redundancy)> {
    vec![
        (2, Redundancy::default()),
        (3, Redundancy::mirror(2)),
        (4, Redundancy::erasure(2, 1)),
        (5, Redundancy::erasure(2, 2)),
    ]
}

/// Logs in which checkpoints name all packs of these tests.
struct All;

impl crate::PackUses for All {
    fn named(&self, _: &Pool) -> Result<Option<Named>> {
        Ok(Some(Named { packs: (0..PACKS).map(pack).collect(), is_partial: false }))
    }

    fn trimmed(&self, _: &Pool) -> Result<BTreeSet<PackId>> {
        Ok(BTreeSet::new())
    }
}

fn bytes_of(target: &dyn Target, name: ShardName) -> AlignedBuf {
    let length = target.length(name).unwrap() as usize;
    let range = outlive_backend::ReadRange::new(0, AlignedBuf::zeroed(length));
    outlive_backend::read_one(target, name, range).wait().unwrap()
}

fn copy_by_hand(fixture: &Fixture, name: ShardName, from: usize, to: usize) {
    let targets = fixture.world.process_with(PLACES).0;
    let bytes = bytes_of(&*targets[from], name);
    let length = bytes.len() as u64;
    let mut writer = targets[to].create(name, length).unwrap();
    writer.write(0, bytes.share()).wait().unwrap();
    writer.finish(length).wait().unwrap();
}

/// Logs with these answers.
#[derive(Default)]
struct Says {
    named: Named,
    trimmed: BTreeSet<PackId>,
}

impl crate::PackUses for Says {
    fn named(&self, _: &Pool) -> Result<Option<Named>> {
        Ok(Some(self.named.clone()))
    }

    fn trimmed(&self, _: &Pool) -> Result<BTreeSet<PackId>> {
        Ok(self.trimmed.clone())
    }
}

/// Returns logs with damaged lists of checkpoints: the other packs that they name are not known.
fn partial() -> Says {
    let named = Named { packs: BTreeSet::new(), is_partial: true };
    Says { named, ..Says::default() }
}
