//! Records of a job's log: the envelope and the seven kinds of body.

mod archive;
mod image;
mod manifest;
mod remarks;
mod segment;
mod table;

pub use archive::Archive;
pub use image::{Image, ImageKind, ImageRef};
pub use manifest::{Images, Manifest, SaveFigures};
pub use remarks::{LABEL_BYTES_MAX, Mark, Remarks, TAG_BYTES_MAX, TAGS_MAX, check_tag};
pub use segment::{SegmentKind, SegmentRef};
pub(crate) use segment::{check_segments, read_segments};
pub use table::{ImageTable, PageRef, SegmentLists, TablePage, page_of};
pub(crate) use table::{check_pages, read_pages, write_pages};

use crate::ROOM_BYTES;
use crate::codec::{Check, Reader, Writer, damaged, demand, encodable, fingerprint};
use outlive_types::{Epoch, Fingerprint, PackId, Result, SessionId};

const WHAT: &str = "log record";
const MAGIC: &[u8; 4] = b"OLRC";
const HEAD_BYTES: usize = 56 + ROOM_BYTES;
const FINGERPRINT_BYTES: usize = 32;
/// Offset of the fingerprint of the record before.
const PREVIOUS_AT: usize = 24;

/// One record of a job's log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Number in the log, from 1.
    pub number: u64,
    /// Fingerprint of all bytes of the record before it; zero for the first.
    pub previous: Fingerprint,
    /// Contents of the record.
    pub body: Body,
}

/// Contents of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// A writer begins.
    Session(Session),
    /// A checkpoint exists.
    Manifest(Manifest),
    /// A gc condemned packs.
    Sweep(Sweep),
    /// A writer ends.
    Close(Close),
    /// A gc or scrub replaced every record before.
    Archive(Archive),
    /// A user remarked on a checkpoint.
    Note(Note),
    /// Checkpoints were dropped.
    Prune(Prune),
}

/// Opens a session and fences every earlier one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    /// The session.
    pub session: SessionId,
    /// Process id of the writer; 0 if only the session's id is known.
    pub process_id: u32,
    /// Time of its opening, in nanoseconds since 1970.
    pub opened_ns: u64,
    /// Start of the writer's process, in ticks since boot.
    pub started: u64,
    /// The writer's host name, at most 65,535 bytes.
    pub host: String,
    /// Boot id and namespaces of process ids and time, at most 65,535 bytes; empty if unknown.
    pub system: String,
    /// Token of the lease that the writer holds in the log, at most 65,535 bytes; empty if there is
    /// none.
    pub lease: String,
}

/// Packs that a gc condemned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sweep {
    /// The gc run, an id like a session's.
    pub gc: SessionId,
    /// The packs that the gc will delete.
    pub packs: Vec<PackId>,
}

/// Ends a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Close {
    /// The session.
    pub session: SessionId,
}

/// Remarks on a checkpoint, made later.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// Epoch of the checkpoint.
    pub epoch: Epoch,
    /// Remarks that replace all earlier ones.
    pub remarks: Remarks,
}

/// Checkpoints that were dropped. They no longer count; a gc frees their space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prune {
    /// Newest epoch that the log has had, even if it was dropped.
    pub last_epoch: Epoch,
    /// The epochs, ascending; at least one.
    pub epochs: Vec<Epoch>,
}

impl Record {
    /// Encodes the record.
    ///
    /// # Errors
    /// `Bug` for fields that contradict each other or exceed the format's limits.
    pub fn encode(&self) -> Result<Vec<u8>> {
        encodable(WHAT, self.check())?;
        let (kind, length) = match &self.body {
            Body::Session(session) => (1, session.encoded_len()),
            Body::Manifest(manifest) => (2, manifest.encoded_len()),
            Body::Sweep(sweep) => (3, 24 + PackId::BYTES * sweep.packs.len()),
            Body::Close(_) => (4, 16),
            Body::Archive(archive) => (5, archive.encoded_len()),
            Body::Note(note) => (6, 16 + note.remarks.encoded_len()),
            Body::Prune(prune) => (7, 16 + 8 * prune.epochs.len()),
        };
        let mut out = Writer::begin(MAGIC, HEAD_BYTES + length + FINGERPRINT_BYTES);
        out.u8(kind);
        out.reserved(1);
        out.u64(self.number);
        out.u64(length as u64);
        out.bytes(&self.previous.0);
        out.reserved(ROOM_BYTES);
        match &self.body {
            Body::Session(session) => session.write(&mut out),
            Body::Manifest(manifest) => manifest.write(&mut out),
            Body::Sweep(sweep) => sweep.write(&mut out),
            Body::Close(close) => {
                out.bytes(&close.session.0);
                out.reserved(4);
            }
            Body::Archive(archive) => archive.write(&mut out),
            Body::Note(note) => note.write(&mut out),
            Body::Prune(prune) => prune.write(&mut out),
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
        from.room(ROOM_BYTES)?;
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
            5 => Body::Archive(Archive::read(&mut from)?),
            6 => Body::Note(Note::read(&mut from)?),
            7 => Body::Prune(Prune::read(&mut from)?),
            other => return Err(from.damaged(format!("it has kind {other}"))),
        };
        let record = Record { number, previous, body };
        from.accept(record.check())?;
        from.end()?;
        Ok(record)
    }

