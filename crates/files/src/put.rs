//! Carries out a put: one thread plans, some read and store. This one builds the listing in its
//! order, then commits.

use super::assembly::{Assembly, ContentBuilder, Metadata};
use super::content::ContentReader;
use super::file_error::Troubles;
use super::plan::{ItemWork, Planner, PutPlan, Step, stopped};
use super::putter::Putter;
use super::reading::Worker;
use super::scan::{Root, Selection};
use super::work::{Backlog, Message, Queue, Task};
use outlive_format::{Item, ItemKind, Recipe, TreeRef};
use outlive_types::{Error, Event, Progress, Result};
use std::cell::RefCell;
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};

/// Steps between the planner and the listing: bounds their memory to a few MiB.
const STEPS_IN_FLIGHT: usize = 8192;
/// Progress is reported in steps of this many bytes.
const PROGRESS_BYTES: u64 = 4 << 20;

/// Source of a put.
pub enum Source<'a> {
    /// Directories and files.
    Trees(&'a [Root], &'a Selection),
    /// A stream, listed under this name.
    Stream(Vec<u8>, &'a mut (dyn Read + Send)),
}

/// Stored data before the commit.
pub struct StoredFiles {
    /// The listing.
    pub listing: TreeRef,
    /// Number of items.
    pub items: u64,
    /// Number of files; further names of a file do not count.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Sum of the plan.
    pub plan: PutPlan,
    /// File errors.
    pub troubles: Troubles,
    /// Bytes of new recipes.
    pub node_bytes: u64,
    /// Bytes of zeros and holes.
    pub zero_bytes: u64,
}

impl<'a> Putter<'a> {
    /// Stores everything.
    ///
    /// # Errors
    /// Errors of the pool; `Retry` if it was stopped.
    pub fn run(&self, source: Source<'_>) -> Result<StoredFiles> {
        let meta = RefCell::new(Metadata::new(self));
        let mut assembly = Assembly::new(self, &meta);
        let zero_bytes = AtomicU64::new(0);
        let plan = match source {
            Source::Trees(roots, selection) => {
                self.trees(roots, selection, &mut assembly, &zero_bytes)?
            }
            Source::Stream(name, from) => self.stream(name, from, &mut assembly, &zero_bytes)?,
        };
        let (listing, mut troubles, files, bytes) = assembly.finish();
        let items = listing.items;
        let mut store = |bytes: &[u8]| meta.borrow_mut().chunk(bytes);
        let mut emit = |recipe: &Recipe| meta.borrow_mut().recipe(recipe);
        let listing = listing.finish(items, &mut store, &mut emit)?;
        let node_bytes = meta.into_inner().finish()?;
        self.into.join_lanes()?;
        troubles.sort();
        let zero_bytes = zero_bytes.into_inner();
        Ok(StoredFiles { listing, items, files, bytes, plan, troubles, node_bytes, zero_bytes })
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
        let mut reader = ContentReader::new(self.into.lane(), chunk_bytes_max);
        let mut builder = ContentBuilder::new(self.pool.config().format.container_bytes);
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
        // Each reader fills a container of its own; one more is for the listing, two for data that
        // arrives.
        let threads = self.pool.config().tuning.threads();
        let threads = threads.min(self.into.lanes_max().saturating_sub(1)).max(1);
        let (queue, backlog) = (Queue::default(), Backlog::new(STEPS_IN_FLIGHT));
        let (done_bytes, seen_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let (sender, messages) = channel();
        let before = self.parent.filter(|_| !self.reread);
        let before = before.map(|parent| (parent.epoch(), parent.items()));
        let planner = Planner::new(self.pool, roots, selection, before, self.stop);
        let worker = Worker { putter: self, roots, queue: &queue, done_bytes: &done_bytes };
        std::thread::scope(|scope| {
            let plan_sender = sender.clone();
            let (queue, backlog, seen_bytes) = (&queue, &backlog, &seen_bytes);
            let over = Over(queue, backlog);
            let named = || std::thread::Builder::new().name("outlive-put".to_owned());
            let refused = |error: std::io::Error| Error::no_thread("the put", &error);
            let planning = move || {
                let _alarm = Alarm(&plan_sender);
                plan(planner, queue, backlog, seen_bytes, &plan_sender);
            };
            named().spawn_scoped(scope, planning).map_err(refused)?;
            let mut readers = Vec::new();
            for _ in 0..threads {
                let (sender, worker) = (sender.clone(), &worker);
                let reader = named().spawn_scoped(scope, move || {
                    let _alarm = Alarm(&sender);
                    match worker.run(&sender) {
                        Ok(zeros) => {
                            zero_bytes.fetch_add(zeros, Ordering::Relaxed);
                            Ok(())
                        }
                        Err(error) => {
                            let _ = sender.send(Message::Failed(error.clone()));
                            Err(error)
                        }
                    }
                });
                match reader {
                    Ok(reader) => readers.push(reader),
                    Err(error) if readers.is_empty() => return Err(refused(error)),
                    Err(_) => break,
                }
            }
            drop(sender);
            let told = |force: bool, last: &mut u64| {
                let done = done_bytes.load(Ordering::Relaxed);
                if force || done / PROGRESS_BYTES != *last / PROGRESS_BYTES {
                    let seen = seen_bytes.load(Ordering::Relaxed);
                    let expected = self.parent.map_or(0, |p| p.manifest().state_bytes());
                    self.progress(done, if force { done } else { seen.max(expected).max(done) });
                    *last = done;
                }
            };
            let assembled = assembly.run(&messages, queue, backlog, &told);
            // Threads that still work notice this and end.
            drop(over);
            let plan = assembled?;
            // The last chunks are sent when a reader ends, and that may fail, too.
            for reader in readers {
                reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            Ok(plan)
        })
    }

    fn progress(&self, done_bytes: u64, total_bytes: u64) {
        let progress = Progress { what: "put", done_bytes, total_bytes };
        self.pool.env().observer.event(Event::Progress(progress));
    }
}

/// Dropping it ends all threads that work for the listing, even after a panic.
struct Over<'a>(&'a Queue, &'a Backlog);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.close();
        self.1.close();
    }
}

/// Reports a thread that panics, since others would wait for its work.
struct Alarm<'a>(&'a Sender<Message>);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The receiver is gone if another thread has failed before.
            let error = Error::bug("a thread that puts files has panicked");
            let _ = self.0.send(Message::Failed(error));
        }
    }
}

/// The planner's thread.
fn plan(
    mut planner: Planner<'_>,
    queue: &Queue,
    backlog: &Backlog,
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
        if !backlog.enter() {
            return;
        }
        let Step { item, root, work } = step;
        match work {
            ItemWork::List => {
                if sender.send(Message::Item { seq, item }).is_err() {
                    return;
                }
            }
            ItemWork::Read(recipe) => {
                let _ = sender.send(Message::Coming { seq, recipe });
                queue.push(Task::File { seq, item, root, attempts: Default::default() });
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
