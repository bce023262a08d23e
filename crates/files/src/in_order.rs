//! Gives files back in the order of the listing, for streams. The recipe of a long window is known
//! before its first byte is read. So `planner` decides in which order containers are read, and
//! which of their chunks are kept until they are due. A thread reads ahead by a bounded number of
//! bytes.

use super::planner::{Item as Use, Memory, StreamPlan, best};
use super::selection::{ChosenItems, Selection};
use outlive_format::{Content, Item, Piece};
use outlive_store::FilesImage;
use outlive_store::index::ReadItem;
use outlive_types::{Error, Result};
use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{SyncSender, sync_channel};

/// Bytes of one read. Three times as many may be in memory besides the kept chunks.
const AHEAD_BYTES: u64 = 16 << 20;
/// Items and chunks of a window with one plan: about 64 MiB of memory, 4 GiB of data.
const WINDOW_PARTS: usize = 256 << 10;

/// Most containers that fit in the memory, as planners count it.
const CONTAINERS_MAX: u64 = 64;

/// Next element of a stream.
#[derive(Debug)]
pub enum InOrder<'a> {
    /// An item; its content follows.
    Item(&'a Item),
    /// The next bytes of its content, verified.
    Bytes(&'a [u8]),
    /// This number of zeros of its content.
    Zeros(u64),
}

/// Statistics of an ordered read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InOrderStats {
    /// Containers read, as planned.
    pub container_reads: u64,
}

#[derive(Debug)]
enum StreamPart {
    Item(Box<Item>),
    Inline(Vec<u8>),
    Zeros(u64),
    /// A chunk, by its number in the window.
    Chunk(usize),
}

/// A chunk of a certain read.
type Key = (u32, Use);

/// The chunks of one read, and the stream's parts that it completes.
struct Batch {
    chunks: Vec<(Key, Vec<u8>)>,
    /// Parts; a chunk has its key, and whether that was its last use.
    parts: Vec<(StreamPart, Option<(Key, bool)>)>,
}

/// Carries out [`GetFiles::in_order`](super::get::GetFiles::in_order).
///
/// # Errors
/// As for that method.
pub fn in_order(
    checkpoint: &FilesImage,
    choice: &Selection,
    memory_bytes: u64,
    take: &mut dyn FnMut(InOrder<'_>) -> Result<()>,
) -> Result<InOrderStats> {
    let (sender, batches) = sync_channel::<Result<Batch>>(1);
    std::thread::scope(|scope| {
        let work = move || {
            let mut ahead = Ahead {
                checkpoint,
                memory_bytes,
                parts: Vec::new(),
                wanted: Vec::new(),
                stats: InOrderStats::default(),
                sender,
            };
            if let Err(Some(error)) = ahead.run(choice) {
                let _ = ahead.sender.send(Err(checkpoint.context(error)));
            }
            ahead.stats
        };
        let thread = std::thread::Builder::new().name("outlive-ahead".to_owned());
        let ahead = thread.spawn_scoped(scope, work);
        let ahead = ahead.map_err(|error| Error::no_thread("reading ahead", &error))?;
        let mut kept: HashMap<Key, Vec<u8>> = HashMap::new();
        for batch in batches {
            let Batch { chunks, parts } = batch?;
            kept.extend(chunks);
            for (part, key) in &parts {
                take(match part {
                    StreamPart::Item(item) => InOrder::Item(item),
                    StreamPart::Inline(bytes) => InOrder::Bytes(bytes),
                    StreamPart::Zeros(bytes) => InOrder::Zeros(*bytes),
                    StreamPart::Chunk(_) => {
                        let bytes = key.as_ref().and_then(|(key, _)| kept.get(key));
                        InOrder::Bytes(bytes.ok_or_else(|| {
                            Error::bug("a chunk of a stream is due and was not read")
                        })?)
                    }
                })?;
                if let Some((key, true)) = key {
                    kept.remove(key);
                }
            }
        }
        ahead.join().map_err(|_| Error::bug("the thread that reads ahead has panicked"))
    })
}

/// Thread that reads ahead.
struct Ahead<'a> {
    checkpoint: &'a FilesImage,
    memory_bytes: u64,
    parts: Vec<StreamPart>,
    wanted: Vec<ReadItem>,
    stats: InOrderStats,
    sender: SyncSender<Result<Batch>>,
}

