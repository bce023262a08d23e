//! Options of `put` and `get`.

use crate::numbers::size;
use clap::Args as ClapArgs;
use outlive_types::EpochName;
use std::path::PathBuf;

/// `put`.
#[derive(ClapArgs, Debug)]
pub struct PutArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PathBuf,
    /// Name of the job, created if it is new
    pub job: String,
    /// Directories and files, or - for standard input. The content of a single directory is listed
    /// without the directory's name; of several paths, each keeps its last part
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Name under which standard input is listed [default: stdin]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Pattern of files to leave out, in the syntax of .gitignore; the last that matches decides
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
    /// File with such patterns; those of --exclude override them
    #[arg(long, value_name = "FILE")]
    pub exclude_from: Vec<PathBuf>,
    /// Do not read .outliveignore files
    #[arg(long)]
    pub no_ignore_files: bool,
    /// Do not enter directories on which another file system is mounted
    #[arg(long)]
    pub one_file_system: bool,
    /// Read every file, even if it has not changed since the previous put
    #[arg(long)]
    pub reread: bool,
    /// Label of the checkpoint, which keeps rules from dropping it
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Pin the checkpoint, so that rules never drop it
    #[arg(long)]
    pub pin: bool,
    /// Print how much would be read, but store nothing
    #[arg(long)]
    pub dry_run: bool,
    /// With --dry-run: also list the files that would be read
    #[arg(long, requires = "dry_run")]
    pub verbose: bool,
}

/// `get`.
#[derive(ClapArgs, Debug)]
pub struct GetArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PathBuf,
    /// The checkpoint: JOB@EPOCH, or JOB for the newest of files that is whole
    #[arg(value_name = "JOB[@EPOCH]")]
    pub job: String,
    /// Paths to restore, as `outlive show` lists them [default: everything]
    pub paths: Vec<PathBuf>,
    /// Directory to write to, created if it is missing; or - to write one file to standard output
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// The same as JOB@EPOCH
    #[arg(long, value_name = "EPOCH", allow_negative_numbers = true)]
    pub epoch: Option<EpochName>,
    /// Replace existing files that differ; files that are right already are not touched
    #[arg(long)]
    pub overwrite: bool,
    /// Memory for data that is read ahead, with `--to -` [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// Print what would be restored and which names are taken, but write nothing
    #[arg(long)]
    pub dry_run: bool,
}
