//! One thread's input to the packer: gathers new chunks into frames, compresses them where that is
//! configured and pays, and fills containers.

use super::frame_compression::FrameCompression;
use super::packer::Packer;
use outlive_chunk::{Compression, Compressor};
use outlive_format::EntryKind;
use outlive_pool::{Container, Pool};
use outlive_types::{Codec, Fingerprint, Result};
use std::time::{Duration, Instant};

/// Longest chunk that stays uncompressed with `auto` if it would be alone in its frame. To read a
/// page back costs less than its decompression, and a frame's description takes the bytes saved.
const LONE_BYTES_MAX: usize = 8 * 1024;

/// Most chunks in a frame: pieces of tiny files must not fill a directory.
const FRAME_CHUNKS_MAX: usize = 1024;

/// One thread's container, and the chunks on their way into it.
pub struct Lane<'a> {
    packer: &'a Packer<'a>,
    pool: &'a Pool,
    container: Option<Container>,
    compression: FrameCompression,
    compressor: Compressor,
    /// The codec to try on the frame being gathered.
    codec: Option<Codec>,
    /// The frame being gathered, and its chunks.
    raw: Vec<u8>,
    chunks: Vec<(Fingerprint, u32, EntryKind)>,
    /// Bytes that may still be stored uncompressed before the next decision.
    plain_bytes: usize,
    times: Times,
}

/// This thread's times since its last report to the policy.
struct Times {
    since: Instant,
    raw_bytes: u64,
    waited: Duration,
    compressing: Duration,
    /// Waiting time that the packer has not got yet.
    untold: Duration,
}

/// Raw bytes after which a lane reports their cost to the policy.
const TELL_BYTES: u64 = 8 << 20;

impl Times {
    fn new() -> Times {
        let (waited, compressing, untold) = Default::default();
        Times { since: Instant::now(), raw_bytes: 0, waited, compressing, untold }
    }
}

impl Packer<'_> {
    /// Returns a lane, by which one thread stores chunks without making others wait.
    pub fn lane(&self) -> Lane<'_> {
        Lane::new(self, self.pool, self.compression)
    }
}

