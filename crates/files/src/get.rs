//! Gets files back, in container order, for one window of memory at a time.

use super::describe::Refusals;
use super::file_error::{FileErrorKind, Troubles};
use super::in_order::{InOrder, InOrderStats, in_order};
use super::output_files::{Making, Shared, Simple, in_the_way, make_dir};
use super::placer::Placer;
use super::selection::{ChosenItems, Selection};
use super::there::{FurtherNames, Looker};
use outlive_chunk::parallel;
use outlive_format::{Content, Item, ItemKind, Piece};
use outlive_pool::check_outside;
use outlive_store::index::ReadItem;
use outlive_store::read::{ReadPlan, Verified};
use outlive_store::{FilesImage, mark_suspect};
use outlive_types::{Epoch, Error, ErrorKind, Result};
use rustix::io::Errno;
use std::borrow::Cow;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Chunks in one plan: about 30 MiB of memory, and two GiB of data.
const WINDOW_PIECES: usize = 128 << 10;
/// Files, links or directories that are made in one window.
const WINDOW_FILES: usize = 16 << 10;
/// Conflicting names that a plan lists.
const NAMED_MAX: usize = 1000;
/// Items whose destinations are checked in one step.
const AHEAD_ITEMS: usize = 1024;

/// Options of a get.
#[derive(Clone, Debug, Default)]
pub struct GetOptions {
    /// Directory to get files into; created if it is missing.
    pub to: PathBuf,
    /// Items to get.
    pub choice: Selection,
    /// Replace existing files that differ.
    pub overwrite: bool,
    /// Set it to end the get early.
    pub stop: Arc<AtomicBool>,
}

/// Plan of a get.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GetPlan {
    /// Epoch of the checkpoint.
    pub epoch: Epoch,
    /// Number of all items.
    pub items: u64,
    /// Number of files; further names of a file do not count.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// The first thousand names that are taken.
    pub in_the_way: Vec<Vec<u8>>,
}

/// Result of a get.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GetReport {
    /// Epoch of the checkpoint.
    pub epoch: Epoch,
    /// Number of items that were made or existed already.
    pub items: u64,
    /// Number of files that were made or existed already.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Number of files that existed already, with the same content, owner, mode and attributes, and
    /// were not touched.
    pub kept_files: u64,
    /// Bytes of these files.
    pub kept_bytes: u64,
    /// Bytes read from the target.
    pub read_bytes: u64,
    /// File errors.
    pub troubles: Troubles,
}

/// Gets of a checkpoint of files.
pub trait GetFiles {
    /// Plans a get; changes nothing.
    ///
    /// # Errors
    /// `Invalid` for paths that are not in the checkpoint, and for a directory of a pool; `Damaged`
    /// if the listing is.
    fn plan_get(&self, options: &GetOptions) -> Result<GetPlan>;

    /// Gets files. Every byte is verified before it is written. Damaged files are omitted and
    /// reported, as are those that the file system or the user's rights do not permit.
    ///
    /// # Errors
    /// `Invalid` if a name is taken, or the directory cannot be written or belongs to a pool;
    /// `Damaged` if the listing is; `Full`. Unfinished files are removed.
    fn get(&self, options: &GetOptions) -> Result<GetReport>;

    /// Passes all chosen items and their contents to `take`, one after the other. Data that is read
    /// too early is kept in at most `memory_bytes`, or the length of two containers if that is
    /// more.
    ///
    /// # Errors
    /// `Damaged` for the first missing or wrong data: all before it was right. Errors of `take`.
    fn in_order(
        &self,
        choice: &Selection,
        memory_bytes: u64,
        take: &mut dyn FnMut(InOrder<'_>) -> Result<()>,
    ) -> Result<InOrderStats>;
}

impl GetFiles for FilesImage {
    fn plan_get(&self, options: &GetOptions) -> Result<GetPlan> {
        check_outside(&options.to)?;
        let mut plan = GetPlan { epoch: self.epoch(), ..GetPlan::default() };
        let there = Placer::new(&options.to, options.overwrite).ok();
        let mut items = ChosenItems::new(self, &options.choice).map_err(|e| self.context(e))?;
        while let Some((item, _)) = items.next().map_err(|e| self.context(e))? {
            plan.items += 1;
            if matches!(item.kind, ItemKind::File | ItemKind::Stream) {
                plan.files += 1;
                plan.bytes = plan.bytes.saturating_add(item.bytes);
            }
            if plan.in_the_way.len() < NAMED_MAX
                && there.as_ref().is_some_and(|there| there.is_in_the_way(&item.path, item.kind))
            {
                plan.in_the_way.push(item.path);
            }
        }
        Ok(plan)
    }

