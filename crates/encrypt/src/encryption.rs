//! The data key of a pool in use.

use crate::pool_key::PoolKey;
use crate::secret::{Secret, clear_stack, fill_random};
use outlive_backend::ShardName;
use outlive_types::{Error, Result};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use std::fmt;

/// The cipher of all pools.
pub const CIPHER: &str = "AES-256-GCM";
pub(crate) const TAG_BYTES: usize = 16;
pub(crate) const SALT_BYTES: usize = 16;
const KEY_BYTES: usize = 32;
/// Begins each record and each small file.
const MAGIC: &[u8; 8] = b"OUTLVENC";

/// The data key, encrypted with a [`PoolKey`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WrappedKey {
    /// Random, of each wrapping.
    pub nonce: [u8; NONCE_LEN],
    /// The key, encrypted.
    pub key: [u8; KEY_BYTES],
    /// The tag of both.
    pub tag: [u8; TAG_BYTES],
}

impl WrappedKey {
    /// Length of its bytes.
    pub const BYTES: usize = NONCE_LEN + KEY_BYTES + TAG_BYTES;

    /// Returns its bytes.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..NONCE_LEN].copy_from_slice(&self.nonce);
        bytes[NONCE_LEN..NONCE_LEN + KEY_BYTES].copy_from_slice(&self.key);
        bytes[NONCE_LEN + KEY_BYTES..].copy_from_slice(&self.tag);
        bytes
    }

    /// Reads it from its bytes.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> WrappedKey {
        let (nonce, rest) = bytes.split_at(NONCE_LEN);
        let (key, tag) = rest.split_at(KEY_BYTES);
        let mut wrapped =
            WrappedKey { nonce: [0; NONCE_LEN], key: [0; KEY_BYTES], tag: [0; TAG_BYTES] };
        wrapped.nonce.copy_from_slice(nonce);
        wrapped.key.copy_from_slice(key);
        wrapped.tag.copy_from_slice(tag);
        wrapped
    }
}

/// The keys of one pool, ready for use.
#[derive(Debug)]
pub struct Encryption {
    data_key: Secret<[u8; KEY_BYTES]>,
    /// Derives the key of each shard.
    shards: Secret<[u8; KEY_BYTES]>,
    /// Encrypts records and small files.
    records: Secret<Cipher>,
    /// Derives their nonces.
    nonces: Secret<[u8; KEY_BYTES]>,
}

