//! Sets of a region's pages, as sorted ranges.

use outlive_types::PageRange;

/// Returns the same pages, sorted and disjoint.
pub(super) fn joined(mut ranges: Vec<PageRange>) -> Vec<PageRange> {
    ranges.sort_unstable();
    let mut out: Vec<PageRange> = Vec::with_capacity(ranges.len());
    for next in ranges {
        match out.last_mut() {
            Some(last) if next.first <= last.first + last.count => {
                last.count = last.count.max(next.first + next.count - last.first);
            }
            _ => out.push(next),
        }
    }
    out
}

/// Returns the pages of `from` that are not in `other`; both sorted and disjoint.
pub(super) fn without(from: &[PageRange], other: &[PageRange]) -> Vec<PageRange> {
    let mut left = Vec::with_capacity(from.len());
    let mut others = other.iter().peekable();
    for range in from {
        let (mut first, end) = (range.first, range.first + range.count);
        while let Some(next) = others.next_if(|next| next.first < end) {
            if first < next.first {
                left.push(PageRange { first, count: next.first - first });
            }
            first = first.max(next.first + next.count);
        }
        if first < end {
            left.push(PageRange { first, count: end - first });
        }
    }
    left
}
