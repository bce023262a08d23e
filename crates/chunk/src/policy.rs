//! Decides from measurements whether compression pays: pure arithmetic, no clock. The idea is that
//! of Krintz and Sucu ("Adaptive on-the-fly compression", IEEE TPDS 2006): predict the time of each
//! choice from recent speeds, and take the shortest.
//!
//! A save is a pipeline: `threads` threads hash and compress, the target writes. The time of a byte
//! is that of the slower part:
//!
//! ```text
//! plain:       max(other / threads,                 1 / target)
//! compressed:  max((other + compressing) / threads, ratio / target)
//! ```

use outlive_types::Codec;

/// Compression setting of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// Compress nothing.
    None,
    /// Compress with this codec every frame that shrinks.
    Always(Codec),
    /// Compress the frames that shrink, where that makes saves faster.
    #[default]
    Auto,
}

/// Measured speeds of the pipeline, in seconds for each raw or stored byte.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Pace {
    /// One thread's time for everything except compression, for a raw byte.
    pub other_s: f64,
    /// The target's time for a stored byte; 0 if no thread ever waited for it.
    pub target_s: f64,
}

/// Recent average result of one codec.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Sample {
    /// One thread's time for a raw byte, in seconds.
    pub compressing_s: f64,
    /// Stored bytes for each raw byte; 1 where nothing shrinks.
    pub ratio: f64,
}

/// New measurements count for this share of an average.
const WEIGHT: f64 = 0.25;
/// Smallest share of the time that compression must save: predictions are not exact, and plain data
/// is easier to handle.
const GAIN_MIN: f64 = 0.03;
/// One frame in this many is compressed as a test, although the choice is plain bytes.
const PROBE_EVERY: u64 = 128;
/// Number of frames that are tests at the start.
const PROBES_FIRST: u64 = 4;

/// Decides for each frame, and learns from each. A new one has no measurements.
#[derive(Clone, Default, Debug)]
pub struct Policy {
    pace: Pace,
    samples: [Option<Sample>; 2],
    frames: u64,
}

const CODECS: [Codec; 2] = [Codec::Lz4, Codec::Zstd];

impl Policy {
    /// Returns the codec to try on the next frame, for a save that has `threads` threads.
    pub fn pick(&mut self, threads: usize) -> Option<Codec> {
        let number = self.frames;
        self.frames += 1;
        let probe = number.is_multiple_of(PROBE_EVERY) || number < PROBES_FIRST;
        // Tests use the codecs in turn, so that a codec that was bad once gets another chance.
        let turn = (number / PROBE_EVERY + number) as usize % CODECS.len();
        match choose(&self.pace, threads.max(1) as f64, &self.samples) {
            Some(codec) if !probe => Some(codec),
            None if !probe => None,
            _ => Some(CODECS[turn]),
        }
    }

    /// Learns the result for a frame of `raw_bytes`. `stored_bytes` equals that if it did not
    /// shrink.
    pub fn learn(&mut self, codec: Codec, raw_bytes: usize, stored_bytes: usize, seconds: f64) {
        if raw_bytes == 0 {
            return;
        }
        let raw = raw_bytes as f64;
        let new = Sample { compressing_s: seconds / raw, ratio: stored_bytes as f64 / raw };
        let slot = &mut self.samples[usize::from(codec == Codec::Zstd)];
        *slot = Some(match *slot {
            None => new,
            Some(old) => Sample {
                compressing_s: average(old.compressing_s, new.compressing_s),
                ratio: average(old.ratio, new.ratio),
            },
        });
    }

    /// Learns the time of a thread for a raw byte without compression.
    pub fn learn_other(&mut self, raw_bytes: u64, seconds: f64) {
        if raw_bytes > 0 {
            let new = seconds / raw_bytes as f64;
            self.pace.other_s = match self.pace.other_s {
                0.0 => new,
                old => average(old, new),
            };
        }
    }

    /// Learns how fast the target took `stored_bytes` in `seconds`, of which each thread waited for
    /// it `waited_s` on average. Without waiting, this is only a lower bound of its speed.
    pub fn learn_target(&mut self, stored_bytes: u64, seconds: f64, waited_s: f64) {
        if stored_bytes == 0 || seconds <= 0.0 {
            return;
        }
        let new = seconds / stored_bytes as f64;
        let old = self.pace.target_s;
        let bound = waited_s > 0.1 * seconds;
        self.pace.target_s = match (bound, old) {
            (true, 0.0) => new,
            (true, old) => average(old, new),
            // No thread waited: the target is at least as fast as that, and perhaps faster than
            // estimated.
            (false, old) => old.min(new),
        };
    }

