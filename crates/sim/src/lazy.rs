//! A lazy restore without a kernel: the program requests its touched pages by calls.

use crate::state::{Memory, RestoredRegions};
use outlive_capture::ChangeTracker;
use outlive_store::{Job, LazyEnds, LazyFill, LazySink, MemoryImage, RestoreSink, Select};
use outlive_types::sync::{Condvar, Mutex, pause};
use outlive_types::{Epoch, Error, Missing, PAGE_BYTES, Result, SeededRng};
use std::ops::Range;
use std::sync::Arc;

/// Memory that is filled while the program runs.
#[derive(Clone)]
struct Sink {
    memory: Memory,
    touched: Arc<Touched>,
}

#[derive(Default)]
struct Touched {
    waiting: Mutex<(Vec<Missing>, bool)>,
    changed: Condvar,
}

impl RestoreSink for Sink {
    fn write(&self, stream: usize, offset: u64, bytes: &[u8]) {
        self.memory.put(stream, offset, bytes);
    }

    fn zero(&self, stream: usize, offset: u64, length: u64) {
        self.memory.zero(stream, offset, length);
    }
}

impl LazySink for Sink {
    fn is_lazy(&self, _: usize) -> bool {
        true
    }

    fn edges(&self) -> Vec<(usize, Range<u64>)> {
        Vec::new()
    }

    fn write_edge(&self, _: usize, _: u64, _: &[u8]) {}

    fn next_missing(&self) -> Option<Missing> {
        let mut waiting = self.touched.waiting.lock();
        loop {
            match (waiting.1, waiting.0.pop()) {
                (true, _) => return None,
                (false, Some(missing)) => return Some(missing),
                (false, None) => {
                    let waited = self.touched.changed.wait(waiting);
                    waiting = waited;
                }
            }
        }
    }

    fn expect(&self, _: &Missing) {}

    fn expect_nothing(&self) {}

    fn deliver(&self, missing: &Missing, bytes: Option<&[u8]>) {
        let bytes = bytes.expect("nothing is written that is not in pool_world");
        self.memory.put(missing.stream, missing.offset, bytes);
    }

    fn failure(&self) -> Option<Error> {
        None
    }

    fn give_up(&self) {
        self.stop();
    }

    fn stop(&self) {
        self.touched.waiting.lock().1 = true;
        self.touched.changed.notify_all();
    }
}

/// A lazy fill in progress.
pub struct Filling {
    fill: LazyFill,
    brought: Arc<outlive_types::sync::plain::Mutex<Option<RestoredRegions>>>,
}

impl Filling {
    /// Waits for the end of the fill, and returns the restored regions.
    pub fn wait(&self) -> Result<RestoredRegions> {
        self.fill.wait(None).expect("a wait without limit ends with the fill")?;
        let mut brought = self.brought.lock();
        Ok(brought.take().expect("a fill that ended well has told what it brought"))
    }
}

/// Restores lazily, and touches some pages at once. Returns the epoch, the newest epoch when it was
/// found, and the fill.
pub fn restore(
    job: &Job,
    tracker: &Arc<ChangeTracker>,
    select: Select,
    rng: &SeededRng,
    newest: &dyn Fn() -> Epoch,
) -> Result<Option<(Epoch, Epoch, Filling)>> {
    let restored = Arc::new(outlive_types::sync::plain::Mutex::new(None));
    let (told, tracker) = (restored.clone(), tracker.clone());
    let ends = LazyEnds {
        filled: Box::new(move |checkpoint: &MemoryImage, sink: &Sink| {
            let streams = sink.memory.streams();
            let named = checkpoint.streams().iter().zip(&streams);
            let primed: Vec<(&str, &[u8])> =
                named.map(|(stream, bytes)| (stream.name.as_str(), &bytes[..])).collect();
            tracker.prime(checkpoint.epoch(), &primed, 1);
            let restored = sink.memory.restored(checkpoint);
            *told.lock() = Some(restored);
        }),
        failed: Box::new(|_| ()),
    };
    let (mut sink, mut prepared) = (None, 0);
    let begun = job.restore_lazily(
        select,
        &mut |checkpoint| {
            prepared = newest();
            pause("prepare a lazy restore");
            let all = (0..checkpoint.streams().len()).collect();
            let made = Sink { memory: Memory::of(checkpoint), touched: Arc::default() };
            sink = Some((made.clone(), checkpoint.streams().len()));
            Ok((all, made))
        },
        ends,
    )?;
    let (Some((done, fill)), Some((sink, streams))) = (begun, sink) else { return Ok(None) };
    for _ in 0..rng.below(3) {
        let stream = rng.below(streams as u64) as usize;
        let missing = Missing {
            stream,
            offset: 0,
            length: PAGE_BYTES,
            is_written: false,
            unit_offset: 0,
            unit_length: PAGE_BYTES,
        };
        let mut waiting = sink.touched.waiting.lock();
        waiting.0.push(missing);
        drop(waiting);
        sink.touched.changed.notify_all();
    }
    Ok(Some((done.epoch, prepared, Filling { fill, brought: restored })))
}
