//! `outlive diff`: the differences between two checkpoints.

use crate::args::DiffArgs;
use crate::chosen::{job_at, select, skipped_json};
use crate::output::{Answer, Reporter, Table, bytes, count, path_json, shown};
use crate::pool;
use crate::region::shape;
use crate::show::region_json;
use outlive_pool::Pool;
use outlive_store::diff::{
    Change, Diff, Differences, FilesDiff, MemoryDiff, PathDiff, RegionDiff, Side, diff as compare,
};
use outlive_types::{JobName, Rank, RegionDesc, Result, shown_path};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;

/// Exit code for checkpoints that differ, as of `diff` for files.
const EXIT_DIFFERS: i32 = 1;

/// `outlive diff`.
pub fn diff(args: &DiffArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open(&args.pool, reporter)?;
    let (a, b) = (chosen(&pool, &args.before, args.rank)?, chosen(&pool, &args.after, args.rank)?);
    reporter.busy("comparing");
    let diff = compare(&pool, [&a, &b], args.pages)?;
    reporter.finish();
    let mut answer = answer(&[a.job, b.job], &diff, args.pages);
    if let Some(rank) = args.rank {
        answer.json["rank"] = json!(rank);
    }
    Ok(answer)
}

fn chosen(pool: &Pool, text: &str, rank: Option<Rank>) -> Result<Side> {
    let (job, epoch) = job_at(pool, text, None)?;
    Ok(Side { job, select: select(epoch), rank })
}

fn answer(jobs: &[JobName; 2], diff: &Diff, ranges: bool) -> Answer {
    let is_same = diff.is_same();
    let mut text = String::new();
    for (sign, at) in [("-", 0), ("+", 1)] {
        let _ = writeln!(text, "{sign} checkpoint {} of job {}", diff.epochs[at], jobs[at]);
    }
    let (body, json) = match &diff.differences {
        Differences::Memory(memory) => (memory_text(memory, ranges), memory_json(memory, ranges)),
        Differences::Files(files) => (files_text(files), files_json(files)),
    };
    text.push_str(&body);
    let side = |at: usize| {
        json!({
            "job": jobs[at].as_str(),
            "epoch": diff.epochs[at],
            "skipped": skipped_json(&diff.skipped[at]),
        })
    };
    let mut all = json!({ "before": side(0), "after": side(1), "same": is_same });
    if let (Some(all), Value::Object(more)) = (all.as_object_mut(), json) {
        all.extend(more);
    }
    Answer { text, json: all, code: if is_same { 0 } else { EXIT_DIFFERS } }
}

fn described(region: &RegionDesc) -> String {
    format!("{} {}, {}", shown(&region.dtype), shape(&region.shape), bytes(region.bytes))
}

fn memory_text(diff: &MemoryDiff, ranges: bool) -> String {
    let mut text = String::new();
    let mut table = Table::new(&["", "REGION", ">PAGES", ">OF", ">SHARE", ">BYTES", ""]);
    for (sign, regions) in [("-", &diff.removed), ("+", &diff.added)] {
        for region in regions {
            let cells = [sign, &shown(&region.name), "", "", "", &bytes(region.bytes), ""];
            table.row(cells.map(str::to_owned).to_vec());
        }
    }
    for region in &diff.changed {
        let remark = match region.is_reshaped() {
            true => format!("was {}, is {}", described(&region.before), described(&region.after)),
            false => String::new(),
        };
        let mut cells = vec!["~".to_owned(), shown(&region.after.name)];
        match &region.content {
            None => cells.extend(["-"; 4].map(str::to_owned)),
            Some(content) => cells.extend([
                content.changed_pages.to_string(),
                content.pages.to_string(),
                share(content.changed_pages, content.pages),
                bytes(content.changed_bytes),
            ]),
        }
        cells.push(remark);
        table.row(cells);
    }
    let differ = diff.removed.len() + diff.added.len() + diff.changed.len();
    if differ > 0 {
        let _ = write!(text, "\n{}", table.text());
    }
    if ranges {
        diff.changed.iter().for_each(|region| ranges_text(region, &mut text));
    }
    if diff.attachment {
        text.push_str("The data that the program stores besides its regions differs.\n");
    }
    let pages: u64 = contents(diff).map(|content| content.changed_pages).sum();
    let changed: u64 = contents(diff).map(|content| content.changed_bytes).sum();
    let _ = writeln!(
        text,
        "\n{} the same, {} removed, {} added, {} changed: {} of {}",
        count(diff.same, "region"),
        diff.removed.len(),
        diff.added.len(),
        diff.changed.len(),
        count(pages, "page"),
        bytes(changed)
    );
    text
}

