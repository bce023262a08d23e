//! The command line's commands and options.

mod exporting;
mod files;
mod jobs;
mod key;
mod maintenance;
mod node;
mod pool_name;
mod probe;
mod running;
mod shell;
mod watching;

pub use exporting::{ExportArgs, ExportFormat, ImportArgs, ImportedAs};
pub use files::{FindArgs, GetArgs, PutArgs};
pub use jobs::{JobCommand, JobDeleteArgs, JobRenameArgs};
pub use key::{KeyChangeArgs, KeyCommand, KeyNewArgs};
pub use maintenance::{
    CalendarArgs, CollectArgs, CopyArgs, DiffArgs, DuArgs, GcArgs, NoteArgs, PruneArgs, ScrubArgs,
    TagArgs,
};
pub use node::{NodeCommand, NodeHowArgs, NodeLocalArgs, NodeServeArgs};
pub use pool_name::{PoolName, VARIABLE};
pub use probe::ProbeArgs;
pub use running::{HelperArgs, HistoryArgs, MarkArgs, RunArgs, StopArgs, StopBy};
pub use shell::{CompletionsArgs, ManArgs};
pub use watching::{MetricsArgs, ReportArgs, WebArgs};

use crate::numbers::{between, percent, size};
use crate::plot::job::Axis;
use clap::{Args as ClapArgs, Parser, Subcommand};
use outlive_pool::{Erasure, Tier, Writes};
use outlive_types::EpochName;
use std::path::{Path, PathBuf};

const EXIT_CODES: &str = "\
Exit codes:
  0  done, and nothing is wrong
  1  a fault of outlive itself: please report it (from `diff`: the two differ)
  2  the request is not possible: correct it
  3  something stored is damaged or missing
  4  no space is left
  5  another writer has taken over the job
  6  a temporary failure: try again
  7  done, except for files that are named: unreadable, changing, or impossible to make as they were
  75 `run`: the command is to be started again later; it has saved nothing for that
  76 `run`: the command was asked to stop, and has saved
  77 `run`: no restart helps
  130  interrupted
  141  `get --to -`: the reader closed the pipe before the end of the file

Checkpoints are named JOB@EPOCH, in every command that takes one:
  JOB@7       the checkpoint with that number
  JOB@latest  the newest, and no other if it is damaged; JOB@-1 is the same
  JOB@-2      the one before it, and so on, as `outlive ls POOL JOB` lists them
  JOB         the newest that is whole: damaged ones are passed over with a warning

Environment:
  OUTLIVE_POOL  the pool that the word - in the place of POOL stands for; also that of `run` without
                --pool";

