//! State that is kept between saves: the hashes of the last committed image, and spare buffers.

use crate::ahead::{Ahead, AheadThread};
use crate::arena::Arena;
use crate::in_place::InPlace;
use crate::layout::Layout;
use crate::memory::Memory;
use crate::track::{self, PageTracker, Pages, Refusal, TrackerChoice, TrackerKind};
use crate::watch::{FreezePages, RegionSpan, Watches};
use outlive_chunk::{Compare, Diff, PageHashes, diff_streams};
use outlive_io::make_way;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Epoch, Error, PageRange, Result, StreamDesc};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Knows the last committed image by the hashes of its pages (16 bytes a page), and the memory that
/// is watched since. The next freeze uses both to find the changes. The sources of one rank share
/// it; any thread may call it.
#[derive(Debug, Default)]
pub struct ChangeTracker {
    state: Mutex<State>,
    ahead: Mutex<Copies>,
}

/// State of the copying between saves.
#[derive(Debug, Default)]
struct Copies {
    thread: Option<AheadThread>,
    /// Buffers from the previous save.
    spare: Option<Ahead>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Epoch of the image that the hashes describe.
    baseline: Option<Epoch>,
    /// Hashes by stream name. A stream that is missing here is wholly dirty.
    streams: HashMap<String, PageHashes>,
    /// The freeze whose baseline is not committed yet, if any.
    unsettled: Option<FreezeId>,
    /// The number of the last freeze.
    last: u64,
    spare: Spare,
    pub watches: Watches,
    /// The tracker that the program asked for; without one, changes are found by hashes alone. A
    /// freeze opens it, and [`ChangeTracker::detach`] closes it: it has two descriptors.
    asked: Option<Asked>,
    /// Reason why that tracker is not used.
    fallback: Option<Refusal>,
}

/// The tracker that a program asked for.
#[derive(Clone, Debug)]
struct Asked {
    choice: TrackerChoice,
    /// The job that it serves, if that is known.
    job: Option<String>,
}

/// Buffers kept from one freeze to the next: fresh memory costs a page fault for each page.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    pub arena: Arena,
    pub packed: Vec<u8>,
}

/// Changes of a stream as found by a freeze.
#[derive(Debug)]
pub(crate) enum StreamChange {
    /// Difference from the previous hashes.
    Known(Diff),
    /// The hashes of a stream that had none; `None` if not all of it was read.
    Fresh(Option<PageHashes>),
}

/// Changes since the baseline, for each stream.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Difference of each stream; `None`: all of it is new.
    pub diffs: Vec<Option<Diff>>,
    /// Pages of the difference whose hashes are learnt from the frozen image, if it is read.
    pub learn: Vec<Vec<PageRange>>,
}

/// One freeze. [`ChangeTracker::prime`] and [`ChangeTracker::forget`] invalidate it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FreezeId(u64);

impl ChangeTracker {
    /// Returns a tracker without a baseline: the next save is a full one. Changes are found by
    /// hashes alone.
    pub fn new() -> ChangeTracker {
        ChangeTracker::default()
    }

    /// Returns a tracker like [`ChangeTracker::new`], but the kernel watches memory where that is
    /// possible, and only pages that may have changed are compared. If the choice does not work,
    /// hashes are used, and [`ChangeTracker::report`] says why.
    pub fn with(choice: TrackerChoice) -> ChangeTracker {
        ChangeTracker::asked(Asked { choice, job: None })
    }

    /// Does the same for a job of this name, which appears in messages to others that want its
    /// memory.
    pub fn for_job(choice: TrackerChoice, job: &str) -> ChangeTracker {
        ChangeTracker::asked(Asked { choice, job: Some(job.to_owned()) })
    }

    fn asked(asked: Asked) -> ChangeTracker {
        if asked.choice != TrackerChoice::Only(TrackerKind::Hash) {
            // Probes now, and not while the first freeze makes the program wait.
            track::probe();
        }
        let tracker = ChangeTracker::default();
        tracker.lock().asked = Some(asked);
        tracker
    }

    /// Describes for people how the last freeze found changes: the tracker, the share of the
    /// memory, and why the rest was compared by hash.
    pub fn report(&self) -> String {
        let state = self.lock();
        match &state.fallback {
            None => state.watches.report(),
            Some(why) => format!("{} ({why})", TrackerKind::Hash),
        }
    }

