//! Decides when each rank writes its frozen image: all ranks at once, or a number of them at a
//! time. (Chang, Cho and Kim, "Performance Evaluation of the Striped Checkpointing Algorithm on the
//! Distributed RAID for Cluster Computer": coordinated, staggered and striped writers.) The freeze
//! is coordinated in any case, so the schedule decides how long a save takes, and never its
//! content.

use outlive_format::Image;
use outlive_types::{Error, PackId, Result, SessionId};
use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

/// Saves after which a width that was nearly the best is tried again. A slower width, or one that
/// was tried again in vain, waits longer in proportion.
const TRIED_AGAIN_AFTER: u64 = 24;
/// Longest time between two attempts, as a multiple of the shortest.
const LATER_MAX: f64 = 8.0;
/// Slowness of a width, compared with a wider one, from which narrower ones are not tried.
const FAR_SLOWER: f64 = 1.5;
/// Slowness, compared with the best, at which one save is enough to judge a width.
const CLEARLY_SLOWER: f64 = 1.25;
/// Saves needed to judge the others, as any one may be slow by chance.
const SAVES_TO_JUDGE: u32 = 3;
/// Most saves in a mean: a save weighs as much as each one before it.
const SAVES_THAT_COUNT: u32 = 5;
/// Of widths that differ by less, the widest is used: it holds frozen memory for the shortest time.
const AS_GOOD: f64 = 1.05;

/// Number of ranks that write at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Schedule {
    /// All of them.
    #[default]
    Coordinated,
    /// One after the other.
    Staggered,
    /// This number: as soon as one is done, the next one begins.
    Striped(u32),
    /// The number that was fastest in earlier saves.
    Adaptive,
}

impl Schedule {
    /// Returns the schedule of this name: `coordinated`, `staggered`, `striped(WIDTH)` or
    /// `adaptive`.
    ///
    /// # Errors
    /// `Invalid` for any other name.
    pub fn from_name(name: &str) -> Result<Schedule> {
        match name {
            "coordinated" => return Ok(Schedule::Coordinated),
            "staggered" => return Ok(Schedule::Staggered),
            "adaptive" => return Ok(Schedule::Adaptive),
            _ => {}
        }
        let width = name.strip_prefix("striped(").and_then(|rest| rest.strip_suffix(')'));
        match width.and_then(|width| width.trim().parse().ok()) {
            Some(width @ 1..) => Ok(Schedule::Striped(width)),
            _ => Err(Error::invalid(format!(
                "{name:?} is no schedule: give coordinated, staggered, striped(WIDTH) with a number of \
                 ranks of 1 or more, or adaptive"
            ))),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Coordinated => f.write_str("coordinated"),
            Schedule::Staggered => f.write_str("staggered"),
            Schedule::Striped(width) => write!(f, "striped({width})"),
            Schedule::Adaptive => f.write_str("adaptive"),
        }
    }
}

/// Decides on rank 0, save by save, how many ranks write at a time.
#[derive(Debug)]
pub struct WriteScheduler {
    schedule: Schedule,
    ranks: u32,
    /// Measurements of each width that has been tried.
    tried: Vec<Tried>,
    saves: u64,
}

#[derive(Debug)]
struct Tried {
    width: u32,
    bytes_per_s: f64,
    /// Number of saves in this mean.
    saves: u32,
    /// The number of the newest of them.
    last: u64,
    /// Factor by which its next attempt is later than usual.
    later: f64,
}

impl WriteScheduler {
    /// Makes a scheduler for `ranks` ranks.
    pub fn new(schedule: Schedule, ranks: u32) -> WriteScheduler {
        WriteScheduler { schedule, ranks, tried: Vec::new(), saves: 0 }
    }

    /// Returns the number of ranks that write at a time in the next save, 1 to all.
    pub fn next(&mut self) -> u32 {
        self.saves += 1;
        match self.schedule {
            Schedule::Coordinated => self.ranks,
            Schedule::Staggered => 1,
            Schedule::Striped(width) => width.clamp(1, self.ranks),
            Schedule::Adaptive => self.adapt(),
        }
    }

    /// Learns from a save: `width` ranks at a time have written `bytes` bytes in the time `took`.
    pub fn learn(&mut self, width: u32, bytes: u64, took: Duration) {
        // The first save writes everything, and a save that is over at once shows nothing of the
        // devices.
        if self.saves <= 1 || bytes < 1 << 20 || took.is_zero() {
            return;
        }
        let now = bytes as f64 / took.as_secs_f64();
        let Some(tried) = self.tried.iter_mut().find(|tried| tried.width == width) else {
            let tried = Tried { width, bytes_per_s: now, saves: 1, last: self.saves, later: 1.0 };
            return self.tried.push(tried);
        };
        if self.saves - tried.last > TRIED_AGAIN_AFTER {
            // The load may have changed since.
            tried.saves = tried.saves.min(SAVES_TO_JUDGE - 1);
            tried.later = LATER_MAX.min(2.0 * tried.later);
        } else {
            tried.later = 1.0;
        }
        tried.saves = SAVES_THAT_COUNT.min(tried.saves + 1);
        tried.bytes_per_s += (now - tried.bytes_per_s) / f64::from(tried.saves);
        tried.last = self.saves;
    }

