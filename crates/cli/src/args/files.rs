//! `put` and `get`.

use super::size;
use clap::Args as ClapArgs;
use outlive_types::Epoch;
use std::path::PathBuf;

/// `put`.
#[derive(ClapArgs, Debug)]
pub struct PutArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PathBuf,
    /// The job; made if it is new
    pub job: String,
    /// Directories and files, or - for standard input. What is in a single directory is listed
    /// without its name; several paths keep their last parts
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// What standard input is listed as [default: stdin]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Leave out what matches, in the syntax of .gitignore; several count in their order
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
    /// Patterns from a file, before those of --exclude
    #[arg(long, value_name = "FILE")]
    pub exclude_from: Vec<PathBuf>,
    /// Do not read .outliveignore files
    #[arg(long)]
    pub no_ignore_files: bool,
    /// Do not enter directories on which another file system is mounted
    #[arg(long)]
    pub one_file_system: bool,
    /// Read every file, also those that have not changed since the put before
    #[arg(long)]
    pub reread: bool,
    /// Label of the checkpoint; rules never drop a labelled one
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Keep it, whatever rules say
    #[arg(long)]
    pub pin: bool,
    /// Print how much would be read, and store nothing
    #[arg(long)]
    pub dry_run: bool,
    /// With --dry-run: list the files that would be read, too
    #[arg(long, requires = "dry_run")]
    pub verbose: bool,
}

/// `get`.
#[derive(ClapArgs, Debug)]
pub struct GetArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PathBuf,
    /// The job
    pub job: String,
    /// What to get, as `outlive show` lists it [default: everything]
    pub paths: Vec<PathBuf>,
    /// Directory to get it into, made if it is missing; or - to write one file to standard output
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// The checkpoint; without it, the newest of files that is whole
    #[arg(long, value_name = "N")]
    pub epoch: Option<Epoch>,
    /// Replace files that are there
    #[arg(long)]
    pub overwrite: bool,
    /// Memory for data read ahead of its turn, with `--to -` [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// Print what would be got, and what is in the way
    #[arg(long)]
    pub dry_run: bool,
}
