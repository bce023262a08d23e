//! Reads a range of a container from its data fragments, and lost or late ones from others.

use crate::layout::{Layout, Piece};
use crate::targets::{TargetSet, rather};
use outlive_backend::{Fault, ReadMode, ReadRange, ShardName};
use outlive_erasure::Code;
use outlive_io::{AlignedBuf, Promise, SystemTimer, Ticket, Timer};
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{Error, ErrorKind, PackId, Result};
use std::sync::Arc;
use std::time::Duration;

/// A reader checks whether a read is late after this multiple of the usual time, but not before
/// [`LATE_MIN`], and again after the same time.
const LATE: u32 = 4;
const LATE_MIN: Duration = Duration::from_millis(20);
const LATE_MAX: Duration = Duration::from_secs(1);
/// Microseconds of queued work of a target, above which others are read in its place.
const WAIT_MAX_US: u64 = 50_000;
/// Of this number of reads of a slow target one goes there, to find out whether it is still slow.
const LOOK_AGAIN: u32 = 256;

/// Reads pieces of one container into `buffer`, which is as long as all of them together.
pub(crate) fn read_pieces(
    targets: Arc<TargetSet>,
    mode: ReadMode,
    pack: PackId,
    layout: &Layout,
    pieces: Vec<Piece>,
    mut buffer: AlignedBuf,
) -> Ticket<Result<AlignedBuf>> {
    let code = layout.code.clone();
    let mut parts = Vec::with_capacity(pieces.len());
    for mut piece in pieces {
        if code.k() == 1 {
            // All copies are alike: reads alternate between them.
            piece.shard = (targets.count() as usize % layout.shards()) as u8;
        }
        let rest = buffer.split_off(piece.length);
        parts.push(RequestedPiece {
            piece,
            bytes: Bytes::None,
            extra: Vec::new(),
            room: Some(buffer),
        });
        buffer = rest;
    }
    let (promise, ticket) = Ticket::pair();
    let unusable = vec![false; layout.shards()];
    let state = State { parts, unusable, error: None, promise: Some(promise) };
    let reading = StripeRead { targets, mode, pack, code, state: Mutex::new(state) };
    Arc::new(reading).start();
    ticket
}

/// A read in progress.
struct StripeRead {
    targets: Arc<TargetSet>,
    mode: ReadMode,
    pack: PackId,
    code: Arc<Code>,
    state: Mutex<State>,
}

struct State {
    parts: Vec<RequestedPiece>,
    /// Shards that gave no bytes.
    unusable: Vec<bool>,
    /// Error of one of them. An error that may pass comes before damage.
    error: Option<Error>,
    promise: Option<Promise<Result<AlignedBuf>>>,
}

/// One of the pieces.
struct RequestedPiece {
    piece: Piece,
    bytes: Bytes,
    /// The same range of other fragments, to compute this one from them.
    extra: Vec<Extra>,
    /// Buffer of the piece, unless a read is using it.
    room: Option<AlignedBuf>,
}

enum Bytes {
    /// No read is in progress: it is computed from others.
    None,
    /// It is being read.
    Awaited,
    /// It is being read, and computed from others meanwhile.
    Late,
    /// In its buffer.
    Here(AlignedBuf),
    /// In another buffer: a late read has its own.
    Apart(AlignedBuf),
}

struct Extra {
    shard: u8,
    bytes: Option<AlignedBuf>,
}

/// A read to be started: of a part's own fragment, or of another one.
struct FragmentRead {
    part: usize,
    shard: u8,
    offset: u64,
    buffer: AlignedBuf,
}

impl RequestedPiece {
    fn bytes(&self) -> Option<&AlignedBuf> {
        match &self.bytes {
            Bytes::Here(bytes) | Bytes::Apart(bytes) => Some(bytes),
            _ => None,
        }
    }

    fn is_awaited(&self) -> bool {
        matches!(self.bytes, Bytes::Awaited | Bytes::Late)
    }

    /// Returns its bytes for the range of another piece.
    fn covering(&self, piece: &Piece) -> Option<&[u8]> {
        within(self.bytes()?, &self.piece, piece)
    }

