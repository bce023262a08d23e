//! The content that programs save: few pages, each with one of few contents, so that programs find
//! chunks that others have stored.

use outlive_capture::Region;
use outlive_store::{MemoryImage, RestoreSink};
use outlive_types::sync::plain::Mutex;
use outlive_types::{PACKED_STREAM, PAGE_BYTES, RegionLocation, Rng, SeededRng};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Number of contents that a page may have; 0 stands for zeros.
const CONTENTS: u8 = 14;
/// Pages of the region in the packed stream, and of the one with its own stream.
const PACKED_PAGES: usize = 4;
const OWN_PAGES: usize = 16;
/// The same where a pack has several containers.
const MANY_CONTENTS: u8 = 64;
const MANY_PAGES: usize = 44;

/// A program's state: the content of each page.
#[derive(Clone, PartialEq, Eq)]
pub struct State {
    pages: Vec<u8>,
    /// Number of possible contents.
    contents: u8,
}

impl State {
    /// Returns a state with up to `pages` nonzero pages.
    pub fn random(rng: &SeededRng, pages: u64) -> State {
        let mut state = State { pages: vec![0; PACKED_PAGES + OWN_PAGES], contents: CONTENTS };
        (0..pages).for_each(|_| state.change(rng));
        state
    }

    /// Returns a state that fills several containers.
    pub fn large(rng: &SeededRng) -> State {
        let contents = MANY_CONTENTS;
        let page = |_| rng.below(u64::from(contents)) as u8;
        State { pages: (0..PACKED_PAGES + MANY_PAGES).map(page).collect(), contents }
    }

    /// Gives one page another content.
    pub fn change(&mut self, rng: &SeededRng) {
        let page = rng.below(self.pages.len() as u64) as usize;
        let other = 1 + rng.below(u64::from(self.contents) - 1) as u8;
        self.pages[page] = (self.pages[page] + other) % self.contents;
    }

    /// Returns its regions, for a source.
    pub fn regions(&self) -> Vec<Region> {
        let region = |(name, bytes): (String, Vec<u8>)| {
            Region::from_bytes(name, "|u1", vec![bytes.len() as u64], bytes)
        };
        self.bytes().into_iter().map(region).collect()
    }

    fn bytes(&self) -> BTreeMap<String, Vec<u8>> {
        let (packed, own) = self.pages.split_at(PACKED_PAGES);
        let bytes =
            |pages: &[u8]| pages.iter().map(|page| content(*page)).collect::<Vec<_>>().concat();
        BTreeMap::from([("packed".to_owned(), bytes(packed)), ("own".to_owned(), bytes(own))])
    }

    /// Whether restored streams hold this state.
    pub fn is(&self, restored: &RestoredRegions) -> bool {
        self.bytes() == restored.0
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pages.iter().try_for_each(|page| write!(f, "{page:x}"))
    }
}

fn content(page: u8) -> &'static [u8] {
    static PAGES: OnceLock<Vec<[u8; PAGE_BYTES]>> = OnceLock::new();
    let pages = PAGES.get_or_init(|| {
        let page = |number: u8| {
            let mut bytes = [0; PAGE_BYTES];
            if number > 0 {
                SeededRng::new(u64::from(number)).fill(&mut bytes);
            }
            bytes
        };
        (0..MANY_CONTENTS).map(page).collect()
    });
    &pages[usize::from(page)]
}

/// The result of a restore, by region.
#[derive(PartialEq, Eq)]
pub struct RestoredRegions(BTreeMap<String, Vec<u8>>);

impl fmt::Debug for RestoredRegions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = |page: &[u8]| (0..MANY_CONTENTS).find(|number| content(*number) == page);
        for page in ["packed", "own"].iter().filter_map(|name| self.0.get(*name)).flatten_pages() {
            match known(page) {
                Some(number) => write!(f, "{number:x}")?,
                None => write!(f, "?")?,
            }
        }
        Ok(())
    }
}

trait FlattenPages<'a> {
    fn flatten_pages(self) -> impl Iterator<Item = &'a [u8]>;
}

impl<'a, I: Iterator<Item = &'a Vec<u8>>> FlattenPages<'a> for I {
    fn flatten_pages(self) -> impl Iterator<Item = &'a [u8]> {
        self.flat_map(|bytes| bytes.chunks(PAGE_BYTES))
    }
}

/// Memory that a restore fills. It begins as rubbish, so that zeros must be written, too.
#[derive(Clone)]
pub struct Memory(Arc<Vec<Mutex<Vec<u8>>>>);

impl Memory {
    /// Returns memory for all streams of a checkpoint.
    pub fn of(checkpoint: &MemoryImage) -> Memory {
        let bytes = checkpoint.streams().iter().map(|stream| stream.tree.bytes as usize);
        Memory(Arc::new(bytes.map(|bytes| Mutex::new(vec![0xA5; bytes])).collect()))
    }

    /// Puts bytes into a stream.
    pub fn put(&self, stream: usize, offset: u64, bytes: &[u8]) {
        let mut into = self.0[stream].lock();
        into[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Returns the streams' bytes.
    pub fn streams(&self) -> Vec<Vec<u8>> {
        let bytes = |stream: &Mutex<Vec<u8>>| stream.lock().clone();
        self.0.iter().map(bytes).collect()
    }

    /// Returns the checkpoint's regions, as they are in memory now.
    pub fn restored(&self, checkpoint: &MemoryImage) -> RestoredRegions {
        let streams = self.streams();
        let number = checkpoint.stream_of();
        let region = |region: &outlive_types::RegionDesc| {
            let bytes = match region.location {
                RegionLocation::Own => streams[number[region.name.as_str()]].clone(),
                RegionLocation::Packed { offset } => {
                    number.get(PACKED_STREAM).map_or(Vec::new(), |at| {
                        streams[*at][offset as usize..][..region.bytes as usize].to_vec()
                    })
                }
            };
            (region.name.clone(), bytes)
        };
        RestoredRegions(checkpoint.regions().iter().map(region).collect())
    }
}

impl RestoreSink for Memory {
    fn write(&self, stream: usize, offset: u64, bytes: &[u8]) {
        self.put(stream, offset, bytes);
    }

    fn zero(&self, stream: usize, offset: u64, length: u64) {
        self.put(stream, offset, &vec![0; length as usize]);
    }
}
