//! Rules for the checkpoints that a job keeps, and the plan that they make.

use crate::commit::history;
use calendar::kept_by;
use chains::EarlierLines;
use outlive_format::{Manifest, Mark, check_tag};
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, JobName, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;
use times::ages_ns;

mod behind;
mod calendar;
mod chains;
#[cfg(test)]
mod tests;
mod times;

pub(crate) use behind::{BackgroundRetention, Freed, Freeing};
pub use calendar::{Period, date_of_days};

/// Rules; a checkpoint stays if any of them keeps it. Pinned and labelled checkpoints are always
/// kept, and so are the newest of memory and the newest of files. If a program began with a
/// checkpoint older than the newest, or with none, the newest of memory before it and the one after
/// that are kept, too. Those to drop are left out first: the rules choose among the rest, whose
/// newest is always kept.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Rules {
    /// Number of newest checkpoints to keep.
    pub last: Option<u64>,
    /// Divisor: epochs that are a multiple of this are kept.
    pub every: Option<u64>,
    /// Time before the newest freeze in which checkpoints are kept. It is not counted from now, so
    /// a program that has stood still loses nothing, and neither does one whose clock has jumped.
    pub within: Option<Duration>,
    /// Periods of the calendar, in UTC, with the number of each that keeps its newest checkpoint.
    pub calendar: BTreeMap<Period, u64>,
    /// Metrics by which the best are kept.
    pub best: Vec<Best>,
    /// Tags: checkpoints that have one of them are kept.
    pub tags: BTreeSet<String>,
    /// Keeps no ends of earlier chains by itself.
    pub one_line: bool,
    /// Drops all, even the newest: the job is given up. No other rule may be given.
    pub none: bool,
    /// Epochs to drop, whatever keeps them; not all that exist.
    pub drop: BTreeSet<Epoch>,
}

/// Rule that keeps the best by a metric of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Best {
    /// The metric's name.
    pub metric: String,
    /// Whether a higher value is better.
    pub highest: bool,
    /// Number to keep.
    pub count: u64,
}

impl Best {
    /// Reads `NAME`, `NAME:max` or `NAME:min:3`. The lowest is best without `max`, and one is kept
    /// without a number.
    ///
    /// # Errors
    /// `Invalid` for anything else.
    pub fn parse(text: &str) -> Result<Best> {
        let mut parts = text.split(':');
        let metric = parts.next().unwrap_or_default().to_owned();
        let (mut highest, mut count) = (false, 1);
        let refuse = || {
            Error::invalid(format!(
                "{text:?} does not say which checkpoints are best: NAME, NAME:min or NAME:max, and \
                 perhaps :COUNT"
            ))
        };
        for part in parts {
            match part {
                "min" => highest = false,
                "max" => highest = true,
                number => count = number.parse().map_err(|_| refuse())?,
            }
        }
        if metric.is_empty() || count == 0 {
            return Err(refuse());
        }
        Ok(Best { metric, highest, count })
    }
}

/// Reads an age: a number and `s`, `m`, `h`, `d` or `w`.
///
/// # Errors
/// `Invalid` for anything else.
pub fn parse_age(text: &str) -> Result<Duration> {
    let refuse = || {
        Error::invalid(format!(
            "{text:?} is not an age: give a number with s, m, h, d or w, such as 36h"
        ))
    };
    let unit = text.chars().next_back().ok_or_else(refuse)?;
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        'w' => 604_800,
        _ => return Err(refuse()),
    };
    let number: f64 = text[..text.len() - unit.len_utf8()].parse().map_err(|_| refuse())?;
    let total = number * seconds as f64;
    Duration::try_from_secs_f64(total).map_err(|_| refuse())
}

/// Decision about one checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Its epoch.
    pub epoch: Epoch,
    /// Reason to keep it; `None` if it goes.
    pub kept: Option<String>,
}

/// Decisions about a job's checkpoints, newest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RetentionPlan {
    /// One for each checkpoint.
    pub decisions: Vec<Decision>,
}