fn contents(diff: &MemoryDiff) -> impl Iterator<Item = &outlive_store::diff::PageDiff> {
    diff.changed.iter().filter_map(|region| region.content.as_ref())
}

fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_owned(),
        _ => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}

fn ranges_text(region: &RegionDiff, text: &mut String) {
    let Some(content) = region.content.as_ref().filter(|content| content.changed_pages > 0) else {
        return;
    };
    let _ = writeln!(text, "\npages of {}:", shown(&region.after.name));
    for range in &content.ranges {
        let _ = match range.count {
            1 => writeln!(text, "  {}", range.first),
            _ => writeln!(text, "  {}-{}", range.first, range.first + range.count - 1),
        };
    }
}

fn memory_json(diff: &MemoryDiff, ranges: bool) -> Value {
    let list = |regions: &[RegionDesc]| {
        regions.iter().map(|region| region_json(region, None)).collect::<Vec<_>>()
    };
    let changed = |region: &RegionDiff| {
        let content = region.content.as_ref();
        let pairs = content.filter(|_| ranges).map(|content| {
            content.ranges.iter().map(|range| [range.first, range.count]).collect::<Vec<_>>()
        });
        json!({
            "name": region.after.name,
            "before": region_json(&region.before, None),
            "after": region_json(&region.after, None),
            "reshaped": region.is_reshaped(),
            "pages": content.map(|content| content.pages),
            "changed_pages": content.map(|content| content.changed_pages),
            "changed_bytes": content.map(|content| content.changed_bytes),
            "ranges": pairs,
        })
    };
    json!({
        "kind": "memory",
        "added": list(&diff.added),
        "removed": list(&diff.removed),
        "changed": diff.changed.iter().map(changed).collect::<Vec<_>>(),
        "same_regions": diff.same,
        "attachment_changed": diff.attachment,
    })
}

fn files_text(diff: &FilesDiff) -> String {
    let mut text = String::new();
    // The path is the last column, since it may be very long.
    let mut table = Table::new(&["", ">BEFORE", ">AFTER", "DIFFERS IN", "PATH"]);
    let (mut added, mut removed, mut contents, mut metadata) = (0, 0, 0, 0);
    for PathDiff { path, bytes: [before, after], change, .. } in &diff.paths {
        let (sign, remark) = match change {
            Change::Added => ("+", String::new()),
            Change::Removed => ("-", String::new()),
            Change::Changed { content, metadata } => {
                let mut words = metadata.clone();
                if *content {
                    words.insert(0, "content");
                }
                ("~", words.join(", "))
            }
        };
        match change {
            Change::Added => added += 1,
            Change::Removed => removed += 1,
            Change::Changed { content: true, .. } => contents += 1,
            Change::Changed { .. } => metadata += 1,
        }
        let cells = [sign, &bytes(*before), &bytes(*after), &remark, &shown_path(path)];
        table.row(cells.map(str::to_owned).to_vec());
    }
    if !diff.paths.is_empty() {
        let _ = write!(text, "\n{}", table.text());
    }
    let _ = writeln!(
        text,
        "\n{} the same, {removed} removed, {added} added, {contents} changed in content, {metadata} \
         only otherwise",
        count(diff.same, "path")
    );
    text
}

fn files_json(diff: &FilesDiff) -> Value {
    let path = |path: &PathDiff| {
        let (change, content, metadata) = match &path.change {
            Change::Added => ("added", true, Vec::new()),
            Change::Removed => ("removed", true, Vec::new()),
            Change::Changed { content, metadata } => ("changed", *content, metadata.clone()),
        };
        json!({
            "path": path_json(&path.path),
            "change": change,
            "content_changed": content,
            "metadata_changed": metadata,
            "bytes_before": path.bytes[0],
            "bytes_after": path.bytes[1],
        })
    };
    json!({
        "kind": "files",
        "paths": diff.paths.iter().map(path).collect::<Vec<_>>(),
        "same_paths": diff.same,
    })
}