/// Save the state of a running program, and restore it after a crash.
#[derive(Parser, Debug)]
#[command(name = "outlive", version, after_help = EXIT_CODES)]
pub struct Args {
    /// Print one JSON value instead of text, even for an error
    #[arg(long, global = true)]
    pub json: bool,
    /// Print no progress and no information on standard error; errors, warnings and the result stay
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print more on standard error, such as normal steps; `put --dry-run` lists files
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// At the end, write the process metrics of this run to FILE, in the text format of Prometheus
    #[arg(long, global = true, value_name = "FILE")]
    pub metrics: Option<PathBuf>,
    /// Command to run
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make, show or change a pool
    #[command(subcommand)]
    Pool(PoolCommand),
    /// List the jobs of a pool, or the checkpoints of a job
    Ls(LsArgs),
    /// Show a checkpoint: its manifest and its regions
    Show(ShowArgs),
    /// Read everything stored and check it against its fingerprints and checksums
    Verify(VerifyArgs),
    /// Write the regions of a checkpoint to files: arrays as .npy, or a model as .safetensors
    Export(ExportArgs),
    /// Store a model from .safetensors files in a pool, as a checkpoint that programs restore
    Import(ImportArgs),
    /// Store files, directories or standard input in a pool, as a checkpoint
    Put(PutArgs),
    /// Restore files, or write one to standard output
    Get(GetArgs),
    /// Find files or regions of a name in all checkpoints
    Find(FindArgs),
    /// Run a program: start it again after failures, and ask it to save before it is ended
    Run(RunArgs),
    /// Ask the program that runs a job to save once more and to end
    Stop(StopArgs),
    /// Show the attempts of a job: starts, ends, causes and lost work
    History(HistoryArgs),
    /// Show the pool in a browser: jobs, checkpoints, space, targets, damage, attempts
    Web(WebArgs),
    /// Write the page of `outlive web` to a file
    Report(ReportArgs),
    /// Print metrics of a pool in the text format of Prometheus
    Metrics(MetricsArgs),
    /// Hold the images of saves for the programs of this user and host, which start it
    #[command(hide = true)]
    Helper(HelperArgs),
    /// Label or pin a checkpoint
    Note(NoteArgs),
    /// Add tags to a checkpoint, or remove them
    Tag(TagArgs),
    /// Mark the state in a checkpoint as good or bad
    Mark(MarkArgs),
    /// Rename or delete a job
    #[command(subcommand)]
    Job(JobCommand),
    /// Serve locations of this machine to pools of other machines
    #[command(subcommand)]
    Node(NodeCommand),
    /// Make the key of an encrypted pool, or give a pool another one
    #[command(subcommand)]
    Key(KeyCommand),
    /// Drop checkpoints of a job by rules, and free the space that only they needed
    Prune(PruneArgs),
    /// Delete data that no checkpoint needs, and rewrite packs that are mostly unused
    Gc(GcArgs),
    /// Show the space that each part of the pool takes, and the space that deleting it would free
    Du(DuArgs),
    /// Compare two checkpoints; the exit code is 0 if they are the same and 1 if they differ
    Diff(DiffArgs),
    /// Copy checkpoints to another pool; only missing data is sent
    Copy(CopyArgs),
    /// Read all packs, rewrite damaged copies, and record lost data, so that no new checkpoint
    /// relies on it
    Scrub(ScrubArgs),
    /// Print a script that completes commands and options in a shell
    Completions(CompletionsArgs),
    /// Write the manual pages of all commands to a directory
    Man(ManArgs),
}

impl Command {
    /// Returns whether standard output takes the content of a file, and nothing else.
    pub fn gives_content(&self) -> bool {
        let stdout = Path::new("-");
        match self {
            Command::Get(args) => !args.dry_run && args.to == stdout,
            Command::Export(args) => args.format == ExportFormat::Json && args.to == stdout,
            _ => false,
        }
    }
}

/// The subcommands of `pool`.
#[derive(Subcommand, Debug)]
pub enum PoolCommand {
    /// Make a pool in an empty or new directory
    Init(InitArgs),
    /// Show a pool's configuration, its targets and its contents
    Status(StatusArgs),
    /// Add a target, or take one back; running programs use it from their next checkpoint on
    Add(AddArgs),
    /// Move all data from a target to the others, and write nothing new to it
    Drain(DrainArgs),
    /// Drain a target, then take it out of the pool
    Remove(RemoveArgs),
    /// End the claim of a process that was killed while it moved shards (log in a bucket or etcd)
    Release(StatusArgs),
    /// Replace a target that is lost, or will be removed, by a new one
    Replace(ReplaceArgs),
    /// Move the log to other replicas, or replace one that is lost; programs may continue to save
    MoveLog(MoveLogArgs),
    /// Make the pool match its table of targets: write missing shards, move and delete others, and
    /// finish commands that were killed
    Repair(RepairArgs),
    /// Copy to the slow targets the packs that they lack, of the checkpoints that [tiers] in
    /// pool.toml selects
    Fill(RepairArgs),
    /// Delete packs from the fast tier that only checkpoints older than the newest `keep_fast` of
    /// each job need, after their copies on the slow tier have been read
    Trim(TrimArgs),
    /// Measure the targets of a pool and propose its tuning; without POOL, test which methods of
    /// finding changed memory work on this machine
    Probe(ProbeArgs),
}

