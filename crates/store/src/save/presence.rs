//! Checks after commits that the packs exist which the new checkpoint names. Scratch file systems
//! delete files by age, and people clean directories that running programs use. The program still
//! has everything in its memory.

use crate::commit::{Entry, history};
use crate::images::images_of;
use crate::read::AnyImage;
use crate::redundancy::{KnownSegments, packs_of, packs_of_segments};
use outlive_format::SegmentRef;
use outlive_pool::Pool;
use outlive_types::{Epoch, ErrorKind, JobName, PackId, Rank, Result};
use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

/// Multiple of a check's duration that passes before the next one.
const REST: u32 = 100;
/// A check that takes longer, as on a remote file system, is not repeated before [`PAUSE`].
const QUICK: Duration = Duration::from_millis(10);
const PAUSE: Duration = Duration::from_secs(120);
/// More packs than this are found by a listing of all packs, instead of one look at each.
const SINGLE_MAX: usize = 64;

/// The time of a rank's next check, and the segments it has read.
#[derive(Debug, Default)]
pub struct PresenceCheck {
    due: Duration,
    known: KnownSegments,
    /// Time at which the files last got the present as their modification time.
    freshened: Option<Duration>,
}

impl PresenceCheck {
    /// Returns the packs that segments name and that are gone, if a check is due.
    ///
    /// # Errors
    /// Errors of the targets.
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
            // A target that is away has lost nothing.
            if pool.stored_bytes(pack).is_err_and(|error| error.kind() == ErrorKind::Damaged) {
                missing.insert(pack);
            }
        }
        let took = clock.monotonic().saturating_sub(begun);
        self.due =
            clock.monotonic() + if took > QUICK { PAUSE.max(took * REST) } else { took * REST };
        Ok(missing)
    }

    /// Makes the next check due at once.
    pub fn make_due(&mut self) {
        self.due = Duration::ZERO;
    }

    /// Sets the present as the modification time of the files that checkpoints of the job need, if
    /// that is due.
    ///
    /// # Errors
    /// Errors of log and targets.
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
                Some(Err(error)) if error.kind() != ErrorKind::Damaged => return Err(error),
                packs => needed.extend(packs.into_iter().flatten().flatten()),
            }
        }
        pool.freshen(job, &needed)
    }
}

/// Effect of missing packs on a checkpoint, as the log has it now: the gc of another rank may have
/// moved data out of `missing`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lack {
    /// It no longer names any of the packs.
    Nothing,
    /// It names some, and needs nothing in them.
    Names,
    /// The image of this rank cannot be restored without them.
    Needs,
}

/// Returns the effect of `missing` on a rank's image. Reads its page trees, and no chunks.
///
/// # Errors
/// Errors of log and targets, except damage.
pub fn lack_of(
    pool: &Pool,
    job: &JobName,
    (epoch, rank): (Epoch, Rank),
    missing: &BTreeSet<PackId>,
) -> Result<Lack> {
    let is_it = |entry: &Entry| entry.manifest().is_some_and(|manifest| manifest.epoch == epoch);
    let entry = history(pool, job)?.find(is_it);
    let Some(manifest) = entry.as_ref().and_then(Entry::manifest) else { return Ok(Lack::Nothing) };
    if packs_of(pool, manifest, &mut KnownSegments::new())?.is_disjoint(missing) {
        return Ok(Lack::Nothing);
    }
    let images = images_of(pool, manifest)?;
    let own = images.into_iter().find(|image| image.reference.rank == rank);
    let opened = own.map(|image| AnyImage::image(pool, job, manifest, image)).transpose();
    match opened {
        Err(error) if error.kind() == ErrorKind::Damaged => Ok(Lack::Needs),
        opened => {
            let (wanted, faults) = opened?.map(|image| image.wanted()).unwrap_or_default();
            if let Some(error) = faults.iter().find(|fault| fault.kind() != ErrorKind::Damaged) {
                return Err(error.clone());
            }
            let is_there =
                faults.is_empty() && !wanted.iter().any(|it| missing.contains(&it.extent.pack));
            Ok(if is_there { Lack::Names } else { Lack::Needs })
        }
    }
}
