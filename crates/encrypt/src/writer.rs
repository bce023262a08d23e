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
use std::sync::Arc;

/// Memory for encrypted bytes that stays between two shards.
const KEPT_BYTES: usize = 16 << 20;

pub(crate) struct EncryptedWriter {
    pub inner: Box<dyn ShardWriter>,
    pub shard: ShardName,
    pub bytes_max: u64,
    pub salt: [u8; SALT_BYTES],
    pub cipher: Secret<Cipher>,
    pub buffers: Arc<StagingPool>,
    /// Tags of the pages so far.
    pub tags: Vec<Option<PageTag>>,
    /// The encrypted bytes of writes that failed. A page is encrypted once: its bytes may have
    /// changed when the write is repeated, and two texts under one nonce would betray both.
    pub failed: Arc<Mutex<HashMap<u64, SharedBuf>>>,
}

impl EncryptedWriter {
    /// Returns the encrypted bytes of a write.
    fn encrypted(&mut self, offset: u64, bytes: &SharedBuf) -> Result<SharedBuf> {
        check_write(self.shard, offset, bytes, self.bytes_max)?;
        let first = offset as usize / PAGE_BYTES;
        let end = first + bytes.len() / PAGE_BYTES;
        if let Some(before) = self.failed.lock().get(&offset).filter(|it| it.len() == bytes.len()) {
            return Ok(before.clone());
        }
        if self.tags.len() < end {
            self.tags.resize(end, None);
        }
        if self.tags[first..end].iter().any(Option::is_some) {
            return Err(Error::bug(format!(
                "shard {} was to be written twice at {offset}",
                self.shard
            )));
        }
        let is_long = bytes.len() >= self.buffers.buffer_bytes() / 4;
        let mut copy = match if is_long { self.buffers.try_take() } else { None } {
            Some(mut buffer) if buffer.len() >= bytes.len() => {
                drop(buffer.split_off(bytes.len()));
                buffer
            }
            // The target holds many, or is silent: this must not wait for it.
            _ => AlignedBuf::try_not_inherited(bytes.len()).ok_or_else(|| {
                Error::retry("there is no memory for the encrypted bytes of a write")
            })?,
        };
        let pages = copy.chunks_mut(PAGE_BYTES).zip(bytes.chunks(PAGE_BYTES));
        for ((number, (page, plain)), tag) in
            (first as u64..).zip(pages).zip(&mut self.tags[first..])
        {
            // Page by page, so that the cipher finds the bytes in the cache.
            page.copy_from_slice(plain);
            *tag = Some(self.cipher.seal(page_nonce(number), &[], page)?);
        }
        Ok(copy.share())
    }
}

impl ShardWriter for EncryptedWriter {
    fn write(&mut self, offset: u64, bytes: SharedBuf) -> WriteTicket {
        let encrypted = match self.encrypted(offset, &bytes) {
            Ok(encrypted) => encrypted,
            Err(error) => return Ticket::done(Err(Fault { error, buffer: bytes })),
        };
        let failed = self.failed.clone();
        self.inner.write(offset, encrypted).map(move |outcome| match outcome {
            Ok(()) => {
                failed.lock().remove(&offset);
                Ok(())
            }
            Err(fault) => {
                failed.lock().insert(offset, fault.buffer);
                Err(Fault { error: fault.error, buffer: bytes })
            }
        })
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
