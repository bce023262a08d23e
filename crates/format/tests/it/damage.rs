//! Decoders find wrong bytes, and do nothing worse than return an error.

use crate::samples;

use outlive_format::*;
use outlive_types::{Distribution, ErrorKind};
use proptest::prelude::*;
use samples::{STRUCTURES, Structure};

/// Checks that bytes that decode also encode to themselves.
fn refused_or_canonical(structure: &Structure, bytes: &[u8]) {
    if let Ok(again) = (structure.again)(bytes) {
        assert!(again == bytes, "{} accepts a second form of {again:02x?}", structure.name);
    }
}

fn each_sample(mut test: impl FnMut(&Structure, Vec<u8>)) {
    for structure in &STRUCTURES {
        for sample in (structure.samples)() {
            test(structure, sample);
        }
    }
}

/// Returns the start of the bytes that the structure's own checksums cover; a tail's directory has
/// its own.
fn guarded_from(structure: &Structure, sample: &[u8]) -> usize {
    match structure.name {
        "shard_tail" => Footer::decode(sample).unwrap().directory_bytes as usize,
        _ => 0,
    }
}

#[test]
fn every_flipped_bit_is_found_or_is_another_value() {
    each_sample(|structure, sample| {
        let guarded_from = guarded_from(structure, &sample);
        for at in 0..sample.len() {
            for bit in 0..8 {
                let mut flipped = sample.clone();
                flipped[at] ^= 1 << bit;
                if structure.seal.is_some() && at >= guarded_from {
                    let error = (structure.again)(&flipped).expect_err("a flip went unnoticed");
                    assert_eq!(error.kind(), ErrorKind::Damaged, "byte {at}: {error}");
                } else {
                    refused_or_canonical(structure, &flipped);
                }
            }
        }
    });
}

#[test]
fn behind_right_checksums_fields_are_checked_too() {
    each_sample(|structure, sample| {
        let seal = structure.seal.unwrap_or(|_| {});
        for at in 0..sample.len() {
            for (width, byte) in [(1, 0), (1, 1), (1, 0x80), (1, 0xFF), (4, 0xFF), (8, 0xFF)] {
                let mut changed = sample.clone();
                let end = sample.len().min(at + width);
                changed[at..end].fill(byte);
                seal(&mut changed);
                refused_or_canonical(structure, &changed);
            }
        }
    });
}

#[test]
fn every_truncation_and_extension_is_found() {
    each_sample(|structure, sample| {
        let seal = structure.seal.unwrap_or(|_| {});
        for length in (0..sample.len()).chain([sample.len() + 1, sample.len() + 4096]) {
            let mut cut = sample.clone();
            cut.resize(length, 0);
            for sealed in [false, true] {
                if sealed {
                    seal(&mut cut);
                }
                let error = (structure.again)(&cut).expect_err("a wrong length went unnoticed");
                assert_eq!(error.kind(), ErrorKind::Damaged, "{length} bytes: {error}");
            }
        }
    });
}

#[test]
fn another_version_is_refused_by_name() {
    for structure in &STRUCTURES {
        let version_at = match structure.name {
            "shard_header" => 8,
            "shard_tail" => continue, // the header has the version
            _ => 4,
        };
        let mut bytes = (structure.samples)().remove(0);
        bytes[version_at] = 7;
        if let Some(seal) = structure.seal {
            seal(&mut bytes);
        }
        let error = (structure.again)(&bytes).expect_err("version 7 does not exist");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.message().contains("version 7") && error.message().contains("version 0"));
    }
}

#[test]
fn a_footer_is_found_at_the_end_of_any_suffix() {
    let tail = samples::tail().encode().unwrap();
    let mut shard = vec![0xEE; 12288];
    shard.extend_from_slice(&tail);
    let footer = Footer::decode(&shard).unwrap();
    assert_eq!(footer, Footer::decode(&tail[tail.len() - FOOTER_BYTES..]).unwrap());
    assert_eq!(footer.tail_bytes(), tail.len() as u64);
    assert!(Tail::decode(&shard[8192..]).is_err(), "bytes before the tail are not part of it");
}