impl RetentionPlan {
    /// Returns the epochs to drop.
    pub fn dropped(&self) -> BTreeSet<Epoch> {
        self.decisions.iter().filter(|d| d.kept.is_none()).map(|d| d.epoch).collect()
    }

    /// Whether anything stays.
    pub fn keeps_any(&self) -> bool {
        self.decisions.iter().any(|decision| decision.kept.is_some())
    }
}

impl fmt::Display for RetentionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Decision { epoch, kept } in &self.decisions {
            match kept {
                Some(why) => writeln!(f, "keep {epoch}  ({why})")?,
                None => writeln!(f, "drop {epoch}")?,
            }
        }
        Ok(())
    }
}

/// Applies rules to a job's checkpoints.
///
/// # Errors
/// Errors of [`Rules::plan`] and of the log.
pub fn plan_of(pool: &Pool, job: &JobName, rules: &Rules) -> Result<RetentionPlan> {
    let (mut manifests, mut incomplete) = (Vec::new(), BTreeSet::new());
    for entry in history(pool, job)? {
        let entry = entry.unless_unread()?;
        if let Some(manifest) = entry.manifest() {
            incomplete.extend(entry.incomplete.then_some(manifest.epoch));
            manifests.push(manifest.clone());
        }
    }
    rules.plan(&manifests, &incomplete, pool.env().clock.unix_ns())
}

/// Refuses a pool with an invalid `keep` in its `pool.toml`, before a job relies on it.
///
/// # Errors
/// `Invalid`, with the reason.
pub fn check_keep(pool: &Pool) -> Result<()> {
    match pool.config().tuning.keep.as_str() {
        "" => Ok(()),
        keep => Rules::default().add(keep).map_err(|e| e.context("tuning.keep in pool.toml")),
    }
}

impl Rules {
    /// Adds rules written in one text, such as
    /// `last 10 | every 100 | newer than 7d | best loss:min:3`.
    ///
    /// # Errors
    /// `Invalid` for anything else, and for a rule that was given already.
    pub fn add(&mut self, text: &str) -> Result<()> {
        for rule in text.split('|').map(str::trim) {
            let refuse = || {
                Error::invalid(format!(
                    "{rule:?} is not a rule: give last N, every K, newer than AGE, hourly N, daily \
                     N, weekly N, monthly N, yearly N, best METRIC[:min|:max][:COUNT], or tag TAG, \
                     with | between them"
                ))
            };
            let (word, value) = rule.split_once(char::is_whitespace).ok_or_else(refuse)?;
            let value = value.trim();
            let number = || value.parse().map_err(|_| refuse());
            let twice = match word {
                "last" => self.last.replace(number()?).is_some(),
                "every" => self.every.replace(number()?).is_some(),
                "newer" => {
                    let age = value.strip_prefix("than").ok_or_else(refuse)?.trim();
                    self.within.replace(parse_age(age)?).is_some()
                }
                "best" => {
                    self.best.push(Best::parse(value)?);
                    false
                }
                "tag" => {
                    self.add_tag(value)?;
                    false
                }
                word => {
                    let period = Period::of_rule(word).ok_or_else(refuse)?;
                    self.calendar.insert(period, number()?).is_some()
                }
            };
            if twice {
                return Err(Error::invalid(format!("two rules begin with {word:?}: give one")));
            }
        }
        Ok(())
    }

    /// Adds the rule that keeps the checkpoints with a tag.
    ///
    /// # Errors
    /// `Invalid` for an impossible tag.
    pub fn add_tag(&mut self, tag: &str) -> Result<()> {
        check_tag(tag)?;
        self.tags.insert(tag.to_owned());
        Ok(())
    }

    /// Returns true if no rule is given.
    pub fn is_empty(&self) -> bool {
        *self == Rules::default()
    }

