//! Sessions of programs on other hosts: leases show whether the programs run. A gc ends the session
//! once its lease has ended.

use crate::common;

use common::{Program, State, changed, noise, small_config};
use outlive_backend::MemoryTarget;
use outlive_format::{Body, Close, Record, fingerprint};
use outlive_log::{Append, Lease, Lock, LockGuard, LogLocks, ManifestLog, MemoryLog, Previous};
use outlive_pool::{Environment, Pool, ProcessMark};
use outlive_store::Select;
use outlive_store::gc::{GcOptions, GcReport, UsageOf, collect, usage};
use outlive_types::{Epoch, Error, ErrorKind, JobName, Result};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A log whose leases end at a test's command.
#[derive(Debug, Default)]
struct Leased {
    inner: MemoryLog,
    has_ended: AtomicBool,
    /// Whether the state of leases cannot be read.
    is_silent: AtomicBool,
    /// Number of leases that are held.
    held: Arc<AtomicUsize>,
    /// Whether the reply to the next Close gets lost.
    loses_close: AtomicBool,
    /// Whether the writer stops after the append of its next session, and a gc ends that meanwhile.
    ends_session: AtomicBool,
    /// Whether the reply to the next session gets lost, unless the gc ends that session.
    loses_session: AtomicBool,
}

struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ManifestLog for Leased {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        self.inner.jobs()
    }

    fn numbers(&self, job: &JobName) -> Result<Vec<u64>> {
        self.inner.numbers(job)
    }

    fn read(&self, job: &JobName, number: u64) -> Result<Vec<u8>> {
        self.inner.read(job, number)
    }

    fn append_if(&self, job: &JobName, previous: Previous, record: &[u8]) -> Result<Append> {
        let appended = self.inner.append_if(job, previous, record)?;
        let decoded = Record::decode(record)?;
        if let Body::Session(session) = &decoded.body
            && !job.is_gc()
            && self.ends_session.swap(false, Ordering::SeqCst)
        {
            let number = decoded.number + 1;
            let (previous, body) =
                (fingerprint(record), Body::Close(Close { session: session.session }));
            let close = Record { number, previous, body }.encode()?;
            self.inner.append_if(job, Previous::of(decoded.number, record), &close)?;
            return Ok(Append::Lost);
        }
        let is_session = matches!(decoded.body, Body::Session(_));
        if is_session && !job.is_gc() && self.loses_session.swap(false, Ordering::SeqCst) {
            return Err(Error::retry("the reply was lost"));
        }
        let is_close = matches!(decoded.body, Body::Close(_));
        if is_close && !job.is_gc() && self.loses_close.swap(false, Ordering::SeqCst) {
            return Err(Error::retry("the reply was lost"));
        }
        Ok(appended)
    }

    fn remove_before(&self, job: &JobName, number: u64) -> Result<()> {
        self.inner.remove_before(job, number)
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.inner.sync(job)
    }
}

impl LogLocks for Leased {
    fn lock_collecting(&self) -> Result<Lock> {
        self.inner.lock_collecting()
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        self.inner.lock_reading()
    }

    fn is_read(&self) -> Result<bool> {
        self.inner.is_read()
    }

    fn lease(&self) -> Result<Option<Lease>> {
        self.held.fetch_add(1, Ordering::SeqCst);
        let guard = LockGuard::new(Held(self.held.clone()));
        Ok(Some(Lease { token: "the lease".to_owned(), guard }))
    }

    fn has_lease_ended(&self, token: &str) -> Result<Option<bool>> {
        assert_eq!(token, "the lease");
        match self.is_silent.load(Ordering::SeqCst) {
            true => Err(Error::retry("it does not answer")),
            false => Ok(Some(self.has_ended.load(Ordering::SeqCst))),
        }
    }
}

fn elsewhere() -> ProcessMark {
    ProcessMark { system: "another".to_owned(), ..ProcessMark::of_this() }
}

struct World {
    log: Arc<Leased>,
    /// The pool, opened by a program on another host.
    theirs: Pool,
    /// The pool, opened by an administrator.
    ours: Pool,
}

