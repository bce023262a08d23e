//! Arguments of the commands about running programs.

use super::{ListFormat, PoolName};
use clap::Args as ClapArgs;
use outlive_format::Mark;
use outlive_store::parse_every;
use outlive_store::retention::parse_age;
use outlive_types::EpochName;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// `run`.
#[derive(ClapArgs, Debug)]
pub struct RunArgs {
    /// The pool's directory, or its pool.toml; a new or empty directory becomes a pool [default:
    /// the pool that OUTLIVE_POOL names]
    #[arg(long, value_name = "POOL")]
    pub pool: Option<PoolName>,
    /// Job that the command saves
    #[arg(long, value_name = "JOB")]
    pub job: String,
    /// Number of failures without a newer checkpoint after which the newest one is marked as bad, so
    /// that the command restores the one before it. After as many more, it gives up
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub give_up: u32,
    /// End the command, and start it again, if it neither saves nor asks whether to save for this
    /// time, such as 10m [default: never]
    #[arg(long, value_name = "TIME", value_parser = hang)]
    pub hang: Option<Duration>,
    /// Time between a request to stop (SIGTERM, SIGUSR1, SIGUSR2, SIGHUP) and SIGKILL
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "30s")]
    pub grace: Duration,
    /// Interval between saves, in place of the command's own: a time such as 30s, `auto` (from costs
    /// and failures) or `continuous` (one save after the other, within a budget)
    #[arg(long, value_name = "TIME|auto|continuous", value_parser = every)]
    pub every: Option<String>,
    /// Let no helper process hold the images of saves: a save that is not committed when the command
    /// is killed is then lost
    #[arg(long)]
    pub no_helper: bool,
    /// Show what the command prints only once a checkpoint covers it, so that each line appears once
    /// although the command is killed and repeats its work
    #[arg(long)]
    pub gate: bool,
    /// End within this time, such as 4h, or at @SECONDS since 1970: ask the command to save and to
    /// end before that [default: the end of the Slurm job]
    #[arg(long, value_name = "TIME", value_parser = stop_by)]
    pub stop_by: Option<StopBy>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `helper`: programs start it.
#[derive(ClapArgs, Debug)]
pub struct HelperArgs {
    /// Start the helper in a process of its own, and end
    #[arg(long, conflicts_with = "complete")]
    pub detach: bool,
    /// Complete the save whose images come over standard input
    #[arg(long)]
    pub complete: bool,
}

/// `stop`.
#[derive(ClapArgs, Debug)]
pub struct StopArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// Job whose program is to save and to end
    pub job: String,
    /// Reason, for the program's messages
    #[arg(long, value_name = "TEXT", default_value = "outlive stop")]
    pub reason: String,
}

/// `history`.
#[derive(ClapArgs, Debug)]
pub struct HistoryArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// Job that `outlive run` has run
    pub job: String,
    /// File for a picture (.svg or .png) of the attempts over time
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Form of the list: a table for people, or CSV
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ListFormat::Text)]
    pub format: ListFormat,
}

/// `mark`.
#[derive(ClapArgs, Debug)]
pub struct MarkArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// The checkpoint to mark
    #[arg(value_name = "JOB@EPOCH")]
    pub job: String,
    /// `bad`: restores of the newest checkpoint pass over it. `good`, or `none` to take a mark back
    #[arg(value_name = "MARK", value_parser = mark)]
    pub mark: Mark,
    /// The same as JOB@EPOCH
    #[arg(long, value_name = "EPOCH", allow_negative_numbers = true)]
    pub epoch: Option<EpochName>,
}

/// Time by which a run must have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopBy {
    /// From now.
    Within(Duration),
    /// Seconds since 1970.
    At(u64),
}

pub(super) fn time(text: &str) -> Result<Duration, String> {
    let time = parse_age(text).ok();
    time.ok_or_else(|| {
        format!("{text:?} is no time: give a number with s, m, h, d or w, such as 30s or 10m")
    })
}

/// Parses a time without a sign of life. Without any time every command would seem to hang.
fn hang(text: &str) -> Result<Duration, String> {
    match time(text)? {
        Duration::ZERO => Err("leave the option out for no limit".to_owned()),
        time => Ok(time),
    }
}

/// Checks an interval. The command reads it again, from its environment.
fn every(text: &str) -> Result<String, String> {
    let read = parse_every(text, None).map(|_| text.to_owned());
    read.map_err(|error| error.message().to_owned())
}

fn stop_by(text: &str) -> Result<StopBy, String> {
    match text.strip_prefix('@') {
        Some(seconds) => seconds.parse().map(StopBy::At).map_err(|_| {
            format!(
                "{text:?} is no time: give @ and the seconds since 1970, as `date +%s` prints them"
            )
        }),
        None => time(text).map(StopBy::Within),
    }
}

fn mark(text: &str) -> Result<Mark, String> {
    Mark::parse(text).map_err(|error| error.message().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(stop_by("4h"), Ok(StopBy::Within(Duration::from_secs(4 * 3600))));
        assert_eq!(stop_by("@1700000000"), Ok(StopBy::At(1_700_000_000)));
        for right in ["auto", "continuous", "30s", "0s"] {
            assert_eq!(every(right), Ok(right.to_owned()));
        }
        for wrong in ["", "30", "-1s", "NaNs", "automatic"] {
            assert!(every(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "@", "@1.5", "4", "h", "-4h", "NaNh", "noon"] {
            assert!(stop_by(wrong).is_err(), "{wrong}");
        }
    }
}