/// `pool init`.
#[derive(ClapArgs, Debug)]
pub struct InitArgs {
    /// Directory to make the pool in, or s3://BUCKET/PREFIX, or node://HOST/PREFIX
    pub dir: PoolName,
    /// Unit of I/O, from 64KiB to 64MiB [default: 4MiB]; cannot be changed later
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub container_bytes: Option<u64>,
    /// Length of a pack, 1 to 64 containers [default: 64MiB]; cannot be changed later
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub pack_bytes: Option<u64>,
    /// Longest chunk, a power of two from 4KiB to 2MiB [default: 64KiB]; cannot be changed later
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub chunk_bytes_max: Option<u64>,
    /// Encrypt all that the pool keeps, with the key that OUTLIVE_KEY_FILE, OUTLIVE_KEY_COMMAND or
    /// OUTLIVE_KEY names; cannot be changed later
    #[arg(long)]
    pub encrypt: bool,
    /// Memory for containers that are being filled or written [default: 64MiB; 128MiB with packs in
    /// buckets]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub staging_bytes: Option<u64>,
    /// Memory for frozen copies of changed pages [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub freeze_bytes_max: Option<u64>,
    /// Memory for the index of known chunks [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub index_bytes_max: Option<u64>,
    /// Number of threads that hash and copy [default: the machine's cores, at most 4]
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// Location of the log of checkpoints: a directory, s3://BUCKET/PREFIX,
    /// node://HOST/PREFIX, or etcd://HOST,HOST,HOST/PREFIX. Give one, three, five or seven: each is a replica, and a
    /// minority of them may be lost [default: DIR]
    #[arg(long, value_name = "LOCATION")]
    pub log: Vec<String>,
    /// Location of packs: a directory (a relative path starts at DIR), block:///dev/NAME,
    /// node://HOST/PREFIX, or s3://BUCKET/PREFIX. Repeat the option for each further one [default: DIR]
    #[arg(long, value_name = "LOCATION")]
    pub target: Vec<String>,
    /// Location of packs in the memory of this host: a directory on a tmpfs, as below /dev/shm.
    /// Data that is only there is lost when the host restarts, and the pool continues with the data
    /// on slow targets. Repeat the option for each further one
    #[arg(long, value_name = "DIR")]
    pub volatile: Vec<String>,
    /// Number of seats, which `outlive node local` takes on the hosts of a job: they keep the packs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..),
          conflicts_with_all = ["target", "volatile"])]
    pub seats: Option<u32>,
    /// Location to which programs and `pool fill` copy packs after the saves: a directory, or
    /// s3://BUCKET/PREFIX. Repeat the option for each further one
    #[arg(long, value_name = "LOCATION")]
    pub slow: Vec<String>,
    /// Number of copies of all data, each on a target of its own: all but one may be lost
    #[arg(long, value_name = "COPIES", conflicts_with = "erasure")]
    pub mirror: Option<u8>,
    /// Number of data parts K and parity parts M of each stripe, each on a target of its own: M may
    /// be lost
    #[arg(long, value_name = "K+M", value_parser = erasure)]
    pub erasure: Option<Erasure>,
    /// Behaviour of a save while a target is missing: `degraded` continues with less redundancy,
    /// `full` refuses
    #[arg(long, value_name = "HOW", value_parser = writes, default_value = "degraded")]
    pub writes: Writes,
}

/// `pool add`.
#[derive(ClapArgs, Debug)]
pub struct AddArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// Location of packs: a directory (a relative path starts at the pool's directory),
    /// block:///dev/NAME, node://HOST/PREFIX or s3://BUCKET/PREFIX. It is new, empty, or a target that the pool has or
    /// had
    pub location: String,
    /// Name of the host with which the target fails: no two parts of a stripe are on targets of one
    /// host
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// Purpose of the target: `fast` takes saves, `slow` gets copies of them, from programs or from
    /// `pool fill`
    #[arg(long, value_name = "TIER", value_parser = tier, default_value = "fast")]
    pub tier: Tier,
    /// Mark the location as memory of this host: a restart of the host empties it, and the target
    /// is recreated
    #[arg(long, conflicts_with = "tier")]
    pub volatile: bool,
}