#[test]
fn a_footer_is_checked_by_itself() {
    let tail = samples::tail().encode().unwrap();
    for (at, new, why) in [
        (28, [1, 0, 0, 0, 0, 0, 0, 0], "unaligned F"),
        (28, [0, 0, 0, 0, 1, 0, 0, 0], "F of 4 GiB"),
        (40, [65, 0, 0, 0, 0, 0, 0, 0], "too many fragments"),
    ] {
        let mut footer = tail[tail.len() - FOOTER_BYTES..].to_vec();
        footer[at..at + 8].copy_from_slice(&new);
        let sum = checksum(&footer[..FOOTER_BYTES - 8]);
        footer[FOOTER_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(Footer::decode(&footer).expect_err(why).kind(), ErrorKind::Damaged, "{why}");
    }
}

#[test]
fn encoders_refuse_values_that_decoders_refuse() {
    let bug = |result: outlive_types::Result<Vec<u8>>| {
        assert_eq!(result.expect_err("it cannot be decoded").kind(), ErrorKind::Bug);
    };
    bug(ShardHeader { shard: 6, ..samples::header() }.encode());
    let geometry = samples::header().geometry;
    bug(ShardHeader { geometry: Geometry { k: 0, ..geometry }, ..samples::header() }.encode());
    let geometry = Geometry { container_bytes: 4 << 10, ..geometry };
    bug(ShardHeader { geometry, ..samples::header() }.encode());
    bug(ShardHeader { containers_bytes: 4097, ..samples::header() }.encode());
    bug(ShardHeader { containers_bytes: 65 * (4 << 20), ..samples::header() }.encode());
    bug(TablePage { images: Vec::new() }.encode());
    bug(TablePage { images: vec![samples::image(1), samples::image(3)] }.encode());
    bug(TablePage { images: vec![samples::image(u32::MAX)] }.encode());
    bug(SegmentLists { ranks: Vec::new() }.encode());
    bug(SegmentLists { ranks: vec![(1, Vec::new()), (1, Vec::new())] }.encode());
    bug(InnerNode { level: 4, ..samples::node() }.encode());
    bug(InnerNode::new(1, vec![samples::fp(0); 9]).encode());
    bug(InnerNode::new(1, vec![samples::fp(1); 513]).encode());
    bug(Leaf::build(LeafKind::Full, []).unwrap().encode());
    bug(Leaf { kind: LeafKind::Full, ..samples::delta_leaf() }.encode());
    let kind = LeafKind::Delta { base: samples::fp(1), chain: CHAIN_MAX + 1 };
    bug(Leaf { kind, ..samples::delta_leaf() }.encode());
    let wrong_fragment = Fragment { length: 4095, checksum: 0 };
    bug(Tail { fragments: vec![wrong_fragment], ..samples::tail() }.encode());
    let fragment = Fragment { length: 64 << 20, checksum: 0 };
    bug(Tail { fragments: vec![fragment; 64], ..samples::tail() }.encode());
    let fragment = Fragment { length: 4096, checksum: 0 };
    bug(Tail { fragments: vec![fragment; 65], ..samples::tail() }.encode());
    let mut directory = samples::directory();
    directory.entries[1].length = LENGTH_MAX + 1;
    bug(directory.encode());
    let mut directory = samples::directory();
    directory.entries[1] = directory.entries[0];
    bug(directory.encode());
    let mut record = samples::records().remove(0);
    record.number = 0;
    bug(record.encode());
    let mut record = samples::records().remove(0);
    let Body::Session(session) = &mut record.body else { panic!("the first record's kind") };
    session.host = "h".repeat(65_536);
    bug(record.encode());
    let manifest = Manifest { world_size: 2, ..samples::manifest() };
    bug(Record { number: 9, previous: samples::fp(1), body: Body::Manifest(manifest) }.encode());
}

#[test]
fn items_that_cannot_be_listed_are_refused() {
    let refused = |change: fn(&mut Item), word: &str| {
        let mut item = samples::listing().items.remove(7);
        assert!(item.encode(&mut Vec::new()).is_ok());
        change(&mut item);
        let mut listing = vec![1, 2, 3];
        let error = item.encode(&mut listing).expect_err(word);
        assert_eq!((error.kind(), listing.len()), (ErrorKind::Invalid, 3));
        assert!(error.message().contains(word), "{error}");
    };
    refused(|item| item.path = b"/etc/passwd".to_vec(), "leaves its place");
    refused(|item| item.path = b"a/../b".to_vec(), "leaves its place");
    refused(|item| item.path = b"a//b".to_vec(), "leaves its place");
    refused(|item| item.path = b"./a".to_vec(), "leaves its place");
    refused(|item| item.path = Vec::new(), "leaves its place");
    refused(|item| item.path = b".".to_vec(), "only a directory");
    refused(|item| item.mode = 0o10000, "mode");
    refused(|item| item.mtime.ns = 1_000_000_000, "times");
    refused(|item| item.target = b"x".to_vec(), "no link");
    refused(|item| item.kind = ItemKind::Symlink, "nowhere");
    refused(|item| item.kind = ItemKind::HardLink, "leaves its place");
    refused(|item| item.kind = ItemKind::Stream, "no file");
    refused(|item| item.bytes += 1, "instead of");
    refused(|item| item.content = Content::Empty, "instead of");
    refused(|item| item.content = Content::Inline(vec![0; 513]), "513");
    refused(|item| item.content = Content::Pieces(vec![Piece::zeros(1); 2]), "neighbouring");
    refused(|item| item.content = Content::Pieces(vec![Piece::zeros(0)]), "empty");
    refused(|item| item.content = Content::Recipe(samples::fp(0)), "zero");
    refused(
        |item| {
            let attribute = Attribute { name: b"user.a".to_vec(), value: Vec::new() };
            item.attributes = vec![attribute; 2];
        },
        "out of order",
    );
    refused(
        |item| {
            let (name, value) = (b"user.a".to_vec(), vec![0; 16 << 20]);
            item.attributes = vec![Attribute { name, value }];
        },
        "16 MiB",
    );
    let mut listing = samples::listing();
    listing.items.swap(1, 2);
    assert_eq!(listing.encode().unwrap_err().kind(), ErrorKind::Bug);
    let bug = |recipe: Recipe| assert_eq!(recipe.encode().unwrap_err().kind(), ErrorKind::Bug);
    bug(Recipe { level: 8, ..samples::upper_recipe() });
    bug(Recipe { level: 1, ..samples::recipe() });
    bug(Recipe { level: 0, children: Vec::new() });
    bug(Recipe { level: 0, children: vec![Piece::zeros(1); 2] });
    bug(Recipe { level: 0, children: vec![Piece { fp: samples::fp(1), bytes: 1 }; 4097] });
    bug(Recipe { level: 0, children: vec![Piece { fp: samples::fp(1), bytes: 1 << 62 }; 2] });
}

#[test]
fn regions_that_a_catalog_cannot_hold_are_refused() {
    let refused = |change: fn(&mut Catalog), word: &str| {
        let mut catalog = samples::catalog();
        change(&mut catalog);
        let error = catalog.encode().expect_err("it cannot be decoded");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains(word), "{error}");
    };
    refused(|catalog| catalog.regions[0].desc.name.clear(), "no name");
    refused(|catalog| catalog.regions[0].desc.name = "grid".to_owned(), "two regions");
    refused(|catalog| catalog.regions[0].desc.name = "é".repeat(40_000), "too long");
    refused(|catalog| catalog.regions[0].desc.dtype = "é".repeat(40_000), "dtype");
    refused(|catalog| catalog.regions[0].desc.shape = vec![1; 65], "dimensions");
    let part = |catalog: &mut Catalog, global_shape: &[u64], offset: &[u64]| {
        let (global_shape, offset) = (global_shape.to_vec(), offset.to_vec());
        catalog.regions[0].desc.distribution = Distribution::Subarray { global_shape, offset };
    };
    let end = u64::MAX;
    for (global_shape, offset, word) in [
        (&[4, 3, 1][..], &[0, 0][..], "2, 3 and 2 dimensions"),
        (&[4, 3], &[0], "2, 2 and 1 dimensions"),
        (&[4, 3], &[3, 0], "dimension 0 it begins at 3 and has 2 elements"),
        (&[4, 3], &[0, 1], "dimension 1"),
        (&[end, end], &[end, 0], "dimension 0"),
    ] {
        let mut catalog = samples::catalog();
        part(&mut catalog, global_shape, offset);
        let error = catalog.encode().expect_err("the region is no part of that");
        assert!(error.message().contains(word), "{error}");
    }
    for (block, stride, word) in [
        ([0, 1], [6, 2], "dimension 0 it has blocks of 0 elements, every 6"),
        ([2, 3], [6, 2], "dimension 1 it has blocks of 3 elements, every 2"),
        ([2, 1], [8, 2], "dimension 0 it begins at 259 and has 3 elements in blocks of 2, every 8"),
        ([2, 1], [end, 2], "dimension 0 it begins"),
        ([2, 1], [6, 3], "dimension 1 it begins"),
    ] {
        // Both the encoder and the decoder refuse it.
        let mut catalog = samples::catalog();
        let mut bytes = catalog.encode().unwrap();
        if let Distribution::BlockCyclic { block: own, stride: own_stride, .. } =
            &mut catalog.regions[4].desc.distribution
        {
            (*own, *own_stride) = (block.to_vec(), stride.to_vec());
        }
        let error = catalog.encode().expect_err("the region is no part of that");
        assert!(error.message().contains(word), "{error}");
        // The name, the dtype, the attachment and the outputs follow the lists.
        let lists = bytes.len() - 9 - 32;
        for (at, number) in block.into_iter().chain(stride).enumerate() {
            bytes[lists + 8 * at..][..8].copy_from_slice(&number.to_le_bytes());
        }
        let error = Catalog::decode(&bytes).expect_err("the region is no part of that");
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.message().contains(word), "{error}");
    }
    refused(
        |catalog| {
            let none = Distribution::Subarray { global_shape: Vec::new(), offset: Vec::new() };
            catalog.regions[1].desc.distribution = none;
        },
        "at least one",
    );
    refused(|catalog| catalog.regions[1].desc.bytes = STREAM_BYTES_MAX + 1, "longer");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_edits_are_refused_or_canonical(
        which in 0..STRUCTURES.len(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let structure = &STRUCTURES[which];
        for mut bytes in (structure.samples)() {
            for (at, byte) in &edits {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            refused_or_canonical(structure, &bytes);
            if let Some(seal) = structure.seal {
                seal(&mut bytes);
                refused_or_canonical(structure, &bytes);
            }
        }
    }

    #[test]
    fn noise_is_refused(noise in prop::collection::vec(any::<u8>(), 0..5000)) {
        for structure in &STRUCTURES {
            prop_assert!((structure.again)(&noise).is_err());
        }
    }
}
