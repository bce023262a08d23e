//! Options of `outlive node`.

use super::pool_name::PoolName;
use super::running::time;
use crate::numbers::size;
use clap::{Args as ClapArgs, Subcommand};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The subcommands of `node`.
#[derive(Subcommand, Debug)]
pub enum NodeCommand {
    /// Serve directories or devices of this machine, until SIGTERM or Ctrl-C
    ///
    /// Pools of other machines name it as "node://HOST:PORT/PREFIX", as a target, for their log, or
    /// for all of a pool. Each prefix is a folder in the directories.
    Serve(NodeServeArgs),
    /// Make a directory of this host part of a pool with seats, for as long as a job runs here
    ///
    /// Start it once on each host of the job. The nodes take the seats of the pool, which
    /// `outlive pool init --seats` has made. It ends at SIGTERM or Ctrl-C, or with its command. Then it
    /// copies to the slow tier what that lacks, and gives its seat back.
    Local(NodeLocalArgs),
}

/// `node serve`.
#[derive(ClapArgs, Debug)]
pub struct NodeServeArgs {
    /// Directory of this machine, or a device as "block:/dev/…"; several share the shards
    #[arg(long, required = true, num_args = 1.., value_name = "LOCATION")]
    pub data: Vec<String>,
    /// Address and port that clients connect to
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7410")]
    pub listen: SocketAddr,
    /// How it serves.
    #[command(flatten)]
    pub how: NodeHowArgs,
}

/// `node local`.
#[derive(ClapArgs, Debug)]
pub struct NodeLocalArgs {
    /// The pool: its directory, its pool.toml, or s3://BUCKET/PREFIX
    #[arg(long, value_name = "POOL")]
    pub pool: PoolName,
    /// Directory of this host: on a local disk, or in memory, as below /dev/shm
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Address and port that clients connect to; port 0 is a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Name or address under which other hosts reach this one [default: that of --listen; the host's
    /// name if that is 0.0.0.0]
    #[arg(long, value_name = "HOST")]
    pub address: Option<String>,
    /// Time after which a host is given up that does not answer and gives no sign of life; five times
    /// as long if something is only there
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    pub give_up: Duration,
    /// Longest wait for the other hosts before the command starts
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time)]
    pub wait: Duration,
    /// How it serves.
    #[command(flatten)]
    pub how: NodeHowArgs,
    /// Command to run once the pool is ready; its exit code is that of this command
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Options of both.
#[derive(ClapArgs, Debug)]
pub struct NodeHowArgs {
    /// Memory for bytes that are received and not written yet, or read and not sent yet
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    pub staging: u64,
    /// Time after which a client that gives no sign of life loses its locks and unfinished shards
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = time)]
    pub session: Duration,
    /// File with the tokens, one a line, of which a client must have one
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Certificate of the node (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Certificate that signs those of clients (PEM): only they may connect
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub client_ca: Option<PathBuf>,
    /// Port on loopback where Prometheus reads metrics
    #[arg(long, value_name = "PORT")]
    pub metrics_port: Option<u16>,
    /// Let other machines connect without TLS, or without a token or certificate
    #[arg(long)]
    pub insecure: bool,
}