    /// Returns the measured speeds of the pipeline.
    pub fn pace(&self) -> Pace {
        self.pace
    }
}

fn average(old: f64, new: f64) -> f64 {
    old + (new - old) * WEIGHT
}

/// Returns the codec with the shortest time for a byte, `None` for plain bytes.
fn choose(pace: &Pace, threads: f64, samples: &[Option<Sample>; 2]) -> Option<Codec> {
    let plain = (pace.other_s / threads).max(pace.target_s);
    let time = |sample: &Sample| {
        let cpu = (pace.other_s + sample.compressing_s) / threads;
        cpu.max(sample.ratio * pace.target_s)
    };
    let timed = CODECS.into_iter().zip(samples).filter_map(|(codec, sample)| {
        sample.as_ref().filter(|s| s.ratio < 1.0).map(|sample| (codec, time(sample)))
    });
    let (codec, best) = timed.min_by(|a, b| a.1.total_cmp(&b.1))?;
    (best < plain * (1.0 - GAIN_MIN)).then_some(codec)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: f64 = 1e-9; // seconds a byte at one GB/s

    fn chosen(target_gb_s: f64, lz4: (f64, f64), zstd: (f64, f64)) -> Option<Codec> {
        chosen_for(2.0, target_gb_s, lz4, zstd)
    }

    fn chosen_for(
        threads: f64,
        target_gb_s: f64,
        lz4: (f64, f64),
        zstd: (f64, f64),
    ) -> Option<Codec> {
        let pace = Pace { other_s: GB / 4.0, target_s: GB / target_gb_s };
        let sample = |(gb_s, ratio): (f64, f64)| Sample { compressing_s: GB / gb_s, ratio };
        choose(&pace, threads, &[Some(sample(lz4)), Some(sample(zstd))])
    }

    #[test]
    fn the_slower_the_target_the_stronger_the_codec() {
        let (lz4, zstd) = ((0.7, 0.5), (0.4, 0.3));
        assert_eq!(chosen(3.0, lz4, zstd), None);
        assert_eq!(chosen(0.8, lz4, zstd), Some(Codec::Lz4));
        assert_eq!(chosen(0.1, lz4, zstd), Some(Codec::Zstd));
    }

    #[test]
    fn one_thread_has_less_to_compress_with_than_two() {
        let (lz4, zstd) = ((0.7, 0.5), (0.4, 0.45));
        assert_eq!(chosen_for(2.0, 1.0, lz4, zstd), Some(Codec::Lz4));
        assert_eq!(chosen_for(1.0, 1.0, lz4, zstd), None);
    }

    #[test]
    fn a_codec_that_hardly_shrinks_is_never_chosen() {
        assert_eq!(chosen(0.01, (2.0, 1.0), (0.5, 1.0)), None);
        assert_eq!(chosen(0.01, (2.0, 0.99), (0.5, 0.99)), None);
    }

    #[test]
    fn a_target_that_was_never_waited_for_is_fast() {
        let mut policy = Policy::default();
        policy.learn_other(1 << 30, 0.3);
        policy.learn(Codec::Lz4, 65536, 6553, 65536.0 * GB);
        policy.learn_target(1 << 30, 1.0, 0.0);
        let picks: Vec<Option<Codec>> = (0..1000).map(|_| policy.pick(2)).collect();
        let probes = picks.iter().flatten().count();
        assert!((1..30).contains(&probes), "{probes} probes");
        assert_eq!(policy.pace().target_s, 0.0);
    }

    #[test]
    fn it_follows_the_target_and_the_data() {
        let mut policy = Policy::default();
        policy.learn_other(1 << 30, 0.3);
        let learn = |policy: &mut Policy, ratio: f64| {
            for _ in 0..20 {
                policy.learn(Codec::Lz4, 65536, (65536.0 * ratio) as usize, 65536.0 * GB);
                policy.learn(Codec::Zstd, 65536, (65536.0 * ratio) as usize, 65536.0 * 4.0 * GB);
            }
        };
        let most = |policy: &mut Policy| {
            let picks = (0..1000).filter(|_| policy.pick(2) == Some(Codec::Lz4)).count();
            picks > 900
        };
        learn(&mut policy, 0.3);
        for _ in 0..20 {
            policy.learn_target(50 << 20, 1.0, 0.95);
        }
        assert!(most(&mut policy));
        learn(&mut policy, 1.0);
        assert!(!most(&mut policy));
        learn(&mut policy, 0.3);
        assert!(most(&mut policy));
        // The target has become fast.
        policy.learn_target(4 << 30, 1.0, 0.0);
        assert!(!most(&mut policy));
    }
}
