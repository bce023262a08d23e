//! `outlive verify`: reads stored data, and reports damage, the affected checkpoints and the next
//! step.

use crate::args::VerifyArgs;
use crate::chosen::job_at;
use crate::output::{Answer, Reporter, bytes, count};
use crate::{EXIT_DAMAGED, pool};
use outlive_format::Body;
use outlive_pool::{Pool, StoredShard};
use outlive_store::commit::history;
use outlive_store::images::{pages_of, segments_of_all};
use outlive_store::{
    EpochInfo, Finding, Job, JobOptions, Sample, VerifyReport, is_damage, without_collected,
};
use outlive_types::{Epoch, Error, JobName, Result, SessionId};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Result for a job.
struct JobCheck {
    name: JobName,
    report: VerifyReport,
    /// Checkpoints in which damage was found.
    incomplete: BTreeSet<Epoch>,
    /// Results for checkpoints of memory, which a restore uses, and of files, which a get uses.
    kinds: [KindCheck; 2],
    /// Suspect checkpoints that are whole and lost the mark.
    cleared: Vec<Epoch>,
}

/// Result for a job's checkpoints of one kind.
#[derive(Default)]
struct KindCheck {
    /// The newest in which damage was found.
    newest_incomplete: Option<Epoch>,
    /// The newest that was checked and is whole.
    newest_whole: Option<Epoch>,
}

impl JobCheck {
    fn newest_whole(&self) -> Option<Epoch> {
        self.kinds.iter().filter_map(|kind| kind.newest_whole).max()
    }
}

/// Result for the shards themselves.
#[derive(Default)]
struct ShardCheck {
    shards: u64,
    read_bytes: u64,
    faults: Vec<(StoredShard, Error)>,
}

/// `outlive verify`.
pub fn verify(args: &VerifyArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open(&args.pool, reporter)?;
    let only = args.job.as_deref().map(|text| job_at(&pool, text, args.epoch)).transpose()?;
    let (only, epoch) = only.map_or((None, None), |(name, epoch)| (Some(name), epoch));
    let names = match &only {
        Some(name) => vec![name.clone()],
        None => pool.jobs()?,
    };
    let sample = match args.sample {
        Some(percent) => Sample::new(percent / 100.0, &*pool.env().rng),
        None => Sample::ALL,
    };
    let mut jobs = Vec::with_capacity(names.len());
    for name in names {
        reporter.busy(&format!("reading the checkpoints of job {name}"));
        jobs.push(check_job(&pool, name, epoch, sample)?);
    }
    reporter.finish();
    let shards = match args.quick {
        true => None,
        false => Some(check_shards(&pool, only.as_ref(), sample, reporter)?),
    };
    Ok(answer(&pool, (&args.job, epoch), args.sample, &jobs, shards.as_ref()))
}

fn check_job(pool: &Pool, name: JobName, only: Option<Epoch>, sample: Sample) -> Result<JobCheck> {
    let job = Job::open(pool, name.as_str(), JobOptions::default())?;
    let report = job.verify_sample(only, sample)?;
    let incomplete: BTreeSet<Epoch> = report.findings.iter().filter_map(|f| f.epoch).collect();
    let epochs = job.epochs()?;
    let is_whole =
        |epoch: Epoch| only.is_none_or(|only| only == epoch) && !incomplete.contains(&epoch);
    let whole = epochs.iter().filter(|info| is_whole(info.epoch));
    let kind_of = |files: bool| {
        let of_kind = |info: &&EpochInfo| info.manifest.is_of_files() == files;
        let is_incomplete = |info: &&EpochInfo| incomplete.contains(&info.epoch);
        KindCheck {
            newest_incomplete: epochs
                .iter()
                .filter(of_kind)
                .filter(is_incomplete)
                .map(|i| i.epoch)
                .max(),
            newest_whole: whole.clone().filter(of_kind).map(|info| info.epoch).max(),
        }
    };
    let kinds = [false, true].map(kind_of);
    for epoch in &incomplete {
        // Verification must also work on a read-only pool.
        let _ = job.mark_suspect(*epoch);
    }
    let mut cleared = Vec::new();
    for info in whole.filter(|info| info.manifest.remarks.suspect && sample == Sample::ALL) {
        job.note(info.epoch, |remarks| remarks.suspect = false)
            .map_err(|e| e.context(format!("taking the mark off checkpoint {}", info.epoch)))?;
        cleared.push(info.epoch);
    }
    Ok(JobCheck { name, report, incomplete, kinds, cleared })
}

