//! The six figures of a probe, in the order of those of the Rainbow paper.

use super::Probed;
use crate::plot::axes::{Axis, Figure, Line};
use outlive_probe::{Measurement, Point};
use outlive_types::shown_bytes;

type Curve = fn(&Measurement) -> &Vec<Point>;

/// Returns the figures: reads and writes over position, then over the size of accesses. Each target is
/// a line.
pub fn figures(targets: &[Probed]) -> Vec<Figure> {
    let positions = |title: &str, curve: Curve| Figure {
        title: title.to_owned(),
        across: Axis { label: "position in the scratch space, MiB", base: None, tick: plain },
        up: Axis { label: "throughput, MB/s", base: None, tick: plain },
        lines: lines(targets, &[("", curve)], 1.0 / (1 << 20) as f64),
    };
    let sizes = |title: &str, curves: &[(&str, Curve)]| Figure {
        title: title.to_owned(),
        across: Axis { label: "bytes of an access", base: Some(2.0), tick: size },
        up: Axis { label: "throughput, MB/s", base: Some(10.0), tick: plain },
        lines: lines(targets, curves, 1.0),
    };
    vec![
        positions("Figure 1: reads over position, one at a time", |it| &it.read_positions),
        positions("Figure 2: reads over position, with a queue", |it| &it.read_positions_queued),
        positions("Figure 3: writes over position, one at a time", |it| &it.write_positions),
        positions("Figure 4: writes over position, with a queue", |it| &it.write_positions_queued),
        sizes("Figure 5: random reads over access size", &[("", |it| &it.read_sizes)]),
        sizes(
            "Figure 6: writes over access size, ascending and in random order",
            &[(" ascending", |it| &it.write_sizes), (" random", |it| &it.write_sizes_random)],
        ),
    ]
}

fn lines(targets: &[Probed], curves: &[(&str, Curve)], factor: f64) -> Vec<Line> {
    let mut lines = Vec::new();
    for (number, target) in targets.iter().enumerate() {
        let Ok(found) = &target.found else { continue };
        for (second, (name, curve)) in curves.iter().enumerate() {
            let point = |point: &Point| (point.at as f64 * factor, point.bytes_per_s / 1e6);
            lines.push(Line {
                name: format!("target {}{name}", target.id),
                colour: number,
                is_dashed: second > 0,
                points: curve(found).iter().map(point).collect(),
            });
        }
    }
    lines
}

/// Returns a number without needless digits.
fn plain(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn size(value: f64) -> String {
    shown_bytes(value.round() as u64).replace(".0 ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::axes;
    use outlive_pool::Tier;

    #[test]
    fn six_figures_show_each_target_that_was_measured() {
        let points = |at: [u64; 3]| {
            at.iter().map(|at| Point { at: *at, bytes_per_s: 1e6 * (1 + at) as f64 }).collect()
        };
        let found = Measurement {
            read_positions: points([0, 1 << 20, 2 << 20]),
            write_sizes: points([4096, 8192, 16384]),
            ..Measurement::default()
        };
        let target = |id, found| Probed { id, place: "x".to_owned(), tier: Tier::Fast, found };
        let targets = [
            target(1, Ok(found)),
            target(2, Err(outlive_types::Error::retry("away"))),
            target(3, Ok(Measurement::default())),
        ];
        let figures = figures(&targets);
        assert_eq!(figures.len(), 6);
        for figure in &figures {
            let svg = axes::figure(figure);
            assert!(svg.contains("target 1") && svg.contains("target 3"), "{svg}");
            assert!(!svg.contains("target 2") && svg.contains("MB/s"), "{svg}");
        }
        assert!(axes::figure(&figures[5]).contains("target 1 random"));
        assert_eq!(
            (plain(0.1), plain(100.0), size(4096.0)),
            ("0.1".into(), "100".into(), "4 KiB".into())
        );
    }
}
