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
    /// Simulate what holding outputs until their checkpoint costs, and the buffer that it needs
    Gate(GateArgs),
    /// Compare the page tree with an in-place array and a hash table: bytes a page, memory, and the
    /// times of updates and of finding changes
    Metadata(MetadataArgs),
}

/// `metadata`.
#[derive(ClapArgs, Debug)]
pub struct MetadataArgs {
    /// Directory for the nodes of the page trees, up to 15 GB. All files go to a new directory in it
    pub dir: PathBuf,
    /// Memory of one structure at most, such as 8GiB; a larger one is computed, not measured
    #[arg(long, value_name = "SIZE", default_value = "8GiB")]
    pub memory: String,
    /// Largest dense space in GiB
    #[arg(long, default_value_t = 1024.0, value_parser = gib)]
    pub gib: f64,
    /// Number of rounds; each updates every structure and finds the changes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..100))]
    pub runs: u32,
    /// Seed of the random pages
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Small spaces and one round, for tests
    #[arg(long)]
    pub quick: bool,
}

/// `gate`.
#[derive(ClapArgs, Debug)]
pub struct GateArgs {
    /// Files with traces of input and output (bench/gate/record.py records them)
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub trace: Vec<PathBuf>,
    /// Leave out the synthetic traces of the seed's workloads
    #[arg(long)]
    pub no_synthetic: bool,
    /// Delays of each write in ms, separated by commas
    #[arg(long, value_name = "MS", value_delimiter = ',', value_parser = delay,
        default_value = "0.04,0.1,0.2,0.5,1,2,4")]
    pub delays_ms: Vec<f64>,
    /// Checkpoint intervals in ms, separated by commas
    #[arg(long, value_name = "MS", value_delimiter = ',', value_parser = interval,
        default_value = "1,10,100,1000,10000")]
    pub intervals_ms: Vec<f64>,
    /// Time from a checkpoint to its commit, in ms
    #[arg(long, value_name = "MS", default_value_t = 0.0, value_parser = delay)]
    pub commit_ms: f64,
    /// Memory for held outputs, such as 64KiB; beyond it the program waits [default: no limit]
    #[arg(long, value_name = "SIZE")]
    pub buffer: Option<String>,
    /// Number of disks, each with a queue; with 0 each sync takes its recorded time
    #[arg(long, value_name = "N", default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(..=1024))]
    pub disks: u32,
    /// Time of one disk for a write, in ms [default: the trace's busy time, divided by its syncs]
    #[arg(long, value_name = "MS", value_parser = delay)]
    pub service_ms: Option<f64>,
    /// Folder for the pictures (SVG)
    #[arg(long, value_name = "FOLDER")]
    pub plot: Option<PathBuf>,
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

fn delay(text: &str) -> Result<f64, String> {
    between(text, 0.0, 1e6)
}

fn interval(text: &str) -> Result<f64, String> {
    between(text, 0.001, 1e6)
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
