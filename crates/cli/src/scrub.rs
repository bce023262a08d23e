//! `outlive scrub`: finds damage at a low rate, and keeps it from spreading.

use crate::args::ScrubArgs;
use crate::output::{Answer, Reporter, bytes, count, shown};
use crate::{EXIT_DAMAGED, exit_code, pool};
use outlive_pool::{Pool, ShardFault};
use outlive_store::scrub::{HealReport, ScrubOptions, ScrubReport, scrub as run};
use outlive_store::{Job, JobOptions, Sample};
use outlive_types::{JobName, PackId, Result};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

/// `outlive scrub`.
pub fn scrub(args: &ScrubArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open_to_change(&args.pool, args.dry_run, reporter)?;
    let sample = match args.sample {
        Some(percent) => Sample::new(percent / 100.0, &*pool.env().rng),
        None => Sample::ALL,
    };
    let options = ScrubOptions { sample, bytes_per_s: args.rate, dry_run: args.dry_run };
    let report = run(&pool, &options)?;
    reporter.finish();
    let code = match &report.blocked {
        _ if report.is_incomplete() => EXIT_DAMAGED,
        Some(error) => exit_code(error.kind()),
        None => 0,
    };
    Ok(Answer { text: text(&pool, args, &report), json: json_of(args, &report), code })
}

fn text(pool: &Pool, args: &ScrubArgs, report: &ScrubReport) -> String {
    let ScrubReport { packs, read_bytes, degraded, copies, damaged, heal, blocked, .. } = report;
    let mut text = format!(
        "packs: {} of {packs} whole, {} read\n",
        packs.saturating_sub(damaged.len() as u64),
        bytes(*read_bytes)
    );
    for (what, faults) in [("SHARD", degraded), ("SLOW COPY", copies)] {
        for (pack, fault) in faults {
            let on = fault.target.map_or(String::new(), |id| format!(" on target {id}"));
            let (shard, why) = (fault.shard, shown(fault.error.message()));
            let _ = writeln!(text, "  {what} {shard} of pack {pack}{on}: {why}");
        }
    }
    let faults = (degraded.len() + copies.len()) as u64;
    if faults > 0 {
        let _ = writeln!(
            text,
            "{} missing, damaged or not readable now; redundancy makes up for them; {} rewritten",
            count(faults, "shard"),
            report.repaired
        );
    }
    for (pack, why) in &report.unrepaired {
        let _ = writeln!(text, "  NOT REPAIRED pack {pack}: {}", shown(why.message()));
    }
    if !report.unrepaired.is_empty() {
        let scrub = pool.command("scrub", &[]);
        let _ = writeln!(
            text,
            "These packs can still be read. Mend them with `{scrub}` before more is lost."
        );
    }
    for (_, error) in damaged {
        let _ = writeln!(text, "  DAMAGED {}", shown(error.message()));
    }
    for pack in &heal.missing {
        let _ = writeln!(text, "  MISSING pack {pack}");
    }
    if let Some(error) = blocked {
        let _ = writeln!(text, "\nNOT ALL WAS MENDED: {}", shown(error.message()));
    } else {
        heal_text(pool, heal, args.dry_run, &mut text);
    }
    for (job, epochs) in &heal.incomplete {
        let epochs: Vec<String> = epochs.iter().map(u64::to_string).collect();
        let _ = writeln!(text, "INCOMPLETE checkpoints of job {job}: {}", epochs.join(" "));
        let mut words = vec![job.as_str()];
        let verify = pool.command("verify", &words);
        match is_all_of(pool, job, epochs.len()) {
            true => words.push("--all"),
            false => words.extend(epochs.iter().flat_map(|epoch| ["--drop", epoch])),
        }
        let prune = pool.command("prune", &words);
        let _ = writeln!(text, "  `{verify}` names regions or files; `{prune}` gives them up");
    }
    if !heal.incomplete.is_empty() {
        text.push_str(
            "They need data that is lost; restores pass over them. Take out the rest with \
             `outlive export --only` or, for files, with `outlive get`.\n",
        );
    }
    if report.is_whole() {
        text.push_str(match args.sample {
            Some(_) => "The sample is whole, and nothing is missing.\n",
            None => "Everything that is needed is whole.\n",
        });
    }
    text
}