impl World {
    fn new(process: fn() -> ProcessMark) -> World {
        let (log, target) = (Arc::new(Leased::default()), Arc::new(MemoryTarget::new()));
        let pool = |process| {
            let env = Environment { process, ..Environment::system() };
            Pool::new(small_config(), target.clone(), log.clone(), env)
        };
        World { theirs: pool(process), ours: pool(ProcessMark::of_this), log }
    }

    /// Returns a program that has saved twice, so that the whole first checkpoint is garbage once
    /// it is dropped.
    fn saved_twice(&self) -> Program {
        let program = Program::start(&self.theirs, "job");
        program.save(&state(1)).unwrap();
        program.save(&state(2)).unwrap();
        program
    }

    fn gc(&self, drop: &[Epoch]) -> GcReport {
        collect(&self.ours, &options(drop)).unwrap()
    }

    fn bodies(&self) -> Vec<Body> {
        let job = JobName::new("job").unwrap();
        let numbers = self.log.numbers(&job).unwrap().into_iter();
        let read = |number| self.log.read(&job, number).unwrap();
        numbers.map(|number| Record::decode(&read(number)).unwrap().body).collect()
    }
}

fn options(drop: &[Epoch]) -> GcOptions {
    let job = JobName::new("job").unwrap();
    let drop: BTreeSet<Epoch> = drop.iter().copied().collect();
    GcOptions { drop: [(job, drop)].into(), ..GcOptions::default() }
}

fn state(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 200_000))])
}

fn closes(bodies: &[Body]) -> usize {
    bodies.iter().filter(|body| matches!(body, Body::Close(_))).count()
}

#[test]
fn a_program_on_another_host_holds_space_as_long_as_its_lease() {
    let world = World::new(elsewhere);
    let program = world.saved_twice();
    let held = world.gc(&[1]);
    assert!(held.deleted == 0 && held.held > 0, "{held:?}");
    // A lease whose state cannot be read has not ended.
    world.log.has_ended.store(true, Ordering::SeqCst);
    world.log.is_silent.store(true, Ordering::SeqCst);
    let held = world.gc(&[]);
    assert!(held.deleted == 0 && held.held > 0, "{held:?}");
    world.log.is_silent.store(false, Ordering::SeqCst);
    let freed = world.gc(&[]);
    assert!(freed.deleted > 0 && freed.held == 0, "{freed:?}");
    drop(program);
}

