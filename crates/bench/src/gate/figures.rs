//! The pictures of `outlive-bench gate`: the seed's four figures, and one of today's intervals.

use super::study::{Study, WAYS};
use super::tables::{factor, time};
use outlive_cli::curves::{Axis, Curve, curves};
use outlive_cli::output::bytes;

/// Points of a curve of shares.
const SHARES: usize = 200;

fn ratio_axis(title: &'static str) -> Axis {
    let unit = |value: f64| if value < 10.0 { factor(value) } else { format!("{value:.0}") };
    Axis { title, unit, log: true }
}

/// Returns the pictures, each with its file name.
pub fn all(studies: &[Study]) -> Vec<(String, String)> {
    let mut pictures = vec![
        ("slowdown.svg".to_owned(), slowdown(studies)),
        ("rate.svg".to_owned(), rate(studies)),
        ("intervals.svg".to_owned(), intervals(studies)),
        ("fill.svg".to_owned(), fill(studies)),
    ];
    // Where clients wait for replies and syncs, every way has a cost of its own.
    let richest = studies.iter().max_by_key(|study| (study.flows > 1, study.durable));
    if let Some(study) = richest {
        pictures.push(("ways.svg".to_owned(), ways(study)));
    }
    pictures
}

fn each(studies: &[Study], points: impl Fn(&Study) -> Vec<(f64, f64)>) -> Vec<Curve> {
    let named = |study: &Study| (study.trace.clone(), points(study));
    studies.iter().map(named).filter(|(_, points)| !points.is_empty()).collect()
}

fn slowdown(studies: &[Study]) -> String {
    let delay = Axis { title: "delay of each write to the disk", unit: time, log: true };
    let of = |study: &Study| study.delayed.iter().map(|row| (row.delay_ms, row.slowdown)).collect();
    let title = "Slowdown by delayed writes";
    curves(
        title,
        &delay,
        &ratio_axis("execution time, divided by that without a delay"),
        &each(studies, of),
    )
}

fn rate(studies: &[Study]) -> String {
    let delay = Axis { title: "delay of each write to the disk", unit: time, log: true };
    let unit = |value: f64| format!("{}/s", bytes(value as u64));
    let up = Axis { title: "bytes written a second", unit, log: true };
    let of = |study: &Study| {
        study.delayed.iter().map(|row| (row.delay_ms, row.written_bytes_per_s)).collect()
    };
    curves("Rate of writing", &delay, &up, &each(studies, of))
}

fn intervals(studies: &[Study]) -> String {
    let across = Axis { title: "interval between two writes", unit: time, log: true };
    let unit = |value: f64| format!("{:.0} %", value * 100.0);
    let up = Axis { title: "share of the intervals that are not longer", unit, log: false };
    let of = |study: &Study| {
        let sorted = &study.intervals_ms;
        // Times of a trace are whole microseconds.
        let at = |n: usize| sorted[(n * sorted.len() / SHARES).min(sorted.len() - 1)].max(0.001);
        let points = (0..=SHARES).map(|n| (at(n), n as f64 / SHARES as f64));
        if sorted.is_empty() { Vec::new() } else { points.collect() }
    };
    curves("Intervals between writes", &across, &up, &each(studies, of))
}

fn fill(studies: &[Study]) -> String {
    let across = Axis { title: "size of the buffer", unit: |v| bytes(v as u64), log: true };
    let up = Axis { title: "mean time until it is full", unit: |s| time(s * 1e3), log: true };
    let of = |study: &Study| {
        study.filled.iter().map(|row| (row.buffer_bytes as f64, row.mean_s)).collect()
    };
    curves("Time to fill a buffer from which nothing leaves", &across, &up, &each(studies, of))
}

fn ways(study: &Study) -> String {
    let across = Axis { title: "checkpoint interval", unit: time, log: true };
    let of = |way: &str| {
        let rows = study.held.iter().filter(|row| row.way == way);
        rows.map(|row| (row.interval_ms, row.slowdown)).collect()
    };
    let lines: Vec<Curve> = WAYS.iter().map(|(way, ..)| ((*way).to_owned(), of(way))).collect();
    let title = format!("Ways to hold outputs until a checkpoint: {}", study.trace);
    let up = ratio_axis("execution time, divided by that without a gate");
    curves(&title, &across, &up, &lines)
}
