//! `outlive tag`, and the choice of checkpoints by their tags.

use crate::args::TagArgs;
use crate::note::checkpoint_at;
use crate::output::{Answer, Reporter, shown};
use outlive_format::{Manifest, Mark, check_tag};
use outlive_store::Job;
use outlive_store::commit::history;
use outlive_types::{Epoch, Error, Result};
use serde_json::json;
use std::sync::Arc;

/// `outlive tag`.
pub fn tag(args: &TagArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let given = || args.add.iter().chain(&args.remove).chain(&args.set);
    given().try_for_each(|tag| check_tag(tag))?;
    if let Some(both) = args.add.iter().find(|tag| args.remove.contains(tag)) {
        return Err(Error::invalid(format!(
            "the tag {both:?} cannot be both added and removed: name it once"
        )));
    }
    let (job, epoch) = checkpoint_at(&args.pool, &args.job, args.epoch, reporter)?;
    let remarks = job.note(epoch, |remarks| {
        if args.clear || !args.set.is_empty() {
            remarks.tags.clone_from(&args.set);
        }
        remarks.tags.extend(args.add.iter().cloned());
        remarks.tags.retain(|tag| !args.remove.contains(tag));
    })?;
    let name = job.name();
    Ok(Answer::new(
        format!("checkpoint {epoch} of job {name}: {}\n", tags_text(&remarks.tags)),
        json!({ "job": name.as_str(), "epoch": epoch, "tags": remarks.tags }),
    ))
}

/// Names tags in a sentence.
pub fn tags_text(tags: &[String]) -> String {
    match tags {
        [] => "no tags".to_owned(),
        [tag] => format!("the tag {}", shown(tag)),
        tags => format!("the tags {}", shown(&tags.join(", "))),
    }
}

/// Returns whether a checkpoint has all of some tags.
pub fn has_tags(manifest: &Manifest, tags: &[String]) -> bool {
    tags.iter().all(|tag| manifest.remarks.tags.contains(tag))
}

/// Returns the newest checkpoint that has all of some tags and in which no damage is known, of
/// those for which `is` holds. Without tags, returns `epoch`.
///
/// # Errors
/// `Invalid` if there is none, or an epoch is named beside tags; errors of the log.
pub fn tagged(
    job: &Job,
    epoch: Option<Epoch>,
    tags: &[String],
    is: &dyn Fn(&Manifest) -> bool,
) -> Result<Option<Epoch>> {
    let name = job.name();
    match (tags, epoch) {
        ([], epoch) => return Ok(epoch),
        (_, Some(epoch)) => {
            return Err(Error::invalid(format!(
                "--tag chooses the newest checkpoint with a tag, and {epoch} names one: write {name} \
                 alone, or leave out --tag"
            )));
        }
        _ => {}
    }
    let mut passed_over = None;
    for entry in history(job.pool(), name)? {
        let entry = entry.unless_unread()?;
        let Some(manifest) = entry.manifest().filter(|it| is(it) && has_tags(it, tags)) else {
            continue;
        };
        if manifest.remarks.suspect || entry.incomplete || manifest.remarks.mark == Mark::Bad {
            passed_over.get_or_insert(manifest.epoch);
        } else {
            return Ok(Some(manifest.epoch));
        }
    }
    Err(Error::invalid(match passed_over {
        Some(epoch) => format!(
            "each checkpoint of job {name} with {} is damaged or marked as bad: name one by its \
             number, such as {name}@{epoch}",
            tags_text(tags)
        ),
        None => format!("no checkpoint of job {name} has {}", tags_text(tags)),
    }))
}