    /// Epoch against which changes are found.
    pub fn baseline(&self) -> Option<Epoch> {
        self.lock().baseline
    }

    /// Memory held for hashes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.lock().streams.values().map(PageHashes::memory_bytes).sum()
    }

    /// Memory held for copies between freezes, in bytes: at most twice the last freeze's
    /// `freeze_bytes_max`, once for large and once for packed regions.
    pub fn spare_bytes(&self) -> usize {
        let spare = &self.lock().spare;
        spare.arena.ready_bytes() + spare.packed.capacity()
    }

    /// Takes `streams` (name and bytes) as the image of `epoch`, so that the next save writes only
    /// changes from now on. The bytes must be exactly those that the store holds for that epoch:
    /// differing pages would be missing from later checkpoints. A stream that is not listed is
    /// saved whole. A freeze without a committed baseline ends without effect.
    pub fn prime(&self, epoch: Epoch, streams: &[(&str, &[u8])], threads: usize) {
        let old = PageHashes::EMPTY;
        let pairs: Vec<_> =
            streams.iter().map(|(_, bytes)| Compare { old, bytes, pages: None }).collect();
        let hashes = diff_streams(&pairs, threads).into_iter().map(|diff| {
            let mut hashes = PageHashes::default();
            hashes.apply(diff);
            hashes
        });
        self.prime_hashes(
            epoch,
            streams.iter().map(|(name, _)| (*name).to_owned()).zip(hashes).collect(),
        );
    }

    /// Does the same as [`ChangeTracker::prime`] for streams whose hashes are known: by name.
    pub fn prime_hashes(&self, epoch: Epoch, streams: Vec<(String, PageHashes)>) {
        self.copies().thread = None;
        let mut state = self.lock();
        state.baseline = Some(epoch);
        state.streams = streams.into_iter().collect();
        state.unsettled = None;
        // The watched memory may differ from the restored memory.
        state.watches.clear();
    }

    /// Releases all watched memory, and closes the tracker. Use it if another job is to have that
    /// memory, or the program saves no more. The next freeze compares everything, opens the tracker
    /// again, and watches the memory again.
    pub fn detach(&self) {
        self.copies().thread = None;
        self.lock().watches = Watches::default();
    }

    /// Forgets everything: the next save is a full one. A freeze without a committed baseline ends
    /// without effect. Memory is freed.
    pub fn forget(&self) {
        *self.copies() = Copies::default();
        let mut state = self.lock();
        let State { last, ref mut watches, ref mut asked, ref mut fallback, .. } = *state;
        watches.clear();
        let (watches, asked, fallback) = (std::mem::take(watches), asked.take(), fallback.take());
        *state = State { last, watches, asked, fallback, ..State::default() };
    }

    /// Begins to copy `areas` ahead, until the next freeze. `tracker` watches them and has armed
    /// them when the baseline was frozen; `written` lists pages collected since. Copies take at
    /// most `bytes_max`, which counts as part of that freeze's `freeze_bytes_max`.
    ///
    /// Until then no other code may collect from the tracker, which reports each write once. The
    /// freeze needs all reports.
    ///
    /// # Errors
    /// If no thread can be started; nothing is copied ahead then.
    pub fn copy_ahead(
        &self,
        tracker: Arc<dyn PageTracker>,
        areas: &[Pages],
        written: &[Pages],
        bytes_max: u64,
    ) -> std::result::Result<(), Refusal> {
        self.start_ahead(&mut self.lock(), tracker, areas, written, bytes_max)
    }

    /// Does the same as [`ChangeTracker::copy_ahead`]. A freeze that begins meanwhile waits for the
    /// state, and then finds the thread.
    fn start_ahead(
        &self,
        state: &mut State,
        tracker: Arc<dyn PageTracker>,
        areas: &[Pages],
        written: &[Pages],
        bytes_max: u64,
    ) -> std::result::Result<(), Refusal> {
        // Each round arms memory again.
        state.watches.end_guard();
        let mut copies = self.copies();
        copies.thread = None;
        let old = copies.spare.take().unwrap_or_default();
        let ahead = Ahead::new(areas, written, bytes_max, old);
        copies.thread = Some(AheadThread::start(tracker, ahead)?);
        Ok(())
    }

    /// Ends the copying and returns its copies, if it was begun. The program stands.
    pub(crate) fn stop_ahead(&self) -> Option<std::result::Result<Ahead, Refusal>> {
        let thread = self.copies().thread.take()?;
        let stopped = thread.stop();
        if stopped.is_err() {
            // The pages that its rounds collected are lost with it.
            self.lock().watches.clear();
        }
        Some(stopped)
    }

    /// Begins to copy ahead of the next freeze, if the last one was committed and anything is
    /// armed.
    pub(crate) fn begin_ahead(&self, bytes_max: u64) {
        let mut state = self.lock();
        // A freeze has begun since: its armed memory must stay as it is.
        if state.unsettled.is_some() {
            return;
        }
        if let Some((tracker, areas)) = state.watches.armed()
            && !areas.is_empty()
        {
            // Without a thread nothing is copied ahead; the freeze reports that.
            let _ = self.start_ahead(&mut state, tracker, &areas, &[], bytes_max);
        }
    }

    /// Waits until two more rounds of copying are done; returns at once without copying.
    #[cfg(test)]
    pub(crate) fn wait_for_rounds(&self) {
        let rounds = || self.copies().thread.as_ref()?.rounds();
        let Some(seen) = rounds() else { return };
        while rounds().is_some_and(|rounds| rounds < seen + 2) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Keeps buffers of copies for the next freeze.
    pub(crate) fn keep_ahead(&self, ahead: Option<Ahead>) {
        if ahead.is_some() {
            self.copies().spare = ahead;
        }
    }

    fn copies(&self) -> std::sync::MutexGuard<'_, Copies> {
        self.ahead.lock()
    }

    /// Begins a freeze.
    pub(crate) fn begin(&self) -> Result<(FreezeId, Spare)> {
        let mut state = self.lock();
        if state.unsettled.is_some() {
            return Err(Error::bug(
                "memory was frozen again before the freeze before it was settled or dropped",
            ));
        }
        state.last += 1;
        state.unsettled = Some(FreezeId(state.last));
        state.open();
        state.watches.end_guard();
        Ok((FreezeId(state.last), std::mem::take(&mut state.spare)))
    }

    /// Returns the changes since `baseline` in each stream of `layout`, whose bytes are `bytes`.
    /// `None` for a stream that is wholly dirty: it has no hashes, or a sample shows that nearly
    /// all of it changed. Hashing it now would only keep the program waiting. For pages copied
    /// `ahead`, the copies count.
    ///
    /// Memory that can be watched is armed from the return on.
    pub(crate) fn diff(
        &self,
        baseline: Option<Epoch>,
        layout: &Layout,
        bytes: &[&[u8]],
        mut ahead: Option<&mut Ahead>,
        threads: usize,
    ) -> Changes {
        let mut state = self.lock();
        let State { watches, streams: hashes, baseline: has, .. } = &mut *state;
        let known = baseline.is_some() && baseline == *has;
        let streams = &layout.streams;
        let places: Vec<Option<RegionSpan>> = (0..streams.len())
            .map(|stream| layout.memory(stream).and_then(Memory::place))
            .collect();
        let named = streams.iter().zip(&places);
        watches.begin(&named.filter_map(|(s, place)| Some((&s.name[..], (*place)?))).collect());
        let mut old = Vec::with_capacity(streams.len());
        let mut looks: Vec<Option<FreezePages>> = Vec::with_capacity(streams.len());
        for ((stream, place), bytes) in streams.iter().zip(places).zip(bytes) {
            let known = known.then(|| hashes.get(&stream.name)).flatten();
            // Memory that is partly armed is judged block by block.
            let is_armed = watches.has_armed(&stream.name);
            let known = known.filter(|hashes| is_armed || !hashes.is_dense(bytes));
            let ahead = ahead.as_deref_mut();
            let place = place.filter(|place| place.length == bytes.len());
            looks.push(place.and_then(|place| {
                look(watches, &stream.name, place, known, bytes, ahead, threads)
            }));
            old.push(known);
        }
        let mut compares = Vec::with_capacity(streams.len());
        for ((old, bytes), look) in old.iter().zip(bytes).zip(&looks) {
            let pages = look.as_ref().map(|look| &look.compare[..]);
            compares.extend(old.map(|old| Compare { old, bytes, pages }));
        }
        let mut diffs = diff_streams(&compares, threads).into_iter();
        let mut changes = Changes::default();
        for ((stream, old), look) in streams.iter().zip(&old).zip(looks) {
            let diff = old.and_then(|_| diffs.next());
            if let Some(diff) = &diff {
                watches.compared(&stream.name, diff);
            }
            let learn = look.map_or_else(Vec::new, |look| look.dirty);
            changes.diffs.push(diff.map(|diff| diff.with_unknown(&learn)));
            changes.learn.push(learn);
        }
        changes
    }

    /// Returns a reader of these addresses (sorted, disjoint), which a child will hold. Pages that
    /// the program does not write can be read in place until the baseline is committed. Call it
    /// before the fork.
    pub(crate) fn guard(&self, forked: Vec<Range<usize>>) -> Option<InPlace> {
        self.lock().watches.guard(forked)
    }

    /// Ends the guard of [`ChangeTracker::guard`]: no child holds that memory.
    pub(crate) fn end_guard(&self) {
        self.lock().watches.end_guard();
    }

    /// Ends a freeze without effect.
    pub(crate) fn abandon(&self, freeze: FreezeId) {
        let mut state = self.lock();
        if state.unsettled == Some(freeze) {
            state.unsettled = None;
            state.watches.end_guard();
        }
    }

    /// Ends a freeze: its image, which has `streams`, is the baseline from now on.
    pub(crate) fn commit(
        &self,
        freeze: FreezeId,
        epoch: Epoch,
        streams: &[StreamDesc],
        changes: Vec<StreamChange>,
    ) {
        let mut state = self.lock();
        if state.unsettled != Some(freeze) {
            return;
        }
        state.unsettled = None;
        state.watches.settle();
        let mut old = std::mem::take(&mut state.streams);
        state.streams = streams
            .iter()
            .zip(changes)
            .filter_map(|(stream, change)| match change {
                StreamChange::Known(diff) => {
                    let (name, mut hashes) = old.remove_entry(&stream.name)?;
                    hashes.apply(diff);
                    Some((name, hashes))
                }
                StreamChange::Fresh(hashes) => Some((stream.name.clone(), hashes?)),
            })
            .collect();
        state.baseline = Some(epoch);
    }

    /// Recreates the huge pages that tracking has split and no longer tracks, in the background and
    /// until the next freeze: each takes 0.2 to 0.4 ms.
    pub(crate) fn restore_huge_pages(self: &Arc<Self>) {
        let Some(first) = self.next_split() else { return };
        let tracker = Arc::downgrade(self);
        let work = move || {
            make_way();
            let mut next = Some(first);
            while let Some((pages, block)) = next {
                let is_done = pages.collapse(block);
                let Some(tracker) = tracker.upgrade() else { return };
                if !is_done {
                    tracker.lock().watches.is_still_split(block);
                }
                next = tracker.next_split();
            }
        };
        // Without a thread they stay as they are.
        let _ = std::thread::Builder::new().name("outlive-pages".into()).spawn(work);
    }

    fn next_split(&self) -> Option<(Arc<dyn PageTracker>, Pages)> {
        let mut state = self.lock();
        if state.unsettled.is_some() {
            return None;
        }
        state.watches.next_split()
    }

    /// Keeps buffers for the next freeze.
    pub(crate) fn keep(&self, spare: Spare) {
        self.lock().spare = spare;
    }

    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Opens the tracker that was asked for, unless it is open.
    fn open(&mut self) {
        let Some(Asked { choice, job }) = self.asked.as_ref().filter(|_| !self.watches.is_open())
        else {
            return;
        };
        self.fallback = match track::open(*choice) {
            Ok(opened) => {
                self.watches = Watches::new(opened);
                job.iter().for_each(|job| self.watches.serve(job));
                None
            }
            Err(refusal) => Some(refusal),
        };
    }
}

#[allow(unsafe_code)]
fn look(
    watches: &mut Watches,
    name: &str,
    place: RegionSpan,
    old: Option<&PageHashes>,
    bytes: &[u8],
    ahead: Option<&mut Ahead>,
    threads: usize,
) -> Option<FreezePages> {
    // SAFETY: the memory is that of a region which is being frozen. The caller of
    // `Region::from_raw` promised that it is readable meanwhile, so it is mapped.
    unsafe { watches.look(name, place, old, bytes, ahead, threads) }
}
