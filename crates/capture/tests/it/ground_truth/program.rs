//! A program with arrays that move, and images composed from frozen memory.

use outlive_capture::Region;
use outlive_types::{Frozen, PACKED_BELOW_BYTES, PACKED_STREAM, PAGE_BYTES};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU8;

/// The bytes of an image's streams, by name.
pub type Image = BTreeMap<String, Vec<u8>>;

/// An array that starts `behind` bytes after the start of a page, as NumPy's large ones do at 16.
#[derive(Debug)]
pub struct Array {
    pub name: String,
    buffer: Vec<u8>,
    behind: usize,
    length: usize,
}

impl Array {
    pub fn new(name: &str, behind: usize, length: usize) -> Array {
        let mut array = Array { name: name.into(), buffer: Vec::new(), behind, length: 0 };
        array.resize(length);
        array
    }

    fn start(&self) -> usize {
        let address = self.buffer.as_ptr() as usize;
        (address - self.behind).next_multiple_of(PAGE_BYTES) + self.behind - address
    }

    pub fn length(&self) -> usize {
        self.length
    }

    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start()..][..self.length]
    }

    /// Returns the byte at `at`, for threads that write while others do.
    pub fn cell(&self, at: usize) -> &AtomicU8 {
        let bytes = self.bytes();
        // SAFETY: within the array, which cannot move while `self` is borrowed. While threads run,
        // no other code reads it (the tests pause them for that).
        unsafe { AtomicU8::from_ptr(bytes[at..].as_ptr().cast_mut()) }
    }

    /// Grows or shrinks as realloc does: it may move, and new bytes are zero.
    pub fn resize(&mut self, length: usize) {
        let kept = self.length.min(length);
        let before = if self.length == 0 { 0 } else { self.start() };
        self.buffer.resize(before.max(PAGE_BYTES) + PAGE_BYTES + length.max(self.length), 0);
        let now = self.start();
        self.buffer.copy_within(before..before + kept, now);
        self.length = length;
        self.buffer[now + kept..now + length].fill(0);
    }

    /// Moves to other memory; the old memory may be reused at once.
    pub fn relocate(&mut self) {
        let mut other = Array::new(&self.name, self.behind, self.length);
        let start = other.start();
        other.buffer[start..][..self.length].copy_from_slice(self.bytes());
        *self = other;
    }

    pub fn region(&self) -> Region {
        let (start, length) = (self.bytes().as_ptr(), self.length);
        // SAFETY: the tests do not move arrays until the freeze is dropped or its live runs are
        // released, and pause their writers that long (or say why not).
        unsafe { Region::from_raw(&self.name, "|u1", vec![length as u64], start, length) }
    }
}

/// Returns the expected image of these arrays.
pub fn truth(arrays: &[Array]) -> Image {
    let mut image = Image::new();
    for array in arrays {
        if array.length >= PACKED_BELOW_BYTES {
            image.insert(array.name.clone(), array.bytes().to_vec());
        } else {
            let packed = image.entry(PACKED_STREAM.into()).or_default();
            packed.resize(packed.len().next_multiple_of(16), 0);
            packed.extend(array.bytes());
        }
    }
    image
}

/// Returns the streams of `frozen`, as the store has them before this save.
pub fn begin_image(frozen: &dyn Frozen, last: &Image) -> Image {
    let stream = |stream: &outlive_types::StreamDesc| {
        let mut bytes = last.get(&stream.name).cloned().unwrap_or_default();
        bytes.resize(stream.bytes as usize, 0);
        (stream.name.clone(), bytes)
    };
    frozen.streams().iter().map(stream).collect()
}

/// Puts runs into an image, as the store does.
pub fn apply(frozen: &dyn Frozen, runs: std::ops::Range<usize>, image: &mut Image) {
    let mut scratch = Vec::new();
    for number in runs {
        let run = &frozen.runs()[number];
        let name = &frozen.streams()[run.stream as usize].name;
        let bytes = frozen.bytes(number, &mut scratch).expect("it is held");
        let at = run.first_page as usize * PAGE_BYTES;
        image.get_mut(name).expect("it is a stream")[at..][..bytes.len()].copy_from_slice(bytes);
    }
}

/// Returns the pages in which two images differ, for a message.
pub fn differences(a: &Image, b: &Image) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for (name, bytes) in a {
        let Some(other) = b.get(name).filter(|other| other.len() == bytes.len()) else {
            found.push((name.clone(), usize::MAX));
            continue;
        };
        let pages = bytes.chunks(PAGE_BYTES).zip(other.chunks(PAGE_BYTES)).enumerate();
        found.extend(pages.filter(|(_, (a, b))| a != b).map(|(page, _)| (name.clone(), page)));
    }
    found
}
