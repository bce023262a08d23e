//! Builds the listing of a put, in its order, from messages that its readers send in theirs.

use super::content::{FileChange, change};
use super::file_error::{FileError, FileErrorKind, Troubles};
use super::listing::ListingWriter;
use super::plan::PutPlan;
use super::putter::Putter;
use super::reading::restless;
use super::recipe::{Emit, RecipeBuilder};
use super::work::{Backlog, Large, Message, Queue, Task};
use outlive_chunk::fingerprint;
use outlive_format::{Content, ITEM_PIECES_MAX, Item, ItemKind, Piece, Recipe};
use outlive_store::ContentLane;
use outlive_store::index::Fingerprints;
use outlive_store::read::files::recipes_below;
use outlive_types::{Error, ErrorKind, Fingerprint, Result};
use rustix::fs::fstat;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// Stores the description of files: chunks of the listing, and recipes.
pub struct Metadata<'a> {
    lane: ContentLane<'a>,
    /// Recipes that are stored already: those of this put, and those that the parent needs.
    recipes: Fingerprints,
    node_bytes: u64,
}

impl<'a> Metadata<'a> {
    /// Returns a store that knows the recipes of the parent's listing.
    pub fn new(putter: &Putter<'a>) -> Metadata<'a> {
        let mut recipes = Fingerprints::default();
        if let Some(parent) = putter.parent {
            recipes.extend(parent.listing_recipes());
        }
        Metadata { lane: putter.into.lane(), recipes, node_bytes: 0 }
    }

    /// Stores a chunk of the listing.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn chunk(&mut self, bytes: &[u8]) -> Result<Fingerprint> {
        let fp = fingerprint(bytes);
        self.lane.chunk(bytes, fp)?;
        Ok(fp)
    }

    /// Stores a recipe.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn recipe(&mut self, recipe: &Recipe) -> Result<Fingerprint> {
        let bytes = recipe.encode()?;
        let fp = fingerprint(&bytes);
        if self.recipes.insert(fp) {
            self.lane.node(&bytes, fp)?;
            self.node_bytes += bytes.len() as u64;
        }
        Ok(fp)
    }

    /// Remembers the recipes of a file's former content, most of which may occur again.
    pub fn learn(&mut self, recipe: Option<Piece>, putter: &Putter<'_>) {
        let (Some(recipe), Some(parent)) = (recipe, putter.parent) else { return };
        let mut learn = |fp| {
            self.recipes.insert(fp);
        };
        let read = |pieces: &[Piece]| parent.read(pieces);
        let read = recipes_below(&read, recipe, &mut learn);
        if let Err(error) = read {
            putter.pool.warn(format!("recipes are stored again: {error}"));
        }
    }

    /// Sends the remaining data; returns the number of bytes of new recipes.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn finish(self) -> Result<u64> {
        self.lane.finish().map(|()| self.node_bytes)
    }
}

/// Gathers the pieces of one file.
pub struct ContentBuilder {
    container_bytes: u64,
    pieces: Vec<Piece>,
    recipe: Option<RecipeBuilder>,
    /// Bytes so far.
    pub bytes: u64,
}

impl ContentBuilder {
    /// Returns a builder for a pool with containers of this length.
    pub fn new(container_bytes: u64) -> ContentBuilder {
        ContentBuilder { container_bytes, pieces: Vec::new(), recipe: None, bytes: 0 }
    }

    /// Adds the next piece.
    ///
    /// # Errors
    /// Errors of `emit`.
    pub fn push(&mut self, piece: Piece, emit: &mut Emit<'_>) -> Result<()> {
        self.bytes = self.bytes.saturating_add(piece.bytes);
        if let Some(recipe) = &mut self.recipe {
            return recipe.push(piece, emit);
        }
        match self.pieces.last_mut() {
            Some(last) if last.is_zeros() && piece.is_zeros() => last.bytes += piece.bytes,
            _ => self.pieces.push(piece),
        }
        if self.pieces.len() > ITEM_PIECES_MAX {
            let recipe = self.recipe.insert(RecipeBuilder::new(self.container_bytes));
            return self.pieces.drain(..).try_for_each(|piece| recipe.push(piece, emit));
        }
        Ok(())
    }

