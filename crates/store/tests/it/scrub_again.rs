//! Scrubs after earlier ones: the next ones know the findings of one.

use crate::common;

use common::{Program, State, noise, tuned_on};
use outlive_backend::{FaultWorld, ShardName};
use outlive_pool::Pool;
use outlive_store::retention::Rules;
use outlive_store::scrub::{ScrubOptions, ScrubReport, scrub};
use outlive_store::{Sample, Select};
use outlive_types::{JobName, PAGE_BYTES};

fn state(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 120_000))])
}

fn scrubbed(pool: &Pool) -> ScrubReport {
    let all = ScrubOptions { sample: Sample::ALL, bytes_per_s: None, dry_run: false };
    scrub(pool, &all).unwrap()
}

/// Saves a state, and returns the shard that holds it.
fn saved(world: &FaultWorld, program: &Program, state: &State) -> ShardName {
    let before = world.target().list().unwrap();
    program.save(state).unwrap();
    let mut now = world.target().list().unwrap().into_iter();
    now.find(|shard| !before.contains(shard)).unwrap()
}

/// A scrub has recorded that checkpoint 2 lacks data. A second one finds damage for which another
/// job has a copy, so it loses nothing, and writes the job a new archive.
#[test]
fn a_hurt_checkpoint_stays_hurt_when_later_damage_is_mended() {
    let world = FaultWorld::new();
    // Without an index each job stores everything.
    let pool = tuned_on(world.target(), |tuning| {
        tuning.index_bytes_max = 0;
        tuning.compression = "none".to_owned();
    });
    let program = Program::start(&pool, "a");
    program.save(&state(1)).unwrap();
    let second = saved(&world, &program, &state(2));
    world.corrupt(second, 5 * PAGE_BYTES as u64, 1);
    let incomplete = [(JobName::new("a").unwrap(), [2].into())].into();
    let report = scrubbed(&pool);
    assert_eq!((report.heal.lost, &report.heal.incomplete), (1, &incomplete), "{report:?}");
    let third = saved(&world, &program, &state(3));
    drop(program);
    Program::start(&pool, "b").save(&state(3)).unwrap();
    world.corrupt(third, 5 * PAGE_BYTES as u64, 1);
    let report = scrubbed(&pool);
    assert!(report.heal.lost == 0 && report.heal.found_elsewhere > 0, "{report:?}");
    assert_eq!(report.heal.incomplete, incomplete);
    let program = Program::start(&pool, "a");
    let keep_two = Rules { last: Some(2), ..Rules::default() };
    let dropped = program.job.retention(&keep_two).unwrap().dropped();
    assert!(!dropped.contains(&1), "the rules keep two whole checkpoints: {dropped:?} would go");
    for (epoch, seed) in [(1, 1), (3, 3)] {
        let restored = program.restore(Select::Epoch(epoch)).unwrap().unwrap();
        assert!(restored.1 == state(seed), "epoch {epoch}");
    }
}
