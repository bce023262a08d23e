//! Save messages between the ranks of a program and their committer, as one process sends them to
//! another. Ranks that only the pool connects leave them in the log, in envelopes, until they are
//! read.

use crate::codec::{Check, Reader, Writer, checksum, damaged, demand, encodable};
use crate::record::{
    Image, PageRef, SaveFigures, SegmentRef, check_pages, check_segments, read_pages,
    read_segments, write_pages,
};
use outlive_types::{Epoch, Error, ErrorKind, PackId, Result, SessionId};
use std::collections::BTreeSet;

const WHAT: &str = "message between ranks";
const MAGIC: &[u8; 4] = b"OLMG";
const ENVELOPE: &str = "envelope of a message between ranks";
const ENVELOPE_MAGIC: &[u8; 4] = b"OLEV";
const HEAD_BYTES: usize = 8;
pub(crate) const CHECKSUM_BYTES: usize = 8;

/// One save message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SaveMessage {
    /// Committer to ranks: the session is open, or still is; the next save may begin.
    Session(Opened),
    /// A rank to the committer: its image, stored and durable.
    Image(RankImage),
    /// Committer to ranks: nothing was committed; rebase your images, and send them again.
    Changed(Changes),
    /// Committer to ranks: the checkpoint exists.
    Committed(Committed),
    /// A rank to the committer: it has no image. Committer to ranks: the save has failed.
    Failed(Error),
    /// Either: the sender is still at work.
    Alive,
}

/// A message in the log until it is read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// Session of the save.
    pub session: SessionId,
    /// Number of that save in the session, from 1; an epoch may be tried again.
    pub save: u64,
    /// The message.
    pub message: SaveMessage,
}

/// An open session, as every rank must know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The session.
    pub session: SessionId,
    /// Changes by prunes and gcs since the last request.
    pub changes: Changes,
}

/// One rank's image, stored and durable except for the commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankImage {
    /// The image.
    pub image: Image,
    /// Epoch of the checkpoint with which it shares subtrees; 0 for none.
    pub parent: Epoch,
    /// Figures of its save.
    pub figures: SaveFigures,
    /// Targets of the pool on which its save wrote packs, if another process commits. Each entry
    /// lists target numbers, ascending; packs on the same targets share one entry.
    pub spread: BTreeSet<Vec<u32>>,
}

/// Effects of prunes and gcs on a job's log since a writer last looked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// Packs to which no later commit may refer.
    pub condemned: BTreeSet<PackId>,
    /// The archive that replaced the older manifests.
    pub moved: Option<Moved>,
    /// Checkpoints that were dropped. This alone moves nothing: their shared data stays until it is
    /// condemned.
    pub dropped: BTreeSet<Epoch>,
}

/// An archive, as far as a writer needs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Number of its record.
    pub number: u64,
    /// Segments that give all pack extents for the images in the kept manifests.
    pub segments: Vec<SegmentRef>,
    /// Pages with the segments of the ranks in the image tables of the kept manifests.
    pub lists: Vec<PageRef>,
    /// Epochs of the kept manifests, ascending, without incomplete checkpoints.
    pub epochs: Vec<Epoch>,
}

/// Location of a checkpoint's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Committed {
    /// Number of the record.
    pub number: u64,
    /// Length of the record.
    pub record_bytes: u64,
    /// Whether the headers of the images are in a table.
    pub in_table: bool,
}

impl Changes {
    /// Returns true if all data is still at its former place.
    pub fn is_empty(&self) -> bool {
        self.condemned.is_empty() && self.moved.is_none()
    }

    /// Adds later changes.
    pub fn then(&mut self, later: Changes) {
        self.condemned.extend(later.condemned);
        self.dropped.extend(later.dropped);
        self.moved = later.moved.or(self.moved.take());
    }

    fn write(&self, out: &mut Writer) {
        out.u32(self.condemned.len() as u32);
        out.u32(self.dropped.len() as u32);
        out.u32(u32::from(self.moved.is_some()));
        self.condemned.iter().for_each(|pack| out.bytes(&pack.0));
        self.dropped.iter().for_each(|epoch| out.u64(*epoch));
        let Some(moved) = &self.moved else { return };
        out.u64(moved.number);
        out.u32(moved.segments.len() as u32);
        out.u32(moved.lists.len() as u32);
        out.u32(moved.epochs.len() as u32);
        moved.segments.iter().for_each(|segment| segment.write(out));
        write_pages(&moved.lists, out);
        moved.epochs.iter().for_each(|epoch| out.u64(*epoch));
    }

