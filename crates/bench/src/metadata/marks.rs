//! A bit for each entry: the paper's separate bitmap, which finds the delta.

pub struct Marks(Vec<u64>);

impl Marks {
    /// Returns `count` bits, none of them set.
    pub fn new(count: u64) -> Marks {
        Marks(vec![0; count.div_ceil(64) as usize])
    }

    /// Returns the bytes of `count` bits.
    pub fn bytes(count: u64) -> u64 {
        count.div_ceil(64) * 8
    }

    pub fn set(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    /// Calls `each` with every set bit, and clears it.
    pub fn take(&mut self, mut each: impl FnMut(usize)) {
        for (number, word) in self.0.iter_mut().enumerate() {
            while *word != 0 {
                each(number * 64 + word.trailing_zeros() as usize);
                *word &= *word - 1;
            }
        }
    }

    pub fn ram_bytes(&self) -> u64 {
        self.0.capacity() as u64 * 8
    }
}
