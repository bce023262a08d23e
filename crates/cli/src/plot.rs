//! A picture of a series of checkpoints: stall, bytes and shared data over epochs.
//!
//! The SVG is written directly: a picture needs only lines, rectangles and words, and every
//! notebook and browser shows it.

use crate::output::bytes;
use outlive_format::Manifest;
use outlive_types::{Error, Result};
use std::fmt::Write as _;
use std::path::Path;

pub(crate) const WIDTH: f64 = 720.0;
const PANEL: f64 = 150.0;
pub(crate) const LEFT: f64 = 90.0;
pub(crate) const RIGHT: f64 = 20.0;
const GAP: f64 = 46.0;
const COLOURS: [&str; 6] = ["#3366cc", "#dc7633", "#4a9c5d", "#8e44ad", "#b7950b", "#7f8c8d"];

/// One line of a panel: its name, and its values by epoch.
pub type Series = (&'static str, Vec<f64>);

/// Title of a panel, format of its values, and its lines.
type Panel = (&'static str, fn(f64) -> String, Vec<Series>);

/// Refuses a file name with the extension of another kind of picture.
///
/// # Errors
/// `Invalid` for an extension other than `svg`.
pub fn check_name(file: &Path) -> Result<()> {
    match file.extension() {
        Some(extension) if !extension.eq_ignore_ascii_case("svg") => Err(Error::invalid(format!(
            "cannot draw into {}: a picture is SVG; use a name that ends in .svg",
            file.display()
        ))),
        _ => Ok(()),
    }
}

/// Returns a separate picture of values over a common axis.
pub fn lines(
    title: &str,
    axis: &str,
    at: &[f64],
    unit: fn(f64) -> String,
    lines: &[Series],
) -> String {
    let height = 50.0 + PANEL + GAP;
    let mut out = begin(title, height);
    panel(&mut out, 60.0, "", unit, (axis, at), lines);
    out.push_str("</svg>\n");
    out
}

/// Returns a picture of several series side by side, in groups, each with its value above it.
pub fn bars(title: &str, groups: &[String], unit: fn(f64) -> String, series: &[Series]) -> String {
    const LEGEND: f64 = 120.0;
    let height = 90.0 + 2.0 * PANEL + GAP;
    let mut out = begin(title, height);
    for (number, ((name, _), colour)) in series.iter().zip(COLOURS).enumerate() {
        let (x, y) = (LEFT + LEGEND * (number % 5) as f64, 36.0 + 18.0 * (number / 5) as f64);
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"{}\" font-size=\"10\">{}</text>",
            x + 14.0,
            y + 9.0,
            escaped(name)
        );
    }
    let most = series.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    let bottom = 90.0 + 2.0 * PANEL;
    let group_width = (WIDTH - LEFT - RIGHT) / groups.len().max(1) as f64;
    let bar_width = group_width * 0.85 / series.len().max(1) as f64;
    for (at, group) in groups.iter().enumerate() {
        let left = LEFT + group_width * at as f64;
        for (number, ((_, values), colour)) in series.iter().zip(COLOURS).enumerate() {
            let value = values.get(at).copied().unwrap_or(0.0);
            let tall = value / most * 2.0 * PANEL;
            let x = left + bar_width * number as f64;
            let _ = writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" \
                 fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{:.1}\" font-size=\"7\" \
                 text-anchor=\"middle\">{}</text>",
                bottom - tall,
                bar_width - 1.0,
                x + bar_width / 2.0,
                bottom - tall - 2.0,
                unit(value)
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" font-size=\"10\" text-anchor=\"middle\">{}</text>",
            left + group_width * 0.42,
            bottom + 16.0,
            escaped(group)
        );
    }
    out.push_str("</svg>\n");
    out
}

pub(crate) fn begin(title: &str, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>\n",
        escaped(title)
    )
}

/// Draws a job's checkpoints, oldest first.
pub fn svg(job: &str, manifests: &[Manifest]) -> String {
    let series = |value: fn(&Manifest) -> f64| manifests.iter().map(value).collect::<Vec<f64>>();
    let panels: [Panel; 3] = [
        (
            "time of a save",
            seconds,
            vec![
                ("the program stands still", series(|m| m.figures.stall_ns as f64 / 1e9)),
                ("until the commit", series(|m| m.figures.drain_ns as f64 / 1e9)),
            ],
        ),
        (
            "bytes of a save",
            |value| bytes(value as u64),
            vec![
                ("changed", series(|m| m.figures.changed_bytes as f64)),
                ("written", series(|m| m.figures.new_bytes as f64)),
            ],
        ),
        (
            "share of the changed bytes",
            |value| format!("{:.0} %", value * 100.0),
            vec![
                ("stored already", series(|m| share(m, m.figures.known_bytes))),
                ("zero", series(|m| share(m, m.figures.zero_bytes))),
            ],
        ),
    ];
    let height = 50.0 + panels.len() as f64 * (PANEL + GAP);
    let mut out = begin(&format!("{job}: {} checkpoints", manifests.len()), height);
    let epochs = series(|m| m.epoch as f64);
    let mut top = 50.0;
    for (title, unit, lines) in &panels {
        panel(&mut out, top, title, *unit, ("epoch", &epochs), lines);
        top += PANEL + GAP;
    }
    out.push_str("</svg>\n");
    out
}

