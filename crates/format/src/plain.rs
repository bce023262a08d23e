//! Trees of plain values, as a front door stores them in one region: a list of a million numbers, a
//! dict of short strings. What stands in front says what follows, so a value that is appended leaves
//! the bytes before it alone.

use crate::VERSION;
use outlive_types::{Error, Result};

const MAGIC: &[u8; 4] = b"OLPV";
/// Deepest nesting.
pub const PLAIN_DEPTH_MAX: usize = 256;

const NONE: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const U8: u8 = 3;
const U16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const U64: u8 = 7;
const BIG: u8 = 8;
const FLOAT: u8 = 9;
const COMPLEX: u8 = 10;
const TEXT: u8 = 11;
const BYTES: u8 = 12;
const OPEN: u8 = 16;
const AGAIN: u8 = 19;
const RUN: u8 = 20;
const PAD: u8 = 22;
const SHORT: u8 = 32;
const SHORT_COUNT: usize = 32;
const SHORT_TEXT: u8 = 128;
const SHORT_TEXT_BYTES: usize = 128;

/// Padding ends at a multiple of this, as the pages do whose changes a save finds.
const PAD_BYTES: usize = 4096;

/// What holds other values.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PlainKind {
    /// A list.
    List,
    /// A tuple.
    Tuple,
    /// A dict: a key and a value each.
    Dict,
}

impl PlainKind {
    const ALL: [PlainKind; 3] = [PlainKind::List, PlainKind::Tuple, PlainKind::Dict];
}

