//! The gate over a real pool: each output leaves once, in the order of its sink, and only after the
//! commit that covers it.

use outlive_capture::OwnedSource;
use outlive_gate::{Answer, Confirmations, FileMode, Gate, GateOptions, OutputKey, Sink};
use outlive_pool::{Environment, FormatConfig, Pool, PoolConfig, Tuning, create};
use outlive_store::{Job, JobOptions, MemoryImage, SaveHandle};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Epoch, ErrorKind, FreezeRequest, Frozen, JobName, PageSource, Rank, Result};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A record of releases that outlives a run.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Option<Vec<u8>>>>, Arc<AtomicUsize>);

impl Confirmations for Notes {
    fn load(&self, _: Rank) -> Result<Option<Vec<u8>>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Ok(self.0.lock().clone())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        *self.0.lock() = Some(bytes.to_vec());
        Ok(())
    }
}

/// A receiver, with the answers that it gives first.
#[derive(Clone, Default)]
struct Receiver {
    got: Arc<Mutex<Vec<String>>>,
    answers: Arc<Mutex<VecDeque<Answer>>>,
    aborted: Arc<Mutex<Vec<Vec<u8>>>>,
    recovered: Arc<Mutex<Vec<usize>>>,
}

impl Receiver {
    fn got(&self) -> Vec<String> {
        self.got.lock().clone()
    }
}

impl Sink for Receiver {
    fn recover(&self, tokens: &[&[u8]]) -> Result<()> {
        self.recovered.lock().push(tokens.len());
        Ok(())
    }

    fn release(&self, key: &OutputKey, token: &[u8]) -> Answer {
        let answer = self.answers.lock().pop_front().unwrap_or(Answer::Released);
        if answer == Answer::Released {
            self.got.lock().push(format!("{key} {}", String::from_utf8_lossy(token)));
        }
        answer
    }

    fn abort(&self, token: &[u8]) {
        self.aborted.lock().push(token.to_vec());
    }
}

/// A run of a program: its job, its gate, and one word of state.
struct Run {
    job: Job,
    gate: Gate,
    source: OwnedSource,
    told: Arc<Mutex<Vec<String>>>,
}

struct World {
    dir: tempfile::TempDir,
    notes: Notes,
    /// Number of runs: names of staged files differ between them.
    runs: AtomicU64,
}

impl World {
    fn new() -> World {
        World {
            dir: tempfile::tempdir().unwrap(),
            notes: Notes::default(),
            runs: AtomicU64::new(1),
        }
    }

    fn pool(&self) -> Pool {
        let path = self.dir.path().join("pool");
        let config = PoolConfig::new(FormatConfig::new([3; 16]), Tuning::default());
        match path.exists() {
            true => outlive_pool::open(&path, Environment::system()).unwrap(),
            false => create(&path, config, Environment::system()).unwrap(),
        }
    }

    /// Starts the program, with its gate open.
    fn run(&self) -> Run {
        let run = self.start();
        run.gate.open(u64::MAX, self.runs.fetch_add(1, Ordering::Relaxed) << 32);
        run
    }

    fn start(&self) -> Run {
        let job = Job::open(&self.pool(), "job", JobOptions::default()).unwrap();
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let tell = told.clone();
        let gate = Gate::new(GateOptions {
            pool: 0x11,
            job: JobName::new("job").unwrap(),
            rank: None,
            confirmations: Some(Box::new(self.notes.clone())),
            tell: Box::new(move |text| tell.lock().push(text)),
            check_writer: {
                let weak = job.downgrade();
                Box::new(move || weak.begin_session())
            },
        });
        Run { job, gate, source: OwnedSource::zeroed("state", 1 << 16, 1), told }
    }

    /// Starts it again from checkpoint `epoch`.
    fn resume(&self, epoch: Epoch) -> Run {
        let run = self.run();
        run.restore(epoch);
        run.job.note_restored(epoch);
        run.job.begin_session().unwrap();
        run.gate.may_release();
        run
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }
}

impl Run {
    /// Lets the gate continue from a checkpoint.
    fn restore(&self, epoch: Epoch) {
        let (pool, name) = (self.job.pool(), self.job.name());
        let found = self.job.epochs().unwrap();
        let found = found.into_iter().find(|it| it.manifest.epoch == epoch).unwrap();
        let image = MemoryImage::open(pool, name, found.manifest).unwrap();
        self.gate.restored(epoch, &[(0, image.outputs().to_vec())]).unwrap();
    }