/// Error of the thread; `None` if the receiver is gone.
type Ended = std::result::Result<(), Option<Error>>;

impl Ahead<'_> {
    fn run(&mut self, choice: &Selection) -> Ended {
        let checkpoint = self.checkpoint;
        let mut items = ChosenItems::new(checkpoint, choice)?;
        while let Some((mut item, _)) = items.next()? {
            let content = std::mem::take(&mut item.content);
            let bare = Item { content: Content::Empty, ..item.clone() };
            self.parts.push(StreamPart::Item(Box::new(bare)));
            if let Content::Inline(bytes) = content {
                self.parts.push(StreamPart::Inline(bytes));
            } else {
                item.content = content;
                let mut gone = false;
                let each = &mut |piece: Piece| match self.piece(piece) {
                    Ok(()) => Ok(()),
                    Err(Some(error)) => Err(error),
                    Err(None) => {
                        gone = true;
                        Err(Error::retry("the reader has gone"))
                    }
                };
                if let Err(error) = checkpoint.pieces(&item, each) {
                    if gone {
                        return Err(None);
                    }
                    // The parts before the error are right, and go first.
                    self.window()?;
                    return Err(Some(error));
                }
            }
            if self.parts.len() >= WINDOW_PARTS {
                self.window()?;
            }
        }
        self.window()
    }

    fn piece(&mut self, piece: Piece) -> Ended {
        if piece.is_zeros() {
            self.parts.push(StreamPart::Zeros(piece.bytes));
            return Ok(());
        }
        let wanted = self.checkpoint.wanted_of(&piece)?;
        self.parts.push(StreamPart::Chunk(self.wanted.len()));
        self.wanted.push(wanted);
        if self.parts.len() >= WINDOW_PARTS {
            self.window()?;
        }
        Ok(())
    }

    /// Plans and reads the collected parts.
    fn window(&mut self) -> Ended {
        let parts = std::mem::take(&mut self.parts);
        let wanted = std::mem::take(&mut self.wanted);
        let uses = uses_of(&wanted, self.checkpoint.pool().config().format.container_bytes);
        let plan = best(&uses, memory_for(&uses, self.memory_bytes));
        self.stats.container_reads += plan.reads.len() as u64;
        let mut needs = ReadNeeds::of(&plan, &uses);
        let mut parts = parts.into_iter().peekable();
        let mut read = 0;
        loop {
            let mut chunks = Vec::new();
            let mut bytes = 0;
            while read < plan.reads.len() && (bytes == 0 || bytes < AHEAD_BYTES) {
                for at in needs.first_uses(read) {
                    bytes += u64::from(uses[at].length);
                    chunks.push(at);
                }
                read += 1;
            }
            // All parts before the next read can be passed on.
            let until = plan.reads.get(read).map_or(uses.len(), |(_, at)| *at);
            let mut due = Vec::new();
            while let Some(part) =
                parts.next_if(|part| !matches!(part, StreamPart::Chunk(at) if *at >= until))
            {
                let key = match &part {
                    StreamPart::Chunk(at) => {
                        Some(((plan.from[*at], uses[*at]), needs.is_last(*at)))
                    }
                    _ => None,
                };
                due.push((part, key));
            }
            let chunks = match self.read(&chunks, &wanted, &plan, &uses) {
                Ok(chunks) => chunks,
                Err(error) => {
                    // Chunks before the damage are right, and go first.
                    let one = |at: &usize| self.read(&[*at], &wanted, &plan, &uses).ok();
                    let whole: Vec<_> = chunks.iter().filter_map(one).flatten().collect();
                    let mut lost: HashSet<Key> =
                        chunks.iter().map(|at| (plan.from[*at], uses[*at])).collect();
                    lost.retain(|key| !whole.iter().any(|(there, _)| there == key));
                    let is_lost = |key: &Option<(Key, bool)>| {
                        key.as_ref().is_some_and(|(key, _)| lost.contains(key))
                    };
                    let before = due.iter().take_while(|(_, key)| !is_lost(key)).count();
                    due.truncate(before);
                    let batch = Batch { chunks: whole, parts: due };
                    self.sender.send(Ok(batch)).map_err(|_| None)?;
                    return Err(Some(error));
                }
            };
            self.sender.send(Ok(Batch { chunks, parts: due })).map_err(|_| None)?;
            if read == plan.reads.len() {
                return Ok(());
            }
        }
    }

    fn read(
        &self,
        chunks: &[usize],
        wanted: &[ReadItem],
        plan: &StreamPlan,
        uses: &[Use],
    ) -> Result<Vec<(Key, Vec<u8>)>> {
        let piece = |ReadItem { fp, extent }: ReadItem| Piece { fp, bytes: extent.length.into() };
        let pieces: Vec<Piece> = chunks.iter().map(|at| piece(wanted[*at])).collect();
        let out = self.checkpoint.read(&pieces)?;
        Ok(chunks.iter().map(|at| (plan.from[*at], uses[*at])).zip(out).collect())
    }
}

