//! Stores the new contents of an edit: threads read, cut and store their sources.

use super::picture::{Changed, Node, Part, Picture};
use super::{Change, EditSource};
use crate::assembly::{ContentBuilder, Metadata};
use crate::content::{ContentReader, PART_BYTES, Range, ReadFailure, parts_of, ranges_of};
use crate::plan::stopped;
use crate::putter::Putter;
use outlive_chunk::on_threads;
use outlive_format::{Content, INLINE_BYTES_MAX, Item, Piece, RECIPE_BYTES_MAX, Recipe};
use outlive_store::FilesImage;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Result};
use rustix::fs::fstat;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{Cursor, Read};
use std::path::Path;
use std::sync::atomic::Ordering;

/// The content of a changed file.
pub enum NewContent {
    /// All of it.
    Inline(Vec<u8>),
    /// Its pieces, all of them stored.
    Pieces {
        /// The pieces.
        pieces: Vec<Piece>,
        /// The recipe of the content before.
        before: Option<Piece>,
    },
}

/// The contents of all changed files, in the order of their paths.
pub struct StoredSources {
    /// The contents.
    pub contents: Vec<NewContent>,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes of zeros among them.
    pub zero_bytes: u64,
}

/// Returns the bytes of all sources, for which reading the pool's index may pay.
pub fn index_bytes(changes: &[Change]) -> u64 {
    let of = |change: &Change| match change {
        Change::Write { from, .. } | Change::Append { from, .. } => from.bytes().unwrap_or(0),
        _ => 0,
    };
    changes.iter().map(of).sum()
}

impl EditSource {
    fn bytes(&self) -> Result<u64> {
        match self {
            EditSource::Bytes(bytes) => Ok(bytes.len() as u64),
            EditSource::File(path) => {
                fs::metadata(path).map(|it| it.len()).map_err(|e| unread(path, &e))
            }
        }
    }

    fn open(&self) -> Result<Box<dyn Read + Send + '_>> {
        Ok(match self {
            EditSource::Bytes(bytes) => Box::new(Cursor::new(bytes)),
            EditSource::File(path) => Box::new(File::open(path).map_err(|e| unread(path, &e))?),
        })
    }
}

fn unread(path: &Path, error: &std::io::Error) -> Error {
    Error::io_named("reading", path, error)
}

/// A changed file.
struct NewFile<'a> {
    /// Pieces of the stored file to which sources are added.
    kept: Vec<Piece>,
    before: Option<Piece>,
    /// Bytes behind these pieces. The last piece is cut again, or small additions would make many.
    first: Vec<u8>,
    sources: Vec<&'a EditSource>,
    /// Bytes of `first` and the sources.
    bytes: u64,
}

/// Work of one thread: a file, or a part of a long one.
enum Work {
    Whole(usize),
    Part { file: usize, part: usize, ranges: Vec<Range> },
}

impl StoredSources {
    /// Stores the contents of all files that `picture` has changed.
    ///
    /// # Errors
    /// Errors of sources and of the pool.
    pub fn store(
        putter: &Putter<'_>,
        picture: &Picture<'_>,
        changes: &[Change],
    ) -> Result<StoredSources> {
        let mut files = Vec::new();
        for node in picture.waiting() {
            files.push(NewFile::new(putter, &node.parts, node.before, changes)?);
        }
        let mut work = VecDeque::new();
        let mut found: Vec<Vec<Option<Vec<Piece>>>> = Vec::new();
        for (number, file) in files.iter().enumerate() {
            if file.is_inline() {
                found.push(Vec::new());
                continue;
            }
            let parts = file.parts()?;
            found.push(vec![None; parts.len().max(1)]);
            match parts.is_empty() {
                true => work.push_back(Work::Whole(number)),
                false => {
                    work.extend(parts.into_iter().enumerate().map(|(part, ranges)| Work::Part {
                        file: number,
                        part,
                        ranges,
                    }))
                }
            }
        }
        let (found, zero_bytes) = store_all(putter, &files, work, found)?;
        let mut contents = Vec::new();
        let mut read_bytes = 0;
        for (file, found) in files.into_iter().zip(found) {
            read_bytes += file.bytes;
            contents.push(file.finish(found)?);
        }
        Ok(StoredSources { contents, read_bytes, zero_bytes })
    }
}

