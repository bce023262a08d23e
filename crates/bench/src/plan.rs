//! `outlive-bench plan`: the number of containers that each planner of stream restores reads.

use crate::args::PlanArgs;
use outlive_cli::numbers::size;
use outlive_cli::output::{Answer, Reporter, Table, bytes, shown};
use outlive_cli::plot;
use outlive_files::planner::{
    Item, Memory, StreamPlan, Trace, Version, asm, best, bytes_of, dasm, lru,
};
use outlive_types::{Error, Result};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt::Write as _;

type Planner = fn(&[Item], Memory) -> StreamPlan;
const PLANNERS: [(&str, Planner); 4] =
    [("LRU", lru), ("ASM", asm), ("DASM", dasm), ("outlive", best)];
/// Share of ASM's reads to save, at [`GOAL_CONTAINERS`] of memory.
const GOAL_SAVED: f64 = 0.30;
const GOAL_CONTAINERS: u64 = 8;

/// Reads of each planner for one version and memory.
struct Row {
    version: String,
    memory: Memory,
    /// Number of containers with any of its chunks: no plan reads fewer.
    distinct: usize,
    stream_bytes: u64,
    reads: [usize; 4],
}

/// `outlive-bench plan`.
pub fn run(args: &PlanArgs, reporter: &Reporter) -> Result<Answer> {
    let text = std::fs::read_to_string(&args.trace)
        .map_err(|e| Error::io_named("reading the trace", &args.trace, &e))?;
    let trace = Trace::parse(&text).map_err(|e| e.context(args.trace.display().to_string()))?;
    let memories: Vec<Memory> = args
        .memory
        .iter()
        .map(|text| memory(text, trace.container_bytes))
        .collect::<Result<_>>()?;
    let from = if args.all { 0 } else { trace.versions.len() - 1 };
    let mut rows = Vec::new();
    for version in &trace.versions[from..] {
        for memory in &memories {
            let memory_shown = bytes(memory.bytes);
            reporter
                .step("bench plan", &format!("{}, {memory_shown} of memory", shown(&version.name)));
            rows.push(row(version, *memory));
        }
    }
    reporter.finish();
    let mut text = table(&rows);
    let last: Vec<&Row> =
        rows.iter().rev().take(memories.len()).collect::<Vec<_>>().into_iter().rev().collect();
    for row in &last {
        let [.., asm, _, ours] = row.reads;
        if row.memory.bytes == GOAL_CONTAINERS * row.memory.container_bytes {
            let saved = 1.0 - ours as f64 / asm.max(1) as f64;
            let met = if saved >= GOAL_SAVED { "yes" } else { "NO" };
            let _ = writeln!(
                text,
                "\nlast version, {GOAL_CONTAINERS} containers of memory: {:.0} % fewer reads than \
                 ASM (goal: {:.0} %), met: {met}",
                saved * 100.0,
                GOAL_SAVED * 100.0
            );
        }
    }
    if let Some(file) = &args.plot {
        let at: Vec<f64> = last.iter().map(|row| containers(row.memory)).collect();
        let series: Vec<plot::Series> = PLANNERS
            .iter()
            .enumerate()
            .map(|(n, (name, _))| (*name, last.iter().map(|row| row.reads[n] as f64).collect()))
            .collect();
        let title = "Container reads to restore the last version, over memory in containers";
        let picture = plot::lines(title, "memory", &at, |reads| format!("{reads:.0}"), &series);
        std::fs::write(file, picture)
            .map_err(|e| Error::io_named("writing the picture", file, &e))?;
    }
    let json: Vec<Value> = rows
        .iter()
        .map(|row| {
            let reads: serde_json::Map<String, Value> = PLANNERS
                .iter()
                .zip(row.reads)
                .map(|((n, _), r)| ((*n).to_owned(), json!(r)))
                .collect();
            json!({ "version": row.version, "memory_bytes": row.memory.bytes,
                "stream_bytes": row.stream_bytes, "distinct": row.distinct, "reads": reads })
        })
        .collect();
    Ok(Answer { text, json: json!({ "rows": json }), code: 0 })
}

fn row(version: &Version, memory: Memory) -> Row {
    let recipe = &version.recipe;
    let distinct: HashSet<u32> = recipe.iter().map(|item| item.container).collect();
    Row {
        version: version.name.clone(),
        memory,
        distinct: distinct.len(),
        stream_bytes: bytes_of(recipe),
        reads: PLANNERS.map(|(_, planner)| planner(recipe, memory).reads.len()),
    }
}

fn containers(memory: Memory) -> f64 {
    memory.bytes as f64 / memory.container_bytes as f64
}

/// Parses `8c`, or a size.
fn memory(text: &str, container_bytes: u64) -> Result<Memory> {
    let count = text.strip_suffix('c').and_then(|count| count.parse::<u64>().ok());
    let total = match count {
        Some(count) => count.checked_mul(container_bytes),
        None => size(text).ok(),
    };
    match total {
        Some(bytes) if bytes >= container_bytes => Ok(Memory { bytes, container_bytes }),
        _ => Err(Error::invalid(format!(
            "--memory {text:?} is not possible: give at least one container, such as 8c or 32MiB"
        ))),
    }
}

fn table(rows: &[Row]) -> String {
    let mut headings = vec!["VERSION", ">STREAM", ">MEMORY", ">AT LEAST"];
    headings.extend([">LRU", ">ASM", ">DASM", ">OUTLIVE", ">MB/READ LRU", ">ASM", ">DASM"]);
    headings.push(">OUTLIVE");
    let mut table = Table::new(&headings);
    for row in rows {
        let mut cells = vec![
            shown(&row.version),
            bytes(row.stream_bytes),
            format!("{:.0} containers", containers(row.memory)),
            row.distinct.to_string(),
        ];
        cells.extend(row.reads.iter().map(usize::to_string));
        let mb = |reads: &usize| row.stream_bytes as f64 / 1e6 / (*reads).max(1) as f64;
        cells.extend(row.reads.iter().map(|reads| format!("{:.2}", mb(reads))));
        table.row(cells);
    }
    table.text()
}