    fn read(from: &mut Reader<'_>) -> Result<Changes> {
        let (condemned, dropped, moved) = (from.u32()?, from.u32()?, from.u32()?);
        let mut changes = Changes::default();
        let mut last = None;
        for _ in 0..from.count(condemned.into(), PackId::BYTES)? {
            let pack = from.pack()?;
            from.accept(ascend(last.replace(pack), pack))?;
            changes.condemned.insert(pack);
        }
        changes.dropped = read_epochs(dropped, from)?.into_iter().collect();
        changes.moved = match moved {
            0 => None,
            1 => {
                let number = from.u64()?;
                let (segments, lists, epochs) = (from.u32()?, from.u32()?, from.u32()?);
                let segments = read_segments(segments, from)?;
                let lists = read_pages(lists, from)?;
                Some(Moved { number, segments, lists, epochs: read_epochs(epochs, from)? })
            }
            other => return Err(from.damaged(format!("it has {other} archives"))),
        };
        Ok(changes)
    }

    fn check(&self) -> Check {
        let Some(moved) = &self.moved else { return Ok(()) };
        let ascend = moved.epochs.is_sorted_by(|a, b| a < b);
        demand!(ascend, "its epochs do not ascend");
        check_segments(&moved.segments)?;
        check_pages(&moved.lists)
    }
}

fn ascend<T: PartialOrd>(last: Option<T>, next: T) -> Check {
    demand!(last.is_none_or(|last| last < next), "its lists do not ascend");
    Ok(())
}

fn write_spread(spread: &BTreeSet<Vec<u32>>, out: &mut Writer) {
    out.u32(spread.len() as u32);
    for targets in spread {
        out.u32(targets.len() as u32);
        targets.iter().for_each(|target| out.u32(*target));
    }
}

fn read_spread(from: &mut Reader<'_>) -> Result<BTreeSet<Vec<u32>>> {
    let count = from.u32()?;
    let mut spread = BTreeSet::new();
    for _ in 0..from.count(count.into(), 4)? {
        let count = from.u32()?;
        let mut targets: Vec<u32> = Vec::with_capacity(from.count(count.into(), 4)?);
        for _ in 0..count {
            let target = from.u32()?;
            from.accept(ascend(targets.last().copied(), target))?;
            targets.push(target);
        }
        from.accept(ascend(spread.last(), &targets))?;
        spread.insert(targets);
    }
    Ok(spread)
}

fn read_epochs(count: u32, from: &mut Reader<'_>) -> Result<Vec<Epoch>> {
    let mut epochs: Vec<Epoch> = Vec::with_capacity(from.count(count.into(), 8)?);
    for _ in 0..count {
        let epoch = from.u64()?;
        from.accept(ascend(epochs.last().copied(), epoch))?;
        epochs.push(epoch);
    }
    Ok(epochs)
}

impl SaveMessage {
    /// Encodes the message.
    ///
    /// # Errors
    /// `Bug` for a message that the decoder would refuse.
    pub fn encode(&self) -> Result<Vec<u8>> {
        encodable(WHAT, self.check())?;
        let mut out = Writer::begin(MAGIC, HEAD_BYTES + CHECKSUM_BYTES);
        let kind = match self {
            SaveMessage::Session(_) => 1,
            SaveMessage::Image(_) => 2,
            SaveMessage::Changed(_) => 3,
            SaveMessage::Committed(_) => 4,
            SaveMessage::Failed(_) => 5,
            SaveMessage::Alive => 6,
        };
        out.u16(kind);
        match self {
            SaveMessage::Session(Opened { session, changes }) => {
                out.bytes(&session.0);
                changes.write(&mut out);
            }
            SaveMessage::Image(RankImage { image, parent, figures, spread }) => {
                out.u64(*parent);
                figures.write(&mut out);
                write_spread(spread, &mut out);
                image.write(&mut out);
            }
            SaveMessage::Changed(changes) => changes.write(&mut out),
            SaveMessage::Committed(Committed { number, record_bytes, in_table }) => {
                out.u64(*number);
                out.u64(*record_bytes);
                out.u32(u32::from(*in_table));
            }
            SaveMessage::Failed(error) => write_error(error, &mut out),
            SaveMessage::Alive => {}
        }
        let sum = checksum(out.written());
        out.u64(sum);
        Ok(out.finish())
    }

