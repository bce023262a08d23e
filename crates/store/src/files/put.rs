//! Carries a put out: one thread plans, some read and store, this one puts the listing together in
//! its order, then commits.

use super::checkpoint::FilesCheckpoint;
use super::content::{ContentReader, Fault, Range, changed, is_unsettled, parts_of, ranges_of};
use super::listing::ListingWriter;
use super::plan::{Planner, PutPlan, Step, Work, stopped};
use super::recipe::{RecipeBuilder, recipes_below};
use super::scan::{Root, Selection, described, no_attributes};
use super::trouble::{Trouble, TroubleKind, Troubles};
use super::work::{Gate, Large, Message, Queue, Task};
use crate::index::{Fingerprints, Known};
use crate::save::{ChunkSink, Lane, Packer};
use outlive_chunk::fingerprint;
use outlive_format::{
    Content, INLINE_BYTES_MAX, ITEM_PIECES_MAX, Item, ItemKind, Piece, Recipe, TreeRef,
};
use outlive_pool::Pool;
use outlive_types::{Error, ErrorKind, Event, Fingerprint, Progress, Result};
use rustix::fs::{FileType, OFlags, Stat, fstat};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Steps between the planner and the listing: bounds the memory for them to a few MiB.
const STEPS_IN_FLIGHT: usize = 8192;
/// A file that changes while it is read is read so often in all.
const ATTEMPTS: u8 = 3;
/// Progress is told in steps of this many bytes.
const PROGRESS_BYTES: u64 = 4 << 20;

/// What is put.
pub enum Source<'a> {
    /// Directories and files.
    Trees(&'a [Root], &'a Selection),
    /// A stream, listed under this name.
    Stream(Vec<u8>, &'a mut (dyn Read + Send)),
}

/// What was stored, before the commit.
pub struct Image {
    /// The listing.
    pub listing: TreeRef,
    /// Its items.
    pub items: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// What was planned, summed up.
    pub plan: PutPlan,
    /// What could not be done.
    pub troubles: Troubles,
    /// Bytes of new recipes.
    pub node_bytes: u64,
    /// Bytes of zeros and holes.
    pub zero_bytes: u64,
}

/// The surroundings of a put.
pub struct Putter<'a> {
    /// The pool.
    pub pool: &'a Pool,
    /// Takes what is new.
    pub packer: &'a Packer<'a>,
    /// Knows what is.
    pub sink: &'a ChunkSink<'a>,
    /// What the put before has left.
    pub parent: Option<&'a FilesCheckpoint>,
    /// Read every file, whatever the put before knows of it.
    pub reread: bool,
    /// Set by whoever wants it to end.
    pub stop: &'a AtomicBool,
}

impl<'a> Putter<'a> {
    /// Stores everything.
    ///
    /// # Errors
    /// What the pool reports; `Retry` if it was stopped.
    pub fn run(&self, source: Source<'_>) -> Result<Image> {
        let chunk_bytes_max = self.pool.config().format.chunk_bytes_max as usize;
        let meta = RefCell::new(Metadata {
            sink: self.sink,
            lane: self.packer.lane(),
            recipes: Fingerprints::default(),
            node_bytes: 0,
        });
        if let Some(parent) = self.parent {
            meta.borrow_mut().recipes.extend(&parent.listing.recipes);
        }
        let mut assembly = Assembly {
            putter: self,
            meta: &meta,
            listing: ListingWriter::new(chunk_bytes_max),
            slots: VecDeque::new(),
            first: 0,
            dropped: HashSet::new(),
            troubles: Troubles::default(),
            bytes: 0,
        };
        let zero_bytes = AtomicU64::new(0);
        let plan = match source {
            Source::Trees(roots, selection) => {
                self.trees(roots, selection, &mut assembly, &zero_bytes)?
            }
            Source::Stream(name, from) => self.stream(name, from, &mut assembly, &zero_bytes)?,
        };
        let Assembly { listing, mut troubles, bytes, .. } = assembly;
        let items = listing.items;
        let mut store = |bytes: &[u8]| meta.borrow_mut().chunk(bytes);
        let mut emit = |recipe: &Recipe| meta.borrow_mut().recipe(recipe);
        let listing = listing.finish(&mut store, &mut emit)?;
        let Metadata { lane, node_bytes, .. } = meta.into_inner();
        lane.finish()?;
        self.packer.join_lanes()?;
        troubles.sort();
        let zero_bytes = zero_bytes.into_inner();
        Ok(Image { listing, items, bytes, plan, troubles, node_bytes, zero_bytes })
    }

