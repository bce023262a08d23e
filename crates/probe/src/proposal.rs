//! Settings of a pool that suit its targets, each with its reason. Pure.

use crate::codecs::Processor;
use crate::curve::{Knee, Point, gap_bytes, knee, rising};
use crate::measurement::Measurement;
use outlive_types::{counted, shown_bytes};
use serde::Serialize;

/// Least and greatest container to propose.
const CONTAINER_BYTES: (u64, u64) = (1 << 20, 64 << 20);
/// Containers that are being filled while others are written or read.
const FILLED: u64 = 4;
/// Share of a save's time that compression must be able to save, as the engine itself demands.
const GAIN_MIN: f64 = 0.03;
/// Compression that takes less than this share of the target's time costs a save nothing.
const FREE_SHARE: f64 = 0.25;
/// A present gap within this factor of the measured one stays: figures vary that much.
const GAP_FACTOR: u64 = 2;

/// Present settings of a pool.
#[derive(Clone, PartialEq, Debug)]
pub struct Present {
    /// `[format] container_bytes`.
    pub container_bytes: u64,
    /// Parts of a container that hold its data: 1 without erasure coding.
    pub data_fragments: u64,
    /// Parts of a container in all, copies and parity included.
    pub fragments: u64,
    /// `[tuning] staging_bytes`.
    pub staging_bytes: u64,
    /// `[tuning] read_gap_bytes`.
    pub read_gap_bytes: u64,
    /// `[tuning] compression`.
    pub compression: String,
}

/// Value of a setting.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(untagged)]
pub enum Setting {
    /// Bytes.
    Bytes(u64),
    /// A word, such as `zstd`.
    Word(String),
}

/// A setting with the value that suits the targets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Proposal {
    /// Key in `pool.toml`.
    pub key: &'static str,
    /// Value now.
    pub present: Setting,
    /// Value that the measurements suggest; the present one if that suits.
    pub proposed: Setting,
    /// Reason, as a sentence for people.
    pub reason: String,
    /// Whether the setting is fixed when a pool is made.
    pub is_fixed: bool,
}

impl Proposal {
    /// Returns whether the proposed value differs from the present one.
    pub fn is_change(&self) -> bool {
        self.present != self.proposed
    }
}

/// Returns the proposals for a pool whose fast targets have these figures; none without figures. A
/// present value that suits stays, so that a second probe proposes no more changes.
pub fn proposals(
    measured: &[Measurement],
    processor: &Processor,
    present: &Present,
) -> Vec<Proposal> {
    if measured.is_empty() {
        return Vec::new();
    }
    vec![
        container(measured, present),
        staging(measured, present),
        gap(measured, present),
        compression(measured, processor, present),
    ]
}

fn container(measured: &[Measurement], present: &Present) -> Proposal {
    let of = |curve: fn(&Measurement) -> &Vec<_>| {
        measured.iter().filter_map(|it| knee(curve(it))).max_by_key(|knee| beyond(*knee))
    };
    let (writes, reads) = (of(|it| &it.write_sizes_random), of(|it| &it.read_sizes));
    let fragment = writes.map_or(0, beyond).max(reads.map_or(0, beyond));
    let needed = (fragment * present.data_fragments)
        .next_power_of_two()
        .clamp(CONTAINER_BYTES.0, CONTAINER_BYTES.1);
    let is_enough = present.container_bytes >= needed;
    let parts = match present.data_fragments {
        1 => String::new(),
        k => format!(", and a container has {k} parts"),
    };
    let reason = format!(
        "the write unit is {}, that of reads {}{parts}: containers {}",
        writes.map_or_else(|| "unknown".to_owned(), |knee| knee.to_string()),
        reads.map_or_else(|| "unknown".to_owned(), |knee| knee.to_string()),
        if is_enough { "are as long" } else { "should be as long" }
    );
    let proposed = if is_enough { present.container_bytes } else { needed };
    Proposal {
        key: "container_bytes",
        present: Setting::Bytes(present.container_bytes),
        proposed: Setting::Bytes(proposed),
        reason,
        is_fixed: true,
    }
}

/// Returns the size at a knee; twice that if the curve still rises at its end.
fn beyond(knee: Knee) -> u64 {
    if knee.is_last { 2 * knee.at } else { knee.at }
}

fn staging(measured: &[Measurement], present: &Present) -> Proposal {
    let depth = measured.iter().map(|it| u64::from(it.depth.max(1))).max().unwrap_or(1);
    let in_flight = (depth * measured.len() as u64).div_ceil(present.fragments.max(1));
    let needed = (in_flight + FILLED) * present.container_bytes;
    let is_enough = present.staging_bytes >= needed;
    let reason = format!(
        "queue depth {depth} is within 5 % of the best: {} in flight and {FILLED} being filled take \
         {}{}",
        counted(in_flight, "container"),
        shown_bytes(needed),
        if is_enough { "; more does no harm" } else { "" }
    );
    Proposal {
        key: "staging_bytes",
        present: Setting::Bytes(present.staging_bytes),
        proposed: Setting::Bytes(if is_enough { present.staging_bytes } else { needed }),
        reason,
        is_fixed: false,
    }
}

