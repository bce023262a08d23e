//! Copies past the caches. A copy in staging is read next by a device, or much later. Ordinary
//! stores would first fetch the old bytes, and evict the program's working set.
#![allow(unsafe_code)]

/// Shortest copy that is streamed: shorter copies gain nothing.
const STREAMED_FROM_BYTES: usize = 512;
/// Number of sources by which a prefetch of a source's beginning runs ahead: the processor does not
/// prefetch across pages.
const SOURCES_AHEAD: usize = 3;

/// Copies `from` to `to` without loading `to` into the caches.
///
/// # Panics
/// If their lengths differ.
pub fn copy_past_cache(from: &[u8], to: &mut [u8]) {
    gather_past_cache(std::iter::once(from), to);
}

/// Copies `sources`, one after another, to `to` without loading it into the caches.
///
/// # Panics
/// If all sources together are not as long as `to`.
pub fn gather_past_cache<'a>(sources: impl Iterator<Item = &'a [u8]> + Clone, to: &mut [u8]) {
    let _done = Fence;
    let mut ahead = sources.clone().skip(SOURCES_AHEAD);
    let mut room = to;
    for source in sources {
        if let Some(next) = ahead.next() {
            arch::prefetch(next);
        }
        let (now, later) = room.split_at_mut(source.len());
        if source.len() < STREAMED_FROM_BYTES {
            now.copy_from_slice(source);
        } else {
            arch::stream(source, now);
        }
        room = later;
    }
    assert!(room.is_empty(), "the sources are shorter than what they are copied to");
}

/// Orders streamed stores before later ones: they must be visible before another thread learns that
/// they are done.
struct Fence;

impl Drop for Fence {
    fn drop(&mut self) {
        arch::fence();
    }
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use std::arch::x86_64::{
        __m128i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128,
    };

    const LINE_BYTES: usize = 64;
    /// Bytes prefetched at the beginning of a source. By then the processor prefetches by itself.
    const PREFETCHED_BYTES: usize = 512;
    /// Distance at which the next page of a source is prefetched.
    const PREFETCH_DISTANCE: usize = 4096;

    pub fn prefetch(bytes: &[u8]) {
        for line in bytes[..bytes.len().min(PREFETCHED_BYTES)].chunks(LINE_BYTES) {
            // SAFETY: every x86-64 has SSE; a prefetch changes nothing and cannot fail.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        }
    }

    /// Copies with streamed stores, which a call of [`fence`] must follow. Both slices have one
    /// length.
    pub fn stream(from: &[u8], to: &mut [u8]) {
        let before = to.as_ptr().align_offset(size_of::<__m128i>()).min(to.len());
        let (head, to) = to.split_at_mut(before);
        let (from_head, from) = from.split_at(before);
        head.copy_from_slice(from_head);
        let (lines, rest) = to.as_chunks_mut::<LINE_BYTES>();
        let (from_lines, from_rest) = from.as_chunks::<LINE_BYTES>();
        for (at, (line, source)) in lines.iter_mut().zip(from_lines).enumerate() {
            let ahead = at + PREFETCH_DISTANCE / LINE_BYTES;
            if let Some(later) = from_lines.get(ahead) {
                // SAFETY: as above.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(later.as_ptr().cast()) };
            }
            let line = line.as_mut_ptr().cast::<__m128i>();
            let source = source.as_ptr().cast::<__m128i>();
            for part in 0..LINE_BYTES / size_of::<__m128i>() {
                // SAFETY: every x86-64 has SSE2. Both lines have 64 bytes, so each of the parts 0
                // to 3, of 16 bytes, lies within. `line` is aligned to 16 since its slice begins
                // so, and is borrowed mutably. No other thread learns of it before the fence.
                unsafe { _mm_stream_si128(line.add(part), _mm_loadu_si128(source.add(part))) };
            }
        }
        rest.copy_from_slice(from_rest);
    }

    pub fn fence() {
        // SAFETY: every x86-64 has SSE.
        unsafe { _mm_sfence() };
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod arch {
    pub fn prefetch(_: &[u8]) {}

    pub fn stream(from: &[u8], to: &mut [u8]) {
        to.copy_from_slice(from);
    }

    pub fn fence() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_place_is_copied_whole() {
        let from: Vec<u8> = (0..20_000u32).map(|n| (n % 251) as u8).collect();
        for length in [0, 1, 511, 512, 513, 575, 576, 4096, 4097, 9000] {
            for place in 0..17 {
                for start in [0, 3, 16] {
                    let mut to = vec![0xEE; 20_000];
                    copy_past_cache(&from[start..start + length], &mut to[place..place + length]);
                    assert_eq!(to[place..place + length], from[start..start + length]);
                    assert!(to[..place].iter().chain(&to[place + length..]).all(|b| *b == 0xEE));
                }
            }
        }
    }

    #[test]
    fn sources_lie_one_behind_another() {
        let from: Vec<u8> = (0..60_000u32).map(|n| (n * 7 % 253) as u8).collect();
        let parts = [0..4096, 50_000..50_000, 100..612, 9..10, 20_000..40_001];
        let sources = parts.iter().map(|part| &from[part.clone()]);
        let mut to = vec![0; parts.iter().map(|part| part.len()).sum()];
        gather_past_cache(sources.clone(), &mut to);
        assert_eq!(to, sources.flatten().copied().collect::<Vec<_>>());
    }

    #[test]
    #[should_panic(expected = "shorter")]
    fn a_source_that_is_too_short_panics() {
        copy_past_cache(&[1; 600], &mut [0; 601]);
    }
}
