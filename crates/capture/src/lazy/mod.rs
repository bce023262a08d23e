//! Lazy restart: the program runs at once; what it touches comes first, the rest in the background.
//!
//! [`LazyMemory`] is the place that such a restore fills. It registers the whole pages of regions with
//! userfaultfd, so that the first touch of a page that is not there yet waits; who restores asks for
//! what is waited for ([`LazyMemory::next_missing`]) and brings everything else meanwhile
//! ([`LazyMemory::write`]). Why this way: `docs/design/012-lazy-restore.md`.

mod address_map;
mod fill;
mod maps;
mod sys;
mod under_way;
mod unit;

pub use fill::MemoryFill;
pub use sys::{Mode, end_program};
pub(crate) use under_way::wait_for;

use crate::fill::{Advice, MutRegion, check_possible, touched, whole_pages};
use crate::learnt::Learnt;
use crate::track::{Pages, holder};
use fill::Filling;
use maps::PrivateMemory;
use outlive_chunk::PageHashes;
use outlive_io::{AlignedBuf, fresh};
use outlive_types::{Error, Missing, PAGE_BYTES, Result};
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use sys::Uffd;

/// Regions with fewer whole pages than this are filled before the program goes on: to wait for them
/// would cost more.
pub const LAZY_FROM_BYTES: usize = 256 * 1024;
/// Regions filled lazily at most, the longest first: each may split a mapping in three, of which Linux
/// allows 65,530.
const REGIONS_MAX: usize = 8192;

/// How memory is to be filled.
#[derive(Clone, Debug, Default)]
pub struct LazyOptions {
    /// Serve the program's own instructions only, even where system calls could be served too.
    pub user_only: bool,
    /// Fill everything before the program goes on.
    pub eager: bool,
    /// Fill these streams before the program goes on.
    pub eager_streams: Vec<usize>,
}

/// How memory is being filled.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct How {
    /// Which faults are served; `None` if nothing is filled lazily.
    pub mode: Option<Mode>,
    /// Why memory that is long enough is filled before the program goes on; empty if none is.
    pub eager_because: String,
    /// Bytes filled while the program runs.
    pub lazy_bytes: u64,
}

/// How pages came to their place so far, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Moved as they were.
    pub moved_bytes: u64,
    /// Copied, for faults or since they could not be moved.
    pub copied_bytes: u64,
    /// First touches that were waited for.
    pub faults: u64,
}

/// Memory of a number of streams, filled while the program runs, as far as that is possible; all
/// else (small regions, memory that is shared, of a file, locked, or if the kernel gives no userfaultfd)
/// is to be filled before the program goes on. All methods may be called from any thread.
#[derive(Debug)]
pub struct LazyMemory {
    // Before `streams`: what is registered must still be there.
    fill: Option<Owner>,
    streams: Vec<MutRegion>,
    learnt: Learnt,
    how: How,
}

/// Whoever waits for a fill when its memory goes waits in vain, and is told.
#[derive(Debug)]
struct Owner(Arc<MemoryFill>);

impl Deref for Owner {
    type Target = MemoryFill;
    fn deref(&self) -> &MemoryFill {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if !self.0.is_ours() {
            // It is never dropped here. Only address space is lost: a fork waits until all is filled.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        if !self.0.is_over() {
            self.0.give_up();
        }
        self.0.detach();
    }
}

impl LazyMemory {
    /// Memory for stream 0, 1 and so on. What it holds is dropped as far as it will be filled lazily.
    ///
    /// # Errors
    /// `Invalid` for memory that cannot exist: a null address, or more bytes than memory can hold.
    pub fn new(streams: Vec<MutRegion>, options: LazyOptions) -> Result<LazyMemory> {
        check_possible(&streams)?;
        let learnt = Learnt::new(streams.iter().map(MutRegion::length));
        let mut how = How::default();
        let fill = arm_all(&streams, &options, &mut how).map(Arc::new);
        if let Some(fill) = &fill {
            under_way::watch(fill);
        }
        Ok(LazyMemory { fill: fill.map(Owner), streams, learnt, how })
    }

    /// How it is filled.
    pub fn how(&self) -> &How {
        &self.how
    }

    /// How pages came so far.
    pub fn traffic(&self) -> Traffic {
        let Some(fill) = &self.fill else { return Traffic::default() };
        Traffic {
            moved_bytes: fill.counts.moved.load(Ordering::Relaxed),
            copied_bytes: fill.counts.copied.load(Ordering::Relaxed),
            faults: fill.counts.faults.load(Ordering::Relaxed),
        }
    }

    /// Which pages fresh memory was made of and why, for people; `None` if there was none to speak of.
    pub fn fresh_report(&self) -> Option<String> {
        let [small, huge] = self.fill.as_ref().map_or([0; 2], |fill| fill.touched());
        let [eager_small, eager_huge] = touched(&self.streams);
        fresh::report([small + eager_small, huge + eager_huge])
    }

    fn filling(&self, stream: usize) -> Option<(&MemoryFill, &Filling)> {
        let fill: &MemoryFill = self.fill.as_ref()?;
        fill.filling(stream).map(|filling| (fill, filling))
    }

