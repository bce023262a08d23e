//! A shard on its way to a bucket.
//!
//! Writes come in any order and in pieces that fit no part, and the first page comes last. They are
//! copied into parts, in memory of the upload's own, and their tickets are fulfilled at once. If a
//! buffer had to wait until its part is whole, it would be missing for the rest of the part, since
//! the supply of buffers is bounded. So a part that cannot be sent fails the finish, not the write;
//! before that, `object_store` repeats it for some seconds.
//!
//! The memory is bounded: writes wait while the bucket sends as many whole parts, of all its
//! shards, as [`Flow`](crate::flow::Flow) permits. Each shard also has its first part, which waits
//! for its header, and the part that is being filled.

use crate::bucket::{Bucket, Clients, PART_BYTES};
use crate::flow::{Open, Sending, Waits};
use crate::objects::{end_upload, name, new_marker};
use crate::parts::UploadPart;
use futures_util::future::{join, join_all, try_join_all};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use outlive_backend::runtime;
use outlive_backend::writes::{Writing, exists};
use outlive_backend::{Fault, ShardName, WriteTicket};
use outlive_io::{AlignedBuf, Promise, SharedBuf, Ticket};
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{Error, PAGE_BYTES, Result};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;

/// Most parts of an upload, by the rules of S3.
const PARTS_OF_UPLOAD_MAX: u64 = 10_000;

pub(crate) struct Upload {
    bucket: Arc<Bucket>,
    clients: Clients,
    pub handle: Handle,
    pub shard: ShardName,
    pub bytes_max: u64,
    /// True if it replaces a finished shard.
    replaces: bool,
    object: String,
    path: Path,
    /// Length of all parts but the last: some servers require equal lengths.
    part_bytes: usize,
    /// Set when the first part is whole. A shard of one part does not need it.
    started: OnceCell<Started>,
    state: Mutex<State>,
    _open: Open,
}

/// An upload that has begun on the server.
struct Started {
    id: String,
    /// Name of the object that names the upload.
    marker: String,
}

#[derive(Default)]
struct State {
    filling: BTreeMap<usize, UploadPart>,
    /// Parts that are being sent or were sent.
    whole: BTreeSet<usize>,
    sent: BTreeMap<usize, PartId>,
    tasks: Vec<JoinHandle<()>>,
    /// Writes that wait until fewer parts are being sent; if there are any, they are queued in the
    /// flow.
    waiting: VecDeque<Waiting>,
    failed: Option<Error>,
    /// First page of the shard, which distinguishes it from another one.
    first_page: Vec<u8>,
}

struct Waiting {
    offset: u64,
    bytes: SharedBuf,
    writing: Writing,
    promise: Promise<WriteResult>,
}

type WriteResult = std::result::Result<(), Fault<SharedBuf>>;