    fn get(&self, options: &GetOptions) -> Result<GetReport> {
        let to = options.to.as_path();
        check_outside(to)?;
        let is_new = fs::read_dir(to).map_or(true, |mut there| there.next().is_none());
        if !is_new && !options.overwrite {
            let plan = self.plan_get(options)?;
            if let Some(first) = plan.in_the_way.first() {
                return Err(in_the_way(to, first));
            }
        }
        let items = ChosenItems::new(self, &options.choice).map_err(|e| self.context(e))?;
        let mut names = FurtherNames::default();
        if !is_new && options.overwrite {
            let mut items = ChosenItems::new(self, &options.choice).map_err(|e| self.context(e))?;
            while let Some((item, _)) = items.next().map_err(|e| self.context(e))? {
                names.note(&item);
            }
        }
        make_dir(to)?;
        let placer = Placer::new(to, options.overwrite);
        let placer = placer.map_err(|e| Error::io_named("opening", to, &e.into()))?;
        placer.directory(b".").map_err(|e| Error::io_named("opening", to, &e.into()))?;
        // Files below it may still be replaced.
        if !placer.is_writable() && (is_new || !options.overwrite) {
            return Err(Error::io_named("writing to", to, &Errno::ACCESS.into()));
        }
        let mut getter = Getter {
            checkpoint: self,
            options,
            names,
            shared: Shared::new(placer, to, self),
            window: Window::default(),
            directories: Vec::new(),
            in_order: items.is_in_order(),
            report: GetReport { epoch: self.epoch(), ..GetReport::default() },
        };
        let outcome = getter.run(items);
        if outcome.is_err() {
            getter.window.abandon(&getter.shared);
        }
        getter.shared.placer.close_again();
        outcome?;
        let Getter { shared, mut report, .. } = getter;
        report.files = shared.files.into_inner();
        report.bytes = shared.bytes.into_inner();
        report.kept_files = shared.kept_files.into_inner();
        report.kept_bytes = shared.kept_bytes.into_inner();
        let lost = shared.lost.into_inner();
        report.items -= lost.len() as u64;
        report.troubles = shared.troubles.into_inner();
        report.troubles.sort();
        if report.troubles.count(FileErrorKind::Damaged) > 0 {
            // A read-only pool can be read all the same.
            let _ = mark_suspect(self.pool(), self.job(), self.epoch());
        }
        Ok(report)
    }

    fn in_order(
        &self,
        choice: &Selection,
        memory_bytes: u64,
        take: &mut dyn FnMut(InOrder<'_>) -> Result<()>,
    ) -> Result<InOrderStats> {
        in_order(self, choice, memory_bytes, take)
    }
}

/// Work of one window.
#[derive(Default)]
struct Window {
    wanted: Vec<ReadItem>,
    /// For each of `wanted`, the file and the offset in it.
    places: Vec<(u32, u64)>,
    files: Vec<Arc<Making>>,
    simple: Vec<Simple>,
    links: Vec<Item>,
    /// Number of directories that were made.
    directories: usize,
}

impl Window {
    fn is_full(&self) -> bool {
        let Window { wanted, files, simple, links, directories, .. } = self;
        let names = [files.len(), simple.len(), links.len(), *directories];
        wanted.len() >= WINDOW_PIECES || names.into_iter().any(|count| count >= WINDOW_FILES)
    }

    /// Removes unfinished files.
    fn abandon(&self, shared: &Shared<'_>) {
        self.files.iter().for_each(|file| shared.give_up(file));
        for file in shared.open.lock().drain(..) {
            shared.give_up(&file);
        }
    }
}

/// Result of the check of an item's destination.
enum Existing {
    /// The item must be made.
    Free,
    /// The item exists and is right, with the settings that were refused.
    There(Refusals),
    /// The item is a directory that was made or existed; or the error, for it or one above it.
    Entered(rustix::io::Result<()>),
}

struct Getter<'a> {
    checkpoint: &'a FilesImage,
    options: &'a GetOptions,
    names: FurtherNames,
    shared: Shared<'a>,
    window: Window,
    /// Unfinished directories, each before those in it.
    directories: Vec<Item>,
    /// True if items come in the order of the listing, so that a directory is complete when it is
    /// left.
    in_order: bool,
    report: GetReport,
}

impl Getter<'_> {
    fn run(&mut self, mut items: ChosenItems) -> Result<()> {
        loop {
            let ahead = self.look_ahead(&mut items)?;
            if ahead.is_empty() {
                break;
            }
            for (item, place) in ahead {
                if self.options.stop.load(Ordering::Relaxed) {
                    return Err(stopped());
                }
                self.report.items += 1;
                self.item(item, place)?;
            }
        }
        self.flush()?;
        self.finish_directories(|_| true)
    }

