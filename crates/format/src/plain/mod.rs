//! Trees of plain values, which a language binding stores in one region: a list of a million
//! numbers, a dict of short strings. Each value begins with its type and length, so a value that is
//! appended does not change the bytes before it.

mod read;
mod write;

pub use read::PlainReader;
pub use write::PlainWriter;

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

/// Padding ends at a multiple of this, like the pages in which a save finds changes.
const PAD_BYTES: usize = 4096;

/// Kind of a container.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PlainKind {
    /// A list.
    List,
    /// A tuple.
    Tuple,
    /// A dict: pairs of a key and a value.
    Dict,
}

impl PlainKind {
    const ALL: [PlainKind; 3] = [PlainKind::List, PlainKind::Tuple, PlainKind::Dict];
}

/// Consecutive numbers of one kind.
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

    /// Returns the narrowest tag for these integers.
    fn narrowest(self) -> u8 {
        let (mut least, mut most) = (0, 0);
        let take = |value: i64| (least, most) = (least.min(value), most.max(value));
        self.each(|value| value, |_| 0, take);
        narrowest(least, most)
    }

    /// Calls `take` with each number, after `int` or `float` has converted it.
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

/// The next token of a tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plain<'a> {
    /// Python's `None`.
    None,
    /// A Boolean value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer beyond `i64`.
    Unsigned(u64),
    /// A longer integer: two's complement, little-endian.
    Big(&'a [u8]),
    /// A float, bit by bit.
    Float(f64),
    /// Real and imaginary part.
    Complex(f64, f64),
    /// UTF-8, except that surrogates may stand alone.
    Text(&'a [u8]),
    /// A byte string.
    Bytes(&'a [u8]),
    /// A container with this number of entries, which follow.
    Open(PlainKind, usize),
    /// A dict with the keys of the dict before it in the same container. This number of values
    /// follows.
    Again(usize),
    /// Padding before a value; it is no value itself.
    Pad,
    /// A list or tuple of this number of numbers, and the numbers.
    Run(PlainKind, usize, Numbers<'a>),
}

/// Returns the narrowest tag for integers from `least` to `most`.
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
