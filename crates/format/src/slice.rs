//! Slices: the pages of a chunk that are still in use.
//!
//! BLAKE3 is a hash tree, and a page is a subtree of it. A slice holds the pages that stay, and one
//! hash for each greatest subtree without any of them. So it proves each of its pages against the
//! fingerprint of the whole chunk, and no page tree that names the chunk has to change. See
//! O'Connor, Aumasson, Neves, Wilcox-O'Hearn, "BLAKE3: one function, fast everywhere", 2020,
//! section 2.1, "Tree structure". O'Connor, "The Bao spec", https://github.com/oconnor663/bao, has
//! slices for streams.

use crate::codec::damaged;
use blake3::Hasher;
use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root,
};
use outlive_types::{Fingerprint, PAGE_BYTES, Result};
use std::num::NonZeroU8;

const WHAT: &str = "slice of a chunk";
const HEAD_BYTES: usize = 4;
const HASH_BYTES: usize = 32;
/// Number of groups of pages that a page set can distinguish.
pub const PAGE_GROUPS_MAX: u32 = 16;

/// A set of pages of a chunk: a bit for each group of pages. A group is one page, unless the pool's
/// chunks may be longer than 16 pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PageSet(u16);

impl PageSet {
    /// All pages.
    pub const ALL: PageSet = PageSet(u16::MAX);

    /// Returns the set of pages from `first` on, in groups of `2^group_log2`. For a chunk with more
    /// than 16 groups it is all pages.
    pub fn of(first: u32, pages: u32, group_log2: u8) -> PageSet {
        if pages == 0 {
            return PageSet(0);
        }
        let group = |page: u32| page >> group_log2;
        let (from, last) = (group(first), group(first.saturating_add(pages - 1)));
        if last >= PAGE_GROUPS_MAX {
            return PageSet::ALL;
        }
        PageSet(range_bits(from, last + 1 - from))
    }

    /// Returns the binary logarithm of the pages of a group, in a pool with chunks of at most
    /// `chunk_bytes_max`.
    pub fn group_log2(chunk_bytes_max: u64) -> u8 {
        let pages = chunk_bytes_max / PAGE_BYTES as u64;
        pages.div_ceil(u64::from(PAGE_GROUPS_MAX)).next_power_of_two().trailing_zeros() as u8
    }

    /// Returns true if it has no pages.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the number of groups.
    pub fn groups(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns whether it contains every page of `other`.
    pub fn holds(self, other: PageSet) -> bool {
        other.0 & !self.0 == 0
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn with(self, other: PageSet) -> PageSet {
        PageSet(self.0 | other.0)
    }

    /// Returns the pages of the first `groups` groups.
    #[must_use]
    pub fn within(self, groups: u32) -> PageSet {
        PageSet(self.0 & range_bits(0, groups))
    }
}

fn range_bits(from: u32, groups: u32) -> u16 {
    (((1_u32 << groups.min(PAGE_GROUPS_MAX)) - 1) << from) as u16
}

/// The pages that a slice holds, as its directory entry lists them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SliceForm {
    pages: PageSet,
    /// Groups of the whole chunk, 2 to 16.
    groups: NonZeroU8,
    group_log2: u8,
}

impl SliceForm {
    /// Returns the form of some but not all pages of a chunk of `groups` groups, of `2^group_log2`
    /// pages each; `None` for all of them, or none.
    pub fn new(pages: PageSet, groups: u32, group_log2: u8) -> Option<SliceForm> {
        let all = PageSet::ALL.within(groups);
        let is_one = (2..=PAGE_GROUPS_MAX).contains(&groups)
            && group_log2 <= 15
            && !pages.is_empty()
            && pages != all
            && all.holds(pages);
        let groups = NonZeroU8::new(groups as u8)?;
        is_one.then_some(SliceForm { pages, groups, group_log2 })
    }

    /// Encodes the form in the 24 bits of a directory entry.
    pub(crate) fn bits(self) -> u32 {
        u32::from(self.pages.0) | (self.groups() - 1) << 16 | u32::from(self.group_log2) << 20
    }

    /// Decodes the result of `bits`.
    pub(crate) fn of_bits(bits: u32) -> Option<SliceForm> {
        SliceForm::new(PageSet(bits as u16), (bits >> 16 & 15) + 1, (bits >> 20) as u8)
    }