impl<'a> Lane<'a> {
    pub(super) fn new(
        packer: &'a Packer<'a>,
        pool: &'a Pool,
        compression: FrameCompression,
    ) -> Lane<'a> {
        Lane {
            packer,
            pool,
            container: None,
            compression,
            compressor: Compressor::new(compression.level),
            codec: None,
            raw: Vec::new(),
            chunks: Vec::new(),
            plain_bytes: 0,
            times: Times::new(),
        }
    }

    /// Compresses the following chunks with other settings.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn set_squeezing(&mut self, compression: FrameCompression) -> Result<()> {
        if compression != self.compression {
            self.end_frame()?;
            if compression.level != self.compression.level {
                self.compressor = Compressor::new(compression.level);
            }
            (self.compression, self.plain_bytes) = (compression, 0);
        }
        Ok(())
    }

    /// Stores a chunk. It may wait here for others to be compressed with, until [`Lane::finish`].
    ///
    /// # Errors
    /// Errors of the target.
    pub fn append(&mut self, bytes: &[u8], fp: Fingerprint) -> Result<()> {
        self.append_as(bytes, fp, EntryKind::Chunk)
    }

    /// Stores a chunk, or a slice of one, in the same way.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn append_as(&mut self, bytes: &[u8], fp: Fingerprint, kind: EntryKind) -> Result<()> {
        self.times.raw_bytes += bytes.len() as u64;
        if self.raw.len() + bytes.len() > self.compression.frame_bytes
            || self.chunks.len() >= FRAME_CHUNKS_MAX
        {
            self.end_frame()?;
        }
        if self.chunks.is_empty() {
            self.decide();
        }
        let Some(codec) = self.codec else {
            self.plain_bytes = self.plain_bytes.saturating_sub(bytes.len());
            return self.plain(bytes, fp, kind);
        };
        if self.chunks.is_empty() && bytes.len() >= self.compression.frame_bytes {
            return self.squeeze(codec, bytes, &[(fp, bytes.len() as u32, kind)]);
        }
        self.raw.extend_from_slice(bytes);
        self.chunks.push((fp, bytes.len() as u32, kind));
        Ok(())
    }

    /// Stores a node in the containers of the chunks, never compressed.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn append_node(&mut self, bytes: &[u8], fp: Fingerprint) -> Result<()> {
        self.room(bytes.len(), 1)?.push(bytes, fp, EntryKind::Node);
        Ok(())
    }

    /// Ends the frame and hands the container to the packer. Call it when this thread has no more
    /// chunks.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn finish(mut self) -> Result<()> {
        self.end_frame()?;
        self.packer.keep(self.container.take());
        Ok(())
    }

    /// Chooses the codec for the next frame's worth of bytes.
    fn decide(&mut self) {
        if self.plain_bytes > 0 {
            return;
        }
        self.codec = match self.compression.compression {
            Compression::None => None,
            Compression::Always(codec) => Some(codec),
            Compression::Auto => self.pool.policy().pick(self.packer.lanes()),
        };
        if self.codec.is_none() {
            self.plain_bytes = match self.compression.compression {
                Compression::None => usize::MAX,
                _ => self.compression.frame_bytes,
            };
        }
    }

    fn end_frame(&mut self) -> Result<()> {
        let raw = std::mem::take(&mut self.raw);
        let chunks = std::mem::take(&mut self.chunks);
        let done = match self.codec {
            _ if chunks.is_empty() => Ok(()),
            Some(codec) => self.squeeze(codec, &raw, &chunks),
            None => self.all_plain(&raw, &chunks),
        };
        // Reuse the memory.
        (self.raw, self.chunks) = (raw, chunks);
        self.raw.clear();
        self.chunks.clear();
        done
    }

    /// Compresses a frame, or stores it uncompressed if compression does not shorten it.
    fn squeeze(
        &mut self,
        codec: Codec,
        raw: &[u8],
        chunks: &[(Fingerprint, u32, EntryKind)],
    ) -> Result<()> {
        let auto = self.compression.compression == Compression::Auto;
        if auto && chunks.len() == 1 && raw.len() <= LONE_BYTES_MAX {
            return self.all_plain(raw, chunks);
        }
        let started = Instant::now();
        let mut compressor = std::mem::replace(&mut self.compressor, Compressor::new(1));
        let stored = compressor.compress(codec, raw);
        let took = started.elapsed();
        self.times.compressing += took;
        let stored_bytes = stored.map_or(raw.len(), <[u8]>::len);
        if auto {
            self.pool.policy().learn(codec, raw.len(), stored_bytes, took.as_secs_f64());
        }
        let done = match stored {
            Some(stored) => self.room(stored.len(), chunks.len()).map(|open| {
                open.push_frame(stored, codec, raw.len() as u32, chunks);
            }),
            None => self.all_plain(raw, chunks),
        };
        self.compressor = compressor;
        done
    }

    fn all_plain(&mut self, raw: &[u8], chunks: &[(Fingerprint, u32, EntryKind)]) -> Result<()> {
        let mut rest = raw;
        for (fp, length, kind) in chunks {
            let (chunk, later) = rest.split_at(*length as usize);
            self.plain(chunk, *fp, *kind)?;
            rest = later;
        }
        Ok(())
    }

    fn plain(&mut self, bytes: &[u8], fp: Fingerprint, kind: EntryKind) -> Result<()> {
        self.room(bytes.len(), 1)?.push(bytes, fp, kind);
        Ok(())
    }

    /// Returns a container with room for `length` bytes and `chunks` chunks.
    fn room(&mut self, length: usize, chunks: usize) -> Result<&mut Container> {
        if self.container.as_ref().is_some_and(|open| !open.fits(length, chunks)) {
            self.send()?;
        }
        let open = match self.container.take() {
            Some(open) => open,
            None => {
                let started = Instant::now();
                let buffer = self.packer.buffer()?;
                self.waited(started.elapsed());
                Container::new(buffer)
            }
        };
        Ok(self.container.insert(open))
    }

    fn send(&mut self) -> Result<()> {
        let Some(full) = self.container.take() else { return Ok(()) };
        let started = Instant::now();
        let sent = self.packer.send(full, std::mem::take(&mut self.times.untold));
        self.waited(started.elapsed());
        if self.compression.compression == Compression::Auto && self.times.raw_bytes >= TELL_BYTES {
            let Times { since, raw_bytes, waited, compressing, untold } = self.times;
            let other = since.elapsed().saturating_sub(waited + compressing);
            self.pool.policy().learn_other(raw_bytes, other.as_secs_f64());
            self.times = Times { untold, ..Times::new() };
        }
        sent
    }

    /// Excludes from the policy's figures a time in which this thread did not work by its own
    /// choice.
    pub fn paused(&mut self, time: Duration) {
        self.times.since += time;
    }

    fn waited(&mut self, time: Duration) {
        self.times.waited += time;
        self.times.untold += time;
    }
}