/// Reads every byte of the shards of one job's writers, or of all shards.
fn check_shards(
    pool: &Pool,
    job: Option<&JobName>,
    sample: Sample,
    reporter: &Reporter,
) -> Result<ShardCheck> {
    let mut shards = pool.shards()?;
    if let Some(job) = job {
        let sessions = sessions(pool, job)?;
        shards.retain(|shard| sessions.contains(&shard.pack().session()));
    }
    sample.choose(&mut shards, |shard| outlive_chunk::fingerprint(&shard.pack().0));
    let mut total_bytes = 0;
    for shard in &shards {
        // A gc may delete it meanwhile.
        total_bytes += pool.shard_bytes(*shard).unwrap_or(0);
    }
    let done_bytes = AtomicU64::new(0);
    let threads = pool.config().tuning.threads();
    let outcomes = outlive_chunk::parallel(shards, threads, |shard| {
        let outcome = pool.verify_shard(shard);
        let length = pool.shard_bytes(shard).unwrap_or(0);
        let done = done_bytes.fetch_add(length, Ordering::Relaxed) + length;
        reporter.progress("checking packs", done, total_bytes.max(done));
        (shard, outcome)
    });
    reporter.finish();
    let mut check = ShardCheck::default();
    for (shard, outcome) in outcomes {
        match outcome {
            Ok(read_bytes) => {
                check.shards += 1;
                check.read_bytes += read_bytes;
            }
            // Only damage is a finding; a medium that does not respond is an error.
            Err(error) if is_damage(&error) => check.faults.push((shard, error)),
            Err(error) => return Err(error),
        }
    }
    check.faults = without_collected(pool, check.faults)?;
    check.shards += check.faults.len() as u64;
    Ok(check)
}

/// Returns the sessions whose packs a job's checkpoints may need.
fn sessions(pool: &Pool, job: &JobName) -> Result<HashSet<SessionId>> {
    let mut sessions = HashSet::new();
    for entry in history(pool, job)? {
        match entry.record.map(|record| record.body) {
            Ok(Body::Session(session)) => {
                sessions.insert(session.session);
            }
            Ok(Body::Manifest(manifest)) => {
                sessions.insert(manifest.session);
                let segments = segments_of_all(pool, &manifest).unwrap_or_default();
                sessions.extend(segments.iter().map(|segment| segment.pack.session()));
                sessions.extend(pages_of(&manifest).map(|page| page.pack.session()));
            }
            _ => {}
        }
    }
    Ok(sessions)
}

fn answer(
    pool: &Pool,
    (only, epoch): (&Option<String>, Option<Epoch>),
    sample_percent: Option<f64>,
    jobs: &[JobCheck],
    shards: Option<&ShardCheck>,
) -> Answer {
    let mut text = String::new();
    let mut advice = Vec::new();
    for job in jobs {
        job_text(job, &mut text);
        advice.extend(job_advice(pool, job, epoch));
    }
    if jobs.is_empty() {
        text.push_str("The pool has no jobs yet.\n");
    }
    let whole_jobs = jobs.iter().all(|job| job.report.findings.is_empty());
    let mut whole = whole_jobs;
    if let Some(shards) = shards {
        whole &= shards.faults.is_empty();
        shards_text(shards, &mut text);
        if !shards.faults.is_empty() && whole_jobs {
            advice.push(match (only, epoch) {
                (None, None) => format!(
                    "No checkpoint reads the damaged bytes of these packs today. Run `{}`: it rewrites what others \
                     make up for, and says what no checkpoint needs.",
                    pool.command("scrub", &[])
                ),
                _ => format!(
                    "The checkpoints checked here do not read the damaged bytes of these packs, but other \
                     checkpoints may: run `{}`.",
                    pool.command("verify", &[])
                ),
            });
        }
    }
    if let (true, Some(percent)) = (whole, sample_percent) {
        let _ = writeln!(text, "The sample of {percent} % is whole; the rest was not checked.");
    } else if whole {
        text.push_str("Everything is whole.\n");
    } else {
        text.push_str("\nWhat to do:\n");
        for line in &advice {
            let _ = writeln!(text, "  {line}");
        }
    }
    let json = json!({
        "whole": whole,
        "sample_percent": sample_percent,
        "jobs": jobs.iter().map(job_json).collect::<Vec<_>>(),
        "shards": shards.map(|shards| json!({
            "checked": shards.shards,
            "read_bytes": shards.read_bytes,
            "findings": shards.faults.iter().map(|(shard, error)| json!({
                "shard": shard.to_string(),
                "kind": error.kind().name(),
                "message": error.message(),
            })).collect::<Vec<_>>(),
        })),
        "advice": advice,
    });
    Answer { text, json, code: if whole { 0 } else { EXIT_DAMAGED } }
}

