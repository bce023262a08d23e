//! What looks after checkpoints: `note`, `gc`, `prune`, `du`, `diff`, `copy` and `scrub`.

use super::{bytes_per_s, percent, percent_or_none};
use clap::Args as ClapArgs;
use std::path::PathBuf;

/// `note`.
#[derive(ClapArgs, Debug)]
pub struct NoteArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PathBuf,
    /// The job
    pub job: String,
    /// The checkpoint
    pub epoch: u64,
    /// A word for it; prunings keep what has one. An empty one takes it away
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Keep it, whatever rules say
    #[arg(long, conflicts_with = "unpin")]
    pub pin: bool,
    /// Let rules decide again
    #[arg(long)]
    pub unpin: bool,
}

/// How a gc works.
#[derive(ClapArgs, Debug)]
pub struct CollectArgs {
    /// Share of the bytes in packs that may stay unused, per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = percent_or_none)]
    pub max_unused: f64,
    /// Copy at most so many bytes a second
    #[arg(long, alias = "throttle", value_name = "SIZE", value_parser = bytes_per_s)]
    pub rate: Option<u64>,
    /// End the open session of this job: its program is gone, or must stop
    #[arg(long, value_name = "JOB")]
    pub fence: Vec<String>,
    /// Give up log records that cannot be read, and what only they needed
    #[arg(long)]
    pub forget_damaged: bool,
    /// Print the plan and change nothing
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
    /// The job
    pub job: String,
    /// Rules in one text: `last N | every K | newer than AGE | best METRIC` [default: what `keep` in
    /// pool.toml says]
    #[arg(long, value_name = "RULES")]
    pub keep: Option<String>,
    /// Keep the newest N
    #[arg(long, value_name = "N")]
    pub keep_last: Option<u64>,
    /// Keep epochs that are a multiple of K
    #[arg(long, value_name = "K")]
    pub keep_every: Option<u64>,
    /// Keep what was saved at most so long before the newest: 90m, 36h, 7d, 4w
    #[arg(long, value_name = "AGE")]
    pub keep_within: Option<String>,
    /// Keep the best by a metric: NAME[:min|:max][:COUNT]
    #[arg(long, value_name = "METRIC")]
    pub keep_best: Vec<String>,
    /// Drop this checkpoint, whatever keeps it; rules choose among the rest. To drop them all takes
    /// --all
    #[arg(long, value_name = "EPOCH")]
    pub drop: Vec<u64>,
    /// Give the whole job up
    #[arg(long)]
    pub all: bool,
    /// Drop checkpoints only; a later gc frees their space
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
    /// Each checkpoint of this job; without it, each job
    pub job: Option<String>,
    /// Only these checkpoints, each and together
    #[arg(requires = "job")]
    pub epochs: Vec<u64>,
}

/// `diff`.
#[derive(ClapArgs, Debug)]
pub struct DiffArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PathBuf,
    /// The one before: JOB@EPOCH, or JOB for the newest
    #[arg(value_name = "JOB[@EPOCH]")]
    pub before: String,
    /// The one after
    #[arg(value_name = "JOB[@EPOCH]")]
    pub after: String,
    /// List the ranges of pages that differ
    #[arg(long)]
    pub pages: bool,
}

/// `copy`.
#[derive(ClapArgs, Debug)]
pub struct CopyArgs {
    /// The pool to copy from: its directory, or its pool.toml
    pub from: PathBuf,
    /// The pool to copy to
    pub to: PathBuf,
    /// The jobs [default: all]
    pub jobs: Vec<String>,
    /// Only this checkpoint of the one job
    #[arg(long, value_name = "N")]
    pub epoch: Vec<u64>,
    /// Give the one job this name there
    #[arg(long = "as", value_name = "NAME")]
    pub rename: Option<String>,
    /// The job there is the same, though the two have no checkpoint in common any more
    #[arg(long)]
    pub same_history: bool,
    /// Read at most so many bytes a second
    #[arg(long, value_name = "SIZE", value_parser = bytes_per_s)]
    pub rate: Option<u64>,
    /// Print the plan and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// `scrub`.
#[derive(ClapArgs, Debug)]
pub struct ScrubArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PathBuf,
    /// Read at most so many bytes a second, such as 50MiB
    #[arg(long, value_name = "SIZE", value_parser = bytes_per_s)]
    pub rate: Option<u64>,
    /// Only about this share of the packs, per cent, other ones each time
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub sample: Option<f64>,
    /// Say what is damaged and what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}
