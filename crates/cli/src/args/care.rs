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
    /// Label of the checkpoint; rules never drop a labelled one. An empty label removes it
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
    /// Most bytes to copy per second, such as 50MiB
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
    /// Number of newest checkpoints to keep
    #[arg(long, value_name = "N")]
    pub keep_last: Option<u64>,
    /// Keep epochs that are a multiple of K
    #[arg(long, value_name = "K")]
    pub keep_every: Option<u64>,
    /// Keep checkpoints saved within this time before the newest: 90m, 36h, 7d, 4w
    #[arg(long, value_name = "AGE")]
    pub keep_within: Option<String>,
    /// Keep the best by a metric: NAME[:min|:max][:COUNT]
    #[arg(long, value_name = "METRIC")]
    pub keep_best: Vec<String>,
    /// Drop this checkpoint, whatever keeps it; rules choose among the rest. Dropping
    /// all of them needs --all
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
    /// Show each checkpoint of this job; without it, each job
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
    /// The first checkpoint: JOB@EPOCH, or JOB for the newest
    #[arg(value_name = "JOB[@EPOCH]")]
    pub before: String,
    /// The second checkpoint
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
    /// Copy only this checkpoint; needs exactly one job
    #[arg(long, value_name = "N")]
    pub epoch: Vec<u64>,
    /// Name of the job in the second pool; needs exactly one job
    #[arg(long = "as", value_name = "NAME")]
    pub rename: Option<String>,
    /// Treat the job in the second pool as the same job, although the two share no checkpoint
    #[arg(long)]
    pub same_history: bool,
    /// Most bytes to read per second, such as 50MiB
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
    /// Most bytes to read per second, such as 50MiB
    #[arg(long, value_name = "SIZE", value_parser = bytes_per_s)]
    pub rate: Option<u64>,
    /// Share of the packs to check, about, in per cent; each run takes other packs
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub sample: Option<f64>,
    /// Say what is damaged and what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}
