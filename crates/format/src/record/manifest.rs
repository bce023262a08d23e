//! The manifest: a committed checkpoint.

use super::image::{Image, ImageKind};
use super::remarks::{LABEL_BYTES_MAX, Remarks};
use super::table::ImageTable;
use crate::codec::{Check, Reader, Writer, demand};
use outlive_types::{Epoch, Result, SessionId};

const HEAD_BYTES: usize = 116;

/// A checkpoint.
#[derive(Clone, PartialEq, Debug)]
pub struct Manifest {
    /// The session that wrote it.
    pub session: SessionId,
    /// Number of ranks, at least 1.
    pub world_size: u32,
    /// Its epoch, from 1.
    pub epoch: Epoch,
    /// Epoch with which it shares subtrees; 0 if there was none.
    pub parent: Epoch,
    /// Newest epoch that its program had restored or saved: the program continued from there. 0 if
    /// there was none.
    pub predecessor: Epoch,
    /// Time of the freeze, in nanoseconds since 1970.
    pub frozen_ns: u64,
    /// Figures of the save.
    pub figures: SaveFigures,
    /// Number of failed saves of its program since the checkpoint before it; 65,535 also stands for
    /// more.
    pub failed_before: u16,
    /// The user's remarks.
    pub remarks: Remarks,
    /// The program's own figures of merit: names, sorted, each once, and values, none of them a
    /// NaN.
    pub metrics: Vec<(String, f64)>,
    /// The images of ranks 0 to world size - 1.
    pub images: Images,
}

impl Eq for Manifest {} // a metric is never a NaN

/// Figures of a save, for reports and plots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SaveFigures {
    /// All bytes that it wrote, except for the manifest.
    pub new_bytes: u64,
    /// Bytes of the dirty pages; for files, bytes that were read.
    pub changed_bytes: u64,
    /// Bytes of chunks that were already stored.
    pub known_bytes: u64,
    /// Bytes of zero pages.
    pub zero_bytes: u64,
    /// Bytes of the new chunks before compression.
    pub raw_bytes: u64,
    /// Duration of the stall, in nanoseconds.
    pub stall_ns: u64,
    /// Time from the end of the freeze to the commit, in nanoseconds.
    pub drain_ns: u64,
}

/// The images of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Images {
    /// The only image; the manifest contains its header.
    One(Image),
    /// The images of several ranks; a table outside the manifest contains their headers.
    Table(ImageTable),
}

impl Images {
    /// Returns the image of a checkpoint with one rank.
    pub fn one(&self) -> Option<&Image> {
        match self {
            Images::One(image) => Some(image),
            Images::Table(_) => None,
        }
    }

    /// Returns the image table, if there is one.
    pub fn table(&self) -> Option<&ImageTable> {
        match self {
            Images::One(_) => None,
            Images::Table(table) => Some(table),
        }
    }
}

impl Manifest {
    /// Returns the kind of its images' contents.
    pub fn kind(&self) -> ImageKind {
        match &self.images {
            Images::One(image) => image.reference.kind,
            Images::Table(table) => table.kind,
        }
    }

    /// Returns whether it is a checkpoint of files.
    pub fn is_of_files(&self) -> bool {
        self.kind() == ImageKind::Files
    }

    /// Returns the number of regions, or items, of all images.
    pub fn regions(&self) -> u64 {
        match &self.images {
            Images::One(image) => image.reference.regions,
            Images::Table(table) => table.regions,
        }
    }

    /// Returns the bytes of all images' regions or files.
    pub fn state_bytes(&self) -> u64 {
        match &self.images {
            Images::One(image) => image.reference.state_bytes,
            Images::Table(table) => table.state_bytes,
        }
    }

