//! The protocol of appending, on media with faults and rivals.

use super::*;
use crate::{LogRecords, LogSeal, MemoryMedium};
use outlive_format::{Body, Close};
use outlive_types::sync::plain::Mutex;
use outlive_types::{ErrorKind, Fingerprint, SessionId};
use std::fmt;
use std::sync::Arc;

fn job() -> JobName {
    JobName::new("x").unwrap()
}

/// Returns record `number` as it is in the log now.
fn there(log: &dyn ManifestLog, number: u64) -> Previous {
    log.read(&job(), number)
        .map_or(Previous { number, ..Previous::NONE }, |record| Previous::of(number, &record))
}

/// Appends behind record `previous` as it is in the log now.
fn append(log: &dyn ManifestLog, previous: u64, record: &[u8]) -> Result<Append> {
    log.append_if(&job(), there(log, previous), record)
}

type Before = Box<dyn FnOnce(&MemoryMedium) + Send>;

/// A medium that rivals use just before a put, or that loses replies.
#[derive(Default)]
struct Troubled {
    medium: Arc<MemoryMedium>,
    before_put: Mutex<Option<Before>>,
    /// The put takes effect, and returns an error.
    loses_reply: bool,
    /// Reads fail with this kind of error.
    unreadable: Option<ErrorKind>,
}

impl Troubled {
    /// Returns a medium on which `meanwhile` runs after the first check of the log, before the put.
    fn when(
        medium: &Arc<MemoryMedium>,
        meanwhile: impl FnOnce(&MemoryMedium) + Send + 'static,
    ) -> Self {
        let before_put = Mutex::new(Some(Box::new(meanwhile) as Before));
        Troubled { medium: medium.clone(), before_put, ..Troubled::default() }
    }
}

impl fmt::Debug for Troubled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Troubled")
    }
}

impl LogRecords for Troubled {
    fn describe(&self) -> String {
        "a medium in trouble".to_owned()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.medium.jobs()
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        self.medium.list(job)
    }

    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        match self.unreadable {
            Some(kind) => Err(Error::new(kind, "cannot be read")),
            None => self.medium.get(job, number),
        }
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        if let Some(meanwhile) = self.before_put.lock().take() {
            meanwhile(&self.medium);
        }
        let put = self.medium.put_new(job, number, record);
        if self.loses_reply { Err(Error::retry("the reply was lost")) } else { put }
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        self.medium.delete(job, number)
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.medium.sync(job)
    }
}

impl LogLocks for Troubled {}

impl LogSeal for Troubled {}

/// Returns a medium with the records from 1 to `count`.
fn filled(count: u64) -> Arc<MemoryMedium> {
    let log = RecordLog::over(Arc::new(MemoryMedium::default()));
    for previous in 0..count {
        append(&log, previous, b"r").unwrap();
    }
    log.medium
}

/// A prune removes old records from the first on. A writer far behind has lost, whatever number it
/// tries.
#[test]
fn a_writer_behind_a_pruned_log_has_lost() {
    let log = RecordLog::over(filled(5));
    for number in 1..=3 {
        log.medium.delete(&job(), number).unwrap();
    }
    assert_eq!(log.numbers(&job()).unwrap(), [4, 5]);
    for previous in 0..3 {
        assert_eq!(append(&log, previous, b"r").unwrap(), Append::Lost);
    }
    assert_eq!(append(&log, 5, b"r").unwrap(), Append::Done);
    assert_eq!(append(&log, 9, b"r").unwrap_err().kind(), ErrorKind::Damaged);
}

/// A writer stops just before it numbers its record. Meanwhile others go on, and prune the log
/// twice. So the number is free again, below the newest.
#[test]
fn a_number_that_was_pruned_is_not_given_again() {
    let medium = filled(3);
    let ours = RecordLog::over(Troubled::when(&medium, |theirs| {
        for number in 4..=8 {
            theirs.put_new(&job(), number, b"theirs").unwrap();
        }
        (1..7).for_each(|number| theirs.delete(&job(), number).unwrap());
    }));
    assert_eq!(ours.append_if(&job(), Previous::of(3, b"r"), b"ours").unwrap(), Append::Lost);
    assert_eq!(medium.list(&job()).unwrap(), [7, 8], "and nothing is left of it");
    assert_eq!(append(&ours, 3, b"ours").unwrap(), Append::Lost);
}

/// A writer on another host is held up just before its put. Others go on, and prune. Then the log's
/// server loses power, and one removed name is back: the one before the writer's number, which is
/// free.
#[test]
fn a_number_in_a_gap_that_a_power_cut_left_is_not_given_again() {
    let medium = filled(2);
    let ours = RecordLog::over(Troubled::when(&medium, |theirs| {
        for number in 3..=6 {
            theirs.put_new(&job(), number, b"theirs").unwrap();
        }
        [1, 3, 4, 5].iter().for_each(|number| theirs.delete(&job(), *number).unwrap());
    }));
    assert_eq!(ours.append_if(&job(), Previous::of(2, b"r"), b"ours").unwrap(), Append::Lost);
    assert_eq!(medium.list(&job()).unwrap(), [2, 6], "and nothing is left of it");
}