    fn covers(&self, piece: &Piece) -> bool {
        let end = |piece: &Piece| piece.offset + piece.length as u64;
        self.piece.offset <= piece.offset && end(piece) <= end(&self.piece)
    }
}

impl StripeRead {
    fn start(self: Arc<Self>) {
        let can_go_around = self.code.m() > 0;
        let mut orders = Vec::new();
        {
            let mut state = self.lock();
            let mut spare = self.spare(&state);
            for number in 0..state.parts.len() {
                let Piece { shard, offset, .. } = state.parts[number].piece;
                if can_go_around && self.is_late(self.name(shard)) {
                    continue;
                }
                let wait_us = self.targets.wait_us(self.name(shard));
                let is_long = |least: &u64| wait_us >= WAIT_MAX_US && least * 2 <= wait_us;
                if spare.last().is_some_and(is_long) {
                    spare.pop();
                    continue;
                }
                let Some(buffer) = state.parts[number].room.take() else { continue };
                state.parts[number].bytes = Bytes::Awaited;
                orders.push(FragmentRead { part: number, shard, offset, buffer });
            }
        }
        if can_go_around && self.targets.reads_around() {
            self.clone().look_later();
        }
        self.clone().submit(orders);
        self.proceed();
    }

    /// Returns the queued work, in microseconds, of the targets whose shards belong to no part, the
    /// least last. Empty unless the parts are of k shards: to replace one would be more to read.
    fn spare(&self, state: &State) -> Vec<u64> {
        let k = self.code.k();
        if self.code.m() == 0 || k == 1 || state.parts.len() != k {
            return Vec::new();
        }
        let is_read =
            |shard: &usize| state.parts.iter().any(|part| usize::from(part.piece.shard) == *shard);
        let free = (0..state.unusable.len()).filter(|shard| !is_read(shard));
        let names = free.map(|shard| self.name(shard as u8));
        let mut waits: Vec<u64> = names
            .filter(|name| !self.targets.is_late(*name))
            .map(|name| self.targets.wait_us(name))
            .collect();
        waits.sort_unstable_by(|one, other| other.cmp(one));
        waits
    }