    /// Applies the rules to a job's checkpoints, newest first; for the `incomplete` ones, a scrub
    /// has recorded lost data. `now_ns` shows which times are in the future.
    ///
    /// # Errors
    /// `Invalid` without any rule, for rules that contradict each other, for an epoch to drop that
    /// does not exist, or if all were dropped one by one.
    pub fn plan(
        &self,
        manifests: &[Manifest],
        incomplete: &BTreeSet<Epoch>,
        now_ns: u64,
    ) -> Result<RetentionPlan> {
        let is_left = |m: &&Manifest| !self.drop.contains(&m.epoch);
        let left: Vec<&Manifest> = manifests.iter().filter(is_left).collect();
        self.check(manifests, &left)?;
        let times_ns: Vec<u64> = left.iter().map(|m| m.frozen_ns).collect();
        let mut ages_ns = ages_ns(&times_ns, now_ns).into_iter();
        let is_sound = |m: &Manifest| {
            !m.remarks.suspect && m.remarks.mark != Mark::Bad && !incomplete.contains(&m.epoch)
        };
        let sound =
            [false, true].map(|files| left.iter().any(|m| is_sound(m) && m.is_of_files() == files));
        let counts = |m: &&Manifest| is_sound(m) || !sound[usize::from(m.is_of_files())];
        let counted: Vec<&Manifest> = left.iter().copied().filter(counts).collect();
        let best: Vec<(String, BTreeSet<Epoch>)> =
            self.best.iter().map(|best| (best.metric.clone(), best_of(best, &counted))).collect();
        let mut by_calendar = self.by_calendar(&counted);
        let mut newest_of = [true; 2];
        let earlier = match self.one_line {
            true => EarlierLines::default(),
            false => EarlierLines::of(&left, &counts),
        };
        let mut plan = RetentionPlan::default();
        let mut at = 0;
        for manifest in manifests {
            let epoch = manifest.epoch;
            if !is_left(&manifest) {
                plan.decisions.push(Decision { epoch, kept: None });
                continue;
            }
            // No restore falls back on a checkpoint that it passes over or would mostly fail at.
            let kind = manifest.is_of_files();
            let passed_over = !counts(&manifest);
            let is_newest = !passed_over && std::mem::take(&mut newest_of[usize::from(kind)]);
            let age_ns = ages_ns.next().unwrap_or(0);
            let mut why: Vec<String> = Vec::new();
            if self.last.is_some_and(|last| at < last) {
                let but = match manifest.remarks.mark {
                    Mark::Bad => ", and marked as bad",
                    _ if passed_over => ", and damaged",
                    _ => "",
                };
                why.push(format!("among the newest{but}"));
            }
            // A checkpoint that restores pass over does not count.
            at += u64::from(!passed_over);
            if let Some(every) = self.every.filter(|every| epoch.is_multiple_of(*every)) {
                why.push(format!("a multiple of {every}"));
            }
            if self.within.is_some_and(|within| u128::from(age_ns) <= within.as_nanos()) {
                why.push("young".to_owned());
            }
            why.extend(by_calendar.remove(&epoch).unwrap_or_default());
            let chosen = best.iter().filter(|(_, epochs)| epochs.contains(&epoch));
            why.extend(chosen.map(|(metric, _)| format!("best by {}", metric.escape_debug())));
            let tagged = manifest.remarks.tags.iter().filter(|tag| self.tags.contains(*tag));
            why.extend(tagged.map(|tag| format!("tagged {tag}")));
            if manifest.remarks.pinned {
                why.push("pinned".to_owned());
            }
            if !manifest.remarks.label.is_empty() {
                why.push(format!("labelled {:?}", manifest.remarks.label));
            }
            if earlier.ends.contains(&epoch) {
                why.push("the newest of an earlier line".to_owned());
            }
            if earlier.behind.contains(&epoch) {
                why.push("the first behind an earlier line".to_owned());
            }
            let only_drops = self.is_only_drops();
            if why.is_empty() && (is_newest || only_drops) {
                why.push(if only_drops { "not named" } else { "the newest" }.to_owned());
            }
            let kept = (!self.none && !why.is_empty()).then(|| why.join(", "));
            plan.decisions.push(Decision { epoch, kept });
        }
        Ok(plan)
    }

