//! Gives files back in the order of the listing, for streams. Reading goes ahead by a bounded
//! number of bytes; within them it is in container order. (What a stream reads twice, because
//! files share it at a distance, is for `restore/planner` to keep.)

use super::checkpoint::FilesCheckpoint;
use super::choice::{Choice, ChosenItems};
use super::recipe::read_pieces;
use outlive_format::{Content, Item, Piece};
use outlive_types::{Error, Result};
use std::sync::mpsc::{SyncSender, sync_channel};

/// Bytes read in one go. Three times as many are in memory at most.
const AHEAD_BYTES: u64 = 16 << 20;
/// Items without content in one go.
const AHEAD_PARTS: usize = 8192;

/// What comes next.
#[derive(Debug)]
pub enum InOrder<'a> {
    /// An item; its content follows.
    Item(&'a Item),
    /// The next bytes of its content, verified.
    Bytes(&'a [u8]),
    /// So many zeros of its content.
    Zeros(u64),
}

enum Part {
    Item(Box<Item>),
    Inline(Vec<u8>),
    Zeros(u64),
    Chunk(usize),
}

/// Some parts, and the chunks that they name.
type Batch = (Vec<Part>, Vec<Vec<u8>>);

impl FilesCheckpoint {
    /// Hands all chosen items and their contents to `take`, one after the other.
    ///
    /// # Errors
    /// `Damaged` for the first thing that is missing or wrong: all before it was right. What `take`
    /// reports.
    pub fn in_order(
        &self,
        choice: &Choice,
        take: &mut dyn FnMut(InOrder<'_>) -> Result<()>,
    ) -> Result<()> {
        let (sender, batches) = sync_channel::<Result<Batch>>(1);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut ahead = Ahead {
                    checkpoint: self,
                    parts: Vec::new(),
                    pieces: Vec::new(),
                    bytes: 0,
                    sender,
                };
                if let Err(Some(error)) = ahead.run(choice) {
                    let _ = ahead.sender.send(Err(self.context(error)));
                }
            });
            for batch in batches {
                let (parts, chunks) = batch?;
                for part in &parts {
                    take(match part {
                        Part::Item(item) => InOrder::Item(item),
                        Part::Inline(bytes) => InOrder::Bytes(bytes),
                        Part::Zeros(bytes) => InOrder::Zeros(*bytes),
                        Part::Chunk(at) => InOrder::Bytes(&chunks[*at]),
                    })?;
                }
            }
            Ok(())
        })
    }
}

/// The thread that reads ahead.
struct Ahead<'a> {
    checkpoint: &'a FilesCheckpoint,
    parts: Vec<Part>,
    pieces: Vec<Piece>,
    bytes: u64,
    sender: SyncSender<Result<Batch>>,
}

/// Without an error: nobody listens any more.
type Ended = std::result::Result<(), Option<Error>>;

impl Ahead<'_> {
    fn run(&mut self, choice: &Choice) -> Ended {
        let checkpoint = self.checkpoint;
        let mut items = ChosenItems::new(checkpoint, choice)?;
        while let Some((mut item, _)) = items.next()? {
            let content = std::mem::take(&mut item.content);
            let bare = Item { content: Content::Empty, ..item.clone() };
            self.parts.push(Part::Item(Box::new(bare)));
            if let Content::Inline(bytes) = content {
                self.parts.push(Part::Inline(bytes));
            } else {
                item.content = content;
                let mut gone = false;
                let each = &mut |piece: Piece| match self.piece(piece) {
                    Ok(()) => Ok(()),
                    Err(Some(error)) => Err(error),
                    Err(None) => {
                        gone = true;
                        Err(Error::retry("nobody listens any more"))
                    }
                };
                let read = checkpoint.pieces(&item, each);
                read.map_err(|error| (!gone).then_some(error))?;
            }
            if self.parts.len() >= AHEAD_PARTS {
                self.send()?;
            }
        }
        self.send()
    }

    fn piece(&mut self, piece: Piece) -> Ended {
        if piece.is_zeros() {
            self.parts.push(Part::Zeros(piece.bytes));
            return Ok(());
        }
        self.parts.push(Part::Chunk(self.pieces.len()));
        self.pieces.push(piece);
        self.bytes += piece.bytes;
        if self.bytes >= AHEAD_BYTES || self.parts.len() >= AHEAD_PARTS {
            self.send()?;
        }
        Ok(())
    }

    fn send(&mut self) -> Ended {
        let pieces = std::mem::take(&mut self.pieces);
        let parts = std::mem::take(&mut self.parts);
        self.bytes = 0;
        let chunks = read_pieces(self.checkpoint.pool(), &self.checkpoint.locator, &pieces)?;
        self.sender.send(Ok((parts, chunks))).map_err(|_| None)
    }
}
