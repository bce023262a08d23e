use super::*;
use proptest::prelude::*;

#[test]
fn hashes_are_xxh3_128() {
    // From xxHash's own sanity tests (XSUM_XXH128_testdata): seed 0, its generated buffer.
    let mut generator = 2_654_435_761_u64;
    let sample: Vec<u8> = (0..4096)
        .map(|_| {
            let byte = (generator >> 56) as u8;
            generator = generator.wrapping_mul(11_400_714_785_074_694_797);
            byte
        })
        .collect();
    let cases: [(usize, u64, u64); 4] = [
        (0, 0x6001C324468D497F, 0x99AA06D3014798D8),
        (1, 0xC44BDFF4074EECDB, 0xA6CD5E9392000F6A),
        (403, 0xCDEB804D65C6DEA4, 0x1B6DE21E332DD73D),
        (2048, 0xDD59E2C3A5F038E0, 0xF736557FD47073A5),
    ];
    for (length, low, high) in cases {
        let want = u128::from(high) << 64 | u128::from(low);
        assert_eq!(XxHash3_128::oneshot(&sample[..length]), want, "{length} bytes");
    }
}

proptest! {
    #[test]
    fn two_implementations_agree(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
        prop_assert_eq!(XxHash3_128::oneshot(&bytes), xxhash_rust::xxh3::xxh3_128(&bytes));
    }

    #[test]
    fn a_difference_is_exactly_the_changed_pages(
        old_bytes in 0usize..5 * PAGE_BYTES,
        new_bytes in 0usize..5 * PAGE_BYTES,
        // Lengths near page borders matter most.
        round in any::<(bool, bool)>(),
        edits in proptest::collection::vec((0usize..5 * PAGE_BYTES, any::<u8>()), 0..4),
    ) {
        let page_round = |bytes: usize, round: bool| {
            if round { bytes / PAGE_BYTES * PAGE_BYTES } else { bytes }
        };
        let old = vec![0u8; page_round(old_bytes, round.0)];
        let mut new = vec![0u8; page_round(new_bytes, round.1)];
        for (at, byte) in edits {
            if let Some(place) = new.get_mut(at) {
                *place = byte;
            }
        }
        check(&old, &new, 1);
    }
}

fn check(old: &[u8], new: &[u8], threads: usize) {
    let mut hashes = PageHashes::compute(old, threads);
    let diff = hashes.diff(new, threads);
    let want: Vec<u64> = new
        .chunks(PAGE_BYTES)
        .enumerate()
        .filter(|(page, bytes)| old.chunks(PAGE_BYTES).nth(*page) != Some(*bytes))
        .map(|(page, _)| page as u64)
        .collect();
    let got: Vec<u64> =
        diff.runs().iter().flat_map(|run| run.first..run.first + run.count).collect();
    assert_eq!(got, want);
    assert_eq!(diff.pages(), want.len() as u64);
    assert!(
        diff.runs().windows(2).all(|pair| pair[0].first + pair[0].count < pair[1].first),
        "runs are as long as can be"
    );
    hashes.apply(diff);
    assert_eq!(hashes, PageHashes::compute(new, 1));
    assert_eq!(hashes.bytes(), new.len() as u64);
}

#[test]
fn threads_change_nothing() {
    // Several pieces, changes at their borders, more than PARALLEL_FROM_BYTES.
    let piece = PIECE_PAGES * PAGE_BYTES;
    let old: Vec<u8> = (0..3 * piece + 77).map(|at| (at / 5) as u8).collect();
    let mut new = old.clone();
    for at in [0, piece - 1, piece, 2 * piece + 5 * PAGE_BYTES, 3 * piece] {
        new[at] ^= 1;
    }
    let hashes = PageHashes::compute(&old, 1);
    assert_eq!(hashes, PageHashes::compute(&old, 3));
    assert_eq!(hashes.diff(&new, 1), hashes.diff(&new, 3));
    let page = |at: usize| (at / PAGE_BYTES) as u64;
    assert_eq!(
        hashes.diff(&new, 3).runs(),
        [
            PageRange { first: 0, count: 1 },
            PageRange { first: page(piece) - 1, count: 2 },
            PageRange { first: page(2 * piece) + 5, count: 1 },
            PageRange { first: page(3 * piece), count: 1 },
        ]
    );
    check(&old, &new[..2 * piece + 9], 2);
    check(&new[..2 * piece + 9], &old, 2);
}

#[test]
fn several_streams_keep_apart() {
    let streams: Vec<Vec<u8>> = (0..50u8).map(|n| vec![n; usize::from(n) * 4096 * 7]).collect();
    let hashes: Vec<_> = streams.iter().map(|bytes| PageHashes::compute(bytes, 1)).collect();
    let mut changed = streams.clone();
    changed[20][4096 * 3] ^= 1;
    let whole = |(old, new)| Compare { old, bytes: Vec::as_slice(new), pages: None };
    let pairs: Vec<_> = hashes.iter().zip(&changed).map(whole).collect();
    for (stream, diff) in diff_streams(&pairs, 4).into_iter().enumerate() {
        let want: &[PageRange] =
            if stream == 20 { &[PageRange { first: 3, count: 1 }] } else { &[] };
        assert_eq!(diff.runs(), want, "stream {stream}");
        assert_eq!(diff.bytes(), changed[stream].len() as u64);
    }
}

