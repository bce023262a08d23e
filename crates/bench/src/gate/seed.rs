//! Figures that the seed says or implies, beside those of this simulator.

use super::buffer::{Place, hold};
use super::numbers::time;
use super::release::Release;
use super::replay::{Disks, Gate, Scope, Variant, replay};
use super::synthetic::SEED_SERVICE_MS;
use super::trace::Trace;
use outlive_cli::output::bytes;

/// The longest time of a write in the seed, in milliseconds.
const COMPLETION_MS_MAX: f64 = 4.0;
/// Times of a write, and how many times slower TPC-C is with them. The seed says 5.8; the others
/// follow from it.
const TPCC: [(f64, &str); 6] =
    [(0.04, "1.0"), (0.5, "1.6"), (1.0, "2.2"), (2.0, "3.4"), (4.0, "5.8"), (8.0, "10.6")];
/// Writes that wait at a time, by Little's law, for each of the seed's mean intervals.
const OUTSTANDING: [&str; 3] = ["0.31", "0.026", "0.0011"];

/// Format of a simulated value.
#[derive(Clone, Copy, Debug)]
enum Unit {
    Factor,
    Count,
    Bytes,
}

/// One figure.
#[derive(Debug)]
pub struct SeedRow {
    pub what: String,
    /// The value that the seed says or implies.
    pub implied: &'static str,
    pub found: f64,
    unit: Unit,
}

impl SeedRow {
    /// Returns the simulated value for people.
    pub fn simulated(&self) -> String {
        match self.unit {
            Unit::Factor => format!("{:.2}", self.found),
            Unit::Count => format!("{:.4}", self.found),
            Unit::Bytes => bytes(self.found as u64),
        }
    }
}

fn ns(ms: f64) -> u64 {
    (ms * 1e6).round() as u64
}

fn gate(variant: Variant, delay_ms: f64) -> Option<Gate> {
    let release = Release::After { ns: ns(delay_ms) };
    Some(Gate { variant, scope: Scope::Disk, release, buffer_bytes: u64::MAX })
}

/// Simulates the seed's figures from its traces, which `synthetic::seed` returns.
pub fn rows(traces: &[Trace]) -> Vec<SeedRow> {
    let [tpcc, others @ ..] = traces else { return Vec::new() };
    let mut rows = Vec::new();
    let alone_ns = replay(tpcc, None, Disks::Recorded).run_ns;
    for (completion_ms, implied) in TPCC {
        // The seed's times of a write include the disk's own.
        let gate = gate(Variant::Delay, completion_ms - SEED_SERVICE_MS);
        let found = replay(tpcc, gate, Disks::Recorded).run_ns as f64 / alone_ns as f64;
        let what = format!("TPC-C: slowdown if a write takes {}", time(completion_ms));
        rows.push(SeedRow { what, implied, found, unit: Unit::Factor });
    }
    for (trace, implied) in others.iter().zip(OUTSTANDING) {
        let gate = gate(Variant::Hold, COMPLETION_MS_MAX);
        let found = replay(trace, gate, Disks::Recorded).outstanding();
        let what = format!("{}: writes held at a time, 4 ms each", trace.name);
        rows.push(SeedRow { what, implied, found, unit: Unit::Count });
    }
    for trace in others {
        let release = Release::After { ns: ns(COMPLETION_MS_MAX) };
        let found = hold(trace, Place::Disk, release).peak_bytes as f64;
        let what = format!("{}: largest buffer, 4 ms", trace.name);
        rows.push(SeedRow { what, implied: "10s of KB", found, unit: Unit::Bytes });
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::synthetic;
    use super::*;

    /// Every figure of the seed comes out as it says, to the digits that it gives.
    #[test]
    fn the_seed_is_met() {
        let rows = rows(&synthetic::seed());
        assert_eq!(rows.len(), 6 + 3 + 3);
        for row in &rows {
            let Ok(says) = row.implied.parse::<f64>() else {
                assert!((8192.0..100_000.0).contains(&row.found), "{row:?}");
                continue;
            };
            let slack = match row.unit {
                Unit::Factor => 0.05,
                // The intervals are random: 4,000 of them have a mean within some per cent.
                _ => says * 0.06,
            };
            assert!((row.found - says).abs() <= slack, "{row:?}");
        }
        assert!(super::rows(&[]).is_empty());
    }
}
