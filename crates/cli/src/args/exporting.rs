//! Options of `export` and `import`.

use super::PoolName;
use crate::numbers::size;
use clap::Args as ClapArgs;
use outlive_types::EpochName;
use std::path::PathBuf;

/// `export`.
#[derive(ClapArgs, Debug)]
pub struct ExportArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// The checkpoint: JOB@EPOCH, or JOB for the newest that is whole
    #[arg(value_name = "JOB[@EPOCH]")]
    pub job: String,
    /// The same as JOB@EPOCH
    #[arg(allow_negative_numbers = true)]
    pub epoch: Option<EpochName>,
    /// Tag that the checkpoint must have: the newest with it is exported. With several, all
    #[arg(long, value_name = "TAG", value_delimiter = ',', conflicts_with = "epoch")]
    pub tag: Vec<String>,
    /// Rank whose regions to write, if the checkpoint is of several; the first one is 0
    #[arg(long, value_name = "N")]
    pub rank: Option<u32>,
    /// Directory to write to, created if it is missing. With `--format json` a file, or
    /// - for standard output. With safetensors also a file whose name ends in .safetensors
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// Form of the export
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ExportFormat::Files)]
    pub format: ExportFormat,
    /// Names of the regions to write: `*` stands for anything, `?` for one character
    #[arg(long, value_name = "PATTERN", num_args = 1..)]
    pub only: Vec<String>,
    /// Path of a part of the state, such as `model`: with `--format safetensors`, names in the files
    /// begin below it, and the rest is left out
    #[arg(long, value_name = "PATH")]
    pub root: Option<String>,
    /// Length of the longest file with `--format safetensors`, such as 5GB; several files get an
    /// index [default: one file]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_shard_size: Option<u64>,
    /// Replace existing files
    #[arg(long)]
    pub force: bool,
    /// Print what would be read and written, but write nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// `import`.
#[derive(ClapArgs, Debug)]
pub struct ImportArgs {
    /// File of a model, or the index of several: .safetensors or .safetensors.index.json
    pub model: PathBuf,
    /// The pool's directory, or its pool.toml [default: the one that OUTLIVE_POOL names]
    pub pool: Option<PoolName>,
    /// Name of the job, created if it is new [default: the name of the file, without its extension]
    pub job: Option<String>,
    /// Type that Python gives the restored leaves [default: tensors if the file says that it is of
    /// PyTorch, else arrays]
    #[arg(long, value_name = "TYPE", value_enum)]
    pub restore_as: Option<ImportedAs>,
    /// Label of the checkpoint, which keeps rules from dropping it
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Pin the checkpoint, so that rules never drop it
    #[arg(long)]
    pub pin: bool,
}

/// Type that Python gives the leaves of an imported model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum ImportedAs {
    /// Arrays of NumPy
    Arrays,
    /// Tensors of PyTorch
    Tensors,
}

/// Form of an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum ExportFormat {
    /// A file for each region: arrays as .npy
    Files,
    /// One JSON object with the values of scalars, lists and small arrays
    Json,
    /// Files of a model: all arrays, by the paths of the state
    Safetensors,
}
