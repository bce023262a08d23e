//! Puts of a job.

use super::file_error::{FileError, Troubles};
use super::listed::Listed;
use super::patterns::Patterns;
use super::plan::{Planner, PutPlan, stopped};
use super::put::{Source, StoredFiles};
use super::putter::Putter;
use super::scan::{Root, Selection, identity, open_roots};
use outlive_pool::Pool;
use outlive_store::{Basis, Content, FilesImage, Job, SaveNotes, SaveStats};
use outlive_types::{Error, Result};
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first put of a job reads the pool's index if that pays for this number of bytes.
const FIRST_PUT_BYTES: u64 = 1 << 30;
/// The new bytes of later puts are not known before they are read. These puts find most shared
/// chunks in their own segments, and read the index if that pays for this part of all bytes.
const LATER_PUT_PART: u64 = 16;
const LATER_PUT_BYTES_MIN: u64 = 8 << 20;

/// Source of a put.
pub enum PutSource<'a> {
    /// Directories and files. For a single directory, paths are relative to it; each of several
    /// paths keeps its last part.
    Paths(&'a [PathBuf]),
    /// A stream, read to its end.
    Stream {
        /// Its name in the listing.
        name: Vec<u8>,
        /// Source of the bytes.
        from: &'a mut (dyn Read + Send),
    },
}

/// Options of a put.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// Paths to omit, in the syntax of `.gitignore`.
    pub patterns: Patterns,
    /// Ignore `.outliveignore` files.
    pub no_ignore_files: bool,
    /// Stay on the file system of each path.
    pub one_file_system: bool,
    /// Omit longer files below the given paths.
    pub larger_than: Option<u64>,
    /// Omit the contents of directories below the given paths that a `CACHEDIR.TAG` marks as caches.
    pub no_caches: bool,
    /// Limits the put of one directory to paths below it.
    pub listed: Option<Listed>,
    /// Directories to omit with their contents, such as the pool's own; its `pool.toml` may name
    /// it.
    pub leave_out: Vec<PathBuf>,
    /// Read every file, even if it has not changed since the put before.
    pub reread: bool,
    /// Notes of the checkpoint.
    pub notes: SaveNotes,
    /// Set it to end the put early.
    pub stop: Arc<AtomicBool>,
}

/// Result of a put.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PutReport {
    /// Sum of the plan.
    pub plan: PutPlan,
    /// Items in the listing.
    pub items: u64,
    /// Number of files; further names of a file do not count.
    pub files: u64,
    /// Figures; `changed_bytes` are the bytes that were read.
    pub stats: SaveStats,
    /// File errors.
    pub troubles: Troubles,
}

impl PutOptions {
    fn roots(&self, paths: &[PathBuf]) -> Result<Vec<Root>> {
        if let Some(listed) = &self.listed {
            match paths {
                [dir] if dir.is_dir() => listed.check_any(dir)?,
                _ => {
                    return Err(Error::invalid(
                        "a list of files is relative to one directory: name that",
                    ));
                }
            }
        }
        open_roots(paths)
    }

    fn selection(&self, pool: &Pool) -> Selection {
        let left_out = self.leave_out.iter().cloned().chain(pool.packs_elsewhere());
        Selection {
            patterns: self.patterns.clone(),
            no_ignore_files: self.no_ignore_files,
            one_file_system: self.one_file_system,
            larger_than: self.larger_than,
            no_caches: self.no_caches,
            listed: self.listed.clone(),
            leave_out: left_out.filter_map(|path| identity(&path)).collect(),
        }
    }
}

/// Puts of a job.
pub trait PutFiles {
    /// Plans a put of paths. Writes nothing and disturbs no writer.
    ///
    /// # Errors
    /// `Invalid` for missing paths; errors of the log.
    fn plan_put(&self, paths: &[PathBuf], options: &PutOptions) -> Result<(PutPlan, Troubles)>;

    /// Puts files into the pool, as a checkpoint of this job. Waits for a save in progress first,
    /// and returns after the commit. Unreadable files are omitted and reported.
    ///
    /// # Errors
    /// `Invalid` for missing paths or an invalid name; `Fenced`; the unreported failure of an
    /// earlier save; errors of the pool. Nothing was committed then.
    fn put(&self, source: PutSource<'_>, options: &PutOptions) -> Result<PutReport>;
}

impl PutFiles for Job {
    fn plan_put(&self, paths: &[PathBuf], options: &PutOptions) -> Result<(PutPlan, Troubles)> {
        let roots = options.roots(paths)?;
        let selection = options.selection(self.pool());
        let parent = FilesImage::newest(self.pool(), self.name())?;
        let before = parent.as_ref().filter(|_| !options.reread);
        let before = before.map(|parent| (parent.epoch(), parent.items()));
        let mut planner = Planner::new(self.pool(), &roots, &selection, before, &options.stop);
        while planner.next()?.is_some() {}
        let troubles = planner.take_troubles();
        Ok((planner.plan, troubles))
    }

    fn put(&self, source: PutSource<'_>, options: &PutOptions) -> Result<PutReport> {
        let pool = self.pool();
        // Errors in the request are found before anything is written.
        let (roots, selection) = match &source {
            PutSource::Paths(paths) => (options.roots(paths)?, options.selection(pool)),
            PutSource::Stream { name, .. } => {
                check_name(name)?;
                (Vec::new(), Selection::default())
            }
        };
        let (stats, image) =
            self.store_content(&options.notes, Basis::Whole, &index_for, |into, parent| {
                let (reread, stop) = (options.reread, &*options.stop);
                let putter = Putter { pool, into, parent, reread, stop };
                let source = match source {
                    PutSource::Paths(_) => Source::Trees(&roots, &selection),
                    PutSource::Stream { name, from } => Source::Stream(name, from),
                };
                let image = putter.run(source)?;
                if image.items == 0 {
                    let first = image.troubles.kept.first().map(FileError::to_string);
                    return Err(Error::invalid(format!(
                        "there is nothing to put: {}",
                        first.unwrap_or_else(|| "no path is named".to_owned())
                    )));
                }
                if options.stop.load(Ordering::Relaxed) {
                    return Err(stopped());
                }
                let content = Content {
                    listing: image.listing,
                    items: image.items,
                    bytes: image.bytes,
                    read_bytes: image.plan.read_bytes,
                    zero_bytes: image.zero_bytes,
                    node_bytes: image.node_bytes,
                };
                Ok((Some(content), image))
            })?;
        let stats = stats.ok_or_else(|| Error::bug("a put with content was not committed"))?;
        let StoredFiles { plan, troubles, items, files, .. } = image;
        Ok(PutReport { plan, items, files, stats, troubles })
    }
}

/// Returns the number of bytes for which reading the pool's index pays.
fn index_for(parent: Option<&FilesImage>) -> u64 {
    match parent {
        Some(parent) => {
            let bytes = parent.manifest().state_bytes();
            (bytes / LATER_PUT_PART).max(LATER_PUT_BYTES_MIN)
        }
        None => FIRST_PUT_BYTES,
    }
}

/// Checks that a stream's name is one part of a path.
fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0)
    {
        return Err(Error::invalid(format!(
            "\"{}\" cannot be the name of a stream: give one like that of a file",
            name.escape_ascii()
        )));
    }
    Ok(())
}
