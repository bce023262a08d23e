//! `outlive-bench track`: the cost of finding changed pages for a program, by tracker and by
//! pattern, all in one run. Times are processor times of this process, so that others do not count.

mod mprotect;
mod pattern;
mod policy;

use super::report::{Goal, Report, Unit};
use super::{Reporter, gib_bytes, machine};
use crate::args::TrackArgs;
use outlive_capture::track::{TrackerChoice, TrackerKind};
use outlive_cli::output::{Answer, Table, shown};
use outlive_cli::plot;
use outlive_types::{Error, PAGE_BYTES, Result};
use pattern::{PATTERNS, Pattern, Program};
use policy::{POLICIES, Policy, Tracked, cpu_s};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

/// Images before the counted ones, in addition to as many as are counted: enough for policies that
/// adapt.
const WARM_UP: u32 = 4;

/// Means over the images of one pattern under one policy.
#[derive(Clone, Copy, Default, Debug)]
struct Row {
    /// Time that tracking adds to the program's own: faults.
    program_s: f64,
    stall_s: f64,
    drain_s: f64,
    copied_pages: f64,
    changed_pages: f64,
}

impl Row {
    /// Returns the cost for the program: monitoring and copying.
    fn total_s(&self) -> f64 {
        self.program_s + self.stall_s
    }

    /// Returns copied pages that had not changed, for each changed page.
    fn extra(&self) -> f64 {
        (self.copied_pages - self.changed_pages) / self.changed_pages.max(1.0)
    }
}

/// `outlive-bench track`.
pub fn run(args: &TrackArgs, words: &[OsString], reporter: &Arc<Reporter>) -> Result<Answer> {
    let bytes = usize::try_from(gib_bytes(args.gib))
        .map_err(|_| Error::invalid("the state is larger than memory can be"))?;
    let words: Vec<String> = words.iter().map(|word| shown(&word.to_string_lossy())).collect();
    let mut report = Report::new("track", words.join(" "), machine::describe(Path::new("/")));
    let (used, started) = (machine::Cpu::now(), std::time::Instant::now());
    let mut rows = Vec::new();
    for pattern in PATTERNS {
        let name = pattern.name();
        reporter.step("bench track", &format!("{name}: the program alone"));
        let alone_s = alone(pattern, bytes, args.intervals)?;
        let mut of_pattern = Vec::new();
        for policy in POLICIES {
            reporter.step("bench track", &format!("{name}: {}", policy.name()));
            of_pattern.push(measure(pattern, policy, bytes, args.intervals, alone_s)?);
        }
        judge(&mut report, pattern, &of_pattern);
        rows.push((pattern, alone_s, of_pattern));
    }
    reporter.step("bench track", "programs at a fixed rate");
    slowdowns(&mut report, bytes, args.intervals)?;
    reporter.finish();
    report.others(machine::Cpu::now().since(used), started.elapsed().as_secs_f64());
    report.detail("rows", json(&rows));
    if let Some(file) = &args.plot {
        std::fs::write(file, picture(&rows))
            .map_err(|e| Error::io_named("writing the picture", file, &e))?;
    }
    let mut answer = report.answer();
    answer.text.push('\n');
    answer.text.push_str(&table(&rows));
    Ok(answer)
}

/// Returns the seconds of an interval for the program without a tracker.
fn alone(pattern: Pattern, bytes: usize, intervals: u32) -> Result<f64> {
    let mut tracked = Tracked::bare(bytes)?;
    let mut program = Program::new(pattern, bytes);
    let mut sum_s = 0.0;
    for interval in 0..2 * intervals + WARM_UP {
        let start = cpu_s();
        program.run(tracked.edit()?);
        let took_s = cpu_s() - start;
        tracked.take()?; // leaves the caches as under a policy
        if interval >= intervals + WARM_UP {
            sum_s += took_s;
        }
    }
    Ok(sum_s / f64::from(intervals))
}

fn measure(
    pattern: Pattern,
    policy: Policy,
    bytes: usize,
    intervals: u32,
    alone_s: f64,
) -> Result<Row> {
    let mut tracked = Tracked::new(policy, bytes)?;
    let mut program = Program::new(pattern, bytes);
    let mut row = Row::default();
    for interval in 0..2 * intervals + WARM_UP {
        let start = cpu_s();
        program.run(tracked.edit()?);
        let program_s = cpu_s() - start;
        let took = tracked.take()?;
        if interval >= intervals + WARM_UP {
            row.program_s += program_s;
            row.stall_s += took.stall_s;
            row.drain_s += took.drain_s;
            row.copied_pages += took.copied_pages as f64;
            row.changed_pages += took.changed_pages as f64;
        }
    }
    let mean = |sum: f64| sum / f64::from(intervals);
    Ok(Row {
        program_s: (mean(row.program_s) - alone_s).max(0.0),
        stall_s: mean(row.stall_s),
        drain_s: mean(row.drain_s),
        copied_pages: mean(row.copied_pages),
        changed_pages: mean(row.changed_pages),
    })
}

fn of(rows: &[Row], policy: Policy) -> &Row {
    let at = POLICIES.iter().position(|other| *other == policy);
    &rows[at.expect("every policy was measured")]
}

