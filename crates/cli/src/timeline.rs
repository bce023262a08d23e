//! A picture of a job's attempts over time: kept work, lost work, and the causes of the ends.

use crate::output::count;
use crate::plot::{LEFT, RIGHT, WIDTH, begin, escaped};
use outlive_supervise::{Entry, History, UNSUPERVISED};
use outlive_types::JobName;
use std::fmt::Write as _;

const KEPT: &str = "#4a9c5d";
const LOST: &str = "#c0392b";
const TOP: f64 = 70.0;
const ROW: f64 = 18.0;
const BAR: f64 = 12.0;
/// Attempts in a picture; the newest are shown.
const ROWS_MAX: usize = 60;

/// Draws the attempts, a row each, on one axis of time. Work that was kept is green, lost work red.
pub fn timeline(job: &JobName, history: &History) -> String {
    let surplus = history.attempts.len().saturating_sub(ROWS_MAX);
    let shown = &history.attempts[surplus..];
    let start = |entry: &Entry| entry.started_ns as f64 / 1e9;
    let end = |entry: &Entry| start(entry) + entry.ran_s.unwrap_or(0.0);
    let from = shown.iter().map(start).reduce(f64::min).unwrap_or(0.0);
    let to = shown.iter().map(end).fold(from, f64::max).max(from + 1e-3);
    let label = 150.0;
    let width = WIDTH - LEFT - RIGHT - label;
    let at = |time: f64| LEFT + (time - from) / (to - from) * width;
    let height = TOP + ROW * shown.len() as f64 + 40.0;
    let useful = history.share().useful();
    let useful =
        useful.map_or(String::new(), |share| format!("{:.1} % useful work", share * 100.0));
    let mut text = begin(
        &format!("job {job}: {}; {useful}", count(history.attempts.len() as u64, "attempt")),
        height,
    );
    let mut legend = LEFT;
    for (colour, what) in [(KEPT, "kept"), (LOST, "lost")] {
        let _ = write!(
            text,
            "<rect x=\"{legend}\" y=\"42\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"52\">{what}</text>",
            legend + 18.0
        );
        legend += 80.0;
    }
    for (row, entry) in shown.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        let (begun, ended) = (start(entry), end(entry));
        let kept = ended - entry.lost_s().unwrap_or(0.0);
        for (colour, from, to) in [(KEPT, begun, kept), (LOST, kept, ended)] {
            // A short one stays visible.
            let wide = (at(to) - at(from)).max(if to > from { 1.0 } else { 0.0 });
            let _ = write!(
                text,
                "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>",
                at(from)
            );
        }
        let mut cause = entry.cause.as_ref().map_or("running".to_owned(), ToString::to_string);
        if let Some(epoch) = entry.distrusted {
            let _ = write!(cause, "; {epoch} marked as bad");
        }
        let _ = write!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT - 8.0,
            y + BAR - 2.0,
            number(entry),
            at(ended) + 6.0,
            y + BAR - 2.0,
            escaped(&cause)
        );
    }
    let axis = TOP + ROW * shown.len() as f64 + 16.0;
    let _ = writeln!(
        text,
        "<text x=\"{LEFT}\" y=\"{axis:.1}\">0 s</text>\
         <text x=\"{:.1}\" y=\"{axis:.1}\" text-anchor=\"end\">{:.0} s</text></svg>",
        LEFT + width,
        to - from
    );
    text
}

/// Returns the number of an attempt under its supervisor.
pub fn number(entry: &Entry) -> String {
    match entry.attempt {
        UNSUPERVISED => "-".to_owned(),
        attempt => attempt.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_supervise::Cause;

    #[test]
    fn every_attempt_has_a_bar_inside_the_picture() {
        let entry = |started_s: u64, cause| Entry {
            ran_s: Some(10.0),
            committed_s: Some(7.0),
            cause,
            commits: 1,
            ..Entry::begin("here".into(), 1, 1, started_s * 1_000_000_000)
        };
        let attempts = vec![entry(5, Some(Cause::Killed(9))), entry(16, None)];
        let svg = timeline(&JobName::new("a<b").unwrap(), &History { attempts });
        assert_eq!(svg.matches(KEPT).count(), 3);
        assert!(svg.contains("ended by SIGKILL") && svg.contains("running"));
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"), "{svg}");
        for part in svg.split("<rect x=\"").skip(1) {
            let x: f64 = part.split('"').next().unwrap().parse().unwrap();
            assert!((0.0..WIDTH).contains(&x), "{x}");
        }
        // No attempt, and one without a length: nothing is divided by nothing.
        assert!(!timeline(&JobName::new("a").unwrap(), &History::default()).contains("NaN"));
    }
}