    /// Length of a stream in bytes.
    pub fn length(&self, stream: usize) -> usize {
        self.streams[stream].length()
    }

    /// True if a stream is filled while the program runs, but for its edges.
    pub fn is_lazy(&self, stream: usize) -> bool {
        self.filling(stream).is_some()
    }

    /// Bytes of lazy streams that share a page with other memory. The program must wait for them.
    pub fn edges(&self) -> Vec<(usize, Range<u64>)> {
        let Some(fill) = &self.fill else { return Vec::new() };
        fill.edges(&|stream| self.streams[stream].length())
    }

    /// Takes bytes of an edge.
    ///
    /// # Panics
    /// If the range is part of no edge.
    pub fn write_edge(&self, stream: usize, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        let mut edges = self.edges().into_iter();
        assert!(
            edges.any(|(of, edge)| of == stream && edge.start <= offset && end <= edge.end),
            "{} bytes at {offset} of stream {stream} are no part of an edge",
            bytes.len()
        );
        self.streams[stream].0.write(offset as usize, bytes);
    }

    /// Takes bytes of a stream from a page on: whole pages, or up to the stream's end; none twice. What
    /// the program has got already, or changed since, stays as it is.
    ///
    /// # Panics
    /// If the range is another one.
    pub fn write(&self, stream: usize, offset: u64, bytes: &[u8]) {
        let at = whole_pages(&self.streams, stream, offset, bytes.len() as u64);
        self.learnt.write(stream, at, bytes);
        match self.filling(stream) {
            None => self.streams[stream].0.write(at, bytes),
            Some((fill, filling)) => fill.bring(filling, at, bytes.len(), Some(bytes)),
        }
    }

    /// The same, of zeros.
    ///
    /// # Panics
    /// As [`LazyMemory::write`].
    pub fn zero(&self, stream: usize, offset: u64, length: u64) {
        let at = whole_pages(&self.streams, stream, offset, length);
        let length = length as usize;
        self.learnt.zero(stream, at, length);
        match self.filling(stream) {
            None => self.streams[stream].0.zero(at, length),
            Some((fill, filling)) => fill.bring(filling, at, length, None),
        }
    }

    /// Waits until the program waits for something that is not at hand. `None` once
    /// [`LazyMemory::stop`] was called, or if nothing is lazy.
    pub fn next_missing(&self) -> Option<Missing> {
        self.fill.as_ref()?.next_missing()
    }

    /// Leaves a fault to the background, which writes the rest of its unit ([`Missing::unit`]) next.
    pub fn expect(&self, missing: &Missing) {
        if let Some(fill) = &self.fill {
            fill.expect(missing);
        }
    }

    /// The background writes expected units late: their threads fault again.
    pub fn expect_nothing(&self) {
        if let Some(fill) = &self.fill {
            fill.expect_nothing();
        }
    }

    /// Serves a fault with all bytes of its range, verified. Without bytes it puts the range into place as it was written
    /// ([`Missing::is_written`]).
    ///
    /// # Panics
    /// If `bytes` has another length.
    pub fn deliver(&self, missing: &Missing, bytes: Option<&[u8]>) {
        let length = bytes.map_or(missing.length, <[u8]>::len);
        assert_eq!(missing.length, length, "what is missing must come whole");
        if let Some(fill) = &self.fill {
            fill.deliver(missing, bytes);
        }
    }

    /// Ends every [`LazyMemory::next_missing`], now and later. If all is whole, what is missing is zero
    /// from then on; if not, it stays missing until this value is dropped, and who waits for it waits.
    pub fn stop(&self) {
        if let Some(fill) = &self.fill {
            fill.stop();
        }
    }

    /// No more will come: waits and forks go on with what is there.
    pub fn give_up(&self) {
        if let Some(fill) = &self.fill {
            fill.give_up();
        }
    }

    /// To be called once all is whole, while the memory is there: takes back what was advised for the time
    /// of the restore. Otherwise that ends when this value goes, which may know the memory for long.
    pub fn end_advice(&self) {
        Advice::of(&self.streams).end();
    }

    /// Why the kernel did not take something, if it did not; the program cannot go on then.
    pub fn failure(&self) -> Option<Error> {
        self.fill.as_ref()?.failure()
    }

    /// Waits until a stream is whole, without one until all are; also ends if they never will be.
    /// False if that takes longer than `timeout`. System calls may use what is whole.
    pub fn wait(&self, stream: Option<usize>, timeout: Option<Duration>) -> bool {
        self.fill.as_ref().is_none_or(|fill| fill.wait_for(stream, timeout))
    }

    /// Hashes of a stream as it was stored, once all of it was brought: what the memory held before the
    /// program changed it.
    pub fn take_hashes(&self, stream: usize) -> Option<PageHashes> {
        self.learnt.take(stream, self.streams.get(stream)?.length() as u64)
    }

    /// A copy of a stream that is not lazy and whose memory is our own.
    pub fn copy_of(&self, stream: usize) -> Option<AlignedBuf> {
        let region = self.streams.get(stream)?;
        (region.0.is_owned() && !self.is_lazy(stream)).then(|| region.0.copy())
    }