    /// Returns the next items. Makes their directories, and checks which of the others exist and
    /// are right.
    fn look_ahead(&self, items: &mut ChosenItems) -> Result<Vec<(Item, Existing)>> {
        let placer = &self.shared.placer;
        let mut ahead = Vec::new();
        while ahead.len() < AHEAD_ITEMS
            && let Some((item, _)) = items.next().map_err(|e| self.checkpoint.context(e))?
        {
            // A file that is wanted only under a further name may come before its directory.
            let above = match self.in_order {
                true => Ok(()),
                false => placer.directories_above(&item.path),
            };
            let place = match item.kind {
                ItemKind::Directory => {
                    Existing::Entered(above.and_then(|()| placer.directory(&item.path)))
                }
                _ if above.is_err() => Existing::Entered(above),
                _ => Existing::Free,
            };
            ahead.push((item, place));
        }
        if !placer.overwrite {
            return Ok(ahead);
        }
        let (checkpoint, names) = (self.checkpoint, &self.names);
        let looker = Looker { root: &placer.root, checkpoint, names, is_root: placer.is_root };
        let threads = checkpoint.pool().config().tuning.threads();
        let look = |(item, place): (Item, Existing)| {
            if !matches!(place, Existing::Free) || self.options.stop.load(Ordering::Relaxed) {
                return (item, place);
            }
            let there = match item.kind {
                ItemKind::File | ItemKind::Stream => looker.file(&item),
                ItemKind::HardLink | ItemKind::Directory => None,
                _ => looker.special(&item),
            };
            (item, there.map_or(Existing::Free, Existing::There))
        };
        Ok(parallel(ahead, threads, look))
    }

    fn item(&mut self, item: Item, place: Existing) -> Result<()> {
        if self.window.is_full() {
            self.flush()?;
            if self.in_order {
                self.finish_directories(|dir| !is_within(&item.path, &dir.path))?;
            }
        }
        let is_device = matches!(item.kind, ItemKind::CharDevice | ItemKind::BlockDevice);
        match (item.kind, place) {
            (ItemKind::Directory, Existing::Entered(Ok(()))) => {
                self.directories.push(item);
                self.window.directories += 1;
            }
            (_, Existing::Entered(Err(error))) => self.shared.cannot_make(&item.path, error)?,
            (ItemKind::File | ItemKind::Stream, Existing::There(refusals)) => {
                self.shared.kept(&item, refusals);
            }
            (ItemKind::File | ItemKind::Stream, _) => self.file(item)?,
            (ItemKind::HardLink, _) => self.window.links.push(item),
            (_, Existing::There(refusals)) => self.shared.refusals(&item.path, refusals),
            _ => match self.shared.placer.special(&item) {
                Ok(refusals) => self.shared.refusals(&item.path, refusals),
                Err(Errno::PERM) if is_device => {
                    let why = "only root can make devices";
                    self.shared.lose(&item.path, FileErrorKind::Incomplete, why);
                }
                Err(error) => self.shared.cannot_make(&item.path, error)?,
            },
        }
        Ok(())
    }

    fn file(&mut self, mut item: Item) -> Result<()> {
        let content = std::mem::take(&mut item.content);
        let file = Arc::new(Making::new(item.clone()));
        let inline = match content {
            Content::Empty => Some(Vec::new()),
            Content::Inline(bytes) => Some(bytes),
            pieces => {
                item.content = pieces;
                None
            }
        };
        if let Some(bytes) = inline {
            self.window.simple.push(Simple::File(file, bytes));
            return Ok(());
        }
        self.window.files.push(file.clone());
        let checkpoint = self.checkpoint;
        let mut offset = 0;
        // Damage concerns only this file; an error that ends the get may look the same.
        let mut ended = false;
        let read = checkpoint.pieces(&item, &mut |piece: Piece| {
            let wanted = if piece.is_zeros() { None } else { Some(checkpoint.wanted_of(&piece)?) };
            let added = self.piece(&file, offset, piece, wanted);
            ended = added.is_err();
            offset += piece.bytes;
            added
        });
        match read {
            Err(error) if error.kind() == ErrorKind::Damaged && !ended => {
                self.damaged(&file, &error);
                Ok(())
            }
            read => read,
        }
    }

