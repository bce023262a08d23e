//! Reads trees of plain values.

use super::{
    AGAIN, BIG, BYTES, COMPLEX, FALSE, FLOAT, I32, I64, MAGIC, NONE, Numbers, OPEN, PAD, PAD_BYTES,
    PLAIN_DEPTH_MAX, Plain, PlainKind, RUN, SHORT, SHORT_COUNT, SHORT_TEXT, SHORT_TEXT_BYTES, TEXT,
    TRUE, U8, U16, U64, narrowest,
};
use crate::VERSION;
use outlive_types::{Error, Result};

const TOO_WIDE: &str = "a value has a shorter encoding";

/// Reads the output of [`PlainWriter`](super::PlainWriter).
#[derive(Debug)]
pub struct PlainReader<'a> {
    left: &'a [u8],
    bytes: usize,
    open: Vec<Opened>,
    begun: bool,
}

/// A container whose entries are being read.
#[derive(Debug)]
struct Opened {
    values_left: usize,
    /// Number of keys of the last dict in it; 0 if there is none.
    keys: usize,
}

impl<'a> PlainReader<'a> {
    /// Begins with the bytes of a region.
    ///
    /// # Errors
    /// `Damaged` if the region is no tree, `Invalid` if it has another version.
    pub fn new(bytes: &'a [u8]) -> Result<PlainReader<'a>> {
        let mut reader =
            PlainReader { left: bytes, bytes: bytes.len(), open: Vec::new(), begun: false };
        if reader.take(4)? != MAGIC {
            return Err(damaged("it does not begin as one"));
        }
        let version = u16::from_le_bytes(reader.array()?);
        if version != VERSION {
            return Err(Error::invalid(format!(
                "a tree of plain values has version {version}; this build reads version {VERSION}"
            )));
        }
        Ok(reader)
    }

    /// Returns the next token; `None` at the end. A container ends with its last entry.
    ///
    /// # Errors
    /// `Damaged` if no valid token follows.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator of results is read on after an error"
    )]
    pub fn next(&mut self) -> Result<Option<Plain<'a>>> {
        while self.open.last().is_some_and(|opened| opened.values_left == 0) {
            self.open.pop();
        }
        if self.left.first() == Some(&PAD) && !self.open.is_empty() {
            let place = self.bytes - self.left.len() + 1;
            let padding = self.take(place.next_multiple_of(PAD_BYTES) - place + 1)?;
            if padding[1..].iter().any(|byte| *byte != 0) {
                return Err(damaged("padding is not zero"));
            }
            return Ok(Some(Plain::Pad));
        }
        match self.open.last_mut() {
            Some(opened) => opened.values_left -= 1,
            None if !self.begun => self.begun = true,
            None if self.left.is_empty() => return Ok(None),
            None => return Err(damaged("something follows it")),
        }
        self.value().map(Some)
    }

    fn value(&mut self) -> Result<Plain<'a>> {
        let tag = self.byte()?;
        Ok(match tag {
            NONE => Plain::None,
            FALSE | TRUE => Plain::Bool(tag == TRUE),
            U8 => Plain::Int(self.byte()?.into()),
            U16 => int(tag, u16::from_le_bytes(self.array()?).into())?,
            I32 => int(tag, i32::from_le_bytes(self.array()?).into())?,
            I64 => int(tag, i64::from_le_bytes(self.array()?))?,
            U64 => match u64::from_le_bytes(self.array()?) {
                small if i64::try_from(small).is_ok() => return Err(damaged(TOO_WIDE)),
                value => Plain::Unsigned(value),
            },
            BIG => Plain::Big(self.counted(0)?),
            FLOAT => Plain::Float(f64::from_le_bytes(self.array()?)),
            COMPLEX => {
                Plain::Complex(f64::from_le_bytes(self.array()?), f64::from_le_bytes(self.array()?))
            }
            TEXT => Plain::Text(self.counted(SHORT_TEXT_BYTES)?),
            BYTES => Plain::Bytes(self.counted(0)?),
            SHORT_TEXT.. => Plain::Text(self.take(usize::from(tag - SHORT_TEXT))?),
            SHORT..96 => {
                let (kind, count) = ((tag - SHORT) / 32, usize::from((tag - SHORT) % 32));
                self.open(PlainKind::ALL[usize::from(kind)], count)?
            }
            OPEN..AGAIN => {
                let (kind, count) = (PlainKind::ALL[usize::from(tag - OPEN)], self.count()?);
                if kind != PlainKind::Dict && count < SHORT_COUNT {
                    return Err(damaged(TOO_WIDE));
                }
                self.open(kind, count)?
            }
            AGAIN => match self.open.last().map_or(0, |opened| opened.keys) {
                0 => return Err(damaged("there is no dict whose keys it repeats")),
                count => {
                    self.enter(count)?;
                    Plain::Again(count)
                }
            },
            RUN..PAD => {
                let count = self.count()?;
                let of = self.byte()?;
                let width = match of {
                    U8 => 1,
                    U16 => 2,
                    I32 => 4,
                    _ => 8,
                };
                let length = count.checked_mul(width).ok_or_else(|| damaged("it is too long"))?;
                let numbers = Numbers::of(of, self.take(length)?)
                    .ok_or_else(|| damaged("a run is of no numbers"))?;
                if of != FLOAT && numbers.narrowest() != of {
                    return Err(damaged(TOO_WIDE));
                }
                Plain::Run(PlainKind::ALL[usize::from(tag - RUN)], count, numbers)
            }
            _ => return Err(damaged("a value is of no kind")),
        })
    }

    fn open(&mut self, kind: PlainKind, count: usize) -> Result<Plain<'a>> {
        let values = if kind == PlainKind::Dict { count.saturating_mul(2) } else { count };
        if kind == PlainKind::Dict
            && let Some(opened) = self.open.last_mut()
        {
            opened.keys = count;
        }
        self.enter(values)?;
        Ok(Plain::Open(kind, count))
    }

    fn enter(&mut self, values: usize) -> Result<()> {
        // Each missing entry takes a byte, so a damaged count reserves no memory.
        let waiting = self.open.iter().map(|opened| opened.values_left).sum::<usize>();
        if values.saturating_add(waiting) > self.left.len() {
            return Err(damaged("a container has more entries than bytes follow"));
        }
        if self.open.len() >= PLAIN_DEPTH_MAX {
            return Err(damaged("it is nested too deeply"));
        }
        self.open.push(Opened { values_left: values, keys: 0 });
        Ok(())
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, left) =
            self.left.split_at_checked(length).ok_or_else(|| damaged("it ends too early"))?;
        self.left = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, left) =
            self.left.split_first_chunk().ok_or_else(|| damaged("it ends too early"))?;
        self.left = left;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    fn count(&mut self) -> Result<usize> {
        let mut count = 0_u64;
        for shift in (0..63).step_by(7) {
            let byte = self.byte()?;
            count |= u64::from(byte & 0x7F) << shift;
            if byte == 0 && shift > 0 {
                return Err(damaged(TOO_WIDE));
            }
            if byte < 0x80 {
                return usize::try_from(count).map_err(|_| damaged("a count is too large"));
            }
        }
        Err(damaged("a count is too large"))
    }

    fn counted(&mut self, least: usize) -> Result<&'a [u8]> {
        let length = self.count()?;
        if length < least {
            return Err(damaged(TOO_WIDE));
        }
        self.take(length)
    }
}

/// Returns an integer that does not fit a narrower tag.
fn int<'a>(tag: u8, value: i64) -> Result<Plain<'a>> {
    if narrowest(value, value) == tag { Ok(Plain::Int(value)) } else { Err(damaged(TOO_WIDE)) }
}

fn damaged(why: &str) -> Error {
    Error::damaged(format!("the bytes of a tree of plain values cannot be: {why}"))
}
