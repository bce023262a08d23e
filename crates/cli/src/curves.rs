//! A picture of curves over logarithmic axes, with their names at the right.

use crate::plot::escaped;
use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const TOP: f64 = 52.0;
const TALL: f64 = 300.0;
const LEFT: f64 = 80.0;
const ACROSS: f64 = 450.0;
const LEGEND: f64 = LEFT + ACROSS + 16.0;
/// Distance between two names, and from the first to the top.
const LINE: f64 = 17.0;
const COLOURS: [&str; 12] = [
    "#3366cc", "#dc7633", "#4a9c5d", "#8e44ad", "#b7950b", "#7f8c8d", "#c0392b", "#16a085",
    "#34495e", "#e84393", "#6c5b1e", "#00a8cc",
];
/// Dashes tell neighbours apart where colours do not.
const DASHES: [&str; 3] = ["", "6 3", "2 3"];

/// A curve: its name and its points.
pub type Curve = (String, Vec<(f64, f64)>);

/// An axis: what it shows, the format of its values, and whether it is logarithmic.
pub struct Axis {
    /// Title, with the unit.
    pub title: &'static str,
    /// Format of a value.
    pub unit: fn(f64) -> String,
    /// Logarithmic, so that only values above 0 are drawn; else from 0.
    pub log: bool,
}

impl Axis {
    /// Returns the least and the greatest value to draw.
    fn span(&self, values: impl Iterator<Item = f64>) -> (f64, f64) {
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite() && (!self.log || *value > 0.0)) {
            (least, most) = (least.min(value), most.max(value));
        }
        match (least.is_finite(), self.log) {
            (false, _) => (1.0, 10.0),
            (true, true) if most < least * 2.0 => (least / 2.0, most * 2.0),
            (true, true) => (least, most),
            (true, false) => (0.0, if most > 0.0 { most } else { 1.0 }),
        }
    }

    /// Returns the values with a line: powers of ten, with 2 and 5 between if there are few.
    fn ticks(&self, (least, most): (f64, f64)) -> Vec<f64> {
        if !self.log {
            return (0..=4).map(|quarter| most * f64::from(quarter) / 4.0).collect();
        }
        let decades = (least.log10().floor() as i32)..=(most.log10().ceil() as i32);
        let factors: &[f64] = if (most / least).log10() < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        decades
            .flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)))
            .filter(|value| (least * 0.999..=most * 1.001).contains(value))
            .collect()
    }

    /// Returns where a value lies between the ends, from 0 to 1.
    fn share(&self, (least, most): (f64, f64), value: f64) -> f64 {
        let share = if self.log {
            (value / least).ln() / (most / least).ln()
        } else {
            (value - least) / (most - least)
        };
        share.clamp(0.0, 1.0)
    }
}

/// Returns the picture.
pub fn curves(title: &str, across: &Axis, up: &Axis, curves: &[Curve]) -> String {
    let all = || curves.iter().flat_map(|(_, points)| points);
    let x_span = across.span(all().map(|(x, _)| *x));
    let y_span = up.span(all().map(|(_, y)| *y));
    let x = |value: f64| LEFT + across.share(x_span, value) * ACROSS;
    let y = |value: f64| TOP + (1.0 - up.share(y_span, value)) * TALL;
    let bottom = TOP + TALL;
    let height = (bottom + 50.0).max(TOP + LINE * curves.len() as f64 + 20.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>\n\
         <text x=\"{LEFT}\" y=\"42\" fill=\"#555\">{}</text>\n",
        escaped(title),
        escaped(up.title),
    );
    for value in up.ticks(y_span) {
        let at = y(value);
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT + ACROSS,
            LEFT - 6.0,
            at + 4.0,
            (up.unit)(value)
        );
    }
    for value in across.ticks(x_span) {
        let at = x(value);
        let _ = writeln!(
            out,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#eee\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            (across.unit)(value)
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{}</text>",
        LEFT + ACROSS / 2.0,
        bottom + 36.0,
        escaped(across.title)
    );
    for (number, (name, points)) in curves.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let dashes = DASHES[number % DASHES.len()];
        let drawn = points
            .iter()
            .filter(|(x, y)| (!across.log || *x > 0.0) && (!up.log || *y > 0.0) && y.is_finite());
        let mut path = String::new();
        for (at, value) in drawn {
            let _ = write!(path, "{:.1},{:.1} ", x(*at), y(*value));
        }
        let row = TOP + LINE * (number as f64 + 0.5);
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" \
             stroke-dasharray=\"{dashes}\"/>\
             <line x1=\"{LEGEND}\" x2=\"{}\" y1=\"{row}\" y2=\"{row}\" stroke=\"{colour}\" \
             stroke-width=\"2.5\" stroke-dasharray=\"{dashes}\"/>\
             <text x=\"{}\" y=\"{}\">{}</text>",
            path.trim_end(),
            LEGEND + 22.0,
            LEGEND + 28.0,
            row + 4.0,
            escaped(name)
        );
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(log: bool) -> Axis {
        Axis { title: "a < b", unit: |value| format!("{value}"), log }
    }

    fn points(picture: &str) -> Vec<Vec<(f64, f64)>> {
        let of_line = |line: &str| {
            let pairs = line.split('"').next().unwrap().split_whitespace();
            pairs
                .map(|pair| pair.split_once(',').unwrap())
                .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
                .collect()
        };
        picture.split("points=\"").skip(1).map(of_line).collect()
    }

    #[test]
    fn points_lie_where_the_axes_say() {
        let curve = ("a & b".to_owned(), vec![(1.0, 10.0), (10.0, 100.0), (100.0, 1000.0)]);
        let picture = curves("t", &axis(true), &axis(true), std::slice::from_ref(&curve));
        let middle = (LEFT + ACROSS / 2.0, TOP + TALL / 2.0);
        let corners = [(LEFT, TOP + TALL), middle, (LEFT + ACROSS, TOP)];
        assert_eq!(points(&picture), [corners.to_vec()]);
        assert!(picture.contains("a &amp; b") && picture.contains("a &lt; b"));
        let linear = curves("t", &axis(false), &axis(false), &[curve]);
        let first = points(&linear)[0][0];
        assert!((first.0 - (LEFT + ACROSS / 100.0)).abs() < 0.1, "{first:?}");
    }

    #[test]
    fn odd_values_are_left_out() {
        let values = vec![(0.0, 1.0), (1.0, 0.0), (1.0, f64::INFINITY), (2.0, 2.0)];
        let picture = curves("t", &axis(true), &axis(true), &[("x".to_owned(), values)]);
        assert_eq!(points(&picture)[0].len(), 1);
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        let nothing = curves("t", &axis(true), &axis(false), &[]);
        assert!(nothing.ends_with("</svg>\n") && !nothing.contains("NaN"));
    }
}
