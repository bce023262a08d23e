//! Random programs against a naive model: whatever is edited, saved, restored and continued, each
//! epoch returns exactly the state that was saved as it.

use crate::common;

use common::{Program, State, noise, pool_of, tuned};
use outlive_backend::MemoryTarget;
use outlive_log::MemoryLog;
use outlive_pool::Pool;
use outlive_store::Select;
use outlive_types::PAGE_BYTES;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Step {
    /// Noise into some pages of a region.
    Edit {
        region: usize,
        page: usize,
        pages: usize,
        seed: u64,
    },
    /// Zeros into some pages.
    Zero {
        region: usize,
        page: usize,
        pages: usize,
    },
    /// Pages that repeat others.
    Copy {
        region: usize,
        from: usize,
        to: usize,
        pages: usize,
    },
    /// Another length.
    Resize {
        region: usize,
        bytes: usize,
    },
    Remove {
        region: usize,
    },
    Save,
    /// The program dies, starts again, and continues from an epoch back from the newest.
    Restart {
        back: u64,
    },
    /// The program dies and starts again without restoring.
    StartAnew,
}

const REGION_BYTES_MAX: usize = 5 << 20;

fn step() -> impl Strategy<Value = Step> {
    let region = 0..4usize;
    let page = 0..1300usize;
    prop_oneof![
        6 => (region.clone(), page.clone(), 1..40usize, any::<u64>())
            .prop_map(|(region, page, pages, seed)| Step::Edit { region, page, pages, seed }),
        2 => (region.clone(), page.clone(), 1..200usize)
            .prop_map(|(region, page, pages)| Step::Zero { region, page, pages }),
        2 => (region.clone(), page.clone(), page, 1..40usize)
            .prop_map(|(region, from, to, pages)| Step::Copy { region, from, to, pages }),
        2 => (region.clone(), prop_oneof![0..200_000usize, 0..REGION_BYTES_MAX])
            .prop_map(|(region, bytes)| Step::Resize { region, bytes }),
        1 => region.prop_map(|region| Step::Remove { region }),
        8 => Just(Step::Save),
        2 => (0..4u64).prop_map(|back| Step::Restart { back }),
        1 => Just(Step::StartAnew),
    ]
}

fn name(region: usize) -> String {
    format!("region {region}")
}

fn edit(state: &mut State, step: &Step) {
    let range = |bytes: &[u8], page: usize, pages: usize| {
        let start = (page * PAGE_BYTES).min(bytes.len());
        start..(start + pages * PAGE_BYTES).min(bytes.len())
    };
    match step {
        Step::Edit { region, page, pages, seed } => {
            let bytes = state.entry(name(*region)).or_insert_with(|| noise(*seed, 3_000_000));
            let range = range(bytes, *page, *pages);
            let length = range.len();
            bytes[range].copy_from_slice(&noise(*seed, length));
        }
        Step::Zero { region, page, pages } => {
            if let Some(bytes) = state.get_mut(&name(*region)) {
                let range = range(bytes, *page, *pages);
                bytes[range].fill(0);
            }
        }
        Step::Copy { region, from, to, pages } => {
            if let Some(bytes) = state.get_mut(&name(*region)) {
                let (from, to) = (range(bytes, *from, *pages), range(bytes, *to, *pages));
                let length = from.len().min(to.len());
                bytes.copy_within(from.start..from.start + length, to.start);
            }
        }
        Step::Resize { region, bytes } => {
            state.entry(name(*region)).or_default().resize(*bytes, 7);
        }
        Step::Remove { region } => {
            state.remove(&name(*region));
        }
        Step::Save | Step::Restart { .. } | Step::StartAnew => {}
    }
}