/// `pool trim`.
#[derive(ClapArgs, Debug)]
pub struct TrimArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// Limit for reading copies, in bytes per second, such as 50MiB
    #[arg(long, value_name = "SIZE", value_parser = bytes_per_s)]
    pub rate: Option<u64>,
    /// Print what would be deleted, but delete nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// `pool drain` and `pool remove`.
#[derive(ClapArgs, Debug)]
pub struct DrainArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// Number of the target, as `pool status` shows it
    pub id: u32,
    /// Limit for moving, in bytes per second, such as 50MiB
    #[arg(long, value_name = "SIZE", value_parser = bytes_per_s)]
    pub rate: Option<u64>,
}

/// `pool remove`.
#[derive(ClapArgs, Debug)]
pub struct RemoveArgs {
    #[command(flatten)]
    pub drain: DrainArgs,
    /// Give up the target: readable data is moved, and the other targets rebuild the rest. If it
    /// returns, `pool add` takes it back
    #[arg(long)]
    pub lost: bool,
}

/// `pool replace`.
#[derive(ClapArgs, Debug)]
pub struct ReplaceArgs {
    #[command(flatten)]
    pub drain: DrainArgs,
    /// Location of the new target: a directory (a relative path starts at the pool's directory),
    /// block:///dev/NAME, node://HOST/PREFIX or s3://BUCKET/PREFIX. It is new, empty, or a target that the pool has or
    /// had
    pub location: String,
    /// Give up the old target even if it is away and has the only copy of some shards; readable
    /// data is moved
    #[arg(long)]
    pub lost: bool,
}

/// `pool move-log`.
#[derive(ClapArgs, Debug)]
pub struct MoveLogArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// Location of the log from now on: a directory, s3://BUCKET/PREFIX,
    /// node://HOST/PREFIX, or etcd://HOST,HOST,HOST/PREFIX. Name all replicas, also those that stay: one, three, five or
    /// seven. A relative path starts at the pool's directory
    #[arg(long, value_name = "LOCATION", required = true)]
    pub log: Vec<String>,
}

/// `pool repair` and `pool fill`.
#[derive(ClapArgs, Debug)]
pub struct RepairArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// Limit for writing, in bytes per second, such as 50MiB
    #[arg(long, value_name = "SIZE", value_parser = bytes_per_s)]
    pub rate: Option<u64>,
    /// Print what is missing, but change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// `pool status`.
#[derive(ClapArgs, Debug)]
pub struct StatusArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
}

/// `ls`.
#[derive(ClapArgs, Debug)]
pub struct LsArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// Name of a job, to list its checkpoints [default: list all jobs]
    pub job: Option<String>,
    /// Tag of the checkpoints to list. With several, they must have all
    #[arg(long, value_name = "TAG", value_delimiter = ',', requires = "job")]
    pub tag: Vec<String>,
    /// Form of the list: a table for people, or CSV with a column for each metric
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ListFormat::Text, requires_if("csv", "job"))]
    pub format: ListFormat,
}

/// Form of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum ListFormat {
    /// A table for people
    Text,
    /// Comma-separated values, with the names of the columns first
    Csv,
}

