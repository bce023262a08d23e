//! Rules for the checkpoints that a job keeps, and the plan that they make.

use crate::commit::history;
use chains::EarlierLines;
use outlive_format::{Manifest, Mark};
use outlive_pool::Pool;
use outlive_types::{Epoch, Error, JobName, Result};
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;
use times::ages_ns;

mod behind;
mod chains;
mod times;

pub(crate) use behind::{BackgroundRetention, Freed, Freeing};

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
    /// Metrics by which the best are kept.
    pub best: Vec<Best>,
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
                    "{rule:?} is not a rule: give last N, every K, newer than AGE, or best \
                     METRIC[:min|:max][:COUNT], with | between them"
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
                _ => return Err(refuse()),
            };
            if twice {
                return Err(Error::invalid(format!("two rules begin with {word:?}: give one")));
            }
        }
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
            let chosen = best.iter().filter(|(_, epochs)| epochs.contains(&epoch));
            why.extend(chosen.map(|(metric, _)| format!("best by {}", metric.escape_debug())));
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

    fn is_only_drops(&self) -> bool {
        let Rules { last, every, within, best, none, drop, .. } = self;
        let no_rule = last.is_none() && every.is_none() && within.is_none() && best.is_empty();
        no_rule && !none && !drop.is_empty()
    }

    fn check(&self, manifests: &[Manifest], left: &[&Manifest]) -> Result<()> {
        let Rules { last, every, within, best, none, drop, .. } = self;
        let keeps = last.is_some() || every.is_some() || within.is_some() || !best.is_empty();
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

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_format::{Image, ImageKind, Images, Remarks, SaveFigures};
    use outlive_types::SessionId;

    /// Returns epochs `count` to 1, an hour apart, whose loss falls until 5 and rises again.
    fn manifests(count: u64) -> Vec<Manifest> {
        let manifest = |epoch: u64| Manifest {
            session: SessionId([1; 12]),
            world_size: 1,
            epoch,
            parent: 0,
            predecessor: epoch - 1,
            frozen_ns: epoch * 3_600_000_000_000,
            figures: SaveFigures::default(),
            failed_before: 0,
            remarks: Remarks {
                pinned: epoch == 2,
                suspect: epoch == 21,
                mark: Mark::None,
                label: if epoch == 3 { "paper".to_owned() } else { String::new() },
            },
            metrics: vec![("loss".to_owned(), epoch.abs_diff(5) as f64)],
            images: Images::One(Image::empty(0, ImageKind::Memory)),
        };
        (1..=count).rev().map(manifest).collect()
    }

    /// Time later than all of theirs.
    const NOW_NS: u64 = 1000 * 3_600_000_000_000;

    fn kept(rules: &Rules, count: u64) -> Vec<Epoch> {
        kept_of(rules, &manifests(count))
    }

    fn kept_of(rules: &Rules, manifests: &[Manifest]) -> Vec<Epoch> {
        let plan = rules.plan(manifests, &[12].into(), NOW_NS).unwrap();
        let kept = plan.decisions.iter().filter(|d| d.kept.is_some());
        let mut epochs: Vec<Epoch> = kept.map(|d| d.epoch).collect();
        epochs.reverse();
        epochs
    }

    #[test]
    fn a_checkpoint_that_is_marked_as_bad_does_not_count() {
        let mut all = manifests(22);
        let newest = all.iter_mut().find(|manifest| manifest.epoch == 22).unwrap();
        newest.remarks.mark = Mark::Bad;
        let rules = Rules { last: Some(1), ..Rules::default() };
        let plan = rules.plan(&all, &BTreeSet::new(), u64::MAX).unwrap();
        let why = |epoch| plan.decisions.iter().find(|it| it.epoch == epoch).unwrap().kept.clone();
        assert_eq!(why(22).unwrap(), "among the newest, and marked as bad");
        // 21 is suspect.
        assert_eq!(why(20).unwrap(), "among the newest");
        assert_eq!(why(19), None);
    }

    #[test]
    fn the_newest_of_each_line_stays() {
        let mut manifests = manifests(20);
        let last = Rules { last: Some(2), ..Rules::default() };
        let set = |manifests: &mut Vec<Manifest>, epoch: u64, predecessor| {
            manifests[(20 - epoch) as usize].predecessor = predecessor;
        };
        // At 9 a program began without a restore, and at 15 another one went back to 11.
        set(&mut manifests, 9, 0);
        set(&mut manifests, 15, 11);
        assert_eq!(kept_of(&last, &manifests), [2, 3, 8, 9, 14, 15, 19, 20]);
        let drops = Rules { drop: [14].into(), ..last.clone() };
        assert_eq!(
            kept_of(&drops, &manifests),
            [2, 3, 8, 9, 13, 15, 19, 20],
            "13 is the newest of its line now"
        );
        // 12 is incomplete, so a restore passes over it, and it is not the newest of its chain.
        set(&mut manifests, 13, 5);
        set(&mut manifests, 15, 14);
        assert_eq!(kept_of(&last, &manifests), [2, 3, 8, 9, 11, 13, 19, 20]);
        // A damaged checkpoint that a program has passed over ends no chain.
        let mut manifests = self::manifests(20);
        manifests[20 - 13].predecessor = 11;
        assert_eq!(kept_of(&last, &manifests), [2, 3, 19, 20]);
        // A chain to which a program has returned continues.
        let mut manifests = self::manifests(8);
        manifests[8 - 6].predecessor = 3;
        manifests[8 - 8].predecessor = 5;
        let one = Rules { last: Some(1), ..Rules::default() };
        assert_eq!(kept_of(&one, &manifests), [2, 3, 7, 8]);
        // Neither files in between nor dropped checkpoints begin a chain.
        let mut manifests = self::manifests(20);
        manifests.retain(|m| m.epoch % 5 == 0);
        assert_eq!(kept_of(&last, &manifests), [15, 20]);
        manifests[1].images = Images::One(Image::empty(0, ImageKind::Files));
        manifests[1].predecessor = 0;
        assert_eq!(kept_of(&Rules { last: Some(1), ..last }, &manifests), [15, 20]);
    }

    #[test]
    fn rules_add_up() {
        let rules = |change: fn(&mut Rules)| {
            let mut rules = Rules::default();
            change(&mut rules);
            rules
        };
        // 2 is pinned and 3 has a label.
        assert_eq!(kept(&rules(|r| r.last = Some(1)), 20), [2, 3, 20]);
        assert_eq!(kept(&rules(|r| r.last = Some(0)), 20), [2, 3, 20], "the newest stays");
        let last = kept(&rules(|r| r.last = Some(1)), 21);
        assert_eq!(last, [2, 3, 20, 21], "21 is suspect, so 20 must stay to fall back on");
        let last = kept(&rules(|r| r.last = Some(1)), 12);
        assert_eq!(last, [2, 3, 11, 12], "12 is incomplete, so 11 must stay to fall back on");
        assert_eq!(kept(&rules(|r| r.every = Some(7)), 20), [2, 3, 7, 14, 20]);
        assert_eq!(
            kept(&rules(|r| r.within = Some(Duration::from_secs(7200))), 20),
            [2, 3, 18, 19, 20]
        );
        assert_eq!(
            kept(&rules(|r| r.best = vec![Best::parse("loss").unwrap()]), 20),
            [2, 3, 5, 20]
        );
        let highest = Best::parse("loss:max:2").unwrap();
        assert_eq!(highest, Best { metric: "loss".to_owned(), highest: true, count: 2 });
        let both = Rules { best: vec![highest], every: Some(10), ..Rules::default() };
        assert_eq!(kept(&both, 20), [2, 3, 10, 19, 20]);
        let worst = Rules { best: vec![Best::parse("loss:max").unwrap()], ..Rules::default() };
        assert_eq!(kept(&worst, 21), [2, 3, 20], "21 has the highest loss, and is suspect");
        let last = kept(&rules(|r| r.last = Some(2)), 21);
        assert_eq!(last, [2, 3, 19, 20, 21], "two whole ones");
        assert!(kept(&rules(|r| r.none = true), 20).is_empty());
        assert_eq!(kept(&rules(|r| r.drop = [2, 4].into()), 5), [1, 3, 5]);
    }

    #[test]
    fn a_checkpoint_that_is_dropped_by_name_is_not_the_newest() {
        let drop = |epochs: &[Epoch]| Rules {
            last: Some(1),
            drop: epochs.iter().copied().collect(),
            ..Rules::default()
        };
        assert_eq!(kept(&drop(&[5]), 5), [2, 3, 4], "the last of those that are left");
        assert_eq!(kept(&drop(&[3, 4, 5]), 5), [2]);
        let all = drop(&[1, 2, 3, 4, 5]).plan(&manifests(5), &BTreeSet::new(), NOW_NS);
        assert!(all.unwrap_err().message().contains("--all"));
        let all = Rules { last: None, ..drop(&[1, 2, 3, 4, 5]) };
        let all = all.plan(&manifests(5), &BTreeSet::new(), NOW_NS);
        assert!(all.unwrap_err().message().contains("--all"));
        let none = Rules { none: true, ..Rules::default() };
        assert!(kept(&none, 5).is_empty(), "an explicit word");
        // 12 is incomplete: with 11 gone, 10 is the one to fall back on. The best of the rest is
        // kept.
        assert_eq!(kept(&drop(&[11]), 12), [2, 3, 10, 12]);
        let best = Rules { best: vec![Best::parse("loss").unwrap()], ..drop(&[5]) };
        assert_eq!(kept(&best, 9), [2, 3, 6, 9]);
        let young = Rules { last: None, within: Some(Duration::from_secs(3600)), ..drop(&[9]) };
        assert_eq!(kept(&young, 9), [2, 3, 7, 8]);
        for epoch in 1..=12 {
            assert!(!kept(&drop(&[epoch]), 12).is_empty());
        }
    }

    #[test]
    fn a_clock_that_jumped_drops_nothing_young() {
        let rules = Rules {
            within: Some(Duration::from_secs(2 * 3600)),
            last: Some(1),
            ..Rules::default()
        };
        let year_ns = 365 * 24 * 3_600_000_000_000;
        for jumped in 1..=9 {
            let mut manifests = manifests(9);
            let at = manifests.iter().position(|m| m.epoch == jumped).unwrap();
            manifests[at].frozen_ns += year_ns;
            let kept = kept_of(&rules, &manifests);
            assert!([7, 8, 9].iter().all(|young| kept.contains(young)), "{jumped}: {kept:?}");
            assert!(!kept.contains(&1) && !kept.contains(&4), "{jumped}: {kept:?}");
            manifests[at].frozen_ns = 0;
            let kept = kept_of(&rules, &manifests);
            assert!([7, 8, 9].iter().all(|young| kept.contains(young)), "{jumped}: {kept:?}");
        }
    }

    #[test]
    fn zeros_of_either_sign_are_equally_good() {
        let mut manifests = manifests(9);
        for (manifest, value) in manifests.iter_mut().zip([1.0, 0.0, -0.0, 1.0, -0.0, 0.0]) {
            manifest.metrics[0].1 = value;
        }
        let best = |text| Rules { best: vec![Best::parse(text).unwrap()], ..Rules::default() };
        // Epochs 9 down to 4 have the values above.
        assert_eq!(kept_of(&best("loss:min"), &manifests), [2, 3, 8, 9]);
        assert_eq!(kept_of(&best("loss:min:2"), &manifests), [2, 3, 7, 8, 9]);
        for manifest in &mut manifests {
            manifest.metrics[0].1 = -manifest.metrics[0].1.abs();
        }
        assert_eq!(kept_of(&best("loss:max:3"), &manifests), [2, 3, 5, 7, 8, 9]);
    }

    #[test]
    fn rules_are_written_in_a_line() {
        let mut rules = Rules::default();
        rules.add("last 10 | every 100|newer  than 7d | best loss:min:3 | best a b").unwrap();
        let best = ["loss:min:3", "a b"].map(|text| Best::parse(text).unwrap()).to_vec();
        let within = Some(Duration::from_secs(7 * 86_400));
        let (last, every) = (Some(10), Some(100));
        assert_eq!(rules, Rules { last, every, within, best, ..Rules::default() });
        assert!(!rules.is_empty() && Rules::default().is_empty());
        for text in
            ["", "last", "last x", "last 3 |", "newer 7d", "older than 7d", "last 3 | last 4"]
        {
            assert!(Rules::default().add(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_newest_of_memory_and_of_files_stay() {
        let mut all = manifests(6);
        for manifest in all.iter_mut().filter(|manifest| manifest.epoch == 4) {
            manifest.images = Images::One(Image::empty(0, ImageKind::Files));
        }
        let rules = Rules { last: Some(1), ..Rules::default() };
        let plan = rules.plan(&all, &BTreeSet::new(), NOW_NS).unwrap();
        assert_eq!(plan.dropped(), [1, 5].into(), "2 is pinned, 3 has a label");
    }

    #[test]
    fn bad_rules_drop_nothing() {
        let refused = |rules: Rules| {
            let plan = rules.plan(&manifests(9), &BTreeSet::new(), NOW_NS);
            plan.unwrap_err().message().to_owned()
        };
        let none = refused(Rules::default());
        assert!(none.contains("no rule") && none.contains("`--keep-last 10`"), "{none}");
        assert!(refused(Rules { every: Some(0), ..Rules::default() }).contains("every 0th"));
        assert!(refused(Rules { drop: [77].into(), ..Rules::default() }).contains("77"));
        let best = vec![Best::parse("accuracy:max").unwrap()];
        assert!(refused(Rules { best, ..Rules::default() }).contains("accuracy"));
        assert!(refused(Rules { none: true, last: Some(1), ..Rules::default() }).contains("other"));
        for text in ["", ":max", "a:b", "a:0", "a:max:x"] {
            assert!(Best::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ages() {
        assert_eq!(parse_age("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(parse_age("1.5h").unwrap(), Duration::from_secs(5400));
        assert_eq!(parse_age("2w").unwrap(), Duration::from_secs(14 * 86_400));
        for text in ["", "5", "d", "-1d", "1e99w", "x1h", "5ü"] {
            assert!(parse_age(text).is_err(), "{text}");
        }
    }
}
