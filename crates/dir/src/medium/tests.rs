use super::*;
use crate::DirectoryLog;
use crate::durable::{link_new, rename_new};
use outlive_log::{Append, ManifestLog, Previous, RecordLog};
use outlive_types::ErrorKind;

/// Appends behind record `previous` as it is in the log now.
fn append(log: &DirectoryLog, job: &JobName, previous: u64, record: &[u8]) -> Result<Append> {
    let behind = log.read(job, previous).map_or(Previous::NONE, |r| Previous::of(previous, &r));
    log.append_if(job, behind, record)
}

fn job(name: &str) -> JobName {
    JobName::new(name).unwrap()
}

#[test]
fn records_lie_where_the_format_says_and_nothing_else_does() {
    let root = tempfile::tempdir().unwrap();
    let log = RecordLog::over(DirectoryMedium::open(root.path()));
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
    let log = RecordLog::over(DirectoryMedium::open(root.path()));
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

/// A user who may only read the pool cannot make the files, and so cannot lock what it reads.
#[test]
fn the_first_record_makes_the_files_of_the_locks() {
    let root = tempfile::tempdir().unwrap();
    let log = RecordLog::over(DirectoryMedium::open(root.path()));
    assert_eq!(append(&log, &job("x"), 0, b"r").unwrap(), Append::Done);
    let mut names = file_names(&root.path().join("log")).unwrap();
    names.sort_unstable();
    assert_eq!(names, [".collecting.lock", ".reading.lock", "x"]);
}

/// Two handles act as two processes.
#[test]
fn handles_on_one_directory_are_one_log() {
    let root = tempfile::tempdir().unwrap();
    let (ours, theirs) = (
        RecordLog::over(DirectoryMedium::open(root.path())),
        RecordLog::over(DirectoryMedium::open(root.path())),
    );
    assert_eq!(append(&ours, &job("x"), 0, b"ours").unwrap(), Append::Done);
    assert_eq!(append(&theirs, &job("x"), 0, b"theirs").unwrap(), Append::Lost);
    assert_eq!(append(&theirs, &job("x"), 1, b"theirs").unwrap(), Append::Done);
    assert_eq!(ours.latest(&job("x")).unwrap(), 2);
    fs::remove_dir_all(root.path().join("log")).unwrap();
    assert_eq!(append(&ours, &job("x"), 0, b"anew").unwrap(), Append::Done);
}

/// Another program removes the log between the two steps of an append: then nothing is committed.
#[test]
fn a_record_that_has_vanished_is_not_durable() {
    let root = tempfile::tempdir().unwrap();
    let (ours, theirs) = (
        RecordLog::over(DirectoryMedium::open(root.path())),
        RecordLog::over(DirectoryMedium::open(root.path())),
    );
    assert_eq!(append(&ours, &job("x"), 0, b"one").unwrap(), Append::Done);
    fs::remove_dir_all(root.path().join("log")).unwrap();
    assert_eq!(ours.sync(&job("x")).unwrap_err().kind(), ErrorKind::Retry);
    theirs.sync(&job("x")).unwrap();
    ours.sync(&job("y")).unwrap();
}

/// The second way to publish, for file systems without links, never replaces either.
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

/// A prune removes the leftovers of killed writers; a writer in progress writes again.
#[test]
fn left_overs_go_when_the_log_is_pruned() {
    let root = tempfile::tempdir().unwrap();
    let (ours, theirs, job) = (
        RecordLog::over(DirectoryMedium::open(root.path())),
        RecordLog::over(DirectoryMedium::open(root.path())),
        job("x"),
    );
    for previous in 0..3 {
        append(&theirs, &job, previous, b"r").unwrap();
    }
    theirs.medium().write_temporary(&job, b"of one that was killed").unwrap();
    let temporary = ours.medium().write_temporary(&job, b"ours").unwrap();
    theirs.remove_before(&job, 3).unwrap();
    assert_eq!(file_names(&ours.medium().dir_of(&job)).unwrap(), ["0000000000000003.record"]);
    assert_eq!(ours.medium().give_name(&job, 4, b"ours", &temporary).unwrap(), Put::Made);
    assert_eq!(ours.read(&job, 4).unwrap(), b"ours");
    assert_eq!(file_names(&ours.medium().dir_of(&job)).unwrap().len(), 2, "no temporary is left");
}

/// A replica whose disk is no longer mounted: the medium makes nothing below the mount point.
#[test]
fn a_directory_that_vanishes_is_not_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("disk");
    let job = JobName::new("x").unwrap();
    let medium = DirectoryMedium::within(&root);
    assert!(medium.put_new(&job, 1, b"one").is_err());
    assert!(!root.exists());
    fs::create_dir_all(root.join("log")).unwrap();
    assert_eq!(medium.put_new(&job, 1, b"one").unwrap(), Put::Made);
    fs::rename(&root, dir.path().join("away")).unwrap();
    for missing in [root.clone(), root.join("log")] {
        assert!(medium.put_new(&job, 2, b"two").is_err());
        assert!(medium.sync(&job).is_err());
        assert!(!missing.exists());
        fs::create_dir_all(&root).unwrap(); // the mount point
    }
}
