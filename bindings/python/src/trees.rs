//! Trees of files for `outlive.fsspec`: look-ups and reads of one checkpoint, and edits of a job.

use crate::errors::{OrRaise, invalid};
use crate::named::named;
use crate::process::Opener;
use crate::shared::Core;
use crate::wait::in_a_thread;
use outlive_files::{
    Change, EditFiles, EditOptions, EditSource, Edited, FileTree, Refusal, RefusedBy,
};
use outlive_format::{Content, Item, ItemKind, fingerprint};
use outlive_store::{FilesImage, Job, JobOptions, SaveNotes, Select};
use outlive_types::{EpochName, Error, JobName, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

/// The tree of files of one checkpoint.
#[pyclass(frozen, module = "outlive._core")]
pub struct FilesTree {
    tree: Arc<FileTree>,
    opener: Opener,
}

/// A file of a checkpoint, opened for reading.
#[pyclass(frozen, module = "outlive._core")]
pub struct StoredFile {
    tree: Arc<FileTree>,
    item: Item,
    opener: Opener,
}

/// Opens the newest tree of files of a job, or that of a checkpoint; `None` if there is none.
///
/// # Errors
/// `Invalid` for an epoch that does not exist or holds no files; `Damaged` if it, or the newest, is.
pub fn open(
    pool: &outlive_pool::Pool,
    job: &str,
    epoch: Option<&str>,
) -> Result<Option<FilesTree>> {
    let found = match epoch {
        None => FilesImage::newest_or_damaged(pool, &JobName::stored(job)?)?,
        Some(epoch) => {
            let refused = |why| Error::invalid(format!("there is no epoch {epoch:?}: {why}"));
            let name: EpochName = epoch.parse().map_err(refused)?;
            let job = Job::open(pool, job, JobOptions::default())?;
            let number = job.epoch_named(name)?;
            job.files(Select::Epoch(number))?.map(|(image, _)| image)
        }
    };
    let opener = Opener::this();
    Ok(found.map(|image| FilesTree { tree: Arc::new(FileTree::new(image)), opener }))
}

/// Returns the names of the jobs whose newest tree of files has something in it.
///
/// # Errors
/// Errors of the log.
pub fn jobs(pool: &outlive_pool::Pool) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for job in pool.jobs()? {
        // A damaged tree is there, too; its reader gets the error.
        let has_files = FilesImage::newest_or_damaged(pool, &job)
            .map_or(true, |found| found.is_some_and(|image| image.listed_items() > 0));
        if has_files {
            names.push(job.as_str().to_owned());
        }
    }
    Ok(names)
}

impl FilesTree {
    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        self.opener.check(py, || format!("the tree of {}", self.tree.image().job()))
    }
}

/// Returns the item that has the content of an item: for a further name of a file, that file.
fn resolved(tree: &FileTree, item: Item) -> Result<Item> {
    if item.kind != ItemKind::HardLink {
        return Ok(item);
    }
    let file = tree.item(&item.target)?.filter(|file| file.kind == ItemKind::File);
    let file = file.ok_or_else(|| {
        let error = Error::damaged("a further name in the listing has no file before it");
        tree.image().context(error)
    })?;
    Ok(Item { path: item.path, ..file })
}

#[pymethods]
impl FilesTree {
    /// The number of the checkpoint.
    #[getter]
    fn epoch(&self) -> u64 {
        self.tree.image().epoch()
    }

    /// The number of items in the tree.
    #[getter]
    fn items(&self) -> u64 {
        self.tree.image().listed_items()
    }

    /// Whether the job's log is as it was when this was opened.
    fn is_newest(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_process(py)?;
        py.detach(|| self.tree.image().is_newest()).or_raise(py)
    }

    /// Returns the item with a path; `None` if there is none.
    fn item<'py>(&self, py: Python<'py>, path: Vec<u8>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.check_process(py)?;
        let tree = &self.tree;
        let found = py.detach(|| match tree.item(&path)? {
            Some(item) => resolved(tree, item).map(Some),
            None => Ok(None),
        });
        found.or_raise(py)?.map(|item| dict_of(py, &item)).transpose()
    }

    /// Returns the items directly in a directory.
    fn children<'py>(&self, py: Python<'py>, path: Vec<u8>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.check_process(py)?;
        let tree = &self.tree;
        let found = py.detach(|| -> Result<Vec<Item>> {
            tree.children(&path)?.into_iter().map(|item| resolved(tree, item)).collect()
        });
        found.or_raise(py)?.iter().map(|item| dict_of(py, item)).collect()
    }

    /// Opens a file; `None` if there is none with this path.
    fn open(&self, py: Python<'_>, path: Vec<u8>) -> PyResult<Option<StoredFile>> {
        self.check_process(py)?;
        let tree = &self.tree;
        let found = py.detach(|| match tree.item(&path)? {
            Some(item) => resolved(tree, item).map(Some),
            None => Ok(None),
        });
        let is_file = |item: &Item| matches!(item.kind, ItemKind::File | ItemKind::Stream);
        let found = found.or_raise(py)?.filter(is_file);
        Ok(found.map(|item| StoredFile { tree: self.tree.clone(), item, opener: self.opener }))
    }
}