    fn begin_save(&mut self) -> Result<SaveHandle> {
        let Run { job, gate, source, .. } = self;
        gate.cover(|outputs| {
            source.set_outputs(outputs);
            job.save(source)
        })
    }

    fn save(&mut self) -> Epoch {
        let handle = self.begin_save().unwrap();
        handle.wait(None).unwrap().unwrap().epoch
    }

    /// Opens a file, and gives it a first line in this run.
    fn first_line(&self, path: &Path, mode: FileMode, line: &[u8]) -> String {
        let file = self.gate.open_file(path, mode).unwrap();
        self.gate.write_file(&file, line).unwrap();
        file
    }

    /// Saves, and releases what that covers.
    fn commit(&mut self) -> Epoch {
        let epoch = self.save();
        self.pass();
        epoch
    }

    fn pass(&self) {
        self.gate.pass(Instant::now());
    }

    fn open(&self, name: &str) -> Receiver {
        let receiver = Receiver::default();
        self.gate.open_sink(name, Arc::new(receiver.clone())).unwrap();
        receiver
    }

    fn give(&self, sink: &str, text: &str) {
        self.gate.give(sink, text.as_bytes().to_vec()).unwrap();
    }
}

/// A program's memory; something happens before it is frozen.
struct Interrupted<'a> {
    source: &'a mut OwnedSource,
    happens: &'a mut dyn FnMut(),
}

impl PageSource for Interrupted<'_> {
    fn freeze(&mut self, request: &FreezeRequest) -> Result<Box<dyn Frozen>> {
        (self.happens)();
        self.source.freeze(request)
    }
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn nothing_leaves_before_the_commit_that_covers_it() {
    let world = World::new();
    let mut run = world.run();
    let a = run.open("a");
    run.give("a", "1");
    run.pass();
    assert_eq!(a.got(), [""; 0]);
    run.save();
    run.give("a", "2");
    run.pass();
    assert_eq!(a.got(), ["00000011:job@1/0 1"]);
    assert_eq!((run.gate.report().outputs, run.gate.report().uncovered), (1, 1));
    run.commit();
    run.pass();
    assert_eq!(a.got(), ["00000011:job@1/0 1", "00000011:job@2/1 2"]);
    assert_eq!(run.gate.report().outputs, 0);
}

/// A crash between the commit and the release, and one between the release and the next checkpoint.
#[test]
fn a_restart_releases_what_its_checkpoint_lists_with_the_same_keys() {
    let world = World::new();
    let mut run = world.run();
    run.open("a");
    ["1", "2"].iter().for_each(|text| run.give("a", text));
    let epoch = run.save();
    run.give("a", "lost");
    drop(run);
    let run = world.resume(epoch);
    let a = run.open("a");
    run.pass();
    assert_eq!(a.got(), ["00000011:job@1/0 1", "00000011:job@1/1 2"]);
    drop(run);
    // The record of releases was lost: they are released once more, with the same keys.
    world.notes.0.lock().take();
    let run = world.resume(epoch);
    let a = run.open("a");
    run.pass();
    assert_eq!(a.got(), ["00000011:job@1/0 1", "00000011:job@1/1 2"]);
    drop(run);
    let run = world.resume(epoch);
    let a = run.open("a");
    run.pass();
    assert_eq!(a.got(), [""; 0]);
}

#[test]
fn a_restored_program_releases_nothing_before_it_is_the_one_writer() {
    let world = World::new();
    let mut run = world.run();
    run.open("a");
    run.give("a", "1");
    let epoch = run.save();
    drop(run);
    let run = world.run();
    run.restore(epoch);
    let a = run.open("a");
    assert!(run.gate.waits_for_session());
    run.pass();
    assert_eq!((a.got().len(), run.gate.wait(Duration::ZERO)), (0, true));
    run.gate.may_release();
    run.pass();
    assert_eq!(a.got(), ["00000011:job@1/0 1"]);
}

