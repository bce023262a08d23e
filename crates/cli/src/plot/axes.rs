//! One figure with labelled axes, each linear or logarithmic, and named lines.
//!
//! Colours are attributes, which every program draws. Each part also has a class, so that the style of
//! a page, or of a file, can replace them in the dark.

use super::limits::Limits;
use super::{COLOURS, LEFT, RIGHT, WIDTH, escaped};
use std::fmt::Write as _;

const TALL: f64 = 250.0;
/// Names of lines in one row of the legend.
const IN_ROW: usize = 3;
/// Least distance between two ticks of the axis below.
const APART: f64 = 52.0;
/// Style of a file: dark where the viewer is.
const DARK: &str = "<style>@media (prefers-color-scheme: dark) { .ground { fill: #14171c } \
                    text { fill: #e6e8ec } .grid { stroke: #373d48 } }</style>\n";

/// An axis.
pub struct Axis {
    /// Quantity that it shows, with its unit.
    pub label: &'static str,
    /// Base of its ticks, if it is logarithmic: 2 or 10.
    pub base: Option<f64>,
    /// Text of a tick.
    pub tick: fn(f64) -> String,
}

/// A line with its name.
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Number of its colour.
    pub colour: usize,
    /// Whether it is dashed.
    pub is_dashed: bool,
    /// Its points, by their place on the axis below.
    pub points: Vec<(f64, f64)>,
}

/// A figure.
pub struct Figure {
    /// Title.
    pub title: String,
    /// Axis below.
    pub across: Axis,
    /// Axis at the left.
    pub up: Axis,
    /// Lines.
    pub lines: Vec<Line>,
}

/// An axis with its ends, and where its ticks are.
struct Scale {
    limits: Limits,
    ticks: Vec<f64>,
    is_log: bool,
}

impl Scale {
    fn new(axis: &Axis, values: Vec<f64>) -> Scale {
        let Some(base) = axis.base else {
            let limits = Limits::of(values, true);
            return Scale { ticks: limits.steps(), limits, is_log: false };
        };
        let logs: Vec<f64> = values.iter().filter(|it| **it > 0.0).map(|it| it.log(base)).collect();
        let low = logs.iter().copied().fold(f64::INFINITY, f64::min);
        let high = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        // An axis of powers of ten ends at powers.
        let (low, high) = match base {
            _ if !low.is_finite() => (0.0, 1.0),
            10.0 => (low.floor(), high.ceil()),
            _ => (low, high),
        };
        let high = if high > low { high } else { low + 1.0 };
        let ticks = (0..).map(|n| low.ceil() + f64::from(n)).take_while(|it| *it <= high + 1e-9);
        let limits = Limits { low: low * base.ln(), high: high * base.ln() };
        Scale { limits, ticks: ticks.map(|it| base.powf(it)).collect(), is_log: true }
    }

    /// Returns where a value lies, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        self.limits.share(if self.is_log { value.max(f64::MIN_POSITIVE).ln() } else { value })
    }
}

/// Returns a picture.
pub fn figure(figure: &Figure) -> String {
    let points = || figure.lines.iter().flat_map(|line| &line.points);
    let across = Scale::new(&figure.across, points().map(|point| point.0).collect());
    let up = Scale::new(&figure.up, points().map(|point| point.1).collect());
    let rows = figure.lines.len().div_ceil(IN_ROW) as f64;
    let top = 44.0 + 18.0 * rows;
    let (bottom, wide) = (top + TALL, WIDTH - LEFT - RIGHT);
    let height = bottom + 52.0;
    let x = |value: f64| LEFT + across.share(value) * wide;
    let y = |value: f64| bottom - up.share(value) * TALL;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>{title}</title>\n\
         <rect class=\"ground\" width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text class=\"label\" x=\"{LEFT}\" y=\"24\" font-size=\"15\">{title}</text>\n",
        title = escaped(&figure.title)
    );
    let mut last = f64::NEG_INFINITY;
    for tick in &across.ticks {
        let at = x(*tick);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{bottom}\" \
             stroke=\"#ddd\"/>"
        );
        if at - last >= APART {
            last = at;
            let name = escaped(&(figure.across.tick)(*tick));
            let below = bottom + 17.0;
            let _ = writeln!(
                out,
                "<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{name}</text>"
            );
        }
    }
    for tick in &up.ticks {
        let at = y(*tick);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" \
             stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            escaped(&(figure.up.tick)(*tick))
        );
    }
    let middle = top + TALL / 2.0;
    let _ = writeln!(
        out,
        "<text class=\"label\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
         <text class=\"label\" x=\"18\" y=\"{middle}\" text-anchor=\"middle\" \
         transform=\"rotate(-90 18 {middle})\">{}</text>",
        LEFT + wide / 2.0,
        bottom + 38.0,
        escaped(figure.across.label),
        escaped(figure.up.label)
    );
    for (number, line) in figure.lines.iter().enumerate() {
        draw(&mut out, number, line, &x, &y);
    }
    out.push_str("</svg>\n");
    out
}

