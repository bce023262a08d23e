//! The writer of an encrypted shard.

use crate::encryption::{Cipher, SALT_BYTES, page_nonce};
use crate::secret::Secret;
use crate::tags::{PageTag, encrypted_bytes, to_table};
use outlive_backend::writes::{check_finish, check_write};
use outlive_backend::{Fault, ShardName, ShardWriter, WriteTicket};
use outlive_io::{AlignedBuf, SharedBuf, StagingPool, Ticket};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, PAGE_BYTES, Result};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Memory for encrypted bytes that stays between two shards.
const KEPT_BYTES: usize = 16 << 20;

pub(crate) struct EncryptedWriter {
    pub inner: Box<dyn ShardWriter>,
    pub shard: ShardName,
    pub bytes_max: u64,
    pub salt: [u8; SALT_BYTES],
    pub cipher: Arc<Secret<Cipher>>,
    pub buffers: Arc<StagingPool>,
    /// Tags of the pages so far.
    pub tags: Vec<Option<PageTag>>,
    pub failed: Arc<Mutex<HashMap<u64, FailedWrite>>>,
}

/// The rest of a write that failed. A page is encrypted once: its bytes may have changed when the
/// write is repeated, and two texts under one nonce would betray both.
#[derive(Clone)]
pub(crate) enum FailedWrite {
    /// The encrypted bytes.
    Kept(SharedBuf),
    /// There was no memory to keep them.
    Lost,
}

impl EncryptedWriter {
    /// Returns the pages of a write.
    fn pages(&mut self, offset: u64, bytes: &SharedBuf) -> Result<Range<usize>> {
        check_write(self.shard, offset, bytes, self.bytes_max)?;
        let first = offset as usize / PAGE_BYTES;
        let end = first + bytes.len() / PAGE_BYTES;
        if self.tags.len() < end {
            self.tags.resize(end, None);
        }
        Ok(first..end)
    }

    /// Encrypts the bytes of a write in their place if no other holder reads them there, or else
    /// into a copy. Returns the plain bytes beside a copy.
    fn encrypted(
        &mut self,
        pages: Range<usize>,
        bytes: SharedBuf,
    ) -> std::result::Result<(SharedBuf, Option<SharedBuf>), Fault<SharedBuf>> {
        match bytes.own() {
            Ok(mut own) => match self.seal(pages, &mut own, None) {
                Ok(()) => Ok((own.share(), None)),
                Err(error) => Err(Fault { error, buffer: own.share() }),
            },
            Err(bytes) => {
                let copied = self.buffer_for(bytes.len()).and_then(|mut copy| {
                    self.seal(pages, &mut copy, Some(&bytes)).map(|()| copy.share())
                });
                match copied {
                    Ok(copy) => Ok((copy, Some(bytes))),
                    Err(error) => Err(Fault { error, buffer: bytes }),
                }
            }
        }
    }

    fn buffer_for(&self, length: usize) -> Result<AlignedBuf> {
        let is_long = length >= self.buffers.buffer_bytes() / 4;
        match if is_long { self.buffers.try_take() } else { None } {
            Some(mut buffer) if buffer.len() >= length => {
                drop(buffer.split_off(length));
                Ok(buffer)
            }
            // The target holds many, or is silent: this must not wait for it.
            _ => AlignedBuf::try_not_inherited(length).ok_or_else(|| {
                Error::retry("there is no memory for the encrypted bytes of a write")
            }),
        }
    }

    /// Encrypts pages in place, or those of `from`.
    fn seal(&mut self, pages: Range<usize>, into: &mut [u8], from: Option<&[u8]>) -> Result<()> {
        let each = into.chunks_mut(PAGE_BYTES).zip(pages);
        for (at, (page, number)) in each.enumerate() {
            if let Some(plain) = from {
                // Page by page, so that the cipher finds the bytes in the cache.
                page.copy_from_slice(&plain[at * PAGE_BYTES..][..PAGE_BYTES]);
            }
            self.tags[number] = Some(self.cipher.seal(page_nonce(number as u64), &[], page)?);
        }
        Ok(())
    }

