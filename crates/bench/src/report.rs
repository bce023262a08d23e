//! Figures of a bench, compared with its goals.

use super::machine;
use outlive_cli::output::{Answer, Table};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// A bound that a figure should keep.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// Not less.
    AtLeast(f64),
    /// Not more.
    AtMost(f64),
}

/// Unit of a figure, which determines its format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// 10^9 bytes a second.
    GbPerS,
    /// A share or factor.
    Ratio,
    /// Bytes, shown in KiB and so on.
    Bytes,
    /// Bytes for each page.
    BytesPerPage,
    /// Seconds.
    Seconds,
    /// Milliseconds for each GiB.
    MsPerGib,
    /// Nanoseconds.
    Ns,
    /// A number of things.
    Count,
}

/// The figures of one bench.
pub struct Report {
    name: &'static str,
    command: String,
    machine: Value,
    measures: Vec<(String, f64, Unit, Option<Goal>)>,
    notes: Vec<String>,
    details: serde_json::Map<String, Value>,
}

impl Report {
    /// Returns a report without figures. `command` is the command line.
    pub fn new(name: &'static str, command: String, machine: Value) -> Report {
        let (measures, notes) = (Vec::new(), Vec::new());
        Report { name, command, machine, measures, notes, details: serde_json::Map::new() }
    }

    /// Returns the bench's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Adds a figure without a goal.
    pub fn add(&mut self, what: impl Into<String>, value: f64, unit: Unit) {
        self.measures.push((what.into(), value, unit, None));
    }

    /// Adds a figure with a goal.
    pub fn goal(&mut self, what: impl Into<String>, value: f64, unit: Unit, goal: Goal) {
        self.measures.push((what.into(), value, unit, Some(goal)));
    }

    /// Adds a remark.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Adds the share of the machine that other processes used while figures were measured for
    /// `wall_s` seconds.
    pub fn others(&mut self, used: machine::Cpu, wall_s: f64) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let share = ((used.all_s - used.own_s) / (wall_s * cores)).max(0.0);
        self.detail("others_cpu_share", json!(share));
        if share >= 0.05 {
            self.note(format!(
                "Others used {:.0} % of the processors meanwhile: times and shares are worse than this \
                 machine's own.",
                share * 100.0
            ));
        }
    }

    /// Adds single measurements, for programs only.
    pub fn detail(&mut self, key: &str, value: Value) {
        self.details.insert(key.to_owned(), value);
    }

    /// Returns the report as a command's answer.
    pub fn answer(self) -> Answer {
        let mut table = Table::new(&["WHAT", ">MEASURED", ">GOAL", "MET"]);
        let mut measures = Vec::new();
        for (what, value, unit, goal) in &self.measures {
            let met = goal.map(|goal| is_met(goal, *value));
            let wanted = match goal {
                None => String::new(),
                Some(Goal::AtLeast(least)) => format!(">= {}", written(*least, *unit)),
                Some(Goal::AtMost(most)) => format!("<= {}", written(*most, *unit)),
            };
            let met_text = match met {
                None => "",
                Some(true) => "yes",
                Some(false) => "NO",
            };
            table.row(vec![what.clone(), written(*value, *unit), wanted, met_text.to_owned()]);
            let (least, most) = match goal {
                Some(Goal::AtLeast(least)) => (Some(*least), None),
                Some(Goal::AtMost(most)) => (None, Some(*most)),
                None => (None, None),
            };
            measures.push(json!({
                "what": what,
                "value": value,
                "unit": unit_name(*unit),
                "at_least": least,
                "at_most": most,
                "met": met,
            }));
        }
        let mut text = format!("$ {}\n{}\n\n", self.command, machine::line(&self.machine));
        text.push_str(&table.text());
        for note in &self.notes {
            let _ = writeln!(text, "{note}");
        }
        let json = json!({
            "bench": self.name,
            "command": self.command,
            "machine": self.machine,
            "measures": measures,
            "notes": self.notes,
            "details": self.details,
        });
        Answer::new(text, json)
    }
}

fn is_met(goal: Goal, value: f64) -> bool {
    match goal {
        Goal::AtLeast(least) => value >= least,
        Goal::AtMost(most) => value <= most,
    }
}

fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::GbPerS => "GB/s",
        Unit::Ratio => "ratio",
        Unit::Bytes => "bytes",
        Unit::BytesPerPage => "bytes/page",
        Unit::Seconds => "s",
        Unit::MsPerGib => "ms/GiB",
        Unit::Ns => "ns",
        Unit::Count => "count",
    }
}

fn written(value: f64, unit: Unit) -> String {
    match unit {
        Unit::GbPerS => format!("{value:.2} GB/s"),
        Unit::Ratio => format!("{value:.3}"),
        Unit::Bytes => outlive_cli::output::bytes(value.max(0.0) as u64),
        Unit::BytesPerPage => format!("{value:.1} B/page"),
        Unit::Seconds if value < 0.1 => format!("{:.2} ms", value * 1e3),
        Unit::Seconds => format!("{value:.2} s"),
        Unit::MsPerGib => format!("{value:.2} ms/GiB"),
        Unit::Ns => format!("{value:.0} ns"),
        Unit::Count => format!("{value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_judged() {
        let machine = machine::describe(std::path::Path::new("/"));
        let mut report = Report::new("test", "outlive-bench".into(), machine);
        report.goal("share", 0.9, Unit::Ratio, Goal::AtLeast(0.97));
        report.goal("bytes", 12_288.0, Unit::Bytes, Goal::AtMost(16_384.0));
        report.add("speed", 1.5, Unit::GbPerS);
        let answer = report.answer();
        let rows: Vec<Vec<&str>> =
            answer.text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(rows.contains(&vec!["share", "0.900", ">=", "0.970", "NO"]), "{}", answer.text);
        let row = vec!["bytes", "12.0", "KiB", "<=", "16.0", "KiB", "yes"];
        assert!(rows.contains(&row), "{}", answer.text);
        let met: Vec<&Value> =
            answer.json["measures"].as_array().unwrap().iter().map(|m| &m["met"]).collect();
        assert_eq!(met, [&json!(false), &json!(true), &Value::Null]);
    }
}