    /// Returns its pages.
    pub fn pages(self) -> PageSet {
        self.pages
    }

    /// Returns the binary logarithm of the pages of a group.
    pub fn group_log2(self) -> u8 {
        self.group_log2
    }

    /// Returns whether it holds `pages`, in groups of `2^group_log2` pages.
    pub fn holds(self, pages: PageSet, group_log2: u8) -> bool {
        self.group_log2 == group_log2 && self.pages.holds(pages)
    }

    /// Returns whether it holds these pages.
    pub fn covers(self, first: u32, pages: u32) -> bool {
        self.pages.holds(PageSet::of(first, pages, self.group_log2))
    }

    /// Returns the bytes of the pages that it holds.
    pub fn page_bytes(self) -> u64 {
        u64::from(self.pages.groups()) * self.group_bytes() as u64
    }

    /// Returns the length of the slice, in bytes.
    pub fn length(self) -> u64 {
        (HEAD_BYTES + HASH_BYTES * self.hashes(self.root())) as u64 + self.page_bytes()
    }

    fn groups(self) -> u32 {
        u32::from(self.groups.get())
    }

    fn group_bytes(self) -> usize {
        PAGE_BYTES << self.group_log2
    }

    fn root(self) -> Subtree {
        Subtree { first: 0, groups: self.groups() }
    }

    fn has(self, part: Subtree) -> Has {
        match self.pages.0 & range_bits(part.first, part.groups) {
            0 => Has::Nothing,
            bits if bits == range_bits(part.first, part.groups) => Has::All,
            _ => Has::Some,
        }
    }

