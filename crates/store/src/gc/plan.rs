//! The plan of a gc: which packs it deletes, which it copies first, which stay.

use super::chains::inline_segments;
use super::mark::Marks;
use super::survey::Survey;
use outlive_format::{Images, Manifest, SegmentKind};
use outlive_pool::Pool;
use outlive_types::{Epoch, JobName, PAGE_BYTES, PackId};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;

/// Number of small packs from which a gc merges them.
const SMALL_PACKS_MIN: usize = 4;
/// Bytes that rewriting the packs below [`Thoroughness::rewrite_below`] must free in addition, now
/// and with its own segments counted.
const POOR_FREED_MIN_BYTES: u64 = 16 << 20;
/// Maximum number of bytes that this copies: a program waits for it at its end.
const POOR_COPIED_MAX_BYTES: u64 = 256 << 20;

/// How thorough a gc is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Thoroughness {
    /// Share of the bytes that may stay unused, 0 to 1.
    pub unused_max: f64,
    /// Share in use below which packs are rewritten even if few enough bytes are unused, if that
    /// frees 16 MiB: it copies little for what it frees.
    pub rewrite_below: f64,
    /// Whether packs are condemned at all; otherwise the gc only drops checkpoints.
    pub collect: bool,
    /// Whether packs are rewritten; otherwise the gc deletes only packs with nothing in use.
    pub rewrite: bool,
    /// Whether unused pages of chunks count as unused; otherwise only whole chunks do. Rewriting
    /// drops unused pages in both cases.
    pub of_pages: bool,
    /// Maximum number of small packs that stay apart in a pool without redundancy, so that one
    /// damaged pack takes few checkpoints with it.
    pub small_apart_max: usize,
}

impl Default for Thoroughness {
    fn default() -> Thoroughness {
        Thoroughness {
            unused_max: 0.02,
            rewrite_below: 0.0,
            collect: true,
            rewrite: true,
            of_pages: true,
            small_apart_max: 64,
        }
    }
}

/// A pack that is partly in use.
struct Partly {
    pack: PackId,
    live: u64,
    total: u64,
    filled: u64,
    unused: u64,
}

/// Plan of a gc.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GcPlan {
    /// Checkpoints that are dropped, by job.
    pub dropped: BTreeMap<JobName, BTreeSet<Epoch>>,
    /// Packs without anything in use.
    pub dead: Vec<PackId>,
    /// Packs whose live data is copied to new ones.
    pub rewritten: Vec<PackId>,
    /// Number of unfinished packs that no session will finish.
    pub leftovers: usize,
    /// Number of packs that stay.
    pub stay: usize,
    /// Number of packs of saves under way, whose needs are not known yet.
    pub in_progress: usize,
    /// Jobs of these saves, and the program of each.
    pub saving: BTreeMap<JobName, String>,
    /// Number of packs that stay because their directory cannot be read.
    pub unreadable: usize,
    /// Bytes of all containers.
    pub total_bytes: u64,
    /// Bytes in use.
    pub live_bytes: u64,
    /// Bytes to copy.
    pub copied_bytes: u64,
    /// Bytes of containers that the gc writes, about: the copies, and the segments that list them,
    /// in whole pages.
    pub written_bytes: u64,
    /// Bytes of containers that go, less those that are written.
    pub freed_bytes: u64,
    /// Bytes of packs to delete that wait for the programs in `held_by`.
    pub held_bytes: u64,
    /// Jobs whose open session holds these packs, and the program of each.
    pub held_by: BTreeMap<JobName, String>,
}

