//! Gets files back: in container order, as much at a time as a window of memory describes.

use super::checkpoint::FilesCheckpoint;
use super::choice::{Choice, ChosenItems};
use super::place::{Name, Placer};
use super::plan::stopped;
use super::trouble::{Trouble, TroubleKind, Troubles};
use crate::restore::{ReadPlan, Wanted};
use outlive_chunk::parallel;
use outlive_format::{Content, Item, ItemKind, Piece};
use outlive_types::{Epoch, Error, Event, Progress, Result};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Chunks that are read in one plan: about 30 MiB of memory, and two GiB of data.
const WINDOW_PIECES: usize = 128 << 10;
/// Files and links that are made in one go.
const WINDOW_FILES: usize = 16 << 10;
/// Files that are written in parts and kept open.
const OPEN_MAX: usize = 256;
/// What is in the way and named in a plan.
const NAMED_MAX: usize = 1000;
const PROGRESS_BYTES: u64 = 4 << 20;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// How a get goes about it.
#[derive(Clone, Debug, Default)]
pub struct GetOptions {
    /// The directory to get files into; made if it is missing.
    pub to: PathBuf,
    /// What is wanted.
    pub choice: Choice,
    /// Replace files that are there.
    pub overwrite: bool,
    /// Set it to end the get early.
    pub stop: Arc<AtomicBool>,
}

/// What a get will do.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GetPlan {
    /// The epoch.
    pub epoch: Epoch,
    /// Everything with a name.
    pub items: u64,
    /// How many of them are files; further names of one do not count.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The first thousand names that are taken.
    pub in_the_way: Vec<Vec<u8>>,
}

impl fmt::Display for GetPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GetPlan { epoch, items, files, bytes, in_the_way } = self;
        writeln!(f, "get epoch {epoch}: {items} items, {files} files of {bytes} bytes")?;
        for path in in_the_way {
            writeln!(f, "  in the way: {}", String::from_utf8_lossy(path).escape_debug())?;
        }
        Ok(())
    }
}

/// What a get did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GetReport {
    /// The epoch.
    pub epoch: Epoch,
    /// Everything made or found there.
    pub items: u64,
    /// Files made.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes read from the target.
    pub read_bytes: u64,
    /// What could not be done.
    pub troubles: Troubles,
}

impl FilesCheckpoint {
    /// Says what a get would do, and changes nothing.
    ///
    /// # Errors
    /// `Invalid` for paths that are not in the checkpoint; `Damaged` if its listing is.
    pub fn plan_get(&self, options: &GetOptions) -> Result<GetPlan> {
        let mut plan = GetPlan { epoch: self.epoch(), ..GetPlan::default() };
        let there = Placer::new(&options.to, options.overwrite).ok();
        let mut items = ChosenItems::new(self, &options.choice).map_err(|e| self.context(e))?;
        while let Some((item, _)) = items.next().map_err(|e| self.context(e))? {
            plan.items += 1;
            if matches!(item.kind, ItemKind::File | ItemKind::Stream) {
                plan.files += 1;
                plan.bytes = plan.bytes.saturating_add(item.bytes);
            }
            if item.kind != ItemKind::Directory
                && plan.in_the_way.len() < NAMED_MAX
                && there.as_ref().is_some_and(|there| there.exists(&item.path))
            {
                plan.in_the_way.push(item.path);
            }
        }
        Ok(plan)
    }

    /// Gets files. Every byte is verified before it is written. A damaged file is left out and told
    /// in the report; so is what the file system or the user's rights do not allow.
    ///
    /// # Errors
    /// `Invalid` if something is in the way, or the directory cannot be written; `Damaged` if the
    /// listing is; `Full`. Files that were begun and not finished are removed.
    pub fn get(&self, options: &GetOptions) -> Result<GetReport> {
        let to = options.to.as_path();
        let is_new = fs::read_dir(to).map_or(true, |mut there| there.next().is_none());
        if !is_new && !options.overwrite {
            let plan = self.plan_get(options)?;
            if let Some(first) = plan.in_the_way.first() {
                return Err(in_the_way(to, first));
            }
        }
        let items = ChosenItems::new(self, &options.choice).map_err(|e| self.context(e))?;
        fs::create_dir_all(to).map_err(|e| Error::io("making", to, &e))?;
        let placer = Placer::new(to, options.overwrite);
        let placer = placer.map_err(|e| Error::io("opening", to, &e.into()))?;
        let mut getter = Getter {
            checkpoint: self,
            options,
            shared: Shared {
                placer,
                to,
                open: Mutex::default(),
                troubles: Mutex::default(),
                failure: Mutex::default(),
                done_bytes: AtomicU64::new(0),
                total_bytes: self.manifest().images.iter().map(|image| image.state_bytes).sum(),
                checkpoint: self,
            },
            window: Window::default(),
            directories: Vec::new(),
            report: GetReport { epoch: self.epoch(), ..GetReport::default() },
        };
        let outcome = getter.run(items);
        if outcome.is_err() {
            getter.window.abandon(&getter.shared);
        }
        outcome?;
        let Getter { shared, mut report, .. } = getter;
        report.troubles = shared.troubles.into_inner().unwrap_or_else(PoisonError::into_inner);
        report.troubles.sort();
        Ok(report)
    }
}