    /// Writes encrypted bytes. `plain` is what the caller gave, unless they took its place.
    fn pass_on(
        &mut self,
        offset: u64,
        encrypted: SharedBuf,
        plain: Option<SharedBuf>,
    ) -> WriteTicket {
        let failed = self.failed.clone();
        let first = offset as usize / PAGE_BYTES;
        let tags = match &plain {
            Some(_) => Vec::new(),
            None => self.tags[first..first + encrypted.len() / PAGE_BYTES].to_vec(),
        };
        let undo = Undo { cipher: self.cipher.clone(), first: first as u64, tags };
        self.inner.write(offset, encrypted).map(move |outcome| match outcome {
            Ok(()) => {
                failed.lock().remove(&offset);
                Ok(())
            }
            Err(Fault { error, buffer: encrypted }) => {
                let (left, buffer) = match plain {
                    Some(plain) => (FailedWrite::Kept(encrypted), plain),
                    None => undo.plain(encrypted),
                };
                failed.lock().insert(offset, left);
                Err(Fault { error, buffer })
            }
        })
    }
}

/// Gives a caller its bytes back after a write that failed.
struct Undo {
    cipher: Arc<Secret<Cipher>>,
    /// Number of the first page.
    first: u64,
    tags: Vec<Option<PageTag>>,
}

impl Undo {
    fn plain(&self, encrypted: SharedBuf) -> (FailedWrite, SharedBuf) {
        if let Some(mut copy) = AlignedBuf::try_not_inherited(encrypted.len()) {
            copy.copy_from_slice(&encrypted);
            self.open(&mut copy);
            return (FailedWrite::Kept(encrypted), copy.share());
        }
        match encrypted.own() {
            Ok(mut own) => {
                self.open(&mut own);
                (FailedWrite::Lost, own.share())
            }
            // The target still holds them.
            Err(_) => (FailedWrite::Lost, AlignedBuf::zeroed(0).share()),
        }
    }

    fn open(&self, bytes: &mut [u8]) {
        for ((number, page), tag) in
            (self.first..).zip(bytes.chunks_mut(PAGE_BYTES)).zip(&self.tags)
        {
            let is_open =
                tag.is_some_and(|tag| self.cipher.open(page_nonce(number), &[], &tag, page));
            debug_assert!(is_open, "the page was encrypted a moment ago");
        }
    }
}

impl ShardWriter for EncryptedWriter {
    fn write(&mut self, offset: u64, bytes: SharedBuf) -> WriteTicket {
        let refuse = |error, buffer| Ticket::done(Err(Fault { error, buffer }));
        let pages = match self.pages(offset, &bytes) {
            Ok(pages) => pages,
            Err(error) => return refuse(error, bytes),
        };
        let before = self.failed.lock().get(&offset).cloned();
        match before {
            Some(FailedWrite::Kept(before)) if before.len() == bytes.len() => {
                return self.pass_on(offset, before, Some(bytes));
            }
            Some(FailedWrite::Lost) => {
                return refuse(Error::retry("there was no memory to repeat a write"), bytes);
            }
            _ => {}
        }
        if self.tags[pages.clone()].iter().any(Option::is_some) {
            let what = format!("shard {} was to be written twice at {offset}", self.shard);
            return refuse(Error::bug(what), bytes);
        }
        match self.encrypted(pages, bytes) {
            Ok((encrypted, plain)) => self.pass_on(offset, encrypted, plain),
            Err(Fault { error, buffer }) => refuse(error, buffer),
        }
    }

    fn finish(mut self: Box<Self>, length: u64) -> Ticket<Result<()>> {
        if let Err(error) = check_finish(self.shard, length, self.bytes_max) {
            return Ticket::done(Err(error));
        }
        if self.tags.len() > length as usize / PAGE_BYTES {
            let what = format!("shard {} was to end before bytes that were written", self.shard);
            return Ticket::done(Err(Error::bug(what)));
        }
        self.tags.resize(length as usize / PAGE_BYTES, None);
        let Some(tags) = self.tags.iter().copied().collect::<Option<Vec<_>>>() else {
            return Ticket::done(Err(Error::bug(format!("shard {} has a hole", self.shard))));
        };
        let table = to_table(&self.salt, &tags);
        if !table.is_empty() {
            // The finish comes after all writes, and fails if this one does.
            drop(self.inner.write(length, table.share()));
        }
        let buffers = self.buffers;
        self.inner.finish(encrypted_bytes(length)).map(move |outcome| {
            buffers.keep(KEPT_BYTES);
            outcome
        })
    }
}
