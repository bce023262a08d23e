//! Bytes that were read and verified: a chunk or node, or some pages of a chunk.

use outlive_chunk::fingerprint;
use outlive_format::{PageSet, Slice, SliceForm, cut_chunk};
use outlive_types::{Error, Fingerprint, Result};

/// Verified bytes. Of a slice only its own pages are available.
#[derive(Clone, Copy, Debug)]
pub struct Verified<'a> {
    /// The bytes as they were stored, decompressed.
    pub stored: &'a [u8],
    slice: Option<Slice<'a>>,
}

impl<'a> Verified<'a> {
    /// Verifies bytes; `None` if they do not match the fingerprint.
    ///
    /// # Errors
    /// `Damaged` if they are no slice of this form.
    pub fn new(
        stored: &'a [u8],
        form: Option<SliceForm>,
        fp: &Fingerprint,
    ) -> Result<Option<Verified<'a>>> {
        let Verified { slice, .. } = Verified::known(stored, form)?;
        let is_right = match &slice {
            None => fingerprint(stored) == *fp,
            Some(slice) => slice.is_of(fp),
        };
        Ok(is_right.then_some(Verified { stored, slice }))
    }

    /// Takes bytes that were verified before.
    ///
    /// # Errors
    /// `Damaged` if they are no slice of this form.
    pub fn known(stored: &'a [u8], form: Option<SliceForm>) -> Result<Verified<'a>> {
        let slice = form.map(|form| Slice::decode(stored, form)).transpose()?;
        Ok(Verified { stored, slice })
    }

    /// Returns all bytes of the chunk or node.
    ///
    /// # Errors
    /// `Bug` if it is a slice: a plan that needs all of a chunk does not read slices.
    pub fn whole(&self) -> Result<&'a [u8]> {
        match self.slice {
            None => Ok(self.stored),
            Some(_) => Err(Error::bug("a slice was read where a whole chunk is needed")),
        }
    }

    /// Returns some bytes of the chunk.
    ///
    /// # Errors
    /// `Damaged` if the chunk is too short, or a slice without their pages.
    pub fn get(&self, from: u32, length: u32) -> Result<&'a [u8]> {
        let (from, length) = (from as usize, length as usize);
        let found = match &self.slice {
            None => self.stored.get(from..).and_then(|rest| rest.get(..length)),
            Some(slice) => slice.get(from, length),
        };
        found.ok_or_else(|| {
            Error::damaged(format!("a chunk lacks bytes {from} to {} of a leaf", from + length))
        })
    }

    /// Makes a slice with fewer pages; `None` if it would keep all pages, or cannot be made.
    pub fn cut(&self, keep: PageSet, group_log2: u8) -> Option<(SliceForm, Vec<u8>)> {
        match &self.slice {
            None => cut_chunk(self.stored, keep, group_log2),
            Some(slice) if slice.form().group_log2() != group_log2 => None,
            Some(slice) if keep.holds(slice.form().pages()) => None,
            Some(slice) => slice.cut(keep),
        }
    }
}