fn in_the_way(to: &Path, path: &[u8]) -> Error {
    Error::invalid(format!(
        "{}/{} is there already: choose another directory, or replace files with --overwrite",
        to.display(),
        String::from_utf8_lossy(path).escape_debug()
    ))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file being made.
struct Target {
    item: Item,
    /// Bytes that are not written yet.
    left: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    name: Option<Arc<Name>>,
    file: Option<Arc<OwnedFd>>,
    /// It is finished, or given up.
    over: bool,
}

/// What the threads of a get share.
struct Shared<'a> {
    placer: Placer,
    to: &'a Path,
    /// Files that are open, the oldest first.
    open: Mutex<VecDeque<Arc<Target>>>,
    troubles: Mutex<Troubles>,
    /// Why it cannot go on.
    failure: Mutex<Option<Error>>,
    done_bytes: AtomicU64,
    total_bytes: u64,
    checkpoint: &'a FilesCheckpoint,
}

impl Shared<'_> {
    fn trouble(&self, path: &[u8], kind: TroubleKind, why: impl fmt::Display) {
        lock(&self.troubles).add(Trouble::new(path, kind, why));
    }

    fn refusals(&self, path: &[u8], refusals: Vec<String>) {
        for why in refusals {
            self.trouble(path, TroubleKind::Incomplete, why);
        }
    }

    /// What an error at making something means: a trouble with it, or the end.
    fn cannot_make(&self, path: &[u8], error: Errno) -> Result<()> {
        let own = matches!(
            error,
            Errno::NAMETOOLONG
                | Errno::INVAL
                | Errno::ILSEQ
                | Errno::NOTSUP
                | Errno::ISDIR
                | Errno::NOTEMPTY
                | Errno::NOTDIR
                | Errno::LOOP
                | Errno::NOENT
                | Errno::XDEV
                | Errno::MLINK
                | Errno::FBIG
        );
        if own || (error == Errno::EXIST && self.placer.overwrite) {
            let why = format!("it could not be made: {}", std::io::Error::from(error));
            self.trouble(path, TroubleKind::Incomplete, why);
            return Ok(());
        }
        if error == Errno::EXIST {
            return Err(in_the_way(self.to, path));
        }
        let whole = self.to.join(String::from_utf8_lossy(path).escape_debug().to_string());
        Err(Error::io("making", &whole, &error.into()))
    }

    fn file(&self, target: &Arc<Target>, whole: bool) -> rustix::io::Result<Option<Arc<OwnedFd>>> {
        let mut state = lock(&target.state);
        if state.over {
            return Ok(None);
        }
        if let Some(file) = &state.file {
            return Ok(Some(file.clone()));
        }
        let file = match &state.name {
            Some(name) => self.placer.reopen(name)?,
            None => {
                let (name, file) = self.placer.file(&target.item.path)?;
                state.name = Some(Arc::new(name));
                if !whole {
                    rustix::fs::ftruncate(&file, target.item.bytes)?;
                }
                file
            }
        };
        let file = Arc::new(file);
        state.file = Some(file.clone());
        drop(state);
        if !whole {
            self.remember(target);
        }
        Ok(Some(file))
    }

    /// Closes the file that was opened first, if there are too many.
    fn remember(&self, target: &Arc<Target>) {
        let oldest = {
            let mut open = lock(&self.open);
            open.push_back(target.clone());
            if open.len() > OPEN_MAX { open.pop_front() } else { None }
        };
        if let Some(oldest) = oldest {
            lock(&oldest.state).file = None;
        }
    }

    /// Writes verified bytes of a file, and finishes it with the last of them.
    fn write(&self, target: &Arc<Target>, offset: u64, bytes: &[u8]) -> Result<()> {
        let whole = bytes.len() as u64 == target.item.bytes;
        let write = || -> rustix::io::Result<bool> {
            let Some(file) = self.file(target, whole)? else { return Ok(false) };
            write_all(&file, bytes, offset).map(|()| true)
        };
        match write() {
            Ok(true) => self.wrote(target, bytes.len() as u64),
            Ok(false) => Ok(()),
            Err(error) => {
                self.give_up(target);
                self.cannot_make(&target.item.path, error)
            }
        }
    }

    /// So many bytes more are as they must be.
    fn wrote(&self, target: &Arc<Target>, bytes: u64) -> Result<()> {
        let done = self.done_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if (done - bytes) / PROGRESS_BYTES != done / PROGRESS_BYTES {
            let (done_bytes, total_bytes) = (done, self.total_bytes.max(done));
            let progress = Progress { what: "get", done_bytes, total_bytes };
            let env = self.checkpoint.pool().env();
            env.observer.event(Event::Progress(progress));
        }
        if target.left.fetch_sub(bytes, Ordering::AcqRel) == bytes {
            self.finish(target)
        } else {
            Ok(())
        }
    }

    fn finish(&self, target: &Arc<Target>) -> Result<()> {
        let item = &target.item;
        let finish = || -> rustix::io::Result<()> {
            let whole = item.bytes == 0;
            let Some(file) = self.file(target, whole)? else { return Ok(()) };
            let mut state = lock(&target.state);
            let Some(name) = state.name.take() else { return Ok(()) };
            state.over = true;
            state.file = None;
            drop(state);
            let refusals = self.placer.finish_file(&name, &file, item)?;
            self.refusals(&item.path, refusals);
            Ok(())
        };
        finish().or_else(|error| {
            self.give_up(target);
            self.cannot_make(&item.path, error)
        })
    }

    /// Removes what there is of a file.
    fn give_up(&self, target: &Target) {
        let mut state = lock(&target.state);
        state.over = true;
        state.file = None;
        if let Some(name) = state.name.take() {
            self.placer.discard(&name);
        }
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, offset) {
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Work that needs no reading, for any thread.
enum Simple {
    /// A file whose content is in its item, or empty, or all holes.
    File(Arc<Target>, Vec<u8>),
    /// Zeros to be written.
    Zeros(Arc<Target>, u64, u64),
}

/// What is done in one go.
#[derive(Default)]
struct Window {
    wanted: Vec<Wanted>,
    /// For each of `wanted` the file and the offset in it.
    places: Vec<(u32, u64)>,
    targets: Vec<Arc<Target>>,
    simple: Vec<Simple>,
    links: Vec<Item>,
}

impl Window {
    fn is_full(&self) -> bool {
        let files = self.targets.len().max(self.simple.len()).max(self.links.len());
        self.wanted.len() >= WINDOW_PIECES || files >= WINDOW_FILES
    }

    /// Removes files that were begun.
    fn abandon(&self, shared: &Shared<'_>) {
        self.targets.iter().for_each(|target| shared.give_up(target));
        for target in lock(&shared.open).drain(..) {
            shared.give_up(&target);
        }
    }
}

struct Getter<'a> {
    checkpoint: &'a FilesCheckpoint,
    options: &'a GetOptions,
    shared: Shared<'a>,
    window: Window,
    /// Directories that are not finished, each before those in it.
    directories: Vec<Item>,
    report: GetReport,
}

