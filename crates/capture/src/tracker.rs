//! What is remembered between saves: the hashes of the last committed image, and spare buffers.

use crate::Region;
use crate::arena::Arena;
use crate::layout::Layout;
use outlive_chunk::{Diff, PageHashes, diff_streams};
use outlive_types::{Epoch, Error, RegionDesc, RegionPlace, Result, StreamDesc};
use std::collections::HashMap;
use std::sync::Mutex;

/// Hashes of every page of the last settled image (16 bytes a page), by which the next freeze finds
/// what changed. Shared by the sources of one rank; any thread may call it.
#[derive(Debug, Default)]
pub struct HashTracker {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The epoch whose image the hashes describe.
    baseline: Option<Epoch>,
    /// By stream name. A stream that is missing here is wholly dirty.
    streams: HashMap<String, PageHashes>,
    /// The freeze that is not settled yet, if any.
    unsettled: Option<FreezeId>,
    /// The number of the last freeze.
    last: u64,
    spare: Spare,
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

/// One freeze. After [`HashTracker::prime`] or [`HashTracker::forget`] an old one no longer counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FreezeId(u64);

impl HashTracker {
    /// A tracker that knows nothing: the next save is a full one.
    pub fn new() -> HashTracker {
        HashTracker::default()
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
        let pairs: Vec<_> = streams.iter().map(|(_, bytes)| (PageHashes::EMPTY, *bytes)).collect();
        let hashes = diff_streams(&pairs, threads).into_iter().map(|diff| {
            let mut hashes = PageHashes::default();
            hashes.apply(diff);
            hashes
        });
        let streams = streams.iter().map(|(name, _)| (*name).to_owned()).zip(hashes).collect();
        let mut state = self.lock();
        state.baseline = Some(epoch);
        state.streams = streams;
        state.unsettled = None;
    }

    /// Primes from restored regions. `image` is what the checkpoint of `epoch` says of its regions;
    /// only streams that `regions` reproduces are taken, the others will be saved whole: a region
    /// of its own by name and length, the packed stream if all its regions are there, in order.
    ///
    /// The regions must still hold the restored bytes, and all those that are given must have been
    /// restored from that epoch.
    ///
    /// # Errors
    /// `Invalid` for regions that [`freeze`](outlive_types::PageSource::freeze) would refuse.
    pub fn prime_regions(
        &self,
        epoch: Epoch,
        image: &[RegionDesc],
        regions: &[Region],
        threads: usize,
    ) -> Result<()> {
        Layout::check(regions)?;
        let layout = Layout::new(regions.to_vec());
        let mut spare = std::mem::take(&mut self.lock().spare);
        layout.pack(&mut spare.packed);
        let large: HashMap<&str, u64> = image
            .iter()
            .filter(|region| region.place == RegionPlace::Own)
            .map(|region| (&region.name[..], region.bytes))
            .collect();
        let packed_is_same = packed(image).eq(packed(&layout.regions));
        let streams: Vec<(&str, &[u8])> = layout
            .streams
            .iter()
            .zip(layout.stream_bytes(&spare.packed))
            .enumerate()
            .filter(|(number, (stream, _))| match layout.memory(*number) {
                None => packed_is_same,
                Some(_) => large.get(&stream.name[..]) == Some(&stream.bytes),
            })
            .map(|(_, (stream, bytes))| (&stream.name[..], bytes))
            .collect();
        self.prime(epoch, &streams, threads);
        self.lock().spare = spare;
        Ok(())
    }

    /// Forgets everything: the next save is a full one. A freeze that is not settled yet ends
    /// without effect. Memory is given back.
    pub fn forget(&self) {
        let mut state = self.lock();
        *state = State { last: state.last, ..State::default() };
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
        Ok((FreezeId(state.last), std::mem::take(&mut state.spare)))
    }

    /// What has changed since `baseline` in each of `streams`. `None` for a stream that is wholly
    /// dirty because nothing is known of it, or nearly so by a sample: hashing it now would only keep
    /// the program waiting.
    pub(crate) fn diff(
        &self,
        baseline: Option<Epoch>,
        streams: &[StreamDesc],
        bytes: &[&[u8]],
        threads: usize,
    ) -> Vec<Option<Diff>> {
        let state = self.lock();
        let known = baseline.is_some() && baseline == state.baseline;
        let old: Vec<Option<&PageHashes>> = streams
            .iter()
            .zip(bytes)
            .map(|(stream, bytes)| {
                let known = known.then(|| state.streams.get(&stream.name)).flatten();
                known.filter(|hashes| !hashes.is_dense(bytes))
            })
            .collect();
        let pairs: Vec<_> =
            old.iter().zip(bytes).filter_map(|(old, bytes)| Some(((*old)?, *bytes))).collect();
        let mut diffs = diff_streams(&pairs, threads).into_iter();
        old.iter().map(|old| old.and_then(|_| diffs.next())).collect()
    }

    /// Ends a freeze without effect.
    pub(crate) fn abandon(&self, freeze: FreezeId) {
        let mut state = self.lock();
        if state.unsettled == Some(freeze) {
            state.unsettled = None;
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

    /// Takes buffers back.
    pub(crate) fn keep(&self, spare: Spare) {
        self.lock().spare = spare;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

/// What decides how the packed stream looks.
fn packed(regions: &[RegionDesc]) -> impl Iterator<Item = (&str, u64, u64)> {
    let place = |region: &RegionDesc| match region.place {
        RegionPlace::Packed { offset } => Some(offset),
        RegionPlace::Own => None,
    };
    regions.iter().filter_map(move |region| Some((&region.name[..], region.bytes, place(region)?)))
}
