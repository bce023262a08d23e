//! Both experiments on one trace, as plain data.

use super::buffer::{Place, hold, time_to_fill};
use super::release::Release;
use super::replay::{Disks, Gate, Scope, Variant, replay};
use super::trace::Trace;
use serde::Serialize;

/// Parameters of a study.
pub struct Settings {
    /// Delays of each write, as in the seed.
    pub delays_ms: Vec<f64>,
    /// Checkpoint intervals, as of today.
    pub intervals_ms: Vec<f64>,
    /// Time from a checkpoint to its commit.
    pub commit_ms: f64,
    /// Memory for held outputs.
    pub buffer_bytes: u64,
    /// Number of disks; 0 for the recorded times.
    pub disks: u32,
    /// Time that a disk spends on a write; nothing for that of the trace.
    pub service_ms: Option<f64>,
}

/// Ways to hold outputs, by name.
pub const WAYS: [(&str, Variant, Scope); 6] = [
    ("delay, disk", Variant::Delay, Scope::Disk),
    ("hold, disk", Variant::Hold, Scope::Disk),
    ("log, disk", Variant::Log, Scope::Disk),
    ("delay, all", Variant::Delay, Scope::All),
    ("hold, all", Variant::Hold, Scope::All),
    ("log, all", Variant::Log, Scope::All),
];
/// Numbers of disks that the study compares.
pub const DISKS: [u32; 4] = [1, 2, 4, 8];
/// Sizes of a buffer whose time to fill is computed.
pub const FILL_BYTES: [u64; 9] =
    [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20];

/// A gate that delays each write.
#[derive(Serialize, Debug)]
pub struct Delayed {
    pub delay_ms: f64,
    pub slowdown: f64,
    pub written_bytes_per_s: f64,
    /// Mean number of writes that a gate holds which acknowledges them.
    pub outstanding: f64,
}

/// A gate that holds outputs until a checkpoint is committed.
#[derive(Serialize, Debug)]
pub struct Held {
    pub way: &'static str,
    pub interval_ms: f64,
    pub slowdown: f64,
    pub peak_bytes: u64,
    pub stalls: u64,
}

/// The buffer of a gate.
#[derive(Serialize, Debug)]
pub struct Buffered {
    /// `after` for a delay of each write, `checkpoint` for a checkpoint interval.
    pub rule: &'static str,
    pub validation_ms: f64,
    pub place: &'static str,
    pub peak_bytes: u64,
    pub mean_bytes: f64,
    pub coalesced_share: f64,
    pub hit_share: f64,
}

/// Time until a buffer is full.
#[derive(Serialize, Debug)]
pub struct Filled {
    pub buffer_bytes: u64,
    pub mean_s: f64,
    pub shortest_s: f64,
}

/// Both experiments on one trace.
#[derive(Serialize, Debug)]
pub struct Study {
    pub trace: String,
    pub program: String,
    pub flows: u32,
    pub length_s: f64,
    pub writes: usize,
    pub written_bytes: u64,
    /// Intervals between the starts of writes, sorted.
    #[serde(skip)]
    pub intervals_ms: Vec<f64>,
    pub interval_mean_ms: f64,
    pub durable: usize,
    pub durable_interval_mean_ms: f64,
    /// Time that one disk spends on a sync or durable write.
    pub service_ms: f64,
    pub delayed: Vec<Delayed>,
    pub held: Vec<Held>,
    /// Slowdown by the longest delay for each number of disks.
    pub by_disks: Vec<(u32, f64)>,
    pub buffered: Vec<Buffered>,
    pub filled: Vec<Filled>,
}

fn ns(ms: f64) -> u64 {
    (ms * 1e6).round() as u64
}

fn mean_interval_ms(starts: &[u64]) -> f64 {
    match starts {
        [first, .., last] => (last - first) as f64 / 1e6 / (starts.len() - 1) as f64,
        _ => f64::NAN,
    }
}

fn share(part: u64, all: u64) -> f64 {
    part as f64 / all.max(1) as f64
}