    fn stream(
        &self,
        name: Vec<u8>,
        from: &mut dyn Read,
        assembly: &mut Assembly<'_, 'a>,
        zero_bytes: &AtomicU64,
    ) -> Result<PutPlan> {
        let meta = assembly.meta;
        let mut emit = |recipe: &Recipe| meta.borrow_mut().recipe(recipe);
        let chunk_bytes_max = self.pool.config().format.chunk_bytes_max as usize;
        let mut reader = ContentReader::new(self.sink, self.packer.lane(), chunk_bytes_max);
        let mut builder = ContentBuilder::default();
        reader.stream(from, &mut |piece| {
            if self.stop.load(Ordering::Relaxed) {
                return Err(stopped());
            }
            let before = builder.bytes;
            builder.push(piece, &mut emit)?;
            if before / PROGRESS_BYTES != builder.bytes / PROGRESS_BYTES {
                self.progress(builder.bytes, builder.bytes);
            }
            Ok(())
        })?;
        zero_bytes.fetch_add(reader.zero_bytes, Ordering::Relaxed);
        reader.finish()?;
        let mut item = Item::new(name, ItemKind::Stream);
        (item.content, item.bytes) = builder.finish(&mut emit)?;
        let ns = self.pool.env().clock.unix_ns();
        item.mtime.s = (ns / 1_000_000_000).cast_signed();
        item.mtime.ns = (ns % 1_000_000_000) as u32;
        item.mode = 0o600;
        let bytes = item.bytes;
        assembly.list(item)?;
        Ok(PutPlan {
            items: 1,
            bytes,
            files: 1,
            read_files: 1,
            read_bytes: bytes,
            ..Default::default()
        })
    }

    fn trees(
        &self,
        roots: &[Root],
        selection: &Selection,
        assembly: &mut Assembly<'_, 'a>,
        zero_bytes: &AtomicU64,
    ) -> Result<PutPlan> {
        // Each reader fills a container of its own; one more is for the listing, two for what comes.
        let threads = self.pool.config().tuning.threads();
        let threads = threads.min(self.packer.lanes_max().saturating_sub(1)).max(1);
        let (queue, gate) = (Queue::default(), Gate::new(STEPS_IN_FLIGHT));
        let (done_bytes, seen_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let (sender, messages) = channel();
        let before = self.parent.filter(|_| !self.reread);
        let before = before.map(|parent| (parent.epoch(), parent.items()));
        let planner = Planner::new(self.pool, roots, selection, before, self.stop);
        let worker = Worker { putter: self, roots, queue: &queue, done_bytes: &done_bytes };
        std::thread::scope(|scope| {
            let plan_sender = sender.clone();
            let (queue, gate, seen_bytes) = (&queue, &gate, &seen_bytes);
            scope.spawn(move || {
                plan(planner, queue, gate, seen_bytes, &plan_sender);
            });
            for _ in 0..threads {
                let (sender, worker) = (sender.clone(), &worker);
                scope.spawn(move || {
                    match worker.run(&sender) {
                        // Nobody listens any more if the others have failed before.
                        Err(error) => drop(sender.send(Message::Failed(error))),
                        Ok(zeros) => drop(zero_bytes.fetch_add(zeros, Ordering::Relaxed)),
                    }
                });
            }
            drop(sender);
            let told = |force: bool, last: &mut u64| {
                let done = done_bytes.load(Ordering::Relaxed);
                if force || done / PROGRESS_BYTES != *last / PROGRESS_BYTES {
                    let seen = seen_bytes.load(Ordering::Relaxed);
                    let expected = self.parent.map_or(0, |parent| {
                        parent.manifest().images.iter().map(|image| image.state_bytes).sum()
                    });
                    self.progress(done, if force { done } else { seen.max(expected).max(done) });
                    *last = done;
                }
            };
            let assembled = assembly.run(&messages, queue, gate, &told);
            // Whoever still works finds out and ends.
            queue.close();
            gate.open_for_ever();
            assembled
        })
    }

    fn progress(&self, done_bytes: u64, total_bytes: u64) {
        let progress = Progress { what: "put", done_bytes, total_bytes };
        self.pool.env().observer.event(Event::Progress(progress));
    }
}

/// The planner's thread.
fn plan(
    mut planner: Planner<'_>,
    queue: &Queue,
    gate: &Gate,
    seen_bytes: &AtomicU64,
    sender: &Sender<Message>,
) {
    let mut seq = 0;
    let outcome = loop {
        let step = match planner.next() {
            Ok(Some(step)) => step,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        };
        seen_bytes.store(planner.plan.bytes, Ordering::Relaxed);
        if !gate.enter() {
            return;
        }
        let Step { item, root, work } = step;
        match work {
            Work::List => {
                if sender.send(Message::Item { seq, item }).is_err() {
                    return;
                }
            }
            Work::Read(recipe) => {
                let _ = sender.send(Message::Coming { seq, recipe });
                queue.push(Task::File { seq, item, root, attempt: 0 });
            }
        }
        seq += 1;
    };
    let troubles = planner.take_troubles();
    let message = match outcome {
        Ok(()) => Message::Planned { steps: seq, plan: Box::new(planner.plan), troubles },
        Err(error) => Message::Failed(error),
    };
    let _ = sender.send(message);
}

/// What reader threads share.
struct Worker<'a> {
    putter: &'a Putter<'a>,
    roots: &'a [Root],
    queue: &'a Queue,
    done_bytes: &'a AtomicU64,
}

