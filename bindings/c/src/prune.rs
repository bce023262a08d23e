//! Prunes a job: chooses which checkpoints to keep.
#![allow(unsafe_code)]

use crate::arguments::{Out, text};
use crate::call::{CallResult, call, invalid};
use crate::core::{JOBS, outlive_job};
use crate::status::outlive_status;
use outlive_store::gc::GcOptions;
use outlive_store::retention::Rules;
use std::ffi::c_char;

/// Keeps the `keep_last` newest whole checkpoints, at least one, and those with a label or a pin;
/// drops the others and frees their space. First waits for a save under way. `*dropped` is the
/// number of dropped checkpoints; `dropped` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_prune(
    job: *mut outlive_job,
    keep_last: u64,
    dropped: *mut u64,
) -> outlive_status {
    // SAFETY: the caller gives NULL, or a writable address.
    let out = unsafe { Out::optional(dropped) };
    call(|| {
        if keep_last == 0 {
            return Err(invalid("keep_last = 0: must be 1 or more, the newest checkpoint stays"));
        }
        prune(job, Rules { last: Some(keep_last), ..Rules::default() }, &out)
    })
}

/// Prunes as outlive_prune(), with rules in one text, such as "last 10 | every 100 | newer than 7d
/// | best loss:min:3". A checkpoint stays if any rule keeps it. "" means the rules of `keep` in
/// pool.toml.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_prune_rules(
    job: *mut outlive_job,
    rules: *const c_char,
    dropped: *mut u64,
) -> outlive_status {
    // SAFETY: the caller gives NULL, or a writable address.
    let out = unsafe { Out::optional(dropped) };
    call(|| {
        let mut parsed = Rules::default();
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        match unsafe { text(rules, "the text of rules")? } {
            "" => {}
            rules => parsed.add(rules)?,
        }
        prune(job, parsed, &out)
    })
}

/// Sets rules by which the job prunes itself from the next save on: after each commit a thread
/// drops the checkpoints that no rule keeps, and frees their space. `rules`: as for
/// outlive_prune_rules(), such as "last 10 | every 100", but at least one. The newest whole
/// checkpoint, labels and pins stay. In a group the rules of rank 0 count; other ranks may call it
/// too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_job_keep(
    job: *mut outlive_job,
    rules: *const c_char,
) -> outlive_status {
    call(|| {
        let mut parsed = Rules::default();
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        match unsafe { text(rules, "the text of rules")? } {
            "" => {}
            rules => parsed.add(rules)?,
        }
        Ok(JOBS.get(job)?.job().keep(parsed)?)
    })
}

fn prune(job: *mut outlive_job, rules: Rules, dropped: &Out<u64>) -> CallResult {
    dropped.set(0);
    let core = JOBS.get(job)?;
    // The rules may concern the checkpoint that the program has just saved.
    core.settle_last();
    let job = core.job();
    let plan = job.retention(&rules)?;
    let mut options = GcOptions::default();
    options.drop.insert(job.name().clone(), plan.dropped());
    options.keep_one = plan.keeps_any();
    core.client.collect(&options)?;
    dropped.set(plan.dropped().len() as u64);
    Ok(())
}
