//! Patterns in which programs write memory between two images.

use outlive_types::{PAGE_BYTES, SeededRng};

/// A pattern of writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Every word of all memory.
    Sweep,
    /// Two words of each of this many thousandths of the pages, different ones each time, in random
    /// order.
    Random(usize),
    /// Random words of a sixteenth of the memory, always the same.
    HotStill,
    /// The same, at another position after every four images.
    HotMoving,
    /// The next fortieth of the memory, once.
    Growing,
}

/// All measured patterns.
pub const PATTERNS: [Pattern; 6] = [
    Pattern::Sweep,
    Pattern::Random(100),
    Pattern::HotStill,
    Pattern::HotMoving,
    Pattern::Random(10),
    Pattern::Growing,
];

impl Pattern {
    /// Returns the name for tables and pictures.
    pub fn name(self) -> String {
        match self {
            Pattern::Sweep => "dense sweep".into(),
            Pattern::Random(thousandths) => {
                format!("{} % random pages", thousandths as f64 / 10.0)
            }
            Pattern::HotStill => "hot spot, still".into(),
            Pattern::HotMoving => "hot spot, moving".into(),
            Pattern::Growing => "growing".into(),
        }
    }
}

/// A program that writes in a pattern; equal arguments give equal writes.
pub struct Program {
    pattern: Pattern,
    /// Pages in a random order.
    order: Vec<u32>,
    random: u64,
    interval: usize,
}

impl Program {
    pub fn new(pattern: Pattern, bytes: usize) -> Program {
        let rng = SeededRng::new(4242);
        let mut order: Vec<u32> = (0..(bytes / PAGE_BYTES) as u32).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, rng.below(last as u64 + 1) as usize);
        }
        Program { pattern, order, random: 88_172_645_463_325_252, interval: 0 }
    }

    /// Xorshift (Marsaglia 2003): its cost is negligible compared with a write.
    fn random(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random as usize
    }

    /// Makes the writes of one interval.
    pub fn run(&mut self, memory: &mut [u8]) {
        let pages = memory.len() / PAGE_BYTES;
        match self.pattern {
            Pattern::Sweep => memory.as_chunks_mut().0.iter_mut().for_each(add_one),
            Pattern::Random(thousandths) => {
                let count = (pages * thousandths / 1000).max(1);
                self.random_pages(memory, count);
            }
            Pattern::HotStill => self.hot(memory, 300 * pages / 1024),
            Pattern::HotMoving => {
                self.hot(memory, self.interval / 4 % 12 * 80 * pages / 1024);
            }
            Pattern::Growing => {
                let first = self.interval % 40 * pages / 40;
                let end = (self.interval % 40 + 1) * pages / 40;
                let part = &mut memory[first * PAGE_BYTES..end * PAGE_BYTES];
                part.as_chunks_mut().0.iter_mut().for_each(add_one);
            }
        }
        self.interval += 1;
    }

    /// Makes the writes of an interval with `count` random pages.
    pub fn next_random_pages(&mut self, memory: &mut [u8], count: usize) {
        self.random_pages(memory, count);
        self.interval += 1;
    }

    /// Writes two words in each of `count` pages.
    fn random_pages(&mut self, memory: &mut [u8], count: usize) {
        let pages = self.order.len();
        let from = self.interval * count % (pages - count).max(1);
        for at in from..from + count {
            let page = self.order[at % pages] as usize * PAGE_BYTES;
            for _ in 0..2 {
                let word = page + self.random() % (PAGE_BYTES / 8) * 8;
                add_one(memory[word..].first_chunk_mut().expect("words lie within pages"));
            }
        }
    }

    /// Writes 12 words for each page of a spot.
    fn hot(&mut self, memory: &mut [u8], first_page: usize) {
        let pages = (memory.len() / PAGE_BYTES / 16).max(1);
        let spot = &mut memory[first_page * PAGE_BYTES..][..pages * PAGE_BYTES];
        for _ in 0..pages * 12 {
            let word = self.random() % (spot.len() / 8) * 8;
            add_one(spot[word..].first_chunk_mut().expect("words lie within pages"));
        }
    }
}

fn add_one(word: &mut [u8; 8]) {
    *word = u64::from_ne_bytes(*word).wrapping_add(1).to_ne_bytes();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_write_as_many_pages_as_they_say() {
        let bytes = 1024 * PAGE_BYTES;
        for pattern in PATTERNS {
            let mut program = Program::new(pattern, bytes);
            let mut memory = vec![0u8; bytes];
            for interval in 0..50 {
                let before = memory.clone();
                program.run(&mut memory);
                let changed = changed_pages(&before, &memory);
                let wanted = match pattern {
                    Pattern::Sweep => 1024..=1024,
                    Pattern::Random(thousandths) => {
                        1024 * thousandths / 1000..=1024 * thousandths / 1000
                    }
                    Pattern::HotStill | Pattern::HotMoving => 60..=64,
                    Pattern::Growing => 25..=26,
                };
                assert!(wanted.contains(&changed), "{pattern:?} {interval}: {changed}");
            }
        }
    }

    fn changed_pages(a: &[u8], b: &[u8]) -> usize {
        a.chunks(PAGE_BYTES).zip(b.chunks(PAGE_BYTES)).filter(|(a, b)| a != b).count()
    }
}