/// Returns chunks as planners name them. Each pack extent has a number, which stands for its
/// offset, since all chunks of a frame have the same offset.
fn uses_of(wanted: &[ReadItem], container_bytes: u64) -> Vec<Use> {
    let mut containers = HashMap::new();
    let mut places = HashMap::new();
    let mut uses = Vec::with_capacity(wanted.len());
    for ReadItem { extent, .. } in wanted {
        let container = (extent.pack, u64::from(extent.offset) / container_bytes);
        let new = containers.len() as u32;
        let container = *containers.entry(container).or_insert(new);
        let new = places.len() as u32;
        let offset = *places.entry(*extent).or_insert(new);
        uses.push(Use { container, offset, length: extent.length });
    }
    uses
}

/// Returns the memory as planners count it: the size of a container is that of its used chunks,
/// decompressed.
fn memory_for(uses: &[Use], bytes: u64) -> Memory {
    let mut used: HashMap<u32, u64> = HashMap::new();
    let mut seen = HashSet::new();
    for item in uses.iter().filter(|item| seen.insert(**item)) {
        *used.entry(item.container).or_default() += u64::from(item.length);
    }
    // The number of splits that planners try equals the number of containers that fit in the
    // memory.
    let container_bytes = used.into_values().max().unwrap_or(1).max(bytes / CONTAINERS_MAX);
    Memory { bytes: bytes.max(2 * container_bytes), container_bytes }
}

/// The chunks that each read must bring, and their last uses.
struct ReadNeeds {
    /// For each read, the first item that uses each of its chunks.
    first: Vec<Vec<usize>>,
    last: Vec<bool>,
}

impl ReadNeeds {
    fn of(plan: &StreamPlan, uses: &[Use]) -> ReadNeeds {
        let mut first = vec![Vec::new(); plan.reads.len()];
        let mut last = vec![false; uses.len()];
        let mut seen: HashMap<Key, usize> = HashMap::new();
        for (at, (read, item)) in plan.from.iter().zip(uses).enumerate() {
            match seen.insert((*read, *item), at) {
                Some(before) => last[before] = false,
                None => first[*read as usize].push(at),
            }
            last[at] = true;
        }
        ReadNeeds { first, last }
    }

    fn first_uses(&mut self, read: usize) -> Vec<usize> {
        std::mem::take(&mut self.first[read])
    }

    fn is_last(&self, at: usize) -> bool {
        self.last[at]
    }
}
