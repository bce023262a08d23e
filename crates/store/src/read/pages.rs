//! Verifies single pages in groups: that is faster than one by one
//! (`outlive_chunk::fingerprint_pages`).

use crate::index::ReadItem;
use outlive_chunk::{PAGES_AT_ONCE, fingerprint_pages};
use outlive_pool::Span;
use outlive_types::PAGE_BYTES;
use std::collections::VecDeque;

/// The pages of one read that were verified before they are passed on.
#[derive(Debug, Default)]
pub(super) struct VerifiedPages {
    /// Numbers of items, ascending, each with whether it is right.
    found: VecDeque<(usize, bool)>,
    /// Number of the item after the last group.
    end: usize,
}

impl VerifiedPages {
    /// Returns whether item `at` is a page with the right fingerprint. False if it is no page, or
    /// must be verified by itself. The caller asks for items of one read, in ascending order.
    pub fn knows(
        &mut self,
        items: &[(u32, ReadItem)],
        at: usize,
        (read, span): (&[u8], &Span),
    ) -> bool {
        if at >= self.end && page_in(&items[at].1, read, span).is_some() {
            self.verify_from(items, at, (read, span));
        }
        while self.found.front().is_some_and(|(number, _)| *number < at) {
            self.found.pop_front();
        }
        self.found.front() == Some(&(at, true))
    }

    fn verify_from(
        &mut self,
        items: &[(u32, ReadItem)],
        first: usize,
        (read, span): (&[u8], &Span),
    ) {
        // An item that is wanted twice follows itself.
        let is_new = |at: usize| at == first || items[at].1.extent != items[at - 1].1.extent;
        let pages = (first..items.len()).filter(|at| is_new(*at));
        let pages = pages.filter_map(|at| Some((at, page_in(&items[at].1, read, span)?)));
        let (numbers, pages): (Vec<usize>, Vec<&[u8; PAGE_BYTES]>) =
            pages.take(PAGES_AT_ONCE).unzip();
        self.end = numbers.last().map_or(self.end, |last| last + 1);
        let right = fingerprint_pages(&pages);
        self.found =
            numbers.into_iter().zip(right).map(|(at, fp)| (at, fp == items[at].1.fp)).collect();
    }

    /// Forgets the pages, since the bytes were read again.
    pub fn forget(&mut self) {
        self.found.clear();
        self.end = 0;
    }
}

/// Returns the bytes of an item, if they are one page as the program had it.
fn page_in<'a>(item: &ReadItem, read: &'a [u8], span: &Span) -> Option<&'a [u8; PAGE_BYTES]> {
    let extent = &item.extent;
    let is_page =
        extent.length as usize == PAGE_BYTES && extent.frame.is_none() && extent.slice.is_none();
    if !is_page {
        return None;
    }
    read.get((extent.offset - span.offset) as usize..)?.first_chunk()
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_chunk::fingerprint;
    use outlive_pool::PackExtent;
    use outlive_types::{PackId, SessionId};

    /// Twenty pages: one is wanted twice, one is wrong, and one is wanted with its neighbour.
    #[test]
    fn only_right_pages_are_known() {
        let pack = PackId::new(SessionId([1; 12]), 0, 0);
        let bytes: Vec<u8> = (0..20 * PAGE_BYTES).map(|at| (at / PAGE_BYTES) as u8).collect();
        let span = Span { pack, offset: 4096, length: bytes.len() as u32 };
        let item = |first: usize, pages: usize| {
            let (offset, length) =
                ((4096 + first * PAGE_BYTES) as u32, (pages * PAGE_BYTES) as u32);
            let fp = fingerprint(&bytes[first * PAGE_BYTES..][..pages * PAGE_BYTES]);
            (
                0,
                ReadItem {
                    fp,
                    extent: PackExtent { pack, offset, length, frame: None, slice: None },
                },
            )
        };
        let mut items: Vec<_> = (0..18).map(|page| item(page, 1)).collect();
        items[3].1.fp = fingerprint(b"something else");
        items.insert(6, items[5]);
        items.push(item(18, 2));
        let mut pages = VerifiedPages::default();
        let known: Vec<bool> =
            (0..items.len()).map(|at| pages.knows(&items, at, (&bytes, &span))).collect();
        // The second time the caller knows it from the first.
        let want: Vec<bool> = (0..20).map(|at| ![3, 6, 19].contains(&at)).collect();
        assert_eq!(known, want);

        let (damaged, mut pages) = (vec![0xEE; bytes.len()], VerifiedPages::default());
        assert!(pages.knows(&items, 0, (&bytes, &span)));
        pages.forget();
        assert!(
            !pages.knows(&items, 1, (&damaged, &span)),
            "what was read again is verified again"
        );
    }
}
