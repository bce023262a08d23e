//! The picture of a job: labels, metrics, and the times and bytes of its saves.

use super::panel::{Across, Panel, panel};
use super::{GAP, LEFT, PANEL, RIGHT, WIDTH, begin, escaped};
use crate::output::{bytes, count, when};
use outlive_format::{Manifest, Mark};
use outlive_types::{Error, Result};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::str::FromStr;

/// Metrics with a panel each; the picture names the others.
const METRICS_MAX: usize = 6;
/// Height of the strip of labels.
const STRIP: f64 = 62.0;
/// Width of a letter, about.
const LETTER: f64 = 6.6;
/// Longest label in the strip.
const LABEL_CHARS_MAX: usize = 24;

/// Axis of the picture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Axis {
    /// The checkpoints' numbers; some have their times below.
    #[default]
    Epoch,
    /// The times of the freezes.
    Time,
}

impl FromStr for Axis {
    type Err = Error;

    fn from_str(word: &str) -> Result<Axis> {
        match word {
            "epoch" => Ok(Axis::Epoch),
            "time" => Ok(Axis::Time),
            _ => Err(Error::invalid(format!("{word:?} is no axis of a plot: give epoch or time"))),
        }
    }
}

/// Draws a job's checkpoints, oldest first.
pub fn svg(job: &str, manifests: &[Manifest], axis: Axis) -> String {
    let at = |manifest: &Manifest| match axis {
        Axis::Epoch => manifest.epoch as f64,
        Axis::Time => manifest.frozen_ns as f64 / 1e9,
    };
    // A clock may step back; lines go from left to right.
    let mut ordered: Vec<&Manifest> = manifests.iter().collect();
    ordered.sort_by(|a, b| at(a).total_cmp(&at(b)).then(a.epoch.cmp(&b.epoch)));
    let names = |manifest: &&Manifest| match axis {
        Axis::Epoch => [format!("epoch {}", manifest.epoch), when(manifest.frozen_ns)],
        Axis::Time => [when(manifest.frozen_ns), format!("epoch {}", manifest.epoch)],
    };
    let across = Across::new(
        ordered.iter().map(|manifest| at(manifest)).collect(),
        ordered.iter().map(names).collect(),
    );
    let (mut panels, left_out) = metrics(&ordered);
    panels.extend(saves(&ordered));
    let height = 50.0 + STRIP + panels.len() as f64 * (PANEL + GAP) + 20.0;
    let mut out = begin(&format!("{job}: {}", count(manifests.len() as u64, "checkpoint")), height);
    if left_out > 0 {
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"24\" text-anchor=\"end\" fill=\"#777\">{} without a panel</text>",
            WIDTH - RIGHT,
            count(left_out as u64, "more metric")
        );
    }
    strip(&mut out, &ordered, &across);
    let mut top = 50.0 + STRIP + 22.0;
    for one in &panels {
        panel(&mut out, top, one, &across);
        top += PANEL + GAP;
    }
    across.names(&mut out, top - GAP);
    out.push_str("</svg>\n");
    out
}