    /// Returns the content and its length.
    ///
    /// # Errors
    /// Errors of `emit`.
    pub fn finish(self, emit: &mut Emit<'_>) -> Result<(Content, u64)> {
        let content = match self.recipe {
            Some(recipe) => Content::Recipe(recipe.finish(emit)?),
            None if self.pieces.is_empty() => Content::Empty,
            None => Content::Pieces(self.pieces),
        };
        Ok((content, self.bytes))
    }
}

/// A step that is not listed yet.
enum Slot {
    /// It is being read; the recipe of the file in the put before.
    Reading(Option<Piece>),
    /// It can be listed.
    Item(Item),
    /// Nothing will be listed for it.
    Nothing,
    /// It is read in parts.
    Parts(Box<Parts>),
}

struct Parts {
    large: Arc<Large>,
    builder: ContentBuilder,
    next: usize,
    early: HashMap<usize, Vec<Piece>>,
    /// The recipe of the file in the put before.
    recipe: Option<Piece>,
}

/// Builds the listing.
pub struct Assembly<'m, 'a> {
    putter: &'m Putter<'a>,
    /// Stores the description of files.
    pub meta: &'m RefCell<Metadata<'a>>,
    listing: ListingWriter,
    /// Steps from number `first` on.
    slots: VecDeque<Slot>,
    first: u64,
    /// Names of files that are not in the listing, so further names of them cannot be either.
    dropped: HashSet<Vec<u8>>,
    troubles: Troubles,
    files: u64,
    bytes: u64,
}

impl<'m, 'a> Assembly<'m, 'a> {
    /// Returns an empty listing.
    pub fn new(putter: &'m Putter<'a>, meta: &'m RefCell<Metadata<'a>>) -> Assembly<'m, 'a> {
        Assembly {
            putter,
            meta,
            listing: ListingWriter::new(&putter.pool.config().format),
            slots: VecDeque::new(),
            first: 0,
            dropped: HashSet::new(),
            troubles: Troubles::default(),
            files: 0,
            bytes: 0,
        }
    }

    /// Returns the listing, the file errors, and the number and the bytes of all files.
    pub fn finish(self) -> (ListingWriter, Troubles, u64, u64) {
        (self.listing, self.troubles, self.files, self.bytes)
    }