fn job_text(job: &JobCheck, text: &mut String) {
    let JobCheck { name, report, .. } = job;
    let _ = writeln!(
        text,
        "job {name}: {} of {} whole, {} read",
        report.whole,
        count(report.checkpoints, "checkpoint"),
        bytes(report.read_bytes)
    );
    for epoch in &job.incomplete {
        let mut of_it = report.findings.iter().filter(|finding| finding.epoch == Some(*epoch));
        let first = of_it.next().map_or("", |finding| finding.error.message());
        // The line already names the checkpoint.
        let first =
            first.strip_prefix(&format!("checkpoint {epoch} of job {name}: ")).unwrap_or(first);
        let _ = writeln!(text, "  DAMAGED checkpoint {epoch}: {first}");
        let more = of_it.count() as u64;
        if more > 0 {
            let _ = writeln!(text, "          and {}", count(more, "more location"));
        }
    }
    for epoch in &job.cleared {
        let _ =
            writeln!(text, "  checkpoint {epoch} was suspect and is whole: restores take it again");
    }
    for finding in report.findings.iter().filter(|finding| finding.epoch.is_none()) {
        let _ = writeln!(text, "  DAMAGED log: {}", finding.error.message());
    }
}

fn shards_text(shards: &ShardCheck, text: &mut String) {
    let _ = writeln!(
        text,
        "packs: {} of {} whole, {} read",
        shards.shards - shards.faults.len() as u64,
        shards.shards,
        bytes(shards.read_bytes)
    );
    for (_, error) in &shards.faults {
        let _ = writeln!(text, "  DAMAGED {}", error.message());
    }
}

fn job_advice(pool: &Pool, job: &JobCheck, only: Option<Epoch>) -> Vec<String> {
    if job.report.findings.is_empty() {
        return Vec::new();
    }
    let name = &job.name;
    if job.incomplete.is_empty() {
        return vec![format!(
            "Job {name}: a record of the log is damaged. If it was a checkpoint, that one is lost; {}.",
            match job.newest_whole() {
                Some(whole) => format!("the newest whole one is {whole}"),
                None => "no whole one is left".to_owned(),
            }
        )];
    }
    if only.is_some() {
        let verify = pool.command("verify", &[name.as_str()]);
        return vec![format!(
            "Job {name}: `{verify}` finds a checkpoint that is whole, if there is one."
        )];
    }
    // A restore uses a checkpoint of memory, a get one of files; a job may have both.
    let is_mixed = job.kinds.iter().all(|k| k.newest_incomplete.or(k.newest_whole).is_some());
    let mut advice = Vec::new();
    for (kind, is_files) in job.kinds.iter().zip([false, true]) {
        let Some(newest_incomplete) = kind.newest_incomplete else { continue };
        let (verb, of) = match (is_files, is_mixed) {
            (true, true) => ("get", " of files"),
            (true, false) => ("get", ""),
            (false, true) => ("restore", " of memory"),
            (false, false) => ("restore", ""),
        };
        advice.push(match (kind.newest_whole, is_files) {
            (Some(whole), _) if whole > newest_incomplete => format!(
                "Job {name}: nothing. Its newest checkpoint{of}, {whole}, is whole and is what a \
                 {verb} takes."
            ),
            (Some(whole), false) => format!(
                "Job {name}: a restore passes over the damage and takes checkpoint {whole}. The next \
                 save of a program that restored it is whole again."
            ),
            (Some(whole), true) => format!(
                "Job {name}: a get passes over the damage and takes checkpoint {whole}. The next put \
                 is whole again."
            ),
            (None, _) => format!(
                "Job {name}: no whole checkpoint{of} is left. {}; otherwise take a copy of the pool.",
                match is_files {
                    true => "`outlive get` still gets the files that are whole",
                    false => "`outlive export --only` may still save single regions",
                }
            ),
        });
    }
    advice
}

fn job_json(job: &JobCheck) -> Value {
    let finding = |finding: &Finding| {
        json!({
            "epoch": finding.epoch,
            "kind": finding.error.kind().name(),
            "message": finding.error.message(),
        })
    };
    json!({
        "job": job.name.as_str(),
        "checkpoints": job.report.checkpoints,
        "whole": job.report.whole,
        "read_bytes": job.report.read_bytes,
        "damaged_epochs": job.incomplete,
        "newest_whole_epoch": job.newest_whole(),
        "newest_whole_memory_epoch": job.kinds[0].newest_whole,
        "newest_whole_files_epoch": job.kinds[1].newest_whole,
        "cleared_epochs": job.cleared,
        "findings": job.report.findings.iter().map(finding).collect::<Vec<_>>(),
    })
}