/// Adds the goals of one pattern.
fn judge(report: &mut Report, pattern: Pattern, rows: &[Row]) {
    let name = pattern.name();
    let auto = of(rows, Policy::Auto);
    let faster = of(rows, Policy::Pgck).total_s() / auto.total_s();
    let what = format!("{name}: monitor + copy, mprotect page by page / auto");
    match pattern {
        Pattern::Sweep | Pattern::HotStill | Pattern::HotMoving => {
            report.goal(what, faster, Unit::Ratio, Goal::AtLeast(10.0));
        }
        Pattern::Random(100) => report.goal(what, faster, Unit::Ratio, Goal::AtLeast(7.0)),
        _ => report.add(what, faster, Unit::Ratio),
    }
    let fixed = POLICIES.iter().zip(rows).filter(|(policy, _)| **policy != Policy::Auto);
    let best = fixed.map(|(_, row)| row.total_s()).fold(f64::INFINITY, f64::min);
    let what = format!("{name}: auto / the best fixed policy");
    report.goal(what, auto.total_s() / best, Unit::Ratio, Goal::AtMost(1.1));
    let what = format!("{name}: unchanged pages that auto copied, by changed ones");
    report.goal(what, auto.extra(), Unit::Ratio, Goal::AtMost(0.01));
}

/// Measures the cost of tracking alone for programs with these writes a second and one save a
/// second.
fn slowdowns(report: &mut Report, bytes: usize, intervals: u32) -> Result<()> {
    const RANDOM_PAGES: usize = 20_000;
    let gib = (1u64 << 30) as f64 / bytes as f64;
    let random = RANDOM_PAGES.min(bytes / PAGE_BYTES / 2);
    // If the state is not 1 GiB, the measured writes are scaled to those of a second.
    let cases = [
        ("20,000 random pages a second", None, RANDOM_PAGES as f64 / random as f64, 0.04),
        ("1 GiB swept a second", Some(Pattern::Sweep), gib, 0.03),
    ];
    for (name, pattern, scale, most) in cases {
        let mut seconds = [0.0, 0.0];
        let mut found = String::new();
        for (tracks, seconds) in seconds.iter_mut().enumerate() {
            let choice = TrackerChoice::Only(TrackerKind::WpAsync);
            let mut tracked =
                if tracks == 1 { Tracked::forced(choice, bytes)? } else { Tracked::bare(bytes)? };
            let mut program = Program::new(pattern.unwrap_or(Pattern::HotStill), bytes);
            for interval in 0..2 * intervals + WARM_UP {
                let start = cpu_s();
                match pattern {
                    None => program.next_random_pages(tracked.edit()?, random),
                    Some(_) => program.run(tracked.edit()?),
                }
                let took_s = cpu_s() - start;
                tracked.take()?;
                if interval >= intervals + WARM_UP {
                    *seconds += took_s / f64::from(intervals);
                }
            }
            found = tracked.report();
        }
        let share = (seconds[1] - seconds[0]) * scale;
        let what = format!("{name}: slowdown of the program by wp-async");
        report.goal(what, share, Unit::Ratio, Goal::AtMost(most));
        report.detail(&format!("tracker, {name}"), json!(found));
    }
    Ok(())
}

fn table(rows: &[(Pattern, f64, Vec<Row>)]) -> String {
    let headings = [
        "PATTERN",
        "POLICY",
        ">PROGRAM +ns/PAGE",
        ">STALL ns/PAGE",
        ">DRAIN ns/PAGE",
        ">MONITOR + COPY",
        ">x MPROTECT",
        ">EXTRA PAGES",
    ];
    let mut table = Table::new(&headings);
    for (pattern, _, of_pattern) in rows {
        for (policy, row) in POLICIES.iter().zip(of_pattern) {
            let ns = |seconds: f64| format!("{:.0}", seconds * 1e9 / row.changed_pages.max(1.0));
            table.row(vec![
                pattern.name(),
                policy.name().to_owned(),
                ns(row.program_s),
                ns(row.stall_s),
                ns(row.drain_s),
                format!("{:.1} ms", row.total_s() * 1e3),
                format!("{:.2}", of(of_pattern, Policy::Pgck).total_s() / row.total_s()),
                format!("{:.2} %", row.extra() * 100.0),
            ]);
        }
    }
    let mut text = table.text();
    text.push_str(
        "ns by page that changed. PROGRAM: what tracking adds to the program's time; STALL: finding \
         what was written, comparing it, arming it again and copying it, while the program stands; both \
         are MONITOR + COPY. DRAIN: hashes learnt from the copies, while it runs.\n",
    );
    text
}

fn json(rows: &[(Pattern, f64, Vec<Row>)]) -> Value {
    let one = |(pattern, alone_s, of_pattern): &(Pattern, f64, Vec<Row>)| -> Vec<Value> {
        let value = |(policy, row): (&Policy, &Row)| {
            json!({
                "pattern": pattern.name(),
                "policy": policy.name(),
                "program_alone_s": alone_s,
                "program_added_s": row.program_s,
                "stall_s": row.stall_s,
                "drain_s": row.drain_s,
                "copied_pages": row.copied_pages,
                "changed_pages": row.changed_pages,
            })
        };
        POLICIES.iter().zip(of_pattern).map(value).collect()
    };
    Value::Array(rows.iter().flat_map(one).collect())
}

fn picture(rows: &[(Pattern, f64, Vec<Row>)]) -> String {
    let groups: Vec<String> = rows.iter().map(|(pattern, ..)| pattern.name()).collect();
    let faster = |policy: Policy| {
        let ratio = |rows: &Vec<Row>| of(rows, Policy::Pgck).total_s() / of(rows, policy).total_s();
        (policy.name(), rows.iter().map(|(_, _, rows)| ratio(rows)).collect())
    };
    let series: Vec<plot::Series> = POLICIES.into_iter().map(faster).collect();
    let title = "Finding and copying changed pages: times faster than mprotect page by page";
    plot::bars(title, &groups, |value| format!("{value:.1}"), &series)
}
