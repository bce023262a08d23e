//! Tests of the rules.

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
            tags: match epoch {
                4 => vec!["a".to_owned(), "b".to_owned()],
                6 => vec!["b".to_owned()],
                _ => Vec::new(),
            },
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
    assert_eq!(kept(&rules(|r| r.best = vec![Best::parse("loss").unwrap()]), 20), [2, 3, 5, 20]);
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
fn checkpoints_with_a_tag_stay() {
    let rules = |text: &str| {
        let mut rules = Rules::default();
        rules.add(text).unwrap();
        rules
    };
    // 4 has the tags a and b, 6 has b.
    assert_eq!(kept(&rules("tag a"), 9), [2, 3, 4, 9]);
    assert_eq!(kept(&rules("tag b | last 1"), 9), [2, 3, 4, 6, 9]);
    assert_eq!(kept(&rules("tag a | tag b"), 9), [2, 3, 4, 6, 9]);
    assert_eq!(kept(&rules("last 1"), 9), [2, 3, 9], "a tag alone keeps nothing");
    assert_eq!(kept(&rules("tag c | last 1"), 9), [2, 3, 9]);
    let plan = rules("tag b").plan(&manifests(9), &BTreeSet::new(), NOW_NS).unwrap();
    assert_eq!(plan.decisions[3].kept.as_deref(), Some("tagged b"));
    let wrong = rules("tag c").plan(&manifests(9), &BTreeSet::new(), NOW_NS).unwrap_err();
    assert!(wrong.message().contains("\"c\""), "{wrong}");
    for text in ["tag", "tag a b", "tag a,b", "tag \"a\""] {
        assert!(Rules::default().add(text).is_err(), "{text}");
    }
}

#[test]
fn a_clock_that_jumped_drops_nothing_young() {
    let rules =
        Rules { within: Some(Duration::from_secs(2 * 3600)), last: Some(1), ..Rules::default() };
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

/// Epoch N is from hour N of 1970: 24 is the first of the second day.
#[test]
fn the_newest_of_each_period_stays() {
    let rules = |text: &str| {
        let mut rules = Rules::default();
        rules.add(text).unwrap();
        rules
    };
    assert_eq!(kept(&rules("hourly 3"), 20), [2, 3, 18, 19, 20]);
    assert_eq!(kept(&rules("daily 1"), 60), [2, 3, 60]);
    assert_eq!(kept(&rules("daily 3"), 60), [2, 3, 23, 47, 60]);
    assert_eq!(kept(&rules("daily 4"), 60), [1, 2, 3, 23, 47, 60], "and the oldest");
    assert_eq!(kept(&rules("weekly 1 | daily 2"), 60), [2, 3, 47, 60]);
    assert_eq!(kept(&rules("monthly 2"), 60), [1, 2, 3, 60]);
    assert_eq!(kept(&rules("yearly 0"), 60), [2, 3, 60], "the newest stays");
    assert_eq!(kept(&rules("hourly 1 | every 7"), 20), [2, 3, 7, 14, 20]);
    // 12 is incomplete and 21 suspect: they are not the newest of anything.
    assert_eq!(kept(&rules("hourly 2"), 21), [2, 3, 19, 20]);
    let mut all = manifests(30);
    all.iter_mut().find(|manifest| manifest.epoch == 23).unwrap().remarks.mark = Mark::Bad;
    assert_eq!(kept_of(&rules("daily 2"), &all), [2, 3, 22, 30]);
    let drops = Rules { drop: [30].into(), ..rules("daily 1") };
    assert_eq!(kept(&drops, 30), [2, 3, 29]);
    let plan = rules("daily 2").plan(&manifests(30), &BTreeSet::new(), NOW_NS).unwrap();
    assert_eq!(plan.decisions[0].kept.as_deref(), Some("the newest of its day"));
    for text in ["daily", "daily x", "daily -1", "daily 2 | daily 3", "day 2"] {
        assert!(Rules::default().add(text).is_err(), "{text}");
    }
}

/// A jumped time costs the oldest day at most.
#[test]
fn a_clock_that_jumped_keeps_the_newest_of_the_other_days() {
    let mut rules = Rules::default();
    rules.add("daily 3").unwrap();
    for (jumped, wrong_ns) in (1..=60).flat_map(|at| [0, 90, 720].map(|hour| (at, hour))) {
        let mut all = manifests(60);
        let there = all.iter_mut().find(|manifest| manifest.epoch == jumped).unwrap();
        there.frozen_ns = wrong_ns * 3_600_000_000_000;
        let kept = kept_of(&rules, &all);
        for newest in [47, 60] {
            let newest = if jumped == newest { newest - 1 } else { newest };
            assert!(kept.contains(&newest), "{jumped} at {wrong_ns}: {kept:?}");
        }
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
    for text in ["", "last", "last x", "last 3 |", "newer 7d", "older than 7d", "last 3 | last 4"] {
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
