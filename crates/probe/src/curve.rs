//! Curves of throughput, and the figures read off them: the write unit, the least sufficient queue
//! depth, the coalescing gap. Pure arithmetic.

use outlive_types::shown_bytes;
use serde::Serialize;
use std::fmt;

/// Share of the plateau that throughput must reach, so that it counts as not fallen.
const UNIT_SHARE: f64 = 0.8;
/// Throughput of the chosen queue depth, as a share of the best.
const DEPTH_SHARE: f64 = 0.95;

/// Throughput at one point of an axis: a size of access, a position or a queue depth.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Point {
    /// Bytes, or the number of requests in flight.
    pub at: u64,
    /// Throughput there, in bytes per second.
    pub bytes_per_s: f64,
}

/// Point of a rising curve from which on it is nearly flat.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Knee {
    /// Least point that reaches the required share of the plateau.
    pub at: u64,
    /// Throughput of the plateau, in bytes per second.
    pub plateau_bytes_per_s: f64,
    /// Whether all measured points reach it, so the true knee may lie below.
    pub is_first: bool,
    /// Whether only the last point reaches it, so the true knee may lie above.
    pub is_last: bool,
}

/// "64.0 KiB", or the bound that the measured sizes give.
impl fmt::Display for Knee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = match (self.is_first, self.is_last) {
            (true, _) => "at most ",
            (_, true) => "at least ",
            _ => "",
        };
        write!(f, "{bound}{}", shown_bytes(self.at))
    }
}

/// Returns the curve that never falls and is nearest to these points, in the sense of least squares:
/// neighbours that fall are replaced by their mean. Noise and a drop at the end cannot become a knee.
pub fn rising(points: &[Point]) -> Vec<Point> {
    // Runs of neighbours: sum and number.
    let mut runs: Vec<(f64, usize)> = Vec::new();
    for point in points {
        runs.push((point.bytes_per_s, 1));
        while let [.., (before, n), (last, m)] = runs[..]
            && before / n as f64 > last / m as f64
        {
            runs.truncate(runs.len() - 2);
            runs.push((before + last, n + m));
        }
    }
    let means = runs.iter().flat_map(|(sum, n)| std::iter::repeat_n(sum / *n as f64, *n));
    points.iter().zip(means).map(|(point, mean)| Point { bytes_per_s: mean, ..*point }).collect()
}

/// Returns the end of a rising curve. If only the last point rises, and the one before does not, it is
/// an outlier: the curve then ends before it.
fn plateau(curve: &[Point]) -> Option<f64> {
    let rises = |from: &Point, to: &Point| from.bytes_per_s < UNIT_SHARE * to.bytes_per_s;
    let end = match curve {
        [.., first, second, third] if rises(second, third) && !rises(first, second) => second,
        [.., last] => last,
        [] => return None,
    };
    Some(end.bytes_per_s)
}

/// Returns the first point of the rising curve that reaches `share` of its end. The points are
/// sorted. `None` if there are none, or if nothing was transferred.
fn knee_at(points: &[Point], share: f64) -> Option<Knee> {
    let curve = rising(points);
    let plateau = plateau(&curve).filter(|it| *it > 0.0)?;
    let first = curve.iter().position(|point| point.bytes_per_s >= share * plateau)?;
    Some(Knee {
        at: curve[first].at,
        plateau_bytes_per_s: plateau,
        is_first: first == 0,
        is_last: first > 0 && first + 1 == curve.len(),
    })
}

/// Returns the knee of throughput over the size of accesses: below it, throughput falls under 80 % of
/// the plateau. For writes this is the write unit.
pub fn knee(points: &[Point]) -> Option<Knee> {
    knee_at(points, UNIT_SHARE)
}

/// Returns the least queue depth with a throughput within 5 % of the best; 1 without points.
pub fn least_depth(points: &[Point]) -> u32 {
    let found = knee_at(points, DEPTH_SHARE).map_or(1, |knee| knee.at);
    u32::try_from(found).unwrap_or(u32::MAX).max(1)
}

