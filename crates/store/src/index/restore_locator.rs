//! Pack extents of an image that is restored. Segments are read as they are needed, the newest
//! first: after many saves the older ones list little that the image still has. If a segment is
//! damaged, the directories of all packs replace all of them. Every pack lists its content; merged
//! segments only save reading the directories.

use super::locator::strike;
use super::{Fingerprints, Locator, each_segment, newest_first, read_segment};
use outlive_format::SegmentRef;
use outlive_pool::Pool;
use outlive_types::{Error, ErrorKind, Fingerprint, Result};
use std::fmt;
use std::sync::Arc;

/// Memory for an entry of a locator.
const ENTRY_BYTES: u64 = 60;
/// A search may take this many times the memory of the pool's index.
const SEARCH_PER_INDEX: u64 = 4;
/// Segments are loaded as a whole up to this part of the pool's index. Of further ones only the
/// entries are kept that are wanted, so it may happen that they are read again.
const WHOLE_PER_INDEX: u64 = 8;
/// They are read again at most about this often. Then they are loaded.
const PASSES: usize = 2;

/// A source of pack extents, which may have to read segments first.
pub trait Extents {
    /// Returns a locator that lists each of these nodes, if a segment does.
    ///
    /// # Errors
    /// `Damaged` if a segment is missing or wrong.
    fn nodes(&mut self, wanted: &mut dyn Iterator<Item = Fingerprint>) -> Result<&Locator>;

    /// Returns a locator that lists each of these chunks, if a segment does.
    ///
    /// # Errors
    /// `Damaged` if a segment is missing or wrong.
    fn chunks(&mut self, wanted: &[Fingerprint]) -> Result<&Locator>;
}

impl Extents for &Locator {
    fn nodes(&mut self, _wanted: &mut dyn Iterator<Item = Fingerprint>) -> Result<&Locator> {
        Ok(self)
    }

    fn chunks(&mut self, _wanted: &[Fingerprint]) -> Result<&Locator> {
        Ok(self)
    }
}

/// Whether the log still names the segments. If not, a collector may have moved the data.
pub type IsNamed = Box<dyn Fn() -> Result<bool> + Send>;

/// Pack extents of the chunks and nodes of an image to restore.
///
/// If several segments list an object, the newest one is taken first. If that copy is damaged,
/// [`RestoreLocator::all`] takes the one that the manifest lists first, on which collectors and checks
/// rely.
pub struct RestoreLocator {
    pool: Pool,
    segments: Vec<SegmentRef>,
    is_named: IsNamed,
    /// The pack extents that are known so far. Their readers do not wait for more.
    locator: Arc<Locator>,
    /// Whether no loaded segments list one object at two pack extents. Then their order has no effect.
    is_unique: bool,
    /// Segments that are not loaded as a whole, the newest last.
    left: Vec<SegmentRef>,
    /// Bytes of the others.
    loaded_bytes: u64,
    /// Number of segments of which only wanted entries were kept.
    joined: usize,
    /// Chunks that no segment lists as a whole.
    sliced: Fingerprints,
    /// Whether it has all pack extents, as if loaded in the order of the manifest.
    is_all: bool,
    instead_of: Option<Error>,
}

impl RestoreLocator {
    /// Takes the `segments` of an image. If one proves damaged, or none is known, the directories of
    /// all packs are read instead.
    ///
    /// - A check reads all segments at once, and does not search: it reports the damage.
    /// - Collectors, and saves that share chunks of segments, rely on the segments, and use
    ///   [`Locator::load`].
    ///
    /// # Errors
    /// `Damaged` if the log no longer names them, if a search would take too much memory, or for a
    /// check; errors of log and target.
    pub fn new(pool: &Pool, segments: &[SegmentRef], is_named: IsNamed) -> Result<RestoreLocator> {
        let mut left = newest_first(segments);
        left.reverse();
        let mut this = RestoreLocator {
            pool: pool.clone(),
            segments: segments.to_vec(),
            is_named,
            locator: Arc::default(),
            is_unique: true,
            left,
            loaded_bytes: 0,
            joined: 0,
            sliced: Fingerprints::default(),
            is_all: false,
            instead_of: None,
        };
        if segments.is_empty() {
            let lists = "the page that lists its segments is missing or wrong";
            this.replace(Error::damaged(lists))?;
        } else if pool.is_checking() {
            this.all()?;
        }
        Ok(this)
    }

    /// Returns the damage of the segments, if the directories of all packs replace them.
    pub fn instead_of(&self) -> Option<&Error> {
        self.instead_of.as_ref()
    }

    /// Returns the pack extents that are known so far.
    pub fn known(&self) -> Arc<Locator> {
        self.locator.clone()
    }

    /// Returns whether it has all pack extents, in the order of the manifest.
    pub fn is_all(&self) -> bool {
        self.is_all
    }

    /// Does `work`, and if that meets damage, does it again with all pack extents.
    ///
    /// # Errors
    /// Errors of `work`, and of [`RestoreLocator::all`].
    pub fn repeated<T>(&mut self, work: &mut dyn FnMut(&mut Self) -> Result<T>) -> Result<T> {
        match work(self) {
            Err(error) if error.kind() == ErrorKind::Damaged && !self.is_all => match self.all() {
                Ok(_) => work(self),
                Err(other) if other.kind() == ErrorKind::Damaged => Err(error),
                Err(other) => Err(other),
            },
            done => done,
        }
    }

