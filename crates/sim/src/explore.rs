//! Runs one schedule, and judges its result.

use crate::case::{Case, Family, Name, group};
use crate::chance::Chance;
use crate::check::check;
use crate::policy::Policy;
use crate::programs::Program;
use crate::roles::{A, B, G, Group, Role};
use crate::scheduler::{self, SeededScheduler, Start};
use crate::world::PoolWorld;
use outlive_store::{FillOptions, fill};
use outlive_types::{JobName, SeededRng};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The outcome of a schedule.
#[derive(Clone, Debug)]
pub struct ScheduleOutcome {
    /// The case.
    pub case: Case,
    /// The policy that chose the threads.
    pub policy: String,
    /// Number of decisions.
    pub steps: u64,
    /// Digest of all decisions and steps.
    pub digest: u64,
    /// The steps in order, if a trace was requested.
    pub trace: Vec<String>,
    /// Number of times that the programs achieved each purpose.
    pub achieved: BTreeMap<&'static str, u64>,
    /// The failure, if there was one.
    pub failure: Option<String>,
}

/// Runs the schedule of a name. The same name gives the same outcome, with or without a trace.
pub fn run(name: Name, keep_trace: bool) -> ScheduleOutcome {
    run_case(Case::of(name), keep_trace)
}

/// Runs the schedule of a case.
pub fn run_case(case: Case, keep_trace: bool) -> ScheduleOutcome {
    let seed = case.name.seed;
    let policy = Policy::of(seed);
    let shown = policy.to_string();
    let turns = SeededScheduler::new(policy, keep_trace);
    let dice = Chance::new(seed, case.chances, case.lie, turns.clone());
    let pool = |name| PoolWorld::new(name, case.log, &case.space, &dice);
    let (here, there) = (pool("here"), pool("there"));
    let rng = SeededRng::new(seed ^ 0xBE61);
    prepare(case.name.family, &here, &there, &rng, &dice);
    if case.space.slow && seed.is_multiple_of(2) {
        let filled = fill(&here.quiet_pool(seed).0, FillOptions::default());
        filled.expect("nothing goes wrong before the programs begin");
    }
    if case.scratched {
        here.scratch(&rng);
    }
    let programs = case.roles.iter().enumerate();
    let start = |(number, role): (usize, &Role)| -> Start {
        let program = Program {
            number,
            role: role.clone(),
            pool_world: here.clone(),
            other: there.clone(),
            rng: SeededRng::new(rng.next_u64()),
            dice: dice.clone(),
        };
        (format!("{number}"), Box::new(move || program.run()))
    };
    let programs: Vec<Start> = programs.map(start).collect();
    dice.set_active(true);
    if case.name.family == Family::Group {
        turns.keep_time();
    }
    turns.suspend(&case.suspensions);
    for (program, suspensions) in &case.late {
        turns.come_late(*program, *suspensions);
    }
    let ran = turns.run(programs);
    dice.set_active(false);
    let wrong = ran
        .failure
        .clone()
        .or_else(|| here.oracle.violation())
        .or_else(|| there.oracle.violation());
    let goes_on = |pool_world: &PoolWorld| match case.space.volatile && wrong.is_none() {
        true => go_on(pool_world, &here, &there, &rng, &dice),
        false => Ok(()),
    };
    let stuck = goes_on(&here).err();
    let wrong = wrong.or(stuck).or_else(|| here.oracle.violation());
    let failure = wrong.or_else(|| {
        [&here, &there].into_iter().find_map(|pool_world| check(pool_world, &rng).err())
    });
    let achieved = dice.achievements();
    let scheduler::Ran { steps, digest, trace, .. } = ran;
    ScheduleOutcome { case, policy: shown, steps, digest, trace, achieved, failure }
}

/// Number of the first program that goes on after memory was lost.
const AFTER: usize = 2_000;

/// Checks that programs go on without help after any loss of memory.
fn go_on(
    pool_world: &PoolWorld,
    here: &PoolWorld,
    there: &PoolWorld,
    rng: &SeededRng,
    dice: &Arc<Chance>,
) -> Result<(), String> {
    let oracle = &pool_world.oracle;
    if !oracle.is_wiped() || oracle.is_damaged() || oracle.is_rolled_back() {
        return Ok(());
    }
    pool_world.world.reboot();
    for (number, job) in (AFTER..).zip([A, B, G]) {
        let name = JobName::new(job).expect("a name");
        if !oracle.jobs().contains(&name) {
            continue;
        }
        let role = match job == G {
            true => calm(group(rng)),
            false => Role::Saver { job, saves: 3, restores: true, waits: true },
        };
        let is_group = matches!(role, Role::Group(_));
        let before = oracle.last_epoch(&name);
        let (rng, pool_world) = (SeededRng::new(rng.next_u64()), here.clone());
        let (other, dice) = (there.clone(), dice.clone());
        run_alone(Program { number, role, pool_world, other, rng, dice: dice.clone() });
        // Some ranks of a group die by themselves.
        if oracle.last_epoch(&name) < before + 3 && !is_group && oracle.violation().is_none() {
            return Err(format!(
                "no program can save {job} after a loss of memory: {}",
                oracle.last_met()
            ));
        }
        dice.came_about("go on without what was in memory");
    }
    Ok(())
}

/// Number of the program that filled the pool before.
const BEFORE: usize = 1_000;

/// Fills the pools before the programs meet.
fn prepare(
    family: Family,
    here: &PoolWorld,
    there: &PoolWorld,
    rng: &SeededRng,
    dice: &Arc<Chance>,
) {
    let mut number = BEFORE;
    let mut run = |role: Role| {
        number += 1;
        let rng = SeededRng::new(rng.next_u64());
        let (pool_world, other, dice) = (here.clone(), there.clone(), dice.clone());
        run_alone(Program { number, role, pool_world, other, rng, dice });
    };
    let saver = |job, saves| Role::Saver { job, saves, restores: true, waits: true };
    run(saver("a", 1 + rng.below(3)));
    if rng.below(3) > 0 {
        run(saver("b", 1 + rng.below(2)));
    }
    if rng.below(3) == 0 {
        run(Role::Prune { job: "a", keep_last: 1 + rng.below(2), collects: true });
    }
    if rng.below(3) == 0 {
        run(saver("a", 1 + rng.below(2)));
    }
    if rng.below(4) == 0 {
        run(Role::Copy);
    }
    if family == Family::Group {
        run(calm(group(rng)));
        run(calm(group(rng)));
    }
    if family == Family::Overtake {
        // Garbage for the collectors.
        run(saver("a", 2));
        run(Role::Prune { job: "a", keep_last: 2, collects: false });
    }
}

/// Returns a group in which no rank dies.
fn calm(role: Role) -> Role {
    match role {
        Role::Group(group) => Role::Group(Group { kill: None, restarts: 0, ..group }),
        other => other,
    }
}

/// Runs a program by itself.
fn run_alone(program: Program) {
    if !matches!(program.role, Role::Group(_)) {
        return program.run();
    }
    // Its ranks are threads, which must do the same each time.
    let (number, oracle) = (program.number, program.pool_world.oracle.clone());
    let turns = SeededScheduler::new(Policy::of(number as u64), false);
    turns.keep_time();
    let ran = turns.run(vec![(number.to_string(), Box::new(move || program.run()))]);
    if let Some(failure) = ran.failure {
        oracle.violate(format!("a program by itself: {failure}"));
    }
}