    fn look_later(self: Arc<Self>) {
        let usual = Duration::from_micros(self.targets.typical_read_us());
        let late = (usual * LATE).clamp(LATE_MIN, LATE_MAX);
        SystemTimer.after(late, Box::new(move || self.go_around_late()));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn name(&self, shard: u8) -> ShardName {
        ShardName { pack: self.pack, shard }
    }

    fn is_late(&self, shard: ShardName) -> bool {
        self.targets.is_late(shard) && !self.targets.count().is_multiple_of(LOOK_AGAIN)
    }

    fn is_overdue(&self, shard: u8) -> bool {
        self.targets.reads_around() && self.targets.is_overdue(self.name(shard))
    }

    /// Starts reads. Their results may be there before this returns.
    fn submit(self: Arc<Self>, orders: Vec<FragmentRead>) {
        for FragmentRead { part, shard, offset, buffer } in orders {
            let this = self.clone();
            let range = ReadRange { offset, buffer, mode: self.mode };
            let read = self.targets.read(self.name(shard), range);
            read.on_done(move |outcome| {
                let outcome = outcome.unwrap_or_else(|_| {
                    let error = Error::bug("a read panicked");
                    Err(Fault { error, buffer: AlignedBuf::zeroed(0) })
                });
                this.arrived(part, shard, outcome);
            });
        }
    }

    fn arrived(
        self: Arc<Self>,
        number: usize,
        shard: u8,
        outcome: std::result::Result<AlignedBuf, Fault<AlignedBuf>>,
    ) {
        {
            let mut state = self.lock();
            if state.promise.is_none() {
                return; // it is too late; its buffer is returned
            }
            let is_own = state.parts[number].piece.shard == shard;
            match outcome {
                Ok(bytes) if is_own => {
                    let part = &mut state.parts[number];
                    // If it was computed from others already, the bytes are the same.
                    part.bytes = Bytes::Here(bytes);
                }
                Ok(bytes) => {
                    let part = &mut state.parts[number];
                    let extra = part.extra.iter_mut().find(|extra| extra.shard == shard);
                    if let Some(extra) = extra {
                        extra.bytes = Some(bytes);
                    }
                }
                Err(Fault { error, buffer }) => {
                    match error.kind() {
                        ErrorKind::Damaged => self.targets.is_lost(self.name(shard)),
                        _ => self.targets.forget(self.name(shard)),
                    }
                    state.unusable[usize::from(shard)] = true;
                    state.error = Some(rather(state.error.take(), error));
                    let part = &mut state.parts[number];
                    if is_own && part.is_awaited() {
                        part.bytes = Bytes::None;
                        part.room = (buffer.len() == part.piece.length).then_some(buffer);
                    }
                    part.extra.retain(|extra| extra.shard != shard);
                }
            }
        }
        self.proceed();
    }

    /// Computes pieces from the others if their target is slower than those, and those come first.
    /// If all targets are slow alike, it would only be more to read.
    fn go_around_late(self: Arc<Self>) {
        {
            let mut state = self.lock();
            if state.promise.is_none() {
                return;
            }
            for part in &mut state.parts {
                let is_awaited = matches!(part.bytes, Bytes::Awaited);
                if is_awaited && self.is_overdue(part.piece.shard) {
                    part.bytes = Bytes::Late;
                }
            }
        }
        self.clone().look_later();
        self.proceed();
    }

    /// Computes pieces where that is possible, starts the reads that others need, and answers once
    /// all is there or nothing more can come.
    fn proceed(self: Arc<Self>) {
        let mut state = self.lock();
        let mut orders = Vec::new();
        for number in 0..state.parts.len() {
            if !matches!(state.parts[number].bytes, Bytes::None | Bytes::Late) {
                continue;
            }
            match self.make(&mut state, number) {
                Ok(true) => {}
                Ok(false) => self.ask(&mut state, number, &mut orders),
                Err(error) => return Self::answer(state, Err(error)),
            }
        }
        // A computed piece may have been what another one waited for. No further pass is needed,
        // since each needs only bytes that were read.
        if state.parts.iter().all(|part| part.bytes().is_some()) {
            let parts = std::mem::take(&mut state.parts);
            return Self::answer(state, together(parts));
        }
        if orders.is_empty() && !self.can_come(&state) {
            let error = state.error.clone();
            let error = error.unwrap_or_else(|| Error::damaged("too few of its shards are there"));
            return Self::answer(state, Err(error));
        }
        drop(state);
        self.submit(orders);
    }

    /// Returns whether any read is in progress.
    fn can_come(&self, state: &State) -> bool {
        let is_awaited = |part: &RequestedPiece| {
            part.is_awaited() || part.extra.iter().any(|extra| extra.bytes.is_none())
        };
        state.parts.iter().any(is_awaited)
    }

    fn answer(mut state: MutexGuard<'_, State>, answer: Result<AlignedBuf>) {
        let promise = state.promise.take();
        drop(state);
        if let Some(promise) = promise {
            promise.fulfil(answer);
        }
    }

    /// Computes a part from k others, if they are there.
    fn make(&self, state: &mut State, number: usize) -> Result<bool> {
        let piece = state.parts[number].piece;
        let room = state.parts[number].room.take();
        let mut given: Vec<(usize, &[u8])> = Vec::with_capacity(self.code.k());
        for other in &state.parts {
            let bytes = other.covering(&piece);
            given.extend(bytes.map(|bytes| (usize::from(other.piece.shard), bytes)));
        }
        for (other, extra) in extras(&state.parts) {
            let shard = usize::from(extra.shard);
            // Its own fragment may have been read for another part.
            let is_new = extra.shard != piece.shard && given.iter().all(|(is, _)| *is != shard);
            let bytes = extra.bytes.as_ref().filter(|_| is_new);
            let bytes = bytes.and_then(|bytes| within(bytes, &other.piece, &piece));
            given.extend(bytes.map(|bytes| (shard, bytes)));
        }
        if given.len() < self.code.k() {
            state.parts[number].room = room;
            return Ok(false);
        }
        let is_late = room.is_none();
        let mut made = room.unwrap_or_else(|| self.targets.fragment(piece.length));
        self.code.rebuild(&given, &mut [(piece.shard.into(), &mut made)])?;
        // The bytes that were read for it may serve other parts.
        let part = &mut state.parts[number];
        part.bytes = if is_late { Bytes::Apart(made) } else { Bytes::Here(made) };
        Ok(true)
    }

    /// Orders as many other fragments as a part needs beyond those that are there or on their way.
    fn ask(&self, state: &mut State, number: usize, orders: &mut Vec<FragmentRead>) {
        let piece = state.parts[number].piece;
        let mut used = vec![false; state.unusable.len()];
        used[usize::from(piece.shard)] = true;
        let mut coming = 0;
        for (_, extra) in extras(&state.parts).filter(|(other, _)| other.covers(&piece)) {
            // Its target may never answer: then others are read as well.
            let comes = extra.bytes.is_some() || !self.is_overdue(extra.shard);
            let was_used = std::mem::replace(&mut used[usize::from(extra.shard)], true);
            coming += usize::from(comes && !was_used);
        }
        for part in state.parts.iter().filter(|part| part.piece.shard != piece.shard) {
            // A late one may never come.
            let comes = part.bytes().is_some() || matches!(part.bytes, Bytes::Awaited);
            if comes && part.covers(&piece) && !used[usize::from(part.piece.shard)] {
                used[usize::from(part.piece.shard)] = true;
                coming += 1;
            }
        }
        let free = |shard: &usize| !used[*shard] && !state.unusable[*shard];
        let mut candidates: Vec<usize> = (0..used.len()).filter(free).collect();
        candidates.sort_by_key(|shard| {
            let name = self.name(*shard as u8);
            (self.targets.is_late(name), self.targets.wait_us(name))
        });
        let needed = self.code.k().saturating_sub(coming);
        let own = &mut state.parts[number];
        if candidates.len() < needed
            && matches!(own.bytes, Bytes::None)
            && !state.unusable[usize::from(piece.shard)]
            && let Some(buffer) = own.room.take()
        {
            // It was not read since it is lost, or its target is slow; the others are not enough.
            own.bytes = Bytes::Awaited;
            orders.push(FragmentRead {
                part: number,
                shard: piece.shard,
                offset: piece.offset,
                buffer,
            });
        }
        for shard in candidates.into_iter().take(needed) {
            let shard = shard as u8;
            state.parts[number].extra.push(Extra { shard, bytes: None });
            let buffer = self.targets.fragment(piece.length);
            orders.push(FragmentRead { part: number, shard, offset: piece.offset, buffer });
        }
    }
}

/// Returns the range of `piece` in `bytes`, which are those of `there`.
fn within<'a>(bytes: &'a [u8], there: &Piece, piece: &Piece) -> Option<&'a [u8]> {
    let start = piece.offset.checked_sub(there.offset)? as usize;
    bytes.get(start..start + piece.length)
}

/// Returns the reads of other shards, each with the part that needs it.
fn extras(parts: &[RequestedPiece]) -> impl Iterator<Item = (&RequestedPiece, &Extra)> {
    parts.iter().flat_map(|part| part.extra.iter().map(move |extra| (part, extra)))
}

/// Joins all parts in one buffer.
fn together(parts: Vec<RequestedPiece>) -> Result<AlignedBuf> {
    let total: usize = parts.iter().map(|part| part.piece.length).sum();
    if parts.iter().any(|part| matches!(part.bytes, Bytes::Apart(_))) {
        let mut whole = AlignedBuf::zeroed(total);
        let mut at = 0;
        for part in &parts {
            let bytes = part.bytes().ok_or_else(|| Error::bug("a part is missing"))?;
            whole[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
        return Ok(whole);
    }
    let mut whole: Option<AlignedBuf> = None;
    for part in parts {
        let Bytes::Here(bytes) = part.bytes else { return Err(Error::bug("a part is missing")) };
        whole = Some(match whole {
            None => bytes,
            Some(before) => {
                before.unsplit(bytes).map_err(|_| Error::bug("parts of several buffers"))?
            }
        });
    }
    whole.ok_or_else(|| Error::bug("a read of nothing"))
}
