use super::*;
use crate::durable::{link_new, rename_new};
use outlive_format::{Body, Close};
use outlive_types::{ErrorKind, Fingerprint, SessionId};

/// Appends behind the record `previous` as it is there now.
fn append(log: &DirectoryLog, job: &JobName, previous: u64, record: &[u8]) -> Result<Append> {
    let fp = log.read(job, previous).map_or(Fingerprint::ZERO, |bytes| fingerprint(&bytes));
    log.append_if(job, Previous { number: previous, fp }, record)
}

fn job(name: &str) -> JobName {
    JobName::new(name).unwrap()
}

#[test]
fn records_lie_where_the_format_says_and_nothing_else_does() {
    let root = tempfile::tempdir().unwrap();
    let log = DirectoryLog::open(root.path());
    assert_eq!(append(&log, &job("a/b"), 0, b"one").unwrap(), Append::Done);
    assert_eq!(append(&log, &job("a/b"), 0, b"two").unwrap(), Append::Lost);
    let dir = root.path().join("log").join("a%2Fb");
    let names = file_names(&dir).unwrap();
    assert_eq!(names, ["0000000000000001.record"]);
    assert_eq!(fs::read(dir.join(&names[0])).unwrap(), b"one");
}

#[test]
fn foreign_files_are_ignored() {
    let root = tempfile::tempdir().unwrap();
    let log = DirectoryLog::open(root.path());
    append(&log, &job("x"), 0, b"one").unwrap();
    let dir = root.path().join("log").join("x");
    for stray in [
        ".tmp-0123456789abcdef",
        "0000000000000000.record",
        "2.record",
        "000000000000000A.record",
        "0000000000000002.record.bak",
        "+000000000000002.record",
    ] {
        fs::write(dir.join(stray), "x").unwrap();
    }
    fs::write(root.path().join("log").join("README"), "x").unwrap();
    fs::create_dir(root.path().join("log").join("empty")).unwrap();
    fs::create_dir(root.path().join("log").join("%61")).unwrap();
    assert_eq!(log.numbers(&job("x")).unwrap(), [1]);
    assert_eq!(log.jobs().unwrap(), [job("x")]);
    assert_eq!(append(&log, &job("x"), 1, b"two").unwrap(), Append::Done);
}

/// Old records are pruned from the first on; a writer far behind has lost, whatever number it asks
/// for.
#[test]
fn who_is_behind_a_pruned_log_has_lost() {
    let root = tempfile::tempdir().unwrap();
    let (log, job) = (DirectoryLog::open(root.path()), job("x"));
    for previous in 0..5 {
        append(&log, &job, previous, b"r").unwrap();
    }
    for number in 1..=3 {
        fs::remove_file(log.path(&job, number)).unwrap();
    }
    assert_eq!(log.numbers(&job).unwrap(), [4, 5]);
    for previous in 0..3 {
        assert_eq!(append(&log, &job, previous, b"r").unwrap(), Append::Lost);
    }
    assert_eq!(append(&log, &job, 5, b"r").unwrap(), Append::Done);
    let error = append(&log, &job, 9, b"r").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
}

/// Who may only read a pool could not make them, and could not hold what it reads.
#[test]
fn the_first_record_makes_the_files_of_the_locks() {
    let root = tempfile::tempdir().unwrap();
    let log = DirectoryLog::open(root.path());
    assert_eq!(append(&log, &job("x"), 0, b"r").unwrap(), Append::Done);
    let mut names = file_names(&root.path().join("log")).unwrap();
    names.sort_unstable();
    assert_eq!(names, [".collecting.lock", ".reading.lock", "x"]);
}

/// Two handles stand for two processes.
#[test]
fn handles_on_one_directory_are_one_log() {
    let root = tempfile::tempdir().unwrap();
    let (ours, theirs) = (DirectoryLog::open(root.path()), DirectoryLog::open(root.path()));
    assert_eq!(append(&ours, &job("x"), 0, b"ours").unwrap(), Append::Done);
    assert_eq!(append(&theirs, &job("x"), 0, b"theirs").unwrap(), Append::Lost);
    assert_eq!(append(&theirs, &job("x"), 1, b"theirs").unwrap(), Append::Done);
    assert_eq!(ours.latest(&job("x")).unwrap(), 2);
    fs::remove_dir_all(root.path().join("log")).unwrap();
    assert_eq!(append(&ours, &job("x"), 0, b"anew").unwrap(), Append::Done);
}