    pub(super) fn encoded_len(&self) -> usize {
        let metrics: usize = self.metrics.iter().map(|(name, _)| 10 + name.len()).sum();
        let images = match &self.images {
            Images::One(image) => image.encoded_len(),
            Images::Table(table) => table.encoded_len(),
        };
        HEAD_BYTES + images + metrics + self.remarks.encoded_len()
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.bytes(&self.session.0);
        out.u32(self.world_size);
        out.u64(self.epoch);
        out.u64(self.parent);
        out.u64(self.predecessor);
        out.u64(self.frozen_ns);
        self.figures.write(out);
        out.u32(match &self.images {
            Images::One(_) => 0,
            Images::Table(table) => table.pages.len() as u32,
        });
        out.u16(self.metrics.len() as u16);
        out.u16(self.remarks.label.len() as u16);
        out.u8(self.remarks.flags());
        out.u8(self.remarks.tags.len() as u8);
        out.u16(self.failed_before);
        match &self.images {
            Images::One(image) => image.write(out),
            Images::Table(table) => table.write(out),
        }
        for (name, value) in &self.metrics {
            out.u16(name.len() as u16);
            out.bytes(name.as_bytes());
            out.u64(value.to_bits());
        }
        self.remarks.write(out);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Manifest> {
        let (session, world_size) = (from.session()?, from.u32()?);
        let (epoch, parent) = (from.u64()?, from.u64()?);
        let (predecessor, frozen_ns) = (from.u64()?, from.u64()?);
        let figures = SaveFigures::read(from)?;
        let page_count = from.u32()?;
        let (metric_count, label_bytes) = (from.u16()?, from.u16()?);
        let (flags, tag_count) = (from.u8()?, from.u8()?);
        let failed_before = from.u16()?;
        let images = match page_count {
            0 => Images::One(Image::read(from)?),
            pages => Images::Table(ImageTable::read(pages, from)?),
        };
        let mut metrics = Vec::with_capacity(from.count(metric_count.into(), 10)?);
        for _ in 0..metric_count {
            let name_bytes = from.u16()?;
            let name = from.text(name_bytes.into())?.to_owned();
            metrics.push((name, f64::from_bits(from.u64()?)));
        }
        let remarks = Remarks::read(flags, label_bytes, tag_count, from)?;
        Ok(Manifest {
            session,
            world_size,
            epoch,
            parent,
            predecessor,
            frozen_ns,
            figures,
            failed_before,
            remarks,
            metrics,
            images,
        })
    }

    pub(super) fn check(&self) -> Check {
        let Manifest { world_size, epoch, parent, predecessor, .. } = *self;
        demand!(epoch > 0 && parent < epoch, "epoch {epoch} cannot follow epoch {parent}");
        demand!(predecessor < epoch, "epoch {epoch} cannot go on from epoch {predecessor}");
        match &self.images {
            Images::One(image) => {
                demand!(
                    (world_size, image.reference.rank) == (1, 0),
                    "it has the image of rank {} for {world_size} ranks",
                    image.reference.rank
                );
                image.check()?;
            }
            Images::Table(table) => {
                demand!(world_size > 1, "it has a table for {world_size} images");
                table.check(world_size)?;
            }
        }
        demand!(u16::try_from(self.metrics.len()).is_ok(), "it has too many metrics");
        for (name, value) in &self.metrics {
            demand!(
                (1..=LABEL_BYTES_MAX).contains(&name.len()) && !value.is_nan(),
                "metric {name:?} cannot have the value {value}"
            );
        }
        let sorted = self.metrics.is_sorted_by(|a, b| a.0 < b.0);
        demand!(sorted, "its metrics are out of order, or one is there twice");
        self.remarks.check()
    }
}

impl SaveFigures {
    pub(crate) fn write(&self, out: &mut Writer) {
        let SaveFigures { new_bytes, changed_bytes, known_bytes, zero_bytes, .. } = *self;
        let counted = [new_bytes, changed_bytes, known_bytes, zero_bytes];
        let timed = [self.raw_bytes, self.stall_ns, self.drain_ns];
        counted.into_iter().chain(timed).for_each(|figure| out.u64(figure));
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<SaveFigures> {
        Ok(SaveFigures {
            new_bytes: from.u64()?,
            changed_bytes: from.u64()?,
            known_bytes: from.u64()?,
            zero_bytes: from.u64()?,
            raw_bytes: from.u64()?,
            stall_ns: from.u64()?,
            drain_ns: from.u64()?,
        })
    }
}
