//! Behind commits: are the packs there that the new checkpoint needs? Scratch file systems delete files by age, and
//! people clean directories beneath running programs. The program still has everything in its memory.

use crate::commit::{Entry, history};
use crate::redundancy::{KnownSegments, packs_of, packs_of_segments};
use crate::verify::is_damage;
use outlive_format::SegmentRef;
use outlive_pool::Pool;
use outlive_types::{Epoch, JobName, PackId, Result};
use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

/// After a look this multiple of its time passes without another one.
const REST: u32 = 100;
/// One that takes longer, as on a file system far away, is not repeated before [`PAUSE`].
const QUICK: Duration = Duration::from_millis(10);
const PAUSE: Duration = Duration::from_secs(120);
/// More packs than these are listed with all others, instead of each by itself.
const SINGLE_MAX: usize = 64;

/// When a rank looks next, and what it knows.
#[derive(Debug, Default)]
pub struct PackLook {
    due: Duration,
    known: KnownSegments,
    /// When files were given the present as their time.
    freshened: Option<Duration>,
}

impl PackLook {
    /// Which packs that segments name are gone, if a look is due.
    ///
    /// # Errors
    /// What the targets report.
    pub fn missing(&mut self, pool: &Pool, segments: &[SegmentRef]) -> Result<BTreeSet<PackId>> {
        let clock = &pool.env().clock;
        let begun = clock.monotonic();
        if begun < self.due {
            return Ok(BTreeSet::new());
        }
        let listed: HashSet<&SegmentRef> = segments.iter().collect();
        self.known.retain(|segment, _| listed.contains(segment));
        let named = packs_of_segments(pool, segments, &mut self.known)?;
        let listed: HashSet<PackId> = match named.len() > SINGLE_MAX {
            true => pool.packs()?.into_iter().collect(),
            false => HashSet::new(),
        };
        let mut missing = BTreeSet::new();
        for pack in named.into_iter().filter(|pack| !listed.contains(pack)) {
            // A target that cannot be asked has lost nothing.
            if pool.stored_bytes(pack).is_err_and(|error| is_damage(&error)) {
                missing.insert(pack);
            }
        }
        let took = clock.monotonic().saturating_sub(begun);
        self.due =
            clock.monotonic() + if took > QUICK { PAUSE.max(took * REST) } else { took * REST };
        Ok(missing)
    }

    /// The next look is due at once.
    pub fn make_due(&mut self) {
        self.due = Duration::ZERO;
    }

    /// Gives the files that checkpoints of the job need the present as their time, if that is due.
    ///
    /// # Errors
    /// What log and targets report.
    pub fn freshen(&mut self, pool: &Pool, job: &JobName) -> Result<()> {
        let every = Duration::from_secs(pool.config().tuning.freshen_every_s);
        let now = pool.env().clock.monotonic();
        let is_due = self.freshened.is_none_or(|last| now.saturating_sub(last) >= every);
        if every.is_zero() || !is_due {
            return Ok(());
        }
        self.freshened = Some(now);
        let (mut needed, mut known) = (BTreeSet::new(), KnownSegments::new());
        for entry in history(pool, job)? {
            match entry.manifest().map(|manifest| packs_of(pool, manifest, &mut known)) {
                Some(Err(error)) if !is_damage(&error) => return Err(error),
                packs => needed.extend(packs.into_iter().flatten().flatten()),
            }
        }
        pool.freshen(job, &needed)
    }
}

/// Those that the log says now that the checkpoint needs: another rank's gc may have moved what was in the others.
///
/// # Errors
/// What the log reports.
pub fn still_named(
    pool: &Pool,
    job: &JobName,
    epoch: Epoch,
    mut missing: BTreeSet<PackId>,
) -> Result<BTreeSet<PackId>> {
    let is_it = |entry: &Entry| entry.manifest().is_some_and(|manifest| manifest.epoch == epoch);
    let entry = history(pool, job)?.find(is_it);
    let named = match entry.as_ref().and_then(Entry::manifest) {
        Some(manifest) => packs_of(pool, manifest, &mut KnownSegments::new())?,
        None => BTreeSet::new(),
    };
    missing.retain(|pack| named.contains(pack));
    Ok(missing)
}
