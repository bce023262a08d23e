//! Checkpoints that are marked as bad: a restore of the newest passes over them, with and without a
//! group of ranks.

use crate::common;
use crate::rank_threads;

use common::{Program, State, memory_pool, noise};
use outlive_backend::FaultWorld;
use outlive_format::Mark;
use outlive_store::{Job, Select};
use outlive_types::{Epoch, ErrorKind};
use rank_threads::{PATIENT, run, state, usual};

fn mark(job: &Job, epoch: Epoch, mark: Mark) {
    job.note(epoch, |remarks| remarks.mark = mark).unwrap();
}

#[test]
fn a_restore_passes_over_bad_checkpoints_unless_one_is_named() {
    let program = Program::start(&memory_pool(), "a");
    let of = |step| State::from([("a".to_owned(), noise(step, 100_000))]);
    for step in 1..=3 {
        program.save(&of(step)).unwrap();
    }
    let newest = || program.restore(Select::Newest).unwrap().unwrap();
    mark(&program.job, 3, Mark::Bad);
    assert!(newest() == (2, of(2)));
    assert!(program.restore(Select::Sound).unwrap().unwrap() == (2, of(2)));
    assert!(program.restore(Select::Epoch(3)).unwrap().unwrap() == (3, of(3)));
    mark(&program.job, 2, Mark::Good);
    assert!(newest() == (2, of(2)));
    mark(&program.job, 2, Mark::Bad);
    mark(&program.job, 1, Mark::Bad);
    let error = program.restore(Select::Newest).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.message().starts_with("every checkpoint of job a is marked as bad"), "{error}");
    mark(&program.job, 3, Mark::None);
    assert!(newest() == (3, of(3)));
}

#[test]
fn all_ranks_pass_over_bad_checkpoints() {
    let restored = run(&FaultWorld::new(), PATIENT, &usual(), |program| {
        for step in 1..=3 {
            program.save(step).unwrap();
        }
        // All ranks have committed when a collective call returns.
        if program.rank == 0 {
            mark(&program.job, 3, Mark::Bad);
        }
        program.job.any_rank("a test", false).unwrap();
        let mut seen = Vec::new();
        let mut look = |manifest: &outlive_format::Manifest, _| {
            seen.push(manifest.epoch);
            Ok(())
        };
        let found = program.job.restore_together(Select::Newest, &mut look, &mut |_, _| Ok(()));
        let found = found.unwrap().unwrap();
        assert_eq!((found.epoch, &seen[..]), (2, &[2][..]));
        let skipped: Vec<_> =
            found.skipped.iter().map(|(epoch, why)| (*epoch, why.kind())).collect();
        let expected = [(3, ErrorKind::Invalid)];
        assert_eq!(skipped, expected[..usize::from(program.rank == 0)]);
        if program.rank == 0 {
            (1..=2).for_each(|epoch| mark(&program.job, epoch, Mark::Bad));
        }
        program.job.any_rank("a test", false).unwrap();
        let none =
            program.job.restore_together(Select::Newest, &mut |_, _| Ok(()), &mut |_, _| Ok(()));
        let error = none.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.message().contains("is marked as bad"), "{error}");
        // The state of the named one is whole.
        let named =
            program.job.restore_together(Select::Epoch(3), &mut |_, _| Ok(()), &mut |_, _| {
                Ok(state(program.rank, 3))
            });
        named.unwrap().unwrap().epoch
    });
    assert_eq!(restored, [3, 3, 3]);
}

#[test]
fn one_rank_that_says_yes_is_enough() {
    let answers = run(&FaultWorld::new(), PATIENT, &usual(), |program| {
        [0, 1, 2, 3].map(|yes| program.job.any_rank("a test", program.rank == yes).unwrap())
    });
    assert_eq!(answers, [[true, true, true, false]; 3]);
}
