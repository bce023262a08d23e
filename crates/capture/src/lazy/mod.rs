//! Lazy restart: the program runs at once. Touched memory comes first, the rest in the background.
//!
//! [`LazyMemory`] is the memory that such a restore fills. It registers the whole pages of regions
//! with userfaultfd, so that the first touch of a missing page waits. The restore asks for the
//! awaited pages ([`LazyMemory::next_missing`]) and meanwhile brings everything else
//! ([`LazyMemory::write`]). The reasons are in `docs/design/012-lazy-restore.md`.

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

/// Least whole pages of a lazy region, in bytes. Smaller regions are filled before the program
/// continues: to wait for them would cost more.
pub const LAZY_FROM_BYTES: usize = 256 * 1024;
/// Most regions filled lazily, the longest first: each may split a mapping in three, of which Linux
/// allows 65,530.
const REGIONS_MAX: usize = 8192;

/// Options for filling memory.
#[derive(Clone, Debug, Default)]
pub struct LazyOptions {
    /// Serves the program's own instructions only, even where system calls could be served too.
    pub user_only: bool,
    /// Fills everything before the program continues.
    pub eager: bool,
    /// Streams to fill before the program continues.
    pub eager_streams: Vec<usize>,
}

/// Description of how memory is being filled.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct How {
    /// Faults that are served; `None` if nothing is filled lazily.
    pub mode: Option<Mode>,
    /// Reason why memory that is long enough is filled before the program continues; empty if none
    /// is.
    pub eager_because: String,
    /// Bytes filled while the program runs.
    pub lazy_bytes: u64,
}

/// Bytes placed so far in each way, and the number of faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Bytes of pages that were moved without a copy.
    pub moved_bytes: u64,
    /// Bytes copied, for faults or because they could not be moved.
    pub copied_bytes: u64,
    /// First touches that had to wait.
    pub faults: u64,
}

/// Memory of a number of streams, filled while the program runs, as far as that is possible. All
/// else must be filled before the program continues: small regions, and memory that is shared, of a
/// file, or locked. So must all memory if the kernel gives no userfaultfd. All methods may be
/// called from any thread.
#[derive(Debug)]
pub struct LazyMemory {
    // Before `streams`: registered memory must still be mapped when this is dropped.
    fill: Option<Owner>,
    streams: Vec<MutRegion>,
    learnt: Learnt,
    how: How,
}

