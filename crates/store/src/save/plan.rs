//! The plan of a save: plain data, made from the result of the freeze before anything is written.

use outlive_types::{BLOCK_PAGES, Epoch, Frozen, PACKED_STREAM, PAGE_BYTES};
use std::fmt;
use std::ops::Range;

/// The work of a save.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SavePlan {
    /// The epoch of the new checkpoint.
    pub epoch: Epoch,
    /// The epoch with which it shares subtrees, 0 for none.
    pub parent: Epoch,
    /// Every stream of the image, in the image's order.
    pub streams: Vec<StreamPlan>,
    /// The blocks with dirty pages, in stream and page order.
    pub blocks: Vec<BlockWork>,
    /// Number of blocks at the start of `blocks` that hold pages of the program's own memory: the
    /// program waits until they are read.
    pub live_blocks: usize,
    /// Bytes of dirty pages, including pages that are rewritten to keep restores fast.
    pub dirty_bytes: u64,
    /// Bytes among them that are read from the program's memory while it waits.
    pub live_bytes: u64,
    /// Number of unchanged pages to rewrite.
    pub evacuated_pages: u64,
}

/// A stream's part of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamPlan {
    /// Its name; empty for the packed stream.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Its dirty pages.
    pub dirty_pages: u64,
}

/// The dirty pages of one block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockWork {
    /// Index into [`SavePlan::streams`].
    pub stream: u32,
    /// Number of the block in its stream.
    pub block: u64,
    /// Indexes of its runs in the frozen image.
    pub runs: Range<usize>,
}

impl SavePlan {
    /// Plans the save of a frozen image.
    pub fn new(epoch: Epoch, parent: Epoch, frozen: &dyn Frozen) -> SavePlan {
        let mut streams: Vec<StreamPlan> = frozen
            .streams()
            .iter()
            .map(|s| StreamPlan { name: s.name.clone(), bytes: s.bytes, dirty_pages: 0 })
            .collect();
        let mut blocks: Vec<BlockWork> = Vec::new();
        let (mut dirty_bytes, mut live_bytes, mut live_blocks) = (0, 0, 0);
        for (at, run) in frozen.runs().iter().enumerate() {
            let stream = &mut streams[run.stream as usize];
            stream.dirty_pages += u64::from(run.pages);
            let first = run.first_page * PAGE_BYTES as u64;
            let length = (u64::from(run.pages) * PAGE_BYTES as u64).min(stream.bytes - first);
            dirty_bytes += length;
            let block = run.first_page / BLOCK_PAGES as u64;
            match blocks.last_mut() {
                Some(last) if last.stream == run.stream && last.block == block => {
                    last.runs.end = at + 1;
                }
                _ => blocks.push(BlockWork { stream: run.stream, block, runs: at..at + 1 }),
            }
            if at < frozen.live_runs() {
                live_bytes += length;
                live_blocks = blocks.len();
            }
        }
        let pages: u64 = streams.iter().map(|stream| stream.dirty_pages).sum();
        let evacuated_pages = pages.saturating_sub(frozen.changed_pages());
        SavePlan {
            epoch,
            parent,
            streams,
            blocks,
            live_blocks,
            dirty_bytes,
            live_bytes,
            evacuated_pages,
        }
    }
}

impl fmt::Display for SavePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "save epoch {} after {}: {} bytes in {} blocks, {} of them read while the program waits",
            self.epoch,
            self.parent,
            self.dirty_bytes,
            self.blocks.len(),
            self.live_bytes
        )?;
        for stream in &self.streams {
            let name = if stream.name == PACKED_STREAM { "(packed)" } else { &stream.name };
            writeln!(f, "  {name:?}: {} pages of {} bytes", stream.dirty_pages, stream.bytes)?;
        }
        Ok(())
    }
}