/// Numbers of one kind, one behind another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Numbers<'a> {
    /// Integers of one byte.
    U8(&'a [u8]),
    /// Integers of two bytes.
    U16(&'a [u8]),
    /// Signed integers of four bytes.
    I32(&'a [u8]),
    /// Signed integers of eight bytes.
    I64(&'a [u8]),
    /// Floats.
    F64(&'a [u8]),
}

impl<'a> Numbers<'a> {
    fn of(tag: u8, bytes: &'a [u8]) -> Option<Numbers<'a>> {
        Some(match tag {
            U8 => Numbers::U8(bytes),
            U16 => Numbers::U16(bytes),
            I32 => Numbers::I32(bytes),
            I64 => Numbers::I64(bytes),
            FLOAT => Numbers::F64(bytes),
            _ => return None,
        })
    }

    /// The narrowest tag for these integers.
    fn narrowest(self) -> u8 {
        let (mut least, mut most) = (0, 0);
        let take = |value: i64| (least, most) = (least.min(value), most.max(value));
        self.each(|value| value, |_| 0, take);
        narrowest(least, most)
    }

    /// Calls `take` with each number as what the first of two functions makes of an integer, the second
    /// of a float.
    pub fn each<T>(
        self,
        int: impl Fn(i64) -> T,
        float: impl Fn(f64) -> T,
        mut take: impl FnMut(T),
    ) {
        fn run<const N: usize>(bytes: &[u8], mut each: impl FnMut([u8; N])) {
            bytes.as_chunks().0.iter().for_each(|number| each(*number));
        }
        match self {
            Numbers::U8(bytes) => bytes.iter().for_each(|n| take(int(i64::from(*n)))),
            Numbers::U16(bytes) => run(bytes, |n| take(int(i64::from(u16::from_le_bytes(n))))),
            Numbers::I32(bytes) => run(bytes, |n| take(int(i64::from(i32::from_le_bytes(n))))),
            Numbers::I64(bytes) => run(bytes, |n| take(int(i64::from_le_bytes(n)))),
            Numbers::F64(bytes) => run(bytes, |n| take(float(f64::from_le_bytes(n)))),
        }
    }
}

/// What comes next in a tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plain<'a> {
    /// Nothing, as a value.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer beyond `i64`.
    Unsigned(u64),
    /// A longer integer: two's complement, little-endian.
    Big(&'a [u8]),
    /// A float, with its bits.
    Float(f64),
    /// Real and imaginary part.
    Complex(f64, f64),
    /// UTF-8, but that surrogates may stand alone.
    Text(&'a [u8]),
    /// A byte string.
    Bytes(&'a [u8]),
    /// A container; its entries follow.
    Open(PlainKind, usize),
    /// A dict with the keys of the one before it in the same container; its values, so many, follow.
    Again(usize),
    /// Padding in front of a value, which is no value itself.
    Pad,
    /// A list or tuple of so many numbers, which are these.
    Run(PlainKind, usize, Numbers<'a>),
}

/// Writes a tree, in the order of a walk.
#[derive(Debug)]
pub struct PlainWriter<'a> {
    to: &'a mut Vec<u8>,
    begin: usize,
}

impl<'a> PlainWriter<'a> {
    /// Begins one, behind what is in `to`.
    pub fn new(to: &'a mut Vec<u8>) -> PlainWriter<'a> {
        let begin = to.len();
        to.extend_from_slice(MAGIC);
        to.extend_from_slice(&VERSION.to_le_bytes());
        PlainWriter { to, begin }
    }

    /// Where the next value begins, for [`PlainWriter::back_to`].
    pub fn mark(&self) -> usize {
        self.to.len()
    }

    /// Something that was written before, at a place as far into a page as this.
    pub fn encoded(&mut self, bytes: &[u8]) {
        self.to.extend_from_slice(bytes);
    }

    /// Takes back all since a mark.
    pub fn back_to(&mut self, mark: usize) {
        self.to.truncate(mark);
    }

    fn tagged<const N: usize>(&mut self, tag: u8, bytes: [u8; N]) {
        self.to.push(tag);
        self.to.extend_from_slice(&bytes);
    }

    fn counted(&mut self, tag: u8, mut count: usize) {
        self.to.push(tag);
        while count >= 0x80 {
            self.to.push(count as u8 | 0x80);
            count >>= 7;
        }
        self.to.push(count as u8);
    }

    /// Nothing.
    pub fn none(&mut self) {
        self.to.push(NONE);
    }

    /// A truth value.
    pub fn bool(&mut self, value: bool) {
        self.to.push(if value { TRUE } else { FALSE });
    }

    /// An integer.
    pub fn int(&mut self, value: i64) {
        match narrowest(value, value) {
            U8 => self.tagged(U8, [value as u8]),
            U16 => self.tagged(U16, (value as u16).to_le_bytes()),
            I32 => self.tagged(I32, (value as i32).to_le_bytes()),
            _ => self.tagged(I64, value.to_le_bytes()),
        }
    }

    /// An integer beyond `i64`.
    pub fn unsigned(&mut self, value: u64) {
        self.tagged(U64, value.to_le_bytes());
    }

    /// A longer integer.
    pub fn big(&mut self, bytes: &[u8]) {
        self.counted(BIG, bytes.len());
        self.to.extend_from_slice(bytes);
    }

    /// A float.
    pub fn float(&mut self, value: f64) {
        self.tagged(FLOAT, value.to_le_bytes());
    }

    /// Real and imaginary part.
    pub fn complex(&mut self, real: f64, imaginary: f64) {
        self.tagged(COMPLEX, real.to_le_bytes());
        self.to.extend_from_slice(&imaginary.to_le_bytes());
    }

    /// A text.
    pub fn text(&mut self, text: &[u8]) {
        if text.len() < SHORT_TEXT_BYTES {
            self.to.push(SHORT_TEXT | text.len() as u8);
        } else {
            self.counted(TEXT, text.len());
        }
        self.to.extend_from_slice(text);
    }

    /// A byte string.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.counted(BYTES, bytes.len());
        self.to.extend_from_slice(bytes);
    }

    /// Padding up to the next page, so that what is before it may grow a little and leaves what follows
    /// where it is.
    pub fn pad(&mut self) {
        self.to.push(PAD);
        let length = (self.to.len() - self.begin).next_multiple_of(PAD_BYTES);
        self.to.resize(self.begin + length, 0);
    }

    /// A container, whose entries are written next.
    pub fn open(&mut self, kind: PlainKind, count: usize) {
        if kind != PlainKind::Dict && count < SHORT_COUNT {
            self.to.push(SHORT + SHORT_COUNT as u8 * kind as u8 + count as u8);
        } else {
            self.counted(OPEN + kind as u8, count);
        }
    }

    /// A dict with the keys of the one before it in the same container; its values are written next.
    pub fn again(&mut self) {
        self.to.push(AGAIN);
    }

    /// A list or tuple of integers, in as few bytes each as all of them need.
    pub fn ints(&mut self, kind: PlainKind, values: &[i64]) {
        let (least, most) =
            values.iter().fold((0, 0), |(least, most), v| (*v.min(&least), *v.max(&most)));
        match narrowest(least, most) {
            U8 => self.run(kind, U8, values, |v| [v as u8]),
            U16 => self.run(kind, U16, values, |v| (v as u16).to_le_bytes()),
            I32 => self.run(kind, I32, values, |v| (v as i32).to_le_bytes()),
            _ => self.run(kind, I64, values, i64::to_le_bytes),
        }
    }

    fn run<const N: usize>(
        &mut self,
        kind: PlainKind,
        tag: u8,
        values: &[i64],
        bytes: impl Fn(i64) -> [u8; N],
    ) {
        self.counted(RUN + kind as u8, values.len());
        self.to.push(tag);
        self.to.reserve(N * values.len());
        values.iter().for_each(|value| self.to.extend_from_slice(&bytes(*value)));
    }

    /// A list or tuple of so many floats. They are written next, by [`PlainWriter::float_of_run`].
    pub fn floats(&mut self, kind: PlainKind, count: usize) {
        self.counted(RUN + kind as u8, count);
        self.to.push(FLOAT);
        self.to.reserve(8 * count);
    }

    /// The next float of a run.
    pub fn float_of_run(&mut self, value: f64) {
        self.to.extend_from_slice(&value.to_le_bytes());
    }
}

/// Reads what [`PlainWriter`] has written.
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
    /// `Damaged` if this is no tree, `Invalid` if it is of another version.
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

    /// What comes next; `None` at the end. What is open is closed as its last entry ends.
    ///
    /// # Errors
    /// `Damaged` if that cannot be.
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
            RUN..22 => {
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

    /// A container has at least a byte for each entry, so that nobody reserves memory for nothing.
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
        // All that the open ones still wait for takes a byte each.
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

/// An integer, which a narrower tag would not hold.
fn int<'a>(tag: u8, value: i64) -> Result<Plain<'a>> {
    if narrowest(value, value) == tag { Ok(Plain::Int(value)) } else { Err(damaged(TOO_WIDE)) }
}

/// The narrowest tag for integers from `least` to `most`.
fn narrowest(least: i64, most: i64) -> u8 {
    let fits = |low: i64, high: i64| least >= low && most <= high;
    if fits(0, u8::MAX.into()) {
        U8
    } else if fits(0, u16::MAX.into()) {
        U16
    } else if fits(i32::MIN.into(), i32::MAX.into()) {
        I32
    } else {
        I64
    }
}

const TOO_WIDE: &str = "a value has a shorter encoding";

fn damaged(why: &str) -> Error {
    Error::damaged(format!("the bytes of a tree of plain values cannot be: {why}"))
}
