//! What is remembered between saves: the hashes of the last committed image, and spare buffers.

use crate::ahead::{Ahead, AheadThread};
use crate::arena::Arena;
use crate::in_place::InPlace;
use crate::layout::Layout;
use crate::memory::Memory;
use crate::track::{self, PageTracker, Pages, Refusal, TrackerChoice, TrackerKind};
use crate::watch::{Look, RegionSpan, Watches};
use outlive_chunk::{Compare, Diff, PageHashes, diff_streams};
use outlive_io::make_way;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Epoch, Error, PageRange, Result, StreamDesc};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Knows the last settled image by the hashes of its pages (16 bytes a page), and which memory is watched
/// since. By both the next freeze finds what changed. Shared by the sources of one rank; any thread may
/// call it.
#[derive(Debug, Default)]
pub struct ChangeTracker {
    state: Mutex<State>,
    ahead: Mutex<Copies>,
}

/// What is copied between saves.
#[derive(Debug, Default)]
struct Copies {
    thread: Option<AheadThread>,
    /// Buffers from the save before.
    spare: Option<Ahead>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// The epoch whose image the hashes describe.
    baseline: Option<Epoch>,
    /// By stream name. A stream that is missing here is wholly dirty.
    streams: HashMap<String, PageHashes>,
    /// The freeze that is not settled yet, if any.
    unsettled: Option<FreezeId>,
    /// The number of the last freeze.
    last: u64,
    spare: Spare,
    pub watches: Watches,
    /// The tracker that was asked for; without one, changes are found by hashes alone. A freeze opens it, and
    /// [`ChangeTracker::detach`] closes it: it has two descriptors.
    asked: Option<Asked>,
    /// Why the tracker that was asked for is not used.
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

/// What a freeze has learnt of a stream.
#[derive(Debug)]
pub(crate) enum Change {
    /// How it differs from the hashes that were there.
    Known(Diff),
    /// The hashes of a stream that had none; `None` if not all of it was read.
    Fresh(Option<PageHashes>),
}

/// What has changed since the baseline, for each stream.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// How it differs; `None`: all of it is new.
    pub diffs: Vec<Option<Diff>>,
    /// Pages of the difference whose hashes are to be learnt from what the freeze holds, if it is read.
    pub learn: Vec<Vec<PageRange>>,
}

/// One freeze. After [`ChangeTracker::prime`] or [`ChangeTracker::forget`] an old one no longer counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FreezeId(u64);

impl ChangeTracker {
    /// A tracker that knows nothing: the next save is a full one. Changes are found by hashes alone.
    pub fn new() -> ChangeTracker {
        ChangeTracker::default()
    }

    /// Like [`ChangeTracker::new`]; but memory is watched by the kernel where that is possible, and only
    /// what may have changed is compared. The choice falls back to hashes, and
    /// [`ChangeTracker::report`] says why.
    pub fn with(choice: TrackerChoice) -> ChangeTracker {
        ChangeTracker::asked(Asked { choice, job: None })
    }

    /// The same, for a job of this name: others that want memory which it watches are told who has it.
    pub fn for_job(choice: TrackerChoice, job: &str) -> ChangeTracker {
        ChangeTracker::asked(Asked { choice, job: Some(job.to_owned()) })
    }

    fn asked(asked: Asked) -> ChangeTracker {
        if asked.choice != TrackerChoice::Only(TrackerKind::Hash) {
            // Now, and not while the first freeze holds the program up.
            track::probe();
        }
        let tracker = ChangeTracker::default();
        tracker.lock().asked = Some(asked);
        tracker
    }

    /// How the last freeze found changes, for people: by which tracker, how much of the memory, and
    /// why the rest by hash.
    pub fn report(&self) -> String {
        let state = self.lock();
        match &state.fallback {
            None => state.watches.report(),
            Some(why) => format!("{} ({why})", TrackerKind::Hash),
        }
    }