#[pymethods]
impl StoredFile {
    /// Its length in bytes.
    #[getter]
    fn bytes(&self) -> u64 {
        self.item.bytes
    }

    /// Returns the bytes from `offset` to `end`, verified.
    fn read<'py>(&self, py: Python<'py>, offset: u64, end: u64) -> PyResult<Bound<'py, PyBytes>> {
        self.opener.check(py, || format!("the tree of {}", self.tree.image().job()))?;
        let length = end.saturating_sub(offset);
        let length = usize::try_from(length).map_err(|_| invalid(py, "too long".to_owned()))?;
        PyBytes::new_with(py, length, |into| {
            let read = py.detach(|| self.tree.image().read_range(&self.item, offset, into));
            read.or_raise(py)
        })
    }
}

fn dict_of<'py>(py: Python<'py>, item: &Item) -> PyResult<Bound<'py, PyDict>> {
    let kind = match item.kind {
        ItemKind::File | ItemKind::Stream | ItemKind::HardLink => "file",
        ItemKind::Directory => "directory",
        ItemKind::Symlink => "link",
        _ => "other",
    };
    let is_device = matches!(item.kind, ItemKind::CharDevice | ItemKind::BlockDevice);
    Ok(named!(py;
        ..item { mode, uid, gid },
        path: OsStr::from_bytes(&item.path),
        kind: kind,
        bytes: if is_device { 0 } else { item.bytes },
        mtime_ns: i128::from(item.mtime.s) * 1_000_000_000 + i128::from(item.mtime.ns),
        target: OsStr::from_bytes(&item.target),
        content: content_name(item),
    ))
}

/// Returns a name of a file's content, the same as long as the file is not written.
fn content_name(item: &Item) -> String {
    let name = match &item.content {
        Content::Empty => return String::new(),
        Content::Recipe(fp) => *fp,
        Content::Inline(bytes) => fingerprint(bytes),
        Content::Pieces(pieces) => {
            let names: Vec<u8> = pieces
                .iter()
                .flat_map(|piece| piece.fp.0.into_iter().chain(piece.bytes.to_le_bytes()))
                .collect();
            fingerprint(&names)
        }
    };
    name.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A change, as Python gives it: operation, path, its argument, and its flag.
type Asked<'py> = (String, Vec<u8>, Bound<'py, PyAny>, bool);

/// Edits the newest tree of files; see [`EditFiles::edit`].
///
/// # Errors
/// As there.
pub fn edit<'py>(
    core: &Arc<Core>,
    asked: Vec<Asked<'py>>,
    notes: SaveNotes,
    tick: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = tick.py();
    core.check_process(py)?;
    let changes = asked.into_iter().map(change).collect::<PyResult<Vec<Change>>>()?;
    let options = EditOptions { notes, ..EditOptions::default() };
    let stop = options.stop.clone();
    let inside = core.enter(tick)?;
    core.settle_last(tick)?;
    let job = core.clone();
    let edited =
        in_a_thread(&core.notices, tick, &stop, move || job.job().edit(&changes, &options))?;
    drop(inside);
    Ok(match edited {
        Edited::Committed(stats) => named!(py;
            ..stats { epoch, state_bytes, changed_bytes, new_bytes },
            outcome: "committed",
        ),
        Edited::Unchanged(epoch) => named!(py; outcome: "unchanged", epoch: epoch),
        Edited::Refused(Refusal { by, path }) => named!(py;
            outcome: "refused",
            by: reason(by),
            path: OsStr::from_bytes(&path),
        ),
    })
}

fn change((operation, path, argument, flag): Asked<'_>) -> PyResult<Change> {
    let source = || {
        Ok::<_, PyErr>(match argument.cast::<PyBytes>() {
            Ok(bytes) => EditSource::Bytes(bytes.as_bytes().to_vec()),
            Err(_) => EditSource::File(argument.extract::<PathBuf>()?),
        })
    };
    let other = || argument.extract::<Vec<u8>>();
    Ok(match operation.as_str() {
        "write" => Change::Write { path, from: source()?, exclusive: flag },
        "append" => Change::Append { path, from: source()? },
        "make" => Change::MakeDirectory { path, exist_ok: flag },
        "remove" => Change::Remove { path, recursive: flag },
        "rename" => Change::Rename { from: path, to: other()? },
        "copy" => Change::Copy { from: path, to: other()? },
        _ => return Err(invalid(argument.py(), format!("there is no change {operation:?}"))),
    })
}

/// Returns the name of the error of the system for a refusal.
fn reason(by: RefusedBy) -> &'static str {
    match by {
        RefusedBy::Missing => "ENOENT",
        RefusedBy::Exists => "EEXIST",
        RefusedBy::IsDirectory => "EISDIR",
        RefusedBy::NotDirectory => "ENOTDIR",
        RefusedBy::NotEmpty => "ENOTEMPTY",
        RefusedBy::Impossible => "EINVAL",
    }
}