impl Worker<'_> {
    /// Works until the queue is closed; answers how many bytes were zeros.
    fn run(&self, sender: &Sender<Message>) -> Result<u64> {
        let Putter { pool, packer, sink, stop, .. } = self.putter;
        let chunk_bytes_max = pool.config().format.chunk_bytes_max as usize;
        let mut reader = ContentReader::new(sink, packer.lane(), chunk_bytes_max);
        while let Some(task) = self.queue.pop() {
            if stop.load(Ordering::Relaxed) {
                return Err(stopped());
            }
            let message = match task {
                Task::File { seq, item, root, attempt } => {
                    let expected = item.bytes;
                    let read = self.file(&mut reader, sender, seq, item, root, attempt)?;
                    if read.is_some() {
                        self.done_bytes.fetch_add(expected, Ordering::Relaxed);
                    }
                    read
                }
                Task::Part { seq, number, large } => {
                    let mut pieces = Vec::new();
                    let ranges = &large.ranges[large.parts[number].clone()];
                    let read = reader.ranges(&large.file, ranges, large.item.holes, &mut pieces);
                    let bytes = ranges.iter().map(|range| range.bytes).sum();
                    self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
                    match read {
                        Ok(()) => Some(Message::Part { seq, number, pieces: Ok(pieces) }),
                        Err(Fault::Read(error)) => {
                            Some(Message::Part { seq, number, pieces: Err(error) })
                        }
                        Err(Fault::Store(error)) => return Err(error),
                    }
                }
            };
            if message.is_some_and(|message| sender.send(message).is_err()) {
                break;
            }
        }
        let zero_bytes = reader.zero_bytes;
        reader.finish().map(|()| zero_bytes)
    }

    /// Reads a file, or, if it is long, shares it out in parts.
    fn file(
        &self,
        reader: &mut ContentReader<'_>,
        sender: &Sender<Message>,
        seq: u64,
        scanned: Item,
        root: usize,
        mut attempt: u8,
    ) -> Result<Option<Message>> {
        let trouble = |trouble| Ok(Some(Message::Dropped { seq, trouble }));
        loop {
            let now_ns = self.putter.pool.env().clock.unix_ns();
            let path = &scanned.path;
            let opened = match self.open(path, root, now_ns) {
                Ok(opened) => opened,
                Err(found) => return trouble(found),
            };
            let Opened { file, stat, mut item, ranges, without } = opened;
            let data_bytes: u64 = ranges.iter().filter(|r| !r.hole).map(|r| r.bytes).sum();
            if data_bytes > super::content::PART_BYTES {
                let parts = parts_of(&ranges);
                let large = Large { file, stat, item, root, ranges, parts, attempt, without };
                let large = Arc::new(large);
                let _ = sender.send(Message::Large { seq, large: large.clone() });
                self.queue.push_parts(seq, &large);
                return Ok(None);
            }
            let read = self.short(reader, &file, &mut item, &ranges);
            let after = match read {
                Ok(()) => fstat(&file),
                Err(Fault::Read(error)) => Err(error),
                Err(Fault::Store(error)) => return Err(error),
            };
            let is_changed = match after {
                Ok(after) => changed(&stat, &after),
                Err(error) => return trouble(Trouble::reading(path, error)),
            };
            attempt += 1;
            if !is_changed || attempt >= ATTEMPTS {
                item.unsettled |= is_changed;
                let troubles = without.into_iter().chain(is_changed.then(|| restless(path)));
                return Ok(Some(Message::File { seq, item, troubles: troubles.collect() }));
            }
        }
    }

    fn short(
        &self,
        reader: &mut ContentReader<'_>,
        file: &std::os::fd::OwnedFd,
        item: &mut Item,
        ranges: &[Range],
    ) -> std::result::Result<(), Fault> {
        if item.bytes <= INLINE_BYTES_MAX as u64
            && !item.holes
            && let Some(bytes) = reader.inline(file)?
        {
            item.bytes = bytes.len() as u64;
            item.content = if bytes.is_empty() { Content::Empty } else { Content::Inline(bytes) };
            return Ok(());
        }
        let mut pieces = Vec::new();
        reader.ranges(file, ranges, item.holes, &mut pieces)?;
        item.bytes = pieces.iter().map(|piece| piece.bytes).sum();
        item.content = if pieces.is_empty() { Content::Empty } else { Content::Pieces(pieces) };
        Ok(())
    }

    fn open(&self, path: &[u8], root: usize, now_ns: u64) -> std::result::Result<Opened, Trouble> {
        let fault = |error| Trouble::reading(path, error);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let root = &self.roots[root];
        let file = root.beneath.get(root.local(path), flags).map_err(fault)?;
        let stat = fstat(&file).map_err(fault)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            let why = "it is no longer a file";
            return Err(Trouble::new(path, TroubleKind::Unreadable, why));
        }
        let mut item = described(path.to_vec(), ItemKind::File, &stat);
        let mut without = None;
        match super::attributes::of_open(&file) {
            Ok(attributes) => item.attributes = attributes,
            Err(error) => without = Some(no_attributes(path, error)),
        }
        let (ranges, holes) = ranges_of(&file, &stat).map_err(fault)?;
        item.holes = holes;
        item.unsettled = is_unsettled(&file, item.ctime, item.mtime, now_ns);
        Ok(Opened { file, stat, item, ranges, without })
    }
}

