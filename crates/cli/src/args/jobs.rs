//! Options of `outlive job`.

use super::{PoolName, bytes_per_s, percent_or_none};
use clap::{Args as ClapArgs, Subcommand};

/// The subcommands of `job`.
#[derive(Subcommand, Debug)]
pub enum JobCommand {
    /// Give a job another name, with all its checkpoints; their data stays where it is
    Rename(JobRenameArgs),
    /// Delete a job with all its checkpoints, and free the space that only they needed
    Delete(JobDeleteArgs),
}

/// `job rename`.
#[derive(ClapArgs, Debug)]
pub struct JobRenameArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// Name of the job
    pub old: String,
    /// New name, which no job has
    pub new: String,
    /// End the session of a program that has the job open: it is gone, or must stop
    #[arg(long)]
    pub fence: bool,
}

/// `job delete`.
#[derive(ClapArgs, Debug)]
pub struct JobDeleteArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// Name of the job
    pub job: String,
    /// Delete it without a question
    #[arg(short, long)]
    pub yes: bool,
    /// End the session of a program that has the job open: it is gone, or must stop
    #[arg(long)]
    pub fence: bool,
    /// Leave the space to a later gc
    #[arg(long)]
    pub no_gc: bool,
    /// Share of the bytes in packs that may stay unused, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = percent_or_none)]
    pub max_unused: f64,
    /// Limit for copying, in bytes per second, such as 50MiB
    #[arg(long, value_name = "SIZE", value_parser = bytes_per_s)]
    pub rate: Option<u64>,
    /// Give up log records that cannot be read, and the data that only they needed
    #[arg(long)]
    pub forget_damaged: bool,
    /// Print what would be deleted, and the space that would be freed, but change nothing
    #[arg(long)]
    pub dry_run: bool,
}