impl Upload {
    pub(crate) fn new(
        bucket: Arc<Bucket>,
        shard: ShardName,
        bytes_max: u64,
        replaces: bool,
    ) -> Result<Upload> {
        let object = name(shard, "shard");
        let pages = bytes_max.div_ceil(PARTS_OF_UPLOAD_MAX).div_ceil(PAGE_BYTES as u64);
        let least = usize::try_from(pages * PAGE_BYTES as u64).map_err(|_| {
            Error::invalid(format!("a shard of {bytes_max} bytes is too long for a bucket"))
        })?;
        let clients = bucket.clients()?;
        Ok(Upload {
            _open: clients.flow.open(),
            clients,
            handle: runtime::handle()?,
            path: bucket.path(&object)?,
            bucket,
            shard,
            bytes_max,
            replaces,
            object,
            part_bytes: least.max(PART_BYTES),
            started: OnceCell::new(),
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Copies the bytes, or queues the write until there is room.
    pub(crate) fn write(
        self: &Arc<Self>,
        offset: u64,
        bytes: SharedBuf,
        writing: Writing,
    ) -> WriteTicket {
        let mut state = self.lock();
        // A failure is reported at once.
        if state.failed.is_none()
            && (!state.waiting.is_empty() || !self.clients.flow.admits(self.clone()))
        {
            let (promise, ticket) = Ticket::pair();
            state.waiting.push_back(Waiting { offset, bytes, writing, promise });
            return ticket;
        }
        let taken = self.take(&mut state, offset, &bytes);
        drop(state);
        Ticket::done(writing.end(taken, bytes))
    }

    /// Copies the bytes into their parts, and sends whole parts.
    fn take(self: &Arc<Self>, state: &mut State, offset: u64, bytes: &[u8]) -> Result<()> {
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let (number, start) = self.place_of(offset + at as u64);
            let length = (bytes.len() - at).min(self.part_bytes - start);
            if state.whole.contains(&number) {
                let what =
                    format!("shard {}: bytes of part {number} are written twice", self.shard);
                return Err(Error::bug(what));
            }
            if let Entry::Vacant(place) = state.filling.entry(number) {
                place.insert(UploadPart::new(self.memory(number)?));
            }
            pieces.push((number, start, &bytes[at..at + length]));
            at += length;
        }
        for (number, start, piece) in pieces {
            if let Some(part) = state.filling.get_mut(&number) {
                part.put(start, piece);
                // Only the finish shows whether a shard of one part is whole.
                if part.is_full(self.part_bytes) && self.bytes_max > self.part_bytes as u64 {
                    self.send_whole(state, number);
                }
            }
        }
        Ok(())
    }

    /// Returns the part that has the byte `offset`, and the position in it.
    fn place_of(&self, offset: u64) -> (usize, usize) {
        let part_bytes = self.part_bytes as u64;
        // Both are small: a part's number is below 10,000.
        ((offset / part_bytes) as usize, (offset % part_bytes) as usize)
    }

    /// Returns memory for part `number`.
    fn memory(&self, number: usize) -> Result<AlignedBuf> {
        let start = number as u64 * self.part_bytes as u64;
        let rest = usize::try_from(self.bytes_max - start).unwrap_or(usize::MAX);
        let length = self.part_bytes.min(rest);
        let kept = if length <= PART_BYTES { self.clients.flow.memory().try_take() } else { None };
        kept.or_else(|| AlignedBuf::try_not_inherited(length))
            .ok_or_else(|| Error::no_memory("a part of a shard", length))
    }

    /// Begins to send a whole part.
    fn send_whole(self: &Arc<Self>, state: &mut State, number: usize) {
        let Some(part) = state.filling.remove(&number) else { return };
        let payload = part.into_payload(self.part_bytes);
        state.keep_first_page(number, &payload);
        state.whole.insert(number);
        let (upload, sending) = (self.clone(), self.clients.flow.sending());
        state.tasks.push(self.handle.spawn(async move {
            let sent = upload.send(number, payload).await;
            upload.part_ended(sent, sending);
        }));
    }

    /// Records the result of a part, and resumes uploads that waited for its end.
    fn part_ended(self: &Arc<Self>, sent: Result<(usize, PartId)>, sending: Sending) {
        let failed = sent.is_err();
        {
            let mut state = self.lock();
            match sent {
                Ok((number, id)) => drop(state.sent.insert(number, id)),
                Err(error) => drop(state.failed.get_or_insert(error)),
            }
        }
        if failed {
            self.clone().resume();
        }
        drop(sending);
    }

    async fn send(&self, number: usize, payload: PutPayload) -> Result<(usize, PartId)> {
        let _free = self.clients.uploads_free.acquire().await;
        let started = self.started.get_or_try_init(|| self.start()).await?;
        let sent = self.clients.uploads.put_part(&self.path, &started.id, number, payload).await;
        let fault = |error| match self.is_gone(&error) {
            true => self.removed(),
            false => self.bucket.explain("writing", &self.object, &error),
        };
        sent.map(|id| (number, id)).map_err(fault)
    }

    /// Begins the upload, and names it before it uses space.
    async fn start(&self) -> Result<Started> {
        let id = self.clients.uploads.create_multipart(&self.path).await;
        let id = id.map_err(|error| self.bucket.explain("beginning", &self.object, &error))?;
        // A new name: an abandoned upload of this shard may still be about to remove its own.
        let marker = new_marker(self.shard, self.replaces);
        if let Err(error) = self.bucket.put(&marker, id.clone().into_bytes()).await {
            let _ = end_upload(&self.bucket, self.shard, &marker, id).await;
            return Err(error);
        }
        Ok(Started { id, marker })
    }

    /// Sends the remaining parts and makes the shard visible.
    pub(crate) async fn finish(self: &Arc<Self>, length: u64) -> Result<()> {
        let count = (length.div_ceil(self.part_bytes as u64) as usize).max(1);
        let rest = self.rest(length, count)?;
        let made = match count {
            1 if rest.len() == 1 => self.put(rest).await,
            _ => self.complete(rest, count).await,
        };
        if self.replaces {
            // After an error the new shard cannot be distinguished from the old one, as both may
            // begin with the same page.
            made?;
            // A gc that found the name would believe that the upload is still in progress.
            if let Some(started) = self.started.get() {
                let _ = self.bucket.delete(&started.marker).await;
            }
            return Ok(());
        }
        if let Err(error) = made {
            self.settle(length, error).await?;
        }
        self.forget_marker();
        Ok(())
    }

    /// Returns those of the `count` parts of a shard of `length` bytes that are not sent yet.
    fn rest(&self, length: u64, count: usize) -> Result<Vec<(usize, PutPayload)>> {
        let mut state = self.lock();
        state.check(self.shard)?;
        let end_of_whole = state.whole.last().map_or(0, |last| (last + 1) as u64);
        if end_of_whole * self.part_bytes as u64 > length {
            let what = format!("shard {} was written past its end at {length}", self.shard);
            return Err(Error::bug(what));
        }
        let mut rest = Vec::new();
        for number in 0..count {
            if state.whole.contains(&number) {
                continue;
            }
            let part = match state.filling.remove(&number) {
                Some(part) => part,
                None => UploadPart::new(self.memory(number)?),
            };
            let left = length - number as u64 * self.part_bytes as u64;
            let payload = part.into_payload(left.min(self.part_bytes as u64) as usize);
            state.keep_first_page(number, &payload);
            rest.push((number, payload));
        }
        Ok(rest)
    }

    /// Puts a shard of one part.
    async fn put(&self, rest: Vec<(usize, PutPayload)>) -> Result<()> {
        let _free = self.clients.uploads_free.acquire().await;
        let payload = rest.into_iter().next().map_or_else(PutPayload::new, |(_, payload)| payload);
        let put = self.clients.uploads.put(&self.path, payload).await;
        put.map(drop).map_err(|error| self.bucket.explain("writing", &self.object, &error))
    }

    /// Sends the remaining parts, and makes the server join all `count` of them.
    async fn complete(&self, rest: Vec<(usize, PutPayload)>, count: usize) -> Result<()> {
        let sent = rest.into_iter().map(|(number, payload)| self.send(number, payload));
        // Together with those in progress. The state has their results.
        let tasks = std::mem::take(&mut self.lock().tasks);
        let (sent, _) = join(try_join_all(sent), join_all(tasks)).await;
        let mut parts = {
            let mut state = self.lock();
            state.check(self.shard)?;
            std::mem::take(&mut state.sent)
        };
        let sent = sent?;
        parts.extend(sent);
        if !parts.keys().copied().eq(0..count) {
            return Err(Error::bug(format!("shard {} lacks one of {count} parts", self.shard)));
        }
        let started = self.started.get_or_try_init(|| self.start()).await?;
        let parts = parts.into_values().collect();
        let completed =
            self.clients.uploads.complete_multipart(&self.path, &started.id, parts).await;
        completed.map(drop).map_err(|error| match self.is_gone(&error) {
            true => self.removed(),
            false => self.bucket.explain("completing", &self.object, &error),
        })
    }

    /// Checks whether the shard exists in spite of `error`. The reply to an earlier attempt may
    /// have been lost, and a server forgets a complete upload.
    async fn settle(&self, length: u64, error: Error) -> Result<()> {
        let first_page = self.lock().first_page.clone();
        match self.bucket.first_bytes(&self.object, PAGE_BYTES as u64).await {
            Ok(Some((page, there))) if there == length && page == first_page => Ok(()),
            Ok(Some(_)) => Err(exists(&self.bucket.describe(), self.shard)),
            Ok(None) => Err(error),
            Err(unknown) => {
                // After a failure, the caller writes the bytes again under another name.
                let _ = self.bucket.delete(&self.object).await;
                let what = format!("it is not known whether shard {} was finished", self.shard);
                Err(error.context(format!("{what} ({unknown})")))
            }
        }
    }

    /// Returns whether the server does not know the upload.
    fn is_gone(&self, error: &object_store::Error) -> bool {
        self.started.get().is_some() && error.to_string().contains("NoSuchUpload")
    }

    fn removed(&self) -> Error {
        Error::retry(format!(
            "the upload of {} was ended before it was finished: a gc does that when its writer was \
             fenced, or seemed to be gone; if it was not fenced, try again",
            self.bucket.url(&self.object)
        ))
    }

    /// Removes the object that names the upload, without waiting: next to a finished shard it means
    /// nothing.
    fn forget_marker(self: &Arc<Self>) {
        let upload = self.clone();
        self.handle.spawn(async move {
            if let Some(started) = upload.started.get() {
                let _ = upload.bucket.delete(&started.marker).await;
            }
        });
    }

    /// Ends the upload without a shard. A gc removes the rest, which it finds by the upload's name.
    pub(crate) async fn discard(&self) {
        let tasks = std::mem::take(&mut self.lock().tasks);
        tasks.iter().for_each(JoinHandle::abort);
        for task in tasks {
            let _ = task.await;
        }
        if let Some(Started { id, marker }) = self.started.get() {
            let _ = end_upload(&self.bucket, self.shard, marker, id.clone()).await;
        }
    }

    /// As [`Upload::discard`], in the background.
    pub(crate) fn abandon(self: &Arc<Self>) {
        let abandoned = Error::invalid("the shard was abandoned before this was done");
        let waiting = {
            let mut state = self.lock();
            state.failed.get_or_insert(abandoned.clone());
            state.filling.clear();
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(|waiting| waiting.end(Err(abandoned.clone())));
        let upload = self.clone();
        self.handle.spawn(async move { upload.discard().await });
    }
}

impl Waits for Upload {
    fn resume(self: Arc<Self>) {
        let mut taken = Vec::new();
        let mut state = self.lock();
        while !state.waiting.is_empty()
            && (state.failed.is_some() || self.clients.flow.admits_next(self.clone()))
        {
            let Some(next) = state.waiting.pop_front() else { break };
            let outcome = self.take(&mut state, next.offset, &next.bytes);
            taken.push((next, outcome));
        }
        // Not under the lock: the ticket's callback may write more.
        drop(state);
        taken.into_iter().for_each(|(waiting, outcome)| waiting.end(outcome));
    }
}

impl State {
    /// Returns the error of a part that could not be sent.
    fn check(&self, shard: ShardName) -> Result<()> {
        match &self.failed {
            Some(error) => Err(error.clone().context(format!("shard {shard}"))),
            None => Ok(()),
        }
    }

    fn keep_first_page(&mut self, number: usize, payload: &PutPayload) {
        if let (0, Some(first)) = (number, payload.iter().next()) {
            self.first_page = first[..first.len().min(PAGE_BYTES)].to_vec();
        }
    }
}

impl Waiting {
    fn end(self, outcome: Result<()>) {
        self.promise.fulfil(self.writing.end(outcome, self.bytes));
    }
}