/// Chooses small packs if there are more than `small_apart`, then the packs worst in use, until few
/// enough bytes are unused and the next pack is in use enough.
fn worth_rewriting(
    partly: &[Partly],
    pack_bytes: u64,
    small_apart: usize,
    thoroughness: Thoroughness,
) -> HashSet<PackId> {
    let mut chosen: HashSet<PackId> = HashSet::new();
    // Merging must at least halve the small packs, or each gc would merge again.
    let small: Vec<_> = partly.iter().filter(|p| p.total < pack_bytes / 2).collect();
    let small_bytes: u64 = small.iter().map(|p| p.live).sum();
    let few = SMALL_PACKS_MIN.max(2 * small_bytes.div_ceil(pack_bytes) as usize);
    if small.len() >= few.max(small_apart + 1) {
        chosen.extend(small.iter().map(|p| p.pack));
    }
    let mut rest: Vec<&Partly> = partly.iter().filter(|p| !chosen.contains(&p.pack)).collect();
    // First the packs with the most unused bytes for each byte to copy.
    let worth = |p: &Partly| u128::from(p.unused) * u128::from(u64::MAX) / u128::from(p.live);
    rest.sort_by(|a, b| worth(b).cmp(&worth(a)).then(a.pack.cmp(&b.pack)));
    let mut unused: u64 = rest.iter().map(|p| p.unused).sum();
    let kept: u64 = partly.iter().map(|p| p.live).sum();
    let is_poor =
        |p: &Partly| (p.live as f64) < thoroughness.rewrite_below * (p.live + p.unused) as f64;
    let mut poor_left = POOR_COPIED_MAX_BYTES;
    for p in rest {
        let is_enough = unused as f64 <= thoroughness.unused_max * kept as f64;
        // A pack without unused bytes stays, however few unused bytes are allowed.
        if p.unused == 0 || is_enough && !(is_poor(p) && p.live <= poor_left) {
            break;
        }
        if is_enough {
            poor_left -= p.live;
        }
        unused -= p.unused;
        chosen.insert(p.pack);
    }
    chosen
}

/// Counts the packs of checkpoints if each rank writes one pack in each save.
pub fn packs_written<'m>(kept: impl IntoIterator<Item = &'m Manifest>) -> usize {
    let written = kept.into_iter().map(|manifest| match manifest.images {
        Images::One(_) => 1,
        Images::Table(_) => manifest.world_size as usize + 1,
    });
    written.fold(0, usize::saturating_add)
}

impl GcPlan {
    /// Chooses all dead packs, small ones if there are several, and then the packs worst in use,
    /// until few enough of the other bytes are unused. Without redundancy, small packs stay apart:
    /// twice the number `written` for the kept checkpoints. Packs below
    /// [`Thoroughness::rewrite_below`] go, too, if that pays now.
    pub fn choose(
        pool: &Pool,
        survey: &Survey,
        marks: &Marks,
        written: usize,
        thoroughness: Thoroughness,
    ) -> GcPlan {
        let plain = Thoroughness { rewrite_below: 0.0, ..thoroughness };
        let choose = |how| GcPlan::choose_by(pool, survey, marks, written, how);
        let plan = choose(plain);
        if thoroughness.rewrite_below == 0.0 {
            return plan;
        }
        let more = choose(thoroughness);
        if more.pays_beside(&plan) { more } else { plan }
    }

    /// Whether this plan frees enough more than another one, at once.
    fn pays_beside(&self, less: &GcPlan) -> bool {
        less.freed_now_bytes() + POOR_FREED_MIN_BYTES <= self.freed_now_bytes()
    }