impl Getter<'_> {
    fn run(&mut self, mut items: ChosenItems) -> Result<()> {
        while let Some((item, _)) = items.next().map_err(|e| self.checkpoint.context(e))? {
            if self.options.stop.load(Ordering::Relaxed) {
                return Err(stopped());
            }
            self.report.items += 1;
            self.item(item)?;
        }
        self.flush()?;
        self.finish_directories(|_| true)
    }

    fn item(&mut self, item: Item) -> Result<()> {
        // What is wanted under another name than its first may come before its directory.
        if !self.options.choice.is_all()
            && let Err(error) = self.shared.placer.directories_above(&item.path)
        {
            return self.shared.cannot_make(&item.path, error);
        }
        if self.window.is_full() {
            self.flush()?;
            // Files in a choice may come late to a directory; otherwise it is over when left.
            if self.options.choice.is_all() {
                self.finish_directories(|dir| !is_within(&item.path, &dir.path))?;
            }
        }
        match item.kind {
            ItemKind::Directory => match self.shared.placer.directory(&item.path) {
                Ok(()) => self.directories.push(item),
                Err(error) => self.shared.cannot_make(&item.path, error)?,
            },
            ItemKind::File | ItemKind::Stream => self.file(item)?,
            ItemKind::HardLink => self.window.links.push(item),
            _ => match self.shared.placer.special(&item) {
                Ok(refusals) => self.shared.refusals(&item.path, refusals),
                Err(Errno::PERM) => {
                    let why = "only root can make devices";
                    self.shared.trouble(&item.path, TroubleKind::Incomplete, why);
                }
                Err(error) => self.shared.cannot_make(&item.path, error)?,
            },
        }
        Ok(())
    }

    fn file(&mut self, mut item: Item) -> Result<()> {
        self.report.files += 1;
        self.report.bytes = self.report.bytes.saturating_add(item.bytes);
        let content = std::mem::take(&mut item.content);
        let bare = Item { content: Content::Empty, ..item.clone() };
        let left = AtomicU64::new(item.bytes);
        let target = Arc::new(Target { item: bare, left, state: Mutex::default() });
        item.content = match content {
            Content::Empty => {
                self.window.simple.push(Simple::File(target, Vec::new()));
                return Ok(());
            }
            Content::Inline(bytes) => {
                self.window.simple.push(Simple::File(target, bytes));
                return Ok(());
            }
            pieces => pieces,
        };
        self.window.targets.push(target.clone());
        let checkpoint = self.checkpoint;
        let mut offset = 0;
        let read = checkpoint.pieces(&item, &mut |piece: Piece| {
            let at = offset;
            offset += piece.bytes;
            if !piece.is_zeros() {
                self.window.wanted.push(checkpoint.wanted_of(&piece)?);
                self.window.places.push((self.window.targets.len() as u32 - 1, at));
            } else if item.holes {
                self.shared.wrote(&target, piece.bytes)?;
            } else {
                self.window.simple.push(Simple::Zeros(target.clone(), at, piece.bytes));
            }
            if self.window.wanted.len() >= WINDOW_PIECES {
                self.flush()?;
                self.window.targets.push(target.clone());
            }
            if self.options.stop.load(Ordering::Relaxed) {
                return Err(stopped());
            }
            Ok(())
        });
        match read {
            Err(error) if error.kind() == outlive_types::ErrorKind::Damaged => {
                self.damaged(&target, &error);
                Ok(())
            }
            read => read,
        }
    }

    fn damaged(&self, target: &Target, error: &Error) {
        self.shared.give_up(target);
        self.shared.trouble(&target.item.path, TroubleKind::Damaged, error.message());
    }

    /// Does what has gathered.
    fn flush(&mut self) -> Result<()> {
        let window = &self.window;
        let pool = self.checkpoint.pool();
        let shared = &self.shared;
        let threads = pool.config().tuning.threads();
        let failed = |error: Error| {
            lock(&shared.failure).get_or_insert(error.clone());
            error
        };
        let take = |at: usize, bytes: &[u8]| {
            if let Some(error) = &*lock(&shared.failure) {
                return Err(error.clone());
            }
            if self.options.stop.load(Ordering::Relaxed) {
                return Err(failed(stopped()));
            }
            let (target, offset) = window.places[at];
            shared.write(&window.targets[target as usize], offset, bytes).map_err(failed)
        };
        let plan = ReadPlan::new(pool, &window.wanted);
        let faults = plan.execute(pool, threads, true, &take);
        if let Some(error) = lock(&shared.failure).take() {
            return Err(error);
        }
        for fault in faults {
            let target = &window.targets[window.places[fault.wanted].0 as usize];
            // One fault is enough to give a file up.
            if !lock(&target.state).over {
                self.damaged(target, &fault.error);
            }
        }
        let simple = std::mem::take(&mut self.window.simple);
        let shared = &self.shared;
        for done in parallel(simple, threads, |simple| simple.run(shared)) {
            done?;
        }
        for link in std::mem::take(&mut self.window.links) {
            if let Err(error) = self.shared.placer.hard_link(&link) {
                self.shared.cannot_make(&link.path, error)?;
            }
        }
        self.report.read_bytes += plan.read_bytes;
        self.window = Window::default();
        Ok(())
    }

    /// Finishes directories, those further down first.
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

impl Simple {
    fn run(self, shared: &Shared<'_>) -> Result<()> {
        match self {
            Simple::File(target, bytes) if bytes.is_empty() => shared.finish(&target),
            Simple::File(target, bytes) => shared.write(&target, 0, &bytes),
            Simple::Zeros(target, offset, bytes) => {
                let mut at = 0;
                while at < bytes {
                    let step = (bytes - at).min(ZEROS.len() as u64);
                    shared.write(&target, offset + at, &ZEROS[..step as usize])?;
                    at += step;
                }
                Ok(())
            }
        }
    }
}

/// Whether a path is in a directory, or is it.
fn is_within(path: &[u8], dir: &[u8]) -> bool {
    dir == b"." || path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}
