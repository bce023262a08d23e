//! Restores that return before memory is there: it follows while the program runs.

use crate::client::Client;
use crate::plan::{Destination, FillPlan, Offer};
use crate::restore::{Filled, FilledImage};
use crate::write_permit::{WritePermit, interrupted};
use outlive_capture::fill::MutRegion;
use outlive_capture::lazy::{How, LazyMemory, LazyOptions, end_program};
use outlive_store::{LazyEnds, LazyFill, LazySink, MemoryImage, RestoreSink, Select};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Event, Missing, RegionDesc, Result};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Options of a lazy restore.
#[derive(Clone, Debug, Default)]
pub struct Lazily {
    /// Whether to serve the program's own instructions only, even where system calls could be
    /// served.
    pub user_only: bool,
    /// Set once no memory of the program is touched any more: then it may be freed.
    pub over: Arc<AtomicBool>,
}

/// A lazy restore that has returned.
pub struct LazyRestore {
    /// Result of what was restored before the program goes on.
    pub filled: Filled,
    /// The rest, which is filled later.
    pub rest: MemoryFill,
}

/// Memory that is being filled, or was.
#[derive(Clone, Debug)]
pub struct MemoryFill {
    fill: LazyFill,
    memory: Arc<LazyMemory>,
    /// Stream of each large region, by the region's name.
    streams: Arc<HashMap<String, usize>>,
}

impl MemoryFill {
    /// Returns whether everything is there, or never will be.
    pub fn done(&self) -> bool {
        self.fill.done()
    }

    /// Returns the bytes that the background has brought so far, and those in all.
    pub fn progress(&self) -> (u64, u64) {
        self.fill.progress()
    }

    /// Returns how memory is being filled.
    pub fn how(&self) -> &How {
        self.memory.how()
    }

    /// Waits until these regions are there, or all without any; `None` if that takes longer than
    /// `limit`. Regions that are not filled lazily count as there. The awaited regions are read
    /// first.
    ///
    /// # Errors
    /// Inside: the reason why they never will be there.
    pub fn wait(&self, names: Option<&[String]>, limit: Duration) -> Option<Result<()>> {
        let Some(names) = names else {
            return self.fill.wait(Some(limit)).map(|outcome| outcome.map(drop));
        };
        let mut streams = names.iter().filter_map(|name| self.streams.get(name).copied());
        let is_missing = |at: &usize| !self.memory.wait(Some(*at), Some(Duration::ZERO));
        let Some(stream) = streams.find(is_missing) else {
            return Some(self.memory.failure().map_or(Ok(()), Err));
        };
        self.fill.prefer(stream, 0..u64::MAX);
        self.memory.wait(Some(stream), Some(limit));
        None
    }
}

/// Memory that a lazy restore fills.
struct Sink {
    memory: Arc<LazyMemory>,
    /// Whether regions that are not lazy may still be written.
    permit: Arc<WritePermit>,
    /// Name of each stream.
    names: Vec<String>,
    /// Whether every region was requested.
    whole: bool,
}

impl RestoreSink for Sink {
    fn write(&self, stream: usize, offset: u64, bytes: &[u8]) {
        if self.memory.is_lazy(stream) {
            self.memory.write(stream, offset, bytes);
        } else {
            self.permit.with(|| self.memory.write(stream, offset, bytes));
        }
    }

    fn zero(&self, stream: usize, offset: u64, length: u64) {
        if self.memory.is_lazy(stream) {
            self.memory.zero(stream, offset, length);
        } else {
            self.permit.with(|| self.memory.zero(stream, offset, length));
        }
    }
}

impl LazySink for Sink {
    fn is_lazy(&self, stream: usize) -> bool {
        self.memory.is_lazy(stream)
    }

    fn edges(&self) -> Vec<(usize, Range<u64>)> {
        self.memory.edges()
    }

    fn write_edge(&self, stream: usize, offset: u64, bytes: &[u8]) {
        self.permit.with(|| self.memory.write_edge(stream, offset, bytes));
    }

    fn next_missing(&self) -> Option<Missing> {
        self.memory.next_missing()
    }

    fn expect(&self, missing: &Missing) {
        self.memory.expect(missing);
    }

    fn expect_nothing(&self) {
        self.memory.expect_nothing();
    }

    fn deliver(&self, missing: &Missing, bytes: Option<&[u8]>) {
        self.memory.deliver(missing, bytes);
    }

    fn failure(&self) -> Option<Error> {
        self.memory.failure()
    }

    fn give_up(&self) {
        self.memory.give_up();
    }

    fn stop(&self) {
        self.memory.stop();
    }
}

/// State of the checkpoint that is being restored.
struct LazyState {
    memory: Arc<LazyMemory>,
    names: Vec<String>,
    /// Streams that go into the restore's own memory.
    ours: Vec<usize>,
    later: Mutex<Vec<(RegionDesc, MutRegion)>>,
    /// Outputs that the checkpoint lists.
    outputs: Vec<u8>,
    /// Whether every region was requested.
    whole: bool,
}

