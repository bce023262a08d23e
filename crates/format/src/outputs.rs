//! The outputs that a checkpoint covers: what its program had given to its gate, and what had not been
//! released for certain when the checkpoint was saved.

use crate::codec::{Check, Reader, Writer, demand};
use outlive_types::{Epoch, Error, Result};
use std::collections::BTreeMap;

const WHAT: &str = "list of outputs";
const MAGIC: &[u8; 4] = b"OLOU";
const HEAD_BYTES: usize = 32;
const OUTPUT_BYTES_MIN: usize = 28;
const POSITION_BYTES_MIN: usize = 8;
/// Longest name and longest position of a sink, in bytes.
pub const SINK_BYTES_MAX: usize = 65_535;

/// One output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Output {
    /// Number in the order of the program, from 0.
    pub number: u64,
    /// First checkpoint that covered it. 0: the one that holds this list.
    pub epoch: Epoch,
    /// Name of its sink.
    pub sink: String,
    /// Data with which the sink releases it.
    pub token: Vec<u8>,
}

/// The outputs of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outputs {
    /// Number of the program's next output.
    pub next: u64,
    /// Outputs by number; those that this checkpoint covers first come last.
    pub outputs: Vec<Output>,
    /// Position of each sink after all outputs of the program.
    pub positions: BTreeMap<String, Vec<u8>>,
}

impl Outputs {
    /// Encodes the list; no bytes if there has been no output and no sink.
    ///
    /// # Errors
    /// `Invalid` for a sink without a name, and if a limit of the format is exceeded; `Bug` for a
    /// wrong order.
    pub fn encode(&self) -> Result<Vec<u8>> {
        if *self == Outputs::default() {
            return Ok(Vec::new());
        }
        let sinks = self.outputs.iter().map(|it| &it.sink).chain(self.positions.keys());
        for sink in sinks {
            check_sink(sink).map_err(Error::invalid)?;
        }
        for position in self.positions.values() {
            check_position(position.len()).map_err(Error::invalid)?;
        }
        self.check_order()
            .map_err(|why| Error::bug(format!("refused to write a {WHAT}: {why}")))?;
        let mut out = Writer::begin(MAGIC, self.encoded_len());
        out.reserved(2);
        out.u64(self.next);
        out.u64(self.outputs.len() as u64);
        out.u64(self.positions.len() as u64);
        for Output { number, epoch, sink, token } in &self.outputs {
            out.u64(*number);
            out.u64(*epoch);
            out.u32(sink.len() as u32);
            out.u64(token.len() as u64);
            out.bytes(sink.as_bytes());
            out.bytes(token);
        }
        for (sink, position) in &self.positions {
            out.u32(sink.len() as u32);
            out.u32(position.len() as u32);
            out.bytes(sink.as_bytes());
            out.bytes(position);
        }
        Ok(out.finish())
    }

    /// Reads the list of a catalog, which has no bytes if there has been no output and no sink.
    ///
    /// # Errors
    /// As [`Outputs::decode`].
    pub fn of_catalog(bytes: &[u8]) -> Result<Outputs> {
        if bytes.is_empty() { Ok(Outputs::default()) } else { Outputs::decode(bytes) }
    }

    /// Reads a list from all of `bytes`.
    ///
    /// # Errors
    /// `Damaged` for anything that `encode` does not write, `Invalid` for another version.
    pub fn decode(bytes: &[u8]) -> Result<Outputs> {
        let mut from = Reader::new(WHAT, bytes);
        from.begin(MAGIC)?;
        from.reserved(2)?;
        let next = from.u64()?;
        let (outputs, positions) = (from.u64()?, from.u64()?);
        let mut list = Outputs { next, ..Outputs::default() };
        let outputs = from.count(outputs, OUTPUT_BYTES_MIN)?;
        list.outputs.reserve_exact(outputs);
        for _ in 0..outputs {
            let (number, epoch) = (from.u64()?, from.u64()?);
            let (sink_bytes, token_bytes) = (from.u32()?, from.u64()?);
            let sink = read_sink(&mut from, sink_bytes)?;
            let token = from.take(from.count(token_bytes, 1)?)?.to_vec();
            list.outputs.push(Output { number, epoch, sink, token });
        }
        for _ in 0..from.count(positions, POSITION_BYTES_MIN)? {
            let (sink_bytes, position_bytes) = (from.u32()?, from.u32()?);
            let sink = read_sink(&mut from, sink_bytes)?;
            from.accept(check_position(position_bytes as usize))?;
            let position = from.take(position_bytes as usize)?.to_vec();
            if list.positions.last_key_value().is_some_and(|(last, _)| *last >= sink) {
                return Err(from.damaged("the sinks are not in order"));
            }
            list.positions.insert(sink, position);
        }
        from.accept(list.check_order())?;
        if list == Outputs::default() {
            return Err(from.damaged("it is empty"));
        }
        from.end()?;
        Ok(list)
    }

    /// Checks that numbers rise, and that outputs of epoch 0 come last.
    fn check_order(&self) -> Check {
        let mut before: Option<&Output> = None;
        for output in &self.outputs {
            demand!(output.number < self.next, "output {} is none yet", output.number);
            if let Some(before) = before {
                demand!(before.number < output.number, "output {} comes twice", output.number);
                let is_late = before.epoch == 0 && output.epoch != 0;
                demand!(!is_late, "output {} is older than the one before it", output.number);
            }
            before = Some(output);
        }
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        let of = |output: &Output| OUTPUT_BYTES_MIN + output.sink.len() + output.token.len();
        let positions = self.positions.iter();
        HEAD_BYTES
            + self.outputs.iter().map(of).sum::<usize>()
            + positions.map(|(sink, at)| POSITION_BYTES_MIN + sink.len() + at.len()).sum::<usize>()
    }
}

fn read_sink(from: &mut Reader<'_>, bytes: u32) -> Result<String> {
    let sink = from.text(bytes as usize)?.to_owned();
    from.accept(check_sink(&sink))?;
    Ok(sink)
}

fn check_position(bytes: usize) -> Check {
    demand!(bytes <= SINK_BYTES_MAX, "the position of a sink has {bytes} bytes");
    Ok(())
}

fn check_sink(sink: &str) -> Check {
    demand!(!sink.is_empty(), "a sink of outputs has no name");
    demand!(sink.len() <= SINK_BYTES_MAX, "the name of a sink has {} bytes", sink.len());
    Ok(())
}