    fn piece(
        &mut self,
        file: &Arc<Making>,
        offset: u64,
        piece: Piece,
        wanted: Option<ReadItem>,
    ) -> Result<()> {
        match wanted {
            Some(wanted) => {
                self.window.wanted.push(wanted);
                self.window.places.push((self.window.files.len() as u32 - 1, offset));
            }
            None if file.item.holes => self.shared.wrote(file, piece.bytes)?,
            None => self.window.simple.push(Simple::Zeros(file.clone(), offset, piece.bytes)),
        }
        if self.window.wanted.len() >= WINDOW_PIECES {
            self.flush()?;
            self.window.files.push(file.clone());
        }
        match self.options.stop.load(Ordering::Relaxed) {
            true => Err(stopped()),
            false => Ok(()),
        }
    }

    fn damaged(&self, file: &Making, error: &Error) {
        self.shared.give_up(file);
        self.shared.lose(&file.item.path, FileErrorKind::Damaged, error.message());
    }

    /// Does the work of the window.
    fn flush(&mut self) -> Result<()> {
        self.report.read_bytes += self.read()?;
        let threads = self.checkpoint.pool().config().tuning.threads();
        let simple = std::mem::take(&mut self.window.simple);
        let shared = &self.shared;
        for done in parallel(simple, threads, |simple| simple.run(shared)) {
            done?;
        }
        for link in std::mem::take(&mut self.window.links) {
            let lost = self.shared.lost.lock().get(&link.target).copied();
            if let Some(kind) = lost {
                // A file that an earlier get left under that name is a different one.
                let why = "it is a further name of a file that was left out";
                self.shared.lose(&link.path, kind, why);
            } else if let Err(error) = self.shared.placer.hard_link(&link) {
                self.shared.cannot_make(&link.path, error)?;
            }
        }
        self.window = Window::default();
        Ok(())
    }

    /// Reads the wanted chunks of the window, and writes them to their files. If a gc has moved
    /// chunks meanwhile, reads them at their new location. Returns the number of bytes read.
    fn read(&self) -> Result<u64> {
        let Getter { checkpoint, shared, window, .. } = self;
        let pool = checkpoint.pool();
        let threads = pool.config().tuning.threads();
        let failed = |error: Error| {
            shared.failure.lock().get_or_insert(error.clone());
            error
        };
        let write = |number: usize, bytes: &[u8]| {
            if let Some(error) = &*shared.failure.lock() {
                return Err(error.clone());
            }
            if self.options.stop.load(Ordering::Relaxed) {
                return Err(failed(stopped()));
            }
            let (file, offset) = window.places[number];
            shared.write(&window.files[file as usize], offset, bytes).map_err(failed)
        };
        let mut read_bytes = 0;
        // The wanted chunks, and their numbers in the window if these are not all.
        let mut wanted = Cow::Borrowed(&window.wanted);
        let mut numbers: Option<Vec<usize>> = None;
        loop {
            let number_of = |at: usize| numbers.as_ref().map_or(at, |numbers| numbers[at]);
            let plan = ReadPlan::new(pool, &wanted);
            read_bytes += plan.read_bytes;
            let take = |at: usize, chunk: Verified<'_>| write(number_of(at), chunk.whole()?);
            let faults = plan.execute_in_turns(pool, threads, true, &take);
            if let Some(error) = shared.failure.lock().take() {
                return Err(error);
            }
            let (mut again, mut again_numbers) = (Vec::new(), Vec::new());
            for fault in faults {
                let number = number_of(fault.wanted);
                let file = &window.files[window.places[number].0 as usize];
                // A target that does not respond has lost nothing.
                if fault.error.kind() != ErrorKind::Damaged {
                    return Err(fault.error);
                }
                // One fault is enough to abort a file.
                if file.is_over() {
                    continue;
                }
                match checkpoint.moved(&wanted[fault.wanted])? {
                    Some(moved) => {
                        again.push(moved);
                        again_numbers.push(number);
                    }
                    None => self.damaged(file, &fault.error),
                }
            }
            if again.is_empty() {
                return Ok(read_bytes);
            }
            (wanted, numbers) = (Cow::Owned(again), Some(again_numbers));
        }
    }

    /// Finishes directories, the innermost first.
    fn finish_directories(&mut self, is_over: impl Fn(&Item) -> bool) -> Result<()> {
        let (over, rest) = self.directories.drain(..).partition(|dir| is_over(dir));
        self.directories = rest;
        let over: Vec<Item> = over;
        for item in over.iter().rev() {
            match self.shared.placer.finish_directory(item) {
                Ok(refusals) => self.shared.refusals(&item.path, refusals),
                Err(error) => self.shared.cannot_make(&item.path, error)?,
            }
        }
        Ok(())
    }
}

/// Returns the error of a get that was stopped.
fn stopped() -> Error {
    Error::retry("stopped on request; what was finished stays")
}

/// Returns whether a path is in a directory, or is the directory.
fn is_within(path: &[u8], dir: &[u8]) -> bool {
    dir == b"." || path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}