/// `show`.
#[derive(ClapArgs, Debug)]
pub struct ShowArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// The checkpoint: JOB@EPOCH, or JOB for the newest that is whole
    #[arg(value_name = "JOB[@EPOCH]")]
    pub job: String,
    /// The same as JOB@EPOCH
    #[arg(allow_negative_numbers = true)]
    pub epoch: Option<EpochName>,
    /// Tag that the checkpoint must have: the newest with it is shown. With several, all
    #[arg(long, value_name = "TAG", value_delimiter = ',', conflicts_with = "epoch")]
    pub tag: Vec<String>,
    /// Rank whose regions to show, if the checkpoint is of several; the first one is 0
    #[arg(long, value_name = "N")]
    pub rank: Option<u32>,
    /// Number of regions, or files, to list [default: 40 as text, all as JSON]
    #[arg(long, value_name = "N")]
    pub regions: Option<usize>,
    /// File for a picture (.svg or .png) of all checkpoints of the job: labels, metrics, stalls,
    /// bytes, shared data
    #[arg(long, value_name = "FILE", conflicts_with_all = ["epoch", "regions", "rank", "tag"])]
    pub plot: Option<PathBuf>,
    /// Axis of the picture: epoch or time [default: epoch]
    #[arg(long, value_name = "AXIS", requires = "plot", value_parser = plot_axis)]
    pub axis: Option<Axis>,
}

/// `verify`.
#[derive(ClapArgs, Debug)]
pub struct VerifyArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// Job to check, with the packs that its writers wrote; JOB@EPOCH checks one checkpoint of it
    #[arg(value_name = "JOB[@EPOCH]")]
    pub job: Option<String>,
    /// The same as JOB@EPOCH
    #[arg(long, value_name = "EPOCH", requires = "job", allow_negative_numbers = true)]
    pub epoch: Option<EpochName>,
    /// Approximate share of the chunks and packs to check, in per cent; each run takes others. Logs
    /// and page trees are read whole
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub sample: Option<f64>,
    /// Check only data that checkpoints need, without padding, tables and unused packs
    #[arg(long)]
    pub quick: bool,
}

/// Parses bytes a second. With a rate of 0 the work would never end.
fn bytes_per_s(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("a rate of 0 reads nothing; leave the option out for no limit".to_owned()),
        bytes => Ok(bytes),
    }
}

fn plot_axis(text: &str) -> Result<Axis, String> {
    text.parse().map_err(|error: outlive_types::Error| error.message().to_owned())
}

fn erasure(text: &str) -> Result<Erasure, String> {
    let parts = text.split_once('+').and_then(|(data, parity)| {
        Some(Erasure { data: data.trim().parse().ok()?, parity: parity.trim().parse().ok()? })
    });
    parts.ok_or_else(|| "give the parts of data and of parity, such as 4+2".to_owned())
}

fn writes(text: &str) -> Result<Writes, String> {
    match text {
        "degraded" => Ok(Writes::Degraded),
        "full" => Ok(Writes::Full),
        _ => Err("give degraded or full".to_owned()),
    }
}

fn tier(text: &str) -> Result<Tier, String> {
    match text {
        "fast" => Ok(Tier::Fast),
        "slow" => Ok(Tier::Slow),
        _ => Err("give fast or slow".to_owned()),
    }
}

fn percent_or_none(text: &str) -> Result<f64, String> {
    between(text.trim_end_matches('%'), 0.0, 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn nothing_unused_may_be_asked_for() {
        let args = Args::try_parse_from(["outlive", "gc", "pool", "--max-unused", "0"]).unwrap();
        assert!(matches!(args.command, Command::Gc(gc) if gc.collect.max_unused == 0.0));
        for text in ["-1", "101", "x"] {
            let words = ["outlive", "gc", "pool", "--max-unused", text];
            assert!(Args::try_parse_from(words).is_err(), "{text}");
        }
    }

    #[test]
    fn a_rate_of_nothing_is_refused() {
        for words in [
            &["outlive", "copy", "a", "b", "--rate"][..],
            &["outlive", "scrub", "a", "--rate"],
            &["outlive", "gc", "a", "--rate"],
            &["outlive", "prune", "a", "job", "--rate"],
            // An earlier name of the option.
            &["outlive", "gc", "a", "--throttle"],
        ] {
            let with = |rate| Args::try_parse_from(words.iter().copied().chain([rate]));
            assert!(with("1").is_ok(), "{words:?}");
            let refused = with("0").unwrap_err().to_string();
            assert!(refused.contains("leave the option out"), "{refused}");
            assert!(with("0MiB").is_err(), "{words:?}");
        }
    }
}
