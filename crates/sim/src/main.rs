//! `outlive-explore`: runs schedules from fresh seeds until one fails or the time is over.

use outlive_sim::{Family, Name, ScheduleOutcome, run};
use rustix::time::{ClockId, clock_gettime};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: outlive-explore [--minutes M] [--schedules N] [--seed S] [--family NAME[,NAME...]]
                       [--keep-going] [--twice]
       outlive-explore FAMILY:SEED

Runs schedules from seed S on (default: the time) for M minutes of processor time (default 1) or N
schedules, and ends at the first that fails. With the name of one schedule it shows that one step by
step.";

struct Asked {
    limit: Duration,
    schedules: u64,
    seed: u64,
    families: Vec<Family>,
    keep_going: bool,
    twice: bool,
    name: Option<Name>,
}

fn main() -> ExitCode {
    let asked = match parse(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(what) => {
            eprintln!("{what}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match asked.name {
        Some(name) => show(name),
        None => explore(&asked),
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut asked = Asked {
        limit: Duration::from_secs(60),
        schedules: u64::MAX,
        seed: fresh_seed(),
        families: Family::ALL.to_vec(),
        keep_going: false,
        twice: false,
        name: None,
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--minutes" => {
                let minutes: f64 = number(&value()?)?;
                asked.limit = Duration::try_from_secs_f64(minutes * 60.0)
                    .map_err(|_| format!("{minutes} is no number of minutes"))?;
            }
            "--schedules" => {
                asked.schedules = number(&value()?)?;
                asked.limit = Duration::MAX;
            }
            "--seed" => asked.seed = number(&value()?)?,
            "--family" | "--only" => {
                let names = value()?;
                let family =
                    |name: &str| Family::from_name(name).ok_or(format!("no family {name:?}"));
                asked.families = names.split(',').map(family).collect::<Result<_, _>>()?;
            }
            "--twice" => asked.twice = true,
            "--keep-going" => asked.keep_going = true,
            name => asked.name = Some(name.parse().map_err(|error| format!("{error}"))?),
        }
    }
    Ok(asked)
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

fn fresh_seed() -> u64 {
    let mut bytes = [0; 4];
    outlive_types::Rng::fill(&outlive_types::SystemRng, &mut bytes);
    u64::from(u32::from_le_bytes(bytes)) << 24
}

fn show(name: Name) -> ExitCode {
    let outcome = run(name, true);
    for line in &outcome.trace {
        println!("{line}");
    }
    let again = run(name, true);
    if again.digest != outcome.digest {
        let pairs = outcome.trace.iter().zip(&again.trace);
        if let Some((first, second)) = pairs.into_iter().find(|(first, second)| first != second) {
            println!("the schedule did not repeat itself:\n  {first}\n  {second}");
        }
        return ExitCode::from(3);
    }
    tell(&outcome);
    ExitCode::from(u8::from(outcome.failure.is_some()))
}

fn tell(outcome: &ScheduleOutcome) {
    println!("schedule {}: {:?}", outcome.case.name, outcome.case);
    println!("  by {}, {} steps, digest {:x}", outcome.policy, outcome.steps, outcome.digest);
    match &outcome.failure {
        Some(failure) => println!("  FAILED: {failure}"),
        None => println!("  all is well"),
    }
}

/// Returns the processor time of this process: a busy machine sees as many schedules as an idle
/// one.
fn worked() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

fn explore(asked: &Asked) -> ExitCode {
    println!("from seed {} on", asked.seed);
    let began = Instant::now();
    let (mut count, mut steps, mut failed, mut told) = (0u64, 0u64, 0u64, Duration::ZERO);
    while count < asked.schedules && worked() < asked.limit {
        let family = asked.families[(count % asked.families.len() as u64) as usize];
        let name = Name { family, seed: asked.seed + count };
        let outcome = run(name, false);
        if asked.twice {
            let again = run(name, true);
            if again.digest != outcome.digest {
                println!("{name} did not repeat itself");
                return ExitCode::from(3);
            }
        }
        (count, steps) = (count + 1, steps + outcome.steps);
        if outcome.failure.is_some() {
            failed += 1;
            if asked.keep_going {
                println!("{name}: {}", outcome.failure.unwrap_or_default());
                continue;
            }
            tell(&outcome);
            println!("  it is number {count}; `outlive-explore {name}` shows it");
            break;
        }
        if began.elapsed() >= told + Duration::from_secs(10) {
            told = began.elapsed();
            let rate = count as f64 / told.as_secs_f64();
            println!("{count} schedules, {steps} steps, {rate:.0} schedules/s");
        }
    }
    let took = began.elapsed().as_secs_f64();
    println!("{count} schedules in {took:.1} s, {steps} steps, {failed} failed");
    ExitCode::from(u8::from(failed > 0))
}