/// A file that was opened and looked at.
struct Opened {
    file: std::os::fd::OwnedFd,
    stat: Stat,
    item: Item,
    ranges: Vec<Range>,
    without: Option<Trouble>,
}

fn restless(path: &[u8]) -> Trouble {
    let why = format!("it changed each of the {ATTEMPTS} times it was read; the last is kept");
    Trouble::new(path, TroubleKind::Changed, why)
}

/// Stores what describes files: chunks of the listing, and recipes.
struct Metadata<'a> {
    sink: &'a ChunkSink<'a>,
    lane: Lane<'a>,
    /// Recipes that need not be stored again: those of this put, and those that the parent needs.
    recipes: Fingerprints,
    node_bytes: u64,
}

impl Metadata<'_> {
    fn chunk(&mut self, bytes: &[u8]) -> Result<Fingerprint> {
        let fp = fingerprint(bytes);
        self.sink.store(&mut self.lane, bytes, fp)?;
        Ok(fp)
    }

    fn recipe(&mut self, recipe: &Recipe) -> Result<Fingerprint> {
        let bytes = recipe.encode()?;
        let fp = fingerprint(&bytes);
        if self.recipes.insert(fp) {
            self.lane.append_node(&bytes, fp)?;
            self.node_bytes += bytes.len() as u64;
        }
        Ok(fp)
    }
}

/// Gathers the pieces of one file.
#[derive(Default)]
struct ContentBuilder {
    pieces: Vec<Piece>,
    recipe: Option<RecipeBuilder>,
    bytes: u64,
}

impl ContentBuilder {
    fn push(&mut self, piece: Piece, emit: &mut super::recipe::Emit<'_>) -> Result<()> {
        self.bytes = self.bytes.saturating_add(piece.bytes);
        if let Some(recipe) = &mut self.recipe {
            return recipe.push(piece, emit);
        }
        match self.pieces.last_mut() {
            Some(last) if last.is_zeros() && piece.is_zeros() => last.bytes += piece.bytes,
            _ => self.pieces.push(piece),
        }
        if self.pieces.len() > ITEM_PIECES_MAX {
            let recipe = self.recipe.insert(RecipeBuilder::default());
            return self.pieces.drain(..).try_for_each(|piece| recipe.push(piece, emit));
        }
        Ok(())
    }