fn draw(
    out: &mut String,
    number: usize,
    line: &Line,
    x: &impl Fn(f64) -> f64,
    y: &impl Fn(f64) -> f64,
) {
    let colour = line.colour % COLOURS.len();
    let (class, hue) = (format!("c{colour}"), COLOURS[colour]);
    let dash = if line.is_dashed { " stroke-dasharray=\"6 4\"" } else { "" };
    let (left, above) =
        (LEFT + 205.0 * (number % IN_ROW) as f64, 42.0 + 18.0 * (number / IN_ROW) as f64);
    let stroke = format!("fill=\"none\" stroke=\"{hue}\" stroke-width=\"1.6\"{dash}");
    let _ = writeln!(
        out,
        "<line class=\"line {class}\" x1=\"{left}\" x2=\"{}\" y1=\"{above}\" y2=\"{above}\" {stroke}/>\
         <text x=\"{}\" y=\"{}\">{}</text>",
        left + 24.0,
        left + 30.0,
        above + 4.0,
        escaped(&line.name)
    );
    let mut path = String::new();
    for (at, value) in &line.points {
        let _ = write!(path, "{:.1},{:.1} ", x(*at), y(*value));
    }
    let _ =
        writeln!(out, "<polyline class=\"line {class}\" points=\"{}\" {stroke}/>", path.trim_end());
    for (at, value) in &line.points {
        let _ = writeln!(
            out,
            "<circle class=\"dot {class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.4\" fill=\"{hue}\"/>",
            x(*at),
            y(*value)
        );
    }
}

/// Returns the same picture for a file, which a viewer shows light or dark.
pub fn for_file(svg: &str) -> String {
    match svg.split_once("<title>") {
        Some((head, rest)) => format!("{head}{DARK}<title>{rest}"),
        None => svg.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(points: &[(f64, f64)]) -> Line {
        Line { name: "a <b>".to_owned(), colour: 7, is_dashed: true, points: points.to_vec() }
    }

    fn drawn(base: Option<f64>, points: &[(f64, f64)]) -> String {
        let axis = |label| Axis { label, base, tick: |value| format!("{value:.0}") };
        let (across, up) = (axis("size, bytes"), axis("speed, MB/s"));
        figure(&Figure { title: "t & u".to_owned(), across, up, lines: vec![line(points)] })
    }

    #[test]
    fn a_figure_has_labels_ticks_and_points() {
        let svg = drawn(Some(10.0), &[(10.0, 1.0), (100.0, 20.0), (1000.0, 900.0)]);
        for part in
            ["t &amp; u", "size, bytes", "speed, MB/s", "a &lt;b&gt;", ">100<", "rotate(-90"]
        {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 3);
        // Equal factors are equal distances.
        let xs: Vec<f64> = svg
            .split("cx=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap().parse().unwrap())
            .collect();
        assert!((xs[1] - xs[0] - (xs[2] - xs[1])).abs() < 0.2, "{xs:?}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn odd_values_are_drawn_inside() {
        let none: &[(f64, f64)] = &[];
        for base in [None, Some(2.0), Some(10.0)] {
            for points in [none, &[(0.0, 0.0)], &[(4096.0, 5.0)], &[(0.0, 3.0), (9.0, 3.0)]] {
                let svg = drawn(base, points);
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{points:?}: {svg}");
                assert!(super::super::picture::png(&svg).is_ok());
            }
        }
    }

    #[test]
    fn a_file_has_a_dark_style_and_still_becomes_a_png() {
        let svg = for_file(&drawn(None, &[(1.0, 2.0), (3.0, 4.0)]));
        assert!(svg.contains("prefers-color-scheme: dark"));
    }
}