    /// Reads a byte as a program does, and turns bits of it over: for tests and measurements, whose
    /// programs have no other way to memory that is ours. Returns what it was.
    ///
    /// # Panics
    /// If the memory is not our own ([`MutRegion::zeroed`]), or the offset lies outside.
    #[allow(unsafe_code)]
    pub fn touch(&self, stream: usize, offset: usize, flip: u8) -> u8 {
        let region = &self.streams[stream];
        assert!(region.0.is_owned() && offset < region.length(), "no byte of ours to touch");
        // SAFETY: the memory is ours and mapped until `streams` goes. That other threads use it by
        // `touch` only holds for lazy streams, which nothing else here reads or writes; others and
        // edges are written before the program may touch anything.
        unsafe { sys::touch(region.0.start() + offset, flip) }
    }

    /// The memory again, in the order given. Waits until it is whole, or never will be.
    pub fn into_streams(self) -> Vec<MutRegion> {
        self.wait(None, None);
        self.streams
    }
}

/// Why memory cannot be filled lazily that a job tracks, if one does: the kernel lets only one have it.
fn tracked(range: &Range<usize>) -> Option<String> {
    let who = holder(Pages { start: range.start, end: range.end })?;
    Some(format!(
        "memory is tracked: {who}; close that job before, or open its pool with tracker = \"hash\""
    ))
}

/// Registers what can be filled lazily.
fn arm_all(streams: &[MutRegion], options: &LazyOptions, how: &mut How) -> Option<MemoryFill> {
    if options.eager {
        "it was asked for".clone_into(&mut how.eager_because);
        return None;
    }
    let ranges = worth_it(streams, options, how);
    if ranges.is_empty() {
        return None;
    }
    let opened = Uffd::open(options.user_only)
        .map_err(|error| format!("the kernel gives no userfaultfd: {error}"))
        .and_then(|uffd| match PrivateMemory::read() {
            Ok(private) => Ok((uffd, private)),
            Err(error) => Err(format!("/proc/self/maps cannot be read: {error}")),
        });
    let armed = opened.and_then(|(uffd, private)| {
        // What they held is given up, of which the kernel says so.
        let armed = uffd.hearing(|| arm_each(&uffd, &private, streams, ranges, how));
        let none = |error| format!("no thread could be started: {error}");
        armed.map(|(fillings, notices)| (uffd, fillings, notices)).map_err(none)
    });
    match armed {
        Ok((_, fillings, _)) if fillings.is_empty() => None,
        Ok((uffd, fillings, notices)) => {
            how.mode = Some(uffd.mode);
            Some(MemoryFill::new(uffd, fillings, notices))
        }
        Err(because) => {
            how.eager_because = because;
            None
        }
    }
}

/// The whole pages of each stream that is long enough, by stream; the longest first.
fn worth_it(
    streams: &[MutRegion],
    options: &LazyOptions,
    how: &mut How,
) -> Vec<(usize, Range<usize>)> {
    let interior = |region: &MutRegion| {
        let start = region.0.start();
        let end = start.checked_add(region.length())? / PAGE_BYTES * PAGE_BYTES;
        let range = start.checked_next_multiple_of(PAGE_BYTES)?..end;
        (range.start < range.end && range.len() >= LAZY_FROM_BYTES).then_some(range)
    };
    let ranges = streams.iter().enumerate();
    let ranges = ranges.filter(|(stream, _)| !options.eager_streams.contains(stream));
    let mut ranges: Vec<_> =
        ranges.filter_map(|(stream, region)| Some((stream, interior(region)?))).collect();
    ranges.sort_by_key(|(_, range)| std::cmp::Reverse(range.len()));
    if ranges.len() > REGIONS_MAX {
        ranges.truncate(REGIONS_MAX);
        how.eager_because = format!("only {REGIONS_MAX} regions can be filled lazily");
    }
    ranges
}

/// Registers those of `ranges` that the kernel takes.
fn arm_each(
    uffd: &Uffd,
    private: &PrivateMemory,
    streams: &[MutRegion],
    ranges: Vec<(usize, Range<usize>)>,
    how: &mut How,
) -> Vec<Filling> {
    let mut fillings = Vec::new();
    for (stream, range) in ranges {
        if !private.holds(&range) {
            let shared = || "memory is shared, or of a file".to_owned();
            how.eager_because = tracked(&range).unwrap_or_else(shared);
            continue;
        }
        // Locked memory is refused here, before a shadow, which might be locked as well, is made.
        let armed = fill::arm(uffd, &range).and_then(|()| {
            let filling = Filling::new(stream, streams[stream].0.start(), range.clone());
            filling.map_err(|error| {
                let _ = uffd.unregister(&range);
                error.to_string()
            })
        });
        match armed {
            Ok(filling) => {
                how.lazy_bytes += range.len() as u64;
                fillings.push(filling);
            }
            Err(error) => {
                let other = || format!("memory cannot be filled lazily: {error}");
                how.eager_because = tracked(&range).unwrap_or_else(other);
            }
        }
    }
    fillings
}

#[cfg(test)]
mod tests;
