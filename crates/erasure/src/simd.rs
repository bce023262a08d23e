//! Sums of products with the vector instructions of a processor.
#![allow(unsafe_code)]

use crate::tables::Products;

/// Whether this processor has AVX2.
pub fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether this processor has NEON.
pub fn has_neon() -> bool {
    cfg!(target_arch = "aarch64")
}

/// Adds the products of whole vectors to `out`, and returns the number of bytes done.
///
/// # Panics
/// If a part is shorter than `out`, or the processor has no AVX2.
pub fn add_avx2(tables: &[Products], ins: &[&[u8]], out: &mut [u8]) -> usize {
    assert!(has_avx2() && ins.iter().all(|part| part.len() >= out.len()));
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the processor has AVX2, and each part is at least as long as `out`.
    return unsafe { avx2::add(tables, ins, out) };
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = tables;
        0
    }
}

/// Does the same with NEON.
///
/// # Panics
/// If a part is shorter than `out`, or the processor has no NEON.
pub fn add_neon(tables: &[Products], ins: &[&[u8]], out: &mut [u8]) -> usize {
    assert!(has_neon() && ins.iter().all(|part| part.len() >= out.len()));
    #[cfg(target_arch = "aarch64")]
    // SAFETY: every such processor has NEON, and each part is at least as long as `out`.
    return unsafe { neon::add(tables, ins, out) };
    #[cfg(not(target_arch = "aarch64"))]
    {
        let _ = tables;
        0
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::Products;
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256,
        _mm256_loadu_si256, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8,
        _mm256_srli_epi64, _mm256_storeu_si256, _mm256_xor_si256,
    };

    const VECTOR_BYTES: usize = 32;
    /// Vectors whose sums stay in registers: each loaded table serves all of them.
    const VECTORS: usize = 4;
    const STEP_BYTES: usize = VECTORS * VECTOR_BYTES;

    /// # Safety
    /// The processor must have AVX2, and each part must be at least as long as `out`.
    #[target_feature(enable = "avx2")]
    pub unsafe fn add(tables: &[Products], ins: &[&[u8]], out: &mut [u8]) -> usize {
        let whole = out.len() / STEP_BYTES * STEP_BYTES;
        let half = _mm256_set1_epi8(0x0F);
        for at in (0..whole).step_by(STEP_BYTES) {
            let mut sums = [_mm256_setzero_si256(); VECTORS];
            for (products, part) in tables.iter().zip(ins) {
                // SAFETY: the tables have 16 bytes each. `at` and the following vectors lie within
                // the part, since each part is at least as long as `out`.
                unsafe {
                    let low = table(&products.low);
                    let high = table(&products.high);
                    for (number, sum) in sums.iter_mut().enumerate() {
                        let from = part.as_ptr().add(at + number * VECTOR_BYTES);
                        let bytes = _mm256_loadu_si256(from.cast::<__m256i>());
                        let lower = _mm256_and_si256(bytes, half);
                        let upper = _mm256_and_si256(_mm256_srli_epi64::<4>(bytes), half);
                        *sum = _mm256_xor_si256(*sum, _mm256_shuffle_epi8(low, lower));
                        *sum = _mm256_xor_si256(*sum, _mm256_shuffle_epi8(high, upper));
                    }
                }
            }
            for (number, sum) in sums.into_iter().enumerate() {
                // SAFETY: the four vectors lie within `out`.
                unsafe {
                    let to = out.as_mut_ptr().add(at + number * VECTOR_BYTES);
                    _mm256_storeu_si256(to.cast::<__m256i>(), sum);
                }
            }
        }
        whole
    }

    /// Returns a vector that holds the 16 bytes twice.
    #[target_feature(enable = "avx2")]
    fn table(bytes: &[u8; 16]) -> __m256i {
        // SAFETY: it reads 16 bytes from an array of 16.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast::<__m128i>())) }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::Products;
    use std::arch::aarch64::{
        uint8x16_t, vandq_u8, vdupq_n_u8, veorq_u8, vld1q_u8, vqtbl1q_u8, vshrq_n_u8, vst1q_u8,
    };

    const VECTOR_BYTES: usize = 16;

    /// # Safety
    /// Each part must be at least as long as `out`.
    pub unsafe fn add(tables: &[Products], ins: &[&[u8]], out: &mut [u8]) -> usize {
        let whole = out.len() / VECTOR_BYTES * VECTOR_BYTES;
        for at in (0..whole).step_by(VECTOR_BYTES) {
            // SAFETY: the tables have 16 bytes each; `at` and 16 bytes lie within the parts and
            // `out`.
            unsafe {
                let half = vdupq_n_u8(0x0F);
                let mut sum: uint8x16_t = vdupq_n_u8(0);
                for (products, part) in tables.iter().zip(ins) {
                    let bytes = vld1q_u8(part.as_ptr().add(at));
                    let low = vqtbl1q_u8(vld1q_u8(products.low.as_ptr()), vandq_u8(bytes, half));
                    let high = vqtbl1q_u8(vld1q_u8(products.high.as_ptr()), vshrq_n_u8::<4>(bytes));
                    sum = veorq_u8(sum, veorq_u8(low, high));
                }
                vst1q_u8(out.as_mut_ptr().add(at), sum);
            }
        }
        whole
    }
}
