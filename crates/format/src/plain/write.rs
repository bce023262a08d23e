//! Writes trees of plain values.

use super::{
    AGAIN, BIG, BYTES, COMPLEX, FALSE, FLOAT, I32, I64, MAGIC, NONE, OPEN, PAD, PAD_BYTES,
    PlainKind, RUN, SHORT, SHORT_COUNT, SHORT_TEXT, SHORT_TEXT_BYTES, TEXT, TRUE, U8, U16, U64,
    narrowest,
};
use crate::VERSION;

/// Writes a tree in the order of a walk.
#[derive(Debug)]
pub struct PlainWriter<'a> {
    to: &'a mut Vec<u8>,
    begin: usize,
}

impl<'a> PlainWriter<'a> {
    /// Begins a tree after the bytes in `to`.
    pub fn new(to: &'a mut Vec<u8>) -> PlainWriter<'a> {
        let begin = to.len();
        to.extend_from_slice(MAGIC);
        to.extend_from_slice(&VERSION.to_le_bytes());
        PlainWriter { to, begin }
    }

    /// Returns the position of the next value, for [`PlainWriter::back_to`].
    pub fn mark(&self) -> usize {
        self.to.len()
    }

    /// Appends a value that was encoded before, at the same offset in a page.
    pub fn encoded(&mut self, bytes: &[u8]) {
        self.to.extend_from_slice(bytes);
    }

    /// Removes everything since a mark.
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

    /// Writes `None`.
    pub fn none(&mut self) {
        self.to.push(NONE);
    }

    /// Writes a Boolean value.
    pub fn bool(&mut self, value: bool) {
        self.to.push(if value { TRUE } else { FALSE });
    }

    /// Writes an integer.
    pub fn int(&mut self, value: i64) {
        match narrowest(value, value) {
            U8 => self.tagged(U8, [value as u8]),
            U16 => self.tagged(U16, (value as u16).to_le_bytes()),
            I32 => self.tagged(I32, (value as i32).to_le_bytes()),
            _ => self.tagged(I64, value.to_le_bytes()),
        }
    }

    /// Writes an integer beyond `i64`.
    pub fn unsigned(&mut self, value: u64) {
        self.tagged(U64, value.to_le_bytes());
    }

    /// Writes a longer integer.
    pub fn big(&mut self, bytes: &[u8]) {
        self.counted(BIG, bytes.len());
        self.to.extend_from_slice(bytes);
    }

    /// Writes a float.
    pub fn float(&mut self, value: f64) {
        self.tagged(FLOAT, value.to_le_bytes());
    }

    /// Writes a complex number.
    pub fn complex(&mut self, real: f64, imaginary: f64) {
        self.tagged(COMPLEX, real.to_le_bytes());
        self.to.extend_from_slice(&imaginary.to_le_bytes());
    }

    /// Writes a text.
    pub fn text(&mut self, text: &[u8]) {
        if text.len() < SHORT_TEXT_BYTES {
            self.to.push(SHORT_TEXT | text.len() as u8);
        } else {
            self.counted(TEXT, text.len());
        }
        self.to.extend_from_slice(text);
    }

    /// Writes a byte string.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.counted(BYTES, bytes.len());
        self.to.extend_from_slice(bytes);
    }

    /// Pads up to the next page, so that the values before may grow a little without moving those
    /// that follow.
    pub fn pad(&mut self) {
        self.to.push(PAD);
        let length = (self.to.len() - self.begin).next_multiple_of(PAD_BYTES);
        self.to.resize(self.begin + length, 0);
    }

    /// Begins a container; its entries are written next.
    pub fn open(&mut self, kind: PlainKind, count: usize) {
        if kind != PlainKind::Dict && count < SHORT_COUNT {
            self.to.push(SHORT + SHORT_COUNT as u8 * kind as u8 + count as u8);
        } else {
            self.counted(OPEN + kind as u8, count);
        }
    }

    /// Begins a dict with the keys of the dict before it in the same container; its values are
    /// written next.
    pub fn again(&mut self) {
        self.to.push(AGAIN);
    }

    /// Writes a list or tuple of integers, each in the number of bytes that the widest needs.
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

    /// Begins a list or tuple of `count` floats, which [`PlainWriter::float_of_run`] writes next.
    pub fn floats(&mut self, kind: PlainKind, count: usize) {
        self.counted(RUN + kind as u8, count);
        self.to.push(FLOAT);
        self.to.reserve(8 * count);
    }

    /// Writes the next float of a run.
    pub fn float_of_run(&mut self, value: f64) {
        self.to.extend_from_slice(&value.to_le_bytes());
    }
}