    fn choose_by(
        pool: &Pool,
        survey: &Survey,
        marks: &Marks,
        written: usize,
        thoroughness: Thoroughness,
    ) -> GcPlan {
        let mut plan = GcPlan { unreadable: marks.unreadable.len(), ..GcPlan::default() };
        let mut partly: Vec<Partly> = Vec::new();
        let (mut gone_bytes, mut copied_from, mut filled) = (0, 0, 0);
        for pack in &survey.packs {
            let Some(found) = marks.packs.get(pack) else {
                // An unreadable pack that no segment names holds nothing that a reader could find.
                if !marks.is_named(pack) && !survey.is_in_progress(pack) {
                    plan.dead.push(*pack);
                    plan.unreadable = plan.unreadable.saturating_sub(1);
                }
                continue;
            };
            let of_pages = thoroughness.of_pages;
            // A copy loses unused pages, whatever counts as unused.
            let (live, total) = (found.live_page_bytes(), found.total_bytes);
            if survey.is_in_progress(pack) {
                plan.in_progress += 1;
                let savers = survey.jobs.iter().filter(|job| job.is_of(pack.session()));
                plan.saving.extend(savers.map(|job| (job.name.clone(), job.program())));
                continue;
            }
            plan.total_bytes += total;
            plan.live_bytes += live;
            match live {
                0 => {
                    plan.dead.push(*pack);
                    gone_bytes += total;
                }
                _ => partly.push(Partly {
                    pack: *pack,
                    live,
                    total,
                    filled: found.filled_bytes,
                    unused: found.unused_bytes(of_pages),
                }),
            }
        }
        plan.leftovers = survey.unfinished.iter().filter(|p| is_leftover(survey, **p)).count();
        if !thoroughness.collect {
            plan.stay = partly.len() + plan.dead.len();
            plan.dead.clear();
            plan.leftovers = 0;
            return plan;
        }
        if !thoroughness.rewrite {
            plan.stay = partly.len();
            plan.count(survey, marks, 0);
            plan.freed_bytes = gone_bytes.saturating_sub(plan.written_bytes);
            plan.see_holders(survey, marks);
            return plan;
        }
        let pack_bytes = pool.config().format.pack_bytes;
        let small_apart = match pool.has_redundancy() {
            true => 0,
            false => written.saturating_mul(2).min(thoroughness.small_apart_max),
        };
        let chosen = worth_rewriting(&partly, pack_bytes, small_apart, thoroughness);
        for Partly { pack, live, total, filled: filled_there, .. } in partly {
            if chosen.contains(&pack) {
                plan.rewritten.push(pack);
                plan.copied_bytes += live;
                copied_from += total;
                filled += filled_there;
            } else {
                plan.stay += 1;
            }
        }
        // New containers get as much padding as the old ones had.
        let packed =
            u128::from(plan.copied_bytes) * u128::from(copied_from) / u128::from(filled.max(1));
        plan.count(survey, marks, packed as u64);
        plan.freed_bytes = (gone_bytes + copied_from).saturating_sub(plan.written_bytes);
        plan.see_holders(survey, marks);
        plan
    }

    /// Finds the packs that open sessions hold now.
    fn see_holders(&mut self, survey: &Survey, marks: &Marks) {
        for pack in self.dead.iter().chain(&self.rewritten) {
            let mut is_held = false;
            for job in survey.jobs.iter().filter(|job| job.holds(pack)) {
                is_held = true;
                self.held_by.entry(job.name.clone()).or_insert_with(|| job.program());
            }
            if is_held {
                self.held_bytes += marks.packs.get(pack).map_or(0, |marks| marks.total_bytes);
            }
        }
    }

    /// Returns the bytes that a gc would free now.
    pub fn freed_now_bytes(&self) -> u64 {
        self.freed_bytes.saturating_sub(self.held_bytes)
    }

    /// Counts the bytes to write: copies, which take `packed` bytes in containers, and segments.
    fn count(&mut self, survey: &Survey, marks: &Marks, packed: u64) {
        let condemned = self.condemned();
        let segments: u64 = survey
            .jobs
            .iter()
            .map(|job| match (marks.relisted.get(&job.name), marks.named.get(&job.name)) {
                (Some(bytes), _) => *bytes,
                // Segments in deleted containers are among the copied entries.
                (None, Some(named)) if !named.is_disjoint(&condemned) => {
                    let kept: Vec<&Manifest> = job.manifests.iter().collect();
                    let stay = inline_segments(&kept).into_iter().filter(|segment| {
                        segment.kind != SegmentKind::Segment || !condemned.contains(&segment.pack)
                    });
                    stay.map(|segment| u64::from(segment.length)).sum()
                }
                _ => 0,
            })
            .sum();
        let page = PAGE_BYTES as u64;
        self.written_bytes = packed.next_multiple_of(page) + segments.next_multiple_of(page);
    }

