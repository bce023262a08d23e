//! The time at which Slurm ends the job that this process belongs to.

use outlive_types::{Error, Result};
use std::env;
use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time that Slurm's controller may take to answer. A command waits for it before its start.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the time of day at which Slurm ends this process's job, in nanoseconds since 1970; `None`
/// outside of a job, and for a job without a time limit.
///
/// Slurm sets `SLURM_JOB_END_TIME` from version 23.02 on. Without it, or if the limit was extended
/// after the job's start, `squeue` knows the time.
///
/// # Errors
/// `Retry` if `squeue` cannot be asked, or does not answer in time.
pub fn job_end_ns(now_ns: u64) -> Result<Option<u64>> {
    let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let told = variable("SLURM_JOB_END_TIME").and_then(|seconds| seconds.parse::<u64>().ok());
    let told_ns = told.map(|seconds| seconds.saturating_mul(1_000_000_000));
    let Some(job) = variable("SLURM_JOB_ID") else { return Ok(told_ns) };
    if told_ns.is_some_and(|end_ns| end_ns > now_ns) {
        return Ok(told_ns);
    }
    // The number of an array's last task is that of the array, too.
    let array = variable("SLURM_ARRAY_JOB_ID").zip(variable("SLURM_ARRAY_TASK_ID"));
    let name = array.map_or_else(|| job.clone(), |(array, task)| format!("{array}_{task}"));
    let left = left_of(&ask(&name)?, &job)?;
    Ok(left.map(|left| now_ns.saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))))
}

/// Asks `squeue` for the number and the time left of a job.
fn ask(job: &str) -> Result<String> {
    let mut squeue = Command::new("squeue");
    squeue.args(["--noheader", "--states=all", "--format=%A %L", "--jobs", job]);
    // These are the user's options for other calls.
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("SQUEUE_") {
            squeue.env_remove(name);
        }
    }
    squeue.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let failed = |error: io::Error| Error::retry(format!("squeue cannot be run: {error}"));
    let mut running = squeue.spawn().map_err(failed)?;
    let ended = wait(&mut running, PATIENCE);
    if !matches!(ended, Ok(true)) {
        let _ = running.kill().and_then(|()| running.wait());
        ended.map_err(failed)?;
        return Err(Error::retry(format!("squeue does not answer within {PATIENCE:?}")));
    }
    let (mut out, mut errors) = (String::new(), String::new());
    // An output that is no text is no answer either.
    let _ = running.stdout.take().map(|mut pipe| pipe.read_to_string(&mut out));
    let _ = running.stderr.take().map(|mut pipe| pipe.read_to_string(&mut errors));
    match running.wait().map_err(failed)? {
        status if status.success() => Ok(out),
        status => Err(Error::retry(format!("squeue ended with {status}: {}", errors.trim()))),
    }
}

/// Waits for the end of a process. Returns whether it came within `limit`.
fn wait(process: &mut Child, limit: Duration) -> io::Result<bool> {
    let began = Instant::now();
    while began.elapsed() < limit {
        if process.try_wait()?.is_some() {
            return Ok(true);
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(false)
}

/// Finds the time left of a job in lines such as `17 1-02:03:04`; `None` if it has no limit.
fn left_of(answer: &str, job: &str) -> Result<Option<Duration>> {
    let fields = answer.lines().filter_map(|line| line.trim().split_once(' '));
    let of_job = fields.into_iter().find(|(number, _)| *number == job);
    let wrong = || Error::retry(format!("squeue knows no time left of job {job}: {answer:?}"));
    let (_, left) = of_job.ok_or_else(wrong)?;
    match left.trim() {
        "UNLIMITED" | "NOT_SET" => Ok(None),
        left => parse(left).map(Some).ok_or_else(wrong),
    }
}

/// Parses `minutes:seconds`, with hours and days before them.
fn parse(text: &str) -> Option<Duration> {
    let (days, time) = text.split_once('-').unwrap_or(("0", text));
    let mut seconds = 0_u64;
    let fields: Vec<&str> = time.split(':').collect();
    if !(2..=3).contains(&fields.len()) {
        return None;
    }
    for field in fields {
        seconds = seconds.checked_mul(60)?.checked_add(field.parse().ok()?)?;
    }
    let days: u64 = days.parse().ok()?;
    Some(Duration::from_secs(days.checked_mul(86_400)?.checked_add(seconds)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_that_of_the_job() {
        let left = |answer: &str| left_of(answer, "17").map(|left| left.map(|it| it.as_secs()));
        assert_eq!(left("17 5:00\n"), Ok(Some(300)));
        assert_eq!(left("17 0:00\n"), Ok(Some(0)));
        assert_eq!(left("16 1:00\n17 1:02:03\n18 4:00\n"), Ok(Some(3723)));
        assert_eq!(left("17 1-02:03:04\n"), Ok(Some(86_400 + 7384)));
        assert_eq!(left("17 UNLIMITED\n"), Ok(None));
        for wrong in ["", "16 5:00\n", "17 INVALID\n", "17 5\n", "17 -1:00\n", "17 1:2:3:4\n"] {
            assert!(left(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(left(&format!("17 {}-00:00:00", u64::MAX)).ok(), None);
    }

    #[test]
    fn a_controller_that_hangs_is_not_awaited() {
        let mut hangs = Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(!wait(&mut hangs, Duration::from_millis(20)).unwrap());
        hangs.kill().unwrap();
        assert!(wait(&mut hangs, Duration::from_secs(60)).unwrap());
    }
}
