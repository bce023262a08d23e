//! Compares our code with reed-solomon-simd and with a copy of memory, in turn and on one core:
//!
//!     cargo run --release -p outlive-erasure --example compare
//!
//! Figures are GB/s of data: encoded data, or the fragments from which two lost ones are rebuilt.

use outlive_erasure::{Code, Kernel};
use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};
use std::hint::black_box;
use std::time::{Duration, Instant};

const ROUND: Duration = Duration::from_millis(80);
const ROUNDS: usize = 9;

fn main() {
    println!("{:>10} {:>8}  what               GB/s   of memcpy", "fragment", "code");
    for (k, m) in [(4, 2), (8, 3)] {
        for length in [64 << 10, 1 << 20] {
            compare(k, m, length);
        }
    }
}

/// A named variant to measure; it owns the data it works on.
type Way = (String, Box<dyn FnMut()>);

/// Runs each variant in turn, as often as fits into a round.
fn compare(k: usize, m: usize, length: usize) {
    let byte = |fragment: usize, at: usize| ((at * 31) >> fragment) as u8;
    let data: Vec<Vec<u8>> =
        (0..k).map(|fragment| (0..length).map(|at| byte(fragment, at)).collect()).collect();
    let mut ways = [
        copied(data.clone()),
        encoded(data.clone(), m, Kernel::best()),
        encoded(data.clone(), m, Kernel::Scalar),
        encoded_by_peer(data.clone(), m),
        rebuilt(data.clone(), m),
        rebuilt_by_peer(data, m),
    ];
    let mut speeds = vec![Vec::new(); ways.len()];
    for _ in 0..ROUNDS {
        for ((_, way), speeds) in ways.iter_mut().zip(&mut speeds) {
            let (started, mut times) = (Instant::now(), 0);
            while started.elapsed() < ROUND {
                way();
                times += 1;
            }
            speeds.push((times * k * length) as f64 / started.elapsed().as_secs_f64() / 1e9);
        }
    }
    speeds.iter_mut().for_each(|speeds| speeds.sort_by(f64::total_cmp));
    let memcpy = speeds[0][ROUNDS / 2];
    for ((name, _), speeds) in ways.iter().zip(&speeds) {
        let (speed, kib) = (speeds[ROUNDS / 2], length >> 10);
        println!("{kib:>6} KiB {k:>4} + {m}  {name:<29} {speed:5.2}  {:.2}", speed / memcpy);
    }
}

fn slices(fragments: &[Vec<u8>]) -> Vec<&[u8]> {
    fragments.iter().map(Vec::as_slice).collect()
}

fn slices_mut(fragments: &mut [Vec<u8>]) -> Vec<&mut [u8]> {
    fragments.iter_mut().map(Vec::as_mut_slice).collect()
}

fn zeros(count: usize, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    vec![vec![0; data[0].len()]; count]
}

fn copied(data: Vec<Vec<u8>>) -> Way {
    let mut copy = zeros(data.len(), &data);
    let work = move || {
        copy.iter_mut().zip(&data).for_each(|(to, from)| to.copy_from_slice(from));
        black_box(&copy);
    };
    ("memcpy".to_owned(), Box::new(work))
}

fn encoded(data: Vec<Vec<u8>>, m: usize, kernel: Kernel) -> Way {
    let code = Code::with(data.len(), m, kernel).unwrap();
    let mut parity = zeros(m, &data);
    let work = move || {
        code.encode(&slices(&data), &mut slices_mut(&mut parity)).unwrap();
        black_box(&parity);
    };
    (format!("encode, {}", kernel.name()), Box::new(work))
}

fn encoded_by_peer(data: Vec<Vec<u8>>, m: usize) -> Way {
    let mut encoder = ReedSolomonEncoder::new(data.len(), m, data[0].len()).unwrap();
    let mut parity = zeros(m, &data);
    let work = move || {
        data.iter().for_each(|one| encoder.add_original_shard(one).unwrap());
        let made = encoder.encode().unwrap();
        parity.iter_mut().zip(made.recovery_iter()).for_each(|(to, from)| to.copy_from_slice(from));
        black_box(&parity);
    };
    ("encode, reed-solomon-simd".to_owned(), Box::new(work))
}

/// Rebuilds the first two data fragments, which are lost.
fn rebuilt(data: Vec<Vec<u8>>, m: usize) -> Way {
    let code = Code::new(data.len(), m).unwrap();
    let (mut parity, mut made) = (zeros(m, &data), zeros(2, &data));
    code.encode(&slices(&data), &mut slices_mut(&mut parity)).unwrap();
    let work = move || {
        let all = data.iter().chain(&parity).map(Vec::as_slice).enumerate();
        let given: Vec<(usize, &[u8])> = all.skip(2).take(data.len()).collect();
        let mut lost: Vec<(usize, &mut [u8])> =
            slices_mut(&mut made).into_iter().enumerate().collect();
        code.rebuild(&given, &mut lost).unwrap();
        assert!(made[1][..9] == data[1][..9]);
    };
    ("rebuild 2, ours".to_owned(), Box::new(work))
}

fn rebuilt_by_peer(data: Vec<Vec<u8>>, m: usize) -> Way {
    let (k, length) = (data.len(), data[0].len());
    let mut encoder = ReedSolomonEncoder::new(k, m, length).unwrap();
    data.iter().for_each(|one| encoder.add_original_shard(one).unwrap());
    let parity: Vec<Vec<u8>> =
        encoder.encode().unwrap().recovery_iter().map(<[u8]>::to_vec).collect();
    let mut decoder = ReedSolomonDecoder::new(k, m, length).unwrap();
    let mut made = zeros(2, &data);
    let work = move || {
        for (number, one) in data.iter().enumerate().skip(2) {
            decoder.add_original_shard(number, one).unwrap();
        }
        for (number, one) in parity.iter().enumerate().take(2) {
            decoder.add_recovery_shard(number, one).unwrap();
        }
        for (number, bytes) in decoder.decode().unwrap().restored_original_iter() {
            made[number].copy_from_slice(bytes);
        }
        assert!(made[1][..9] == data[1][..9]);
    };
    ("rebuild 2, reed-solomon-simd".to_owned(), Box::new(work))
}