    /// Returns all packs that are deleted.
    pub fn condemned(&self) -> HashSet<PackId> {
        self.dead.iter().chain(&self.rewritten).copied().collect()
    }
}

/// Whether no open session can finish an unfinished pack.
pub fn is_leftover(survey: &Survey, pack: PackId) -> bool {
    !survey.is_open(pack.session())
}

impl fmt::Display for GcPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (job, epochs) in self.dropped.iter().filter(|(_, epochs)| !epochs.is_empty()) {
            writeln!(f, "drop {} checkpoints of job {job}", epochs.len())?;
        }
        writeln!(
            f,
            "{} bytes in packs, {} in use; {} packs stay, {} are deleted, {} are rewritten: {} \
             bytes are copied and about {} become free",
            self.total_bytes,
            self.live_bytes,
            self.stay,
            self.dead.len(),
            self.rewritten.len(),
            self.copied_bytes,
            self.freed_bytes
        )?;
        if self.in_progress + self.unreadable + self.leftovers > 0 {
            writeln!(
                f,
                "{} packs belong to saves under way, {} cannot be read and are left alone, {} \
                 unfinished ones are removed",
                self.in_progress, self.unreadable, self.leftovers
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::SessionId;

    const MIB: u64 = 1 << 20;

    /// Returns which of these packs of 64 MiB are rewritten, given the MiB in use of each.
    fn rewritten(live_mib: &[u64], rewrite_below: f64) -> Vec<usize> {
        let pack = |at: usize| PackId::new(SessionId([1; 12]), 0, at as u32);
        let packs = live_mib.iter().enumerate().map(|(at, live)| {
            let (live, total) = (live * MIB, 64 * MIB);
            Partly { pack: pack(at), live, total, filled: total, unused: total - live }
        });
        let packs: Vec<Partly> = packs.collect();
        let how = Thoroughness { unused_max: 0.3, rewrite_below, ..Thoroughness::default() };
        let chosen = worth_rewriting(&packs, 64 * MIB, 0, how);
        (0..packs.len()).filter(|at| chosen.contains(&pack(*at))).collect()
    }

    /// A program changes one array wholly and another a little: the dropped checkpoints leave packs
    /// nearly empty.
    #[test]
    fn packs_that_are_nearly_empty_go_however_few_they_are() {
        let mut live_mib = vec![64; 20];
        (live_mib[3], live_mib[4], live_mib[5]) = (1, 7, 9);
        assert_eq!(rewritten(&live_mib, 0.0), [] as [usize; 0], "173 of 1105 MiB are unused");
        assert_eq!(rewritten(&live_mib, 0.125), [3, 4]);
        // The unused bytes exceed 30 % of those in use: the worst packs go until they no longer do.
        let live_mib = [1, 20, 41, 41, 41, 41, 64, 64];
        assert_eq!(rewritten(&live_mib, 0.0), [0, 1]);
        assert_eq!(rewritten(&live_mib, 0.125), [0, 1]);
    }

    /// The copies would only take space: 16 MiB is little, and another program may hold the packs.
    #[test]
    fn nearly_empty_packs_stay_where_their_space_does_not_come_back() {
        let plan = |freed_mib: u64, held_mib: u64| GcPlan {
            freed_bytes: freed_mib * MIB,
            held_bytes: held_mib * MIB,
            ..GcPlan::default()
        };
        assert!(plan(116, 0).pays_beside(&plan(100, 0)));
        assert!(!plan(115, 0).pays_beside(&plan(100, 0)));
        assert!(!plan(200, 100).pays_beside(&plan(100, 0)));
        assert!(!plan(200, 300).pays_beside(&plan(100, 100)));
    }

    #[test]
    fn a_program_copies_little_at_its_end() {
        let mut live_mib = vec![6; 60];
        live_mib.resize(300, 64);
        let gone = rewritten(&live_mib, 0.125);
        assert_eq!(gone, (0..256 / 6).collect::<Vec<_>>());
    }
}
