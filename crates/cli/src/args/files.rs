//! Options of `put`, `get` and `find`.

use super::PoolName;
use crate::numbers::size;
use clap::Args as ClapArgs;
use outlive_types::EpochName;
use std::path::PathBuf;

/// `put`.
#[derive(ClapArgs, Debug)]
pub struct PutArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// Name of the job, created if it is new
    pub job: String,
    /// Directories and files, or - for standard input. The content of a single directory is listed
    /// without the directory's name; of several paths, each keeps its last part
    #[arg(required_unless_present_any = ["files_from", "files_from0"])]
    pub paths: Vec<PathBuf>,
    /// File, or - for standard input, with the paths to store, one a line. They are relative to the
    /// one PATH that is given, a directory [default: the current directory]
    #[arg(long, value_name = "FILE", conflicts_with = "files_from0")]
    pub files_from: Option<PathBuf>,
    /// The same, with a NUL after each path, as `find -print0` writes them
    #[arg(long, value_name = "FILE")]
    pub files_from0: Option<PathBuf>,
    /// Name under which standard input is listed [default: stdin]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Pattern of files to leave out, in the syntax of .gitignore; the last that matches decides
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
    /// File with such patterns; those of --exclude override them
    #[arg(long, value_name = "FILE")]
    pub exclude_from: Vec<PathBuf>,
    /// Length of files above which to leave them out, such as 100MiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub exclude_larger_than: Option<u64>,
    /// Leave out what directories contain that a CACHEDIR.TAG file marks as caches
    #[arg(long)]
    pub exclude_caches: bool,
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
    /// Tags of the checkpoint, by which commands and rules can choose it; with commas between them
    #[arg(long, value_name = "TAGS", value_delimiter = ',')]
    pub tag: Vec<String>,
    /// Pin the checkpoint, so that rules never drop it
    #[arg(long)]
    pub pin: bool,
    /// Print how much would be read, but store nothing; with --verbose also which files
    #[arg(long)]
    pub dry_run: bool,
}

/// `get`.
#[derive(ClapArgs, Debug)]
pub struct GetArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// The checkpoint: JOB@EPOCH, or JOB for the newest of files that is whole
    #[arg(value_name = "JOB[@EPOCH]")]
    pub job: String,
    /// Paths to restore, as `outlive show` lists them, or patterns: `*` and `?` stand for parts of a
    /// name, `**` for directories. A slash at the start is the root of the checkpoint [default:
    /// everything]
    pub paths: Vec<PathBuf>,
    /// Directory to write to, created if it is missing; or - to write one file to standard output
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// The same as JOB@EPOCH
    #[arg(long, value_name = "EPOCH", allow_negative_numbers = true)]
    pub epoch: Option<EpochName>,
    /// Tag that the checkpoint must have: the newest with it is restored. With several, all
    #[arg(long, value_name = "TAG", value_delimiter = ',', conflicts_with = "epoch")]
    pub tag: Vec<String>,
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

/// `find`.
#[derive(ClapArgs, Debug)]
pub struct FindArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// Name of files or regions. In paths `*` and `?` stand for parts of a name, and `**` for
    /// directories. In names of regions `*` stands for anything
    pub pattern: String,
    /// Job whose checkpoints to search [default: all jobs]
    #[arg(long, value_name = "JOB")]
    pub job: Option<String>,
    /// Tag of the checkpoints to search. With several, they must have all
    #[arg(long, value_name = "TAG", value_delimiter = ',')]
    pub tag: Vec<String>,
}
