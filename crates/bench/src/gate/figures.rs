//! The pictures of `outlive-bench gate`: the seed's four figures, and one of today's intervals.

use super::numbers::time;
use super::study::{Study, WAYS};
use outlive_cli::curves::{Axis, Curve, curves};

/// Points of a curve of shares.
const SHARES: usize = 200;

fn ratio_axis(title: &'static str) -> Axis {
    Axis { title, unit: |value| format!("{}", (value * 100.0).round() / 100.0), log: true }
}

/// Returns a size in powers of ten, as the lines of a logarithmic axis are.
fn decimal(size: f64) -> String {
    match size {
        size if size < 1e3 => format!("{size:.0} B"),
        size if size < 1e6 => format!("{:.0} kB", size / 1e3),
        size if size < 1e9 => format!("{:.0} MB", size / 1e6),
        size => format!("{:.0} GB", size / 1e9),
    }
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
    let richest = studies.iter().max_by_key(|study| (study.held.len(), study.durable));
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
    let unit = |value: f64| format!("{}/s", decimal(value));
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
    let across = Axis { title: "size of the buffer", unit: decimal, log: true };
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

#[cfg(test)]
mod tests {
    use super::super::study::Settings;
    use super::super::synthetic;
    use super::*;

    #[test]
    fn every_trace_is_in_every_picture() {
        let settings = Settings {
            delays_ms: vec![0.04, 4.0],
            intervals_ms: vec![1.0, 10.0],
            commit_ms: 0.0,
            buffer_bytes: u64::MAX,
            disks: 0,
            service_ms: None,
        };
        let studies: Vec<Study> = ["a", "b & c"]
            .map(|name| synthetic::serial(name, 100, 1_000_000, 40_000))
            .iter()
            .map(|trace| Study::new(trace, &settings))
            .collect();
        let pictures = all(&studies);
        let names: Vec<&str> = pictures.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["slowdown.svg", "rate.svg", "intervals.svg", "fill.svg", "ways.svg"]);
        for (name, picture) in &pictures[..4] {
            assert!(picture.contains(">a<") && picture.contains(">b &amp; c<"), "{name}");
            assert_eq!(picture.matches("<polyline").count(), 2, "{name}");
        }
        assert!(pictures[4].1.contains(">hold, disk<") && pictures[4].1.contains("b &amp; c"));
        assert_eq!([4.0, 1e4, 1e6, 1e9].map(decimal), ["4 B", "10 kB", "1 MB", "1 GB"]);
    }
}