    fn finish(self, emit: &mut super::recipe::Emit<'_>) -> Result<(Content, u64)> {
        let content = match self.recipe {
            Some(recipe) => Content::Recipe(recipe.finish(emit)?),
            None if self.pieces.is_empty() => Content::Empty,
            None => Content::Pieces(self.pieces),
        };
        Ok((content, self.bytes))
    }
}

/// A step whose place in the listing has not come yet.
enum Slot {
    /// It is being read; the recipe of the file before.
    Reading(Option<Piece>),
    /// It can be listed.
    Item(Item),
    /// There is nothing to list.
    Nothing,
    /// It is read in parts.
    Parts(Box<Parts>),
}

struct Parts {
    large: Arc<Large>,
    builder: ContentBuilder,
    next: usize,
    early: HashMap<usize, Vec<Piece>>,
    /// The recipe of the file before.
    recipe: Option<Piece>,
}

/// Puts the listing together.
struct Assembly<'m, 'a> {
    putter: &'m Putter<'a>,
    meta: &'m RefCell<Metadata<'a>>,
    listing: ListingWriter,
    /// Steps from number `first` on.
    slots: VecDeque<Slot>,
    first: u64,
    /// Files that are not in the listing: further names of them cannot be either.
    dropped: HashSet<Vec<u8>>,
    troubles: Troubles,
    bytes: u64,
}

impl Assembly<'_, '_> {
    fn run(
        &mut self,
        messages: &Receiver<Message>,
        queue: &Queue,
        gate: &Gate,
        told: &dyn Fn(bool, &mut u64),
    ) -> Result<PutPlan> {
        let mut planned: Option<(u64, PutPlan)> = None;
        let mut last_told = 0;
        loop {
            if let Some((_, plan)) = planned.take_if(|(steps, _)| *steps == self.first) {
                told(true, &mut last_told);
                return Ok(plan);
            }
            let Ok(message) = messages.recv() else {
                return Err(Error::bug("the readers of a put ended before their work"));
            };
            match message {
                Message::Failed(error) => return Err(error),
                Message::Planned { steps, plan, troubles } => {
                    self.troubles.join(troubles);
                    planned = Some((steps, *plan));
                }
                Message::Coming { seq, recipe } => self.set(seq, Slot::Reading(recipe)),
                Message::Item { seq, item } => self.set(seq, Slot::Item(item)),
                Message::File { seq, item, troubles } => {
                    self.file(seq, item, troubles)?;
                }
                Message::Dropped { seq, trouble } => self.drop_file(seq, trouble),
                Message::Large { seq, large } => {
                    let recipe = match self.slot(seq) {
                        Some(Slot::Reading(recipe)) => *recipe,
                        _ => None,
                    };
                    let parts = Parts {
                        large,
                        builder: ContentBuilder::default(),
                        next: 0,
                        early: HashMap::new(),
                        recipe,
                    };
                    self.set(seq, Slot::Parts(Box::new(parts)));
                }
                Message::Part { seq, number, pieces } => self.part(seq, number, pieces, queue)?,
            }
            self.advance(gate)?;
            told(false, &mut last_told);
        }
    }

    fn slot(&mut self, seq: u64) -> Option<&mut Slot> {
        self.slots.get_mut(usize::try_from(seq.checked_sub(self.first)?).ok()?)
    }

    /// The planner's messages come in order; those of readers come for steps that were planned.
    fn set(&mut self, seq: u64, slot: Slot) {
        match self.slot(seq) {
            Some(there) => *there = slot,
            None => self.slots.push_back(slot),
        }
    }

    fn drop_file(&mut self, seq: u64, trouble: Trouble) {
        self.dropped.insert(trouble.path.clone());
        self.troubles.add(trouble);
        self.set(seq, Slot::Nothing);
    }

    /// A file was read whole; its pieces may be too many for its item.
    fn file(&mut self, seq: u64, mut item: Item, troubles: Vec<Trouble>) -> Result<()> {
        troubles.into_iter().for_each(|trouble| self.troubles.add(trouble));
        if let Content::Pieces(pieces) = &mut item.content
            && pieces.len() > ITEM_PIECES_MAX
        {
            let recipe = match self.slot(seq) {
                Some(Slot::Reading(recipe)) => *recipe,
                _ => None,
            };
            self.learn(recipe);
            let meta = self.meta;
            let mut emit = |recipe: &Recipe| meta.borrow_mut().recipe(recipe);
            let mut builder = ContentBuilder::default();
            pieces.drain(..).try_for_each(|piece| builder.push(piece, &mut emit))?;
            (item.content, _) = builder.finish(&mut emit)?;
        }
        self.set(seq, Slot::Item(item));
        Ok(())
    }