    /// Decodes a message from all of `bytes`.
    ///
    /// # Errors
    /// `Damaged` if it is none; `Invalid` if a build of another format version sent it: all ranks
    /// of a program must run the same build.
    pub fn decode(bytes: &[u8]) -> Result<SaveMessage> {
        let mut from = Reader::new(WHAT, body_of(WHAT, bytes)?);
        from.begin(MAGIC)?;
        let message = match from.u16()? {
            1 => {
                let session = from.session()?;
                SaveMessage::Session(Opened { session, changes: Changes::read(&mut from)? })
            }
            2 => {
                let (parent, figures) = (from.u64()?, SaveFigures::read(&mut from)?);
                let spread = read_spread(&mut from)?;
                let image = Image::read(&mut from)?;
                SaveMessage::Image(RankImage { image, parent, figures, spread })
            }
            3 => SaveMessage::Changed(Changes::read(&mut from)?),
            4 => {
                let (number, record_bytes) = (from.u64()?, from.u64()?);
                let in_table = match from.u32()? {
                    0 => false,
                    1 => true,
                    other => return Err(from.damaged(format!("its images stand in {other}"))),
                };
                SaveMessage::Committed(Committed { number, record_bytes, in_table })
            }
            5 => SaveMessage::Failed(read_error(&mut from)?),
            6 => SaveMessage::Alive,
            other => return Err(from.damaged(format!("it has kind {other}"))),
        };
        from.accept(message.check())?;
        from.end()?;
        Ok(message)
    }

    fn check(&self) -> Check {
        match self {
            SaveMessage::Session(Opened { changes, .. }) | SaveMessage::Changed(changes) => {
                changes.check()
            }
            SaveMessage::Image(RankImage { image, .. }) => image.check(),
            SaveMessage::Committed(_) | SaveMessage::Failed(_) | SaveMessage::Alive => Ok(()),
        }
    }
}

pub(crate) fn write_error(error: &Error, out: &mut Writer) {
    out.u16(match error.kind() {
        _ if error.is_away() => AWAY,
        ErrorKind::Invalid if error.os().is_some() => REFUSED,
        kind => kind_code(kind),
    });
    out.u32(error.message().len() as u32);
    out.bytes(error.message().as_bytes());
}

pub(crate) fn read_error(from: &mut Reader<'_>) -> Result<Error> {
    let (code, length) = (from.u16()?, from.u32()?);
    if code == AWAY {
        return Ok(Error::away(from.text(length as usize)?));
    }
    if code == REFUSED {
        return Ok(Error::invalid(from.text(length as usize)?).of_other_system());
    }
    let kind = ErrorKind::ALL.into_iter().find(|kind| kind_code(*kind) == code);
    let kind = kind.ok_or_else(|| from.damaged(format!("it has error kind {code}")))?;
    Ok(Error::new(kind, from.text(length as usize)?))
}

/// `Retry` because the data is only on a target that is away.
const AWAY: u16 = 7;
/// `Invalid` because the operating system refuses: access rights, or a device that fails.
const REFUSED: u16 = 8;

/// Returns the code of an error's kind in a message.
fn kind_code(kind: ErrorKind) -> u16 {
    match kind {
        ErrorKind::Retry => 1,
        ErrorKind::Invalid => 2,
        ErrorKind::Damaged => 3,
        ErrorKind::Full => 4,
        ErrorKind::Fenced => 5,
        ErrorKind::Bug => 6,
    }
}

/// Returns the bytes before the checksum, which must match.
pub(crate) fn body_of<'a>(what: &str, bytes: &'a [u8]) -> Result<&'a [u8]> {
    let Some((body, stored)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
        return Err(damaged(what, "it ends too early"));
    };
    match checksum(body) == u64::from_le_bytes(*stored) {
        true => Ok(body),
        false => Err(damaged(what, "its checksum does not match")),
    }
}

impl Envelope {
    /// Encodes the envelope.
    ///
    /// # Errors
    /// `Bug` for a message that its decoder would refuse.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let message = self.message.encode()?;
        let mut out = Writer::begin(ENVELOPE_MAGIC, HEAD_BYTES + message.len() + CHECKSUM_BYTES);
        out.reserved(2);
        out.bytes(&self.session.0);
        out.u64(self.save);
        out.bytes(&message);
        let sum = checksum(out.written());
        out.u64(sum);
        Ok(out.finish())
    }

    /// Decodes an envelope from all of `bytes`.
    ///
    /// # Errors
    /// As [`SaveMessage::decode`].
    pub fn decode(bytes: &[u8]) -> Result<Envelope> {
        let mut from = Reader::new(ENVELOPE, body_of(ENVELOPE, bytes)?);
        from.begin(ENVELOPE_MAGIC)?;
        from.reserved(2)?;
        let (session, save) = (from.session()?, from.u64()?);
        let message = SaveMessage::decode(from.take(from.remaining())?)?;
        Ok(Envelope { session, save, message })
    }
}
