//! Sums of products of whole fragments, one block of each at a time, with the fastest instructions
//! of the processor.

use crate::simd;
use crate::tables::{Products, Tables};

/// Bytes of each fragment per step: with 4 + 2 fragments, one step stays in the first-level cache.
const BLOCK_BYTES: usize = 4096;

/// Instructions that compute the sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// One byte at a time: the reference for the others.
    Scalar,
    /// 32 bytes at a time with AVX2: a shuffle looks up 16 products of half a byte each (Plank,
    /// Greenan & Miller, FAST 2013).
    Avx2,
    /// 16 bytes at a time with NEON, in the same way.
    Neon,
}

impl Kernel {
    /// Returns the fastest kernel that this processor supports.
    pub fn best() -> Kernel {
        match () {
            () if simd::has_avx2() => Kernel::Avx2,
            () if simd::has_neon() => Kernel::Neon,
            () => Kernel::Scalar,
        }
    }

    /// Name of the kernel.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Scalar => "scalar",
            Kernel::Avx2 => "AVX2",
            Kernel::Neon => "NEON",
        }
    }

    /// Sets each of `outs` to the sum of all `ins`, each times its coefficient: `rows[out][in]`.
    /// All slices have one length.
    pub(crate) fn sums(self, rows: &[Vec<u8>], ins: &[&[u8]], outs: &mut [&mut [u8]]) {
        let length = outs.first().map_or(0, |out| out.len());
        let tables = Tables::new(rows);
        let mut start = 0;
        while start < length {
            let block = start..length.min(start + BLOCK_BYTES);
            let parts: Vec<&[u8]> = ins.iter().map(|part| &part[block.clone()]).collect();
            for (out, tables) in outs.iter_mut().zip(&tables.0) {
                let out = &mut out[block.clone()];
                out.fill(0);
                let done = match self {
                    Kernel::Scalar => 0,
                    Kernel::Avx2 => simd::add_avx2(tables, &parts, out),
                    Kernel::Neon => simd::add_neon(tables, &parts, out),
                };
                add(tables, &parts, out, done);
            }
            start = block.end;
        }
    }
}

/// Adds the products to `out`, from the byte `from` on.
fn add(tables: &[Products], ins: &[&[u8]], out: &mut [u8], from: usize) {
    for (Products { low, high }, part) in tables.iter().zip(ins) {
        for (sum, byte) in out[from..].iter_mut().zip(&part[from..]) {
            *sum ^= low[usize::from(byte & 0x0F)] ^ high[usize::from(byte >> 4)];
        }
    }
}
