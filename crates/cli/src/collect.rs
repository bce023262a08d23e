//! `outlive prune` and `outlive gc`: the plan, then the result.

use crate::args::{CalendarArgs, CollectArgs, GcArgs, PruneArgs};
use crate::chosen::number_of;
use crate::output::{Answer, Reporter, bytes, count, shown};
use crate::{EXIT_DAMAGED, interrupt, pool};
use outlive_pool::Pool;
use outlive_store::gc::{Collecting, GcOptions, GcPlan, GcReport, Thoroughness, collect};
use outlive_store::retention::{Best, Period, RetentionPlan, Rules, parse_age};
use outlive_store::{Job, JobOptions};
use outlive_types::{Epoch, Error, JobName, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

/// `outlive gc`.
pub fn gc(args: &GcArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open_to_change(&args.pool, args.collect.dry_run, reporter)?;
    let report = collect(&pool, &options(&pool, &args.collect, true)?)?;
    reporter.finish();
    Ok(answer(&pool, &report, args.collect.dry_run, String::new(), Value::Null))
}

/// `outlive prune`.
pub fn prune(args: &PruneArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open_to_change(&args.pool, args.collect.dry_run, reporter)?;
    let plans = plans(args, &pool)?;
    let mut options = options(&pool, &args.collect, !args.no_gc)?;
    let (mut text, mut retention) = (String::new(), Vec::new());
    options.keep_one = plans.iter().all(|(_, plan)| plan.keeps_any());
    for (name, plan) in &plans {
        text.push_str(&retention_text(name, plan));
        let decisions: Vec<Value> =
            plan.decisions.iter().map(|d| json!({ "epoch": d.epoch, "kept": d.kept })).collect();
        retention.push(json!({ "job": name.as_str(), "checkpoints": decisions,
            "dropped": plan.dropped() }));
        if !args.all_jobs || !plan.dropped().is_empty() {
            options.drop.insert(name.clone(), plan.dropped());
        }
    }
    let report = collect(&pool, &options)?;
    reporter.finish();
    let retention = match args.all_jobs {
        true => Value::Array(retention),
        false => retention.pop().unwrap_or(Value::Null),
    };
    Ok(answer(&pool, &report, args.collect.dry_run, text, retention))
}

/// Returns the plan of the job, or of all jobs that have a checkpoint. An error of one job leaves
/// all as they are.
fn plans(args: &PruneArgs, pool: &Pool) -> Result<Vec<(JobName, RetentionPlan)>> {
    let Some(job) = &args.job else {
        if args.all {
            return Err(Error::invalid(
                "--all drops all checkpoints of one job: name it, as `outlive prune POOL JOB \
                 --all`. To prune all jobs by rules, use --all-jobs",
            ));
        }
        if !args.all_jobs {
            return Err(Error::invalid(
                "no job is named: write `outlive prune POOL JOB`, or use --all-jobs",
            ));
        }
        let plan = |name: JobName| {
            let plan = plan_of(args, pool, &name).map_err(|e| {
                e.context(format!("job {name} cannot be pruned, so nothing was dropped"))
            })?;
            Ok((name, plan))
        };
        let plans: Result<Vec<_>> = pool.jobs()?.into_iter().map(plan).collect();
        return Ok(plans?.into_iter().filter(|(_, plan)| !plan.decisions.is_empty()).collect());
    };
    let name = pool::known_job(pool, job)?;
    let plan = plan_of(args, pool, &name)?;
    Ok(vec![(name, plan)])
}

fn plan_of(args: &PruneArgs, pool: &Pool, name: &JobName) -> Result<RetentionPlan> {
    let CalendarArgs { keep_hourly, keep_daily, keep_weekly, keep_monthly, keep_yearly } =
        args.calendar;
    let calendar = [
        (Period::Hour, keep_hourly),
        (Period::Day, keep_daily),
        (Period::Week, keep_weekly),
        (Period::Month, keep_monthly),
        (Period::Year, keep_yearly),
    ];
    let mut rules = Rules {
        last: args.keep_last,
        every: args.keep_every,
        within: args.keep_within.as_deref().map(parse_age).transpose()?,
        calendar: calendar.into_iter().filter_map(|(p, count)| Some((p, count?))).collect(),
        best: args.keep_best.iter().map(|text| Best::parse(text)).collect::<Result<_>>()?,
        tags: Default::default(),
        one_line: false,
        none: args.all,
        drop: args.drop.iter().map(|epoch| number_of(pool, name, *epoch)).collect::<Result<_>>()?,
    };
    args.keep_tag.iter().try_for_each(|tag| rules.add_tag(tag))?;
    args.keep.as_deref().map_or(Ok(()), |keep| rules.add(keep))?;
    Job::open(pool, name.as_str(), JobOptions::default())?.retention(&rules)
}

fn options(pool: &Pool, args: &CollectArgs, collect: bool) -> Result<GcOptions> {
    let fence = args.fence.iter().map(|job| pool::known_job(pool, job)).collect::<Result<_>>()?;
    Ok(GcOptions {
        fence,
        forget_damaged: args.forget_damaged,
        dry_run: args.dry_run,
        ..gc_options(args.max_unused, args.rate, collect)
    })
}

/// Returns the options of a gc that leaves `max_unused` per cent of the bytes in packs unused.
pub fn gc_options(max_unused: f64, bytes_per_s: Option<u64>, collect: bool) -> GcOptions {
    GcOptions {
        thoroughness: Thoroughness {
            unused_max: max_unused / 100.0,
            collect,
            ..Thoroughness::default()
        },
        bytes_per_s,
        stop: interrupt::flag(),
        ..GcOptions::default()
    }
}

/// Describes a plan; long series are shortened.
fn retention_text(job: &JobName, plan: &RetentionPlan) -> String {
    let dropped = plan.dropped();
    let goes = if dropped.len() == 1 { "goes" } else { "go" };
    let mut text = format!("Job {job}: {} {goes}\n", count(dropped.len() as u64, "checkpoint"));
    if !dropped.is_empty() {
        let decisions = plan.decisions.iter().rev().map(|d| (d.epoch, d.kept.is_none()));
        let _ = writeln!(text, "  drop {}", ranges(decisions));
    }
    for decision in &plan.decisions {
        // The text is printable: labels and metrics in it are escaped.
        if let Some(why) = &decision.kept {
            let _ = writeln!(text, "  keep {}  {}", decision.epoch, why);
        }
    }
    text
}

/// Lists the chosen ones of ascending epochs. Epochs without another one between them form a range,
/// even if numbers are missing.
pub fn ranges(epochs: impl Iterator<Item = (Epoch, bool)>) -> String {
    let mut runs: Vec<(Epoch, Epoch)> = Vec::new();
    let mut is_open = false;
    for (epoch, chosen) in epochs {
        match runs.last_mut() {
            Some((_, last)) if chosen && is_open => *last = epoch,
            _ if chosen => runs.push((epoch, epoch)),
            _ => {}
        }
        is_open = chosen;
    }
    let text = |(first, last): &(Epoch, Epoch)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Returns the answer about a gc; `before` is the text before its own.
pub fn answer(
    pool: &Pool,
    report: &GcReport,
    dry_run: bool,
    before: String,
    retention: Value,
) -> Answer {
    let GcReport { plan, deleted, deleted_bytes, is_read, collecting, damaged, .. } = report;
    let (held, held_bytes, held_by) = match dry_run {
        // A dry run deletes nothing: the plan predicts the holders.
        true => (None, plan.held_bytes, &plan.held_by),
        false => (Some(report.held), report.held_bytes, &report.held_by),
    };
    let collected = match collecting {
        _ if dry_run => None,
        Collecting::Done => Some("done"),
        Collecting::NotAsked => Some("not_asked"),
        // Only a gc behind the saves of a program gives way.
        Collecting::Postponed | Collecting::Outrun => Some("postponed"),
    };
    let mut text = before;
    match collecting {
        Collecting::Done => text.push_str(&plan_text(plan)),
        Collecting::NotAsked => text.push_str("The next gc frees the space.\n"),
        Collecting::Postponed => text
            .push_str("Another gc or scrub is at work: that one, or the next, frees the space.\n"),
        Collecting::Outrun => {
            text.push_str("A program saves too fast to be told: the next gc frees the space.\n");
        }
    }
    if dry_run {
        text.push_str("Nothing was changed.\n");
    } else if *collecting == Collecting::Done {
        let packs = count(*deleted as u64, "pack");
        let (gone, free) = (bytes(*deleted_bytes), bytes(report.freed_bytes()));
        let _ = writeln!(text, "deleted {packs} of {gone}; about {free} are free now");
    }
    text.push_str(&held_text(pool, report));
    for fault in damaged {
        let _ = writeln!(text, "left where it is, since it cannot be read: {}", shown(fault));
    }
    let json = json!({
        "dry_run": dry_run,
        "retention": retention,
        "plan": {
            "total_bytes": plan.total_bytes, "live_bytes": plan.live_bytes, "stay": plan.stay,
            "dead": plan.dead.len(), "rewritten": plan.rewritten.len(),
            "copied_bytes": plan.copied_bytes, "written_bytes": plan.written_bytes, "freed_bytes": plan.freed_bytes,
            "in_progress": plan.in_progress, "saving": holders_json(&plan.saving), "unreadable": plan.unreadable,
            "leftovers": plan.leftovers,
        },
        "collected": collected,
        "deleted_packs": deleted,
        "deleted_bytes": deleted_bytes,
        "freed_bytes": if dry_run { plan.freed_now_bytes() } else { report.freed_bytes() },
        "held_packs": held,
        "held_bytes": held_bytes,
        "held_by_restore": is_read,
        "held_by": holders_json(held_by),
        "damaged": damaged,
    });
    Answer { text, json, code: if damaged.is_empty() { 0 } else { EXIT_DAMAGED } }
}

/// Describes the packs that must wait, the programs that they wait for, and how that ends.
fn held_text(pool: &Pool, report: &GcReport) -> String {
    let GcReport { held, held_bytes, held_by, is_read, .. } = report;
    if *held == 0 {
        return String::new();
    }
    let packs = count(*held as u64, "pack");
    let kept = format!("{packs} of {} cannot be deleted until", bytes(*held_bytes));
    if *is_read {
        let them = if *held == 1 { "it" } else { "them" };
        return format!(
            "{kept} a lazy restore has filled its memory, or a storage node that started a moment ago knows \
             its clients; run gc after that to delete {them}\n"
        );
    }
    let words: Vec<&str> = held_by.keys().flat_map(|job| ["--fence", job.as_str()]).collect();
    let (programs, fence) = (holders(held_by), pool.command("gc", &words));
    let gone = if held_by.len() == 1 { "it is" } else { "they are" };
    format!("{kept} {programs} saved or ended; if {gone} gone, run `{fence}`\n")
}

/// Returns the holders as JSON: job name to program.
pub fn holders_json(held_by: &BTreeMap<JobName, String>) -> Value {
    held_by.iter().map(|(job, program)| (job.to_string(), json!(program))).collect()
}

/// Names the holders, up to the verb "has" or "have", so that each message can have its own end.
pub fn holders(held_by: &BTreeMap<JobName, String>) -> String {
    match &named(held_by)[..] {
        [one] => format!("the program of job {one} has"),
        several => format!("the programs of jobs {} have", several.join(", ")),
    }
}

fn named(programs: &BTreeMap<JobName, String>) -> Vec<String> {
    let one = |(job, program): (&JobName, &String)| {
        format!("{} ({})", shown(job.as_str()), shown(program))
    };
    programs.iter().map(one).collect()
}

fn plan_text(plan: &GcPlan) -> String {
    let packs = |number: usize, one: &str, more: &str| {
        format!("{} {}", count(number as u64, "pack"), if number == 1 { one } else { more })
    };
    let unused = ["with nothing in use is deleted", "with nothing in use are deleted"];
    let mut text = format!(
        "{} in packs, {} of it in use\n  {}\n  {}\n  {}: {} to copy\n  about {} become free\n",
        bytes(plan.total_bytes),
        bytes(plan.live_bytes),
        packs(plan.stay, "stays", "stay"),
        packs(plan.dead.len(), unused[0], unused[1]),
        packs(plan.rewritten.len(), "is rewritten", "are rewritten"),
        bytes(plan.copied_bytes),
        bytes(plan.freed_bytes),
    );
    if plan.held_bytes > 0 {
        let held = bytes(plan.held_bytes);
        let _ = writeln!(text, "  of these {held} once {} saved or ended", holders(&plan.held_by));
    }
    let leaves = ["cannot be read, and is left alone", "cannot be read, and are left alone"];
    let deletes = ["was never finished, and is deleted", "were never finished, and are deleted"];
    for (number, [one, more], of) in [
        (
            plan.in_progress,
            ["belongs to a save under way", "belong to saves under way"],
            savers(plan),
        ),
        (plan.unreadable, leaves, String::new()),
        (plan.leftovers, deletes, String::new()),
    ] {
        if number > 0 {
            let _ = writeln!(text, "  {}{of}", packs(number, one, more));
        }
    }
    text
}

/// Names jobs and programs of the saves in progress, as the end of a sentence.
pub fn savers(plan: &GcPlan) -> String {
    match plan.saving.is_empty() {
        true => String::new(),
        false => format!(" of {}", named(&plan.saving).join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::{held_text, plan_text, ranges};
    use outlive_pool::{Environment, FormatConfig, PoolConfig, Tuning};
    use outlive_store::gc::{GcPlan, GcReport};
    use outlive_types::{JobName, PackId};

    #[test]
    fn epochs_that_go_are_told_as_ranges() {
        let epochs = [(1, true), (2, true), (5, true), (6, false), (7, true), (8, false)];
        assert_eq!(ranges(epochs.into_iter()), "1-5, 7");
        assert_eq!(ranges([].into_iter()), "");
    }

    #[test]
    fn one_pack_is_told_as_one() {
        let one = GcPlan {
            stay: 1,
            dead: vec![PackId([1; 20])],
            rewritten: vec![PackId([2; 20])],
            in_progress: 1,
            saving: [(JobName::new("a").unwrap(), "process 1 on b".to_owned())].into(),
            leftovers: 1,
            unreadable: 1,
            ..GcPlan::default()
        };
        let text = plan_text(&one);
        for part in [
            "1 pack stays\n",
            "1 pack with nothing in use is deleted\n",
            "1 pack is rewritten: ",
            "1 pack belongs to a save under way of a (process 1 on b)\n",
            "1 pack cannot be read, and is left alone",
            "1 pack was never finished, and is deleted",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let two = plan_text(&GcPlan { stay: 2, ..GcPlan::default() });
        assert!(
            two.contains("2 packs stay\n")
                && two.contains("0 packs with nothing in use are deleted\n"),
            "{two}"
        );
    }

    #[test]
    fn held_packs_and_their_jobs_are_named_as_one_or_several() {
        let dir = tempfile::tempdir().unwrap();
        let config = PoolConfig::new(FormatConfig::new([5; 16]), Tuning::default());
        let pool = outlive_pool::create(dir.path(), config, Environment::system()).unwrap();
        let text = |held: usize, is_read: bool, jobs: &[&str]| {
            let by = |job: &&str| (JobName::new(job).unwrap(), "process 7 on node".to_owned());
            let held_by = jobs.iter().map(by).collect();
            held_text(&pool, &GcReport { held, is_read, held_by, ..GcReport::default() })
        };
        assert_eq!(text(0, true, &[]), "");
        assert!(
            text(1, true, &[]).starts_with("1 pack of 0 B cannot")
                && text(1, true, &[]).contains("it\n")
        );
        assert!(text(2, true, &[]).ends_with("to delete them\n"));
        let one = text(1, false, &["a"]);
        assert!(
            one.contains(
                "the program of job a (process 7 on node) has saved or ended; if it is gone, run"
            ),
            "{one}"
        );
        let two = text(2, false, &["a", "b c"]);
        let both = "jobs a (process 7 on node), b c (process 7 on node) have saved";
        assert!(two.contains("2 packs of 0 B") && two.contains(both), "{two}");
        assert!(two.ends_with("--fence a --fence 'b c'`\n"), "{two}");
    }
}
