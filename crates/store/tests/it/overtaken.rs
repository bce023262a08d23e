//! A checkpoint is restored while prunes and gcs run, and other programs save in the same job. The
//! next save must find its base where the log has put it.

use crate::common;

use common::{Program, State, Vectors, changed, noise, pool_of};
use outlive_backend::{MemoryTarget, Target};
use outlive_log::MemoryLog;
use outlive_pool::Pool;
use outlive_store::Select;
use outlive_store::gc::{GcOptions, Thoroughness, collect};
use outlive_types::{Epoch, JobName};
use std::sync::Arc;

fn state(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 150_000)), ("b".to_owned(), vec![seed as u8; 10])])
}

fn gc(pool: &Pool, drop: &[Epoch]) {
    let drop = match drop {
        [] => Default::default(),
        epochs => [(JobName::new("job").unwrap(), epochs.iter().copied().collect())].into(),
    };
    let thoroughness = Thoroughness { unused_max: 0.0, ..Thoroughness::default() };
    collect(pool, &GcOptions { drop, thoroughness, ..GcOptions::default() }).unwrap();
}

/// Makes three checkpoints. A new program restores the second, and `meanwhile` runs before it knows
/// that. Returns the program, with the restored state.
fn restored(pool: &Pool, meanwhile: impl Fn(&Program)) -> (Program, State) {
    let states = [state(1), changed(state(1), 3, 77), changed(state(1), 9, 78)];
    let program = Program::start(pool, "job");
    for state in &states {
        program.save(state).unwrap();
    }
    drop(program);
    let program = Program::start(pool, "job");
    let done = program.job.restore(
        Select::Epoch(2),
        &mut |checkpoint| {
            let all = (0..checkpoint.streams().len()).collect();
            Ok((all, Vectors::for_all(checkpoint)))
        },
        &mut |checkpoint, vectors| {
            let streams = vectors.into_inner();
            let names = checkpoint.streams().iter().map(|stream| stream.name.as_str());
            let primed: Vec<(&str, &[u8])> =
                names.zip(&streams).map(|(name, bytes)| (name, bytes.as_slice())).collect();
            meanwhile(&program);
            program.tracker.prime(checkpoint.epoch(), &primed, 1);
            Ok(())
        },
    );
    assert_eq!(done.unwrap().unwrap().epoch, 2);
    (program, states[1].clone())
}

/// Checks that the next save of the program, which shares with its base, is whole after every gc.
fn goes_on(pool: &Pool, program: &Program, base: &State) {
    let next = changed(base.clone(), 20, 5);
    let epoch = program.save(&next).unwrap().epoch;
    for _ in 0..2 {
        gc(pool, &[]);
        let found = Program::start(pool, "job").restore(Select::Epoch(epoch)).unwrap().unwrap();
        assert!(found.1 == next, "epoch {epoch}");
    }
    assert_eq!(program.job.verify(None).unwrap().findings, vec![]);
}

/// A gc has moved the restored data, and a save of another thread has noted that for the job; then
/// the old packs are deleted.
#[test]
fn a_base_that_was_moved_before_it_was_taken_is_followed() {
    let target = Arc::new(MemoryTarget::new());
    let pool = pool_of(target.clone(), Arc::new(MemoryLog::new()));
    let before = |target: &MemoryTarget| target.list().unwrap();
    let (program, base) = restored(&pool, |program| {
        let old = before(&target);
        gc(&pool, &[1]);
        program.save(&state(9)).unwrap();
        gc(&pool, &[]);
        let now = before(&target);
        assert!(old.iter().any(|shard| !now.contains(shard)), "something was moved and deleted");
    });
    goes_on(&pool, &program, &base);
}

#[test]
fn a_base_that_was_dropped_before_it_was_taken_is_none() {
    let pool = pool_of(Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()));
    let (program, base) = restored(&pool, |program| {
        gc(&pool, &[2]);
        program.save(&state(9)).unwrap();
        gc(&pool, &[]);
    });
    goes_on(&pool, &program, &base);
}
