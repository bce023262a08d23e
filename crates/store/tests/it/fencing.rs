//! Rights to commit: rivals whose records cannot be read, logs that were put back, overtaken
//! restores, and late replies.

use crate::common;
use crate::stepped;

use common::{Program, State, memory_pool, noise, pool_of, small_config};
use outlive_backend::{FaultWorld, MemoryTarget};
use outlive_format::{Body, Record};
use outlive_log::{Append, LogLocks, ManifestLog, MemoryLog, Previous};
use outlive_pool::{Environment, Pool, create};
use outlive_store::gc::{GcOptions, Thoroughness, collect};
use outlive_store::retention::Rules;
use outlive_store::{Job, Select};
use outlive_types::{Epoch, Error, ErrorKind, JobName, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use stepped::{SteppedLog, Steps};

fn state(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 100_000)), ("b".to_owned(), vec![seed as u8; 10])])
}

fn epochs(pool: &Pool) -> Vec<Epoch> {
    let job = Job::open(pool, "job", Default::default()).unwrap();
    job.epochs().unwrap().iter().map(|info| info.epoch).collect()
}

fn record(pool: &Path, number: u64) -> PathBuf {
    pool.join("log/job").join(format!("{number:016x}.record"))
}

/// A pool in a directory, opened by two programs.
fn two(dir: &Path) -> (PathBuf, Program, Program) {
    let path = dir.join("pool");
    create(&path, small_config(), Environment::system()).unwrap();
    let open = || outlive_pool::open(&path, Environment::system()).unwrap();
    let (ours, theirs) = (Program::start(&open(), "job"), Program::start(&open(), "job"));
    (path, ours, theirs)
}

#[test]
fn a_rival_whose_session_is_damaged_has_taken_over_all_the_same() {
    for flip_manifest_too in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (path, ours, theirs) = two(dir.path());
        ours.save(&state(1)).unwrap();
        theirs.save(&state(2)).unwrap();
        // Ours are records 1 and 2. Theirs are 3, a session, and 4.
        for number in if flip_manifest_too { vec![3, 4] } else { vec![3] } {
            let mut bytes = fs::read(record(&path, number)).unwrap();
            bytes[70] ^= 0x10;
            fs::write(record(&path, number), bytes).unwrap();
        }
        for seed in 3..5 {
            let error = ours.save(&state(seed)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
        }
        theirs.save(&state(5)).unwrap();
        assert_eq!(theirs.restore(Select::Newest).unwrap().unwrap().1, state(5));
    }
}

#[test]
fn a_record_that_cannot_be_read_just_now_ends_no_session_and_is_not_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let (path, ours, theirs) = two(dir.path());
    ours.save(&state(1)).unwrap();
    theirs.save(&state(2)).unwrap();
    // The system refuses to read the record, which says nothing about it.
    let aside = path.join("aside");
    fs::rename(record(&path, 3), &aside).unwrap();
    fs::create_dir(record(&path, 3)).unwrap();
    let error = ours.save(&state(3)).unwrap_err();
    assert_ne!(error.kind(), ErrorKind::Fenced, "{error}");
    assert_ne!(error.kind(), ErrorKind::Damaged, "{error}");
    fs::remove_dir(record(&path, 3)).unwrap();
    fs::rename(&aside, record(&path, 3)).unwrap();
    assert_eq!(ours.save(&state(4)).unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(epochs(ours.job.pool()), [1, 2]);
}

/// The log is put back to an older state, and another writer brings it to the same number.
#[test]
fn a_record_goes_behind_the_very_record_that_was_seen() {
    let dir = tempfile::tempdir().unwrap();
    let (path, ours, theirs) = two(dir.path());
    ours.save(&state(1)).unwrap();
    let kept = fs::read(record(&path, 1)).unwrap();
    ours.save(&state(2)).unwrap();
    for number in 1..=3 {
        fs::remove_file(record(&path, number)).unwrap();
    }
    fs::write(record(&path, 1), kept).unwrap();
    // Theirs are records 2 and 3.
    theirs.save(&state(7)).unwrap();
    let error = ours.save(&state(3)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Fenced), "{error}");
    theirs.save(&state(8)).unwrap();
    assert_eq!(theirs.restore(Select::Newest).unwrap().unwrap().1, state(8));
}

