//! Compression of one frame: consecutive chunks, independent of other frames.

use outlive_types::{Codec, Error, Result};
use zstd::zstd_safe::{CCtx, CParameter, DCtx, ErrorCode};

/// Chunks are gathered into a frame up to this length; a longer chunk is a frame of its own.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;
/// Levels beyond this take megabytes of memory a thread, for frames that are too short to profit.
const LEVEL_MAX: i32 = 12;

/// Compresses frames one after the other. Keeps its tables, about 1 MiB.
pub struct Compressor {
    level: i32,
    zstd: Option<CCtx<'static>>,
    out: Vec<u8>,
}

impl Compressor {
    /// Returns a compressor of this Zstandard level (LZ4 has none).
    pub fn new(level: i32) -> Compressor {
        Compressor { level: level.clamp(1, LEVEL_MAX), zstd: None, out: Vec::new() }
    }

    /// Returns the compressed frame if it is shorter than `raw` by at least a sixteenth.
    pub fn compress(&mut self, codec: Codec, raw: &[u8]) -> Option<&[u8]> {
        // A longer result is not worth storing, so the buffer need not have room for it.
        let worth = raw.len() - raw.len().div_ceil(16);
        let length = match codec {
            Codec::Lz4 => {
                let room = lz4_flex::block::get_maximum_output_size(raw.len());
                self.out.resize(room.max(self.out.len()), 0);
                lz4_flex::block::compress_into(raw, &mut self.out).ok()?
            }
            Codec::Zstd => {
                self.out.resize(worth.max(self.out.len()), 0);
                let level = self.level;
                let context = self.zstd.get_or_insert_with(|| {
                    let mut context = CCtx::create();
                    // Zstandard always accepts both; without them frames are only a little longer.
                    let _ = context.set_parameter(CParameter::CompressionLevel(level));
                    let _ = context.set_parameter(CParameter::ContentSizeFlag(false));
                    context
                });
                context.compress2(&mut self.out[..worth], raw).ok()?
            }
        };
        (length > 0 && length <= worth).then(|| &self.out[..length])
    }
}

/// Decompresses frames one after the other. Keeps its buffer, as long as the longest frame.
#[derive(Default)]
pub struct Decompressor {
    zstd: Option<DCtx<'static>>,
    out: Vec<u8>,
}

impl Decompressor {
    /// Returns the last decompressed frame; remains of a longer one may follow it.
    pub fn last(&self) -> &[u8] {
        &self.out
    }

    /// Returns the raw frame, of exactly `raw_bytes`.
    ///
    /// # Errors
    /// `Damaged` if `stored` is not a frame of that length. A damaged frame may still decompress;
    /// then the fingerprints of its chunks show it.
    pub fn decompress(&mut self, codec: Codec, stored: &[u8], raw_bytes: usize) -> Result<&[u8]> {
        if self.out.len() < raw_bytes {
            self.out.resize(raw_bytes, 0);
        }
        let out = &mut self.out[..raw_bytes];
        let length = match codec {
            Codec::Lz4 => lz4_flex::block::decompress_into(stored, out).map_err(|e| e.to_string()),
            Codec::Zstd => {
                let context = self.zstd.get_or_insert_with(DCtx::create);
                let name = |code: ErrorCode| zstd::zstd_safe::get_error_name(code).to_owned();
                context.decompress(out, stored).map_err(name)
            }
        };
        match length {
            Ok(length) if length == raw_bytes => Ok(&self.out[..raw_bytes]),
            Ok(length) => Err(Error::damaged(format!(
                "a frame has {length} bytes when decompressed, not {raw_bytes}"
            ))),
            Err(why) => Err(Error::damaged(format!("a frame cannot be decompressed: {why}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::{Rng, SeededRng};

    fn noise(length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        SeededRng::new(7).fill(&mut bytes);
        bytes
    }

    fn smooth(length: usize) -> Vec<u8> {
        let value = |at: usize| (1000.0 + (at as f64 / 300.0).sin() * 7.0) as u16;
        (0..length.div_ceil(2)).flat_map(|at| value(at).to_le_bytes()).take(length).collect()
    }

    #[test]
    fn frames_survive_both_codecs() {
        for codec in [Codec::Lz4, Codec::Zstd] {
            let mut compressor = Compressor::new(1);
            let mut decompressor = Decompressor::default();
            for length in [1usize << 20, 65536, 4096, 777, 100] {
                let raw = smooth(length);
                let stored = compressor.compress(codec, &raw).unwrap().to_vec();
                assert!(stored.len() * 16 <= raw.len() * 15);
                assert_eq!(decompressor.decompress(codec, &stored, length).unwrap(), raw);
            }
        }
    }

    #[test]
    fn data_that_does_not_shrink_is_left_uncompressed() {
        let mut compressor = Compressor::new(3);
        for codec in [Codec::Lz4, Codec::Zstd] {
            for length in [0, 1, 16, 4096, 65536] {
                assert_eq!(compressor.compress(codec, &noise(length)), None);
            }
        }
    }

    #[test]
    fn damaged_frames_end_in_errors() {
        let raw = smooth(9000);
        for codec in [Codec::Lz4, Codec::Zstd] {
            let stored = Compressor::new(1).compress(codec, &raw).unwrap().to_vec();
            let mut decompressor = Decompressor::default();
            let mut told = 0;
            for at in 0..stored.len() * 8 {
                let mut bytes = stored.clone();
                bytes[at / 8] ^= 1 << (at % 8);
                // It never panics, and never returns more bytes than requested.
                match decompressor.decompress(codec, &bytes, raw.len()) {
                    Ok(other) => assert_eq!(other.len(), raw.len()),
                    Err(_) => told += 1,
                }
            }
            assert!(told > 0);
            for length in [0, 1, 8999, 9001] {
                assert!(decompressor.decompress(codec, &stored, length).is_err());
            }
            for end in [0, 1, stored.len() - 1] {
                assert!(decompressor.decompress(codec, &stored[..end], raw.len()).is_err());
            }
        }
    }
}