/// The program passes from checkpoint 1 to 3, and falls back.
#[test]
fn what_a_rollback_repeats_has_other_keys() {
    let world = World::new();
    let mut run = world.run();
    run.open("a");
    for text in ["1", "2", "3"] {
        run.give("a", text);
        run.save();
    }
    run.pass();
    drop(run);
    let mut run = world.resume(1);
    let a = run.open("a");
    run.pass();
    assert_eq!(a.got(), [""; 0]);
    run.give("a", "other 2");
    assert_eq!(run.save(), 4);
    run.pass();
    assert_eq!(a.got(), ["00000011:job@4/1 other 2"]);
}

#[test]
fn an_output_that_cannot_leave_stays_in_every_checkpoint() {
    let world = World::new();
    let mut run = world.run();
    let a = run.open("a");
    a.answers.lock().extend([Answer::Later("away".into()), Answer::Later("away".into())]);
    run.give("a", "1");
    run.commit();
    run.give("a", "2");
    let epoch = run.save();
    assert_eq!(a.got(), [""; 0]);
    assert_eq!(run.told.lock().len(), 1);
    drop(run);
    let mut run = world.resume(epoch);
    let a = run.open("a");
    a.answers.lock().push_back(Answer::Failed("never".into()));
    run.pass();
    let report = run.gate.report();
    assert!(report.sinks[0].is_stopped && report.outputs == 2, "{report:?}");
    // It holds up no other sink, and a wait for it ends.
    let b = run.open("b");
    run.give("b", "3");
    let epoch = run.commit();
    assert_eq!(b.got(), ["00000011:job@3/2 3"]);
    assert!(run.gate.wait(Duration::ZERO));
    drop(run);
    let run = world.resume(epoch);
    let a = run.open("a");
    run.pass();
    assert_eq!(a.got(), ["00000011:job@1/0 1", "00000011:job@2/1 2"]);
}

#[test]
fn a_pause_before_the_next_attempt_grows_and_ends() {
    let world = World::new();
    let mut run = world.run();
    let a = run.open("a");
    a.answers.lock().extend(vec![Answer::Later("away".into()); 2]);
    run.give("a", "1");
    run.give("a", "2");
    run.save();
    let now = Instant::now();
    run.gate.pass(now);
    run.gate.pass(now + Duration::from_millis(49));
    assert_eq!(a.answers.lock().len(), 1);
    run.gate.pass(now + Duration::from_millis(50));
    run.gate.pass(now + Duration::from_millis(149));
    assert_eq!((a.answers.lock().len(), a.got().len()), (0, 0));
    run.gate.pass(now + Duration::from_millis(150));
    assert_eq!(a.got(), ["00000011:job@1/0 1", "00000011:job@1/1 2"]);
}

#[test]
fn a_save_that_fails_at_its_beginning_covers_nothing() {
    let world = World::new();
    let mut run = world.run();
    let a = run.open("a");
    run.give("a", "1");
    let failed = run.gate.cover(|_| Err(outlive_types::Error::full("no room")));
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Full);
    run.pass();
    assert_eq!((a.got().len(), run.gate.report().uncovered), (0, 1));
    run.commit();
    assert_eq!(a.got(), ["00000011:job@1/0 1"]);
}

/// Another process takes over after the save has begun, and before its commit.
#[test]
fn a_save_that_fails_at_its_end_releases_nothing() {
    let world = World::new();
    let mut old = world.run();
    let a = old.open("a");
    let epoch = old.save();
    old.give("a", "1");
    let Run { job, gate, source, .. } = &mut old;
    let handle = gate.cover(|outputs| {
        source.set_outputs(outputs);
        let mut happens = || drop(world.resume(epoch));
        job.save(&mut Interrupted { source, happens: &mut happens })
    });
    let outcome = handle.unwrap().wait(None).unwrap();
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Fenced);
    old.pass();
    assert_eq!((a.got().len(), old.gate.report().uncovered), (0, 1));
}

/// Another thread gives an output after the save has its list.
#[test]
fn an_output_that_comes_while_a_save_begins_waits_for_the_next_one() {
    let world = World::new();
    let mut run = world.run();
    let a = run.open("a");
    let Run { job, gate, source, .. } = &mut run;
    let handle = gate.cover(|outputs| {
        gate.give("a", b"late".to_vec())?;
        source.set_outputs(outputs);
        job.save(source)
    });
    handle.unwrap().wait(None).unwrap().unwrap();
    run.pass();
    assert_eq!((a.got().len(), run.gate.report().uncovered), (0, 1));
    run.commit();
    assert_eq!(a.got(), ["00000011:job@2/0 late"]);
}

