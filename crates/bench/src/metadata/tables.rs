//! The tables of the study, as text and JSON.

use super::space::{Kind, Space};
use outlive_cli::output::{Table, bytes};
use outlive_types::PAGE_BYTES;
use serde_json::{Value, json};

/// The structures in one space.
pub struct Study {
    pub name: String,
    pub kind: Kind,
    /// Pages that exist.
    pub pages: u64,
    /// The page tree first.
    pub rows: Vec<Row>,
}

/// One structure in one space.
#[derive(Default)]
pub struct Row {
    pub structure: &'static str,
    /// Bytes of the first version on a disk, without the locations of chunks where these are apart.
    /// `None` if they are not known.
    pub stored_bytes: Option<u64>,
    /// Bytes that locate chunks and nodes; an entry of the other structures is a location itself.
    pub location_bytes: u64,
    pub ram_bytes: u64,
    /// Memory after all updates, if that differs.
    pub ram_after_bytes: Option<u64>,
    /// Memory of the array's pages that have any entry.
    pub touched_bytes: Option<u64>,
    /// Leaves and inner nodes.
    pub node_count: Option<u64>,
    /// 1 % of the pages changed, then one page. `None` if the structure needs too much memory; then
    /// its bytes are computed, and not measured.
    pub rounds: Option<[Rounds; 2]>,
}

/// Medians of some rounds; sums of pages and bytes.
pub struct Rounds {
    pub changed: u64,
    pub written_bytes: u64,
    pub update_s: f64,
    pub durable_s: f64,
    pub delta_s: Option<f64>,
    pub compare_s: Option<f64>,
    pub open_s: f64,
}

impl Row {
    pub fn new(structure: &'static str) -> Row {
        Row { structure, ..Row::default() }
    }
}

/// Returns the name of a space.
pub fn name(space: &Space) -> String {
    let bytes = bytes(space.pages() * PAGE_BYTES as u64);
    match space.kind {
        Kind::Dense => format!("dense, {bytes}"),
        Kind::Fragmented => format!("dense, single-page chunks, {bytes}"),
        Kind::Sparse => {
            let (runs, pages) = (space.pages() / space.run_pages, space.run_pages);
            format!("48 bits, {bytes} in {runs} runs of {pages}")
        }
    }
}

/// Returns the table of bytes.
pub fn sizes(studies: &[Study]) -> String {
    let headings = [
        "SPACE",
        "STRUCTURE",
        ">STORED B/PAGE",
        ">LOCATIONS B/PAGE",
        ">RAM B/PAGE",
        ">RAM",
        ">AFTER UPDATES",
        ">WRITTEN B/CHANGED",
        "",
    ];
    let mut table = Table::new(&headings);
    for study in studies {
        let a_page = |bytes: u64| number(bytes as f64 / study.pages as f64);
        for row in &study.rows {
            let written = row
                .rounds
                .as_ref()
                .map(|[many, _]| number(many.written_bytes as f64 / many.changed.max(1) as f64));
            let computed = match (&row.rounds, row.touched_bytes) {
                (Some(_), _) => String::new(),
                _ if row.ram_bytes == 0 => "sizes by encoding alone".to_owned(),
                (None, Some(touched)) => {
                    format!("COMPUTED: needs too much memory; pages in use {}", bytes(touched))
                }
                (None, None) => "COMPUTED: needs too much memory".to_owned(),
            };
            table.row(vec![
                study.name.clone(),
                row.structure.to_owned(),
                row.stored_bytes.map_or_else(String::new, a_page),
                if row.location_bytes > 0 { a_page(row.location_bytes) } else { String::new() },
                if row.ram_bytes > 0 { a_page(row.ram_bytes) } else { String::new() },
                if row.ram_bytes > 0 { bytes(row.ram_bytes) } else { String::new() },
                row.ram_after_bytes.map_or_else(String::new, bytes),
                written.unwrap_or_default(),
                computed,
            ]);
        }
    }
    let mut text = table.text();
    text.push_str(
        "STORED: the first version. LOCATIONS: directories and segments, which say where chunks and \
         nodes are; an entry of the others says that itself. WRITTEN: 1 % of the pages changed.\n",
    );
    text
}

/// Returns the table of times.
pub fn times(studies: &[Study]) -> String {
    let headings = [
        "SPACE",
        "STRUCTURE",
        ">1 %: UPDATE",
        ">MARKS",
        ">COMPARE",
        ">ONE PAGE: UPDATE",
        ">MARKS",
        ">COMPARE",
    ];
    let mut table = Table::new(&headings);
    for study in studies {
        for row in &study.rows {
            let Some(rounds) = &row.rounds else { continue };
            let mut cells = vec![study.name.clone(), row.structure.to_owned()];
            for rounds in rounds {
                let compare_s = rounds.compare_s.map(|compare_s| compare_s + rounds.open_s);
                let some = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), time);
                cells.extend([time(rounds.update_s), some(rounds.delta_s), some(compare_s)]);
            }
            table.row(cells);
        }
    }
    let mut text = table.text();
    text.push_str(
        "UPDATE: the array and the table in memory; the tree with encoding, hashes and copies to the \
         buffers of its packs. MARKS: finding the delta by a bitmap; the update of a tree makes its \
         delta itself. COMPARE: finding it between two whole versions, in memory, or for the tree on \
         the disk.\n",
    );
    text
}

/// Returns all figures.
pub fn json(studies: &[Study]) -> Value {
    let rounds = |rounds: &Rounds| {
        json!({
            "changed_pages": rounds.changed,
            "written_bytes": rounds.written_bytes,
            "update_s": rounds.update_s,
            "durable_s": rounds.durable_s,
            "marks_s": rounds.delta_s,
            "open_s": rounds.open_s,
            "compare_s": rounds.compare_s,
        })
    };
    let row = |row: &Row| {
        json!({
            "structure": row.structure,
            "measured": row.rounds.is_some(),
            "stored_bytes": row.stored_bytes,
            "location_bytes": row.location_bytes,
            "ram_bytes": row.ram_bytes,
            "ram_after_bytes": row.ram_after_bytes,
            "touched_bytes": row.touched_bytes,
            "nodes": row.node_count,
            "one_percent": row.rounds.as_ref().map(|[many, _]| rounds(many)),
            "one_page": row.rounds.as_ref().map(|[_, one]| rounds(one)),
        })
    };
    let study = |study: &Study| {
        json!({
            "space": study.name,
            "pages": study.pages,
            "structures": study.rows.iter().map(row).collect::<Vec<Value>>(),
        })
    };
    studies.iter().map(study).collect()
}

fn number(value: f64) -> String {
    match value {
        v if v < 100.0 => format!("{v:.1}"),
        v if v < 1e5 => format!("{v:.0}"),
        v => bytes(v as u64),
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-4 => format!("{:.2} us", s * 1e6),
        s if s < 0.1 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}