    /// The epoch against which changes are found.
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
        spare.arena.bytes().len() + spare.packed.capacity()
    }

    /// Takes `streams` (name and bytes) as the image of `epoch`, so that the next save writes only
    /// what changed from now on. The bytes must be exactly those that the store holds for that
    /// epoch: pages that differ would be missing from later checkpoints. A stream that is left out
    /// is saved whole. A freeze that is not settled yet ends without effect.
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

    /// As [`ChangeTracker::prime`], of streams whose hashes are known already: by name.
    pub fn prime_hashes(&self, epoch: Epoch, streams: Vec<(String, PageHashes)>) {
        self.copies().thread = None;
        let mut state = self.lock();
        state.baseline = Some(epoch);
        state.streams = streams.into_iter().collect();
        state.unsettled = None;
        // What was watched may be other memory than what was restored.
        state.watches.clear();
    }

    /// Lets go of all memory that is watched, and closes the tracker: another job is to have that memory, or the
    /// program saves no more. The next freeze compares everything, opens the tracker again, and watches anew.
    pub fn detach(&self) {
        self.copies().thread = None;
        self.lock().watches = Watches::default();
    }

    /// Forgets everything: the next save is a full one. A freeze that is not settled yet ends
    /// without effect. Memory is given back.
    pub fn forget(&self) {
        *self.copies() = Copies::default();
        let mut state = self.lock();
        let State { last, ref mut watches, ref mut asked, ref mut fallback, .. } = *state;
        watches.clear();
        let (watches, asked, fallback) = (std::mem::take(watches), asked.take(), fallback.take());
        *state = State { last, watches, asked, fallback, ..State::default() };
    }

    /// Begins to copy ahead, until the next freeze: of `areas`, which `tracker` watches and has armed
    /// when the baseline was frozen; `written` is what was collected since. Copies take at most
    /// `bytes_max`, which counts as part of that freeze's `freeze_bytes_max`.
    ///
    /// Until then nobody else may collect from the tracker: what it tells is told once. The freeze
    /// hears it all.
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

    /// As [`ChangeTracker::copy_ahead`]; a freeze that begins meanwhile waits for the state, and then
    /// finds the thread.
    fn start_ahead(
        &self,
        state: &mut State,
        tracker: Arc<dyn PageTracker>,
        areas: &[Pages],
        written: &[Pages],
        bytes_max: u64,
    ) -> std::result::Result<(), Refusal> {
        // Each round arms memory anew.
        state.watches.end_guard();
        let mut copies = self.copies();
        copies.thread = None;
        let old = copies.spare.take().unwrap_or_default();
        let ahead = Ahead::new(areas, written, bytes_max, old);
        copies.thread = Some(AheadThread::start(tracker, ahead)?);
        Ok(())
    }

    /// Ends the copying and takes what it has, if it was begun. The program stands.
    pub(crate) fn stop_ahead(&self) -> Option<std::result::Result<Ahead, Refusal>> {
        let thread = self.copies().thread.take()?;
        let stopped = thread.stop();
        if stopped.is_err() {
            // What its rounds collected is lost with it.
            self.lock().watches.clear();
        }
        Some(stopped)
    }

    /// Begins to copy ahead of the next freeze, if the last one was committed and anything is armed.
    pub(crate) fn begin_ahead(&self, bytes_max: u64) {
        let mut state = self.lock();
        // A freeze has begun since: what it armed must stay as it is.
        if state.unsettled.is_some() {
            return;
        }
        if let Some((tracker, areas)) = state.watches.armed()
            && !areas.is_empty()
        {
            // Without a thread nothing is copied ahead; the freeze says so.
            let _ = self.start_ahead(&mut state, tracker, &areas, &[], bytes_max);
        }
    }

    /// Waits until what is copied ahead was looked at twice from now on; not at all if nothing is.
    #[cfg(test)]
    pub(crate) fn wait_for_rounds(&self) {
        let rounds = || self.copies().thread.as_ref()?.rounds();
        let Some(seen) = rounds() else { return };
        while rounds().is_some_and(|rounds| rounds < seen + 2) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Takes buffers of copies back.
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

    /// What has changed since `baseline` in each stream of `layout`, whose bytes are `bytes`. `None` for
    /// a stream that is wholly dirty because nothing is known of it, or nearly so by a sample: hashing
    /// it now would only keep the program waiting. Of pages copied `ahead` the copies are what counts.
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
        let mut looks: Vec<Option<Look>> = Vec::with_capacity(streams.len());
        for ((stream, place), bytes) in streams.iter().zip(places).zip(bytes) {
            let known = known.then(|| hashes.get(&stream.name)).flatten();
            // Memory of which a part is armed is judged block by block.
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

    /// What of these addresses (sorted, apart), which a child will hold, can be read in place as long as
    /// the program does not write it: until the freeze is settled. Before the fork.
    pub(crate) fn guard(&self, forked: Vec<Range<usize>>) -> Option<InPlace> {
        self.lock().watches.guard(forked)
    }

    /// Ends what [`ChangeTracker::guard`] began: no child holds that memory.
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
        changes: Vec<Change>,
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
                Change::Known(diff) => {
                    let (name, mut hashes) = old.remove_entry(&stream.name)?;
                    hashes.apply(diff);
                    Some((name, hashes))
                }
                Change::Fresh(hashes) => Some((stream.name.clone(), hashes?)),
            })
            .collect();
        state.baseline = Some(epoch);
    }

    /// Gives back the huge pages that tracking has split and that are tracked no more, in the background
    /// and until the next freeze: each takes 0.2 to 0.4 ms.
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

    /// Takes buffers back.
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
) -> Option<Look> {
    // SAFETY: the place is that of a region which is being frozen; whoever called `Region::from_raw`
    // promised that it is readable meanwhile, so it is mapped.
    unsafe { watches.look(name, place, old, bytes, ahead, threads) }
}