/// A program that another one has fenced can commit nothing.
#[test]
fn a_fenced_program_releases_nothing() {
    let world = World::new();
    let mut old = world.run();
    let a = old.open("a");
    let epoch = old.save();
    let mut new = world.resume(epoch);
    new.save();
    old.give("a", "zombie");
    let refused = old.begin_save().and_then(|handle| handle.wait(None).unwrap());
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Fenced);
    old.pass();
    assert_eq!(a.got(), [""; 0]);
    assert!(old.gate.wait(Duration::ZERO), "nothing more will be released");
}

#[test]
fn a_rollback_in_a_process_gives_up_what_came_after_and_cuts_files() {
    let world = World::new();
    let path = world.path("lines");
    let mut run = world.run();
    let a = run.open("a");
    let file = run.gate.open_file(&path, FileMode::Append).unwrap();
    for line in ["one\n", "two\n"] {
        run.gate.write_file(&file, line.as_bytes()).unwrap();
        run.commit();
    }
    run.gate.write_file(&file, b"given up\n").unwrap();
    run.give("a", "given up");
    assert_eq!(text(&path), "one\ntwo\n");
    run.restore(1);
    run.pass();
    // Checkpoint 2 is still the newest: a crash now would continue from there.
    assert_eq!(text(&path), "one\ntwo\n");
    assert_eq!(
        (a.aborted.lock().clone(), run.gate.report().outputs),
        (vec![b"given up".to_vec()], 0)
    );
    run.gate.write_file(&file, b"2\n").unwrap();
    run.save();
    run.gate.may_release();
    run.pass();
    assert_eq!(text(&path), "one\n2\n");
    assert_eq!(run.gate.file_position(&file).unwrap(), 6);
}

#[test]
fn a_file_that_another_program_writes_stops_its_sink_only() {
    let world = World::new();
    let (path, other) = (world.path("lines"), world.path("other"));
    let mut run = world.run();
    let file = run.gate.open_file(&path, FileMode::Append).unwrap();
    let second = run.gate.open_file(&other, FileMode::Append).unwrap();
    for name in [&file, &second] {
        run.gate.write_file(name, b"one\n").unwrap();
    }
    run.commit();
    std::fs::write(&path, "one\nfrom elsewhere\n").unwrap();
    for name in [&file, &second] {
        run.gate.write_file(name, b"two\n").unwrap();
    }
    run.commit();
    assert_eq!((text(&path), text(&other)), ("one\nfrom elsewhere\n".into(), "one\ntwo\n".into()));
    let trouble = run.gate.report().sinks[0].trouble.clone().unwrap();
    assert!(trouble.contains("another program writes it"), "{trouble}");
}

#[test]
fn a_close_waits_for_releases_and_ends_the_thread() {
    let world = World::new();
    let mut run = world.run();
    let a = run.open("a");
    run.gate.start().unwrap();
    run.give("a", "1");
    let handle = run.begin_save().unwrap();
    let report = run.gate.close(Duration::from_secs(600));
    assert!(handle.done() && report.outputs == 0, "{report:?}");
    assert_eq!(a.got(), ["00000011:job@1/0 1"]);
    assert_eq!(Arc::strong_count(&a.got), 1, "the sink is gone");
    assert_eq!(run.gate.give("a", vec![]).unwrap_err().kind(), ErrorKind::Invalid);
    // The program goes on, and opens it again.
    run.gate.open(u64::MAX, 1);
    let a = run.open("a");
    run.give("a", "2");
    run.commit();
    assert_eq!(a.got(), ["00000011:job@2/1 2"]);
}

#[test]
fn a_sink_that_panics_stops() {
    struct Panics;
    impl Sink for Panics {
        fn release(&self, _: &OutputKey, _: &[u8]) -> Answer {
            panic!("no such row");
        }
    }
    let world = World::new();
    let mut run = world.run();
    run.gate.open_sink("a", Arc::new(Panics)).unwrap();
    run.give("a", "1");
    run.commit();
    assert!(run.gate.report().sinks[0].is_stopped);
}

