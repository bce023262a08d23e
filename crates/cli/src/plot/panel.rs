//! One panel of a picture: lines over an axis that all panels share.

use super::limits::Limits;
use super::{COLOURS, LEFT, PANEL, RIGHT, WIDTH, escaped};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Least distance between two names below the axis.
const APART: f64 = 140.0;
/// Names below the axis.
const NAMES_MAX: usize = 5;
/// Points of a line that have a dot each.
const DOTS_MAX: usize = 40;

/// Axis from left to right, which all panels of a picture share.
pub struct Across {
    at: Vec<f64>,
    names: Vec<[String; 2]>,
    first: f64,
    span: f64,
    named: Vec<usize>,
}

impl Across {
    /// Returns an axis with points at these values, each with two lines of text.
    pub fn new(at: Vec<f64>, names: Vec<[String; 2]>) -> Across {
        let ends = |ends: (f64, f64), value: &f64| (ends.0.min(*value), ends.1.max(*value));
        let (first, last) = at.iter().fold((f64::INFINITY, f64::NEG_INFINITY), ends);
        let (first, span) = match last > first {
            true => (first, last - first),
            // Nothing, or one point, which stands in the middle.
            false if first.is_finite() => (first - 0.5, 1.0),
            false => (0.0, 1.0),
        };
        let mut across = Across { at, names, first, span, named: Vec::new() };
        across.named = across.choose();
        across
    }

    /// Chooses the points with a name: the ends, and some between.
    fn choose(&self) -> Vec<usize> {
        let nearest = |wanted: f64| {
            let distance = |n: &usize| (self.at[*n] - wanted).abs();
            (0..self.at.len()).min_by(|a, b| distance(a).total_cmp(&distance(b)))
        };
        let wanted = |n: usize| self.first + self.span * n as f64 / (NAMES_MAX - 1) as f64;
        let ends = [wanted(0), wanted(NAMES_MAX - 1)].into_iter().filter_map(nearest);
        let mut chosen: BTreeSet<usize> = ends.collect();
        for n in (1..NAMES_MAX - 1).filter_map(|n| nearest(wanted(n))) {
            let is_free = |other: &usize| (self.x(n) - self.x(*other)).abs() >= APART;
            if chosen.iter().all(is_free) {
                chosen.insert(n);
            }
        }
        chosen.into_iter().collect()
    }

    /// Returns where a point stands.
    pub fn x(&self, point: usize) -> f64 {
        LEFT + (self.at[point] - self.first) / self.span * (WIDTH - LEFT - RIGHT)
    }

    /// Writes the names below a panel that ends at `bottom`.
    pub fn names(&self, out: &mut String, bottom: f64) {
        for n in &self.named {
            let x = self.x(*n);
            let anchor = match (x < LEFT + APART / 2.0, x > WIDTH - RIGHT - APART / 2.0) {
                (true, _) => "start",
                (_, true) => "end",
                _ => "middle",
            };
            for (line, text) in self.names[*n].iter().enumerate().filter(|(_, it)| !it.is_empty()) {
                let _ = writeln!(
                    out,
                    "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
                    bottom + 16.0 + 15.0 * line as f64,
                    escaped(text)
                );
            }
        }
    }
}

/// Lines with values of one unit.
pub struct Panel {
    /// Title.
    pub title: String,
    /// Format of a value.
    pub unit: fn(f64) -> String,
    /// Name of each line, and its values by the number of their point.
    pub lines: Vec<(String, Vec<(usize, f64)>)>,
}

/// Draws a panel below `top`. Outliers do not stretch it: a triangle at its edge stands for each, and
/// the panel counts them.
pub fn panel(out: &mut String, top: f64, panel: &Panel, across: &Across) {
    let Panel { title, unit, lines } = panel;
    let values = || lines.iter().flat_map(|(_, points)| points).map(|(_, value)| *value);
    let limits = Limits::of(values(), false);
    let bottom = top + PANEL;
    let y = |value: f64| bottom - limits.share(value) * PANEL;
    let beyond = values().filter(|value| limits.cuts(*value)).count();
    let note = match beyond {
        0 => String::new(),
        1 => " (1 value is beyond the edge)".to_owned(),
        beyond => format!(" ({beyond} values are beyond the edge)"),
    };
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"{}\">{}<tspan fill=\"#777\">{note}</tspan></text>",
        top - 8.0,
        escaped(title)
    );
    for n in &across.named {
        let _ = writeln!(
            out,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{bottom}\" stroke=\"#eee\"/>",
            x = across.x(*n)
        );
    }
    for value in limits.steps() {
        let at = y(value);
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            escaped(&unit(value))
        );
    }
    for (number, ((name, points), colour)) in lines.iter().zip(COLOURS).enumerate() {
        let mut path = String::new();
        for (point, value) in points {
            let _ = write!(path, "{:.1},{:.1} ", across.x(*point), y(*value));
        }
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
            path.trim_end()
        );
        if lines.len() > 1 {
            // Many lines have short names.
            let step = if lines.len() > 2 { 100.0 } else { 170.0 };
            let legend = WIDTH - RIGHT - step * (lines.len() - number) as f64;
            let _ = writeln!(
                out,
                "<rect x=\"{legend}\" y=\"{}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\
                 <text x=\"{}\" y=\"{}\">{}</text>",
                top - 17.0,
                legend + 14.0,
                top - 8.0,
                escaped(name)
            );
        }
        for (point, value) in points {
            let (x, at) = (across.x(*point), y(*value));
            if limits.cuts(*value) {
                // It points to where the value is.
                let tip = if *value > limits.high { -5.0 } else { 5.0 };
                let _ = writeln!(
                    out,
                    "<path class=\"beyond\" d=\"M{:.1} {at:.1}h8l-4 {tip}z\" fill=\"{colour}\"/>",
                    x - 4.0
                );
            } else if points.len() < DOTS_MAX {
                // A single checkpoint has no line.
                let _ = writeln!(
                    out,
                    "<circle cx=\"{x:.1}\" cy=\"{at:.1}\" r=\"2.5\" fill=\"{colour}\"/>"
                );
            }
        }
    }
}
