//! Arguments of the commands that show a pool to browsers and monitors.

use super::PoolName;
use clap::Args as ClapArgs;
use std::path::PathBuf;

/// `web`.
#[derive(ClapArgs, Debug)]
pub struct WebArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// Port of 127.0.0.1 to listen on; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub port: u16,
}

/// `report`.
#[derive(ClapArgs, Debug)]
pub struct ReportArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// File for the page; an earlier report there is replaced
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,
}

/// `metrics`.
#[derive(ClapArgs, Debug)]
pub struct MetricsArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
}