/// A sink drops what no checkpoint lists. A crash before the next commit could need it.
#[test]
fn a_sink_learns_which_tokens_count_after_a_commit() {
    let world = World::new();
    let mut run = world.run();
    run.open("a");
    run.give("a", "1");
    run.save();
    run.give("a", "2");
    run.save();
    drop(run);
    let mut run = world.run();
    let a = run.open("a");
    run.restore(1);
    run.gate.may_release();
    a.answers.lock().push_back(Answer::Failed("never".into()));
    run.commit();
    assert_eq!(a.recovered.lock().len(), 0);
    run.give("a", "3");
    run.save();
    assert_eq!(*a.recovered.lock(), [2]);
    run.save();
    assert_eq!(*a.recovered.lock(), [2], "once in a run");
    // A sink that is opened later learns of its own.
    let b = run.open("b");
    run.save();
    assert_eq!(*b.recovered.lock(), [0]);
}

/// A restore in the middle of a release, and an output that gets the same number.
#[test]
fn an_answer_from_before_a_restore_counts_for_no_other_output() {
    struct Restores(Mutex<Option<(Gate, Vec<u8>)>>, Receiver);
    impl Sink for Restores {
        fn release(&self, key: &OutputKey, token: &[u8]) -> Answer {
            if let Some((gate, list)) = self.0.lock().take() {
                gate.restored(1, &[(0, list)]).unwrap();
                gate.give("a", b"new".to_vec()).unwrap();
            }
            self.1.release(key, token)
        }
    }
    let world = World::new();
    let mut run = world.run();
    let a = Receiver::default();
    let sink = Arc::new(Restores(Mutex::default(), a.clone()));
    run.gate.open_sink("a", sink.clone()).unwrap();
    run.save();
    run.give("a", "old");
    run.save();
    *sink.0.lock() = Some((run.gate.clone(), Vec::new()));
    run.pass();
    assert_eq!(a.got(), ["00000011:job@2/0 old"]);
    run.commit();
    assert_eq!(a.got()[1..], ["00000011:job@3/0 new"]);
}

/// Each release is in the record before the next one begins.
#[test]
fn a_kill_repeats_the_release_in_its_moment_only() {
    struct Dies(Receiver, Notes, Mutex<Option<Vec<u8>>>);
    impl Sink for Dies {
        fn release(&self, key: &OutputKey, token: &[u8]) -> Answer {
            if token == b"3" {
                *self.2.lock() = self.1.0.lock().clone();
            }
            self.0.release(key, token)
        }
    }
    let world = World::new();
    let mut run = world.run();
    let sink = Arc::new(Dies(Receiver::default(), world.notes.clone(), Mutex::default()));
    run.gate.open_sink("a", sink.clone()).unwrap();
    ["1", "2", "3"].iter().for_each(|text| run.give("a", text));
    let epoch = run.commit();
    drop(run);
    // The record as it was when the third release began.
    *world.notes.0.lock() = sink.2.lock().take();
    let run = world.resume(epoch);
    let a = run.open("a");
    run.pass();
    assert_eq!(a.got(), ["00000011:job@1/2 3"]);
}

#[test]
fn a_program_that_was_fenced_tries_nothing_again() {
    let world = World::new();
    let mut old = world.run();
    let a = old.open("a");
    a.answers.lock().push_back(Answer::Later("away".into()));
    old.give("a", "1");
    let epoch = old.save();
    let now = Instant::now();
    old.gate.pass(now);
    let mut new = world.resume(epoch);
    let there = new.open("a");
    new.commit();
    old.gate.pass(now + Duration::from_secs(60));
    assert_eq!((a.got().len(), there.got().len()), (0, 1));
    assert!(old.gate.wait(Duration::ZERO), "nothing more will be released");
}

#[test]
fn bytes_of_others_behind_the_released_ones_are_not_cut() {
    let world = World::new();
    let path = world.path("lines");
    let mut run = world.run();
    run.first_line(&path, FileMode::Append, b"one\n");
    let epoch = run.commit();
    drop(run);
    std::fs::write(&path, "one\nof a person\n").unwrap();
    let mut run = world.resume(epoch);
    run.gate.open_file(&path, FileMode::Append).unwrap();
    run.commit();
    assert_eq!(text(&path), "one\nof a person\n");
    assert!(run.gate.report().sinks[0].is_stopped);
}

