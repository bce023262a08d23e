//! Compares leaves with the simplest equivalent: an array with one entry a page.

use outlive_format::{Leaf, LeafKind, Lookup, PageExtent};
use outlive_types::{BLOCK_PAGES, Fingerprint};
use proptest::prelude::*;

/// Location of each page of the block.
type Model = [Lookup; BLOCK_PAGES];

fn fp(byte: u8) -> Fingerprint {
    Fingerprint([byte; 32])
}

fn delta_kind(chain: u8) -> LeafKind {
    LeafKind::Delta { base: fp(0xBA), chain }
}

/// Builds extents in page order from (gap before, pages, chunk; 0 is none, shift). With shift 0,
/// pages of a chunk continue across extents, so merging has work to do.
fn extents(plan: &[(u16, u16, u8, u16)]) -> Vec<PageExtent> {
    let mut extents = Vec::new();
    let mut at = 0;
    for &(gap, pages, chunk, shift) in plan {
        let page = at + gap;
        let first = if chunk == 0 { 0 } else { (page + shift) % 128 };
        at = page + pages;
        if usize::from(at) > BLOCK_PAGES {
            break;
        }
        let chunk = (chunk > 0).then(|| fp(chunk));
        extents.push(PageExtent { page, pages, first, chunk });
    }
    extents
}

fn lay(model: &mut Model, extents: &[PageExtent]) {
    for extent in extents {
        for step in 0..extent.pages {
            model[usize::from(extent.page + step)] = match extent.chunk {
                Some(chunk) => Lookup::Chunk { chunk, page: extent.first + step },
                None => Lookup::Zero,
            };
        }
    }
}

/// Returns the leaf of a model, built page by page.
fn leaf_of(kind: LeafKind, model: &Model) -> Leaf {
    let pages = model.iter().zip(0..).filter_map(|(known, page)| match *known {
        Lookup::Base => None,
        Lookup::Zero => Some(PageExtent { page, pages: 1, first: 0, chunk: None }),
        Lookup::Chunk { chunk, page: first } => {
            Some(PageExtent { page, pages: 1, first, chunk: Some(chunk) })
        }
    });
    Leaf::build(kind, pages).unwrap()
}

fn agrees(leaf: &Leaf, model: &Model) {
    for (page, known) in (0..).zip(model) {
        assert_eq!(leaf.lookup(page), *known, "page {page} of {leaf:?}");
    }
    assert_eq!(*leaf, leaf_of(leaf.kind, model), "one block has one leaf");
    let live = leaf.live_pages_per_chunk();
    assert_eq!(live.len(), leaf.chunks.len());
    for (chunk, live) in leaf.chunks.iter().zip(live) {
        let there = |known: &&Lookup| matches!(known, Lookup::Chunk { chunk: c, .. } if c == chunk);
        assert_eq!(usize::from(live), model.iter().filter(there).count());
    }
    if !leaf.extents.is_empty() {
        let bytes = leaf.encode().unwrap();
        assert_eq!(bytes.len(), leaf.encoded_len());
        assert_eq!(Leaf::decode(&bytes).unwrap(), *leaf);
    }
}

