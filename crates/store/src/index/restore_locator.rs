//! Pack extents of an image that is restored. Segments are read as they are needed, the newest
//! first: after many saves the older ones list little that the image still has. If a segment is
//! damaged, the directories of all packs replace all of them. Every pack lists its content; merged
//! segments only save reading the directories.

use super::{Fingerprints, Locator, each_segment, newest_first, read_segment};
use outlive_format::{Directory, SegmentRef};
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
/// They are read again at most about this often. Then all are loaded.
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
    fn chunks(&mut self, wanted: Vec<Fingerprint>) -> Result<&Locator>;

    /// Returns a locator that lists all that the segments do.
    ///
    /// # Errors
    /// `Damaged` if a segment is missing or wrong.
    fn all(&mut self) -> Result<&Locator>;
}

impl Extents for &Locator {
    fn nodes(&mut self, _wanted: &mut dyn Iterator<Item = Fingerprint>) -> Result<&Locator> {
        Ok(self)
    }

    fn chunks(&mut self, _wanted: Vec<Fingerprint>) -> Result<&Locator> {
        Ok(self)
    }

    fn all(&mut self) -> Result<&Locator> {
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
    /// Segments that are not loaded as a whole, the newest last.
    left: Vec<SegmentRef>,
    /// The segments that are loaded, up to some bytes.
    loaded: Vec<(SegmentRef, Directory)>,
    loaded_bytes: u64,
    /// Number of segments of which only wanted entries were kept.
    joined: usize,
    /// Chunks that no segment lists as a whole.
    sliced: Fingerprints,
    /// Whether it has all pack extents, in the order of the manifest.
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
            left,
            loaded: Vec::new(),
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

    fn whole_bytes(&self) -> u64 {
        self.pool.config().tuning.index_bytes_max / WHOLE_PER_INDEX
    }

    /// Loads the newest segment that is left. Returns false if there is none.
    fn load_next(&mut self) -> Result<bool> {
        let Some(segment) = self.left.last().copied() else { return Ok(false) };
        match read_segment(&self.pool, &segment) {
            Ok(directory) => {
                Arc::make_mut(&mut self.locator).extend(&directory, &|_| true);
                self.left.pop();
                self.loaded_bytes += u64::from(segment.length);
                if self.loaded_bytes <= self.whole_bytes() {
                    self.loaded.push((segment, directory));
                }
            }
            Err(error) => self.replace(error)?,
        }
        Ok(true)
    }

    /// Adds the wanted chunks of the segments that are left, and reads no more of these than it
    /// has to.
    fn join(&mut self, mut wanted: Vec<Fingerprint>) -> Result<()> {
        wanted.sort_unstable();
        wanted.dedup();
        let locator = Arc::make_mut(&mut self.locator);
        let joined = &mut self.joined;
        each_segment(&self.pool, self.left.iter().rev(), &mut |_, directory| {
            *joined += 1;
            locator.extend_by(&directory, &mut wanted);
            Ok(!wanted.is_empty())
        })?;
        self.sliced.extend(wanted);
        Ok(())
    }

    /// Loads all segments, in the order of the manifest.
    fn load_all(&mut self) -> Result<()> {
        let loaded = std::mem::take(&mut self.loaded);
        let is_loaded = |segment: &&SegmentRef| loaded.iter().any(|(it, _)| it == *segment);
        let mut all = Locator::default();
        let mut before = self.segments.iter();
        // Those that are loaded are added where they stand in the manifest.
        let mut add_loaded = |all: &mut Locator, until: Option<&SegmentRef>| {
            for segment in before.by_ref().take_while(|segment| Some(*segment) != until) {
                let known = loaded.iter().find(|(it, _)| it == segment);
                known.iter().for_each(|(_, directory)| drop(all.extend(directory, &|_| true)));
            }
        };
        let others = self.segments.iter().filter(|segment| !is_loaded(segment));
        each_segment(&self.pool, others, &mut |segment, directory| {
            add_loaded(&mut all, Some(segment));
            all.extend(&directory, &|_| true);
            Ok(true)
        })?;
        add_loaded(&mut all, None);
        self.locator = Arc::new(all);
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
        for fp in wanted {
            while !self.locator.lists(&fp) && self.load_next()? {}
        }
        Ok(&self.locator)
    }

    fn chunks(&mut self, mut wanted: Vec<Fingerprint>) -> Result<&Locator> {
        wanted.retain(|fp| !self.locator.lists(fp) && !self.sliced.contains(fp));
        while !wanted.is_empty() && self.loaded_bytes < self.whole_bytes() && self.load_next()? {
            wanted.retain(|fp| !self.locator.lists(fp));
        }
        if wanted.is_empty() || self.left.is_empty() {
            return Ok(&self.locator);
        }
        if self.joined >= PASSES * self.left.len() {
            return self.all();
        }
        if let Err(error) = self.join(wanted) {
            self.replace(error)?;
        }
        Ok(&self.locator)
    }

    fn all(&mut self) -> Result<&Locator> {
        if !self.is_all {
            match self.load_all() {
                Ok(()) => (self.is_all, self.left) = (true, Vec::new()),
                Err(error) => self.replace(error)?,
            }
        }
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
