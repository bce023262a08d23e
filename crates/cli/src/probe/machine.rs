//! Ways of finding changed memory that work on this machine.

use crate::output::{Answer, Table};
use outlive_capture::track::{self, TrackerKind};
use outlive_types::Result;
use serde_json::json;

/// `outlive pool probe` without a pool.
pub fn machine() -> Result<Answer> {
    let mut table = Table::new(&["TRACKER", ">FIRST WRITE", ">COMPARE", "HERE"]);
    let mut trackers = Vec::new();
    let probed = track::probe();
    let chosen = probed.iter().find(|probed| probed.outcome.is_ok());
    let chosen = chosen.map_or(TrackerKind::Hash, |probed| probed.kind);
    for probed in &probed {
        let ns = |ns: f64| format!("{ns:.0} ns");
        let is_chosen = if probed.kind == chosen { "works; auto takes it" } else { "works" };
        let (fault, compare, here) = match &probed.outcome {
            Ok(costs) => (ns(costs.fault_ns), ns(costs.compare_ns), is_chosen.to_owned()),
            Err(refusal) => (String::new(), String::new(), refusal.to_string()),
        };
        table.row(vec![probed.kind.to_string(), fault, compare, here]);
        let outcome = match &probed.outcome {
            Ok(costs) => json!({
                "works": true,
                "first_write_ns": costs.fault_ns,
                "compare_page_ns": costs.compare_ns,
            }),
            Err(refusal) => json!({ "works": false, "why": refusal.to_string() }),
        };
        trackers.push(json!({ "tracker": probed.kind.name(), "outcome": outcome }));
    }
    let here = if chosen == TrackerKind::Hash { "works; auto takes it" } else { "works" };
    table.row(vec![TrackerKind::Hash.to_string(), String::new(), String::new(), here.into()]);
    trackers.push(json!({ "tracker": "hash", "outcome": { "works": true } }));
    let text = format!(
        "How changed pages can be found here, and what it costs a page:\n\n{}",
        table.text()
    );
    Ok(Answer::new(text, json!({ "trackers": trackers, "auto": chosen.name() })))
}
