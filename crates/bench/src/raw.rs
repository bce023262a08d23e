//! The device without outlive: the best of a fixed set of layouts, as a baseline.

use super::scratch::Scratch;
use super::{Bench, gb_per_s};
use outlive_io::AlignedBuf;
use outlive_io::raw::{RawLayout, raw_read, raw_remove, raw_write};
use outlive_types::Result;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
/// Lengths of the tried writes and reads.
const UNITS: [usize; 2] = [MIB as usize, 4 * MIB as usize];
/// Numbers of the tried writes or reads in flight.
const DEPTHS: [usize; 2] = [8, 16];
/// Number of layouts that are measured in every round.
const KEPT: usize = 2;
/// Directory of the raw files.
const DIR: &str = "raw";

/// Returns the tried layouts: one preallocated file or files of 64 MiB, with each unit and depth.
fn layouts(total_bytes: u64) -> Vec<RawLayout> {
    let mut layouts = Vec::new();
    for file_bytes in [total_bytes, 64 * MIB] {
        for write_bytes in UNITS {
            for depth in DEPTHS {
                layouts.push(RawLayout { file_bytes, write_bytes, depth, preallocate: true });
            }
        }
    }
    layouts
}

/// Returns a layout as text for people.
fn named(layout: &RawLayout) -> String {
    let files = match layout.file_bytes {
        bytes if bytes == 64 * MIB => "64 MiB files".to_owned(),
        _ => "one file".to_owned(),
    };
    format!("{files}, {} MiB x {}", layout.write_bytes as u64 / MIB, layout.depth)
}

/// The fastest layouts, which are measured again in every round.
pub struct Baseline {
    best: Vec<RawLayout>,
    total_bytes: u64,
    data: AlignedBuf,
    /// GB/s of each of `best`, by round.
    rounds: Vec<Vec<f64>>,
}

impl Baseline {
    /// Returns a baseline for about `total_bytes`, rounded up so that every layout divides it.
    fn new(total_bytes: u64) -> Baseline {
        let total_bytes = total_bytes.next_multiple_of(4 * MIB);
        let mut data = AlignedBuf::zeroed(16 * MIB as usize);
        super::state::fill(&mut data, 1);
        Baseline { best: Vec::new(), total_bytes, data, rounds: Vec::new() }
    }

    /// Tries every layout once with writes and keeps the best.
    pub fn of_writes(bench: &mut Bench, total_bytes: u64) -> Result<Baseline> {
        let mut baseline = Baseline::new(total_bytes);
        let layouts = layouts(baseline.total_bytes);
        // The first gigabytes after a pause have a different speed.
        baseline.write(&bench.scratch, &layouts[0])?;
        let mut speeds = Vec::new();
        for layout in layouts {
            bench.step(&format!("trying raw writes: {}", named(&layout)));
            speeds.push((baseline.write(&bench.scratch, &layout)?, layout));
        }
        baseline.keep(bench, speeds);
        Ok(baseline)
    }

    /// Tries every layout once with reads and keeps the best; their files stay.
    pub fn of_reads(bench: &mut Bench, total_bytes: u64) -> Result<Baseline> {
        let mut baseline = Baseline::new(total_bytes);
        let mut speeds = Vec::new();
        for layout in layouts(baseline.total_bytes) {
            let dir = bench.scratch.make(dir_of(&layout))?;
            if std::fs::read_dir(&dir).is_ok_and(|mut files| files.next().is_none()) {
                bench.step("writing the files for raw reads");
                raw_write(&dir, baseline.total_bytes, &layout, &baseline.data)?;
                bench.scratch.quiet()?;
            }
            bench.step(&format!("trying raw reads: {}", named(&layout)));
            speeds.push((baseline.read(&bench.scratch, &layout)?, layout));
        }
        baseline.keep(bench, speeds);
        Ok(baseline)
    }

    fn keep(&mut self, bench: &mut Bench, mut speeds: Vec<(f64, RawLayout)>) {
        let sweep: Vec<Value> = speeds
            .iter()
            .map(|(speed, layout)| json!({ "layout": named(layout), "gb_per_s": speed }))
            .collect();
        bench.report.detail("raw_sweep", json!(sweep));
        speeds.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        self.best = speeds.into_iter().take(KEPT).map(|(_, layout)| layout).collect();
    }

    /// Writes once with each of the best; returns the higher speed, in GB/s.
    pub fn write_round(&mut self, scratch: &Scratch) -> Result<f64> {
        let speeds = self.best.iter().map(|layout| self.write(scratch, layout));
        let speeds = speeds.collect::<Result<Vec<f64>>>()?;
        Ok(self.round(speeds))
    }

    /// Reads once with each of the best; returns the higher speed, in GB/s.
    pub fn read_round(&mut self, scratch: &Scratch) -> Result<f64> {
        let speeds = self.best.iter().map(|layout| self.read(scratch, layout));
        let speeds = speeds.collect::<Result<Vec<f64>>>()?;
        Ok(self.round(speeds))
    }

    fn round(&mut self, speeds: Vec<f64>) -> f64 {
        let best = speeds.iter().copied().fold(0.0, f64::max);
        self.rounds.push(speeds);
        best
    }

    /// Returns the layouts and their speeds, for programs.
    pub fn details(&self) -> Value {
        let layouts = self.best.iter().enumerate().map(|(number, layout)| {
            let speeds: Vec<f64> = self.rounds.iter().map(|round| round[number]).collect();
            json!({ "layout": named(layout), "gb_per_s": speeds })
        });
        layouts.collect()
    }

    /// Returns the layouts as text.
    pub fn names(&self) -> String {
        let names: Vec<String> = self.best.iter().map(named).collect();
        names.join("; ")
    }

    fn write(&self, scratch: &Scratch, layout: &RawLayout) -> Result<f64> {
        let dir = scratch.make(DIR)?;
        scratch.quiet()?;
        let took = raw_write(&dir, self.total_bytes, layout, &self.data)?;
        raw_remove(&dir, self.total_bytes, layout)?;
        scratch.quiet()?;
        Ok(gb_per_s(self.total_bytes, took.as_secs_f64()))
    }

    fn read(&self, scratch: &Scratch, layout: &RawLayout) -> Result<f64> {
        let took = raw_read(&scratch.join(dir_of(layout)), self.total_bytes, layout)?;
        Ok(gb_per_s(self.total_bytes, took.as_secs_f64()))
    }
}

/// Returns the directory of a layout's files for reads, which do not depend on unit and depth.
fn dir_of(layout: &RawLayout) -> &'static str {
    if layout.file_bytes == 64 * MIB { "raw-small" } else { "raw-one" }
}
