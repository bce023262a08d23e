//! `bench` and its parts.

use super::{gib, minutes, percent, rate};
use clap::{Args as ClapArgs, Subcommand};
use outlive_types::FreezeMode;
use std::path::PathBuf;

/// What can be measured.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// A first save, one with nothing changed, one with one page changed; against raw writes
    Save(BenchSaveArgs),
    /// Verified restores into used and into fresh memory; against raw reads
    Restore(BenchIoArgs),
    /// Lazy restarts: until the program goes on, and until a step is done; against eager ones
    Lazy(BenchLazyArgs),
    /// Many saves with a few pages changed at random: bytes written, and restores afterwards
    Churn(BenchChurnArgs),
    /// Saves at a steady rate for minutes: does the work keep up, does memory grow?
    Steady(BenchSteadyArgs),
    /// How long each way to freeze stops the program, and what its writes cost afterwards
    Freeze(BenchFreezeArgs),
    /// Memory that saves need beyond the state
    Memory(BenchMemoryArgs),
    /// What finding changed pages costs a program, by tracker and pattern of writing
    Track(BenchTrackArgs),
    /// Container reads that planners of stream restores need, on a recorded trace
    Plan(BenchPlanArgs),
}

/// `bench plan`.
#[derive(ClapArgs, Debug)]
pub struct BenchPlanArgs {
    /// The trace: recipes of several versions (bench/plan makes one from public packages)
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// Memory of the restore, several separated by commas; `8c` are 8 containers
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "2c,4c,8c,16c,32c")]
    pub memory: Vec<String>,
    /// Every version instead of the last
    #[arg(long)]
    pub all: bool,
    /// Draw the reads of the last version into this file (SVG)
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// `bench save`.
#[derive(ClapArgs, Debug)]
pub struct BenchSaveArgs {
    #[command(flatten)]
    pub io: BenchIoArgs,
    /// How the pool compresses
    #[arg(long, default_value = "auto", value_parser = ["none", "lz4", "zstd", "auto"])]
    pub compression: String,
    /// How the pool freezes; with `copy` the program waits for what exceeds the budget of 64 MiB
    #[arg(long, default_value = "auto", value_parser = FreezeMode::ALL.map(FreezeMode::name))]
    pub freeze: String,
    /// What is saved: incompressible bytes, or words of which most bytes are zero
    #[arg(long, default_value = "noise", value_parser = ["noise", "sparse"])]
    pub state: String,
}

/// `bench save`, `bench restore` and `bench lazy`.
#[derive(ClapArgs, Debug)]
pub struct BenchIoArgs {
    /// Directory on the device to measure; all files go to a new directory in it
    pub dir: PathBuf,
    /// State size in GiB
    #[arg(long, default_value_t = 4.0, value_parser = gib)]
    pub gib: f64,
    /// Rounds; in each, every measurement is taken once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
}

/// `bench lazy`.
#[derive(ClapArgs, Debug)]
pub struct BenchLazyArgs {
    #[command(flatten)]
    pub io: BenchIoArgs,
    /// Serve the program's own instructions only, as for users without rights
    #[arg(long)]
    pub user_only: bool,
}

/// `bench churn`.
#[derive(ClapArgs, Debug)]
pub struct BenchChurnArgs {
    /// Directory on the device to measure; all files go to a new directory in it
    pub dir: PathBuf,
    /// State size in GiB
    #[arg(long, default_value_t = 1.0, value_parser = gib)]
    pub gib: f64,
    /// Saves after the first
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub saves: u32,
    /// Share of the pages that change before each save, per cent
    #[arg(long, default_value_t = 1.0, value_parser = percent)]
    pub percent: f64,
    /// Restores of the first and of the last checkpoint, alternately
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
}

/// `bench steady`.
#[derive(ClapArgs, Debug)]
pub struct BenchSteadyArgs {
    /// Directory on the device to measure; all files go to a new directory in it
    pub dir: PathBuf,
    /// How long
    #[arg(long, default_value_t = 10.0, value_parser = minutes)]
    pub minutes: f64,
    /// Saves a second
    #[arg(long, default_value_t = 5.0, value_parser = rate)]
    pub per_second: f64,
    /// State size in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..1 << 24))]
    pub mib: u64,
    /// Pages that change before each save
    #[arg(long, default_value_t = 10)]
    pub pages: u64,
}

/// `bench freeze`.
#[derive(ClapArgs, Debug)]
pub struct BenchFreezeArgs {
    /// Directory on the device to measure; all files go to a new directory in it
    pub dir: PathBuf,
    /// State size in GiB
    #[arg(long, default_value_t = 4.0, value_parser = gib)]
    pub gib: f64,
    /// Rounds; in each, every measurement is taken once
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
}

/// `bench memory`.
#[derive(ClapArgs, Debug)]
pub struct BenchMemoryArgs {
    /// Directory on the device to measure; all files go to a new directory in it
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
    /// Number of images to measure for each pattern, after as many and four more to warm up
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..1000))]
    pub intervals: u32,
    /// Draw how much faster each tracker is than mprotect page by page into this file (SVG)
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}
