//! Arguments of `pool probe`.

use super::PoolName;
use clap::Args as ClapArgs;
use std::path::PathBuf;

/// `pool probe`.
#[derive(ClapArgs, Debug)]
pub struct ProbeArgs {
    /// The pool's directory, or its pool.toml. Each of its targets is measured: scratch shards are
    /// written, read and deleted, at most 4 % of the free space [default: test this machine only]
    pub pool: Option<PoolName>,
    /// File for a page with six figures and the proposals. The figures are also written beside it, as
    /// .svg and .png. An earlier report there is replaced
    #[arg(long, value_name = "FILE", requires = "pool")]
    pub to: Option<PathBuf>,
    /// Measure for up to five minutes a target, with up to 2 GiB of scratch shards [default: less than
    /// a minute, 256 MiB]
    #[arg(long, requires = "pool")]
    pub thorough: bool,
    /// Write the proposed tuning to pool.toml; programs use it when they open the pool next
    #[arg(long, requires = "pool")]
    pub apply: bool,
}
