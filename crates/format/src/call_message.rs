//! Call messages between ranks that only the pool connects. They lie in the log until all ranks
//! have read them.

use crate::codec::{Check, Reader, Writer, checksum, demand, encodable};
use crate::save_message::{CHECKSUM_BYTES, body_of, read_error, write_error};
use outlive_types::{Error, Result};

const WHAT: &str = "word between ranks";
const MAGIC: &[u8; 4] = b"OLWD";
/// Length of all fields before the name of the run.
const HEAD_BYTES: usize = 32;

/// Longest name of a run, in bytes.
pub const RUN_BYTES_MAX: usize = 200;

/// Sixteen random bytes that are never drawn twice: they identify a process or a meeting.
pub type Token = [u8; 16];

/// A call message of one rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallMessage {
    /// Run of the program: text that all its ranks were given.
    pub run: String,
    /// Number of ranks of the run.
    pub ranks: u32,
    /// The process that sends the message.
    pub speaker: Token,
    /// Contents of the message.
    pub said: Payload,
}

/// Contents of a call message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payload {
    /// The rank has arrived.
    Here,
    /// From rank 0: all ranks have arrived; their processes, by rank.
    Met {
        /// Random id, which all later messages of the ranks contain.
        meeting: Token,
        /// The processes, by rank.
        speakers: Vec<Token>,
    },
    /// The rank's contribution to a call.
    Call {
        /// The meeting.
        meeting: Token,
        /// Number of the call in the meeting, from 1.
        number: u64,
        /// The contribution.
        bytes: Vec<u8>,
    },
    /// The rank is still at work.
    Alive,
    /// The rank takes no further part, for this reason.
    Left(Error),
}

impl CallMessage {
    /// Encodes the message.
    ///
    /// # Errors
    /// `Bug` for a message that the decoder would refuse.
    pub fn encode(&self) -> Result<Vec<u8>> {
        encodable(WHAT, self.check())?;
        let mut out = Writer::begin(MAGIC, HEAD_BYTES + self.run.len() + CHECKSUM_BYTES);
        out.u16(match &self.said {
            Payload::Here => 1,
            Payload::Met { .. } => 2,
            Payload::Call { .. } => 3,
            Payload::Alive => 4,
            Payload::Left(_) => 5,
        });
        out.u32(self.ranks);
        out.bytes(&self.speaker);
        out.u32(self.run.len() as u32);
        out.bytes(self.run.as_bytes());
        match &self.said {
            Payload::Here | Payload::Alive => {}
            Payload::Met { meeting, speakers } => {
                out.bytes(meeting);
                speakers.iter().for_each(|speaker| out.bytes(speaker));
            }
            Payload::Call { meeting, number, bytes } => {
                out.bytes(meeting);
                out.u64(*number);
                out.u64(bytes.len() as u64);
                out.bytes(bytes);
            }
            Payload::Left(error) => write_error(error, &mut out),
        }
        let sum = checksum(out.written());
        out.u64(sum);
        Ok(out.finish())
    }

    /// Decodes a message from all of `bytes`.
    ///
    /// # Errors
    /// `Damaged` if it is none; `Invalid` if a build of another format version sent it.
    pub fn decode(bytes: &[u8]) -> Result<CallMessage> {
        let mut from = Reader::new(WHAT, body_of(WHAT, bytes)?);
        from.begin(MAGIC)?;
        let kind = from.u16()?;
        let (ranks, speaker, length) = (from.u32()?, from.array()?, from.u32()?);
        let run = from.text(length as usize)?.to_owned();
        let said = match kind {
            1 => Payload::Here,
            2 => {
                let meeting = from.array()?;
                let count = from.count(ranks.into(), size_of::<Token>())?;
                let speakers = (0..count).map(|_| from.array()).collect::<Result<_>>()?;
                Payload::Met { meeting, speakers }
            }
            3 => {
                let (meeting, number, length) = (from.array()?, from.u64()?, from.u64()?);
                let length = from.count(length, 1)?;
                Payload::Call { meeting, number, bytes: from.take(length)?.to_vec() }
            }
            4 => Payload::Alive,
            5 => Payload::Left(read_error(&mut from)?),
            other => return Err(from.damaged(format!("it has kind {other}"))),
        };
        let word = CallMessage { run, ranks, speaker, said };
        from.accept(word.check())?;
        from.end()?;
        Ok(word)
    }

    fn check(&self) -> Check {
        let length = self.run.len();
        demand!(length > 0 && length <= RUN_BYTES_MAX, "its run has a name of {length} bytes");
        demand!(self.ranks > 0, "its run has no ranks");
        if let Payload::Met { speakers, .. } = &self.said {
            demand!(speakers.len() == self.ranks as usize, "other ranks have met");
        }
        Ok(())
    }
}
