//! `outlive pool fill`.

use crate::args::RepairArgs;
use crate::output::{Answer, Reporter, bytes, count, shown};
use crate::{exit_code, pool};
use outlive_pool::Pool;
use outlive_store::{FillOptions, FillReport};
use outlive_types::{ErrorKind, Result};
use serde_json::json;
use std::fmt::Write as _;
use std::sync::Arc;

/// Most packs in the list of those that could not be copied.
const SHOWN_MAX: usize = 20;

/// `outlive pool fill`.
pub fn fill(args: &RepairArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open_to_change(&args.pool, args.dry_run, reporter)?;
    reporter.busy("looking for what the slow tier lacks");
    let options =
        FillOptions { bytes_per_s: args.rate, dry_run: args.dry_run, ..FillOptions::default() };
    let report = outlive_store::fill(&pool, options)?;
    reporter.finish();
    let failures = || {
        let unread = report.unread.iter().map(|(_, _, error)| error.kind());
        report.failed.iter().map(|(_, error)| error.kind()).chain(unread)
    };
    let code = match failures().next() {
        _ if args.dry_run => 0,
        None => 0,
        // Damage does not pass; on a full target, the user must free space.
        Some(first) => {
            let worst = [ErrorKind::Damaged, ErrorKind::Full];
            let worst = worst.into_iter().find(|kind| failures().any(|other| other == *kind));
            exit_code(worst.unwrap_or(first))
        }
    };
    Ok(Answer { text: text(&pool, args, &report), json: json_of(args, &report), code })
}

fn text(pool: &Pool, args: &RepairArgs, report: &FillReport) -> String {
    let FillReport { checkpoints, packs, degraded, shards, copied_bytes, left, .. } = report;
    let mut text = format!("{}, {}: ", count(*checkpoints, "checkpoint"), count(*packs, "pack"));
    let _ = match (*degraded, args.dry_run) {
        (0, _) => writeln!(text, "the slow tier has them all"),
        (_, true) => writeln!(
            text,
            "the slow tier lacks {} of {}",
            count(*left, "shard"),
            count(*degraded, "pack")
        ),
        _ => writeln!(
            text,
            "{} of {} copied to the slow tier",
            count(*shards, "shard"),
            bytes(*copied_bytes)
        ),
    };
    for (pack, error) in report.failed.iter().take(SHOWN_MAX) {
        let _ = writeln!(text, "  FAILED pack {pack}: {}", shown(error.message()));
    }
    if report.failed.len() > SHOWN_MAX {
        let _ = writeln!(text, "  and {} more", report.failed.len() - SHOWN_MAX);
    }
    for (job, epoch, error) in &report.unread {
        let _ = writeln!(text, "  FAILED checkpoint {epoch} of {job}: {}", shown(error.message()));
    }
    if *left > 0 && !args.dry_run {
        let fill = pool.command("pool fill", &[]);
        let _ = writeln!(
            text,
            "{} still missing on the slow tier: put right what is said above, and run `{fill}` again.",
            count(*left, "shard")
        );
    }
    text
}

fn json_of(args: &RepairArgs, report: &FillReport) -> serde_json::Value {
    json!({
        "pool": args.pool.display().to_string(),
        "dry_run": args.dry_run,
        "checkpoints": report.checkpoints,
        "packs": report.packs,
        "degraded": report.degraded,
        "shards_copied": report.shards,
        "copied_bytes": report.copied_bytes,
        "shards_left": report.left,
        "failed": report.failed.iter().map(|(pack, error)| {
            json!({ "pack": pack.to_string(), "error": error.message() })
        }).collect::<Vec<_>>(),
        "unread": report.unread.iter().map(|(job, epoch, error)| {
            json!({ "job": job.as_str(), "epoch": epoch, "error": error.message() })
        }).collect::<Vec<_>>(),
    })
}
