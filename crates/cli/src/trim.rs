//! `outlive pool trim`.

use crate::args::TrimArgs;
use crate::output::{Answer, Reporter, bytes, count, shown};
use crate::{exit_code, pool};
use outlive_store::{TrimOptions, TrimReport};
use outlive_types::Result;
use serde_json::json;
use std::fmt::Write as _;
use std::sync::Arc;

/// Most packs in the list of those that could not be trimmed.
const SHOWN_MAX: usize = 20;

/// `outlive pool trim`.
pub fn trim(args: &TrimArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open_to_change(&args.pool, args.dry_run, reporter)?;
    reporter.busy("looking for what the fast tier need not have");
    let options = TrimOptions { bytes_per_s: args.rate, dry_run: args.dry_run };
    let report = outlive_store::trim(&pool, options)?;
    reporter.finish();
    let code = report.failed.first().map_or(0, |(_, error)| exit_code(error.kind()));
    let TrimReport { packs, kept, unfilled, trimmed, freed_bytes, failed } = &report;
    let mut text = format!(
        "{} on the fast tier: {kept} needed by the newest checkpoints, {trimmed} of {} {}\n",
        count(*packs, "pack"),
        bytes(*freed_bytes),
        if args.dry_run { "would be deleted there" } else { "deleted there" }
    );
    if *unfilled > 0 {
        let fill = pool.command("pool fill", &[]);
        let _ =
            writeln!(text, "{unfilled} stay, as the slow tier lacks them: `{fill}` copies them.");
    }
    for (pack, error) in failed.iter().take(SHOWN_MAX) {
        let _ = writeln!(text, "  KEPT pack {pack}: {}", shown(error.message()));
    }
    if failed.len() > SHOWN_MAX {
        let _ = writeln!(text, "  and {} more", failed.len() - SHOWN_MAX);
    }
    let json = json!({
        "pool": args.pool.display().to_string(),
        "dry_run": args.dry_run,
        "packs": packs,
        "kept": kept,
        "unfilled": unfilled,
        "trimmed": trimmed,
        "freed_bytes": freed_bytes,
        "failed": failed.iter().map(|(pack, error)| {
            json!({ "pack": pack.to_string(), "error": error.message() })
        }).collect::<Vec<_>>(),
    });
    Ok(Answer { text, json, code })
}
