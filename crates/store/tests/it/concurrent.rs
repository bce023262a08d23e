//! Many savers at once: jobs that share a pool's little memory, and writers that compete for a job.

use crate::common;

use common::{Program, State, Vectors, changed, memory_pool, noise, small_config};
use outlive_backend::MemoryTarget;
use outlive_format::{Body, SegmentKind};
use outlive_log::MemoryLog;
use outlive_pool::{Environment, Pool, create};
use outlive_store::Select;
use outlive_store::commit::history;
use outlive_types::{ErrorKind, FreezeRequest, Frozen, PageSource, Result, SeededRng, SessionId};
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;

fn state(seed: u64) -> State {
    State::from([("a".to_owned(), noise(seed, 700_000)), ("b".to_owned(), vec![seed as u8; 10])])
}

/// Six jobs with four threads each need more containers than there are; none may wait forever.
#[test]
fn jobs_share_the_least_staging_memory() {
    let mut config = small_config();
    config.tuning.staging_bytes = 4 * config.format.container_bytes;
    config.tuning.threads = 4;
    config.check().unwrap();
    let (target, log) = (Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()));
    let pool = Pool::new(config, target, log, Environment::system());
    thread::scope(|scope| {
        for job in 0..6u64 {
            let pool = &pool;
            scope.spawn(move || {
                let program = Program::start(pool, &format!("job {job}"));
                for step in 0..8 {
                    program.save(&state(job * 100 + step)).unwrap();
                }
                let reader = Program::start(pool, &format!("job {job}"));
                let (epoch, restored) = reader.restore(Select::Newest).unwrap().unwrap();
                assert!(epoch == 8 && restored == state(job * 100 + 7));
            });
        }
    });
    assert!(pool.staging().peak_bytes() <= 4 * (64 << 10));
}

/// The writer that starts last takes over. A commit that a writer has seen stays, each epoch once.
#[test]
fn writers_of_one_job_never_mix() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    create(&path, small_config(), Environment::system()).unwrap();
    let committed: Mutex<BTreeMap<u64, u64>> = Mutex::default();
    let start = Barrier::new(4);
    thread::scope(|scope| {
        for writer in 0..4u64 {
            let (path, committed, start) = (&path, &committed, &start);
            scope.spawn(move || {
                let rng = SeededRng::new(writer);
                start.wait();
                for _ in 0..6 {
                    // A pool of its own, as another process would have.
                    let pool = outlive_pool::open(path, Environment::system()).unwrap();
                    let program = Program::start(&pool, "contested");
                    for _ in 0..3 {
                        let seed = rng.below(1 << 40);
                        match program.save(&state(seed)) {
                            Ok(stats) => {
                                let before = committed.lock().unwrap().insert(stats.epoch, seed);
                                assert_eq!(
                                    before, None,
                                    "epoch {} was committed twice",
                                    stats.epoch
                                );
                            }
                            Err(error) => {
                                assert!(
                                    matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Retry),
                                    "{error}"
                                );
                                break;
                            }
                        }
                    }
                }
            });
        }
    });
    let committed = committed.into_inner().unwrap();
    assert!(!committed.is_empty());
    let pool = outlive_pool::open(&path, Environment::system()).unwrap();
    let reader = Program::start(&pool, "contested");
    let epochs: Vec<u64> = reader.job.epochs().unwrap().iter().map(|e| e.epoch).collect();
    assert!(epochs.is_sorted_by(|a, b| a < b), "{epochs:?}");
    for (epoch, seed) in &committed {
        let (_, restored) = reader.restore(Select::Epoch(*epoch)).unwrap().unwrap();
        assert!(restored == state(*seed), "epoch {epoch}");
    }
    assert_eq!(reader.job.verify(None).unwrap().findings, vec![]);
}

/// Savers that wait for their turn have all staging memory. A merged segment is read all the same,
/// since one of them may need it to go on.
#[test]
fn segments_are_read_without_staging_memory() {
    let mut config = small_config();
    config.tuning.staging_bytes = 4 * config.format.container_bytes;
    let (target, log) = (Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()));
    let pool = Pool::new(config, target, log, Environment::system());
    let program = Program::start(&pool, "job");
    for step in 0..9 {
        program.save(&State::from([("b".to_owned(), vec![step; 10])])).unwrap();
    }
    let epochs = program.job.epochs().unwrap();
    let newest = &epochs.last().unwrap().manifest;
    assert!(
        newest.images.one().unwrap().segments.iter().any(|s| s.kind == SegmentKind::Segment),
        "some were merged"
    );
    let held: Vec<_> = (0..4).map(|_| pool.staging().take()).collect();
    let (tell, told) = mpsc::channel();
    let reader = pool.clone();
    thread::spawn(move || {
        let restored = Program::start(&reader, "job").restore(Select::Newest);
        let _ = tell.send(restored.unwrap().unwrap().0);
    });
    assert_eq!(told.recv_timeout(std::time::Duration::from_secs(300)), Ok(9));
    drop(held);
}

