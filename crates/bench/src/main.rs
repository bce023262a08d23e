//! `outlive-bench`: measures a device without and with outlive in one run, since only ratios count.
//! Each measurement is one file; shared parts are here and in `scratch` and `report`.

mod args;
mod churn;
mod freeze;
mod freeze_part;
mod gate;
mod lazy;
mod machine;
mod memory;
mod metadata;
mod plan;
mod pool;
mod raw;
mod report;
mod restore;
mod save;
mod scratch;
mod state;
mod steady;
mod track;

use args::{Args, Command};
use outlive_cli::output::{Answer, Reporter, shown};
use outlive_cli::{CommandLine, run_as};
use outlive_types::Result;
use report::Report;
use scratch::Scratch;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

/// Context of every measurement.
struct Bench {
    /// Directory of its own on the device.
    scratch: Scratch,
    report: Report,
    reporter: Arc<Reporter>,
}

impl Bench {
    fn new(
        name: &'static str,
        dir: &Path,
        words: &[OsString],
        reporter: &Arc<Reporter>,
    ) -> Result<Bench> {
        let scratch = Scratch::new(dir)?;
        let words: Vec<String> = words.iter().map(|word| shown(&word.to_string_lossy())).collect();
        let report = Report::new(name, words.join(" "), machine::describe(scratch.path()));
        Ok(Bench { scratch, report, reporter: reporter.clone() })
    }

    /// Reports the present step to a user who waits.
    fn step(&self, what: &str) {
        self.reporter.step(&format!("bench {}", self.report.name()), what);
    }
}

fn main() {
    std::process::exit(run_as::<Args>(std::env::args_os()));
}

impl CommandLine for Args {
    const NAME: &'static str = "outlive-bench";

    fn json(&self) -> bool {
        self.json
    }

    fn execute(self, words: &[OsString]) -> Result<Answer> {
        bench(self.command, words, &Arc::default())
    }
}

/// Runs one measurement.
fn bench(command: Command, words: &[OsString], reporter: &Arc<Reporter>) -> Result<Answer> {
    let start = |name: &'static str, dir: &Path| Bench::new(name, dir, words, reporter);
    let report = match command {
        Command::Save(args) => save::run(start("save", &args.io.dir)?, &args),
        Command::Restore(args) => restore::run(start("restore", &args.dir)?, &args),
        Command::Lazy(args) => lazy::run(start("lazy", &args.io.dir)?, &args),
        Command::Churn(args) => churn::run(start("churn", &args.dir)?, &args),
        Command::Steady(args) => steady::run(start("steady", &args.dir)?, &args),
        Command::Freeze(args) => freeze::run(start("freeze", &args.dir)?, &args),
        Command::Memory(args) => memory::run(start("memory", &args.dir)?, &args),
        Command::Pool(args) => pool::run(start("pool", &args.dir)?, &args),
        Command::Plan(args) => return plan::run(&args, reporter),
        Command::Gate(args) => return gate::run(&args, reporter),
        Command::Metadata(args) => {
            return metadata::run(start("metadata", &args.dir)?, &args);
        }
        Command::Track(args) => return track::run(&args, words, reporter),
    }?;
    reporter.finish();
    Ok(report.answer())
}

/// Returns a size in GiB as whole pages, in bytes.
fn gib_bytes(gib: f64) -> u64 {
    ((gib * (1u64 << 30) as f64) as u64).next_multiple_of(outlive_types::PAGE_BYTES as u64)
}

/// Returns the median, or the mean of the two middle values; 0 of no values.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// Returns GB/s; a GB is 10^9 bytes.
fn gb_per_s(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / seconds / 1e9 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