fn share(manifest: &Manifest, part: u64) -> f64 {
    part as f64 / manifest.figures.changed_bytes.max(1) as f64
}

fn seconds(value: f64) -> String {
    match value {
        v if v >= 1.0 => format!("{v:.1} s"),
        v if v >= 1e-3 => format!("{:.1} ms", v * 1e3),
        v => format!("{:.0} us", v * 1e6),
    }
}

fn panel(
    out: &mut String,
    top: f64,
    title: &str,
    unit: fn(f64) -> String,
    (axis, epochs): (&str, &[f64]),
    lines: &[Series],
) {
    let most = lines.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    let (first, last) = (epochs.first().copied().unwrap_or(0.0), epochs.last().copied());
    let span = (last.unwrap_or(0.0) - first).max(1.0);
    let across = WIDTH - LEFT - RIGHT;
    let x = |epoch: f64| LEFT + (epoch - first) / span * across;
    let y = |value: f64| top + PANEL - value / most * PANEL;
    let bottom = top + PANEL;
    let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"{}\">{title}</text>", top - 8.0);
    for step in 0..=2 {
        let value = most * f64::from(step) / 2.0;
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y(value) + 4.0,
            unit(value),
            at = y(value)
        );
    }
    for (at, anchor) in [(first, "start"), (first + span, "end")] {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{axis} {at}</text>",
            x(at),
            bottom + 16.0
        );
    }
    for (number, ((name, values), colour)) in lines.iter().zip(COLOURS).enumerate() {
        let mut path = String::new();
        for (epoch, value) in epochs.iter().zip(values) {
            let _ = write!(path, "{:.1},{:.1} ", x(*epoch), y(*value));
        }
        // Many lines have short names.
        let step = if lines.len() > 2 { 100.0 } else { 170.0 };
        let legend = WIDTH - RIGHT - step * (lines.len() - number) as f64;
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\
             <rect x=\"{legend}\" y=\"{}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"{}\">{name}</text>",
            path.trim_end(),
            top - 17.0,
            legend + 14.0,
            top - 8.0
        );
        // A single checkpoint has no line.
        for (epoch, value) in epochs.iter().zip(values).filter(|_| epochs.len() < 40) {
            let _ = writeln!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\" fill=\"{colour}\"/>",
                x(*epoch),
                y(*value)
            );
        }
    }
}

pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_format::{Image, ImageKind, Images, Remarks, SaveFigures};
    use outlive_types::SessionId;

    fn manifest(epoch: u64, changed_bytes: u64) -> Manifest {
        Manifest {
            session: SessionId([1; 12]),
            world_size: 1,
            epoch,
            parent: 0,
            predecessor: 0,
            frozen_ns: 0,
            figures: SaveFigures { changed_bytes, new_bytes: 7, ..SaveFigures::default() },
            failed_before: 0,
            remarks: Remarks::default(),
            metrics: Vec::new(),
            images: Images::One(Image::empty(0, ImageKind::Memory)),
        }
    }

    #[test]
    fn bars_stand_inside_the_picture() {
        let series = [("a & b", vec![1.0, 12.5]), ("c", vec![0.0, 3.0])];
        let groups = ["first".to_owned(), "<second>".to_owned()];
        let picture = bars("title", &groups, |value| format!("{value:.1}"), &series);
        assert!(picture.contains("a &amp; b") && picture.contains("&lt;second&gt;"));
        assert!(picture.contains(">12.5<") && !picture.contains("NaN"));
        assert_eq!(picture.matches("<rect").count(), 1 + 2 + 4);
        assert!(bars("nothing", &[], |_| String::new(), &[]).ends_with("</svg>\n"));
    }

    #[test]
    fn every_checkpoint_is_a_point_inside_the_picture() {
        for count in [0, 1, 2, 100] {
            let manifests: Vec<Manifest> =
                (1..=count).map(|epoch| manifest(epoch, epoch * 1000)).collect();
            let picture = svg("a<b>&c", &manifests);
            assert!(picture.contains("a&lt;b&gt;&amp;c") && picture.ends_with("</svg>\n"));
            assert!(!picture.contains("NaN") && !picture.contains("inf"));
            let points: Vec<&str> = picture.split("points=\"").skip(1).collect();
            assert_eq!(points.len(), 6);
            for line in points {
                let line = line.split('"').next().unwrap();
                let pairs: Vec<&str> = line.split_whitespace().collect();
                assert_eq!(pairs.len() as u64, count);
                for pair in pairs {
                    let (x, y) = pair.split_once(',').unwrap();
                    assert!((0.0..=WIDTH).contains(&x.parse::<f64>().unwrap()));
                    assert!((0.0..=700.0).contains(&y.parse::<f64>().unwrap()));
                }
            }
        }
    }
}