impl Study {
    /// Simulates both experiments.
    pub fn new(trace: &Trace, settings: &Settings) -> Study {
        let starts: Vec<u64> = trace.writes().map(|(at_ns, _)| at_ns).collect();
        let durable: Vec<u64> = trace.durable().map(|o| o.start_ns).collect();
        let mut intervals_ms: Vec<f64> =
            starts.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e6).collect();
        intervals_ms.sort_unstable_by(f64::total_cmp);
        let service_ns = settings.service_ms.map_or_else(|| trace.service_ns(), ns);
        let queues = |count| Disks::Queues { count, service_ns };
        let disks = if settings.disks == 0 { Disks::Recorded } else { queues(settings.disks) };
        Study {
            trace: trace.name.clone(),
            program: trace.program.clone(),
            flows: trace.flows,
            length_s: trace.length_ns() as f64 / 1e9,
            writes: starts.len(),
            written_bytes: trace.writes().map(|(_, range)| range.bytes).sum(),
            interval_mean_ms: mean_interval_ms(&starts),
            intervals_ms,
            durable: durable.len(),
            durable_interval_mean_ms: mean_interval_ms(&durable),
            service_ms: service_ns as f64 / 1e6,
            delayed: delayed(trace, settings, disks),
            held: held(trace, settings, disks),
            by_disks: DISKS.map(|count| (count, by_disks(trace, settings, queues(count)))).to_vec(),
            buffered: buffered(trace, settings),
            filled: filled(trace),
        }
    }
}

fn delayed(trace: &Trace, settings: &Settings, disks: Disks) -> Vec<Delayed> {
    let alone = replay(trace, None, disks);
    let written_bytes: u64 = trace.writes().map(|(_, range)| range.bytes).sum();
    let row = |delay_ms: &f64| {
        let gate = |variant| {
            let release = Release::After { ns: ns(*delay_ms) };
            Some(Gate { variant, scope: Scope::Disk, release, buffer_bytes: u64::MAX })
        };
        let delayed = replay(trace, gate(Variant::Delay), disks);
        Delayed {
            delay_ms: *delay_ms,
            slowdown: delayed.run_ns as f64 / alone.run_ns.max(1) as f64,
            written_bytes_per_s: written_bytes as f64 * 1e9 / delayed.all_ns.max(1) as f64,
            outstanding: replay(trace, gate(Variant::Hold), disks).outstanding(),
        }
    };
    settings.delays_ms.iter().map(row).collect()
}

fn held(trace: &Trace, settings: &Settings, disks: Disks) -> Vec<Held> {
    let alone = replay(trace, None, disks);
    let mut rows = Vec::new();
    // Without messages, both scopes are the same.
    let ways = WAYS.iter().filter(|(.., scope)| *scope == Scope::Disk || trace.sends());
    for (way, variant, scope) in ways.copied() {
        for interval_ms in &settings.intervals_ms {
            let release = Release::Checkpoints {
                every_ns: ns(*interval_ms),
                commit_ns: ns(settings.commit_ms),
            };
            let gate = Gate { variant, scope, release, buffer_bytes: settings.buffer_bytes };
            let outcome = replay(trace, Some(gate), disks);
            rows.push(Held {
                way,
                interval_ms: *interval_ms,
                slowdown: outcome.run_ns as f64 / alone.run_ns.max(1) as f64,
                peak_bytes: outcome.peak_bytes,
                stalls: outcome.stalls,
            });
        }
    }
    rows
}

fn by_disks(trace: &Trace, settings: &Settings, disks: Disks) -> f64 {
    let delay_ms = settings.delays_ms.iter().copied().fold(0.0, f64::max);
    let gate = Gate {
        variant: Variant::Delay,
        scope: Scope::Disk,
        release: Release::After { ns: ns(delay_ms) },
        buffer_bytes: u64::MAX,
    };
    let alone_ns = replay(trace, None, disks).run_ns.max(1);
    replay(trace, Some(gate), disks).run_ns as f64 / alone_ns as f64
}