    /// Handles messages until every planned step is listed.
    ///
    /// # Errors
    /// The error of a thread that cannot continue.
    pub fn run(
        &mut self,
        messages: &Receiver<Message>,
        queue: &Queue,
        backlog: &Backlog,
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
                Message::File { seq, item, replaced, troubles } => {
                    self.replaced(&item, replaced);
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
                        builder: self.builder(),
                        next: 0,
                        early: HashMap::new(),
                        recipe,
                    };
                    self.set(seq, Slot::Parts(Box::new(parts)));
                }
                Message::Part { seq, number, pieces } => self.part(seq, number, pieces, queue)?,
            }
            self.advance(backlog)?;
            told(false, &mut last_told);
        }
    }

    fn builder(&self) -> ContentBuilder {
        ContentBuilder::new(self.putter.pool.config().format.container_bytes)
    }

    fn slot(&mut self, seq: u64) -> Option<&mut Slot> {
        self.slots.get_mut(usize::try_from(seq.checked_sub(self.first)?).ok()?)
    }

    /// Sets a step's slot. The planner's messages come in order; those of readers concern planned
    /// steps.
    fn set(&mut self, seq: u64, slot: Slot) {
        match self.slot(seq) {
            Some(there) => *there = slot,
            None => self.slots.push_back(slot),
        }
    }

    fn drop_file(&mut self, seq: u64, trouble: FileError) {
        self.dropped.insert(trouble.path.clone());
        self.troubles.add(trouble);
        self.set(seq, Slot::Nothing);
    }

    /// Drops further names of an item if another file has its name now.
    fn replaced(&mut self, item: &Item, replaced: bool) {
        if replaced {
            self.dropped.insert(item.path.clone());
        }
    }

    /// Takes a file that was read whole; its pieces may be too many for its item.
    fn file(&mut self, seq: u64, mut item: Item, troubles: Vec<FileError>) -> Result<()> {
        troubles.into_iter().for_each(|trouble| self.troubles.add(trouble));
        if let Content::Pieces(pieces) = &mut item.content
            && pieces.len() > ITEM_PIECES_MAX
        {
            let recipe = match self.slot(seq) {
                Some(Slot::Reading(recipe)) => *recipe,
                _ => None,
            };
            self.meta.borrow_mut().learn(recipe, self.putter);
            let meta = self.meta;
            let mut emit = |recipe: &Recipe| meta.borrow_mut().recipe(recipe);
            let mut builder = self.builder();
            pieces.drain(..).try_for_each(|piece| builder.push(piece, &mut emit))?;
            (item.content, _) = builder.finish(&mut emit)?;
        }
        self.set(seq, Slot::Item(item));
        Ok(())
    }

    fn part(
        &mut self,
        seq: u64,
        number: usize,
        pieces: rustix::io::Result<Vec<Piece>>,
        queue: &Queue,
    ) -> Result<()> {
        let meta = self.meta;
        // Parts of a file that was dropped, or is read again, may still arrive.
        let Some(Slot::Parts(parts)) = self.slot(seq) else { return Ok(()) };
        let path = parts.large.item.path.clone();
        match pieces {
            Err(error) => {
                self.drop_file(seq, FileError::reading(&path, error));
                return Ok(());
            }
            Ok(pieces) => drop(parts.early.insert(number, pieces)),
        }
        if parts.next == 0 {
            let recipe = parts.recipe.take();
            self.meta.borrow_mut().learn(recipe, self.putter);
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
        let builder = std::mem::replace(&mut parts.builder, ContentBuilder::new(0));
        let change = match fstat(&large.file) {
            Ok(after) => change(&large.stat, &after),
            Err(error) => {
                self.drop_file(seq, FileError::reading(&path, error));
                return Ok(());
            }
        };
        let mut item = large.item.clone();
        self.replaced(&item, large.replaced);
        (item.content, item.bytes) = builder.finish(&mut emit)?;
        let mut attempts = large.attempts.clone();
        let Some(is_steady) = attempts.end(change, &item) else {
            self.set(seq, Slot::Reading(None));
            queue.push_front(Task::File { seq, item, root: large.root, attempts });
            return Ok(());
        };
        item.unsettled |= change != FileChange::No;
        let troubles = large.without.clone().into_iter();
        troubles.chain((!is_steady).then(|| restless(&path))).for_each(|t| self.troubles.add(t));
        self.set(seq, Slot::Item(item));
        Ok(())
    }

    /// Lists all steps up to the first that is not ready.
    fn advance(&mut self, backlog: &Backlog) -> Result<()> {
        while let Some(Slot::Item(_) | Slot::Nothing) = self.slots.front() {
            if let Some(Slot::Item(item)) = self.slots.pop_front() {
                self.list(item)?;
            }
            self.first += 1;
            backlog.leave();
        }
        Ok(())
    }

    /// Adds an item to the listing.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn list(&mut self, item: Item) -> Result<()> {
        if item.kind == ItemKind::HardLink && self.dropped.contains(&item.target) {
            let why = "its content was to come under another name of it, where it was not read";
            self.troubles.add(FileError::new(&item.path, FileErrorKind::Unreadable, why));
            return Ok(());
        }
        let meta = self.meta;
        let mut store = |bytes: &[u8]| meta.borrow_mut().chunk(bytes);
        let mut emit = |recipe: &Recipe| meta.borrow_mut().recipe(recipe);
        match self.listing.push(&item, &mut store, &mut emit) {
            Ok(()) => {
                if matches!(item.kind, ItemKind::File | ItemKind::Stream) {
                    self.files += 1;
                    self.bytes = self.bytes.saturating_add(item.bytes);
                }
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Invalid => {
                let trouble =
                    FileError::new(&item.path, FileErrorKind::Unreadable, error.message());
                self.dropped.insert(item.path);
                self.troubles.add(trouble);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
