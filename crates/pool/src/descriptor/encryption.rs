//! `[encryption]`: how the bytes of a pool are encrypted, and its data key, wrapped.

use outlive_backend::{Location, SmallFiles};
use outlive_encrypt::{CIPHER, Encryption, PoolKey, WrappedKey, unlock};
use outlive_types::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::sync::Arc;

/// Name of its table in `pool.toml`.
pub(crate) const ENCRYPTION: &str = "[encryption]";
/// File beside the descriptor and beside the packs of each target, with a copy of the wrapped key.
pub(crate) const KEY_COPY: &str = "packs/.key.toml";

/// `[encryption]`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EncryptionConfig {
    /// Name of the cipher.
    pub cipher: String,
    /// Number of the key, from 1; each change of the key makes the next one.
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub number: u32,
    /// The wrapped data key, in hexadecimal digits. Only the descriptor and its copies have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

fn first() -> u32 {
    1
}

fn is_first(number: &u32) -> bool {
    *number == first()
}

/// The content of such a file.
#[derive(Serialize, Deserialize)]
struct KeyCopy {
    pool_id: String,
    encryption: EncryptionConfig,
}

/// Writes a copy of the wrapped key in a location.
///
/// # Errors
/// Errors of the location.
pub(crate) fn copy_key(
    location: &Location,
    pool_id: &str,
    encryption: &EncryptionConfig,
) -> Result<()> {
    let copy = KeyCopy { pool_id: pool_id.to_owned(), encryption: encryption.clone() };
    let table = toml::to_string(&copy)
        .map_err(|e| Error::bug(format!("the copy of a key cannot be written: {e}")))?;
    let text = format!("# A copy of a table of pool.toml, in case that file is lost.\n\n{table}");
    location.write(KEY_COPY, text.as_bytes())
}

/// Returns the newest of a descriptor's table and the copy of it that is beside the descriptor. Each
/// change of the key writes that copy first.
pub(crate) fn newest_key(
    root: &Location,
    pool_id: &str,
    own: Option<EncryptionConfig>,
) -> Option<EncryptionConfig> {
    let own = own?;
    let text = root.read(KEY_COPY).ok().flatten().and_then(|text| String::from_utf8(text).ok());
    let copy = text
        .and_then(|text| toml::from_str::<KeyCopy>(&text).ok())
        .filter(|copy| copy.pool_id == pool_id && copy.encryption.check().is_ok());
    match copy {
        Some(copy) if copy.encryption.number > own.number => Some(copy.encryption),
        _ => Some(own),
    }
}

impl EncryptionConfig {
    /// Draws a data key for a new pool, and wraps it with the key that the environment names.
    ///
    /// # Errors
    /// `Invalid` without such a key.
    pub fn new(pool_id: &str) -> Result<EncryptionConfig> {
        let key = PoolKey::from_environment()?;
        Ok(EncryptionConfig::wrapped(first(), &Encryption::new()?.wrap(pool_id, &key)?))
    }

    /// Returns the table with this wrapped key.
    pub(crate) fn wrapped(number: u32, key: &WrappedKey) -> EncryptionConfig {
        let mut digits = String::new();
        for byte in key.to_bytes() {
            let _ = write!(digits, "{byte:02x}");
        }
        EncryptionConfig { cipher: CIPHER.to_owned(), number, key: Some(digits) }
    }

    /// Returns what a marker says of it.
    pub(crate) fn without_key(&self) -> EncryptionConfig {
        EncryptionConfig { key: None, number: first(), ..self.clone() }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.cipher != CIPHER {
            return Err(Error::invalid(format!(
                "{ENCRYPTION} has the cipher {:?}, and this build has {CIPHER} only",
                self.cipher
            )));
        }
        self.parsed().map(drop)
    }

    fn parsed(&self) -> Result<WrappedKey> {
        let Some(text) = &self.key else {
            return Err(Error::invalid(format!(
                "{ENCRYPTION} has no key: copy the table from {KEY_COPY} of a target"
            )));
        };
        let mut bytes = [0; WrappedKey::BYTES];
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let digits: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
        match digits.filter(|digits| digits.len() == bytes.len() && text.len() == 2 * bytes.len()) {
            Some(digits) => {
                bytes.copy_from_slice(&digits);
                Ok(WrappedKey::from_bytes(&bytes))
            }
            None => Err(Error::invalid(format!(
                "key in {ENCRYPTION} is not {} hexadecimal digits: copy the table from {KEY_COPY} of a \
                 target",
                2 * bytes.len()
            ))),
        }
    }

    /// Unwraps the data key.
    ///
    /// # Errors
    /// `Invalid` without the pool's key, or with another one.
    pub(crate) fn unlock(&self, pool_id: &str) -> Result<Arc<Encryption>> {
        unlock(&self.parsed()?, pool_id)
    }
}