    /// Looks for what is wanted, in the newest segments first, until all is found. Loads segments as
    /// a whole up to `whole_bytes` in all; of further ones it keeps what is wanted.
    fn look(&mut self, mut wanted: Vec<Fingerprint>, whole_bytes: u64) -> Result<()> {
        if wanted.is_empty() || self.left.is_empty() {
            return Ok(());
        }
        wanted.sort_unstable();
        wanted.dedup();
        let locator = Arc::make_mut(&mut self.locator);
        let (is_unique, joined) = (&mut self.is_unique, &mut self.joined);
        let (loaded_bytes, mut loaded) = (&mut self.loaded_bytes, 0);
        let done = each_segment(&self.pool, self.left.iter().rev(), &mut |segment, directory| {
            if *loaded_bytes < whole_bytes {
                *is_unique &= locator.extend(&directory, &|_| true).is_empty();
                *loaded_bytes += u64::from(segment.length);
                loaded += 1;
                wanted.retain(strike(&directory, |_| {}));
            } else {
                *joined += 1;
                let first = locator.add_packs(&directory);
                wanted.retain(strike(&directory, |entry| _ = locator.add(first, entry)));
            }
            Ok(!wanted.is_empty())
        });
        self.left.truncate(self.left.len() - loaded);
        match done {
            Ok(()) => self.sliced.extend(wanted),
            Err(error) => self.replace(error)?,
        }
        Ok(())
    }

    /// Returns a locator that lists all that the segments do. Of equal objects it has the one that the
    /// manifest lists first.
    ///
    /// # Errors
    /// `Damaged` if a segment is missing or wrong.
    pub fn all(&mut self) -> Result<&Locator> {
        if !self.is_all {
            match self.load_all() {
                Ok(()) => self.is_all = true,
                Err(error) => self.replace(error)?,
            }
        }
        Ok(&self.locator)
    }

    fn load_all(&mut self) -> Result<()> {
        if self.is_unique && !self.left.is_empty() {
            let locator = Arc::make_mut(&mut self.locator);
            let (is_unique, mut loaded) = (&mut self.is_unique, 0);
            let done = each_segment(&self.pool, self.left.iter().rev(), &mut |_, directory| {
                *is_unique &= locator.extend(&directory, &|_| true).is_empty();
                loaded += 1;
                Ok(*is_unique)
            });
            self.left.truncate(self.left.len() - loaded);
            done?;
        }
        if !self.is_unique {
            self.locator = Arc::new(Locator::load(&self.pool, &self.segments)?);
            self.left.clear();
        }
        Ok(())
    }

    /// Reads the directories of all packs after `damage` of a segment.
    fn replace(&mut self, damage: Error) -> Result<()> {
        let is_damage = damage.kind() == ErrorKind::Damaged;
        if !is_damage || self.pool.is_checking() || !(self.is_named)()? {
            return Err(damage);
        }
        self.locator = Arc::new(search(&self.pool, &self.segments, &damage)?);
        self.left.clear();
        (self.is_all, self.instead_of) = (true, Some(damage));
        Ok(())
    }
}

impl Extents for RestoreLocator {
    fn nodes(&mut self, wanted: &mut dyn Iterator<Item = Fingerprint>) -> Result<&Locator> {
        let unknown = wanted.filter(|fp| !self.locator.lists(fp)).collect();
        self.look(unknown, u64::MAX)?;
        Ok(&self.locator)
    }

    fn chunks(&mut self, wanted: &[Fingerprint]) -> Result<&Locator> {
        let is_unknown = |fp: &&Fingerprint| !self.locator.lists(fp) && !self.sliced.contains(*fp);
        let unknown: Vec<Fingerprint> = wanted.iter().filter(is_unknown).copied().collect();
        let whole_bytes = match self.joined >= PASSES * self.left.len() {
            true => u64::MAX,
            false => self.pool.config().tuning.index_bytes_max / WHOLE_PER_INDEX,
        };
        self.look(unknown, whole_bytes)?;
        Ok(&self.locator)
    }
}

impl fmt::Debug for RestoreLocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RestoreLocator { segments, left, instead_of, .. } = self;
        f.debug_struct("RestoreLocator")
            .field("segments", &segments.len())
            .field("left", &left.len())
            .field("instead_of", instead_of)
            .finish_non_exhaustive()
    }
}

fn search(pool: &Pool, segments: &[SegmentRef], damage: &Error) -> Result<Locator> {
    let entries_max = pool.config().tuning.index_bytes_max * SEARCH_PER_INDEX / ENTRY_BYTES;
    let mut locator = Locator::default();
    // Readable segments come first: of two pack extents they list the one that a collector keeps.
    for segment in segments {
        if let Ok(directory) = read_segment(pool, segment) {
            locator.extend(&directory, &|_| true);
        }
    }
    for pack in pool.packs()? {
        match pool.directory_of(pack) {
            Ok((directory, _)) => drop(locator.extend(&directory, &|_| true)),
            Err(error) if error.kind() == ErrorKind::Damaged => {}
            Err(error) => return Err(error),
        }
        if locator.len() as u64 > entries_max {
            return Err(damage.clone().context(
                "the pool is too large to look for what a damaged segment lists while something is \
                 restored, unless index_bytes_max in pool.toml is raised",
            ));
        }
    }
    Ok(locator)
}