/// Draws a mark for each checkpoint, with labels and tags above as far as they fit.
fn strip(out: &mut String, ordered: &[&Manifest], across: &Across) {
    let y = 50.0 + STRIP - 10.0;
    let mut free = [f64::NEG_INFINITY; 2];
    for (point, manifest) in ordered.iter().enumerate() {
        let (x, remarks) = (across.x(point), &manifest.remarks);
        let is_bad = remarks.suspect || remarks.mark == Mark::Bad;
        let colour = match (is_bad, remarks.pinned) {
            (true, _) => "#c0392b",
            (false, true) => "#8e44ad",
            (false, false) => "#3366cc",
        };
        // Pinned ones are kept, whatever the rules.
        let side = if remarks.pinned { 5.0 } else { 3.0 };
        let _ = writeln!(
            out,
            "<path class=\"checkpoint\" d=\"M{x:.1} {:.1}l{side} {side}l-{side} {side}l-{side} -{side}z\" \
             fill=\"{colour}\"/>",
            y - side
        );
        let tags = remarks.tags.iter().map(|tag| format!("#{tag}"));
        let label = (!remarks.label.is_empty()).then(|| remarks.label.clone());
        let words: Vec<String> = label.into_iter().chain(tags).collect();
        if words.is_empty() {
            continue;
        }
        let mut text = words.join(" ");
        if text.chars().count() > LABEL_CHARS_MAX {
            text = text.chars().take(LABEL_CHARS_MAX - 1).chain(['…']).collect();
        }
        let wide = text.chars().count() as f64 * LETTER;
        let at = x.min(WIDTH - RIGHT - wide).max(LEFT);
        let Some(row) = free.iter().position(|end| *end < at) else { continue };
        free[row] = at + wide + 8.0;
        let below = y - 12.0 - 15.0 * row as f64;
        let _ = writeln!(
            out,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#bbb\"/>\
             <text class=\"label\" x=\"{at:.1}\" y=\"{below:.1}\">{}</text>",
            below + 2.0,
            y - side,
            escaped(&text)
        );
    }
}

/// Returns a panel for each metric, and the number of metrics without one.
fn metrics(ordered: &[&Manifest]) -> (Vec<Panel>, usize) {
    let all = || ordered.iter().flat_map(|manifest| &manifest.metrics);
    let names: BTreeSet<&str> = all().map(|(name, _)| name.as_str()).collect();
    let of = |name: &str| {
        let value = |(point, manifest): (usize, &&Manifest)| {
            let found = manifest.metrics.iter().find(|(other, _)| other == name)?;
            Some((point, found.1))
        };
        let points = ordered.iter().enumerate().filter_map(value).collect();
        let lines = vec![(name.to_owned(), points)];
        Panel { title: format!("metric {name}"), unit: figure, lines }
    };
    let panels = names.iter().take(METRICS_MAX).map(|name| of(name)).collect();
    (panels, names.len().saturating_sub(METRICS_MAX))
}

/// Returns the panels about the saves themselves.
fn saves(ordered: &[&Manifest]) -> [Panel; 3] {
    let series = |name: &str, value: &dyn Fn(&Manifest) -> f64| {
        let points = ordered.iter().map(|manifest| value(manifest)).enumerate().collect();
        (name.to_owned(), points)
    };
    let share = |m: &Manifest, part: u64| part as f64 / m.figures.changed_bytes.max(1) as f64;
    [
        Panel {
            title: "time of a save".to_owned(),
            unit: seconds,
            lines: vec![
                series("the program stands still", &|m| m.figures.stall_ns as f64 / 1e9),
                series("until the commit", &|m| m.figures.drain_ns as f64 / 1e9),
            ],
        },
        Panel {
            title: "bytes of a save".to_owned(),
            unit: |value| bytes(value as u64),
            lines: vec![
                series("changed", &|m| m.figures.changed_bytes as f64),
                series("written", &|m| m.figures.new_bytes as f64),
            ],
        },
        Panel {
            title: "share of the changed bytes".to_owned(),
            unit: |value| format!("{:.0} %", value * 100.0),
            lines: vec![
                series("stored already", &|m| share(m, m.figures.known_bytes)),
                series("zero", &|m| share(m, m.figures.zero_bytes)),
            ],
        },
    ]
}

fn seconds(value: f64) -> String {
    match value {
        0.0 => "0 s".to_owned(),
        v if v >= 1.0 => format!("{v:.1} s"),
        v if v >= 1e-3 => format!("{:.1} ms", v * 1e3),
        v => format!("{:.0} us", v * 1e6),
    }
}

/// Returns a figure with a few digits.
fn figure(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if (1e-3..1e6).contains(&size) => {
            let digits = (3 - size.log10().floor() as i32).clamp(0, 6) as usize;
            let text = format!("{value:.digits$}");
            match text.contains('.') {
                true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
                false => text,
            }
        }
        _ => format!("{value:.2e}"),
    }
}

#[cfg(test)]
mod tests;
