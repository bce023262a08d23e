//! Options of `bench` and its subcommands.

use super::{gib, minutes, percent, rate};
use clap::{Args as ClapArgs, Subcommand};
use outlive_types::FreezeMode;
use std::path::PathBuf;

/// The subcommands of `bench`.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Measure a first save, one without changes and one with one changed page, against raw writes
    Save(BenchSaveArgs),
    /// Measure verified restores into used and into fresh memory, against raw reads
    Restore(BenchIoArgs),
    /// Measure the cost of redundancy for saves, and restores and repairs with lost or slow targets
    Pool(BenchIoArgs),
    /// Measure lazy restarts until the program runs and until a step is done, against eager ones
    Lazy(BenchLazyArgs),
    /// Measure the bytes of many saves with a few random changed pages, and restores afterwards
    Churn(BenchChurnArgs),
    /// Save at a steady rate for minutes, to see whether the work keeps up and memory stays bounded
    Steady(BenchSteadyArgs),
    /// Measure how long each method of freezing stops the program, and the cost of its writes
    /// afterwards
    Freeze(BenchFreezeArgs),
    /// Measure the memory that saves need in addition to the state
    Memory(BenchMemoryArgs),
    /// Measure the cost of finding changed pages, by tracker and pattern of writing
    Track(BenchTrackArgs),
    /// Count the container reads that planners of stream restores need, on a recorded trace
    Plan(BenchPlanArgs),
}

/// `bench plan`.
#[derive(ClapArgs, Debug)]
pub struct BenchPlanArgs {
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

/// `bench save`.
#[derive(ClapArgs, Debug)]
pub struct BenchSaveArgs {
    #[command(flatten)]
    pub io: BenchIoArgs,
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

/// `bench save`, `bench restore`, `bench pool` and `bench lazy`.
#[derive(ClapArgs, Debug)]
pub struct BenchIoArgs {
    /// Directory on the device to measure. All files go to a new directory in it
    pub dir: PathBuf,
    /// State size in GiB
    #[arg(long, default_value_t = 4.0, value_parser = gib)]
    pub gib: f64,
    /// Number of rounds; each makes every measurement once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
}

/// `bench lazy`.
#[derive(ClapArgs, Debug)]
pub struct BenchLazyArgs {
    #[command(flatten)]
    pub io: BenchIoArgs,
    /// Serve only the program's own instructions, not its system calls, as for users without rights
    #[arg(long)]
    pub user_only: bool,
}

/// `bench churn`.
#[derive(ClapArgs, Debug)]
pub struct BenchChurnArgs {
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

/// `bench steady`.
#[derive(ClapArgs, Debug)]
pub struct BenchSteadyArgs {
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

/// `bench freeze`.
#[derive(ClapArgs, Debug)]
pub struct BenchFreezeArgs {
    /// Directory on the device to measure. All files go to a new directory in it
    pub dir: PathBuf,
    /// State size in GiB
    #[arg(long, default_value_t = 4.0, value_parser = gib)]
    pub gib: f64,
    /// Number of rounds; each makes every measurement once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
}

/// `bench memory`.
#[derive(ClapArgs, Debug)]
pub struct BenchMemoryArgs {
    /// Directory on the device to measure. All files go to a new directory in it
    pub dir: PathBuf,
    /// State size in GiB
    #[arg(long, default_value_t = 4.0, value_parser = gib)]
    pub gib: f64,
}

/// `bench track`.
#[derive(ClapArgs, Debug)]
pub struct BenchTrackArgs {
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
