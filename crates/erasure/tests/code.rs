//! Tests of the code's promises: the bytes of docs/format.md, and that any k fragments rebuild all.

use outlive_erasure::{Code, Kernel};
use outlive_types::ErrorKind;
use proptest::prelude::*;

fn kernels() -> Vec<Kernel> {
    let mut kernels = vec![Kernel::Scalar, Kernel::best()];
    kernels.dedup();
    kernels
}

/// Returns fragments with different bytes.
fn fragments(count: usize, length: usize, seed: u64) -> Vec<Vec<u8>> {
    let byte = |fragment: usize, at: usize| {
        let mixed =
            (seed ^ (fragment as u64) << 32 ^ at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 56) as u8
    };
    (0..count).map(|fragment| (0..length).map(|at| byte(fragment, at)).collect()).collect()
}

/// Returns data and parity.
fn encoded(code: &Code, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let length = data[0].len();
    // Encoding must overwrite old content.
    let mut parity = vec![vec![0xA5; length]; code.m()];
    let ins: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut outs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    code.encode(&ins, &mut outs).unwrap();
    [data, &parity].concat()
}

/// Returns the lost fragments, rebuilt from the others.
fn rebuilt(code: &Code, all: &[Vec<u8>], lost: &[usize]) -> Vec<Vec<u8>> {
    let numbers = 0..all.len();
    let given: Vec<(usize, &[u8])> = numbers
        .filter(|number| !lost.contains(number))
        .map(|number| (number, all[number].as_slice()))
        .collect();
    let mut made = vec![vec![0x5A; all[0].len()]; lost.len()];
    let mut outs: Vec<(usize, &mut [u8])> =
        lost.iter().zip(&mut made).map(|(number, bytes)| (*number, bytes.as_mut_slice())).collect();
    code.rebuild(&given, &mut outs).unwrap();
    made
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// The bytes are those of docs/format.md, where a few lines of Python compute them.
#[test]
fn the_bytes_are_those_of_the_format() {
    let data = [
        "000306090c0f1215191c1f2225282b2e",
        "1115191d2125292d32363a3e42464a4e",
        "22272c31363b40454b50555a5f64696e",
        "33393f454b51575d646a70767c82888e",
    ];
    let parity = ["00080c6050402c200410003044888080", "e0ddecd06c99c8f1c3d47d9f57e98888"];
    for kernel in kernels() {
        let code = Code::with(4, 2, kernel).unwrap();
        // Long enough for every vector, and a rest.
        let long = |text: &str| [hex(text).repeat(9), hex(text)[..5].to_vec()].concat();
        let data: Vec<Vec<u8>> = data.iter().map(|text| long(text)).collect();
        let all = encoded(&code, &data);
        for (made, wanted) in all[4..].iter().zip(parity) {
            assert_eq!(*made, long(wanted), "{}", kernel.name());
        }
    }
}

#[test]
fn a_mirror_is_copies_and_one_parity_is_an_exclusive_or() {
    let one = fragments(1, 777, 1);
    let all = encoded(&Code::new(1, 3).unwrap(), &one);
    assert!(all.iter().all(|copy| *copy == one[0]));
    let data = fragments(5, 100, 2);
    let all = encoded(&Code::new(5, 1).unwrap(), &data);
    let sum = |at: usize| data.iter().fold(0, |sum, bytes| sum ^ bytes[at]);
    assert!((0..100).all(|at| all[5][at] == sum(at)));
}

#[test]
fn lost_fragments_come_back() {
    for (k, m) in [(1, 1), (1, 4), (2, 2), (3, 3), (4, 2), (6, 3), (5, 4)] {
        let code = Code::new(k, m).unwrap();
        let all = encoded(&code, &fragments(k, 333, (k * 10 + m) as u64));
        for lost in 0_u32..1 << (k + m) {
            let lost: Vec<usize> = (0..k + m).filter(|number| lost >> number & 1 != 0).collect();
            if lost.len() > m {
                continue;
            }
            let made = rebuilt(&code, &all, &lost);
            let wanted: Vec<_> = lost.iter().map(|number| all[*number].clone()).collect();
            assert!(made == wanted, "{k} + {m} without {lost:?}");
        }
    }
}

#[test]
fn as_many_fragments_as_there_are_bytes() {
    for (k, m) in [(128, 128), (255, 1), (256, 0), (1, 255), (200, 56)] {
        let code = Code::new(k, m).unwrap();
        let all = encoded(&code, &fragments(k, 64, 9));
        let lost: Vec<usize> = (0..m).map(|at| at * 7 % (k + m)).collect();
        let mut lost = lost;
        lost.sort_unstable();
        lost.dedup();
        let made = rebuilt(&code, &all, &lost);
        assert!(lost.iter().zip(made).all(|(number, made)| all[*number] == made), "{k} + {m}");
    }
}

#[test]
fn impossible_codes_and_fragments_are_refused() {
    for (k, m) in [(0, 2), (257, 0), (1, 256), (200, 57), (usize::MAX, usize::MAX)] {
        let error = Code::new(k, m).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains("at most 256"), "{error}");
    }
    let code = Code::new(2, 1).unwrap();
    let (a, b) = ([1; 8], [2; 8]);
    let (mut one, mut short) = ([0; 8], [0; 7]);
    let kind = |result: Result<(), outlive_types::Error>| result.unwrap_err().kind();
    assert_eq!(kind(code.encode(&[&a], &mut [&mut one])), ErrorKind::Bug);
    assert_eq!(kind(code.encode(&[&a, &b], &mut [&mut short])), ErrorKind::Bug);
    assert_eq!(kind(code.encode(&[&a, &b[..3]], &mut [&mut one])), ErrorKind::Bug);
    assert_eq!(kind(code.rebuild(&[(0, &a)], &mut [(1, &mut one)])), ErrorKind::Damaged);
    for given in
        [[(0, &a[..]), (0, &b[..])], [(0, &a[..]), (3, &b[..])], [(0, &a[..]), (2, &b[..2])]]
    {
        assert_eq!(kind(code.rebuild(&given, &mut [(1, &mut one)])), ErrorKind::Bug);
    }
    code.rebuild(&[(0, &a), (1, &b)], &mut []).unwrap();
    assert_eq!(one, [0; 8]);
}

proptest! {
    #[test]
    fn every_kernel_makes_the_same(k in 1_usize..12, m in 0_usize..6, length in 0_usize..9000, seed: u64) {
        let data = fragments(k, length, seed);
        let all: Vec<_> = kernels()
            .into_iter()
            .map(|kernel| encoded(&Code::with(k, m, kernel).unwrap(), &data))
            .collect();
        prop_assert!(all.windows(2).all(|two| two[0] == two[1]));
        let lost: Vec<usize> = (0..m).map(|at| (at * 3 + seed as usize % 7) % (k + m)).collect();
        let lost: std::collections::BTreeSet<usize> = lost.into_iter().collect();
        let lost: Vec<usize> = lost.into_iter().collect();
        let made = rebuilt(&Code::new(k, m).unwrap(), &all[0], &lost);
        prop_assert!(lost.iter().zip(made).all(|(number, made)| all[0][*number] == made));
    }
}
