//! The folder through which `outlive run` and the program that it runs tell each other what happens.
//!
//! | File | Content |
//! |---|---|
//! | `stop` | a request to save and to end: its deadline in nanoseconds of the monotonic clock, or `-`, then its reason |
//! | `alive` | nothing; its time of change is the program's last sign of life |
//! | `reports` | a line for each thing that the program did, such as `committed 7` |
//!
//! All ranks of a host share one folder.

use crate::stop::span::{Span, list_of, text_of};
use outlive_interval::Choice;
use outlive_types::{Epoch, Error, JobName, Result};
use rustix::time::{ClockId, clock_gettime};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Environment variable with the folder's path.
pub const FOLDER_VARIABLE: &str = "OUTLIVE_RUN";
/// Environment variable with the id of the pool of the job that is supervised.
pub const POOL_VARIABLE: &str = "OUTLIVE_RUN_POOL";
/// Environment variable with the name of the job that is supervised.
pub const JOB_VARIABLE: &str = "OUTLIVE_RUN_JOB";
/// Environment variable with the interval that replaces the program's: `auto`, `continuous`, or a
/// time such as `30s`. Unset or empty, the program's own counts.
pub const EVERY_VARIABLE: &str = "OUTLIVE_RUN_EVERY";

/// Environment variable that is not empty if the supervisor wants a helper for the program's saves.
pub const HELPED_VARIABLE: &str = "OUTLIVE_RUN_HELPER";
/// Environment variable with the folder of the transcripts of this attempt, under `outlive run
/// --gate`. Unset or empty, the program prints without a gate.
pub const TRANSCRIPT_VARIABLE: &str = "OUTLIVE_RUN_TRANSCRIPT";

/// A request to save, and then to end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StopRequest {
    /// The cause, such as `SIGTERM`.
    pub reason: String,
    /// Time of the host's monotonic clock by which the program must have ended; `None` if that is
    /// not known. All processes of a host read the same clock, and it never jumps.
    pub deadline: Option<Duration>,
}

impl StopRequest {
    /// Returns the time that is left; `None` if there is no deadline.
    pub fn left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_sub(monotonic()))
    }
}

/// Returns the time of the host's monotonic clock.
pub fn monotonic() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the interval that `outlive run` gives this process for a job, as text. It also holds on
/// another host, where the folder is not.
pub fn every_of_run(pool_id: &str, job: &JobName) -> Option<String> {
    let given = std::env::var(EVERY_VARIABLE).ok()?;
    (is_supervised(pool_id, job) && !given.is_empty()).then_some(given)
}

/// Returns whether `outlive run` wants a helper for the saves of a job.
pub(crate) fn is_helped(pool_id: &str, job: &JobName) -> bool {
    is_supervised(pool_id, job)
        && std::env::var_os(HELPED_VARIABLE).is_some_and(|value| !value.is_empty())
}

/// Returns whether `outlive run` runs this process for a job.
pub(super) fn is_supervised(pool_id: &str, job: &JobName) -> bool {
    std::env::var_os(JOB_VARIABLE).is_some_and(|name| *name == *job.as_str())
        && std::env::var_os(POOL_VARIABLE).is_some_and(|id| *id == *pool_id)
}

/// An event in a supervised program.
#[derive(Clone, PartialEq, Debug)]
pub enum Report {
    /// The program has restored this checkpoint.
    Restored(Epoch),
    /// This checkpoint is committed.
    Committed(Epoch),
    /// The save of this checkpoint has failed.
    Failed(Epoch),
    /// The program knows of the request to stop.
    Stopping,
    /// The checkpoint that was saved for the request to stop is committed.
    Saved(Epoch),
    /// The interval between the program's saves.
    Interval(Box<Choice>),
    /// A committed checkpoint covers these parts of transcripts.
    Covered(Vec<Span>),
    /// The checkpoint that was restored covers these parts of transcripts.
    Recovered(Vec<Span>),
    /// The program continues from a checkpoint, and repeats what it has printed up to the ends of
    /// these parts.
    Dropped(Vec<Span>),
}

impl Report {
    fn line(&self) -> String {
        match self {
            Report::Restored(epoch) => format!("restored {epoch}\n"),
            Report::Committed(epoch) => format!("committed {epoch}\n"),
            Report::Failed(epoch) => format!("failed {epoch}\n"),
            Report::Stopping => "stopping\n".to_owned(),
            Report::Saved(epoch) => format!("saved {epoch}\n"),
            Report::Interval(choice) => {
                format!("interval {}\n", serde_json::to_string(choice).unwrap_or_default())
            }
            Report::Covered(spans) => format!("covered {}\n", text_of(spans)),
            Report::Recovered(spans) => format!("recovered {}\n", text_of(spans)),
            Report::Dropped(spans) => format!("dropped {}\n", text_of(spans)),
        }
    }

    /// Reads a line; `None` for a line that this build does not know.
    fn parse(line: &str) -> Option<Report> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let epoch = || rest.parse().ok();
        match word {
            "restored" => epoch().map(Report::Restored),
            "committed" => epoch().map(Report::Committed),
            "failed" => epoch().map(Report::Failed),
            "stopping" => Some(Report::Stopping),
            "saved" => epoch().map(Report::Saved),
            "interval" => serde_json::from_str(rest).ok().map(Report::Interval),
            "covered" => list_of(rest).map(Report::Covered),
            "recovered" => list_of(rest).map(Report::Recovered),
            "dropped" => list_of(rest).map(Report::Dropped),
            _ => None,
        }
    }
}