/// The oldest remaining record tells which record came before it.
#[test]
fn the_next_record_tells_whether_one_came_too_late() {
    let record = |number: u64, previous: &[u8], session: u8| {
        let body = Body::Close(Close { session: SessionId([session; 12]) });
        let previous = if number == 1 { Fingerprint::ZERO } else { fingerprint(previous) };
        Record { number, previous, body }.encode().unwrap()
    };
    let mut records = vec![record(1, b"", 1)];
    for number in 2..=6 {
        records.push(record(number, records.last().unwrap(), 1));
    }
    let medium = Arc::new(MemoryMedium::default());
    let theirs = RecordLog::over(medium.clone());
    for (previous, record) in (0..3).zip(&records) {
        append(&theirs, previous, record).unwrap();
    }
    // The reply to our put is so late that others have gone on, and pruned, meanwhile.
    let all = records.clone();
    let ours = RecordLog::over(Troubled::when(&medium, move |theirs| {
        for (number, record) in (4..).zip(&all[3..]) {
            theirs.put_new(&job(), number, record).unwrap();
        }
        (1..4).for_each(|number| theirs.delete(&job(), number).unwrap());
    }));
    let behind = Previous::of(3, &records[2]);
    assert_eq!(
        ours.append_if(&job(), behind, &records[3]).unwrap(),
        Append::Done,
        "it was there before the others, and only its reply is late"
    );
    let late = record(4, &records[2], 2);
    theirs.remove_before(&job(), 5).unwrap();
    let put = medium.put_new(&job(), 4, &late);
    assert_eq!(ours.answer(&job(), behind, &late, put).unwrap(), Append::Lost);
    assert_eq!(theirs.numbers(&job()).unwrap(), [5, 6]);
}

/// Behind its put a writer is suspended. Meanwhile the log is put back to an older state, and another
/// program appends a record of the same number, and one more.
#[test]
fn a_record_of_another_writer_is_not_taken_back() {
    let medium = filled(3);
    medium.delete(&job(), 1).unwrap();
    let ours = RecordLog::over(medium.clone());
    let put = medium.put_new(&job(), 4, b"ours");
    medium.delete(&job(), 4).unwrap();
    medium.put_new(&job(), 4, b"theirs").unwrap();
    let body = Body::Close(Close { session: SessionId([1; 12]) });
    let next = Record { number: 5, previous: fingerprint(b"theirs"), body }.encode().unwrap();
    medium.put_new(&job(), 5, &next).unwrap();
    let answer = ours.answer(&job(), Previous::of(3, b"r"), b"ours", put);
    assert_eq!(answer.unwrap(), Append::Lost);
    assert_eq!(ours.numbers(&job()).unwrap(), [2, 3, 4, 5]);
    assert_eq!(ours.read(&job(), 4).unwrap(), b"theirs");
}

/// Over a network a put may take effect although its reply is lost.
#[test]
fn a_lost_reply_is_settled_by_reading_back() {
    let medium = filled(1);
    let ours = || Troubled { medium: medium.clone(), loses_reply: true, ..Troubled::default() };
    let log = RecordLog::over(ours());
    assert_eq!(append(&log, 1, b"ours").unwrap(), Append::Done);
    assert_eq!(append(&log, 1, b"other").unwrap(), Append::Lost);
    let overtaken = Troubled {
        before_put: Mutex::new(Some(Box::new(|theirs: &MemoryMedium| {
            theirs.put_new(&job(), 3, b"theirs").unwrap();
        }))),
        ..ours()
    };
    assert_eq!(append(&RecordLog::over(overtaken), 2, b"ours").unwrap(), Append::Lost);
    assert_eq!(log.read(&job(), 3).unwrap(), b"theirs");
}

/// A number that another writer took and gave back is free: the caller tries again.
#[test]
fn a_number_that_is_free_again_may_be_asked_for_again() {
    let medium = filled(2);
    medium.put_new(&job(), 3, b"theirs").unwrap();
    let log = RecordLog::over(medium.clone());
    medium.delete(&job(), 3).unwrap();
    let error = log.answer(&job(), there(&log, 2), b"ours", Ok(Put::Taken)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert_eq!(append(&log, 2, b"ours").unwrap(), Append::Done);
}

/// An unreadable record does not count as missing.
#[test]
fn nothing_is_put_while_the_log_cannot_be_read() {
    for kind in [ErrorKind::Retry, ErrorKind::Damaged] {
        let medium = filled(2);
        let unreadable = Some(kind);
        let log = Troubled { medium: medium.clone(), unreadable, ..Troubled::default() };
        let log = RecordLog::over(log);
        let error = log.append_if(&job(), Previous::of(2, b"r"), b"ours").unwrap_err();
        assert_eq!(error.kind(), kind);
        assert_eq!(log.read(&job(), 1).unwrap_err().kind(), kind);
        assert_eq!(medium.list(&job()).unwrap(), [1, 2]);
    }
}
