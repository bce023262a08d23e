//! Edits: change some paths of a job's newest tree of files, and keep the rest by reference.
//!
//! `changes` applies the changes to a picture of the tree (`picture`), `sources` stores new
//! contents, `splice` writes the parts of the listing that differ, and this commits.

mod changes;
mod picture;
mod sources;
mod splice;

use super::assembly::Metadata;
use super::plan::stopped;
use super::putter::Putter;
use super::tree::FileTree;
use outlive_format::FileTime;
use outlive_store::{Basis, Content, ContentStore, FilesImage, Job, SaveNotes, SaveStats};
use outlive_types::{Epoch, Error, Result};
use picture::Picture;
use rustix::process::{getegid, geteuid};
use sources::StoredSources;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The new bytes of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EditSource {
    /// These bytes.
    Bytes(Vec<u8>),
    /// The bytes of a file that does not change meanwhile.
    File(PathBuf),
}

/// A change of a tree. Paths are relative, as a listing has them; `.` is the tree itself.
/// Directories above a new path are made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Writes a file, and replaces one of that name.
    Write {
        /// Its path.
        path: Vec<u8>,
        /// Its content.
        from: EditSource,
        /// Refuse to replace anything.
        exclusive: bool,
    },
    /// Adds bytes at the end of a file, which is made if it is missing.
    Append {
        /// Its path.
        path: Vec<u8>,
        /// The bytes to add.
        from: EditSource,
    },
    /// Makes a directory.
    MakeDirectory {
        /// Its path.
        path: Vec<u8>,
        /// Accept a directory that exists.
        exist_ok: bool,
    },
    /// Removes a file, a link or a directory.
    Remove {
        /// Its path.
        path: Vec<u8>,
        /// Remove what is in a directory, too.
        recursive: bool,
    },
    /// Renames a file, or a directory with all that is in it. A file replaces a file.
    Rename {
        /// The old path.
        from: Vec<u8>,
        /// The new path.
        to: Vec<u8>,
    },
    /// Makes another file with the content of one, which is not read.
    Copy {
        /// Path of the file.
        from: Vec<u8>,
        /// Path of the copy, which replaces a file.
        to: Vec<u8>,
    },
}

/// Reason for which a tree does not permit a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusedBy {
    /// Nothing has that path.
    Missing,
    /// Something has that path already.
    Exists,
    /// It is a directory.
    IsDirectory,
    /// It, or something above it, is no directory.
    NotDirectory,
    /// The directory is not empty.
    NotEmpty,
    /// No item can have that path, or it cannot be moved into itself.
    Impossible,
}

/// A change that the tree does not permit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Its reason.
    pub by: RefusedBy,
    /// The path in the way.
    pub path: Vec<u8>,
}

/// Failure of a change: an answer to the caller, or an error.
#[derive(Debug)]
pub enum Failure {
    /// The tree does not permit it.
    Refused(Refusal),
    /// The listing could not be read.
    Failed(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Failed(error)
    }
}

/// Options of an edit.
#[derive(Clone, Debug, Default)]
pub struct EditOptions {
    /// Notes of the checkpoint.
    pub notes: SaveNotes,
    /// Set it to end the edit early.
    pub stop: Arc<AtomicBool>,
}

/// Result of an edit.
#[derive(Clone, PartialEq, Debug)]
pub enum Edited {
    /// The checkpoint with all changes is committed.
    Committed(Box<SaveStats>),
    /// The tree of this epoch is as the changes want it (0: there is none). Nothing was committed.
    Unchanged(Epoch),
    /// The tree does not permit one of the changes. Nothing was committed.
    Refused(Refusal),
}

/// Edits of a job.
pub trait EditFiles {
    /// Makes all changes, one after the other, in the newest tree of files, and commits the result
    /// as one checkpoint. The cost follows the changes, not the tree. Waits for a save in progress
    /// first, and returns after the commit.
    ///
    /// # Errors
    /// `Fenced` if another process edits: try the same edit again. `Damaged` if the newest tree of
    /// files cannot be read: the edit would lose the rest of it. Errors of sources and of the pool.
    /// Nothing was committed then.
    fn edit(&self, changes: &[Change], options: &EditOptions) -> Result<Edited>;
}

impl EditFiles for Job {
    fn edit(&self, changes: &[Change], options: &EditOptions) -> Result<Edited> {
        let (stats, told) = self.store_content(
            &options.notes,
            Basis::Newest,
            &|_| sources::index_bytes(changes),
            |into, parent| edit(into, parent, changes, options),
        )?;
        match (stats, told) {
            (Some(stats), _) => Ok(Edited::Committed(Box::new(stats))),
            (None, Some(told)) => Ok(told),
            (None, None) => Err(Error::bug("an edit ended without a result")),
        }
    }
}

/// Stores what the changes need; returns no content if nothing is to be committed.
fn edit(
    into: &ContentStore<'_>,
    parent: Option<&FilesImage>,
    changes: &[Change],
    options: &EditOptions,
) -> Result<(Option<Content>, Option<Edited>)> {
    let pool = into.pool();
    let tree = parent.map(|parent| FileTree::new(parent.clone()));
    let mut picture = Picture::new(tree.as_ref(), now(pool.env().clock.unix_ns()), owner())?;
    match picture.apply(changes) {
        Ok(()) => {}
        Err(Failure::Refused(refusal)) => return Ok((None, Some(Edited::Refused(refusal)))),
        Err(Failure::Failed(error)) => return Err(error),
    }
    if picture.is_unchanged() {
        let epoch = parent.map_or(0, FilesImage::epoch);
        return Ok((None, Some(Edited::Unchanged(epoch))));
    }
    let putter = Putter { pool, into, parent, reread: false, stop: &options.stop };
    let stored = StoredSources::store(&putter, &picture, changes)?;
    let mut meta = Metadata::new(&putter);
    let read_bytes = stored.read_bytes;
    let zero_bytes = stored.zero_bytes;
    let changed = stored.finish(picture, &mut meta, &putter)?;
    let spliced = splice::splice(&putter, tree.as_ref(), &changed, &mut meta)?;
    let node_bytes = meta.finish()?;
    into.join_lanes()?;
    if options.stop.load(Ordering::Relaxed) {
        return Err(stopped());
    }
    let splice::Spliced { listing, items, bytes } = spliced;
    let content = Content { listing, items, bytes, read_bytes, zero_bytes, node_bytes };
    Ok((Some(content), None))
}

fn now(unix_ns: u64) -> FileTime {
    let s = (unix_ns / 1_000_000_000).cast_signed();
    FileTime { s, ns: (unix_ns % 1_000_000_000) as u32 }
}

fn owner() -> (u32, u32) {
    (geteuid().as_raw(), getegid().as_raw())
}