fn plan() -> impl Strategy<Value = Vec<(u16, u16, u8, u16)>> {
    let gap = prop_oneof![2 => Just(0_u16), 1 => 1..90_u16];
    let pages = prop_oneof![3 => 1..6_u16, 1 => 1..140_u16];
    let shift = prop_oneof![3 => Just(0_u16), 1 => 0..128_u16];
    prop::collection::vec((gap, pages, 0..5_u8, shift), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn deltas_over_a_full_leaf_act_like_the_page_map(
        base in plan(),
        deltas in prop::collection::vec(plan(), 1..8),
    ) {
        let mut model = [Lookup::Zero; BLOCK_PAGES];
        lay(&mut model, &extents(&base));
        let mut leaf = Leaf::build(LeafKind::Full, extents(&base)).unwrap();
        agrees(&leaf, &model);
        let (mut folded, mut deltas_laid): (Option<Leaf>, _) = (None, Vec::new());
        for (delta, chain) in deltas.iter().zip(1..) {
            let delta = extents(delta);
            let mut alone = [Lookup::Base; BLOCK_PAGES];
            lay(&mut alone, &delta);
            lay(&mut model, &delta);
            let delta = Leaf::build(delta_kind(chain), delta).unwrap();
            agrees(&delta, &alone);
            leaf = Leaf::overlay(&leaf, [&delta]);
            agrees(&leaf, &model);
            folded = Some(folded.map_or(delta.clone(), |before| Leaf::overlay(&before, [&delta])));
            deltas_laid.push(delta);
        }
        // A chain may be folded from its top as well.
        let folded = folded.expect("there was a delta");
        let full = Leaf::build(LeafKind::Full, extents(&base)).unwrap();
        prop_assert_eq!(Leaf::overlay(&full, [&folded]), leaf.clone());
        // All deltas may be folded at once.
        prop_assert_eq!(Leaf::overlay(&full, &deltas_laid), leaf);
    }
}

#[test]
fn an_overwrite_splits_an_extent_by_reference() {
    let extent =
        |page, pages, first, byte| PageExtent { page, pages, first, chunk: Some(fp(byte)) };
    let old = Leaf::build(LeafKind::Full, [extent(16, 16, 0, 1)]).unwrap();
    let delta = Leaf::build(delta_kind(1), [extent(20, 2, 0, 2)]).unwrap();
    let new = Leaf::overlay(&old, [&delta]);
    let parts: Vec<_> = new.page_extents().collect();
    assert_eq!(parts, [extent(16, 4, 0, 1), extent(20, 2, 0, 2), extent(22, 10, 6, 1)]);
    assert_eq!(new.live_pages_per_chunk(), [14, 2]);
    let back = Leaf::build(delta_kind(1), [extent(20, 2, 4, 1)]).unwrap();
    assert_eq!(Leaf::overlay(&new, [&back]), old, "what fits together again becomes one extent");
}

#[test]
fn a_block_that_becomes_zero_has_no_leaf() {
    let page = |chunk| PageExtent { page: 0, pages: 512, first: 0, chunk };
    let old = Leaf::build(LeafKind::Full, [page(Some(fp(1)))]).unwrap();
    let delta = Leaf::build(delta_kind(1), [page(None)]).unwrap();
    assert!(!old.is_zero() && !delta.is_zero());
    assert!(Leaf::overlay(&old, [&delta]).is_zero());
}

#[test]
fn a_block_holds_as_many_extents_as_pages() {
    let page = |page| PageExtent { page, pages: 1, first: 511, chunk: Some(numbered(page)) };
    let leaf = Leaf::build(LeafKind::Full, (0..512).map(page)).unwrap();
    assert_eq!((leaf.chunks.len(), leaf.extents.len()), (512, 512));
    assert_eq!(Leaf::decode(&leaf.encode().unwrap()).unwrap(), leaf);
}

fn numbered(number: u16) -> Fingerprint {
    let mut bytes = [1; 32];
    bytes[30..].copy_from_slice(&number.to_le_bytes());
    Fingerprint(bytes)
}

#[test]
fn wrong_extents_are_refused() {
    let build = |extents: &[(u16, u16, u16)]| {
        let extent = |&(page, pages, first)| PageExtent { page, pages, first, chunk: Some(fp(1)) };
        Leaf::build(LeafKind::Full, extents.iter().map(extent)).is_err()
    };
    assert!(build(&[(4, 2, 0), (5, 1, 0)]), "overlap");
    assert!(build(&[(4, 2, 0), (2, 1, 0)]), "order");
    assert!(build(&[(4, 0, 0)]), "empty");
    assert!(build(&[(511, 2, 0)]) && build(&[(512, 1, 0)]), "beyond the block");
    assert!(build(&[(0, 2, 511)]) && build(&[(0, u16::MAX, u16::MAX)]), "beyond the chunk");
}
