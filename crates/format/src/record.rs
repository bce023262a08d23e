//! Records of a job's log: the envelope and the five kinds of body.

use crate::codec::{Check, Reader, Writer, damaged, demand, encodable, fingerprint};
use crate::tree::TreeRef;
use outlive_types::{Epoch, Fingerprint, PackId, Rank, Result, SessionId};

const WHAT: &str = "log record";
const MAGIC: &[u8; 4] = b"OLRC";
const HEAD_BYTES: usize = 56;
const FINGERPRINT_BYTES: usize = 32;
const IMAGE_BYTES: usize = 24 + 2 * TreeRef::ENCODED_BYTES;
const SEGMENT_BYTES: usize = 60;

/// One record of a job's log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Its place in the log, from 1.
    pub number: u64,
    /// Fingerprint of the record before it, all bytes of it; zero for the first.
    pub previous: Fingerprint,
    /// What it says.
    pub body: Body,
}

/// What a record says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// A writer begins.
    Session(Session),
    /// A checkpoint exists.
    Manifest(Manifest),
    /// A gc is about to delete packs.
    Sweep(Sweep),
    /// A writer ends.
    Close(Close),
    /// A gc has moved chunks.
    Relocation(Relocation),
}

/// Opens a session and fences every earlier one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    /// The session.
    pub session: SessionId,
    /// The writer's process id.
    pub process_id: u32,
    /// When it was opened, nanoseconds since 1970.
    pub opened_ns: u64,
    /// The writer's host name, at most 65,535 bytes.
    pub host: String,
}

/// A checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manifest {
    /// The session that wrote it.
    pub session: SessionId,
    /// Number of ranks, at least 1.
    pub world_size: u32,
    /// Its epoch, from 1.
    pub epoch: Epoch,
    /// The epoch that it shares subtrees with; 0 if there was none.
    pub parent: Epoch,
    /// When it was frozen, nanoseconds since 1970.
    pub frozen_ns: u64,
    /// All bytes that this save wrote, but for the manifest.
    pub new_bytes: u64,
    /// Bytes of the pages that were dirty.
    pub changed_bytes: u64,
    /// The images of ranks 0 to world size - 1, in this order.
    pub images: Vec<ImageRef>,
    /// Resolve every chunk and node that the images need.
    pub segments: Vec<SegmentRef>,
}

/// One rank's image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageRef {
    /// The rank.
    pub rank: Rank,
    /// Number of its regions.
    pub regions: u64,
    /// Bytes of its regions.
    pub state_bytes: u64,
    /// Its catalog stream.
    pub catalog: TreeRef,
    /// Its packed stream; [`TreeRef::EMPTY`] if it has none.
    pub packed: TreeRef,
}

/// Which of the two things a [`SegmentRef`] names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SegmentKind {
    /// A pack's own directory, behind its containers.
    Directory,
    /// A merge of directories, in a container.
    Segment,
}

/// Where a directory or segment is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SegmentRef {
    /// The pack that holds it.
    pub pack: PackId,
    /// Logical offset in the pack, in bytes; for a directory C, the length of all containers.
    pub offset: u32,
    /// Length in bytes.
    pub length: u32,
    /// Directory or segment.
    pub kind: SegmentKind,
    /// How many merges are behind it; 0 for a directory.
    pub level: u8,
    /// Fingerprint of all its bytes.
    pub fp: Fingerprint,
}

/// What a gc condemned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sweep {
    /// The gc run, an id like a session's.
    pub gc: SessionId,
    /// The packs that it will delete.
    pub packs: Vec<PackId>,
}

/// Ends a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Close {
    /// The session.
    pub session: SessionId,
}

/// Where a gc has put chunks of packs that it will condemn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Relocation {
    /// The gc run, an id like a session's.
    pub gc: SessionId,
    /// Resolve the moved chunks and nodes.
    pub segments: Vec<SegmentRef>,
}

