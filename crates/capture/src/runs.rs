//! Conversion of dirty page ranges to the runs that the store takes.

use outlive_types::{BLOCK_PAGES, FreezeRequest, PAGE_BYTES, PageRange, Run, StreamDesc, pages_of};
use std::collections::HashMap;

/// Returns the clean pages that the request asks for, for each stream that has some; cut to the
/// stream.
pub(crate) fn wanted(
    request: &FreezeRequest,
    streams: &[StreamDesc],
) -> HashMap<usize, Vec<PageRange>> {
    let mut wanted: HashMap<usize, Vec<PageRange>> = HashMap::new();
    if request.also.is_empty() {
        return wanted;
    }
    let numbers: HashMap<&str, usize> =
        streams.iter().enumerate().map(|(number, stream)| (&stream.name[..], number)).collect();
    for (name, range) in &request.also {
        let Some(&stream) = numbers.get(&name[..]) else { continue };
        let end = range.first.saturating_add(range.count).min(pages_of(streams[stream].bytes));
        if range.first < end {
            let count = end - range.first;
            wanted.entry(stream).or_default().push(PageRange { first: range.first, count });
        }
    }
    wanted
}

/// Appends the runs of one stream: the pages of `dirty` and `also`, cut at block boundaries.
pub(crate) fn push_runs(
    runs: &mut Vec<Run>,
    stream: u32,
    dirty: &[PageRange],
    also: Option<Vec<PageRange>>,
) {
    let Some(mut ranges) = also else {
        dirty
            .iter()
            .for_each(|range| push_cut(runs, stream, range.first, range.first + range.count));
        return;
    };
    ranges.extend_from_slice(dirty);
    ranges.sort_unstable();
    let mut ranges = ranges.into_iter();
    let Some(PageRange { mut first, count }) = ranges.next() else { return };
    let mut end = first + count;
    for next in ranges {
        if next.first > end {
            push_cut(runs, stream, first, end);
            first = next.first;
        }
        end = end.max(next.first + next.count);
    }
    push_cut(runs, stream, first, end);
}

fn push_cut(runs: &mut Vec<Run>, stream: u32, mut first: u64, end: u64) {
    const BLOCK: u64 = BLOCK_PAGES as u64;
    while first < end {
        let stop = ((first / BLOCK + 1) * BLOCK).min(end);
        runs.push(Run { stream, pages: (stop - first) as u32, first_page: first });
        first = stop;
    }
}

/// Returns the extent of a run in its stream of `stream_bytes`: offset and length.
pub(crate) fn extent(run: &Run, stream_bytes: u64) -> (usize, usize) {
    let offset = run.first_page * PAGE_BYTES as u64;
    let end = (offset + u64::from(run.pages) * PAGE_BYTES as u64).min(stream_bytes);
    (offset as usize, (end - offset) as usize)
}
