//! `outlive pool repair`.

use crate::args::RepairArgs;
use crate::output::{Answer, Reporter, bytes, count, shown};
use crate::{EXIT_DAMAGED, exit_code, pool};
use outlive_pool::{Pool, RepairOptions, RepairReport};
use outlive_types::{Error, ErrorKind, PackId, Result};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;

/// `outlive pool repair`.
pub fn repair(args: &RepairArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open_to_change(&args.pool, args.dry_run, reporter)?;
    let options =
        RepairOptions { bytes_per_s: args.rate, dry_run: args.dry_run, ..RepairOptions::default() };
    reporter.busy("looking for what is missing");
    let report = outlive_store::repair(&pool, options)?;
    reporter.finish();
    let code = if args.dry_run { 0 } else { ends_with(&report) };
    let text = text(&pool, args, &report);
    Ok(Answer { text, json: json_of(args, &report), code })
}

/// Returns the exit code of a command after a repair.
pub fn ends_with(report: &RepairReport) -> i32 {
    match report {
        RepairReport { lost, .. } if !lost.is_empty() => EXIT_DAMAGED,
        RepairReport { failed, .. } if !failed.is_empty() => exit_code(ErrorKind::Retry),
        RepairReport { missing, crowded, .. } if *missing + *crowded > 0 => {
            exit_code(ErrorKind::Retry)
        }
        RepairReport { left, .. } => {
            let why = left.values().find_map(|(_, why)| why.as_ref());
            let unknown = if left.is_empty() { 0 } else { exit_code(ErrorKind::Retry) };
            why.map_or(unknown, |why| exit_code(why.kind()))
        }
    }
}

/// Describes the result of a repair, and what it could not do.
pub fn done_text(pool: &Pool, report: &RepairReport) -> String {
    let mut text = String::new();
    let RepairReport { shards, written_bytes, moved, moved_bytes, surplus, .. } = report;
    if *moved > 0 {
        let moved = count(*moved, "shard");
        let _ = writeln!(text, "{moved} of {} moved to other targets.", bytes(*moved_bytes));
    }
    if *shards > 0 {
        let shards = count(*shards, "shard");
        let _ = writeln!(text, "{shards} of {} rewritten.", bytes(*written_bytes));
    }
    if *surplus > 0 {
        let copies = if *surplus == 1 { "copy" } else { "copies" };
        let _ = writeln!(text, "{surplus} surplus {copies} deleted.");
    }
    for id in &report.removed {
        let _ = writeln!(text, "Target {id} has left the pool.");
    }
    for (id, (left, why)) in &report.left {
        let why = why.as_ref().map_or("put there meanwhile", |why| why.message());
        let left = count(*left, "shard");
        let _ =
            writeln!(text, "{left} still on target {id}, which is to be emptied: {}", shown(why));
    }
    if report.missing > 0 {
        let _ = writeln!(
            text,
            "{} still missing: there is no target for them. Bring back those that are away, or replace \
             them, and repair again.",
            count(report.missing, "shard")
        );
    }
    if report.crowded > 0 {
        let _ = writeln!(
            text,
            "{} still beside another one of the pack, on targets that fail together: there is no other target \
             for them. Add one, and run `{}`.",
            count(report.crowded, "shard"),
            pool.command("pool repair", &[])
        );
    }
    text
}

fn text(pool: &Pool, args: &RepairArgs, report: &RepairReport) -> String {
    let RepairReport { packs, degraded, unfinished, missing, unneeded, .. } = report;
    let mut text = format!("{}: ", count(*packs, "pack"));
    let _ = match (*degraded, args.dry_run) {
        (0, _) => {
            writeln!(text, "no shard of them is missing, and every shard is where it should be")
        }
        (_, true) => writeln!(
            text,
            "{degraded} lack something or are not where they should be; {} in all are missing",
            count(*missing, "shard")
        ),
        _ => writeln!(text, "{degraded} lacked something or were not where they should be"),
    };
    if !args.dry_run {
        text.push_str(&done_text(pool, report));
    }
    if report.trimmed > 0 {
        let _ = writeln!(
            text,
            "{} trimmed: on the slow tier only, as keep_fast in pool.toml asks for",
            count(report.trimmed, "pack")
        );
    }
    for (pack, error) in &report.lost {
        let _ = writeln!(text, "  LOST pack {pack}: {}", shown(error.message()));
    }
    for (pack, error) in &report.failed {
        let _ = writeln!(text, "  FAILED pack {pack}: {}", shown(error.message()));
    }
    if *unneeded > 0 {
        let gc = pool.command("gc", &[]);
        let _ = writeln!(
            text,
            "{} that no checkpoint needs cannot be made whole: they were deleted while a target was \
             away, or never finished; `{gc}` removes what is left of them",
            count(*unneeded, "pack")
        );
    }
    if *unfinished > 0 {
        let gc = pool.command("gc", &[]);
        let _ = writeln!(
            text,
            "{} left alone: a save is writing it, or was killed; then `{gc}` removes what is left",
            count(*unfinished, "pack")
        );
    }
    if !report.lost.is_empty() {
        let scrub = pool.command("scrub", &[]);
        let _ = writeln!(text, "`{scrub}` says which checkpoints, if any, needed what is lost.");
    }
    text
}

fn json_of(args: &RepairArgs, report: &RepairReport) -> Value {
    let each = |faults: &[(PackId, Error)]| -> Vec<Value> {
        let one = |(pack, error): &(PackId, Error)| json!({ "pack": pack.to_string(), "error": error.message() });
        faults.iter().map(one).collect()
    };
    json!({
        "pool": args.pool.display().to_string(),
        "dry_run": args.dry_run,
        "packs": report.packs,
        "degraded": report.degraded,
        "unfinished": report.unfinished,
        "trimmed": report.trimmed,
        "shards_written": report.shards,
        "written_bytes": report.written_bytes,
        "shards_moved": report.moved,
        "moved_bytes": report.moved_bytes,
        "surplus_deleted": report.surplus,
        "shards_missing": report.missing,
        "shards_crowded": report.crowded,
        "left": report.left.iter().map(|(id, (shards, why))| json!({
            "id": id,
            "shards": shards,
            "why": why.as_ref().map(Error::message),
        })).collect::<Vec<_>>(),
        "removed": report.removed,
        "lost": each(&report.lost),
        "unneeded": report.unneeded,
        "failed": each(&report.failed),
    })
}
