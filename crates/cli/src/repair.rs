//! `outlive pool repair`.

use crate::args::RepairArgs;
use crate::output::{Answer, Teller, bytes, count, shown};
use crate::{EXIT_DAMAGED, exit_code, pool};
use outlive_pool::{Pool, RepairOptions, RepairReport};
use outlive_store::named_packs;
use outlive_types::{Error, ErrorKind, PackId, Result};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;

/// `outlive pool repair`.
pub fn repair(args: &RepairArgs, teller: &Arc<Teller>) -> Result<Answer> {
    let pool = pool::open_to_change(&args.pool, args.dry_run, teller)?;
    let options = RepairOptions { bytes_per_s: args.rate, dry_run: args.dry_run };
    teller.busy("looking for what is missing");
    let mut report = outlive_store::repair(&pool, options)?;
    // A pack that was deleted while a target was away is on it again when it is back.
    let mut left_over = 0;
    if !report.lost.is_empty() {
        let named = named_packs(&pool)?;
        left_over = report.lost.len();
        report.lost.retain(|(pack, _)| named.contains(pack));
        left_over -= report.lost.len();
    }
    teller.finish();
    let code = match (&report.lost[..], &report.failed[..]) {
        ([], []) if args.dry_run || report.missing == 0 => 0,
        ([], _) => exit_code(ErrorKind::Retry),
        _ => EXIT_DAMAGED,
    };
    let text = text(&pool, args, &report, left_over as u64);
    Ok(Answer { text, json: json_of(args, &report), code })
}

fn text(pool: &Pool, args: &RepairArgs, report: &RepairReport, left_over: u64) -> String {
    let RepairReport { packs, incomplete, unfinished, shards, written_bytes, missing, .. } = report;
    let mut text = format!("{}: ", count(*packs, "pack"));
    let _ = match (*incomplete, args.dry_run) {
        (0, _) => writeln!(text, "nothing is missing"),
        (_, true) => {
            writeln!(text, "{incomplete} lack something, {} in all", count(*missing, "shard"))
        }
        _ => writeln!(
            text,
            "{incomplete} lacked something; {} of {} written anew",
            count(*shards, "shard"),
            bytes(*written_bytes)
        ),
    };
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
    if left_over > 0 {
        let gc = pool.command("gc", &[]);
        let _ = writeln!(
            text,
            "{} that no checkpoint needs cannot be made whole: they were deleted while a target was \
             away, or never finished; `{gc}` removes what is left of them",
            count(left_over, "pack")
        );
    }
    if *unfinished > 0 {
        let gc = pool.command("gc", &[]);
        let _ = writeln!(
            text,
            "{} left alone: somebody is writing it, or has died at that; then `{gc}` removes what is \
             left",
            count(*unfinished, "pack")
        );
    }
    if *missing > 0 && !args.dry_run {
        let _ = writeln!(
            text,
            "{} still missing: there is no target for them. Bring back those that are away, or replace \
             them, and repair again.",
            count(*missing, "shard")
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
        "incomplete": report.incomplete,
        "unfinished": report.unfinished,
        "trimmed": report.trimmed,
        "shards_written": report.shards,
        "written_bytes": report.written_bytes,
        "shards_missing": report.missing,
        "lost": each(&report.lost),
        "failed": each(&report.failed),
    })
}