impl Client {
    /// Restores as [`Client::restore`] does, but returns as soon as the page trees are read, and
    /// the regions that cannot be filled lazily. Memory of the program must stay until
    /// `lazily.over` is set. If damage is found later, the checkpoint is marked. The program ends,
    /// since its memory has holes.
    ///
    /// # Errors
    /// As [`Job::restore_lazily`](outlive_store::Job::restore_lazily); those of `ask`; `Retry` if
    /// `permit` was withdrawn; `Invalid` in a group.
    pub fn restore_lazily(
        &self,
        select: Select,
        permit: &Arc<WritePermit>,
        lazily: &Lazily,
        ask: &mut dyn FnMut(Offer) -> Result<Vec<Destination>>,
    ) -> Result<Option<LazyRestore>> {
        if self.job.is_group() {
            lazily.over.store(true, Ordering::Release);
            return Err(Error::invalid(
                "the ranks of a group restore all memory before they go on: restore without `lazy`",
            ));
        }
        let mut chosen: Option<LazyState> = None;
        let mut prepare = |checkpoint: &MemoryImage| {
            // The memory of a checkpoint that could not be restored goes when another one is
            // planned.
            chosen = None;
            let mut plan = FillPlan::new(checkpoint, ask(Offer::of(checkpoint))?)?;
            let options = LazyOptions {
                user_only: lazily.user_only,
                eager_streams: plan.not_theirs(),
                ..LazyOptions::default()
            };
            let ours = plan.ours();
            let (selected, memory) = plan.take_memory(checkpoint)?;
            let memory = Arc::new(LazyMemory::new(memory, options)?);
            let names: Vec<String> =
                checkpoint.streams().iter().map(|stream| stream.name.clone()).collect();
            let FillPlan { whole, later, .. } = plan;
            let later = Mutex::new(later);
            let outputs = checkpoint.outputs().to_vec();
            let (kept, named) = (memory.clone(), names.clone());
            chosen = Some(LazyState { memory: kept, names: named, ours, later, outputs, whole });
            Ok((selected, Sink { memory, permit: permit.clone(), names, whole }))
        };
        let begun = self.job.restore_lazily(select, &mut prepare, self.ends(lazily));
        let (restored, fill, chosen) = match (begun, chosen) {
            (Ok(Some((restored, fill))), Some(chosen)) => (restored, fill, chosen),
            (begun, chosen) => {
                if let Some(LazyState { memory, .. }) = chosen {
                    memory.end_advice();
                }
                lazily.over.store(true, Ordering::Release);
                return begun.map(|_| None);
            }
        };
        let LazyState { memory, names, ours, later, outputs, whole } = chosen;
        if select == Select::Newest {
            self.restored(restored.epoch);
        }
        self.note_outputs(restored.epoch, vec![(0, outputs)], whole)?;
        let ours = ours.into_iter().filter_map(|at| Some((at, memory.copy_of(at)?))).collect();
        let streams = names.iter().cloned().enumerate().map(|(at, name)| (name, at)).collect();
        let image = FilledImage::new(ours, names);
        let later = later.into_inner();
        permit.with(|| image.fill_later(later)).ok_or_else(interrupted)??;
        let filled = Filled { restored, image, common: None };
        let rest = MemoryFill { fill, memory, streams: Arc::new(streams) };
        Ok(Some(LazyRestore { filled, rest }))
    }

    /// Returns what to do when a fill is over. That holds the tracker and not the client, which a
    /// thread of the fill must not drop.
    fn ends(&self, lazily: &Lazily) -> LazyEnds<Sink> {
        let (tracker, observer) = (self.tracker.clone(), self.job.pool().env().observer.clone());
        let job = self.job.name().clone();
        let (over_if_whole, over_if_not) = (lazily.over.clone(), lazily.over.clone());
        LazyEnds {
            filled: Box::new(move |checkpoint: &MemoryImage, sink: &Sink| {
                if sink.whole {
                    let names = sink.names.iter().enumerate();
                    let hashes = names.filter_map(|(at, name)| {
                        Some((name.clone(), sink.memory.take_hashes(at)?))
                    });
                    tracker.prime_hashes(checkpoint.epoch(), hashes.collect());
                }
                if let Some(report) = sink.memory.fresh_report() {
                    observer.event(Event::Info(format!("job {job}: {report}")));
                }
                // From here on the program may free its memory, while this restore is still known.
                sink.memory.end_advice();
                over_if_whole.store(true, Ordering::Release);
            }),
            failed: Box::new(move |error| {
                over_if_not.store(true, Ordering::Release);
                end_program(&format!(
                    "{}. The memory of this program cannot be completed, so it ends here: start it \
                     again",
                    error.message()
                ))
            }),
        }
    }
}
