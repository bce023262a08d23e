//! Options of the commands that maintain checkpoints: `note`, `tag`, `gc`, `prune`, `du`, `diff`, `copy`
//! and `scrub`.

use super::{PoolName, bytes_per_s, percent_or_none};
use crate::numbers::percent;
use clap::{ArgGroup, Args as ClapArgs};
use outlive_types::EpochName;

/// `note`.
#[derive(ClapArgs, Debug)]
pub struct NoteArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
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

/// `tag`.
#[derive(ClapArgs, Debug)]
#[command(group(ArgGroup::new("changes").required(true).multiple(true).args(["add", "remove", "set", "clear"])))]
pub struct TagArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// The checkpoint to change
    #[arg(value_name = "JOB@EPOCH")]
    pub job: String,
    /// The same as JOB@EPOCH
    #[arg(allow_negative_numbers = true)]
    pub epoch: Option<EpochName>,
    /// Tags to add, with commas between them
    #[arg(long, value_name = "TAGS", value_delimiter = ',')]
    pub add: Vec<String>,
    /// Tags to remove; those that it lacks are no error
    #[arg(long, value_name = "TAGS", value_delimiter = ',')]
    pub remove: Vec<String>,
    /// Tags that replace all others
    #[arg(long, value_name = "TAGS", value_delimiter = ',', conflicts_with_all = ["add", "remove"])]
    pub set: Vec<String>,
    /// Remove all tags
    #[arg(long, conflicts_with_all = ["add", "remove", "set"])]
    pub clear: bool,
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
    pub pool: PoolName,
    #[command(flatten)]
    pub collect: CollectArgs,
}

/// `prune`.
#[derive(ClapArgs, Debug)]
pub struct PruneArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// Name of the job
    pub job: Option<String>,
    /// Prune all jobs of the pool, each by these rules
    #[arg(long, conflicts_with_all = ["job", "drop", "all"])]
    pub all_jobs: bool,
    /// Rules in one text: `last N | every K | newer than AGE | hourly N | daily N | weekly N |
    /// monthly N | yearly N | best METRIC | tag TAG` [default: `keep` in pool.toml]
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
    #[command(flatten)]
    pub calendar: CalendarArgs,
    /// Metric by which to keep the best: NAME[:min|:max][:COUNT]
    #[arg(long, value_name = "METRIC")]
    pub keep_best: Vec<String>,
    /// Tag whose checkpoints to keep
    #[arg(long, value_name = "TAG")]
    pub keep_tag: Vec<String>,
    /// Epoch of a checkpoint to drop, even if a rule, label or pin would keep it. Rules choose
    /// among the rest. Dropping all of them needs --all
    #[arg(long, value_name = "EPOCH", allow_negative_numbers = true)]
    pub drop: Vec<EpochName>,
    /// Drop all checkpoints of the job, which is given up
    #[arg(long)]
    pub all: bool,
    /// Drop checkpoints, but leave their space to a later gc
    #[arg(long)]
    pub no_gc: bool,
    #[command(flatten)]
    pub collect: CollectArgs,
}

/// Rules of `prune` by the calendar.
#[derive(ClapArgs, Debug)]
pub struct CalendarArgs {
    /// Number of hours, of those with a checkpoint, to keep the newest of each; in UTC
    #[arg(long, value_name = "N")]
    pub keep_hourly: Option<u64>,
    /// The same for days
    #[arg(long, value_name = "N")]
    pub keep_daily: Option<u64>,
    /// The same for weeks, which begin on Monday
    #[arg(long, value_name = "N")]
    pub keep_weekly: Option<u64>,
    /// The same for months
    #[arg(long, value_name = "N")]
    pub keep_monthly: Option<u64>,
    /// The same for years
    #[arg(long, value_name = "N")]
    pub keep_yearly: Option<u64>,
}

/// `du`.
#[derive(ClapArgs, Debug)]
pub struct DuArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
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
    pub pool: PoolName,
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
    pub from: PoolName,
    /// Pool to copy to
    pub to: PoolName,
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
    pub pool: PoolName,
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