/// Returns the coalescing gap: bytes that a target transfers in the time of one more request. A read
/// over a shorter gap costs less than a second read. The result is a power of two from 4 KiB to
/// `bytes_max`.
pub fn gap_bytes(request_s: f64, bytes_per_s: f64, bytes_max: u64) -> u64 {
    const LEAST: f64 = 4096.0;
    let bytes = (request_s * bytes_per_s).max(LEAST).min((bytes_max as f64).max(LEAST));
    1 << (bytes.log2().round() as u32).min(62)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: f64 = 1e6;

    /// Returns points at 4 KiB, 8 KiB and so on.
    fn sizes(mb_per_s: &[f64]) -> Vec<Point> {
        let at = (0..).map(|n| 4096u64 << n);
        at.zip(mb_per_s).map(|(at, mb)| Point { at, bytes_per_s: mb * MB }).collect()
    }

    /// Returns the curve of a target with a time for each request, and a throughput.
    fn saturating(request_s: f64, bytes_per_s: f64) -> Vec<Point> {
        let at = (0..12).map(|n| 4096u64 << n);
        at.map(|at| Point { at, bytes_per_s: at as f64 / (request_s + at as f64 / bytes_per_s) })
            .collect()
    }

    /// Returns a factor from 0.9 to 1.1.
    fn noise(n: usize) -> f64 {
        1.0 + (((n * 7919 + 13) % 101) as f64 / 100.0 - 0.5) * 0.2
    }

    #[test]
    fn a_flat_curve_falls_nowhere() {
        let found = knee(&sizes(&[100.0; 8])).unwrap();
        assert_eq!((found.at, found.is_first, found.is_last), (4096, true, false));
        assert!((found.plateau_bytes_per_s - 100.0 * MB).abs() < 1.0);
        let noisy: Vec<f64> = (0..10).map(|n| 100.0 * noise(n)).collect();
        assert_eq!(knee(&sizes(&noisy)).unwrap().at, 4096);
    }

    #[test]
    fn a_step_is_found_where_it_is() {
        let steps = [10.0, 10.0, 10.0, 10.0, 10.0, 200.0, 200.0, 200.0];
        assert_eq!(knee(&sizes(&steps)).unwrap().at, 4096 << 5);
        let noisy: Vec<f64> = steps.iter().enumerate().map(|(n, mb)| mb * noise(n)).collect();
        assert_eq!(knee(&sizes(&noisy)).unwrap().at, 4096 << 5);
        // A drop at the end does not hide it, nor does one outlier far above.
        let dropping = [10.0, 10.0, 10.0, 200.0, 200.0, 200.0, 120.0];
        assert_eq!(knee(&sizes(&dropping)).unwrap().at, 4096 << 3);
        // Nor does one at the end.
        let last = [10.0, 10.0, 10.0, 200.0, 200.0, 200.0, 400.0];
        assert_eq!(knee(&sizes(&last)).unwrap().at, 4096 << 3);
        let outlier = [10.0, 10.0, 10.0, 900.0, 200.0, 200.0, 200.0, 200.0, 200.0];
        assert_eq!(knee(&sizes(&outlier)).unwrap().at, 4096 << 3);
    }

    #[test]
    fn a_curve_that_rises_to_its_end_says_so() {
        let found = knee(&sizes(&[1.0, 2.0, 4.0, 8.0])).unwrap();
        assert_eq!((found.at, found.is_last, found.is_first), (4096 << 3, true, false));
        let only = knee(&sizes(&[5.0])).unwrap();
        assert!(only.is_first && !only.is_last, "one point says nothing of others");
    }

    #[test]
    fn a_time_for_each_request_makes_a_knee_at_four_times_their_product() {
        // 80 % are reached at request_s * bytes_per_s * 4 = 400 KB: the next size is 512 KiB.
        let found = knee(&saturating(1e-3, 100.0 * MB)).unwrap();
        assert_eq!(found.at, 512 << 10);
        let mut noisy = saturating(1e-3, 100.0 * MB);
        for (n, point) in noisy.iter_mut().enumerate() {
            point.bytes_per_s *= noise(n);
        }
        let at = knee(&noisy).unwrap().at;
        assert!((256 << 10..=1 << 20).contains(&at), "{at}");
    }

    #[test]
    fn nothing_has_no_knee() {
        assert_eq!(knee(&[]), None);
        assert_eq!(knee(&sizes(&[0.0, 0.0])), None);
        assert_eq!(least_depth(&[]), 1);
    }

    #[test]
    fn rising_keeps_what_rises_and_averages_what_falls() {
        let values = |points: &[f64]| -> Vec<f64> {
            rising(&sizes(points)).iter().map(|p| (p.bytes_per_s / MB).round()).collect()
        };
        assert_eq!(values(&[1.0, 2.0, 3.0]), [1.0, 2.0, 3.0]);
        assert_eq!(values(&[1.0, 4.0, 2.0, 9.0]), [1.0, 3.0, 3.0, 9.0]);
        assert_eq!(values(&[9.0, 6.0, 3.0]), [6.0, 6.0, 6.0]);
    }

    #[test]
    fn the_least_depth_is_within_5_percent_of_the_best() {
        let depths = |mb: &[f64]| {
            let at = (0..).map(|n| 1u64 << n);
            let points: Vec<Point> =
                at.zip(mb).map(|(at, mb)| Point { at, bytes_per_s: mb * MB }).collect();
            least_depth(&points)
        };
        assert_eq!(depths(&[100.0, 101.0, 99.0, 100.0]), 1);
        assert_eq!(depths(&[50.0, 96.0, 100.0, 100.0]), 2);
        assert_eq!(depths(&[50.0, 90.0, 100.0, 101.0]), 4);
        assert_eq!(depths(&[10.0, 20.0, 40.0, 80.0, 160.0]), 16);
        assert_eq!(depths(&[50.0, 100.0, 90.0, 80.0]), 2, "deeper queues are slower");
    }

    #[test]
    fn the_gap_is_the_time_of_a_request_in_bytes() {
        // A disk: 8 ms and 150 MB/s are 1.2 MB.
        assert_eq!(gap_bytes(8e-3, 150.0 * MB, 4 << 20), 1 << 20);
        // An SSD with 8 requests in flight: 20 µs and 2 GB/s are 40 KB.
        assert_eq!(gap_bytes(2e-5, 2000.0 * MB, 4 << 20), 32 << 10);
        assert_eq!(gap_bytes(0.0, 2000.0 * MB, 4 << 20), 4096);
        assert_eq!(gap_bytes(10.0, 2000.0 * MB, 4 << 20), 4 << 20);
        assert_eq!(gap_bytes(f64::NAN, 1.0, 4 << 20), 4096);
    }
}