/// The checkpoint knows nothing of the file, the record does.
#[test]
fn a_file_that_was_opened_after_the_restored_checkpoint_is_cut_to_its_beginning() {
    let world = World::new();
    let path = world.path("lines");
    std::fs::write(&path, "before\n").unwrap();
    let mut run = world.run();
    run.save();
    run.first_line(&path, FileMode::Append, b"one\n");
    run.commit();
    assert_eq!(text(&path), "before\none\n");
    drop(run);
    let mut run = world.resume(1);
    run.first_line(&path, FileMode::Append, b"1\n");
    run.commit();
    assert_eq!(text(&path), "before\n1\n");
}

#[test]
fn a_truncating_file_opened_before_the_restore_goes_on() {
    let world = World::new();
    let path = world.path("lines");
    let mut run = world.run();
    run.first_line(&path, FileMode::Truncate, b"one\n");
    let epoch = run.commit();
    drop(run);
    let mut run = world.run();
    let file = run.gate.open_file(&path, FileMode::Truncate).unwrap();
    assert!(!run.gate.is_used());
    run.restore(epoch);
    run.gate.write_file(&file, b"two\n").unwrap();
    run.commit();
    assert_eq!(text(&path), "one\ntwo\n");
}

#[test]
fn a_restore_of_a_program_without_a_gate_reads_no_record() {
    let world = World::new();
    let mut run = world.start();
    let epoch = run.save();
    run.restore(epoch);
    assert_eq!(world.notes.1.load(Ordering::Relaxed), 0);
    run.gate.open(u64::MAX, 1);
    run.restore(epoch);
    assert_eq!(world.notes.1.load(Ordering::Relaxed), 1);
}

/// Its outputs were covered long ago; another process has taken over since.
#[test]
fn a_sink_that_is_opened_late_gets_nothing_from_a_fenced_program() {
    let world = World::new();
    let mut old = world.run();
    old.give("a", "1");
    let epoch = old.commit();
    let mut new = world.resume(epoch);
    new.save();
    let a = old.open("a");
    old.gate.pass(Instant::now() + Duration::from_secs(2));
    assert_eq!((a.got().len(), old.told.lock().len()), (0, 1));
    assert!(old.gate.wait(Duration::ZERO));
}

/// The record is of the old file: bytes of a person in the new one are not the gate's.
#[test]
fn a_file_that_begins_again_forgets_the_length_of_the_old_one() {
    let world = World::new();
    let path = world.path("lines");
    let mut run = world.run();
    run.first_line(&path, FileMode::Append, &[b'x'; 100]);
    run.commit();
    drop(run);
    // A run that starts over.
    let mut run = world.run();
    run.job.take_over();
    run.first_line(&path, FileMode::Truncate, b"one\n");
    let epoch = run.commit();
    drop(run);
    std::fs::write(&path, "one\nof a person\n").unwrap();
    let mut run = world.resume(epoch);
    run.gate.open_file(&path, FileMode::Append).unwrap();
    run.commit();
    assert_eq!(text(&path), "one\nof a person\n");
}

#[test]
fn outputs_for_no_open_sink_force_no_save() {
    let world = World::new();
    let run = world.run();
    run.gate.set_bytes_max(1000);
    run.give("nowhere", &"x".repeat(2000));
    assert!(!run.gate.wants_save());
    run.open("nowhere");
    assert!(run.gate.wants_save());
}

/// The program falls back to checkpoint 1, and is killed before its next commit.
#[test]
fn a_file_that_a_newer_checkpoint_publishes_outlives_a_rollback() {
    let world = World::new();
    let (tmp, last) = (world.path("tmp"), world.path("model"));
    let publish = |run: &Run, content: &str| {
        std::fs::write(&tmp, content).unwrap();
        run.gate.publish(&tmp, &last).unwrap();
    };
    let staged = || {
        let names = std::fs::read_dir(world.dir.path()).unwrap().map(|it| it.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().ends_with(".gate")).count()
    };
    let mut run = world.run();
    run.save();
    publish(&run, "two");
    run.save();
    drop(run);
    let run = world.resume(1);
    publish(&run, "lost");
    assert_eq!(staged(), 2);
    drop(run);
    let mut run = world.resume(2);
    run.pass();
    assert_eq!((text(&last), staged()), ("two".into(), 1));
    // Once it has committed, what other runs have left is of no use.
    run.commit();
    publish(&run, "three");
    assert_eq!(staged(), 1);
    run.commit();
    assert_eq!((text(&last), staged()), ("three".into(), 0));
}
