//! Parts that all structures share: little-endian fields, magic and version, checksums.

use crate::VERSION;
use outlive_types::{Error, Fingerprint, PackId, Result, SessionId};
use std::fmt::Display;

/// Returns the BLAKE3 hash of `bytes`: the name of a chunk, node, directory, segment or record.
pub fn fingerprint(bytes: &[u8]) -> Fingerprint {
    Fingerprint(*blake3::hash(bytes).as_bytes())
}

/// Returns XXH3-64 with seed 0, which protects bytes without a fingerprint against accidents.
pub fn checksum(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}

/// [`checksum`] of bytes that arrive piece by piece.
#[derive(Clone)]
pub struct Checksum(twox_hash::XxHash3_64);

impl Checksum {
    /// Returns the checksum of no bytes yet.
    pub fn new() -> Checksum {
        Checksum(twox_hash::XxHash3_64::new())
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        std::hash::Hasher::write(&mut self.0, bytes);
    }

    /// Returns the checksum of all bytes so far.
    pub fn value(&self) -> u64 {
        std::hash::Hasher::finish(&self.0)
    }
}

impl Default for Checksum {
    fn default() -> Self {
        Checksum::new()
    }
}

/// Result of a structure's own check: the fault, if there is one.
pub(crate) type Check = std::result::Result<(), String>;

/// Returns `Err` with the message unless the condition holds; for the `check` functions.
macro_rules! demand {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}
pub(crate) use demand;

/// Turns a failed check into the encoder's error.
pub(crate) fn encodable(what: &str, check: Check) -> Result<()> {
    check.map_err(|why| Error::bug(format!("refused to write a wrong {what}: {why}")))
}

pub(crate) fn damaged(what: &str, why: impl Display) -> Error {
    Error::damaged(format!("damaged {what}: {why}"))
}

/// Decodes a structure's bytes from front to back.
pub(crate) struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Reader<'a> {
        Reader { what, rest: bytes }
    }

    pub(crate) fn damaged(&self, why: impl Display) -> Error {
        damaged(self.what, why)
    }

    /// Turns a failed check into the decoder's error.
    pub(crate) fn accept(&self, check: Check) -> Result<()> {
        check.map_err(|why| self.damaged(why))
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn take(&mut self, bytes: usize) -> Result<&'a [u8]> {
        let Some((head, tail)) = self.rest.split_at_checked(bytes) else {
            return Err(self.damaged("it ends too early"));
        };
        self.rest = tail;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((head, tail)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.damaged("it ends too early"));
        };
        self.rest = tail;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn fingerprint(&mut self) -> Result<Fingerprint> {
        Ok(Fingerprint(self.array()?))
    }

    pub(crate) fn pack(&mut self) -> Result<PackId> {
        Ok(PackId(self.array()?))
    }

    pub(crate) fn session(&mut self) -> Result<SessionId> {
        Ok(SessionId(self.array()?))
    }

    pub(crate) fn text(&mut self, bytes: usize) -> Result<&'a str> {
        let taken = self.take(bytes)?;
        std::str::from_utf8(taken).map_err(|_| self.damaged("a text is not UTF-8"))
    }

    /// Skips reserved bytes.
    pub(crate) fn reserved(&mut self, bytes: usize) -> Result<()> {
        if self.take(bytes)?.iter().any(|&byte| byte != 0) {
            return Err(self.damaged("reserved bytes are not zero"));
        }
        Ok(())
    }

    /// Skips the room for encryption and features of later builds. This build leaves it zero.
    ///
    /// # Errors
    /// `Invalid` for any other value: a later build has written it.
    pub(crate) fn room(&mut self, bytes: usize) -> Result<()> {
        if self.take(bytes)?.iter().any(|&byte| byte != 0) {
            return Err(Error::newer(format!(
                "this {} needs features of a later build, such as encryption: use the build that \
                 wrote it",
                self.what
            )));
        }
        Ok(())
    }

    /// Reads and checks magic and version.
    pub(crate) fn begin(&mut self, magic: &[u8]) -> Result<()> {
        if self.take(magic.len())? != magic {
            return Err(self.damaged("it does not begin with its magic number"));
        }
        let version = self.u16()?;
        if version != VERSION {
            return Err(Error::invalid(format!(
                "this {} has format version {version}, this build reads version {VERSION}: use the \
                 build that wrote it",
                self.what
            )));
        }
        Ok(())
    }

    /// Checks a count of items of at least `each_bytes` bytes against the remaining bytes. So no
    /// memory is reserved for items that cannot follow.
    pub(crate) fn count(&self, count: u64, each_bytes: usize) -> Result<usize> {
        match usize::try_from(count) {
            Ok(count) if count <= self.rest.len() / each_bytes => Ok(count),
            _ => Err(self.damaged(format!("{count} items do not fit its length"))),
        }
    }

    pub(crate) fn end(self) -> Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(self.damaged(format!("{} bytes too many", self.rest.len())))
    }
}

/// Encodes a structure's bytes from front to back.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn with_capacity(bytes: usize) -> Writer {
        Writer(Vec::with_capacity(bytes))
    }

    /// Begins with magic and version.
    pub(crate) fn begin(magic: &[u8], bytes: usize) -> Writer {
        let mut out = Writer::with_capacity(bytes);
        out.bytes(magic);
        out.u16(VERSION);
        out
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn reserved(&mut self, bytes: usize) {
        self.0.resize(self.0.len() + bytes, 0);
    }

    pub(crate) fn written(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}