    /// Returns the number of greatest subtrees without a page.
    fn hashes(self, part: Subtree) -> usize {
        match self.has(part) {
            Has::Nothing => 1,
            Has::All => 0,
            Has::Some => part.halves().into_iter().map(|half| self.hashes(half)).sum(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Has {
    Nothing,
    Some,
    All,
}

/// A subtree of the hash tree.
#[derive(Clone, Copy)]
struct Subtree {
    first: u32,
    groups: u32,
}

impl Subtree {
    /// Returns both halves. The left one is the greatest power of two below the whole.
    fn halves(self) -> [Subtree; 2] {
        let left = self.groups.next_power_of_two() / 2;
        let right = Subtree { first: self.first + left, groups: self.groups - left };
        [Subtree { first: self.first, groups: left }, right]
    }
}

/// A decoded slice, or a whole chunk as one.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    form: SliceForm,
    /// Length of the whole chunk, in bytes.
    length: usize,
    hashes: &'a [u8],
    pages: &'a [u8],
}

impl<'a> Slice<'a> {
    /// Decodes the bytes of a slice of this form.
    ///
    /// # Errors
    /// `Damaged` if the bytes are no such slice.
    pub fn decode(bytes: &'a [u8], form: SliceForm) -> Result<Slice<'a>> {
        let (Some((head, rest)), true) =
            (bytes.split_first_chunk::<HEAD_BYTES>(), bytes.len() as u64 == form.length())
        else {
            return Err(damaged(WHAT, "its length is not what its form says"));
        };
        let length = u32::from_le_bytes(*head) as usize;
        if length.div_ceil(form.group_bytes()) != form.groups() as usize {
            return Err(damaged(WHAT, format!("no chunk of {length} bytes has its form")));
        }
        let (hashes, pages) = rest.split_at(HASH_BYTES * form.hashes(form.root()));
        let slice = Slice { form, length, hashes, pages };
        match slice.padding().iter().all(|byte| *byte == 0) {
            true => Ok(slice),
            false => Err(damaged(WHAT, "there is something behind its last page")),
        }
    }

    /// Returns the zeros that fill up the last group.
    fn padding(&self) -> &'a [u8] {
        let missing = self.form.group_bytes() * self.form.groups() as usize - self.length;
        match self.form.has(Subtree { first: self.form.groups() - 1, groups: 1 }) {
            Has::All => &self.pages[self.pages.len() - missing..],
            _ => &[],
        }
    }

    /// Returns whether its pages, and the hashes of the others, belong to the chunk with this
    /// fingerprint.
    pub fn is_of(&self, fp: &Fingerprint) -> bool {
        let mut hashes = self.hashes.as_chunks::<HASH_BYTES>().0.iter();
        let [left, right] =
            self.form.root().halves().map(|half| self.chaining_value(half, &mut hashes));
        merge_subtrees_root(&left, &right, Mode::Hash).as_bytes() == &fp.0
    }

    /// Returns the form.
    pub fn form(&self) -> SliceForm {
        self.form
    }

    /// Returns bytes of the chunk; `None` unless it holds all their pages.
    pub fn get(&self, from: usize, length: usize) -> Option<&'a [u8]> {
        let end = from.checked_add(length).filter(|end| *end <= self.length)?;
        let group = self.form.group_bytes();
        let first = (from / group) as u32;
        let part = Subtree { first, groups: (end.div_ceil(group) as u32).saturating_sub(first) };
        if length == 0 {
            return Some(&[]);
        }
        let stored = (self.form.has(part) == Has::All).then(|| self.stored(part))?;
        stored.get(from - first as usize * group..)?.get(..length)
    }

    /// Returns the same chunk with fewer pages. It must hold all of `keep`.
    pub fn cut(&self, keep: PageSet) -> Option<(SliceForm, Vec<u8>)> {
        let groups = self.form.groups();
        let form = SliceForm::new(keep.within(groups), groups, self.form.group_log2)?;
        if !self.form.pages.holds(form.pages) {
            return None;
        }
        let mut out = Vec::with_capacity(form.length() as usize);
        out.extend_from_slice(&(self.length as u32).to_le_bytes());
        let mut hashes = self.hashes.as_chunks::<HASH_BYTES>().0.iter();
        self.cut_hashes(form, form.root(), &mut hashes, &mut out);
        for first in 0..groups {
            let group = Subtree { first, groups: 1 };
            if form.has(group) == Has::All {
                out.extend_from_slice(self.stored(group));
            }
        }
        out.resize(form.length() as usize, 0);
        Some((form, out))
    }

    fn cut_hashes(
        &self,
        form: SliceForm,
        part: Subtree,
        hashes: &mut std::slice::Iter<'_, [u8; HASH_BYTES]>,
        out: &mut Vec<u8>,
    ) {
        match form.has(part) {
            Has::All => {}
            Has::Nothing => out.extend_from_slice(&self.chaining_value(part, hashes)),
            Has::Some => {
                for half in part.halves() {
                    self.cut_hashes(form, half, hashes, out);
                }
            }
        }
    }

    /// Returns the hash of a subtree: of its pages, or the stored one. `hashes` come in the order
    /// of the subtrees.
    fn chaining_value(
        &self,
        part: Subtree,
        hashes: &mut std::slice::Iter<'_, [u8; HASH_BYTES]>,
    ) -> ChainingValue {
        match self.form.has(part) {
            // The form determines their number.
            Has::Nothing => hashes.next().copied().unwrap_or_default(),
            Has::All => {
                let offset = u64::from(part.first) * self.form.group_bytes() as u64;
                let mut hasher = Hasher::new();
                hasher.set_input_offset(offset).update(self.stored(part)).finalize_non_root()
            }
            Has::Some => {
                let [left, right] = part.halves().map(|half| self.chaining_value(half, hashes));
                merge_subtrees_non_root(&left, &right, Mode::Hash)
            }
        }
    }

    /// Returns the bytes of a subtree all of whose pages are held.
    fn stored(&self, part: Subtree) -> &'a [u8] {
        let group = self.form.group_bytes();
        let before = self.form.pages.0 & range_bits(0, part.first);
        let from = before.count_ones() as usize * group;
        let end = ((part.first + part.groups) as usize * group).min(self.length);
        &self.pages[from..][..end - part.first as usize * group]
    }
}

/// Cuts a whole chunk down to the pages `keep`; `None` if that is the whole chunk, or it cannot be
/// cut.
pub fn cut_chunk(chunk: &[u8], keep: PageSet, group_log2: u8) -> Option<(SliceForm, Vec<u8>)> {
    let groups = chunk.len().div_ceil(PAGE_BYTES << group_log2) as u32;
    let keep = keep.within(groups);
    let form = SliceForm::new(keep, groups, group_log2)?;
    // Treats the chunk as a slice with all pages and no hashes.
    let form = SliceForm { pages: PageSet::ALL.within(groups), ..form };
    Slice { form, length: chunk.len(), hashes: &[], pages: chunk }.cut(keep)
}

#[cfg(test)]
mod tests;
