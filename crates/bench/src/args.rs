//! The command line of `outlive-bench`.

use clap::{Args as ClapArgs, Parser, Subcommand};
use outlive_cli::numbers::{between, percent};
use outlive_types::FreezeMode;
use std::path::PathBuf;

/// Measure this machine's storage and memory, bare and with outlive on them.
#[derive(Parser, Debug)]
#[command(name = "outlive-bench", version)]
pub struct Args {
    /// Print one JSON value instead of text, even for an error
    #[arg(long, global = true)]
    pub json: bool,
    /// Measurement to run
    #[command(subcommand)]
    pub command: Command,
}

/// The measurements.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Measure a first save, one without changes and one with one changed page, against raw writes
    Save(SaveArgs),
    /// Measure verified restores into used and into fresh memory, against raw reads
    Restore(IoArgs),
    /// Measure the cost of redundancy for saves, and restores and repairs with lost or slow targets
    Pool(IoArgs),
    /// Measure lazy restarts until the program runs and until a step is done, against eager ones
    Lazy(LazyArgs),
    /// Measure the bytes of many saves with a few random changed pages, and restores afterwards
    Churn(ChurnArgs),
    /// Save at a steady rate for minutes, to see whether the work keeps up and memory stays bounded
    Steady(SteadyArgs),
    /// Measure how long each method of freezing stops the program, and the cost of its writes
    /// afterwards
    Freeze(FreezeArgs),
    /// Measure the memory that saves need in addition to the state
    Memory(MemoryArgs),
    /// Measure the cost of finding changed pages, by tracker and pattern of writing
    Track(TrackArgs),
    /// Count the container reads that planners of stream restores need, on a recorded trace
    Plan(PlanArgs),
}

/// `plan`.
#[derive(ClapArgs, Debug)]
pub struct PlanArgs {
    /// File with the trace: recipes of several versions (bench/plan makes one from public packages)
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// Memory sizes of the restore, separated by commas; `8c` means 8 containers
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "2c,4c,8c,16c,32c")]
    pub memory: Vec<String>,
    /// Restore every version instead of the last one
    #[arg(long)]
    pub all: bool,
    /// File for a picture (SVG) of the reads of the last version
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// `save`.
#[derive(ClapArgs, Debug)]
pub struct SaveArgs {
    #[command(flatten)]
    pub io: IoArgs,
    /// Compression of the pool
    #[arg(long, default_value = "auto", value_parser = ["none", "lz4", "zstd", "auto"])]
    pub compression: String,
    /// Method by which the pool freezes; with `copy` the program waits for all beyond 64 MiB
    #[arg(long, default_value = "auto", value_parser = FreezeMode::ALL.map(FreezeMode::name))]
    pub freeze: String,
    /// Kind of state: incompressible bytes, or words of which most bytes are zero
    #[arg(long, default_value = "noise", value_parser = ["noise", "sparse"])]
    pub state: String,
}

/// `save`, `restore`, `pool` and `lazy`.
#[derive(ClapArgs, Debug)]
pub struct IoArgs {
    /// Directory on the device to measure. All files go to a new directory in it
    pub dir: PathBuf,
    /// State size in GiB
    #[arg(long, default_value_t = 4.0, value_parser = gib)]
    pub gib: f64,
    /// Number of rounds; each makes every measurement once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
}

/// `lazy`.
#[derive(ClapArgs, Debug)]
pub struct LazyArgs {
    #[command(flatten)]
    pub io: IoArgs,
    /// Serve only the program's own instructions, not its system calls, as for users without rights
    #[arg(long)]
    pub user_only: bool,
}

/// `churn`.
#[derive(ClapArgs, Debug)]
pub struct ChurnArgs {
    /// Directory on the device to measure. All files go to a new directory in it
    pub dir: PathBuf,
    /// State size in GiB
    #[arg(long, default_value_t = 1.0, value_parser = gib)]
    pub gib: f64,
    /// Number of saves after the first
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub saves: u32,
    /// Share of the pages that change before each save, in per cent
    #[arg(long, default_value_t = 1.0, value_parser = percent)]
    pub percent: f64,
    /// Number of restores of the first and of the last checkpoint, alternately
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
}

/// `steady`.
#[derive(ClapArgs, Debug)]
pub struct SteadyArgs {
    /// Directory on the device to measure. All files go to a new directory in it
    pub dir: PathBuf,
    /// Length of the run, in minutes
    #[arg(long, default_value_t = 10.0, value_parser = minutes)]
    pub minutes: f64,
    /// Number of saves per second
    #[arg(long, default_value_t = 5.0, value_parser = rate)]
    pub per_second: f64,
    /// State size in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..1 << 24))]
    pub mib: u64,
    /// Number of pages that change before each save
    #[arg(long, default_value_t = 10)]
    pub pages: u64,
}

/// `freeze`.
#[derive(ClapArgs, Debug)]
pub struct FreezeArgs {
    /// Directory on the device to measure. All files go to a new directory in it
    pub dir: PathBuf,
    /// State size in GiB
    #[arg(long, default_value_t = 4.0, value_parser = gib)]
    pub gib: f64,
    /// Number of rounds; each makes every measurement once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
}

/// `memory`.
#[derive(ClapArgs, Debug)]
pub struct MemoryArgs {
    /// Directory on the device to measure. All files go to a new directory in it
    pub dir: PathBuf,
    /// State size in GiB
    #[arg(long, default_value_t = 4.0, value_parser = gib)]
    pub gib: f64,
}

/// `track`.
#[derive(ClapArgs, Debug)]
pub struct TrackArgs {
    /// State size in GiB
    #[arg(long, default_value_t = 1.0, value_parser = gib)]
    pub gib: f64,
    /// Number of images to measure for each pattern, after as many and four more as warm-up
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..1000))]
    pub intervals: u32,
    /// File for a picture (SVG) of the speedup of each tracker over mprotect page by page
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

fn gib(text: &str) -> Result<f64, String> {
    between(text, 1.0 / 1024.0, 65_536.0)
}

fn minutes(text: &str) -> Result<f64, String> {
    between(text, 0.01, 1e6)
}

fn rate(text: &str) -> Result<f64, String> {
    between(text, 0.01, 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }
}
