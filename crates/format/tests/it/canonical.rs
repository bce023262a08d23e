//! Each value has one encoding: everything else is refused, even with right checksums. Offsets are
//! those of the fixtures in `golden.rs`.

use crate::samples;

use outlive_format::*;
use outlive_types::{ErrorKind, Fingerprint};
use samples::{STRUCTURES, fp};

/// Bytes to write at an offset.
type Edit<'a> = (usize, &'a [u8]);

fn refused(name: &str, sample: usize, edits: &[Edit<'_>], why: &str) {
    let structure = STRUCTURES.iter().find(|structure| structure.name == name).unwrap();
    let bytes = (structure.samples)().swap_remove(sample);
    refused_bytes(name, bytes, edits, why);
}

fn refused_in(name: &str, sample: usize, at: usize, new: &[u8], why: &str) {
    refused(name, sample, &[(at, new)], why);
}

fn refused_bytes(name: &str, mut bytes: Vec<u8>, edits: &[Edit<'_>], why: &str) {
    let structure = STRUCTURES.iter().find(|structure| structure.name == name).unwrap();
    (structure.again)(&bytes).expect("it is right before the edit");
    for (at, new) in edits {
        assert_ne!(&bytes[*at..*at + new.len()], *new, "{name}, {why}: the edit changes nothing");
        bytes[*at..*at + new.len()].copy_from_slice(new);
    }
    if let Some(seal) = structure.seal {
        seal(&mut bytes);
    }
    let error = (structure.again)(&bytes).expect_err(why);
    assert_eq!(error.kind(), ErrorKind::Damaged, "{name}, {why}: {error}");
}

#[test]
fn headers() {
    let refused = |at, new: &[u8], why| refused("shard_header", 0, &[(at, new)], why);
    refused(0, b"o", "magic");
    refused(11, &[1], "shard above 255");
    refused(10, &[6], "shard 6 of 4 + 2");
    refused(12, &[255], "k + m above 256");
    refused(14, &[1], "reserved");
    refused(56, &[0, 0x10, 0], "container below 64 KiB");
    refused(56, &[0, 0x10, 0, 4], "container above 64 MiB");
    refused(56, &[1], "unaligned container");
    refused(64, &[1], "unaligned containers");
    refused(68, &[1], "containers of 4 GiB");
    refused(67, &[0x11], "more than 64 containers");
    refused(120, &[1], "reserved");
    let geometry = Geometry { k: 0, m: 6, ..samples::header().geometry };
    let header = ShardHeader { geometry, ..samples::header() };
    assert!(header.encode().is_err(), "no data shard");
}

/// A running program may meet data that a later build has encrypted. That is no damage.
#[test]
fn the_room_for_later_builds_is_refused_and_no_damage() {
    for (name, room) in [("shard_header", 72..120), ("record", 56..104), ("directory", 76..100)] {
        let structure = STRUCTURES.iter().find(|structure| structure.name == name).unwrap();
        for at in room {
            let mut bytes = (structure.samples)().swap_remove(0);
            assert_eq!(bytes[at], 0);
            bytes[at] = 1;
            structure.seal.expect("it has a checksum")(&mut bytes);
            let error = (structure.again)(&bytes).expect_err("a later build");
            assert!(
                error.kind() == ErrorKind::Invalid && error.is_newer(),
                "{name} at {at}: {error}"
            );
            assert!(error.message().contains("features of a later build"), "{error}");
        }
    }
}

#[test]
fn tails() {
    let refused = |edits: &[Edit<'_>], why| refused("shard_tail", 0, edits, why);
    refused(&[(4032, b"o")], "magic");
    refused(&[(4060, &[1])], "unaligned F");
    refused(&[(4061, &[0x40])], "F is not the sum");
    refused(&[(4061, &[0x40, 0, 0, 1])], "F above 4 GiB");
    refused(&[(4076, &[1])], "reserved");
    refused(&[(4072, &[65])], "too many fragments");
    refused(&[(4068, &[0, 0x20])], "directory beyond the tail");
    refused(&[(4068, &[0, 0])], "directory shorter than it is");
    refused(&[(100, &[1])], "the zeros before the table");
    refused(&[(4004, &[1])], "reserved in the table");
    refused(&[(4000, &[1, 0, 1]), (4060, &[1])], "unaligned fragment");
    refused(&[(4001, &[0x08]), (4061, &[0x38])], "unaligned full fragment");
    refused(&[(4017, &[0x20, 2]), (4061, &[0x20, 3])], "last fragment longer");
    refused(&[(4017, &[0]), (4061, &[0])], "empty fragment");
    let fragment = |length| Fragment { length, checksum: 1 };
    let fragments = vec![fragment(0x2000), fragment(0x2000), fragment(0x1000)];
    let bytes = Tail { fragments, ..samples::tail() }.encode().unwrap();
    refused_bytes("shard_tail", bytes, &[(4001, &[0x10]), (4061, &[0x40])], "unequal fragments");
}

#[test]
fn directories() {
    let refused = |edits: &[Edit<'_>], why| refused("directory", 0, edits, why);
    refused(&[(6, &[1])], "reserved");
    refused(&[(39, &[2])], "a pack twice");
    refused(&[(172, &[2])], "no such pack");
    refused(&[(180, &[0, 0, 0])], "no length");
    refused(&[(176, &[0xFF; 4])], "beyond 4 GiB");
    refused(&[(183, &[4])], "kind");
    refused(&[(140, &[0; 32])], "zero fingerprint");
    refused(&[(184, &[0x10])], "out of order");
    refused(&[(260, &[0]), (264, &[4, 3, 2, 1])], "one place twice");
    refused(&[(60, &[2])], "a frame in no pack");
    refused(&[(71, &[3])], "codec");
    refused(&[(68, &[8])], "stored as long as raw");
    refused(&[(68, &[0])], "no stored bytes");
    refused(&[(100, &[0, 0, 0, 0, 5, 0, 0, 0])], "two frames at one place");
    refused(&[(436, &[1])], "a frame without an entry");
    refused(&[(348, &[2])], "no such frame");
    refused(&[(352, &[1, 0x10])], "beyond its frame");
}

#[test]
fn nodes() {
    let refused = |at, new: &[u8], why| refused("node", 0, &[(at, new)], why);
    refused(0, b"o", "magic");
    refused(6, &[0], "level 0");
    refused(6, &[4], "level 4");
    refused(7, &[1], "reserved");
    refused(76, &[0; 32], "last child zero");
    let mut bytes = InnerNode::new(1, vec![fp(1); 512]).encode().unwrap();
    bytes.extend([1; 32]);
    bytes[8] += 1;
    assert!(InnerNode::decode(&bytes).is_err(), "513 children");
    assert!(InnerNode::decode(b"OLND\0\0\x01\0\0\0\0\0").is_err(), "no child");
}

#[test]
fn leaves() {
    let full = |at, new: &[u8], why| refused("leaf", 0, &[(at, new)], why);
    full(6, &[2], "kind");
    full(7, &[1], "full with a chain");
    full(79, &[0x08], "reserved bits");
    full(80, &[1], "chunks not in order of first use");
    full(92, &[2], "no such chunk, the next");
    full(92, &[7], "no such chunk");
    full(92, &[0xFF, 0xFF], "zero pages in a full leaf");
    full(86, &[0], "unused chunk");
    full(44, &[0xC2; 32], "chunk twice");
    full(44, &[0; 32], "zero chunk");
    full(82, &[3], "overlap");
    full(88, &[0x2D], "beyond the block");
    full(90, &[0xB5], "beyond the chunk");
    let delta = |at, new: &[u8], why| refused("leaf", 1, &[(at, new)], why);
    delta(7, &[0], "delta without chain");
    delta(7, &[9], "chain too long");
    delta(12, &[0; 32], "base zero");
    delta(78, &[4], "zero pages with a first page");
    assert!(Leaf::decode(b"OLLF\0\0\0\0\0\0\0\0").is_err(), "no extents");

    let pages = |page, first, chunk| PageExtent { page, pages: 4, first, chunk };
    let split = [pages(0, 0, Some(fp(1))), pages(4, 5, Some(fp(1)))];
    let bytes = Leaf::build(LeafKind::Full, split).unwrap().encode().unwrap();
    refused_bytes("leaf", bytes, &[(52, &[0x10])], "neighbours of one chunk");
    let kind = LeafKind::Delta { base: fp(2), chain: 1 };
    let split = [pages(0, 0, None), pages(5, 0, None)];
    let bytes = Leaf::build(kind, split).unwrap().encode().unwrap();
    refused_bytes("leaf", bytes, &[(50, &[4])], "neighbouring zero pages");
}

#[test]
fn catalogs() {
    let refused = |edits: &[Edit<'_>], why| refused("catalog", 0, edits, why);
    refused(&[(6, &[1])], "reserved");
    refused(&[(16, &[3])], "attachment too short");
    refused(&[(16, &[1])], "attachment too long");
    refused(&[(24, &[4])], "outputs too short");
    refused(&[(24, &[2])], "outputs too long");
    refused(&[(32, &[0]), (36, &[5])], "no name");
    refused(&[(39, &[6])], "distribution");
    refused(&[(39, &[2])], "part of a global array without its place there");
    let part = 32 + 45 + 60;
    refused(&[(part + 40, &[1])], "a part that is larger than the global array");
    refused(&[(part + 56, &[1])], "a part that ends behind the global array");
    refused(&[(48, &[33])], "unaligned offset");
    refused(&[(48, &[0xF0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF])], "offset");
    refused(&[(74, &[0xFF])], "dtype not UTF-8");
    refused(&[(72, &[0xFF])], "name not UTF-8");
    refused(&[(93, &[2])], "level");
    refused(&[(94, &[1])], "reserved");
    refused(&[(87, &[0]), (85, &[0]), (93, &[0])], "an empty stream with a root");
    let mut catalog = samples::catalog();
    catalog.regions[0].desc.name = "gria".to_owned();
    refused_bytes("catalog", catalog.encode().unwrap(), &[(75, b"d")], "a name twice");
    catalog.regions[0].root = fp(1);
    assert!(catalog.encode().is_err(), "a packed region has no tree");
}

#[test]
fn outputs() {
    let refused = |edits: &[Edit<'_>], why| refused("outputs", 0, edits, why);
    refused(&[(6, &[1])], "reserved");
    refused(&[(9, &[0])], "an output that is none yet");
    refused(&[(16, &[4])], "an output too few");
    refused(&[(24, &[1])], "a position too many");
    refused(&[(32, &[9])], "the same number twice");
    refused(&[(40, &[0])], "an epoch after this checkpoint's own");
    refused(&[(48, &[9])], "the name of a sink not UTF-8");
    refused(&[(52, &[5])], "a longer token");
    let mut list = samples::outputs();
    list.outputs[0].sink.clear();
    assert_eq!(list.encode().unwrap_err().kind(), ErrorKind::Invalid);
    let mut list = samples::outputs();
    list.positions.insert("out".into(), vec![0; SINK_BYTES_MAX + 1]);
    assert_eq!(list.encode().unwrap_err().kind(), ErrorKind::Invalid);
    let mut list = samples::outputs();
    list.outputs.swap(0, 1);
    assert_eq!(list.encode().unwrap_err().kind(), ErrorKind::Bug);
}

#[test]
fn envelopes() {
    for sample in 0..5 {
        refused("record", sample, &[(0, b"o")], "magic");
        refused("record", sample, &[(7, &[1])], "reserved");
        refused("record", sample, &[(6, &[6])], "kind");
        refused("record", sample, &[(8, &[0])], "number 0");
        refused("record", sample, &[(18, &[1])], "length");
    }
    refused("record", 0, &[(24, &[1])], "the first has no previous");
    refused("record", 0, &[(140, &[0xFF])], "host not UTF-8");
    refused("record", 0, &[(147, &[0xFF])], "system not UTF-8");
    refused("record", 2, &[(116, &[1])], "reserved in a sweep");
    refused("record", 2, &[(124, &[1])], "reserved in a sweep");
    refused("record", 3, &[(116, &[1])], "reserved in a close");
}

#[test]
fn manifests() {
    let refused = |at, new: &[u8], why| refused("record", 1, &[(at, new)], why);
    refused(116, &[0], "no ranks");
    refused(116, &[2], "too few images");
    refused(120, &[0], "epoch 0");
    refused(128, &[12], "its own parent");
    refused(136, &[12], "its own predecessor");
    refused(220, &[1], "rank");
    refused(224, &[2], "kind of an image");
    refused(224, &[1], "files with a packed stream");
    refused(216, &[4 | 8], "a state that is both good and bad");
    refused(216, &[16], "flags of the remarks");
    refused(217, &[1], "a tag that is not there");
    refused(476, &[0, 0], "a metric without a name");
    refused(488, &[0xFF, 0xFF], "a metric that is no number");
    refused(214, &[2], "a longer label");
    refused(252, &[0], "an empty stream with a root");
    refused(260, &[1], "level of the catalog");
    refused(261, &[1], "reserved in a tree");
    refused(308, &[0], "level of the packed stream");
    refused(306, &[0xFF, 0xFF], "stream too long");
    refused(372, &[0; 4], "no length");
    refused(376, &[2], "kind of a segment");
    refused(377, &[1], "a directory is no merge");
    refused(378, &[1], "reserved in a segment");
    refused(380, &[0; 32], "zero fingerprint");
}

#[test]
fn image_tables() {
    let refused = |at, new: &[u8], why| refused("record", 7, &[(at, new)], why);
    refused(116, &[1], "a table for one rank");
    refused(116, &[2], "a page behind the last rank");
    refused(220, &[2], "kind of the images");
    refused(244, &[1], "rank 0 is on no page");
    refused(308, &[0], "a rank on two pages");
    refused(272, &[0; 4], "a page without bytes");
    refused(276, &[0; 32], "a page with the zero fingerprint");
    let lists = |at, new: &[u8], why| refused_in("record", 4, at, new, why);
    lists(136, &[0], "no lists for a table");
}

#[test]
fn pages_of_tables_and_lists() {
    let page = |at, new: &[u8], why| refused_in("table_page", 0, at, new, why);
    page(0, b"o", "magic");
    page(6, &[1], "reserved");
    page(12, &[1], "reserved");
    page(8, &[0], "no image");
    page(8, &[3], "an image too many");
    page(16, &[7], "a rank twice");
    page(16, &[0xFF; 4], "the committer's rank");
    let list = |at, new: &[u8], why| refused_in("segment_lists", 0, at, new, why);
    list(0, b"o", "magic");
    list(8, &[1], "a rank too few");
    list(16, &[7], "a rank twice");
    list(48, &[0; 4], "a segment without bytes");
}

#[test]
fn texts_and_shapes_at_their_limits() {
    let mut catalog = samples::catalog();
    let desc = &mut catalog.regions[1].desc;
    desc.name = "n".repeat(TEXT_BYTES_MAX);
    desc.dtype = "d".repeat(TEXT_BYTES_MAX);
    desc.shape = vec![u64::MAX; DIMENSIONS_MAX];
    desc.bytes = STREAM_BYTES_MAX;
    let bytes = catalog.encode().unwrap();
    assert_eq!(Catalog::decode(&bytes).unwrap(), catalog);
    catalog.regions[1].desc.bytes = 0;
    catalog.regions[1].root = Fingerprint::ZERO;
    assert_eq!(Catalog::decode(&catalog.encode().unwrap()).unwrap(), catalog);
}
