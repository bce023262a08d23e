//! How chunks are to be compressed, by what they are of.

use outlive_chunk::{Compression, FRAME_BYTES_MAX};
use outlive_pool::PoolConfig;
use outlive_types::Codec;

/// Frames of files: longer ones shrink further, and what is next to each other is read together.
const FILES_FRAME_BYTES: usize = 256 << 10;
/// Level for files, which no program waits for.
const FILES_LEVEL_MIN: u32 = 5;

/// How chunks are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameCompression {
    pub(super) compression: Compression,
    /// Zstandard's level.
    pub(super) level: i32,
    /// Chunks are gathered up to this length.
    pub(super) frame_bytes: usize,
}

impl FrameCompression {
    /// For what programs save. (The configuration was checked when the pool was opened.)
    pub fn of_saves(config: &PoolConfig) -> FrameCompression {
        let tuning = &config.tuning;
        let compression = tuning.compression().unwrap_or(Compression::None);
        let level = tuning.compression_level as i32;
        FrameCompression { compression, level, frame_bytes: FRAME_BYTES_MAX }
    }

    /// For files.
    pub fn of_files(config: &PoolConfig) -> FrameCompression {
        let tuning = &config.tuning;
        let compression = tuning.compression_files().unwrap_or(Compression::None);
        let level = tuning.compression_level.max(FILES_LEVEL_MIN) as i32;
        // A frame lies in one container.
        let frame_bytes = FILES_FRAME_BYTES.min(config.format.container_bytes as usize);
        FrameCompression { compression, level, frame_bytes }
    }

    /// For chunks that lie in a frame of this codec, or in none: as they were judged before.
    pub fn as_before(config: &PoolConfig, codec: Option<Codec>) -> FrameCompression {
        let compression = codec.map_or(Compression::None, Compression::Always);
        FrameCompression { compression, ..FrameCompression::of_files(config) }
    }
}