impl Record {
    /// The record's bytes.
    ///
    /// # Errors
    /// `Bug` for fields that contradict each other or exceed the format's limits.
    pub fn encode(&self) -> Result<Vec<u8>> {
        encodable(WHAT, self.check())?;
        let (kind, length) = match &self.body {
            Body::Session(session) => (1, 26 + session.host.len()),
            Body::Manifest(Manifest { images, segments, .. }) => {
                (2, 64 + IMAGE_BYTES * images.len() + SEGMENT_BYTES * segments.len())
            }
            Body::Sweep(sweep) => (3, 24 + 16 * sweep.packs.len()),
            Body::Close(_) => (4, 16),
            Body::Relocation(moved) => (5, 16 + SEGMENT_BYTES * moved.segments.len()),
        };
        let mut out = Writer::begin(MAGIC, HEAD_BYTES + length + FINGERPRINT_BYTES);
        out.u8(kind);
        out.reserved(1);
        out.u64(self.number);
        out.u64(length as u64);
        out.bytes(&self.previous.0);
        match &self.body {
            Body::Session(session) => session.write(&mut out),
            Body::Manifest(manifest) => manifest.write(&mut out),
            Body::Sweep(sweep) => sweep.write(&mut out),
            Body::Close(close) => {
                out.bytes(&close.session.0);
                out.reserved(4);
            }
            Body::Relocation(moved) => {
                out.bytes(&moved.gc.0);
                write_segments(&moved.segments, &mut out);
            }
        }
        debug_assert_eq!(out.written().len(), HEAD_BYTES + length);
        out.bytes(&fingerprint(out.written()).0);
        Ok(out.finish())
    }

    /// Reads a record from all of `bytes`.
    ///
    /// # Errors
    /// `Damaged` for anything that `encode` does not write, `Invalid` for another version.
    pub fn decode(bytes: &[u8]) -> Result<Record> {
        let Some((guarded, stored)) = bytes.split_last_chunk::<FINGERPRINT_BYTES>() else {
            return Err(damaged(WHAT, "it ends too early"));
        };
        if fingerprint(guarded).0 != *stored {
            return Err(damaged(WHAT, "its fingerprint does not match"));
        }
        let mut from = Reader::new(WHAT, guarded);
        from.begin(MAGIC)?;
        let kind = from.u8()?;
        from.reserved(1)?;
        let (number, length, previous) = (from.u64()?, from.u64()?, from.fingerprint()?);
        if length != from.remaining() as u64 {
            return Err(from.damaged(format!("its body is said to have {length} bytes")));
        }
        let body = match kind {
            1 => Body::Session(Session::read(&mut from)?),
            2 => Body::Manifest(Manifest::read(&mut from)?),
            3 => Body::Sweep(Sweep::read(&mut from)?),
            4 => {
                let session = from.session()?;
                from.reserved(4)?;
                Body::Close(Close { session })
            }
            5 => {
                let gc = from.session()?;
                let count = from.u32()?;
                Body::Relocation(Relocation { gc, segments: read_segments(count, &mut from)? })
            }
            other => return Err(from.damaged(format!("it has kind {other}"))),
        };
        let record = Record { number, previous, body };
        from.accept(record.check())?;
        from.end()?;
        Ok(record)
    }

    fn check(&self) -> Check {
        demand!(self.number > 0, "records are numbered from 1");
        demand!(self.number > 1 || self.previous.is_zero(), "the first record has a previous one");
        let countable = |count: usize| u32::try_from(count).is_ok();
        match &self.body {
            Body::Session(session) => {
                demand!(u16::try_from(session.host.len()).is_ok(), "the host name is too long");
            }
            Body::Manifest(manifest) => manifest.check()?,
            Body::Sweep(sweep) => demand!(countable(sweep.packs.len()), "it has too many packs"),
            Body::Close(_) => {}
            Body::Relocation(moved) => check_segments(&moved.segments)?,
        }
        Ok(())
    }
}

impl Session {
    fn write(&self, out: &mut Writer) {
        out.bytes(&self.session.0);
        out.u32(self.process_id);
        out.u64(self.opened_ns);
        out.u16(self.host.len() as u16);
        out.bytes(self.host.as_bytes());
    }

    fn read(from: &mut Reader<'_>) -> Result<Session> {
        let (session, process_id, opened_ns) = (from.session()?, from.u32()?, from.u64()?);
        let host_bytes = from.u16()?;
        let host = from.text(host_bytes.into())?.to_owned();
        Ok(Session { session, process_id, opened_ns, host })
    }
}

impl Manifest {
    fn write(&self, out: &mut Writer) {
        out.bytes(&self.session.0);
        out.u32(self.world_size);
        out.u64(self.epoch);
        out.u64(self.parent);
        out.u64(self.frozen_ns);
        out.u64(self.new_bytes);
        out.u64(self.changed_bytes);
        out.u32(self.images.len() as u32);
        out.u32(self.segments.len() as u32);
        for image in &self.images {
            out.u32(image.rank);
            out.reserved(4);
            out.u64(image.regions);
            out.u64(image.state_bytes);
            image.catalog.write(out);
            image.packed.write(out);
        }
        self.segments.iter().for_each(|segment| segment.write(out));
    }