#[test]
fn one_s_own_newest_record_may_be_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let (path, ours, _) = two(dir.path());
    ours.save(&state(1)).unwrap();
    let mut bytes = fs::read(record(&path, 2)).unwrap();
    bytes[70] ^= 1;
    fs::write(record(&path, 2), bytes).unwrap();
    assert_eq!(ours.save(&state(2)).unwrap().epoch, 2);
    assert_eq!(ours.restore(Select::Newest).unwrap().unwrap(), (2, state(2)));
}

#[test]
fn a_program_that_restored_before_others_went_on_must_say_so() {
    let pool = memory_pool();
    Program::start(&pool, "job").save(&state(3)).unwrap();
    let (stale, other) = (Program::start(&pool, "job"), Program::start(&pool, "job"));
    assert_eq!(stale.restore(Select::Newest).unwrap().unwrap().0, 1);
    for seed in 4..=8 {
        other.save(&state(seed)).unwrap();
    }
    drop(other);
    for _ in 0..2 {
        let error = stale.save(&state(9)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
        let text = error.to_string();
        assert!(text.contains("at checkpoint 1") && text.contains("up to checkpoint 6"), "{text}");
    }
    assert_eq!(epochs(&pool), [1, 2, 3, 4, 5, 6]);
    // It restores again, and goes back on purpose.
    stale.restore(Select::Epoch(2)).unwrap().unwrap();
    assert_eq!(stale.save(&state(9)).unwrap().epoch, 7);
    assert_eq!(stale.restore(Select::Newest).unwrap().unwrap(), (7, state(9)));
}

#[test]
fn a_job_can_be_taken_over_in_words() {
    let pool = memory_pool();
    let (stale, other) = (Program::start(&pool, "job"), Program::start(&pool, "job"));
    assert!(stale.restore(Select::Newest).unwrap().is_none(), "an empty log is a place as well");
    other.save(&state(1)).unwrap();
    assert_eq!(stale.save(&state(2)).unwrap_err().kind(), ErrorKind::Fenced);
    stale.job.take_over();
    assert_eq!(stale.save(&state(2)).unwrap().epoch, 2);
    assert_eq!(other.save(&state(3)).unwrap_err().kind(), ErrorKind::Fenced);
}

#[test]
fn a_program_that_closed_and_goes_on_is_bound_likewise() {
    let pool = memory_pool();
    let (ours, other) = (Program::start(&pool, "job"), Program::start(&pool, "job"));
    ours.save(&state(1)).unwrap();
    ours.job.close().unwrap();
    ours.save(&state(2)).unwrap();
    ours.job.close().unwrap();
    other.save(&state(3)).unwrap();
    assert_eq!(ours.save(&state(4)).unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(epochs(&pool), [1, 2, 3]);
}

/// A program loses the reply to its session record. The record is its own, so it was not overtaken.
#[test]
fn a_program_is_not_overtaken_by_its_own_session_record() {
    let world = FaultWorld::new();
    Program::start(&pool_of(world.target(), world.log()), "job").save(&state(1)).unwrap();
    let program = Program::start(&pool_of(world.target(), world.log()), "job");
    program.restore(Select::Newest).unwrap().unwrap();
    // The last step of an append: the record is visible, and the reply is an error.
    let failed = AtomicBool::new(false);
    world.fail_when(move |_, op| {
        let is_it = op.starts_with("sync the records") && !failed.swap(true, Ordering::AcqRel);
        is_it.then_some(ErrorKind::Retry)
    });
    assert_eq!(program.save(&state(2)).unwrap_err().kind(), ErrorKind::Retry);
    assert_eq!(program.save(&state(3)).unwrap().epoch, 2);
    assert_eq!(program.restore(Select::Newest).unwrap().unwrap(), (2, state(3)));
}

/// Records of prunes, gcs and notes overtake no program.
#[test]
fn a_restorer_is_not_overtaken_by_a_gc() {
    let pool = memory_pool();
    let program = Program::start(&pool, "job");
    for seed in 1..=3 {
        program.save(&state(seed)).unwrap();
    }
    drop(program);
    let program = Program::start(&pool, "job");
    program.restore(Select::Newest).unwrap().unwrap();
    let drop = [(JobName::new("job").unwrap(), [1, 2].into())].into();
    collect(&pool, &GcOptions { drop, ..thorough() }).unwrap();
    program.job.note(3, |remarks| remarks.label = "good".to_owned()).unwrap();
    assert_eq!(program.save(&state(4)).unwrap().epoch, 4);
    assert_eq!(program.restore(Select::Newest).unwrap().unwrap(), (4, state(4)));
}

fn thorough() -> GcOptions {
    let thoroughness = Thoroughness { unused_max: 0.0, ..Thoroughness::default() };
    GcOptions { thoroughness, ..GcOptions::default() }
}

/// A log whose appends take effect, then reply late: two gcs have run meanwhile, and the record is
/// in their archives.
#[derive(Debug)]
struct Late {
    log: Arc<MemoryLog>,
    target: Arc<MemoryTarget>,
    late: AtomicBool,
    /// Whether another writer takes the job over meanwhile, too.
    rival: bool,
}

impl ManifestLog for Late {
    fn describe(&self) -> String {
        self.log.describe()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.log.jobs()
    }

    fn numbers(&self, job: &JobName) -> Result<Vec<u64>> {
        self.log.numbers(job)
    }

    fn read(&self, job: &JobName, number: u64) -> Result<Vec<u8>> {
        self.log.read(job, number)
    }

    fn append_if(&self, job: &JobName, previous: Previous, record: &[u8]) -> Result<Append> {
        let appended = self.log.append_if(job, previous, record)?;
        if !self.late.swap(false, Ordering::AcqRel) {
            return Ok(appended);
        }
        let pool = pool_of(self.target.clone(), self.log.clone());
        for oldest in [1, 2] {
            let drop = [(job.clone(), [oldest].into())].into();
            collect(&pool, &GcOptions { drop, ..thorough() })?;
        }
        if self.rival {
            Program::start(&pool, job.as_str()).save(&state(9))?;
        }
        // This looks as if other writers had got the number long ago.
        Ok(Append::Lost)
    }

    fn remove_before(&self, job: &JobName, number: u64) -> Result<()> {
        self.log.remove_before(job, number)
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.log.sync(job)
    }
}

impl LogLocks for Late {}

#[test]
fn a_commit_that_archives_have_taken_up_is_no_fence() {
    let (target, log) = (Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()));
    let late = Arc::new(Late {
        log: log.clone(),
        target: target.clone(),
        late: AtomicBool::new(false),
        rival: false,
    });
    let pool = pool_of(target.clone(), late.clone());
    let program = Program::start(&pool, "job");
    for seed in 1..=3 {
        program.save(&state(seed)).unwrap();
    }
    late.late.store(true, Ordering::Release);
    assert_eq!(program.save(&state(4)).unwrap().epoch, 4);
    let quiet = pool_of(target, log);
    assert_eq!(epochs(&quiet), [3, 4]);
    // The next save continues with the extents that the gcs have assigned.
    let mut next = state(4);
    next.insert("c".to_owned(), noise(5, 70_000));
    assert_eq!(program.save(&next).unwrap().epoch, 5);
    drop(program);
    collect(&quiet, &thorough()).unwrap();
    for (epoch, state) in [(3, state(3)), (4, state(4)), (5, next)] {
        let restored = Program::start(&quiet, "job").restore(Select::Epoch(epoch)).unwrap();
        assert_eq!(restored.unwrap().1, state, "epoch {epoch}");
    }
}

/// It was committed in time, although another writer has taken the job over since: the next save is
/// fenced.
#[test]
fn a_commit_that_others_have_followed_is_one_all_the_same() {
    let (target, log) = (Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()));
    let late = AtomicBool::new(false);
    let late = Arc::new(Late { log: log.clone(), target: target.clone(), late, rival: true });
    let program = Program::start(&pool_of(target.clone(), late.clone()), "job");
    for seed in 1..=3 {
        program.save(&state(seed)).unwrap();
    }
    late.late.store(true, Ordering::Release);
    assert_eq!(program.save(&state(4)).unwrap().epoch, 4);
    assert_eq!(program.save(&state(5)).unwrap_err().kind(), ErrorKind::Fenced);
    let quiet = pool_of(target, log);
    assert_eq!(epochs(&quiet), [3, 4, 5]);
    for (epoch, state) in [(3, state(3)), (4, state(4)), (5, state(9))] {
        let restored = Program::start(&quiet, "job").restore(Select::Epoch(epoch)).unwrap();
        assert_eq!(restored.unwrap().1, state, "epoch {epoch}");
    }
}

