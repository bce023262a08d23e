use super::*;
use crate::fingerprint;
use proptest::prelude::*;

/// Returns bytes without a pattern that repeats within a page.
fn chunk(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8).collect()
}

fn group_of(group_log2: u8) -> usize {
    PAGE_BYTES << group_log2
}

/// Checks all operations of a slice of `chunk`.
fn check(chunk: &[u8], form: SliceForm, bytes: &[u8]) {
    assert_eq!(bytes.len() as u64, form.length());
    let slice = Slice::decode(bytes, form).unwrap();
    let fp = fingerprint(chunk);
    assert!(slice.is_of(&fp) && !slice.is_of(&Fingerprint([7; 32])));
    let group = group_of(form.group_log2);
    for at in 0..chunk.len().div_ceil(group) {
        let (from, length) = (at * group, group.min(chunk.len() - at * group));
        let held = form.pages.holds(PageSet(1 << at));
        assert_eq!(slice.get(from, length), held.then(|| &chunk[from..][..length]), "group {at}");
        assert_eq!(form.covers(from as u32 / 4096, (length.div_ceil(4096)) as u32), held);
    }
}

proptest! {
    #[test]
    fn a_slice_proves_its_pages_and_can_be_cut_again(
        bytes in 1_usize..17 * 4096, keep: u16, then: u16, group_log2 in 0_u8..3,
    ) {
        let chunk = chunk(bytes * group_of(group_log2) / 4096);
        let groups = chunk.len().div_ceil(group_of(group_log2)) as u32;
        let Some((form, first)) = cut_chunk(&chunk, PageSet(keep), group_log2) else {
            let kept = PageSet(keep).within(groups);
            let is_cut = (2..=16).contains(&groups) && !kept.is_empty();
            prop_assert!(!is_cut || kept == PageSet::ALL.within(groups));
            return Ok(());
        };
        check(&chunk, form, &first);
        let less = PageSet(keep & then);
        match Slice::decode(&first, form).unwrap().cut(less) {
            Some((form, second)) => {
                check(&chunk, form, &second);
                // A second cut gives the same bytes as a single one.
                prop_assert_eq!(cut_chunk(&chunk, less, group_log2).unwrap().1, second);
            }
            None => prop_assert!(less.within(groups).is_empty()),
        }
        prop_assert_eq!(SliceForm::of_bits(form.bits()), Some(form));
    }

    #[test]
    fn any_bytes_are_a_slice_or_damaged(bits in 0_u32..1 << 24, mut bytes: Vec<u8>, fits: bool) {
        let Some(form) = SliceForm::of_bits(bits) else { return Ok(()) };
        if fits && form.length() < 1 << 20 {
            bytes.resize(form.length() as usize, 0);
        }
        if let Ok(slice) = Slice::decode(&bytes, form) {
            prop_assert!(!slice.is_of(&Fingerprint([7; 32])));
            for (from, length) in [(0, 1), (4095, 2), (usize::MAX, 1), (1, usize::MAX), (65536, 0)] {
                prop_assert!(slice.get(from, length).is_none_or(|got| got.len() == length));
            }
            let cut = slice.cut(PageSet(bytes.len() as u16));
            prop_assert!(cut.is_none_or(|(form, bytes)| form.length() == bytes.len() as u64));
        }
    }

    #[test]
    fn a_changed_byte_is_noticed(at: usize, bit in 0_u8..8, keep in 1_u16..u16::MAX) {
        let chunk = chunk(15 * 4096 + 100);
        let (form, mut bytes) = cut_chunk(&chunk, PageSet(keep), 0).unwrap();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        let is_fine = Slice::decode(&bytes, form).is_ok_and(|slice| slice.is_of(&fingerprint(&chunk)));
        // The length matters only where it is hashed: not if no subtree of pages reaches the end.
        prop_assert!(!is_fine || at < HEAD_BYTES && keep & 1 << 15 == 0);
    }
}

#[test]
fn page_sets_that_no_chunk_has_are_no_form() {
    assert_eq!(SliceForm::new(PageSet(0), 4, 0), None);
    assert_eq!(SliceForm::new(PageSet(15), 4, 0), None, "that is the whole chunk");
    assert_eq!(SliceForm::new(PageSet(16), 4, 0), None, "it has only four");
    assert_eq!(SliceForm::new(PageSet(1), 1, 0), None);
    assert_eq!(SliceForm::new(PageSet(1), 17, 0), None);
    assert!(cut_chunk(&[1; 17 * 4096], PageSet(1), 0).is_none(), "too long to tell pages apart");
    assert!(cut_chunk(&[1; 17 * 4096], PageSet(1), 1).is_some());
}

#[test]
fn page_sets_tell_groups_apart() {
    assert_eq!(PageSet::of(3, 2, 0), PageSet(0b11000));
    assert_eq!(PageSet::of(3, 2, 1), PageSet(0b110));
    assert_eq!(PageSet::of(15, 1, 0), PageSet(1 << 15));
    assert_eq!(PageSet::of(15, 2, 0), PageSet::ALL, "beyond the sixteenth they are not told apart");
    assert_eq!(PageSet::of(0, 16, 0), PageSet::ALL);
    assert!(PageSet::of(5, 0, 0).is_empty());
    for (bytes, log2) in [(4096, 0), (65536, 0), (65537 + 4095, 1), (1 << 20, 4), (2 << 20, 5)] {
        assert_eq!(PageSet::group_log2(bytes), log2, "{bytes}");
    }
}

#[test]
fn a_slice_of_another_length_is_damaged() {
    let (form, bytes) = cut_chunk(&chunk(16 * 4096), PageSet(0x8001), 0).unwrap();
    assert!(Slice::decode(&bytes[..bytes.len() - 1], form).is_err());
    assert!(Slice::decode(&[], form).is_err());
    let mut wrong = bytes.clone();
    wrong[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(Slice::decode(&wrong, form).is_err());
    // A last page with a shorter length than it has.
    wrong[..4].copy_from_slice(&(15 * 4096 + 7_u32).to_le_bytes());
    assert!(Slice::decode(&wrong, form).is_err());
}

/// Compares with the layout of docs/format.md, byte by byte.
#[test]
fn the_layout_is_that_of_the_document() {
    let chunk = chunk(3 * 4096 + 10);
    let (form, bytes) = cut_chunk(&chunk, PageSet(0b1001), 0).unwrap();
    let mut expected = (chunk.len() as u32).to_le_bytes().to_vec();
    for page in [1, 2] {
        let mut hasher = Hasher::new();
        hasher.set_input_offset(page * 4096).update(&chunk[page as usize * 4096..][..4096]);
        expected.extend_from_slice(&hasher.finalize_non_root());
    }
    expected.extend_from_slice(&chunk[..4096]);
    expected.extend_from_slice(&chunk[3 * 4096..]);
    expected.resize(4 + 2 * 32 + 2 * 4096, 0);
    assert_eq!(bytes, expected);
    assert_eq!(form.bits(), 0b1001 | 3 << 16);
}