/// The program was only held up, or cut off: it must not commit data that a gc took for garbage.
#[test]
fn a_program_whose_session_a_gc_has_ended_is_fenced() {
    // With a record of its own, and behind an archive, which has replaced that record.
    for drop in [vec![], vec![1]] {
        let world = World::new(elsewhere);
        let program = world.saved_twice();
        world.log.has_ended.store(true, Ordering::SeqCst);
        world.gc(&drop);
        assert_eq!(closes(&world.bodies()), usize::from(drop.is_empty()), "{:?}", world.bodies());
        for seed in 3..5 {
            let error = program.save(&state(seed)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
            assert!(error.message().contains("ended the session of job job"), "{error}");
        }
        world.log.has_ended.store(false, Ordering::SeqCst);
        let again = Program::start(&world.theirs, "job");
        let (epoch, restored) = again.restore(Select::Newest).unwrap().unwrap();
        assert_eq!((epoch, restored), (2, state(2)));
        again.save(&state(3)).unwrap();
        assert!(world.gc(&[]).held == 0);
        again.save(&changed(state(3), 0, 9)).unwrap();
    }
}

/// It was started again, and has restored but not saved yet, when a gc ends its predecessor's
/// session.
#[test]
fn a_program_that_was_started_again_goes_on() {
    let world = World::new(elsewhere);
    let _dead = world.saved_twice();
    let again = Program::start(&world.theirs, "job");
    again.restore(Select::Newest).unwrap().unwrap();
    world.log.has_ended.store(true, Ordering::SeqCst);
    world.gc(&[1]);
    again.save(&state(3)).unwrap();
}

/// A gc deletes the packs of a session that has ended, so a writer must not go on in it (found by
/// the explorer, copy:100622).
#[test]
fn a_session_that_was_ended_while_it_was_opened_is_not_used() {
    let world = World::new(elsewhere);
    let program = Program::start(&world.theirs, "job");
    world.log.ends_session.store(true, Ordering::SeqCst);
    program.save(&state(1)).unwrap();
    let bodies = world.bodies();
    let [Body::Session(first), Body::Close(_), Body::Session(second), Body::Manifest(saved)] =
        &bodies[..]
    else {
        panic!("{bodies:?}");
    };
    assert_ne!(first.session, second.session);
    assert_eq!(saved.session, second.session);
    program.save(&state(2)).unwrap();
}

/// When the second session is closed, its writer cannot know whether it is in the log.
#[test]
fn a_writer_is_not_fenced_by_a_session_of_its_own_of_which_it_was_not_told() {
    let world = World::new(elsewhere);
    let program = Program::start(&world.theirs, "job");
    world.log.ends_session.store(true, Ordering::SeqCst);
    world.log.loses_session.store(true, Ordering::SeqCst);
    assert_eq!(program.save(&state(1)).unwrap_err().kind(), ErrorKind::Retry);
    let is_session = |body: &&Body| matches!(body, Body::Session(_));
    assert_eq!(world.bodies().iter().filter(is_session).count(), 2, "both are in the log");
    let _ = program.job.close();
    program.save(&state(1)).unwrap();
    program.save(&state(2)).unwrap();
}

#[test]
fn a_dry_run_and_du_take_the_session_for_ended_and_leave_the_log() {
    let world = World::new(elsewhere);
    let program = world.saved_twice();
    world.gc(&[1]);
    let before = world.bodies().len();
    let held = |report: &GcReport| report.plan.held_bytes;
    let dry = || collect(&world.ours, &GcOptions { dry_run: true, ..options(&[]) }).unwrap();
    let du = || usage(&world.ours, &UsageOf::Jobs).unwrap().plan.held_bytes;
    assert!(held(&dry()) > 0 && du() == held(&dry()));
    world.log.has_ended.store(true, Ordering::SeqCst);
    assert_eq!((held(&dry()), du()), (0, 0));
    assert_eq!(world.bodies().len(), before);
    world.log.has_ended.store(false, Ordering::SeqCst);
    program.save(&state(3)).unwrap();
}

/// A gc knows more about a process of its own host than a lease says.
#[test]
fn a_process_of_this_host_is_looked_at_itself() {
    let world = World::new(ProcessMark::of_this);
    let program = world.saved_twice();
    world.log.has_ended.store(true, Ordering::SeqCst);
    let held = world.gc(&[1]);
    assert!(held.deleted == 0 && held.held > 0, "{held:?}");
    program.save(&state(3)).unwrap();
}

/// The newest checkpoint of a program that is gone may be dropped, too.
#[test]
fn the_newest_checkpoint_can_be_dropped_once_the_lease_has_ended() {
    let world = World::new(elsewhere);
    let _program = world.saved_twice();
    let refused = collect(&world.ours, &options(&[2])).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    world.log.has_ended.store(true, Ordering::SeqCst);
    world.gc(&[2]);
}

#[test]
fn a_closed_job_holds_no_lease() {
    let world = World::new(elsewhere);
    for seed in 1..4 {
        let program = Program::start(&world.theirs, "job");
        program.restore(Select::Newest).unwrap();
        assert_eq!(world.log.held.load(Ordering::SeqCst), 0, "before it saves");
        program.save(&state(seed)).unwrap();
        assert_eq!(world.log.held.load(Ordering::SeqCst), 1);
        program.job.close().unwrap();
        assert_eq!(world.log.held.load(Ordering::SeqCst), 0);
    }
}

/// A writer that cannot know whether its Close is in the log finds it there, and is not fenced by
/// it.
#[test]
fn a_close_whose_reply_was_lost_fences_no_writer() {
    let world = World::new(elsewhere);
    let program = world.saved_twice();
    world.log.loses_close.store(true, Ordering::SeqCst);
    let _ = program.job.close();
    let _ = program.job.close();
    let again = Program::start(&world.theirs, "job");
    again.restore(Select::Newest).unwrap();
    again.save(&state(3)).unwrap();
    program.restore(Select::Newest).unwrap();
    program.save(&state(4)).unwrap();
}
