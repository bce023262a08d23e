//! Puts as a job offers them.

use super::file_error::{FileError, Troubles};
use super::patterns::Patterns;
use super::plan::{Planner, PutPlan, stopped};
use super::put::{Source, StoredFiles};
use super::putter::Putter;
use super::scan::{Selection, identity, open_roots};
use outlive_pool::Pool;
use outlive_store::{Content, FilesImage, Job, SaveNotes, SaveStats};
use outlive_types::{Error, Result};
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first put of a job reads the pool's index if that is worth it for so many bytes.
const FIRST_PUT_BYTES: u64 = 1 << 30;
/// What is new in later ones is not known before they have read it. They find most of what they share
/// in their own segments, and read the index if that is worth it for this part of all bytes.
const LATER_PUT_PART: u64 = 16;
const LATER_PUT_BYTES_MIN: u64 = 8 << 20;

/// What is put.
pub enum PutSource<'a> {
    /// Directories and files. A single directory lends its place to what is in it; of several paths
    /// each keeps its last part.
    Paths(&'a [PathBuf]),
    /// A stream, read to its end.
    Stream {
        /// Its name in the listing.
        name: Vec<u8>,
        /// Where it comes from.
        from: &'a mut (dyn Read + Send),
    },
}

/// How a put goes about it.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// What is left out, in the syntax of `.gitignore`.
    pub patterns: Patterns,
    /// Take no notice of `.outliveignore` files.
    pub no_ignore_files: bool,
    /// Stay on the file system of each path.
    pub one_file_system: bool,
    /// Directories that are left out with all below them, such as the pool's own; it may be named by
    /// its `pool.toml`.
    pub leave_out: Vec<PathBuf>,
    /// Read every file, also those that have not changed since the put before.
    pub reread: bool,
    /// What is kept with the checkpoint.
    pub notes: SaveNotes,
    /// Set it to end the put early.
    pub stop: Arc<AtomicBool>,
}

/// What a put did.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PutReport {
    /// What was planned.
    pub plan: PutPlan,
    /// Items in the listing.
    pub items: u64,
    /// How many of them are files; further names of one do not count.
    pub files: u64,
    /// Figures; `changed_bytes` were read.
    pub stats: SaveStats,
    /// What could not be done.
    pub troubles: Troubles,
}

impl PutOptions {
    fn selection(&self, pool: &Pool) -> Selection {
        let left_out = self.leave_out.iter().cloned().chain(pool.packs_elsewhere());
        Selection {
            patterns: self.patterns.clone(),
            no_ignore_files: self.no_ignore_files,
            one_file_system: self.one_file_system,
            leave_out: left_out.filter_map(|path| identity(&path)).collect(),
        }
    }
}

/// Puts, as a job offers them.
pub trait PutFiles {
    /// Says what a put of paths would do. Writes nothing and disturbs no writer.
    ///
    /// # Errors
    /// `Invalid` for paths that are not there; what the log reports.
    fn plan_put(&self, paths: &[PathBuf], options: &PutOptions) -> Result<(PutPlan, Troubles)>;

    /// Puts files into the pool, as a checkpoint of this job. Returns when it is committed. A save
    /// under way is waited for first. What cannot be read is left out and told in the report.
    ///
    /// # Errors
    /// `Invalid` for paths that are not there or a name that is none; `Fenced`; the failure of an
    /// earlier save that nobody has been told; what the pool reports. Nothing was committed then.
    fn put(&self, source: PutSource<'_>, options: &PutOptions) -> Result<PutReport>;
}

impl PutFiles for Job {
    fn plan_put(&self, paths: &[PathBuf], options: &PutOptions) -> Result<(PutPlan, Troubles)> {
        let roots = open_roots(paths)?;
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
        // What is wrong with the request is found before anything is written.
        let (roots, selection) = match &source {
            PutSource::Paths(paths) => (open_roots(paths)?, options.selection(pool)),
            PutSource::Stream { name, .. } => {
                check_name(name)?;
                (Vec::new(), Selection::default())
            }
        };
        let (stats, image) = self.store_content(&options.notes, &index_for, |into, parent| {
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
            Ok((content, image))
        })?;
        let StoredFiles { plan, troubles, items, files, .. } = image;
        Ok(PutReport { plan, items, files, stats, troubles })
    }
}

/// For how many bytes the pool's index is worth reading.
fn index_for(parent: Option<&FilesImage>) -> u64 {
    match parent {
        Some(parent) => {
            let bytes = parent.manifest().state_bytes();
            (bytes / LATER_PUT_PART).max(LATER_PUT_BYTES_MIN)
        }
        None => FIRST_PUT_BYTES,
    }
}

/// A stream's name is one part of a path.
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