    /// Chooses a width. First all ranks, then halves of it down to one, until a width is far slower
    /// than a wider one. A narrow one may be the best although those between are not, as on a disk
    /// whose arm only a single rank leaves in place. Then those near the best again, until there
    /// are enough saves to judge by. Then the best, while the others are tried again now and then.
    fn adapt(&self) -> u32 {
        let mut next = Some(self.ranks);
        // The best of this width and the wider ones.
        let mut best: f64 = 0.0;
        while let Some(width) = next {
            let Some(tried) = self.tried.iter().find(|tried| tried.width == width) else {
                return width;
            };
            best = best.max(tried.bytes_per_s);
            next = (width > 1 && best / tried.bytes_per_s <= FAR_SLOWER).then_some(width / 2);
        }
        let best = self.tried.iter().map(|tried| tried.bytes_per_s).fold(best, f64::max);
        let slower = |tried: &Tried| best / tried.bytes_per_s;
        let hardly_known =
            |tried: &&Tried| tried.saves < SAVES_TO_JUDGE && slower(tried) <= CLEARLY_SLOWER;
        let least_known = |tried: &&Tried| (tried.saves, Reverse(tried.width));
        if let Some(tried) = self.tried.iter().filter(hardly_known).min_by_key(least_known) {
            return tried.width;
        }
        let as_good = self.tried.iter().filter(|tried| slower(tried) <= AS_GOOD);
        let used = as_good.map(|tried| tried.width).max().unwrap_or(self.ranks);
        let is_old = |tried: &&Tried| {
            let times = LATER_MAX.min(tried.later * slower(tried));
            let after = TRIED_AGAIN_AFTER as f64 * times;
            tried.width != used && (self.saves - tried.last) as f64 > after
        };
        let old = self.tried.iter().filter(is_old).min_by_key(|tried| tried.last);
        old.map_or(used, |tried| tried.width)
    }

    /// Returns the measurements in words: `4 ranks at a time: 812 MB/s`, the best first.
    pub fn learnt(&self) -> Vec<String> {
        let mut tried: Vec<&Tried> = self.tried.iter().collect();
        tried.sort_by(|a, b| b.bytes_per_s.total_cmp(&a.bytes_per_s));
        let told =
            |it: &&Tried| format!("{} ranks at a time: {:.0} MB/s", it.width, it.bytes_per_s / 1e6);
        tried.iter().map(told).collect()
    }
}

