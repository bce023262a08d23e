//! Pictures of series of values, and of a job's checkpoints (`job`).
//!
//! The SVG is written directly: a picture needs only lines, rectangles and words, and every
//! notebook and browser shows it. `picture` writes it to a file, or makes a PNG of it.

pub mod axes;
pub mod job;
mod limits;
mod panel;
pub mod picture;

use panel::{Across, Panel, panel};
use std::fmt::Write as _;

pub(crate) const WIDTH: f64 = 720.0;
const PANEL: f64 = 150.0;
pub(crate) const LEFT: f64 = 90.0;
pub(crate) const RIGHT: f64 = 20.0;
const GAP: f64 = 46.0;
const COLOURS: [&str; 6] = ["#3366cc", "#dc7633", "#4a9c5d", "#8e44ad", "#b7950b", "#7f8c8d"];

/// One line of a panel: its name, and its values by epoch.
pub type Series = (&'static str, Vec<f64>);

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
    let names: Vec<[String; 2]> =
        at.iter().map(|at| [format!("{axis} {at}"), String::new()]).collect();
    let across = Across::new(at.to_vec(), names);
    let lines = lines.iter().map(|(name, values)| {
        let points = values.iter().copied().enumerate().collect();
        ((*name).to_owned(), points)
    });
    panel(&mut out, 60.0, &Panel { title: String::new(), unit, lines: lines.collect() }, &across);
    across.names(&mut out, 60.0 + PANEL);
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

pub(crate) fn escaped(text: &str) -> String {
    // Control characters are none of XML.
    let text: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn lines_have_a_point_for_each_value() {
        let series = [("a<b", vec![1.0, 2.0, 4.0]), ("c", vec![0.0, 1.0, 3.0])];
        let picture = lines("t", "memory", &[1.0, 2.0, 8.0], |v| format!("{v:.0}"), &series);
        assert!(picture.contains("a&lt;b") && picture.contains("memory 1<"));
        assert!(picture.contains("memory 8<") && picture.ends_with("</svg>\n"));
        assert_eq!(picture.matches("<polyline").count(), 2);
        assert_eq!(picture.matches("<circle").count(), 6);
    }
}