    /// Returns the fingerprint of the record before this one, also from a record of a later build;
    /// `None` if it is damaged.
    pub fn previous_of(bytes: &[u8]) -> Option<Fingerprint> {
        match Record::decode(bytes) {
            Ok(record) => Some(record.previous),
            Err(error) if error.is_newer() => {
                Some(Fingerprint(*bytes.get(PREVIOUS_AT..)?.first_chunk()?))
            }
            Err(_) => None,
        }
    }

    fn check(&self) -> Check {
        demand!(self.number > 0, "records are numbered from 1");
        demand!(self.number > 1 || self.previous.is_zero(), "the first record has a previous one");
        let countable = |count: usize| u32::try_from(count).is_ok();
        match &self.body {
            Body::Session(session) => session.check()?,
            Body::Manifest(manifest) => manifest.check()?,
            Body::Sweep(sweep) => demand!(countable(sweep.packs.len()), "it has too many packs"),
            Body::Close(_) => {}
            Body::Archive(archive) => archive.check()?,
            Body::Note(note) => {
                demand!(note.epoch > 0, "epochs are numbered from 1");
                note.remarks.check()?;
            }
            Body::Prune(prune) => prune.check()?,
        }
        Ok(())
    }
}

impl Session {
    /// Returns a session whose own record cannot be read.
    pub fn of_unknown(session: SessionId) -> Session {
        let (host, system, lease) = Default::default();
        Session { session, process_id: 0, opened_ns: 0, started: 0, host, system, lease }
    }

    /// Returns whether more than its id is known.
    pub fn is_known(&self) -> bool {
        self.process_id != 0
    }

    fn encoded_len(&self) -> usize {
        38 + self.host.len() + self.system.len() + self.lease.len()
    }

    fn check(&self) -> Check {
        demand!(u16::try_from(self.host.len()).is_ok(), "the host name is too long");
        demand!(u16::try_from(self.system.len()).is_ok(), "the name of the system is too long");
        demand!(u16::try_from(self.lease.len()).is_ok(), "the token of the lease is too long");
        Ok(())
    }

    fn write(&self, out: &mut Writer) {
        out.bytes(&self.session.0);
        out.u32(self.process_id);
        out.u64(self.opened_ns);
        out.u64(self.started);
        for text in [&self.host, &self.system, &self.lease] {
            out.u16(text.len() as u16);
            out.bytes(text.as_bytes());
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Session> {
        let (session, process_id) = (from.session()?, from.u32()?);
        let (opened_ns, started) = (from.u64()?, from.u64()?);
        let mut text = || -> Result<String> {
            let bytes = from.u16()?;
            Ok(from.text(bytes.into())?.to_owned())
        };
        let (host, system, lease) = (text()?, text()?, text()?);
        Ok(Session { session, process_id, opened_ns, started, host, system, lease })
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
        let mut packs = Vec::with_capacity(from.count(count.into(), PackId::BYTES)?);
        for _ in 0..count {
            packs.push(from.pack()?);
        }
        Ok(Sweep { gc, packs })
    }
}

impl Prune {
    fn check(&self) -> Check {
        demand!(u32::try_from(self.epochs.len()).is_ok(), "it has too many epochs");
        demand!(self.epochs.is_sorted_by(|a, b| a < b), "its epochs are not in order");
        let (first, last) = (self.epochs.first(), self.epochs.last());
        demand!(first.is_some_and(|first| *first > 0), "it names no epoch, or epoch 0");
        demand!(last.is_some_and(|last| *last <= self.last_epoch), "an epoch is after the last");
        Ok(())
    }

    fn write(&self, out: &mut Writer) {
        out.u64(self.last_epoch);
        out.u32(self.epochs.len() as u32);
        out.reserved(4);
        self.epochs.iter().for_each(|epoch| out.u64(*epoch));
    }

    fn read(from: &mut Reader<'_>) -> Result<Prune> {
        let (last_epoch, count) = (from.u64()?, from.u32()?);
        from.reserved(4)?;
        let mut epochs = Vec::with_capacity(from.count(count.into(), 8)?);
        for _ in 0..count {
            epochs.push(from.u64()?);
        }
        Ok(Prune { last_epoch, epochs })
    }
}

impl Note {
    fn write(&self, out: &mut Writer) {
        out.u64(self.epoch);
        out.u8(self.remarks.flags());
        out.u8(self.remarks.tags.len() as u8);
        out.u16(self.remarks.label.len() as u16);
        out.reserved(4);
        self.remarks.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Note> {
        let epoch = from.u64()?;
        let (flags, tag_count, label_bytes) = (from.u8()?, from.u8()?, from.u16()?);
        from.reserved(4)?;
        Ok(Note { epoch, remarks: Remarks::read(flags, label_bytes, tag_count, from)? })
    }
}
