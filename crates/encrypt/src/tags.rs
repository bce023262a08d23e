//! The end of an encrypted shard: a table with the authentication tag of each page.
//!
//! A page of the table is `salt 16 | 255 tags of 16 bytes`. The salt is random, of each writer, and
//! a part of the shard's key. So two writers of one name never encrypt with the same key.

use crate::encryption::{Cipher, SALT_BYTES, TAG_BYTES, page_nonce};
use crate::secret::Secret;
use outlive_backend::ShardName;
use outlive_io::AlignedBuf;
use outlive_types::PAGE_BYTES;
use std::collections::HashMap;
use std::sync::Arc;

pub(crate) type PageTag = [u8; TAG_BYTES];

/// Tags in one page of the table.
const TAGS: u64 = ((PAGE_BYTES - SALT_BYTES) / TAG_BYTES) as u64;
const PAGE: u64 = PAGE_BYTES as u64;
/// Memory for tables: of shards with 8 GiB in all.
const CACHE_BYTES: usize = 32 << 20;

/// Returns the length of the table of a shard of `length` bytes.
pub(crate) fn table_bytes(length: u64) -> u64 {
    length.div_ceil(PAGE).div_ceil(TAGS) * PAGE
}

/// Returns the length of the encrypted form of a shard of `length` bytes.
pub(crate) fn encrypted_bytes(length: u64) -> u64 {
    let whole = length.div_ceil(PAGE).saturating_mul(PAGE);
    whole.saturating_add(table_bytes(length))
}

/// Returns the length of a shard, from that of its encrypted form; `None` if there is none.
pub(crate) fn plain_bytes(encrypted: u64) -> Option<u64> {
    let pages = encrypted / PAGE;
    let plain = (pages - pages.div_ceil(TAGS + 1)) * PAGE;
    (encrypted_bytes(plain) == encrypted).then_some(plain)
}

/// Returns the table of a shard.
pub(crate) fn to_table(salt: &[u8; SALT_BYTES], tags: &[PageTag]) -> AlignedBuf {
    let mut table = AlignedBuf::zeroed(table_bytes(tags.len() as u64 * PAGE) as usize);
    for (page, tags) in table.chunks_mut(PAGE_BYTES).zip(tags.chunks(TAGS as usize)) {
        let (head, rest) = page.split_at_mut(SALT_BYTES);
        head.copy_from_slice(salt);
        rest.chunks_mut(TAG_BYTES).zip(tags).for_each(|(at, tag)| at.copy_from_slice(tag));
    }
    table
}

/// Returns the salt of a table; `None` if its pages have several.
pub(crate) fn salt_of(table: &[u8]) -> Option<[u8; SALT_BYTES]> {
    let mut pages = table.chunks(PAGE_BYTES).map(|page| &page[..SALT_BYTES]);
    let first = pages.next()?;
    pages.all(|salt| salt == first).then_some(())?;
    first.try_into().ok()
}

/// The cipher of a shard, and the tags of its pages.
#[derive(Debug)]
pub(crate) struct ShardTags {
    cipher: Secret<Cipher>,
    tags: Vec<PageTag>,
}

impl ShardTags {
    /// Takes the tags of a shard of `length` bytes from its table.
    pub fn new(cipher: Secret<Cipher>, table: &[u8], length: u64) -> ShardTags {
        let pages = table.chunks(PAGE_BYTES).flat_map(|page| page[SALT_BYTES..].chunks(TAG_BYTES));
        let tags = pages.filter_map(|tag| tag.try_into().ok()).take((length / PAGE) as usize);
        ShardTags { cipher, tags: tags.collect() }
    }

    /// Returns the length of the shard.
    pub fn length(&self) -> u64 {
        self.tags.len() as u64 * PAGE
    }

    /// Decrypts pages from `offset` on, in place. Returns the buffer as an error, with undefined
    /// bytes, if one of them was changed.
    pub fn opened(&self, offset: u64, mut buffer: AlignedBuf) -> Result<AlignedBuf, AlignedBuf> {
        let mut pages = (offset / PAGE..).zip(buffer.chunks_mut(PAGE_BYTES));
        let fit = pages.all(|(number, page)| {
            let tag = self.tags.get(number as usize);
            tag.is_some_and(|tag| self.cipher.open(page_nonce(number), &[], tag, page))
        });
        if fit { Ok(buffer) } else { Err(buffer) }
    }

    fn bytes(&self) -> usize {
        self.tags.len() * TAG_BYTES + PAGE_BYTES
    }
}

/// The tables of the shards that were read last.
#[derive(Debug, Default)]
pub(crate) struct TagCache {
    known: HashMap<ShardName, (u64, Arc<ShardTags>)>,
    bytes: usize,
    uses: u64,
}

impl TagCache {
    pub fn get(&mut self, shard: ShardName) -> Option<Arc<ShardTags>> {
        self.uses += 1;
        let (used, tags) = self.known.get_mut(&shard)?;
        *used = self.uses;
        Some(tags.clone())
    }

    pub fn put(&mut self, shard: ShardName, tags: Arc<ShardTags>) {
        self.forget(shard);
        self.bytes += tags.bytes();
        self.uses += 1;
        self.known.insert(shard, (self.uses, tags));
        while self.bytes > CACHE_BYTES && self.known.len() > 1 {
            let oldest = self.known.iter().min_by_key(|(_, (used, _))| *used);
            let Some(oldest) = oldest.map(|(shard, _)| *shard) else { break };
            self.forget(oldest);
        }
    }

    pub fn forget(&mut self, shard: ShardName) {
        if let Some((_, tags)) = self.known.remove(&shard) {
            self.bytes -= tags.bytes();
        }
    }

    pub fn clear(&mut self) {
        *self = TagCache::default();
    }
}
