//! Restores while the fast tier is away: what is whole on the slow one is found, and nothing else is taken for
//! it because the slow one stumbles.

mod common;

use common::{Program, State, noise, small_config};
use outlive_pool::{
    Environment, FoundPlace, OpenTarget, Pool, PoolConfig, Rows, TargetConfig, TargetPlaces,
    TargetTable, Tier, TiersConfig,
};
use outlive_store::{FillOptions, Select, fill, named_packs};
use outlive_target::{FaultWorld, Target};
use outlive_types::{Error, ErrorKind, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A fast target and a slow one.
struct Places {
    targets: Vec<Arc<dyn Target>>,
    is_away: Arc<AtomicBool>,
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Places")
    }
}

impl TargetPlaces for Places {
    fn first(&self) -> Result<Rows> {
        let row = |id: u32| TargetConfig { id: Some(id), ..TargetConfig::at(id.to_string()) };
        let targets = vec![row(1), row(2).on_tier(Tier::Slow)];
        Ok(Rows { next_id: 3, targets })
    }

    fn open(&self, row: &TargetConfig, _: bool) -> Result<OpenTarget> {
        let (number, is_away) = (row.id.unwrap_or(1) as usize - 1, self.is_away.clone());
        let look = move || match number == 0 && is_away.load(Ordering::Relaxed) {
            true => Err(Error::damaged("it is not mounted")),
            false => Ok(()),
        };
        Ok((self.targets[number].clone(), Some(Box::new(look))))
    }

    fn find(&self, _: &TargetConfig) -> Result<FoundPlace> {
        Ok(FoundPlace::Free)
    }

    fn prepare(&self, _: &TargetConfig, _: &[TargetConfig]) -> Result<()> {
        Ok(())
    }

    fn mark(&self, _: &TargetConfig) -> Result<()> {
        Ok(())
    }
}

struct Place {
    world: FaultWorld,
    is_away: Arc<AtomicBool>,
}

impl Place {
    fn pool(&self) -> Pool {
        let (targets, log, _) = self.world.process_with(2);
        let places = Arc::new(Places { targets, is_away: self.is_away.clone() });
        // Whoever wants something on the slow tier says so.
        let tiers = TiersConfig { fill: false, ..TiersConfig::default() };
        let config = PoolConfig { tiers, ..small_config() };
        let env = Environment::system();
        let table = TargetTable::new(log.clone(), places, env.rng.clone());
        Pool::over(config, Vec::new(), log, env).with_table(Arc::new(table)).unwrap()
    }

    /// The fast target is not where it was, or back.
    fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::Relaxed);
        self.world.set_away(0, is_away);
    }

    fn shards(&self) -> Vec<String> {
        let (targets, ..) = self.world.process_with(2);
        targets[1].list().unwrap().iter().map(ToString::to_string).collect()
    }

    fn restore(&self) -> Result<Option<u64>> {
        let restored = Program::start(&self.pool(), "job").restore(Select::Newest)?;
        Ok(restored.map(|(epoch, _)| epoch))
    }
}

#[test]
fn only_what_is_away_is_passed_over() {
    let place = Place { world: FaultWorld::new(), is_away: Arc::default() };
    let pool = place.pool();
    let program = Program::start(&pool, "job");
    let save = |seed| {
        program.save(&State::from([("a".to_owned(), noise(seed, 150_000))])).unwrap();
    };
    save(1);
    fill(&pool, FillOptions::default()).unwrap();
    let first = place.shards();
    save(2);
    fill(&pool, FillOptions::default()).unwrap();
    place.set_away(true);
    assert_eq!(place.restore().unwrap(), Some(2));
    // The slow tier does not give what the newest has, however often it is asked: it may be whole all the same.
    place.world.count_reads(true);
    let second: Vec<String> = place.shards().into_iter().filter(|it| !first.contains(it)).collect();
    let is_second = move |op: &str| second.iter().any(|it| op.starts_with(&format!("read {it}")));
    place.world.fail_when(move |_, op| is_second(op).then_some(ErrorKind::Retry));
    let error = place.restore().unwrap_err();
    assert!(error.kind() == ErrorKind::Retry && !error.is_away(), "{error}");
    place.world.fail_when(|_, _| None);
    assert_eq!(place.restore().unwrap(), Some(2));
    // The newest is on the fast tier alone.
    place.set_away(false);
    save(3);
    place.set_away(true);
    assert_eq!(place.restore().unwrap(), Some(2));
    place.set_away(false);
    assert_eq!(place.restore().unwrap(), Some(3));
}

/// What a record names that cannot be read just now is not unneeded.
#[test]
fn what_is_named_is_not_known_while_a_record_cannot_be_read() {
    let place = Place { world: FaultWorld::new(), is_away: Arc::default() };
    let pool = place.pool();
    let program = Program::start(&pool, "job");
    for seed in 1..=2 {
        program.save(&State::from([("a".to_owned(), noise(seed, 150_000))])).unwrap();
    }
    let all = named_packs(&place.pool()).unwrap();
    assert!(!all.is_partial && all.packs.len() >= 2, "{all:?}");
    place.world.count_reads(true);
    let mut failed = 0;
    for step in 0.. {
        let first = place.world.ops() + step;
        place.world.fail_when(move |op, what| {
            (op == first && what.starts_with("read record")).then_some(ErrorKind::Retry)
        });
        match named_packs(&place.pool()) {
            Ok(named) => assert_eq!(named, all, "step {step}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Retry, "step {step}: {error}");
                failed += 1;
            }
        }
        if place.world.ops() <= first {
            break;
        }
    }
    assert!(failed >= 2, "{failed} records could not be read");
}