/// One thread closes a job while another one saves. No manifest may stand behind the end of its
/// session, where a gc would not expect it.
#[test]
fn a_save_and_a_close_take_turns() {
    let (target, log) = (Arc::new(MemoryTarget::new()), Arc::new(MemoryLog::new()));
    let pool = Pool::new(small_config(), target, log, Environment::system());
    let program = Program::start(&pool, "job");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                program.job.close().unwrap();
            }
        });
        for step in 0..400u64 {
            program.save(&State::from([("b".to_owned(), step.to_le_bytes().to_vec())])).unwrap();
        }
        done.store(true, Ordering::Release);
    });
    let mut over: HashSet<SessionId> = HashSet::new();
    let newest_first: Vec<_> = history(&pool, program.job.name()).unwrap().collect();
    for entry in newest_first.into_iter().rev() {
        match entry.record.unwrap().body {
            Body::Close(close) => drop(over.insert(close.session)),
            Body::Manifest(manifest) => {
                assert!(!over.contains(&manifest.session), "epoch {}", manifest.epoch);
            }
            _ => {}
        }
    }
}

/// A source that lets a restore of another thread end, if it can, between its freeze and its
/// persist phase.
struct Slow<S> {
    inner: S,
    begun: mpsc::Sender<()>,
    go_on: mpsc::Receiver<()>,
}

impl<S: PageSource> PageSource for Slow<S> {
    fn freeze(&mut self, request: &FreezeRequest) -> Result<Box<dyn Frozen>> {
        let frozen = self.inner.freeze(request);
        self.begun.send(()).unwrap();
        self.go_on.recv().unwrap();
        (0..2000).for_each(|_| thread::yield_now());
        frozen
    }
}

/// One thread restores an old checkpoint into memory of its own while another one saves.
#[test]
fn a_look_at_an_old_checkpoint_beside_a_save() {
    for _ in 0..40 {
        let pool = memory_pool();
        let program = Program::start(&pool, "job");
        program.save(&state(1)).unwrap();
        program.save(&state(2)).unwrap();
        let now = changed(state(2), 5, 9);
        let (begun, has_begun) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel();
        let (looks, is_looking) = mpsc::channel();
        let mut source = Slow { inner: program.source(&now), begun, go_on: may_go_on };
        let has_begun = Mutex::new(has_begun);
        thread::scope(|scope| {
            let job = &program.job;
            scope.spawn(move || {
                job.restore(
                    Select::Epoch(1),
                    &mut |checkpoint| {
                        // The restore waits until saves are over before it begins; from here on,
                        // one may begin.
                        looks.send(()).unwrap();
                        let all = (0..checkpoint.streams().len()).collect();
                        Ok((all, Vectors::for_all(checkpoint)))
                    },
                    &mut |_, _| {
                        has_begun.lock().unwrap().recv().unwrap();
                        go_on.send(()).unwrap();
                        Ok(())
                    },
                )
                .unwrap();
            });
            is_looking.recv().unwrap();
            let saved = program.job.save(&mut source).unwrap().wait(None).unwrap();
            assert_eq!(saved.unwrap().epoch, 3);
        });
        let restored = Program::start(&pool, "job").restore(Select::Epoch(3)).unwrap().unwrap();
        assert!(restored.1 == now, "it is the one that was saved, not a mix of two");
    }
}

/// At the end of a program, the question whether a job saves must not wait for its answer: the
/// program would handle no signal meanwhile.
#[test]
fn a_save_that_is_being_started_counts_as_saving() {
    let pool = memory_pool();
    let program = Program::start(&pool, "job");
    assert!(!program.job.is_saving());
    let (begun, has_begun) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let mut source = Slow { inner: program.source(&state(1)), begun, go_on: may_go_on };
    thread::scope(|scope| {
        let saver = scope.spawn(|| program.job.save(&mut source).unwrap());
        has_begun.recv().unwrap();
        assert!(program.job.is_saving());
        go_on.send(()).unwrap();
        saver.join().unwrap().wait(None).unwrap().unwrap();
    });
    assert!(!program.job.is_saving());
}
