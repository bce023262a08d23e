//! The process that holds images of saves, as a job calls it.

use crate::common;

use common::{Program, State, changed, memory_pool, noise};
use outlive_capture::ChangeTracker;
use outlive_store::{ImageKeeper, Job, JobOptions, KeptSave};
use outlive_types::{Epoch, Error, Result, SharedRun};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Notes each call, and reads the images when they are handed over.
#[derive(Debug, Default)]
struct Keeper {
    calls: Mutex<Vec<Call>>,
    is_gone: AtomicBool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Call {
    Keep { epoch: Epoch, baseline: Option<Epoch>, pages: usize },
    Forget,
}

impl ImageKeeper for Keeper {
    fn is_there(&self) -> bool {
        !self.is_gone.load(Ordering::Relaxed)
    }

    fn keep(&self, save: KeptSave<'_>) -> Result<()> {
        let copies = File::from(save.shared.copies.unwrap().try_clone().unwrap());
        let mut pages = 0;
        for (run, at) in save.frozen.runs().iter().zip(&save.shared.runs) {
            let SharedRun::Copied(at) = at else { panic!("a small image is copied") };
            let number = save.frozen.runs().iter().position(|it| it == run).unwrap();
            let mut scratch = Vec::new();
            let bytes = save.frozen.bytes(number, &mut scratch).unwrap();
            let mut shared = vec![0; bytes.len()];
            copies.read_exact_at(&mut shared, *at).unwrap();
            assert!(shared == bytes);
            pages += run.pages as usize;
        }
        let (epoch, baseline) = (save.epoch, save.baseline);
        self.calls.lock().unwrap().push(Call::Keep { epoch, baseline, pages });
        match self.is_gone.load(Ordering::Relaxed) {
            true => Err(Error::retry("gone")),
            false => Ok(()),
        }
    }

    fn forget(&self) {
        self.calls.lock().unwrap().push(Call::Forget);
    }
}

impl Keeper {
    fn taken(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

fn program(keeper: &Arc<Keeper>) -> Program {
    let keeper: Arc<dyn ImageKeeper> = keeper.clone();
    let options = JobOptions { keeper: Some(keeper), ..JobOptions::default() };
    let job = Job::open(&memory_pool(), "job", options).unwrap();
    Program { job, tracker: Arc::new(ChangeTracker::new()), attachment: Vec::new() }
}

fn state() -> State {
    State::from([("a".to_owned(), noise(1, 60 * 4096)), ("n".to_owned(), vec![1])])
}

#[test]
fn each_image_is_held_until_its_commit() {
    let keeper = Arc::new(Keeper::default());
    let program = program(&keeper);
    let stats = program.save(&state()).unwrap();
    assert!(stats.freeze.freeze.ends_with("; a helper holds it, too"), "{:?}", stats.freeze);
    let first = Call::Keep { epoch: 1, baseline: None, pages: 61 };
    assert_eq!(keeper.taken(), [first, Call::Forget]);
    program.save(&changed(state(), 7, 9)).unwrap();
    let second = Call::Keep { epoch: 2, baseline: Some(1), pages: 1 };
    assert_eq!(keeper.taken(), [second, Call::Forget]);
    program.job.close().unwrap();
    assert_eq!(keeper.taken(), []);
}

#[test]
fn without_its_keeper_a_job_goes_on() {
    let keeper = Arc::new(Keeper::default());
    let program = program(&keeper);
    keeper.is_gone.store(true, Ordering::Relaxed);
    let stats = program.save(&state()).unwrap();
    assert!(!stats.freeze.freeze.contains("helper"), "{:?}", stats.freeze);
    assert_eq!(keeper.taken(), []);
}
