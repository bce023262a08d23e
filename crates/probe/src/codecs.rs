//! Speed of this machine's processor: hashing, and each codec, on one thread.

use outlive_chunk::{Compressor, FRAME_BYTES_MAX, fingerprint};
use outlive_types::{Codec, Rng, SeededRng};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Length of the sample, and the least time that each measurement takes.
const SAMPLE_BYTES: usize = 4 << 20;
const LEAST: Duration = Duration::from_millis(100);

/// Speed of a codec on one thread.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct CodecSpeed {
    /// Its name: `lz4` or `zstd`.
    pub codec: &'static str,
    /// Raw bytes that one thread compresses per second.
    pub bytes_per_s: f64,
    /// Stored bytes for each raw byte of the sample.
    pub ratio: f64,
}

/// Speeds of this machine, as compression needs them.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Processor {
    /// Number of threads of a save.
    pub threads: usize,
    /// Bytes that one thread fingerprints per second.
    pub hash_bytes_per_s: f64,
    /// Speeds of the codecs.
    pub codecs: Vec<CodecSpeed>,
}

impl Processor {
    /// Measures this machine, in less than a second. The sample has the form of most states: numbers
    /// whose high bytes hardly change, and whose low bytes are noise.
    pub fn measure(threads: usize, level: i32) -> Processor {
        let sample = sample();
        let mut sink = 0u64;
        let hash_bytes_per_s = speed(|| {
            for frame in sample.chunks(FRAME_BYTES_MAX) {
                sink ^= fingerprint(frame).prefix();
            }
        });
        std::hint::black_box(sink);
        let mut compressor = Compressor::new(level);
        let codecs = [("lz4", Codec::Lz4), ("zstd", Codec::Zstd)].map(|(name, codec)| {
            let mut stored = 0;
            let bytes_per_s = speed(|| {
                let frames = sample.chunks(FRAME_BYTES_MAX);
                let length = |frame: &[u8]| {
                    compressor.compress(codec, frame).map_or(frame.len(), <[u8]>::len)
                };
                stored = frames.map(length).sum();
            });
            CodecSpeed { codec: name, bytes_per_s, ratio: stored as f64 / SAMPLE_BYTES as f64 }
        });
        Processor { threads: threads.max(1), hash_bytes_per_s, codecs: codecs.to_vec() }
    }
}

/// Returns the bytes per second of work on the sample: of its fastest repetition, since others may
/// use the processor, too.
fn speed(mut work: impl FnMut()) -> f64 {
    let (began, mut best) = (Instant::now(), f64::INFINITY);
    while best.is_infinite() || began.elapsed() < LEAST {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    SAMPLE_BYTES as f64 / best.max(1e-9)
}

/// Returns doubles of a smooth function: their high 24 bits change slowly, their low 16 are noise.
fn sample() -> Vec<u8> {
    let mut bytes = vec![0; SAMPLE_BYTES];
    SeededRng::new(49).fill(&mut bytes);
    for (at, number) in bytes.chunks_exact_mut(8).enumerate() {
        let smooth = (1.0 + (at as f64 / 70_000.0).sin()).to_bits() >> 40 << 40;
        let noise = u64::from_le_bytes(number.try_into().expect("eight bytes")) >> 48;
        number.copy_from_slice(&(smooth | noise).to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_speed_is_measured_and_the_sample_shrinks() {
        let found = Processor::measure(2, 1);
        assert!(found.hash_bytes_per_s > 0.0 && found.codecs.len() == 2);
        for codec in &found.codecs {
            assert!(codec.bytes_per_s > 0.0, "{codec:?}");
        }
        let ratios = [0, 1].map(|codec| found.codecs[codec].ratio);
        assert!(ratios.iter().all(|ratio| (0.2..0.95).contains(ratio)), "{ratios:?}");
    }
}