/// Returns whether an image has merged parts of the index into packs that its rank has numbered
/// from `first_pack` on.
pub fn has_merged(image: &Image, session: SessionId, first_pack: u32) -> bool {
    let is_new = |pack: PackId| pack.session() == session && pack.count() >= first_pack;
    image.segments.iter().any(|segment| segment.level > 0 && is_new(segment.pack))
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_format::{ImageKind, ImageRef, SegmentKind, SegmentRef, TreeRef};
    use outlive_types::Fingerprint;

    #[test]
    fn a_save_that_merges_is_told_from_one_that_keeps_merged_segments() {
        let session = SessionId([1; 12]);
        let image = |pack: PackId, level| Image {
            reference: ImageRef {
                rank: 0,
                kind: ImageKind::Memory,
                regions: 0,
                state_bytes: 0,
                catalog: TreeRef::EMPTY,
                packed: TreeRef::EMPTY,
            },
            next_pack: 9,
            segments: vec![SegmentRef {
                pack,
                offset: 0,
                length: 1,
                kind: SegmentKind::Segment,
                level,
                fp: Fingerprint::ZERO,
            }],
        };
        let pack = |session, count| PackId::new(session, 0, count);
        assert!(has_merged(&image(pack(session, 8), 1), session, 8));
        assert!(!has_merged(&image(pack(session, 7), 1), session, 8), "of an earlier save");
        assert!(!has_merged(&image(pack(SessionId([2; 12]), 8), 1), session, 8), "of another run");
        assert!(!has_merged(&image(pack(session, 8), 0), session, 8), "what it shares with others");
    }

    #[test]
    fn schedules_have_names() {
        for name in ["coordinated", "staggered", "striped(4)", "adaptive"] {
            assert_eq!(Schedule::from_name(name).unwrap().to_string(), name);
        }
        for wrong in ["", "striped", "striped(0)", "striped(-1)", "striped(x)", "Coordinated"] {
            let error = Schedule::from_name(wrong).unwrap_err();
            assert!(error.message().contains("striped(WIDTH)"), "{error}");
        }
        let width = |schedule| WriteScheduler::new(schedule, 6).next();
        assert_eq!(width(Schedule::Coordinated), 6);
        assert_eq!(width(Schedule::Staggered), 1);
        assert_eq!([width(Schedule::Striped(4)), width(Schedule::Striped(40))], [4, 6]);
    }

    /// On a disk whose arm moves unless one rank writes alone, all other widths are alike.
    #[test]
    fn the_narrowest_width_is_found_behind_others_that_are_no_better() {
        let mut turns = WriteScheduler::new(Schedule::Adaptive, 16);
        let widths = (0..50).map(|save| {
            let width = turns.next();
            let noise = 1.0 + f64::from(save % 3) / 100.0;
            let took = noise * if width == 1 { 3.5 } else { 4.6 };
            turns.learn(width, 128 << 20, Duration::from_secs_f64(took));
            width
        });
        let widths = widths.collect::<Vec<u32>>();
        assert!(widths[5..].iter().filter(|width| **width == 1).count() >= 40, "{widths:?}");
    }

    /// On eight devices, narrow widths are so much slower that most are never tried.
    #[test]
    fn widths_that_would_be_far_slower_are_left_out() {
        let mut turns = WriteScheduler::new(Schedule::Adaptive, 16);
        let widths = (0..20).map(|_| {
            let width = turns.next();
            let took = 8.0 / f64::from(width.min(8));
            turns.learn(width, 128 << 20, Duration::from_secs_f64(took));
            width
        });
        let widths = widths.collect::<Vec<u32>>();
        // The first save writes everything, and does not count.
        assert_eq!(widths[..4], [16, 16, 8, 4]);
        assert!(widths[4..].iter().all(|width| *width >= 8), "{widths:?}");
        // 8 is no better than 16.
        assert_eq!(widths[8..], [16; 12]);
    }

    /// Returns the time of saves divided by their time with the best width. By chance each save
    /// takes up to 1.6 times its `usual` time, which depends on the width (as was measured beside
    /// HPL).
    fn lost_by_chance(usual: fn(u32) -> f64) -> f64 {
        let (mut taken, mut best) = (0.0, 0.0);
        for seed in 0..200 {
            let mut random: u64 = seed;
            let mut turns = WriteScheduler::new(Schedule::Adaptive, 16);
            for save in 0..100 {
                let width = turns.next();
                // Knuth's MMIX generator.
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let chance = 1.0 + 0.6 * ((random >> 32) as f64 / 2f64.powi(32)).powi(2);
                let took = usual(width) * chance;
                turns.learn(width, 128 << 20, Duration::from_secs_f64(took));
                if save >= 16 {
                    taken += took;
                    best += chance;
                }
            }
        }
        taken / best
    }

    #[test]
    fn saves_that_are_slow_by_chance_do_not_lead_astray() {
        let all_at_once =
            lost_by_chance(|width| [1.6, 1.6, 1.3, 1.15, 1.0][width.ilog2() as usize]);
        let half = lost_by_chance(|width| if width == 8 { 1.0 } else { 1.3 });
        let one = lost_by_chance(|width| if width == 1 { 1.0 } else { 1.35 });
        let lost = [all_at_once, half, one];
        assert!(lost.iter().all(|lost| *lost < 1.04), "{lost:.3?}");
    }

    /// A model of devices: the fastest width is soon used in nearly all saves, and so is another
    /// one once that is the fastest.
    #[test]
    fn the_fastest_width_is_found_and_found_again() {
        for fastest in [1u32, 2, 4, 8, 16] {
            let mut turns = WriteScheduler::new(Schedule::Adaptive, 16);
            let saves = |turns: &mut WriteScheduler, fastest: u32, count: usize| {
                let widths = (0..count).map(|_| {
                    let width = turns.next();
                    let distance = f64::from(width.max(fastest)) / f64::from(width.min(fastest));
                    let took = Duration::from_secs_f64(0.1 * distance.sqrt());
                    turns.learn(width, 100 << 20, took);
                    width
                });
                widths.collect::<Vec<u32>>()
            };
            saves(&mut turns, fastest, 12);
            let widths = saves(&mut turns, fastest, 50);
            let right = widths.iter().filter(|width| **width == fastest).count();
            assert!(right >= 44, "{fastest}: {widths:?}");
            // The load changes.
            let other = 32 / (fastest + 1).next_power_of_two();
            saves(&mut turns, other, 160);
            let widths = saves(&mut turns, other, 50);
            let right = widths.iter().filter(|width| **width == other).count();
            assert!(right >= 44, "{fastest}, then {other}: {widths:?}");
        }
    }
}