/// Returns whether a job has only this number of checkpoints; false if its log is unreadable.
fn is_all_of(pool: &Pool, job: &JobName, number: usize) -> bool {
    let epochs = Job::open(pool, job.as_str(), JobOptions::default()).and_then(|job| job.epochs());
    epochs.is_ok_and(|epochs| epochs.len() == number)
}

fn heal_text(pool: &Pool, heal: &HealReport, dry_run: bool, text: &mut String) {
    let HealReport {
        condemned, unneeded, pending, moved, moved_bytes, found_elsewhere, lost, ..
    } = heal;
    let packs = |packs: &BTreeSet<PackId>| count(packs.len() as u64, "damaged pack");
    if !condemned.is_empty() || heal.segments > 0 {
        let done = if dry_run { "would be" } else { "were" };
        let _ = writeln!(
            text,
            "{}: {} of {} {done} moved out, {found_elsewhere} found elsewhere, {lost} are lost",
            packs(condemned),
            count(*moved, "piece"),
            bytes(*moved_bytes)
        );
        if !dry_run {
            let gc = pool.command("gc", &[]);
            let _ = writeln!(text, "No checkpoint refers to them any more; `{gc}` deletes them.");
        }
    }
    if !unneeded.is_empty() {
        let gc = pool.command("gc", &[]);
        let _ = writeln!(text, "{} that no checkpoint needs: `{gc}` deletes", packs(unneeded));
    }
    if !pending.is_empty() {
        let _ = writeln!(
            text,
            "{} may belong to saves under way, and were left alone: scrub again later",
            packs(pending)
        );
    }
}

fn json_of(args: &ScrubArgs, report: &ScrubReport) -> Value {
    let ScrubReport {
        packs,
        read_bytes,
        degraded,
        repaired,
        unrepaired,
        copies,
        damaged,
        heal,
        blocked,
    } = report;
    let fault = |(pack, fault): &(PackId, ShardFault)| {
        json!({
            "pack": pack.to_string(),
            "shard": fault.shard,
            "target": fault.target,
            "message": fault.error.message(),
        })
    };
    let names = |packs: &BTreeSet<PackId>| packs.iter().map(PackId::to_string).collect::<Vec<_>>();
    json!({
        "dry_run": args.dry_run,
        "whole": report.is_whole(),
        "packs": packs,
        "read_bytes": read_bytes,
        "damaged": damaged.iter().map(|(pack, error)| json!({
            "pack": pack.to_string(),
            "message": error.message(),
        })).collect::<Vec<_>>(),
        "degraded": degraded.iter().map(fault).collect::<Vec<_>>(),
        "slow_copies": copies.iter().map(fault).collect::<Vec<_>>(),
        "unrepaired": unrepaired.iter().map(|(pack, why)| json!({
            "pack": pack.to_string(),
            "message": why.message(),
        })).collect::<Vec<_>>(),
        "shards_written": repaired,
        "condemned": names(&heal.condemned),
        "missing": names(&heal.missing),
        "unneeded": names(&heal.unneeded),
        "pending": names(&heal.pending),
        "moved": heal.moved,
        "moved_bytes": heal.moved_bytes,
        "found_elsewhere": heal.found_elsewhere,
        "lost": heal.lost,
        "unreadable_segments": heal.segments,
        "incomplete": heal.incomplete.iter().map(|(job, epochs)| json!({
            "job": job.as_str(),
            "epochs": epochs,
        })).collect::<Vec<_>>(),
        "blocked": blocked.as_ref().map(|error| json!({
            "kind": error.kind().name(),
            "message": error.message(),
        })),
    })
}