#[test]
fn the_difference_of_a_clean_stream_holds_no_hashes() {
    let bytes = vec![7u8; 10 << 20];
    let hashes = PageHashes::compute(&bytes, 2);
    assert_eq!(hashes.memory_bytes(), 16 * (10 << 20) / PAGE_BYTES);
    let diff = hashes.diff(&bytes, 2);
    assert_eq!((diff.runs.capacity(), diff.hashes.capacity()), (0, 0));
}

#[test]
fn a_sample_recognizes_dense_changes() {
    let mut bytes = vec![1u8; SAMPLE_FROM_PAGES * PAGE_BYTES + 100];
    let hashes = PageHashes::compute(&bytes, 2);
    assert!(!hashes.is_dense(&bytes));
    let change = |bytes: &mut [u8], is_dirty: fn(usize) -> bool| {
        let pages = bytes.chunks_mut(PAGE_BYTES).enumerate();
        pages.filter(|(page, _)| is_dirty(*page)).for_each(|(_, bytes)| bytes[7] = 2);
    };
    // Regular patterns do not look like a change of all pages.
    for is_dirty in [|page| page % 2 == 0, |page| page % 16 == 0, |page| page % 10 != 0] {
        let mut some = bytes.clone();
        change(&mut some, is_dirty);
        assert!(!hashes.is_dense(&some));
    }
    change(&mut bytes, |page| page % 500 != 0);
    assert!(hashes.is_dense(&bytes));
    // A stream of another length, or a short one, is never dense: it is hashed.
    assert!(!hashes.is_dense(&bytes[..bytes.len() - 1]));
    let short = &bytes[..(SAMPLE_FROM_PAGES - 1) * PAGE_BYTES];
    assert!(!PageHashes::compute(&vec![9; short.len()], 2).is_dense(short));
}

#[test]
fn only_the_pages_asked_for_are_compared() {
    let old: Vec<u8> = (0..3000 * PAGE_BYTES + 77).map(|at| (at / 999) as u8).collect();
    let hashes = PageHashes::compute(&old, 2);
    let mut new = old.clone();
    let changed = [0u64, 1, 700, 1023, 1024, 1025, 2999, 3000];
    changed.iter().for_each(|page| new[*page as usize * PAGE_BYTES] ^= 1);
    let range = |first, count| PageRange { first, count };
    // Page 700 has changed and is not asked for; page 2 is asked for and has not changed.
    let asked = [range(0, 3), range(900, 1500), range(2999, 2)];
    let compare = Compare { old: &hashes, bytes: &new, pages: Some(&asked) };
    let diff = diff_streams(&[compare], 3).pop().unwrap();
    assert_eq!(diff.runs(), [range(0, 2), range(1023, 3), range(2999, 2)]);
    let mut now = hashes.clone();
    now.apply(diff);
    assert_eq!(now.diff(&new, 1).runs(), [range(700, 1)]);
    // If the length differs, all pages are compared.
    let compare = Compare { bytes: &new[..2000 * PAGE_BYTES], ..compare };
    let diff = diff_streams(&[compare], 3).pop().unwrap();
    assert_eq!(diff.runs()[1], range(700, 1));
}

#[test]
fn zero_pages_are_told_by_their_hashes() {
    let mut bytes = vec![0; 9 * PAGE_BYTES + 5];
    bytes[4 * PAGE_BYTES] = 1;
    let hashes = PageHashes::compute(&bytes, 1);
    let all = PageRange { first: 0, count: 9 };
    assert_eq!(hashes.not_zero(&[all]), [PageRange { first: 4, count: 1 }]);
    assert!(!hashes.differs(4, &bytes) && !hashes.differs(9, &bytes));
    bytes[9 * PAGE_BYTES] = 1;
    assert!(hashes.differs(9, &bytes) && !hashes.differs(10, &bytes));
}

#[test]
fn dirty_pages_may_be_learnt_later() {
    let old: Vec<u8> = (0..40 * PAGE_BYTES).map(|at| (at / 999) as u8).collect();
    let hashes = PageHashes::compute(&old, 1);
    let mut new = old.clone();
    [3, 4, 9, 20, 39].iter().for_each(|page| new[page * PAGE_BYTES] ^= 1);
    let range = |first, count| PageRange { first, count };
    let asked = [range(0, 5), range(12, 28)];
    let compare = Compare { old: &hashes, bytes: &new, pages: Some(&asked) };
    let diff = diff_streams(&[compare], 1).pop().unwrap();
    let unknown = [range(5, 1), range(9, 3)];
    let mut diff = diff.with_unknown(&unknown);
    assert_eq!(diff.runs(), [range(3, 3), range(9, 3), range(20, 1), range(39, 1)]);
    for pages in [range(10, 2), range(5, 1), range(9, 1)] {
        let bytes = &new[pages.first as usize * PAGE_BYTES..][..pages.count as usize * PAGE_BYTES];
        diff.learn(pages.first, &hash_pages(bytes));
    }
    let mut now = hashes;
    now.apply(diff);
    assert_eq!(now, PageHashes::compute(&new, 1));
}