/// The second way of publishing, for file systems without links, keeps the promise too.
#[test]
fn renaming_never_replaces() {
    let root = tempfile::tempdir().unwrap();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    fs::write(&from, "new").unwrap();
    fs::write(&to, "old").unwrap();
    let error = rename_new(&from, &to).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(link_new(&from, &to).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&to).unwrap(), b"old");
    fs::remove_file(&to).unwrap();
    rename_new(&from, &to).unwrap();
    assert_eq!(fs::read(&to).unwrap(), b"new");
}

/// A writer that was stopped just before it gave its record a name: meanwhile others went on, and
/// pruned the log twice, so that the number is free again, below the newest.
#[test]
fn a_number_that_was_pruned_is_not_given_again() {
    let root = tempfile::tempdir().unwrap();
    let (ours, theirs, job) =
        (DirectoryLog::open(root.path()), DirectoryLog::open(root.path()), job("x"));
    for previous in 0..3 {
        append(&theirs, &job, previous, b"r").unwrap();
    }
    assert_eq!(ours.occupied(&job, Previous::of(3, b"r"), b"ours").unwrap(), None);
    let temporary = ours.write_temporary(&job, b"ours").unwrap();
    for previous in 3..8 {
        append(&theirs, &job, previous, b"theirs").unwrap();
    }
    theirs.remove_before(&job, 7).unwrap();
    assert_eq!(
        ours.give_number(&job, Previous::of(3, b"r"), b"ours", &temporary).unwrap(),
        Append::Lost
    );
    assert_eq!(theirs.numbers(&job).unwrap(), [7, 8], "and nothing is left of it");
    assert_eq!(append(&ours, &job, 3, b"ours").unwrap(), Append::Lost);
}

/// What killed writers have left goes when the log is pruned; one that is at work writes again.
#[test]
fn left_overs_go_when_the_log_is_pruned() {
    let root = tempfile::tempdir().unwrap();
    let (ours, theirs, job) =
        (DirectoryLog::open(root.path()), DirectoryLog::open(root.path()), job("x"));
    for previous in 0..3 {
        append(&theirs, &job, previous, b"r").unwrap();
    }
    theirs.write_temporary(&job, b"of one that was killed").unwrap();
    let temporary = ours.write_temporary(&job, b"ours").unwrap();
    theirs.remove_before(&job, 3).unwrap();
    assert_eq!(file_names(&ours.dir_of(&job)).unwrap(), ["0000000000000003.record"]);
    assert_eq!(
        ours.give_number(&job, Previous::of(3, b"r"), b"ours", &temporary).unwrap(),
        Append::Done
    );
    assert_eq!(ours.read(&job, 4).unwrap(), b"ours");
}

/// The oldest record that is left tells which one came before it.
#[test]
fn the_next_record_tells_whether_one_came_too_late() {
    let root = tempfile::tempdir().unwrap();
    let (ours, theirs, job) =
        (DirectoryLog::open(root.path()), DirectoryLog::open(root.path()), job("x"));
    let record = |number: u64, previous: &[u8], session: u8| {
        let body = Body::Close(Close { session: SessionId([session; 12]) });
        let previous = if number == 1 { Fingerprint::ZERO } else { fingerprint(previous) };
        Record { number, previous, body }.encode().unwrap()
    };
    let mut records = vec![record(1, b"", 1)];
    for number in 2..=6 {
        records.push(record(number, records.last().unwrap(), 1));
    }
    for (previous, record) in (0..).zip(&records) {
        append(&theirs, &job, previous, record).unwrap();
    }
    theirs.remove_before(&job, 4).unwrap();
    let repeated = append(&ours, &job, 3, &records[3]).unwrap();
    assert_eq!(
        repeated,
        Append::Done,
        "it was there before the others, and only its reply is late"
    );
    theirs.remove_before(&job, 5).unwrap();
    let late = record(4, &records[2], 2);
    let temporary = ours.write_temporary(&job, &late).unwrap();
    assert_eq!(
        ours.give_number(&job, Previous::of(3, &records[2]), &late, &temporary).unwrap(),
        Append::Lost
    );
    assert_eq!(theirs.numbers(&job).unwrap(), [5, 6]);
}