fn gap(measured: &[Measurement], present: &Present) -> Proposal {
    // A restore waits for the target with the costliest requests.
    let costs = measured.iter().filter(|it| it.request_s > 0.0);
    let costs = costs.map(|it| (it.request_s, best(&it.read_depths).max(best(&it.read_sizes))));
    let costliest = costs.max_by(|a, b| (a.0 * a.1).total_cmp(&(b.0 * b.1)));
    let now = present.read_gap_bytes;
    let (proposed, reason) = match costliest {
        None => (now, "no read was measured".to_owned()),
        Some((request_s, bytes_per_s)) => {
            let gap = gap_bytes(request_s, bytes_per_s, present.container_bytes);
            let is_near = now >= gap / GAP_FACTOR && now <= gap * GAP_FACTOR;
            let reason = format!(
                "one more read adds {:.0} µs, in which {} are read; the nearest power of two is {}{}",
                request_s * 1e6,
                shown_bytes((request_s * bytes_per_s) as u64),
                shown_bytes(gap),
                if is_near { ", and the present gap is near enough" } else { "" }
            );
            (if is_near { now } else { gap }, reason)
        }
    };
    Proposal {
        key: "read_gap_bytes",
        present: Setting::Bytes(now),
        proposed: Setting::Bytes(proposed),
        reason,
        is_fixed: false,
    }
}

/// Returns the greatest throughput of a curve without its noise.
fn best(points: &[Point]) -> f64 {
    rising(points).last().map_or(0.0, |last| last.bytes_per_s)
}

/// Returns the throughput that lasts: the median over all positions. A device may take the first
/// bytes into a cache of its own.
pub fn lasting(points: &[Point]) -> Option<f64> {
    let mut sorted: Vec<f64> = points.iter().map(|point| point.bytes_per_s).collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

fn compression(measured: &[Measurement], processor: &Processor, present: &Present) -> Proposal {
    let writes = |it: &Measurement| {
        lasting(&it.write_positions_queued).unwrap_or_else(|| best(&it.write_sizes))
    };
    // Every stripe waits for its slowest target.
    let slowest = measured.iter().map(writes).fold(f64::INFINITY, f64::min);
    let stored_per_raw = present.fragments.max(1) as f64 / present.data_fragments.max(1) as f64;
    let target = slowest * measured.len() as f64 / stored_per_raw;
    let (word, reason) = compression_word(target, processor);
    Proposal {
        key: "compression",
        present: Setting::Word(present.compression.clone()),
        proposed: Setting::Word(word.to_owned()),
        reason,
        is_fixed: false,
    }
}

/// Returns the compression for targets that together take `target_bytes_per_s` of raw data, and the
/// reason. A save is a pipeline: its threads hash and compress, the targets write, and the slower part
/// sets the pace.
///
/// - `none` if even data that shrinks to nothing would be saved no faster;
/// - `zstd` if it takes less than a quarter of the time that the targets need for plain data;
/// - `auto` otherwise: the data decides, and saves learn how far it shrinks.
pub fn compression_word(target_bytes_per_s: f64, processor: &Processor) -> (&'static str, String) {
    let threads = processor.threads.max(1) as f64;
    let target_s = 1.0 / target_bytes_per_s.max(1.0);
    let hash_s = 1.0 / processor.hash_bytes_per_s.max(1.0) / threads;
    let plain_s = target_s.max(hash_s);
    let mb = |bytes_per_s: f64| bytes_per_s / 1e6;
    let codec_s = |name: &str| {
        let codec = processor.codecs.iter().find(|codec| codec.codec == name);
        codec.map_or(f64::INFINITY, |codec| hash_s + 1.0 / codec.bytes_per_s.max(1.0) / threads)
    };
    let (lz4_s, zstd_s) = (codec_s("lz4"), codec_s("zstd"));
    let speeds = format!(
        "the targets take {:.0} MB/s, {} threads hash and compress {:.0} MB/s with LZ4 and {:.0} with \
         Zstandard",
        mb(target_bytes_per_s),
        processor.threads,
        mb(1.0 / lz4_s),
        mb(1.0 / zstd_s)
    );
    let fastest_s = lz4_s.min(zstd_s);
    if fastest_s > plain_s * (1.0 - GAIN_MIN) {
        return ("none", format!("{speeds}: compression would make saves slower"));
    }
    if zstd_s < plain_s * FREE_SHARE {
        return ("zstd", format!("{speeds}: Zstandard costs a save no time"));
    }
    ("auto", format!("{speeds}: it pays for data that shrinks, so saves decide"))
}

#[cfg(test)]
mod tests;
