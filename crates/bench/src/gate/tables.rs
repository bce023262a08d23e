//! The tables of `outlive-bench gate`.

use super::numbers::{factor, time};
use super::seed::SeedRow;
use super::study::{DISKS, Held, Settings, Study, WAYS};
use outlive_cli::output::{Table, bytes, shown};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Size of a buffer whose time to fill stands in a table: of the seed's tens of KB.
const SHOWN_FILL_BYTES: u64 = 64 << 10;

/// Returns all tables.
pub fn text(studies: &[Study], seed: &[SeedRow], settings: &Settings) -> String {
    let mut text = traces(studies);
    text.push_str("\nSlowdown if each write to the disk completes later, as in the seed:\n\n");
    text.push_str(&delays(studies, settings));
    text.push_str("\nSlowdown by checkpoint interval:\n\n");
    text.push_str(&intervals(studies, settings));
    let longest = settings.delays_ms.iter().copied().fold(0.0, f64::max);
    let _ = writeln!(text, "\nSlowdown by a delay of {}, by disks:\n", time(longest));
    text.push_str(&disks(studies));
    text.push_str("\nBuffer:\n\n");
    text.push_str(&buffers(studies, longest));
    if !seed.is_empty() {
        text.push_str("\nThe seed:\n\n");
        text.push_str(&seed_table(seed));
    }
    text
}

fn traces(studies: &[Study]) -> String {
    let headings = [
        "TRACE",
        ">FLOWS",
        ">LENGTH",
        ">WRITES",
        ">INTERVAL",
        ">KB/s",
        ">DURABLE",
        ">INTERVAL",
        ">TIME",
    ];
    let mut table = Table::new(&headings);
    for study in studies {
        table.row(vec![
            shown(&study.trace),
            study.flows.to_string(),
            time(study.length_s * 1e3),
            study.writes.to_string(),
            time(study.interval_mean_ms),
            format!("{:.1}", study.written_bytes as f64 / 1e3 / study.length_s.max(1e-9)),
            study.durable.to_string(),
            time(study.durable_interval_mean_ms),
            if study.durable == 0 { "–".to_owned() } else { time(study.service_ms) },
        ]);
    }
    table.text()
}

fn delays(studies: &[Study], settings: &Settings) -> String {
    let columns: Vec<String> =
        settings.delays_ms.iter().map(|ms| format!(">{}", time(*ms))).collect();
    let mut table = with_columns(&["TRACE"], &columns);
    for study in studies {
        let mut cells = vec![shown(&study.trace)];
        cells.extend(study.delayed.iter().map(|row| factor(row.slowdown)));
        table.row(cells);
    }
    table.text()
}

fn with_columns(first: &[&str], more: &[String]) -> Table {
    let headings: Vec<&str> =
        first.iter().copied().chain(more.iter().map(String::as_str)).collect();
    Table::new(&headings)
}

fn intervals(studies: &[Study], settings: &Settings) -> String {
    let columns: Vec<String> =
        settings.intervals_ms.iter().map(|ms| format!(">{}", time(*ms))).collect();
    let mut table = with_columns(&["TRACE", "WAY, OUTPUTS"], &columns);
    for study in studies {
        for (way, ..) in WAYS {
            let of_way: Vec<&Held> = study.held.iter().filter(|row| row.way == way).collect();
            if of_way.is_empty() {
                continue;
            }
            let mut cells = vec![shown(&study.trace), way.to_owned()];
            cells.extend(of_way.iter().map(|row| {
                let stalled = if row.stalls > 0 { "*" } else { "" };
                format!("{}{stalled}", factor(row.slowdown))
            }));
            table.row(cells);
        }
    }
    let mut text = table.text();
    if studies.iter().flat_map(|study| &study.held).any(|row| row.stalls > 0) {
        text.push_str("* outputs waited for room in the buffer\n");
    }
    text
}

fn disks(studies: &[Study]) -> String {
    let columns: Vec<String> = DISKS.iter().map(|count| format!(">{count}")).collect();
    let mut table = with_columns(&["TRACE"], &columns);
    for study in studies.iter().filter(|study| study.durable > 0) {
        let mut cells = vec![shown(&study.trace)];
        cells.extend(study.by_disks.iter().map(|(_, slowdown)| factor(*slowdown)));
        table.row(cells);
    }
    table.text()
}

/// Returns the buffers for the longest delay and for each interval; JSON has those of all delays.
fn buffers(studies: &[Study], longest_ms: f64) -> String {
    let fills = format!(">{} FULL AFTER", bytes(SHOWN_FILL_BYTES));
    let headings =
        ["TRACE", "HELD", ">PEAK, CALLS", ">PEAK, DISK", ">COALESCED", ">READ HITS", &fills];
    let mut table = Table::new(&headings);
    for study in studies {
        let filled = study.filled.iter().find(|row| row.buffer_bytes == SHOWN_FILL_BYTES);
        for pair in study.buffered.chunks(2) {
            let [calls, disk] = pair else { continue };
            if calls.rule == "after" && calls.validation_ms != longest_ms {
                continue;
            }
            let rule = if calls.rule == "after" { "for" } else { "every" };
            table.row(vec![
                shown(&study.trace),
                format!("{rule} {}", time(calls.validation_ms)),
                bytes(calls.peak_bytes),
                bytes(disk.peak_bytes),
                format!("{:.1} %", calls.coalesced_share * 100.0),
                format!("{:.1} %", calls.hit_share * 100.0),
                filled.map_or("–".to_owned(), |row| time(row.mean_s * 1e3)),
            ]);
        }
    }
    table.text()
}

fn seed_table(rows: &[SeedRow]) -> String {
    let mut table = Table::new(&["WHAT", ">IMPLIED", ">SIMULATED"]);
    for row in rows {
        table.row(vec![row.what.clone(), row.implied.to_owned(), row.simulated()]);
    }
    table.text()
}

/// Returns all figures for programs.
pub fn json(studies: &[Study], seed: &[SeedRow], settings: &Settings) -> Value {
    let row =
        |row: &SeedRow| json!({ "what": row.what, "implied": row.implied, "simulated": row.found });
    json!({
        "bench": "gate",
        "commit_ms": settings.commit_ms,
        "disks": settings.disks,
        "buffer_bytes": (settings.buffer_bytes != u64::MAX).then_some(settings.buffer_bytes),
        "traces": studies,
        "seed": seed.iter().map(row).collect::<Vec<Value>>(),
    })
}