/// The remaining records of the job then name a session that no other record describes.
#[test]
fn a_job_whose_session_record_was_given_up_goes_on() {
    let world = FaultWorld::new();
    let pool = pool_of(world.target(), world.log());
    for seed in 1..=2 {
        Program::start(&pool, "job").save(&state(seed)).unwrap();
    }
    let job = JobName::new("job").unwrap();
    let records = world.log().latest(&job).unwrap();
    for number in 1..=records {
        let bytes = world.log().read(&job, number).unwrap();
        if matches!(Record::decode(&bytes).unwrap().body, Body::Session(_)) {
            world.corrupt_record(&job, number, 30, 4);
        }
    }
    collect(&pool, &GcOptions { forget_damaged: true, ..thorough() }).unwrap();
    for epoch in 3..=4 {
        let program = Program::start(&pool, "job");
        assert_eq!(program.restore(Select::Newest).unwrap().unwrap().1, state(epoch - 1));
        program.save(&state(epoch)).unwrap();
    }
}

/// A gc has given up the record of a rival's session, so only its checkpoint names that session. A
/// program that had restored before that checkpoint is fenced. (Schedule damage:16601 of the
/// explorer.)
#[test]
fn a_rival_whose_session_record_was_given_up_has_saved_all_the_same() {
    let world = FaultWorld::new();
    let quiet = || pool_of(world.target(), world.log());
    for seed in 1..=3 {
        Program::start(&quiet(), "job").save(&state(seed)).unwrap();
    }
    let job = JobName::new("job").unwrap();
    let (stepped, appends) = (Steps::default(), AtomicUsize::new(0));
    let logged = Arc::new(SteppedLog(world.log(), stepped.clone()));
    let rival = Program::start(&pool_of(world.target(), logged), "job");
    let ours = Arc::new(Program::start(&quiet(), "job"));
    let (at_work, theirs) = (world.clone(), ours.clone());
    stepped.hook(move |_, op| {
        // Before the rival's checkpoint, after its session.
        if op == "append" && appends.fetch_add(1, Ordering::AcqRel) == 1 {
            let session = at_work.log().latest(&job).unwrap();
            at_work.corrupt_record(&job, session, 30, 4);
            let restored = theirs.restore(Select::Newest).unwrap().unwrap();
            assert_eq!(restored.1, state(3));
        }
    });
    assert_eq!(rival.save(&state(4)).unwrap().epoch, 4);
    drop(rival);
    collect(&quiet(), &GcOptions { forget_damaged: true, ..thorough() }).unwrap();
    let error = ours.save(&state(5)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert_eq!(epochs(&quiet()).last(), Some(&4));
    let restored = ours.restore(Select::Newest).unwrap().unwrap();
    assert_eq!(restored.1, state(4));
    assert_eq!(ours.save(&state(6)).unwrap().epoch, 5);
}

/// A gc gives up an old damaged record while a save is about to be appended: the number of records
/// that were given up makes no epoch.
#[test]
fn records_that_are_given_up_commit_nothing() {
    for rotten in [2, 4] {
        let world = FaultWorld::new();
        let pool = pool_of(world.target(), world.log());
        let program = Program::start(&pool, "job");
        // Its session is record 1, its checkpoints are 2 to 5.
        for seed in 1..=4 {
            program.save(&state(seed)).unwrap();
        }
        let job = JobName::new("job").unwrap();
        world.corrupt_record(&job, rotten, 90, 4);
        let (quiet, is_done) = (pool_of(world.target(), world.log()), AtomicBool::new(false));
        let stepped = Steps::default();
        let logged = Arc::new(SteppedLog(world.log(), stepped.clone()));
        drop(program);
        let program = Program::start(&pool_of(world.target(), logged), "job");
        program.restore(Select::Newest).unwrap().unwrap();
        program.save(&state(5)).unwrap();
        stepped.hook(move |_, op| {
            if op == "append" && !is_done.swap(true, Ordering::AcqRel) {
                collect(&quiet, &GcOptions { forget_damaged: true, ..thorough() }).unwrap();
            }
        });
        let epoch = program.save(&state(6)).unwrap().epoch;
        let fresh = pool_of(world.target(), world.log());
        let restored = Program::start(&fresh, "job").restore(Select::Epoch(epoch)).unwrap();
        assert_eq!(restored.unwrap().1, state(6), "record {rotten}: what was told is there");
    }
}

/// A log in which one append takes effect without a reply; from then on, the log is away.
#[derive(Debug, Default)]
struct Cut {
    log: MemoryLog,
    loses: AtomicBool,
    away: AtomicBool,
}

impl Cut {
    fn there(&self) -> Result<&MemoryLog> {
        match self.away.load(Ordering::Acquire) {
            true => Err(Error::retry("the log is away")),
            false => Ok(&self.log),
        }
    }
}

impl ManifestLog for Cut {
    fn describe(&self) -> String {
        self.log.describe()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.there()?.jobs()
    }

    fn numbers(&self, job: &JobName) -> Result<Vec<u64>> {
        self.there()?.numbers(job)
    }

    fn read(&self, job: &JobName, number: u64) -> Result<Vec<u8>> {
        self.there()?.read(job, number)
    }

    fn append_if(&self, job: &JobName, previous: Previous, record: &[u8]) -> Result<Append> {
        let appended = self.there()?.append_if(job, previous, record)?;
        if self.loses.swap(false, Ordering::AcqRel) {
            self.away.store(true, Ordering::Release);
        }
        self.there().map(|_| appended)
    }

    fn remove_before(&self, job: &JobName, number: u64) -> Result<()> {
        self.there()?.remove_before(job, number)
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.there()?.sync(job)
    }
}

impl LogLocks for Cut {}

/// The program prunes behind a commit and does not know whether it succeeded.
#[test]
fn a_session_that_could_not_be_ended_is_no_rival_of_the_next() {
    let cut = Arc::new(Cut::default());
    let pool = pool_of(Arc::new(MemoryTarget::new()), cut.clone());
    let program = Program::start(&pool, "job");
    program.save(&state(1)).unwrap();
    cut.loses.store(true, Ordering::Release);
    assert_eq!(program.save(&state(2)).unwrap_err().kind(), ErrorKind::Retry);
    assert_eq!(program.job.end_session().unwrap_err().kind(), ErrorKind::Retry);
    cut.away.store(false, Ordering::Release);
    assert_eq!(program.save(&state(3)).unwrap().epoch, 3);
    assert_eq!(epochs(&pool), [1, 2, 3]);
    assert!(program.job.end_session().unwrap());
    // Another writer that has followed is a rival.
    Program::start(&pool, "job").save(&state(4)).unwrap();
    assert_eq!(program.save(&state(5)).unwrap_err().kind(), ErrorKind::Fenced);
}

/// A writer that another one has followed no longer applies its rules: neither at its next save nor
/// at its close.
#[test]
fn the_rules_of_a_writer_that_was_overtaken_drop_nothing() {
    let pool = memory_pool();
    let ours = Program::start(&pool, "job");
    ours.job.keep(Rules { last: Some(2), ..Rules::default() }).unwrap();
    (1..=3).for_each(|seed| drop(ours.save(&state(seed)).unwrap()));
    let theirs = Program::start(&pool, "job");
    theirs.restore(Select::Newest).unwrap();
    (4..=9).for_each(|seed| drop(theirs.save(&state(seed)).unwrap()));
    assert_eq!(ours.save(&state(10)).unwrap_err().kind(), ErrorKind::Fenced);
    ours.job.close().unwrap();
    drop(ours);
    assert_eq!(epochs(&pool)[epochs(&pool).len() - 6..], [4, 5, 6, 7, 8, 9]);
    theirs.job.keep(Rules { last: Some(2), ..Rules::default() }).unwrap();
    theirs.save(&state(10)).unwrap();
    theirs.job.close().unwrap();
    assert_eq!(epochs(&pool), [9, 10]);
}

/// Another program saves while this one restores: the restored data is old by then, so the next
/// save must not follow it.
#[test]
fn saves_of_others_during_a_restore_are_noticed() {
    let pool = memory_pool();
    let (ours, theirs) = (Program::start(&pool, "job"), Program::start(&pool, "job"));
    theirs.save(&state(1)).unwrap();
    let restored = ours.job.restore_alone(Select::Newest, &mut |manifest, _| {
        theirs.save(&state(2)).unwrap();
        Ok(manifest.epoch)
    });
    assert_eq!(restored.unwrap().unwrap().0, 1);
    let error = ours.save(&state(3)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert_eq!(epochs(&pool), [1, 2]);
}