fn run(pool: &Pool, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut program = Program::start(pool, "model");
    let mut state = State::new();
    let mut saved: BTreeMap<u64, State> = BTreeMap::new();
    for step in steps {
        edit(&mut state, step);
        match step {
            Step::Save => {
                let epoch = program.save(&state).unwrap().epoch;
                prop_assert!(saved.insert(epoch, state.clone()).is_none());
            }
            Step::StartAnew => program = Program::start(pool, "model"),
            Step::Restart { back } => {
                program = Program::start(pool, "model");
                let newest = saved.keys().last().copied().unwrap_or(0);
                let select = match newest.checked_sub(*back).filter(|epoch| *epoch > 0) {
                    Some(epoch) if *back > 0 => Select::Epoch(epoch),
                    _ => Select::Newest,
                };
                match program.restore(select).unwrap() {
                    Some((epoch, restored)) => {
                        prop_assert!(restored == saved[&epoch], "epoch {} differs", epoch);
                        state = restored;
                    }
                    None => {
                        prop_assert!(saved.is_empty());
                        state = State::new();
                    }
                }
            }
            _ => {}
        }
    }
    for (epoch, state) in &saved {
        let reader = Program::start(pool, "model");
        let (found, restored) = reader.restore(Select::Epoch(*epoch)).unwrap().unwrap();
        prop_assert!(found == *epoch && restored == *state, "epoch {} differs", epoch);
    }
    let report = Program::start(pool, "model").job.verify(None).unwrap();
    prop_assert_eq!(report.findings, vec![]);
    prop_assert_eq!(report.whole, saved.len() as u64);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default() })]

    #[test]
    fn every_epoch_has_the_saved_state(steps in prop::collection::vec(step(), 1..40)) {
        run(&pool_of(Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new())), &steps)?;
    }

    #[test]
    fn so_it_is_compressed(steps in prop::collection::vec(step(), 1..40), zstd: bool) {
        let codec = if zstd { "zstd" } else { "lz4" };
        run(&tuned(|tuning| tuning.compression = codec.to_owned()), &steps)?;
    }

    #[test]
    fn so_it_is_with_no_leaf_kept_and_much_rewritten(steps in prop::collection::vec(step(), 1..40)) {
        let pool = tuned(|tuning| {
            tuning.leaf_bytes_max = 0;
            tuning.rewrite_percent_max = 1000;
            tuning.index_bytes_max = 0;
            tuning.freeze_bytes_max = 100_000;
            tuning.threads = 3;
        });
        run(&pool, &steps)?;
    }
}

/// Long chains of delta leaves: each save changes a few pages of the same blocks.
#[test]
fn long_series_of_small_changes() {
    for leaf_bytes_max in [0, 2048, 1 << 20] {
        let pool = tuned(|tuning| tuning.leaf_bytes_max = leaf_bytes_max);
        let mut program = Program::start(&pool, "series");
        let mut state = State::from([("a".to_owned(), noise(0, 3 << 20))]);
        let mut states = Vec::new();
        for step in 0..60u64 {
            for change in 0..5 {
                let page = (noise(step * 5 + change, 2)[0] as usize * 3) % 768;
                let fresh = noise(1000 + step * 5 + change, PAGE_BYTES);
                let bytes = state.get_mut("a").unwrap();
                bytes[page * PAGE_BYTES..][..PAGE_BYTES].copy_from_slice(&fresh);
            }
            program.save(&state).unwrap();
            states.push(state.clone());
            if step == 30 {
                program = Program::start(&pool, "series");
                let (_, restored) = program.restore(Select::Newest).unwrap().unwrap();
                assert!(restored == state);
            }
        }
        for (at, state) in states.iter().enumerate() {
            let reader = Program::start(&pool, "series");
            let (_, restored) = reader.restore(Select::Epoch(at as u64 + 1)).unwrap().unwrap();
            assert!(restored == *state, "epoch {} with {leaf_bytes_max}", at + 1);
        }
        let segments = program
            .job
            .epochs()
            .unwrap()
            .last()
            .unwrap()
            .manifest
            .images
            .one()
            .unwrap()
            .segments
            .len();
        assert!(segments <= 16, "{segments} segments after 60 saves");
    }
}