impl StoredSources {
    /// Returns the changed paths with their items, which get their contents.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn finish(
        self,
        picture: Picture<'_>,
        meta: &mut Metadata<'_>,
        putter: &Putter<'_>,
    ) -> Result<Changed> {
        let mut contents = self.contents.into_iter();
        let mut changed = Changed::new();
        for (place, node) in picture.into_changed() {
            let item = match node {
                Some(Node { mut item, parts, .. }) if !parts.is_empty() => {
                    let content = contents.next();
                    let content = content.ok_or_else(|| Error::bug("a content is missing"))?;
                    (item.content, item.bytes) = joined(content, meta, putter)?;
                    Some(item)
                }
                node => node.map(|node| node.item),
            };
            changed.insert(place, item);
        }
        Ok(changed)
    }
}

/// The pieces of each part of each file.
type Found = Vec<Vec<Option<Vec<Piece>>>>;

fn store_all(
    putter: &Putter<'_>,
    files: &[NewFile<'_>],
    work: VecDeque<Work>,
    found: Found,
) -> Result<(Found, u64)> {
    let Putter { pool, into, .. } = putter;
    let chunk_bytes_max = pool.config().format.chunk_bytes_max as usize;
    // One lane is for the listing.
    let lanes = into.lanes_max().saturating_sub(1);
    let threads = pool.config().tuning.threads().min(lanes).min(work.len());
    let queue = Mutex::new(work);
    let outcome = Mutex::new((Ok(()), found, 0));
    let drain = || {
        let mut reader = ContentReader::new(into.lane(), chunk_bytes_max);
        let work = || {
            if putter.stop.load(Ordering::Relaxed) {
                return Err(stopped());
            }
            Ok(queue.lock().pop_front())
        };
        let mut all = || -> Result<()> {
            while let Some(next) = work()? {
                let (file, part, pieces) = read(files, &next, &mut reader)?;
                outcome.lock().1[file][part] = Some(pieces);
            }
            Ok(())
        };
        let ended = all();
        let zero_bytes = reader.zero_bytes;
        let ended = ended.and(reader.finish());
        let mut outcome = outcome.lock();
        outcome.2 += zero_bytes;
        if let Err(error) = ended {
            // The others need not read on.
            queue.lock().clear();
            if outcome.0.is_ok() {
                outcome.0 = Err(error);
            }
        }
    };
    if threads > 0 {
        on_threads(threads, drain);
    }
    let (ended, found, zero_bytes) = outcome.into_inner();
    ended.map(|()| (found, zero_bytes))
}

/// Reads and stores a file, or a part of one: returns the numbers of both, and the pieces.
fn read(
    files: &[NewFile<'_>],
    work: &Work,
    reader: &mut ContentReader<'_>,
) -> Result<(usize, usize, Vec<Piece>)> {
    let mut pieces = Vec::new();
    match work {
        Work::Whole(number) => {
            let file = &files[*number];
            let mut chain: Box<dyn Read + Send + '_> = Box::new(Cursor::new(&file.first));
            for source in &file.sources {
                chain = Box::new(chain.chain(source.open()?));
            }
            reader.stream(&mut *chain, &mut |piece| {
                pieces.push(piece);
                Ok(())
            })?;
            Ok((*number, 0, pieces))
        }
        Work::Part { file, part, ranges } => {
            let [EditSource::File(path)] = &files[*file].sources[..] else {
                return Err(Error::bug("a part of a file that is not one"));
            };
            let opened = File::open(path).map_err(|error| unread(path, &error))?;
            match reader.ranges(&opened, ranges, false, &mut pieces) {
                Ok(()) => Ok((*file, *part, pieces)),
                Err(ReadFailure::Read(error)) => Err(unread(path, &error.into())),
                Err(ReadFailure::Store(error)) => Err(error),
            }
        }
    }
}

impl<'a> NewFile<'a> {
    fn new(
        putter: &Putter<'_>,
        parts: &[Part],
        before: Option<Piece>,
        changes: &'a [Change],
    ) -> Result<NewFile<'a>> {
        let (kept, first, sources) = Default::default();
        let mut file = NewFile { kept, before, first, sources, bytes: 0 };
        for part in parts {
            match part {
                Part::Kept(item) => {
                    let parent = putter.parent.ok_or_else(|| Error::bug("kept of nothing"))?;
                    file.keep(parent, item)?;
                }
                Part::Source(number) => match changes.get(*number) {
                    Some(Change::Write { from, .. } | Change::Append { from, .. }) => {
                        file.bytes += from.bytes()?;
                        file.sources.push(from);
                    }
                    _ => return Err(Error::bug("a change without a source has one")),
                },
            }
        }
        file.bytes += file.first.len() as u64;
        let kept_bytes = file.kept.iter().map(|piece| piece.bytes).sum::<u64>();
        match file.bytes.saturating_add(kept_bytes) > RECIPE_BYTES_MAX {
            true => Err(Error::invalid("a file would be longer than 2^62 bytes")),
            false => Ok(file),
        }
    }

    /// Keeps a stored content except for its last piece.
    fn keep(&mut self, parent: &FilesImage, item: &Item) -> Result<()> {
        if let Content::Inline(bytes) = &item.content {
            self.first.clone_from(bytes);
            return Ok(());
        }
        self.before = recipe_of(item);
        parent.pieces(item, &mut |piece| {
            self.kept.push(piece);
            Ok(())
        })?;
        if let Some(last) = self.kept.pop_if(|last| !last.is_zeros()) {
            self.first = parent.read(&[last])?.pop().unwrap_or_default();
        }
        Ok(())
    }

    fn is_inline(&self) -> bool {
        self.kept.is_empty() && self.bytes <= INLINE_BYTES_MAX as u64
    }

    /// Returns the parts of one long file; none for all others.
    fn parts(&self) -> Result<Vec<Vec<Range>>> {
        let ([EditSource::File(path)], true) =
            (&self.sources[..], self.first.is_empty() && self.bytes > PART_BYTES)
        else {
            return Ok(Vec::new());
        };
        let file = File::open(path).map_err(|error| unread(path, &error))?;
        let ranges = fstat(&file).and_then(|stat| ranges_of(&file, &stat));
        let (ranges, _) = ranges.map_err(|error| unread(path, &error.into()))?;
        Ok(parts_of(&ranges).into_iter().map(|part| ranges[part].to_vec()).collect())
    }

    fn finish(self, found: Vec<Option<Vec<Piece>>>) -> Result<NewContent> {
        let changed = || Error::retry("a source has changed while it was stored: try again");
        if self.is_inline() {
            let mut bytes = self.first;
            for source in self.sources {
                let mut from = source.open()?.take(INLINE_BYTES_MAX as u64 + 1);
                from.read_to_end(&mut bytes).map_err(|_| changed())?;
            }
            return match bytes.len() as u64 == self.bytes {
                true => Ok(NewContent::Inline(bytes)),
                false => Err(changed()),
            };
        }
        let mut pieces = self.kept;
        let before = pieces.len();
        for part in found {
            pieces.extend(part.ok_or_else(|| Error::bug("a part of a file was not read"))?);
        }
        let bytes: u64 = pieces[before..].iter().map(|piece| piece.bytes).sum();
        match bytes == self.bytes {
            true => Ok(NewContent::Pieces { pieces, before: self.before }),
            false => Err(changed()),
        }
    }
}

/// Returns the recipe of a stored file, if it has one.
pub fn recipe_of(item: &Item) -> Option<Piece> {
    match item.content {
        Content::Recipe(fp) => Some(Piece { fp, bytes: item.bytes }),
        _ => None,
    }
}

/// Returns a content as an item has it, and its length.
fn joined(
    content: NewContent,
    meta: &mut Metadata<'_>,
    putter: &Putter<'_>,
) -> Result<(Content, u64)> {
    match content {
        NewContent::Inline(bytes) if bytes.is_empty() => Ok((Content::Empty, 0)),
        NewContent::Inline(bytes) => {
            let length = bytes.len() as u64;
            Ok((Content::Inline(bytes), length))
        }
        NewContent::Pieces { pieces, before } => {
            meta.learn(before, putter);
            let mut emit = |recipe: &Recipe| meta.recipe(recipe);
            let mut builder = ContentBuilder::new(putter.pool.config().format.container_bytes);
            pieces.into_iter().try_for_each(|piece| builder.push(piece, &mut emit))?;
            builder.finish(&mut emit)
        }
    }
}