    /// Remembers the recipes of a file's former content, most of which may come again.
    fn learn(&mut self, recipe: Option<Piece>) {
        let (Some(recipe), Some(parent)) = (recipe, self.putter.parent) else { return };
        let mut meta = self.meta.borrow_mut();
        let mut learn = |fp| {
            meta.recipes.insert(fp);
        };
        let read = recipes_below(self.putter.pool, &parent.locator, recipe, &mut learn);
        if let Err(error) = read {
            self.putter.pool.warn(format!("recipes are stored anew: {error}"));
        }
    }

    fn part(
        &mut self,
        seq: u64,
        number: usize,
        pieces: rustix::io::Result<Vec<Piece>>,
        queue: &Queue,
    ) -> Result<()> {
        let meta = self.meta;
        // Parts of a file that was given up, or begun anew, may still come.
        let Some(Slot::Parts(parts)) = self.slot(seq) else { return Ok(()) };
        let path = parts.large.item.path.clone();
        match pieces {
            Err(error) => {
                self.drop_file(seq, Trouble::reading(&path, error));
                return Ok(());
            }
            Ok(pieces) => drop(parts.early.insert(number, pieces)),
        }
        if parts.next == 0 {
            let recipe = parts.recipe.take();
            self.learn(recipe);
        }
        let Some(Slot::Parts(parts)) = self.slot(seq) else { return Ok(()) };
        let mut emit = |recipe: &Recipe| meta.borrow_mut().recipe(recipe);
        while let Some(pieces) = parts.early.remove(&parts.next) {
            pieces.into_iter().try_for_each(|piece| parts.builder.push(piece, &mut emit))?;
            parts.next += 1;
        }
        if parts.next < parts.large.parts.len() {
            return Ok(());
        }
        let large = parts.large.clone();
        let builder = std::mem::take(&mut parts.builder);
        let is_changed = match fstat(&large.file) {
            Ok(after) => changed(&large.stat, &after),
            Err(error) => {
                self.drop_file(seq, Trouble::reading(&path, error));
                return Ok(());
            }
        };
        let attempt = large.attempt + 1;
        let mut item = large.item.clone();
        if is_changed && attempt < ATTEMPTS {
            self.set(seq, Slot::Reading(None));
            queue.push_front(Task::File { seq, item, root: large.root, attempt });
            return Ok(());
        }
        item.unsettled |= is_changed;
        (item.content, item.bytes) = builder.finish(&mut emit)?;
        let troubles = large.without.clone().into_iter();
        troubles.chain(is_changed.then(|| restless(&path))).for_each(|t| self.troubles.add(t));
        self.set(seq, Slot::Item(item));
        Ok(())
    }

    /// Lists what can be listed.
    fn advance(&mut self, gate: &Gate) -> Result<()> {
        while let Some(Slot::Item(_) | Slot::Nothing) = self.slots.front() {
            if let Some(Slot::Item(item)) = self.slots.pop_front() {
                self.list(item)?;
            }
            self.first += 1;
            gate.leave();
        }
        Ok(())
    }

    fn list(&mut self, item: Item) -> Result<()> {
        if item.kind == ItemKind::HardLink && self.dropped.contains(&item.target) {
            let why = "its content was to come under another name of it, where it was not read";
            self.troubles.add(Trouble::new(&item.path, TroubleKind::Unreadable, why));
            return Ok(());
        }
        let meta = self.meta;
        let mut store = |bytes: &[u8]| meta.borrow_mut().chunk(bytes);
        let mut emit = |recipe: &Recipe| meta.borrow_mut().recipe(recipe);
        match self.listing.push(&item, &mut store, &mut emit) {
            Ok(()) => {
                if matches!(item.kind, ItemKind::File | ItemKind::Stream) {
                    self.bytes = self.bytes.saturating_add(item.bytes);
                }
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Invalid => {
                let trouble = Trouble::new(&item.path, TroubleKind::Unreadable, error.message());
                self.dropped.insert(item.path);
                self.troubles.add(trouble);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// Nothing known: files take what they know from their parent's segments.
pub fn knows_nothing() -> Known {
    Known::new(0)
}

/// The chunks that a finished put had from elsewhere.
pub fn hits_of(sink: ChunkSink<'_>) -> crate::save::Hits {
    let hits: Mutex<_> = sink.hits;
    hits.into_inner().unwrap_or_else(PoisonError::into_inner)
}
