//! Tests of the explorer itself: it notices violations, and its programs achieve their purposes.

use outlive_sim::{Case, Family, Lie, Name, run, run_case};
use std::collections::BTreeMap;

/// Returns the failures of schedules in which the log lies.
fn failures(family: Family, lie: Lie, schedules: u64) -> Vec<String> {
    let outcome = |seed| {
        let case = Case { lie: Some(lie), ..Case::of(Name { family, seed }) };
        run_case(case, false).failure
    };
    (0..schedules).filter_map(outcome).collect()
}

#[test]
fn a_fenced_writer_that_commits_is_noticed() {
    let failures = failures(Family::Fence, Lie::AppendsReplace, 100);
    let noticed = failures.iter().filter(|failure| failure.contains("another has fenced")).count();
    assert!(noticed > 0, "{failures:?}");
}

/// Bits may flip in these schedules; that excuses nothing before one has flipped.
#[test]
fn damage_is_no_excuse_before_a_bit_has_flipped() {
    let lies = failures(Family::Damage, Lie::ReadsWrongly, 100);
    let noticed = lies.iter().filter(|failure| failure.contains("nothing explains: Damaged"));
    assert!(noticed.count() > 0, "{lies:?}");
}

/// The purposes of programs. For each: in how many of a hundred schedules of all families it must
/// be achieved. A rarer purpose must be achieved in some schedule.
const ACHIEVEMENTS: [(&str, u64); 59] = [
    ("save", 60),
    ("restore", 20),
    ("look back", 4),
    ("lazy restore", 4),
    ("verify", 1),
    ("fence", 10),
    ("a lease ends early", 1),
    ("gc", 10),
    ("gc that deletes", 10),
    ("prune", 15),
    ("delete a job", 0),
    ("rename a job", 1),
    ("scrub", 10),
    ("copy", 2),
    ("gc there", 2),
    ("repair", 1),
    ("lose a target", 2),
    ("a target is back", 1),
    ("a log replica is back", 2),
    ("a target comes", 2),
    ("a target goes", 1),
    ("fill", 2),
    ("safe on the slow tier", 4),
    ("return", 2),
    ("rollback", 0),
    ("release", 4),
    ("complete", 2),
    ("all outputs are accounted for", 3),
    ("save of ranks", 4),
    ("restore of ranks", 2),
    ("mending of ranks", 1),
    ("group that starts again", 1),
    ("group goes on after a failure", 1),
    ("lose the memory of the host", 1),
    ("move the log", 1),
    ("trim", 0),
    ("a bit flips", 4),
    ("targets are taken away", 4),
    ("a deletion happens late", 0),
    ("a disk is as it was", 0),
    ("a disk is back", 0),
    ("a disk loses its power", 0),
    ("a disk is empty", 0),
    ("a finish happens late", 0),
    ("the operator adds", 1),
    ("the operator drains", 0),
    ("the operator removes", 0),
    ("the operator replaces", 1),
    ("the operator repairs", 0),
    ("the operator scrubs", 0),
    ("a node takes a seat", 0),
    ("a host is given up", 0),
    ("a node leaves", 0),
    ("take a vacant seat", 0),
    ("a command is killed", 1),
    ("a dead program's claim is ended", 0),
    ("a lock ends before its holder does", 0),
    ("replace what is lost", 0),
    ("go on without what was in memory", 0),
];

/// The reasons to skip checks. For each: in how many of a hundred schedules at most, of all
/// families and of those about single targets. One family of seventeen exists for damage beyond
/// redundancy.
const UNCHECKED: [(&str, u64, u64); 2] =
    [("the end goes unchecked", 1, 1), ("only what is left is checked", 7, 0)];

/// Seeds of each family, and more of the families about single targets, whose events are rarer.
const SEEDS: u64 = 40;
const SEEDS_OF_TARGETS: u64 = 160;

/// Returns the number of schedules in which each purpose was achieved.
fn achievements(names: impl IntoIterator<Item = Name>) -> BTreeMap<&'static str, u64> {
    let mut schedules = BTreeMap::new();
    for name in names {
        for what in run(name, false).achieved.into_keys() {
            *schedules.entry(what).or_default() += 1;
        }
    }
    schedules
}

#[test]
fn every_role_achieves_its_purpose() {
    let of = |families: &'static [Family], seeds: std::ops::Range<u64>| {
        let names = |seed| families.iter().map(move |family| Name { family: *family, seed });
        seeds.flat_map(names).collect::<Vec<Name>>()
    };
    let all = of(&Family::ALL, 0..SEEDS);
    let more = of(&[Family::Members, Family::Disks, Family::Slow], SEEDS..SEEDS_OF_TARGETS);
    let (count_all, count_more) = (all.len() as u64, more.len() as u64);
    let (mut all, mut more) = (achievements(all), achievements(more));
    for (what, percent) in ACHIEVEMENTS {
        let (count, rare) = (all.remove(what).unwrap_or(0), more.remove(what).unwrap_or(0));
        let least = percent * count_all / 100;
        assert!(count >= least, "{what}: in {count} of {count_all} schedules");
        let every = count_all + count_more;
        assert!(count + rare >= 1, "{what}: in none of {every} schedules");
    }
    for (what, percent, percent_of_targets) in UNCHECKED {
        let (count, rare) = (all.remove(what).unwrap_or(0), more.remove(what).unwrap_or(0));
        let most = percent * count_all / 100;
        assert!(count <= most, "{what}: in {count} of {count_all} schedules");
        let most = percent_of_targets * count_more / 100;
        assert!(rare <= most, "{what}: in {rare} of {count_more} schedules about targets");
    }
    all.extend(more);
    assert!(all.is_empty(), "the test does not say how often {all:?} must come about");
}
