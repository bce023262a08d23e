//! Options of the commands that maintain checkpoints: `note`, `gc`, `prune`, `du`, `diff`, `copy`
//! and `scrub`.

use super::{bytes_per_s, percent_or_none};
use crate::numbers::percent;
use clap::Args as ClapArgs;
use outlive_types::EpochName;
use std::path::PathBuf;

/// `note`.
#[derive(ClapArgs, Debug)]
pub struct NoteArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PathBuf,
    /// The checkpoint to change
    #[arg(value_name = "JOB@EPOCH")]
    pub job: String,
    /// The same as JOB@EPOCH
    #[arg(allow_negative_numbers = true)]
    pub epoch: Option<EpochName>,
    /// Label of the checkpoint, which keeps rules from dropping it. An empty text removes the label
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Pin the checkpoint, so that rules never drop it
    #[arg(long, conflicts_with = "unpin")]
    pub pin: bool,
    /// Remove the pin, so that rules decide again
    #[arg(long)]
    pub unpin: bool,
}

/// Options of every gc.
#[derive(ClapArgs, Debug)]
pub struct CollectArgs {
    /// Share of the bytes in packs that may stay unused, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = percent_or_none)]
    pub max_unused: f64,
    /// Limit for copying, in bytes per second, such as 50MiB
    #[arg(long, alias = "throttle", value_name = "SIZE", value_parser = bytes_per_s)]
    pub rate: Option<u64>,
    /// Name of a job whose open session to end: its program is gone, or must stop
    #[arg(long, value_name = "JOB")]
    pub fence: Vec<String>,
    /// Give up log records that cannot be read, and the data that only they needed
    #[arg(long)]
    pub forget_damaged: bool,
    /// Print the plan, but change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// `gc`.
#[derive(ClapArgs, Debug)]
pub struct GcArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PathBuf,
    #[command(flatten)]
    pub collect: CollectArgs,
}

/// `prune`.
#[derive(ClapArgs, Debug)]
pub struct PruneArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PathBuf,
    /// Name of the job
    pub job: String,
    /// Rules in one text: `last N | every K | newer than AGE | best METRIC` [default: `keep` in
    /// pool.toml]
    #[arg(long, value_name = "RULES")]
    pub keep: Option<String>,
    /// Number of newest whole checkpoints to keep
    #[arg(long, value_name = "N")]
    pub keep_last: Option<u64>,
    /// Interval of epochs to keep: those that are a multiple of K
    #[arg(long, value_name = "K")]
    pub keep_every: Option<u64>,
    /// Age up to which to keep checkpoints, counted from the newest: 90m, 36h, 7d, 4w
    #[arg(long, value_name = "AGE")]
    pub keep_within: Option<String>,
    /// Metric by which to keep the best: NAME[:min|:max][:COUNT]
    #[arg(long, value_name = "METRIC")]
    pub keep_best: Vec<String>,
    /// Epoch of a checkpoint to drop, even if a rule, label or pin would keep it. Rules choose
    /// among the rest. Dropping all of them needs --all
    #[arg(long, value_name = "EPOCH", allow_negative_numbers = true)]
    pub drop: Vec<EpochName>,
    /// Drop all checkpoints of the job
    #[arg(long)]
    pub all: bool,
    /// Drop checkpoints, but leave their space to a later gc
    #[arg(long)]
    pub no_gc: bool,
    #[command(flatten)]
    pub collect: CollectArgs,
}

/// `du`.
#[derive(ClapArgs, Debug)]
pub struct DuArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PathBuf,
    /// Job, to show each of its checkpoints, or JOB@EPOCH for one of them [default: show each job]
    #[arg(value_name = "JOB[@EPOCH]")]
    pub job: Option<String>,
    /// Further checkpoints of this job, as JOB@EPOCH or EPOCH, to show each and together
    #[arg(requires = "job", value_name = "EPOCH", allow_negative_numbers = true)]
    pub epochs: Vec<String>,
}

/// `diff`.
#[derive(ClapArgs, Debug)]
pub struct DiffArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PathBuf,
    /// First checkpoint: JOB@EPOCH, or JOB for the newest
    #[arg(value_name = "JOB[@EPOCH]")]
    pub before: String,
    /// Second checkpoint, written in the same way
    #[arg(value_name = "JOB[@EPOCH]")]
    pub after: String,
    /// Rank whose regions to compare, if the checkpoints are of several; the first one is 0
    #[arg(long, value_name = "N")]
    pub rank: Option<u32>,
    /// List the ranges of pages that differ
    #[arg(long)]
    pub pages: bool,
}

/// `copy`.
#[derive(ClapArgs, Debug)]
pub struct CopyArgs {
    /// Pool to copy from: its directory, or its pool.toml
    pub from: PathBuf,
    /// Pool to copy to
    pub to: PathBuf,
    /// Jobs to copy, or checkpoints of one job [default: all jobs]
    #[arg(value_name = "JOB[@EPOCH]")]
    pub jobs: Vec<String>,
    /// The same as JOB@EPOCH; needs exactly one job
    #[arg(long, value_name = "EPOCH", allow_negative_numbers = true)]
    pub epoch: Vec<EpochName>,
    /// Name of the job in the second pool; needs exactly one job
    #[arg(long = "as", value_name = "NAME")]
    pub rename: Option<String>,
    /// Treat the job in the second pool as the same job, although the two share no checkpoint
    #[arg(long)]
    pub same_history: bool,
    /// Limit for reading, in bytes per second, such as 50MiB
    #[arg(long, value_name = "SIZE", value_parser = bytes_per_s)]
    pub rate: Option<u64>,
    /// Print the plan, but change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// `scrub`.
#[derive(ClapArgs, Debug)]
pub struct ScrubArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PathBuf,
    /// Limit for reading, in bytes per second, such as 50MiB
    #[arg(long, value_name = "SIZE", value_parser = bytes_per_s)]
    pub rate: Option<u64>,
    /// Approximate share of the packs to check, in per cent; each run takes other packs
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub sample: Option<f64>,
    /// Print what is damaged and what would be done, but change nothing
    #[arg(long)]
    pub dry_run: bool,
}
