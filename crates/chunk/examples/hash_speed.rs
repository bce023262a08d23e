//! Speed of change detection, zero detection and fingerprints, in cache and in memory.

use outlive_chunk::{PageHashes, fingerprint, fingerprint_pages, is_zero};
use outlive_types::PAGE_BYTES;
use std::hint::black_box;
use std::time::Instant;

/// A function to time, with its name; it works on the given bytes.
type Work<'a> = (&'a str, Box<dyn Fn(&[u8]) + 'a>);

fn main() {
    for (place, bytes) in [("cache", 512usize << 10), ("memory", 1 << 30)] {
        let mut data = vec![1u8; bytes];
        // Memory that was never written would be one zero page, read from cache.
        black_box(&mut data).fill(0);
        let zero: Work<'_> = ("is_zero", Box::new(|data| assert!(is_zero(data))));
        measure(place, &data, &[zero]);

        for (at, word) in data.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = (at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        }
        let hashes = PageHashes::compute(&data, 1);
        let diff = |threads| {
            let hashes = &hashes;
            move |data: &[u8]| assert_eq!(hashes.diff(data, threads).pages(), 0)
        };
        let prints = |length| {
            move |data: &[u8]| {
                for chunk in data.chunks(length) {
                    black_box(fingerprint(chunk));
                }
            }
        };
        measure(
            place,
            &data,
            &[
                ("diff of unchanged pages, 1 thread", Box::new(diff(1))),
                ("diff of unchanged pages, 2 threads", Box::new(diff(2))),
                ("xxhash-rust over pages", Box::new(other_xxh3)),
                ("sum of words, for comparison", Box::new(sum)),
                ("fingerprints of 4 KiB", Box::new(prints(PAGE_BYTES))),
                ("the same, several at once", Box::new(page_prints)),
                ("fingerprints of 64 KiB", Box::new(prints(64 << 10))),
            ],
        );
    }
}

fn page_prints(data: &[u8]) {
    let pages: Vec<&[u8; PAGE_BYTES]> = data.as_chunks().0.iter().collect();
    black_box(fingerprint_pages(&pages));
}

fn other_xxh3(data: &[u8]) {
    for page in data.chunks(PAGE_BYTES) {
        black_box(xxhash_rust::xxh3::xxh3_128(page));
    }
}

fn sum(data: &[u8]) {
    let words = data.as_chunks::<8>().0.iter();
    black_box(words.fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word))));
}

/// Prints the best of several rounds. Each round runs all functions in turn, so that a busy moment
/// of the machine does not fall on only one of them.
fn measure(place: &str, data: &[u8], all: &[Work<'_>]) {
    let mut best_s = vec![f64::INFINITY; all.len()];
    for _ in 0..((1 << 30) / data.len()).clamp(7, 200) {
        for (best_s, (_, work)) in best_s.iter_mut().zip(all) {
            let start = Instant::now();
            work(black_box(data));
            *best_s = best_s.min(start.elapsed().as_secs_f64());
        }
    }
    for (best_s, (what, _)) in best_s.iter().zip(all) {
        println!("{place:7} {what:36} {:6.1} GB/s", data.len() as f64 / best_s / 1e9);
    }
}
