//! Compression of chunks, by the kind of their content.

use outlive_chunk::{Compression, FRAME_BYTES_MAX};
use outlive_pool::PoolConfig;
use outlive_types::Codec;

/// Frame length for files: longer frames compress better, and adjacent chunks are read together.
const FILES_FRAME_BYTES: usize = 256 << 10;
/// Level for files, which no program waits for.
const FILES_LEVEL_MIN: u32 = 5;

/// Frame compression of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameCompression {
    pub(super) compression: Compression,
    /// Zstandard's level.
    pub(super) level: i32,
    /// Length up to which chunks are gathered in a frame.
    pub(super) frame_bytes: usize,
}

impl FrameCompression {
    /// Returns the settings for saves. An open pool's configuration is known to be valid.
    pub fn of_saves(config: &PoolConfig) -> FrameCompression {
        let tuning = &config.tuning;
        let compression = tuning.compression().unwrap_or(Compression::None);
        let level = tuning.compression_level as i32;
        FrameCompression { compression, level, frame_bytes: FRAME_BYTES_MAX }
    }

    /// Returns the settings for files.
    pub fn of_files(config: &PoolConfig) -> FrameCompression {
        let tuning = &config.tuning;
        let compression = tuning.compression_files().unwrap_or(Compression::None);
        let level = tuning.compression_level.max(FILES_LEVEL_MIN) as i32;
        // A frame lies in one container.
        let frame_bytes = FILES_FRAME_BYTES.min(config.format.container_bytes as usize);
        FrameCompression { compression, level, frame_bytes }
    }

    /// Returns the settings for chunks of a frame with this codec, or of none: they stay as they
    /// were stored.
    pub fn as_before(config: &PoolConfig, codec: Option<Codec>) -> FrameCompression {
        let compression = codec.map_or(Compression::None, Compression::Always);
        FrameCompression { compression, ..FrameCompression::of_files(config) }
    }
}
