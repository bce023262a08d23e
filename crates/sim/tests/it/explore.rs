//! Runs some thousands of schedules. They are fixed, except that `OUTLIVE_SIM_SEED=N` in the
//! environment starts at another seed. A failure names its schedule;
//! `cargo run -p outlive-sim -- NAME` shows it step by step.

use outlive_sim::{Family, Name, run};

/// Schedules of each family.
const SCHEDULES: u64 = 300;

fn first_seed() -> u64 {
    let seed = std::env::var("OUTLIVE_SIM_SEED").ok();
    seed.map_or(1, |seed| seed.parse().expect("OUTLIVE_SIM_SEED is a number"))
}

fn explore(family: Family) {
    for seed in (first_seed()..).take(SCHEDULES as usize) {
        check(Name { family, seed });
    }
}

fn check(name: Name) {
    let outcome = run(name, false);
    if let Some(failure) = outcome.failure {
        let trace = run(name, true).trace;
        let last = &trace[trace.len().saturating_sub(40)..];
        panic!(
            "schedule {name}: {failure}\n{:?} by {}; the last steps:\n{}\n\
             `cargo run -p outlive-sim -- {name}` shows all",
            outcome.case,
            outcome.policy,
            last.join("\n")
        );
    }
}

/// Further schedules that have found a failure once; docs/design/013-explorer.md lists them. A
/// change of the store changes these schedules, so each is worth most until the next change.
#[test]
fn schedules_that_once_failed_do_not_fail_again() {
    for (family, seed) in [
        (Family::Collect, 423),
        (Family::Collect, 7_146_392),
        (Family::Collect, 71_000_252),
        (Family::Collect, 71_001_512),
        (Family::Crowd, 1432),
        (Family::Damage, 16_601),
        (Family::Damage, 991_926),
        (Family::Fence, 31_001_633),
        (Family::Fence, 50_045_997),
        (Family::Fence, 61_000_075),
        (Family::Fence, 81_008_737),
        (Family::Group, 80_378),
        (Family::Group, 50_030_935),
        (Family::Lazy, 7_530_412),
        (Family::Lazy, 7_608_028),
        (Family::Overtake, 4_048),
        (Family::Scrub, 7_700_486),
        (Family::Suspend, 17_526),
        (Family::Suspend, 7_598_517),
        (Family::Suspend, 944_968),
        (Family::Suspend, 50_011_097),
        (Family::Suspend, 50_014_709),
        (Family::Suspend, 50_015_777),
        (Family::Suspend, 61_001_192),
    ] {
        check(Name { family, seed });
    }
}

macro_rules! families {
    ($($test:ident: $family:ident,)*) => {$(
        #[test]
        fn $test() {
            explore(Family::$family);
        }
    )*};
}

families! {
    collectors_overlap: Collect,
    writers_fence_each_other: Fence,
    a_program_looks_back_while_it_saves: Twin,
    programs_go_back: Return,
    memory_is_filled_while_checkpoints_go: Lazy,
    pools_are_copied: Copy,
    packs_are_scrubbed: Scrub,
    collectors_overtake_each_other: Overtake,
    bits_flip: Damage,
    a_program_stands_still: Suspend,
    many_programs_meet: Crowd,
    ranks_save_together: Group,
    targets_come_and_go: Members,
    disks_fail: Disks,
    targets_are_slow: Slow,
    outputs_wait_for_commits: Emit,
    helpers_complete_saves: Helper,
}

#[test]
fn a_schedule_repeats_itself() {
    for family in Family::ALL {
        for seed in 0..10 {
            let name = Name { family, seed };
            let (first, second) = (run(name, false), run(name, true));
            assert_eq!(first.digest, second.digest, "{name}: other steps");
            assert_eq!(first.failure, second.failure, "{name}");
            assert!(first.steps > 20 && !second.trace.is_empty(), "{name} did nothing");
        }
    }
}