    /// Returns the reasons by which the calendar keeps checkpoints, of those that count.
    fn by_calendar(&self, counted: &[&Manifest]) -> BTreeMap<Epoch, Vec<String>> {
        let times_ns: Vec<u64> = counted.iter().map(|manifest| manifest.frozen_ns).collect();
        let mut reasons: BTreeMap<Epoch, Vec<String>> = BTreeMap::new();
        for (period, count) in &self.calendar {
            for (at, why) in kept_by(*period, *count, &times_ns) {
                reasons.entry(counted[at].epoch).or_default().push(why);
            }
        }
        reasons
    }

    /// Returns whether a rule says what to keep.
    fn keeps(&self) -> bool {
        self.keeps_by_another_than_tags() || !self.tags.is_empty()
    }

    fn keeps_by_another_than_tags(&self) -> bool {
        let Rules { last, every, within, calendar, best, .. } = self;
        let by_number = last.is_some() || every.is_some() || within.is_some();
        by_number || !calendar.is_empty() || !best.is_empty()
    }

    fn is_only_drops(&self) -> bool {
        !self.keeps() && !self.none && !self.drop.is_empty()
    }

    fn check(&self, manifests: &[Manifest], left: &[&Manifest]) -> Result<()> {
        let Rules { every, best, none, drop, .. } = self;
        let keeps = self.keeps();
        if !keeps && !none && drop.is_empty() {
            return Err(Error::invalid(
                "no rule says what to keep, so nothing is dropped: give one, such as `--keep-last \
                 10` (in Python: `keep_last=10`), or set `keep` in the [tuning] of pool.toml",
            ));
        }
        if *none && (keeps || !drop.is_empty()) {
            return Err(Error::invalid(
                "a job is given up as a whole (`--all`): give no other rules with it",
            ));
        }
        if *every == Some(0) {
            return Err(Error::invalid("every 0th checkpoint cannot be kept: give 1 or more"));
        }
        if let Some(epoch) = drop.iter().find(|e| manifests.iter().all(|m| m.epoch != **e)) {
            return Err(Error::invalid(format!("there is no checkpoint {epoch} to drop")));
        }
        if left.is_empty() && !drop.is_empty() {
            return Err(Error::invalid(
                "no checkpoint of the job would be left: to give it up, say so with `--all` \
                 (in Python: `everything=True`)",
            ));
        }
        let has_tag = |m: &&Manifest| m.remarks.tags.iter().any(|tag| self.tags.contains(tag));
        // A tag that is written wrong must not drop nearly everything.
        if !self.keeps_by_another_than_tags()
            && let Some(tag) = self.tags.first()
            && !left.is_empty()
            && !left.iter().any(has_tag)
        {
            return Err(Error::invalid(format!(
                "no checkpoint has the tag {tag:?}, and no other rule says what to keep, so nothing is \
                 dropped: correct the tag, or add a rule such as `--keep-last 10`"
            )));
        }
        if let Some(Best { metric, .. }) = best
            .iter()
            .find(|best| left.iter().all(|m| m.metrics.iter().all(|(n, _)| *n != best.metric)))
        {
            return Err(Error::invalid(format!(
                "no checkpoint{} has the metric {metric:?}: give it with save(..., metrics=...)",
                if drop.is_empty() { "" } else { " that is not dropped" }
            )));
        }
        Ok(())
    }
}

/// Returns the best by a metric; of equals the newest, and zeros of either sign are equal.
fn best_of(best: &Best, manifests: &[&Manifest]) -> BTreeSet<Epoch> {
    let mut ranked: Vec<(f64, Epoch)> = manifests
        .iter()
        .filter_map(|m| {
            let (_, value) = m.metrics.iter().find(|(name, _)| *name == best.metric)?;
            // Zero is added because -0.0 + 0.0 is 0.0.
            Some((if best.highest { -value } else { *value } + 0.0, m.epoch))
        })
        .collect();
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    ranked.into_iter().take(best.count as usize).map(|(_, epoch)| epoch).collect()
}