/// Owner of a fill: when its memory goes, threads that still wait for the fill get an error.
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
            // It is never dropped here. Only address space is lost: a fork waits until all is
            // filled.
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
    /// Takes the memory of stream 0, 1 and so on. Drops its content where it will be filled lazily.
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

    /// Returns how the memory is filled.
    pub fn how(&self) -> &How {
        &self.how
    }

    /// Returns how pages were placed so far.
    pub fn traffic(&self) -> Traffic {
        let Some(fill) = &self.fill else { return Traffic::default() };
        Traffic {
            moved_bytes: fill.counts.moved.load(Ordering::Relaxed),
            copied_bytes: fill.counts.copied.load(Ordering::Relaxed),
            faults: fill.counts.faults.load(Ordering::Relaxed),
        }
    }

    /// Describes the kind of pages of fresh memory and the reason, for people; `None` if there was
    /// hardly any.
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

    /// True if a stream is filled while the program runs, except for its edges.
    pub fn is_lazy(&self, stream: usize) -> bool {
        self.filling(stream).is_some()
    }

    /// Returns the bytes of lazy streams that share a page with other memory. The program must wait
    /// for them.
    pub fn edges(&self) -> Vec<(usize, Range<u64>)> {
        let Some(fill) = &self.fill else { return Vec::new() };
        fill.edges(&|stream| self.streams[stream].length())
    }

    /// Writes bytes of an edge.
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

    /// Receives bytes of a stream from a page on: whole pages, or up to the stream's end; none
    /// twice. Pages that the program already has, or has changed since, stay unchanged.
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

    /// Does the same with zeros.
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

    /// Waits until the program waits for bytes that are not available. `None` once
    /// [`LazyMemory::stop`] was called, or if nothing is lazy.
    pub fn next_missing(&self) -> Option<Missing> {
        self.fill.as_ref()?.next_missing()
    }

    /// Leaves a fault to the background, which writes the rest of its unit ([`Missing::unit`])
    /// next.
    pub fn expect(&self, missing: &Missing) {
        if let Some(fill) = &self.fill {
            fill.expect(missing);
        }
    }

    /// Makes the threads of expected units fault again, since the background writes these units
    /// late.
    pub fn expect_nothing(&self) {
        if let Some(fill) = &self.fill {
            fill.expect_nothing();
        }
    }

    /// Serves a fault with all bytes of its range, verified. Without bytes it places the range as
    /// it was written ([`Missing::is_written`]).
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

    /// Ends every [`LazyMemory::next_missing`], now and later. If all is whole, missing pages are
    /// zero from then on. If not, they stay missing until this value is dropped, and threads that
    /// touch them wait.
    pub fn stop(&self) {
        if let Some(fill) = &self.fill {
            fill.stop();
        }
    }

    /// Gives up the fill: waits and forks continue with the present content.
    pub fn give_up(&self) {
        if let Some(fill) = &self.fill {
            fill.give_up();
        }
    }

    /// Withdraws the advice that was given for the restore. Call it once all is whole, while the
    /// memory is mapped. Otherwise the advice ends when this value is dropped, which may be much
    /// later.
    pub fn end_advice(&self) {
        Advice::of(&self.streams).end();
    }

    /// Returns the kernel's refusal of restored bytes, if there was one; the program cannot
    /// continue then.
    pub fn failure(&self) -> Option<Error> {
        self.fill.as_ref()?.failure()
    }

    /// Waits until a stream is whole, or all of them if none is given; also ends if they never will
    /// be. False if that takes longer than `timeout`. System calls may use a stream that is whole.
    pub fn wait(&self, stream: Option<usize>, timeout: Option<Duration>) -> bool {
        self.fill.as_ref().is_none_or(|fill| fill.wait_for(stream, timeout))
    }

    /// Returns the hashes of a stream as stored, once all of it was brought: those of the content
    /// before the program changed it.
    pub fn take_hashes(&self, stream: usize) -> Option<PageHashes> {
        self.learnt.take(stream, self.streams.get(stream)?.length() as u64)
    }

    /// Returns a copy of a stream that is not lazy and whose memory is our own.
    pub fn copy_of(&self, stream: usize) -> Option<AlignedBuf> {
        let region = self.streams.get(stream)?;
        (region.0.is_owned() && !self.is_lazy(stream)).then(|| region.0.copy())
    }

    /// Reads a byte as a program does, and flips bits of it. For tests and measurements, whose
    /// programs cannot reach our memory in another way. Returns the old value.
    ///
    /// # Panics
    /// If the memory is not our own ([`MutRegion::zeroed`]), or the offset lies outside.
    #[allow(unsafe_code)]
    pub fn touch(&self, stream: usize, offset: usize, flip: u8) -> u8 {
        let region = &self.streams[stream];
        assert!(region.0.is_owned() && offset < region.length(), "no byte of ours to touch");
        // SAFETY: the memory is ours and mapped until `streams` is dropped. Other threads must use
        // it only through `touch`. That holds for lazy streams, which nothing else here reads or
        // writes. Other streams and edges are written before the program may touch anything.
        unsafe { sys::touch(region.0.start() + offset, flip) }
    }

    /// Waits until the memory is whole, or never will be. Returns it in the order given.
    pub fn into_streams(self) -> Vec<MutRegion> {
        self.wait(None, None);
        self.streams
    }
}

/// Returns the reason why memory that a job tracks cannot be filled lazily: the kernel gives it to
/// one user only.
fn tracked(range: &Range<usize>) -> Option<String> {
    let who = holder(Pages { start: range.start, end: range.end })?;
    Some(format!(
        "memory is tracked: {who}; close that job before, or open its pool with tracker = \"hash\""
    ))
}

/// Registers all memory that can be filled lazily.
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
        // The old content is dropped, which causes notices of the kernel.
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

/// Returns the whole pages of each stream that is long enough, by stream; the longest first.
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

/// Registers those of `ranges` that the kernel accepts.
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
        // The kernel refuses locked memory here, before a shadow exists, which might be locked as
        // well.
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