impl Encryption {
    /// Returns the encryption of a new pool, with a random data key.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new() -> Result<Encryption> {
        let mut data_key = Secret::new(|| [0; KEY_BYTES])?;
        fill_random(data_key.get_mut())?;
        Encryption::of(data_key)
    }

    /// Returns all keys, masked.
    #[cfg(test)]
    pub(crate) fn secrets(
        &self,
        pool_key: &PoolKey,
        masked: impl Fn(&[u8]) -> Vec<u8>,
    ) -> [Vec<u8>; 4] {
        [&self.data_key[..], &self.shards[..], &self.nonces[..], &pool_key.bytes()[..]].map(masked)
    }

    fn of(data_key: Secret<[u8; KEY_BYTES]>) -> Result<Encryption> {
        let derived = |context: &str| Secret::new(|| blake3::derive_key(context, &*data_key));
        let (shards, nonces) =
            (derived("outlive 2026 keys of shards")?, derived("outlive 2026 nonces of records")?);
        let records = derived("outlive 2026 records")?;
        let records = Secret::new(|| Cipher::new(&records))?;
        Ok(Encryption { shards, nonces, records, data_key })
    }

    /// Encrypts the data key for the descriptor of a pool.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn wrap(&self, pool_id: &str, with: &PoolKey) -> Result<WrappedKey> {
        let mut nonce = [0; NONCE_LEN];
        fill_random(&mut nonce)?;
        // The plaintext stays in memory of its own until it is encrypted.
        let mut key = Secret::new(|| (*self.data_key, [0; TAG_BYTES]))?;
        let wrapping = wrapping_key(with)?;
        let (bytes, tag) = key.get_mut();
        *tag = wrapping.seal(nonce, &[CIPHER.as_bytes(), pool_id.as_bytes()].concat(), bytes)?;
        Ok(WrappedKey { nonce, key: *bytes, tag: *tag })
    }

    /// Decrypts the data key of a pool.
    ///
    /// # Errors
    /// `Invalid` if that was encrypted with another key.
    pub(crate) fn unwrap(
        wrapped: &WrappedKey,
        pool_id: &str,
        with: &PoolKey,
    ) -> Result<Encryption> {
        let mut key = Secret::new(|| wrapped.key)?;
        let wrapping = wrapping_key(with)?;
        let context = [CIPHER.as_bytes(), pool_id.as_bytes()].concat();
        match wrapping.open(wrapped.nonce, &context, &wrapped.tag, key.get_mut()) {
            true => Encryption::of(key),
            false => Err(Error::invalid(format!(
                "{with} is not the key of this pool: give the pool's own key, without which its data is \
                 lost. If the key was changed, [encryption] may be an old one: of all packs/.key.toml \
                 of the targets, the one with the highest number is the present one"
            ))),
        }
    }

    /// Returns the cipher of one shard.
    pub(crate) fn shard(
        &self,
        shard: ShardName,
        salt: &[u8; SALT_BYTES],
    ) -> Result<Secret<Cipher>> {
        let parts = [&salt[..], &shard.pack.0, &[shard.shard]];
        let key = Secret::new(|| keyed_hash(&self.shards, &parts))?;
        Secret::new(|| Cipher::new(&key))
    }

    /// Encrypts a record or a small file. The same bytes in the same context give the same result,
    /// so that a repeated append finds its own record.
    ///
    /// # Errors
    /// `Bug` if there are 64 GiB.
    pub fn encrypt(&self, context: &[u8], plain: &[u8]) -> Result<Vec<u8>> {
        let length = (context.len() as u64).to_le_bytes();
        let hash = keyed_hash(&self.nonces, &[&length, context, plain]);
        clear_stack();
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&hash[..NONCE_LEN]);
        let head = MAGIC.len() + NONCE_LEN;
        let mut bytes = Vec::with_capacity(head + plain.len() + TAG_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&nonce);
        bytes.extend_from_slice(plain);
        let tag = self.records.seal(nonce, context, &mut bytes[head..])?;
        bytes.extend_from_slice(&tag);
        Ok(bytes)
    }

    /// Decrypts what [`Encryption::encrypt`] made in the same context.
    ///
    /// # Errors
    /// `Damaged` for other bytes: they were changed, or belong elsewhere.
    pub fn decrypt(&self, context: &[u8], mut bytes: Vec<u8>) -> Result<Vec<u8>> {
        let damaged = |what| {
            Err(Error::damaged(format!("{what}: the bytes were changed, or are of another pool")))
        };
        let head = MAGIC.len() + NONCE_LEN;
        if bytes.len() < head + TAG_BYTES || !bytes.starts_with(MAGIC) {
            return damaged("it is not encrypted as this pool is");
        }
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(&bytes[bytes.len() - TAG_BYTES..]);
        bytes.truncate(bytes.len() - TAG_BYTES);
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&bytes[MAGIC.len()..head]);
        if !self.records.open(nonce, context, &tag, &mut bytes[head..]) {
            return damaged("its authentication tag does not fit");
        }
        bytes.drain(..head);
        Ok(bytes)
    }
}

/// Returns the hash of the parts. The caller clears the stack behind it, where the key was.
#[inline(never)]
fn keyed_hash(key: &[u8; KEY_BYTES], parts: &[&[u8]]) -> [u8; KEY_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

fn wrapping_key(with: &PoolKey) -> Result<Secret<Cipher>> {
    let key =
        Secret::new(|| blake3::derive_key("outlive 2026 wrapping of data keys", with.bytes()))?;
    Secret::new(|| Cipher::new(&key))
}

/// A key with its cipher.
pub(crate) struct Cipher(LessSafeKey);

impl Cipher {
    fn new(key: &[u8; KEY_BYTES]) -> Cipher {
        match UnboundKey::new(&AES_256_GCM, key) {
            Ok(key) => Cipher(LessSafeKey::new(key)),
            Err(_) => unreachable!("AES-256 has keys of 32 bytes"),
        }
    }

    /// Encrypts bytes in place, and returns their tag. No two texts may have one nonce.
    ///
    /// # Errors
    /// `Bug` for more bytes than the cipher can.
    pub fn seal(
        &self,
        nonce: [u8; NONCE_LEN],
        context: &[u8],
        bytes: &mut [u8],
    ) -> Result<[u8; TAG_BYTES]> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        match self.0.seal_in_place_separate_tag(nonce, Aad::from(context), bytes) {
            Ok(tag) => {
                let mut copy = [0; TAG_BYTES];
                copy.copy_from_slice(tag.as_ref());
                Ok(copy)
            }
            Err(_) => Err(Error::bug(format!("{} bytes cannot be encrypted at once", bytes.len()))),
        }
    }

    /// Decrypts bytes in place. Returns false, with undefined bytes, if the tag does not fit.
    #[must_use]
    pub fn open(
        &self,
        nonce: [u8; NONCE_LEN],
        context: &[u8],
        tag: &[u8; TAG_BYTES],
        bytes: &mut [u8],
    ) -> bool {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = Tag::from(*tag);
        self.0.open_in_place_separate_tag(nonce, Aad::from(context), tag, bytes, 0..).is_ok()
    }
}

/// Returns the nonce of a page of a shard: its number.
pub(crate) fn page_nonce(page: u64) -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    nonce[..8].copy_from_slice(&page.to_le_bytes());
    nonce
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cipher")
    }
}
