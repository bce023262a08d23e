//! Restores while the fast tier is away: they find checkpoints that are whole on the slow tier.
//! They take no other one because reads there fail for a while.

use crate::common;
use crate::two_disks;

use common::{Program, State, noise};
use outlive_backend::FaultWorld;
use outlive_pool::{Environment, Pool, TiersConfig};
use outlive_store::{FillOptions, Select, fill, named_packs};
use outlive_types::{ErrorKind, Result};
use two_disks::Disks;

struct Fixture {
    world: FaultWorld,
    disks: Disks,
}

impl Fixture {
    fn new() -> Fixture {
        let world = FaultWorld::new();
        Fixture { world: world.clone(), disks: Disks::new(world) }
    }

    fn pool(&self) -> Pool {
        // A test that needs data on the slow tier fills it by itself.
        let tiers = TiersConfig { fill: false, ..TiersConfig::default() };
        self.disks.pool(tiers, Environment::system())
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
fn only_checkpoints_that_are_away_are_passed_over() {
    let fixture = Fixture::new();
    let pool = fixture.pool();
    let program = Program::start(&pool, "job");
    let save = |seed| {
        program.save(&State::from([("a".to_owned(), noise(seed, 150_000))])).unwrap();
    };
    save(1);
    fill(&pool, FillOptions::default()).unwrap();
    let first = fixture.shards();
    save(2);
    fill(&pool, FillOptions::default()).unwrap();
    fixture.disks.set_away(true);
    assert_eq!(fixture.restore().unwrap(), Some(2));
    // Every read of the newest one's own data on the slow tier fails: it may be whole all the same.
    fixture.world.count_reads(true);
    let second: Vec<String> =
        fixture.shards().into_iter().filter(|it| !first.contains(it)).collect();
    let is_second = move |op: &str| second.iter().any(|it| op.starts_with(&format!("read {it}")));
    fixture.world.fail_when(move |_, op| is_second(op).then_some(ErrorKind::Retry));
    let error = fixture.restore().unwrap_err();
    assert!(error.kind() == ErrorKind::Retry && !error.is_away(), "{error}");
    fixture.world.fail_when(|_, _| None);
    assert_eq!(fixture.restore().unwrap(), Some(2));
    // The newest is on the fast tier alone.
    fixture.disks.set_away(false);
    save(3);
    fixture.disks.set_away(true);
    assert_eq!(fixture.restore().unwrap(), Some(2));
    fixture.disks.set_away(false);
    assert_eq!(fixture.restore().unwrap(), Some(3));
}

/// Packs that a record may name do not count as unneeded while the record cannot be read.
#[test]
fn named_packs_are_unknown_while_a_record_cannot_be_read() {
    let fixture = Fixture::new();
    let pool = fixture.pool();
    let program = Program::start(&pool, "job");
    for seed in 1..=2 {
        program.save(&State::from([("a".to_owned(), noise(seed, 150_000))])).unwrap();
    }
    let all = named_packs(&fixture.pool()).unwrap();
    assert!(!all.is_partial && all.packs.len() >= 2, "{all:?}");
    fixture.world.count_reads(true);
    let mut failed = 0;
    for step in 0.. {
        let first = fixture.world.ops() + step;
        fixture.world.fail_when(move |op, what| {
            (op == first && what.starts_with("read record")).then_some(ErrorKind::Retry)
        });
        match named_packs(&fixture.pool()) {
            Ok(named) => assert_eq!(named, all, "step {step}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Retry, "step {step}: {error}");
                failed += 1;
            }
        }
        if fixture.world.ops() <= first {
            break;
        }
    }
    assert!(failed >= 2, "{failed} records could not be read");
}