/// The folder of one supervised run.
#[derive(Clone, Debug)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Makes the files of a new run in an existing folder.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn create(path: &Path) -> Result<RunFolder> {
        let folder = RunFolder { path: path.to_owned() };
        for name in ["alive", "reports"] {
            File::create(path.join(name)).map_err(|e| folder.error("making", name, &e))?;
        }
        Ok(folder)
    }

    /// Returns the folder of the supervisor that runs this process, if it supervises this job of the
    /// pool with this id.
    pub fn of_this_process(pool_id: &str, job: &JobName) -> Option<RunFolder> {
        let path = PathBuf::from(std::env::var_os(FOLDER_VARIABLE)?);
        (is_supervised(pool_id, job) && path.is_dir()).then_some(RunFolder { path })
    }

    /// Returns the file of a request to stop, which is there once one has come.
    pub(super) fn stop_file(&self) -> PathBuf {
        self.path.join("stop")
    }

    /// Asks the program to save and to end. A later request replaces an earlier one.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn ask_to_stop(&self, request: &StopRequest) -> Result<()> {
        let deadline =
            request.deadline.map_or("-".to_owned(), |deadline| deadline.as_nanos().to_string());
        let reason = request.reason.replace('\n', " ");
        let (new, name) = (self.path.join("stop.new"), self.stop_file());
        let written = fs::write(&new, format!("{deadline}\n{reason}\n"));
        written
            .and_then(|()| fs::rename(&new, &name))
            .map_err(|e| self.error("writing", "stop", &e))
    }

    /// Withdraws the request, before the program starts again.
    pub fn forget_stop(&self) {
        let _ = fs::remove_file(self.stop_file());
    }

    /// Returns the request to stop, if there is one.
    pub fn stop(&self) -> Option<StopRequest> {
        let text = fs::read_to_string(self.stop_file()).ok()?;
        let (deadline, reason) = text.split_once('\n')?;
        let deadline = deadline.parse().ok().map(Duration::from_nanos);
        Some(StopRequest { reason: reason.trim_end().to_owned(), deadline })
    }

    /// Gives a sign of life. Its failure is no reason to disturb the program.
    pub fn sign_of_life(&self) {
        let name = self.path.join("alive");
        let _ = OpenOptions::new().write(true).open(name).and_then(|file| {
            let now = rustix::fs::Timestamps {
                last_access: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
                last_modification: rustix::fs::Timespec {
                    tv_sec: 0,
                    tv_nsec: rustix::fs::UTIME_NOW,
                },
            };
            rustix::fs::futimens(&file, &now).map_err(io::Error::from)
        });
    }

    /// Returns the time of the last sign of life, to be compared with earlier ones only.
    pub fn last_sign(&self) -> Option<SystemTime> {
        fs::metadata(self.path.join("alive")).and_then(|found| found.modified()).ok()
    }

    /// Adds a report. Ranks that report at once do not mix their lines.
    pub fn report(&self, report: &Report) {
        let file = OpenOptions::new().append(true).open(self.path.join("reports"));
        let _ = file.and_then(|mut file| file.write_all(report.line().as_bytes()));
    }

    /// Returns the whole reports from byte `from` on, and moves `from` behind them.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn reports(&self, from: &mut u64) -> Result<Vec<Report>> {
        let mut text = String::new();
        let read = File::open(self.path.join("reports")).and_then(|mut file| {
            file.seek(SeekFrom::Start(*from))?;
            file.read_to_string(&mut text)
        });
        read.map_err(|e| self.error("reading", "reports", &e))?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        *from += whole as u64;
        Ok(text[..whole].lines().filter_map(Report::parse).collect())
    }

    fn error(&self, doing: &str, name: &str, error: &io::Error) -> Error {
        Error::io(doing, &self.path.join(name), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_reports_come_through() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::create(dir.path()).unwrap();
        assert_eq!(folder.stop(), None);
        let request = StopRequest { reason: "two\nlines".into(), deadline: None };
        folder.ask_to_stop(&request).unwrap();
        assert_eq!(folder.stop().unwrap().reason, "two lines");
        let deadline = Some(monotonic() + Duration::from_secs(60));
        folder.ask_to_stop(&StopRequest { reason: "SIGTERM".into(), deadline }).unwrap();
        let found = folder.stop().unwrap();
        assert_eq!((&*found.reason, found.deadline), ("SIGTERM", deadline));
        assert!(found.left().unwrap() <= Duration::from_secs(60));
        folder.forget_stop();
        assert_eq!(folder.stop(), None);

        let mut from = 0;
        let all = [
            Report::Restored(6),
            Report::Failed(7),
            Report::Committed(7),
            Report::Stopping,
            Report::Saved(7),
            Report::Covered(vec![Span { file: "1/stdout".into(), from: 0, to: 9 }]),
            Report::Recovered(vec![]),
            Report::Dropped(vec![Span { file: "1/stderr.3".into(), from: 2, to: 2 }]),
        ];
        all.iter().for_each(|report| folder.report(report));
        // A rank has written half a line, and another build a line of its own.
        let mut file = OpenOptions::new().append(true).open(dir.path().join("reports")).unwrap();
        file.write_all(b"sang 3\ncommit").unwrap();
        assert_eq!(folder.reports(&mut from).unwrap(), all);
        assert_eq!(folder.reports(&mut from).unwrap(), []);
        file.write_all(b"ted 8\n").unwrap();
        assert_eq!(folder.reports(&mut from).unwrap(), [Report::Committed(8)]);
        let before = folder.last_sign().unwrap();
        while folder.last_sign().unwrap() == before {
            folder.sign_of_life();
        }
    }
}
