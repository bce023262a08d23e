//! Remarks of a program on its checkpoints: labels, pins, tags, metrics.
#![allow(unsafe_code)]

use crate::arguments::text;
use crate::call::{call, invalid};
use crate::core::{JOBS, NextNotes, outlive_job};
use crate::status::outlive_status;
use outlive_format::{Remarks, check_tag};
use outlive_store::SaveNotes;
use std::ffi::{c_char, c_int};

/// Gives the next checkpoint of the job a label. The next save is due then, and no prune drops the
/// checkpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_next_label(
    job: *mut outlive_job,
    label: *const c_char,
) -> outlive_status {
    call(|| {
        let core = JOBS.get(job)?;
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        let label = unsafe { text(label, "the label")? };
        let next = NextNotes { label: label.to_owned(), ..NextNotes::default() };
        next.to_notes()?;
        core.next().label = next.label;
        Ok(())
    })
}

/// Pins the next checkpoint of the job. This does the same as a label, without one.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_next_pin(job: *mut outlive_job) -> outlive_status {
    call(|| {
        JOBS.get(job)?.next().pinned = true;
        Ok(())
    })
}

/// Gives the next checkpoint of the job a tag, beside those of earlier calls. It does not make a
/// save due.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_next_tag(
    job: *mut outlive_job,
    tag: *const c_char,
) -> outlive_status {
    call(|| {
        let core = JOBS.get(job)?;
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        let tag = unsafe { text(tag, "the tag")? };
        let mut next = core.next();
        let mut tags = next.tags.clone();
        tags.push(tag.to_owned());
        NextNotes { tags: tags.clone(), ..NextNotes::default() }.to_notes()?;
        next.tags = tags;
        Ok(())
    })
}

/// Adds a tag to a checkpoint (`add` 1), or removes it (`add` 0). First waits for a save under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_tag(
    job: *mut outlive_job,
    epoch: u64,
    tag: *const c_char,
    add: c_int,
) -> outlive_status {
    call(|| {
        let core = JOBS.get(job)?;
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        let tag = unsafe { text(tag, "the tag")? };
        check_tag(tag)?;
        if add != 0 && add != 1 {
            return Err(invalid(format!("add = {add}: must be 1 or 0")));
        }
        core.settle_last();
        core.job().note(epoch, |remarks| {
            remarks.tags.retain(|other| other != tag);
            if add == 1 {
                remarks.tags.push(tag.to_owned());
            }
        })?;
        Ok(())
    })
}

/// Stores a number with the next checkpoint of the job, such as "loss", for prunes that keep the
/// best. It does not make a save due.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_next_metric(
    job: *mut outlive_job,
    name: *const c_char,
    value: f64,
) -> outlive_status {
    call(|| {
        let core = JOBS.get(job)?;
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        let name = unsafe { text(name, "the metric's name")? };
        SaveNotes::new(Remarks::default(), vec![(name.to_owned(), value)])?;
        core.next().metrics.insert(name.to_owned(), value);
        Ok(())
    })
}

/// Changes the remarks of a checkpoint. `label`: its new label; "" removes it, NULL keeps it.
/// `pin`: 1 pins it, 0 unpins it, -1 changes nothing. First waits for a save under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_note(
    job: *mut outlive_job,
    epoch: u64,
    label: *const c_char,
    pin: c_int,
) -> outlive_status {
    call(|| {
        let core = JOBS.get(job)?;
        // SAFETY: the caller gives a text that ends with a zero.
        let label = (!label.is_null()).then(|| unsafe { text(label, "the label") }).transpose()?;
        let pin = match pin {
            -1 => None,
            0 => Some(false),
            1 => Some(true),
            _ => return Err(invalid(format!("pin = {pin}: must be 1, 0 or -1"))),
        };
        core.settle_last();
        core.job().note(epoch, |remarks| {
            if let Some(label) = label {
                label.clone_into(&mut remarks.label);
            }
            remarks.pinned = pin.unwrap_or(remarks.pinned);
        })?;
        Ok(())
    })
}