fn buffered(trace: &Trace, settings: &Settings) -> Vec<Buffered> {
    let length_ms = trace.length_ns() as f64 / 1e6;
    let delays = settings.delays_ms.iter().map(|ms| {
        let release = Release::After { ns: ns(*ms) };
        ("after", *ms, release)
    });
    // A trace shorter than a checkpoint interval would not fill it.
    let long_enough = |ms: &&f64| **ms * 2.0 <= length_ms;
    let intervals = settings.intervals_ms.iter().filter(long_enough).map(|ms| {
        let commit_ns = ns(settings.commit_ms);
        ("checkpoint", *ms, Release::Checkpoints { every_ns: ns(*ms), commit_ns })
    });
    let mut rows = Vec::new();
    for (rule, validation_ms, release) in delays.chain(intervals) {
        for (name, place) in [("calls", Place::Calls), ("disk", Place::Disk)] {
            let found = hold(trace, place, release);
            rows.push(Buffered {
                rule,
                validation_ms,
                place: name,
                peak_bytes: found.peak_bytes,
                mean_bytes: found.mean_bytes,
                coalesced_share: share(found.coalesced_bytes, found.written_bytes),
                hit_share: share(found.hit_bytes, found.read_bytes),
            });
        }
    }
    rows
}

fn filled(trace: &Trace) -> Vec<Filled> {
    let row = |buffer_bytes: u64| {
        let fill = time_to_fill(trace, buffer_bytes)?;
        let (mean_s, shortest_s) = (fill.mean_ns / 1e9, fill.shortest_ns as f64 / 1e9);
        Some(Filled { buffer_bytes, mean_s, shortest_s })
    };
    FILL_BYTES.into_iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::super::synthetic;
    use super::*;

    fn settings() -> Settings {
        Settings {
            delays_ms: vec![0.04, 4.0],
            intervals_ms: vec![1.0, 1000.0],
            commit_ms: 0.0,
            buffer_bytes: u64::MAX,
            disks: 0,
            service_ms: None,
        }
    }

    #[test]
    fn a_study_has_every_row() {
        let study = Study::new(&synthetic::serial("x", 500, 785_000, 40_000), &settings());
        assert_eq!((study.writes, study.durable, study.intervals_ms.len()), (500, 500, 499));
        assert!((study.interval_mean_ms - 0.825).abs() < 1e-9);
        assert!((study.service_ms - 0.04).abs() < 1e-9);
        assert!((study.delayed[1].slowdown - 4.825 / 0.825).abs() < 1e-9);
        assert_eq!(study.held.len(), 3 * 2);
        assert_eq!(study.filled.len(), FILL_BYTES.len());
        // The trace lasts 0.4 s, so a checkpoint each second would see a part of it only.
        assert_eq!(study.buffered.len(), 2 * 3);
        // Writing slows down as the program does.
        let [fast, slow] = &study.delayed[..] else { panic!("{:?}", study.delayed) };
        let ratio = fast.written_bytes_per_s / slow.written_bytes_per_s;
        assert!((ratio - slow.slowdown / fast.slowdown).abs() < 1e-6);
    }

    #[test]
    fn settings_reach_the_simulation() {
        let trace = synthetic::flows("x", 8, 100, 1_000_000, |_| 1_000_000);
        let recorded = Study::new(&trace, &settings());
        let one = Study::new(&trace, &Settings { disks: 1, service_ms: Some(1.0), ..settings() });
        assert!((one.delayed[1].slowdown - 1.0).abs() < 0.05, "{:?}", one.delayed);
        assert!((recorded.delayed[1].slowdown - 3.0).abs() < 0.01, "{:?}", recorded.delayed);
        let small = Study::new(&trace, &Settings { buffer_bytes: 8192, ..settings() });
        assert!(small.held.iter().filter(|row| row.stalls > 0).count() > 0);
        assert!(recorded.held.iter().all(|row| row.stalls == 0));
        let late = Study::new(&trace, &Settings { commit_ms: 7.0, ..settings() });
        let first = |study: &Study| study.held[0].slowdown;
        assert!(first(&late) > first(&recorded) + 1.0);
    }
}