    fn read(from: &mut Reader<'_>) -> Result<Manifest> {
        let (session, world_size) = (from.session()?, from.u32()?);
        let (epoch, parent, frozen_ns) = (from.u64()?, from.u64()?, from.u64()?);
        let (new_bytes, changed_bytes) = (from.u64()?, from.u64()?);
        let (image_count, segment_count) = (from.u32()?, from.u32()?);
        let mut images = Vec::with_capacity(from.count(image_count.into(), IMAGE_BYTES)?);
        for _ in 0..image_count {
            let rank = from.u32()?;
            from.reserved(4)?;
            images.push(ImageRef {
                rank,
                regions: from.u64()?,
                state_bytes: from.u64()?,
                catalog: TreeRef::read(from)?,
                packed: TreeRef::read(from)?,
            });
        }
        let segments = read_segments(segment_count, from)?;
        Ok(Manifest {
            session,
            world_size,
            epoch,
            parent,
            frozen_ns,
            new_bytes,
            changed_bytes,
            images,
            segments,
        })
    }

    fn check(&self) -> Check {
        let Manifest { world_size, epoch, parent, .. } = *self;
        demand!(epoch > 0 && parent < epoch, "epoch {epoch} cannot follow epoch {parent}");
        demand!(
            world_size > 0
                && self.images.len() == world_size as usize
                && self.images.iter().zip(0..).all(|(image, rank)| image.rank == rank),
            "its images are not those of {world_size} ranks in their order"
        );
        for image in &self.images {
            image.catalog.check()?;
            image.packed.check()?;
        }
        check_segments(&self.segments)
    }
}

impl Sweep {
    fn write(&self, out: &mut Writer) {
        out.bytes(&self.gc.0);
        out.reserved(4);
        out.u32(self.packs.len() as u32);
        out.reserved(4);
        self.packs.iter().for_each(|pack| out.bytes(&pack.0));
    }

    fn read(from: &mut Reader<'_>) -> Result<Sweep> {
        let gc = from.session()?;
        from.reserved(4)?;
        let count = from.u32()?;
        from.reserved(4)?;
        let mut packs = Vec::with_capacity(from.count(count.into(), 16)?);
        for _ in 0..count {
            packs.push(from.pack()?);
        }
        Ok(Sweep { gc, packs })
    }
}

impl SegmentRef {
    fn write(&self, out: &mut Writer) {
        out.bytes(&self.pack.0);
        out.u32(self.offset);
        out.u32(self.length);
        out.u8(u8::from(self.kind == SegmentKind::Segment));
        out.u8(self.level);
        out.reserved(2);
        out.bytes(&self.fp.0);
    }

    fn read(from: &mut Reader<'_>) -> Result<SegmentRef> {
        let (pack, offset, length) = (from.pack()?, from.u32()?, from.u32()?);
        let kind = match from.u8()? {
            0 => SegmentKind::Directory,
            1 => SegmentKind::Segment,
            other => return Err(from.damaged(format!("a segment reference has kind {other}"))),
        };
        let level = from.u8()?;
        from.reserved(2)?;
        Ok(SegmentRef { pack, offset, length, kind, level, fp: from.fingerprint()? })
    }
}

fn write_segments(segments: &[SegmentRef], out: &mut Writer) {
    out.u32(segments.len() as u32);
    segments.iter().for_each(|segment| segment.write(out));
}

fn read_segments(count: u32, from: &mut Reader<'_>) -> Result<Vec<SegmentRef>> {
    let mut segments = Vec::with_capacity(from.count(count.into(), SEGMENT_BYTES)?);
    for _ in 0..count {
        segments.push(SegmentRef::read(from)?);
    }
    Ok(segments)
}

fn check_segments(segments: &[SegmentRef]) -> Check {
    demand!(u32::try_from(segments.len()).is_ok(), "it has too many segments");
    for segment in segments {
        demand!(segment.length > 0 && !segment.fp.is_zero(), "{segment:?} is empty");
        demand!(
            segment.kind == SegmentKind::Segment || segment.level == 0,
            "{segment:?} is a directory with merges behind it"
        );
    }
    Ok(())
}
