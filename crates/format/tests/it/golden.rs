//! The bytes of one value of each structure, written out field by field after `docs/format.md`: an
//! accidental change of the layout fails here. The checksums come from other implementations of
//! XXH3 and BLAKE3 (the Python packages `xxhash` and `blake3`).

use crate::samples;

use outlive_format::*;
use std::fmt::Write;

/// Returns bytes from hexadecimal text; `AAx16` is sixteen times the byte `AA`, `|` and blanks only
/// separate.
fn hex(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in text.split_whitespace().filter(|word| *word != "|") {
        let (digits, times) = word.split_once('x').unwrap_or((word, "1"));
        let group: Vec<u8> = (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("a hexadecimal fixture"))
            .collect();
        bytes.extend(group.repeat(times.parse().expect("a count in a fixture")));
    }
    bytes
}

fn same(what: &str, encoded: &[u8], golden: &str) {
    let golden = hex(golden);
    if encoded != golden {
        let at = encoded.iter().zip(&golden).take_while(|(a, b)| a == b).count();
        let mut shown = String::new();
        for byte in encoded.iter().skip(at).take(40) {
            write!(shown, "{byte:02x}").expect("writing to a string succeeds");
        }
        panic!(
            "{what}: {} bytes instead of {}; from byte {at} on: {shown}",
            encoded.len(),
            golden.len()
        );
    }
}

#[test]
fn header() {
    let golden = "4f55544c49564500 | 0000 | 0500 | 04 | 02 | 0000 | 5ex12 00000007 01020304 | 46000000 \
                  | 77x16 | 0000400000000000 | 0030800000000000 | 00x4016 | fd04eccee98ca740";
    same("header", &samples::header().encode().unwrap(), golden);
    assert_eq!(ShardHeader::decode(&hex(golden)).unwrap(), samples::header());
}

#[test]
fn tail() {
    let golden = "d1x70 | 00x3930 \
                  | 00000100 00000000 4444333322221111 | 00300000 00000000 8888777766665555 \
                  | 4f4c464f4f540000 | 5ex12 00000007 00000002 | 0030010000000000 | 46000000 | 02000000 \
                  | 00x4 | e43840db7ea37656 | cdbb06acaaeba250";
    same("tail", &samples::tail().encode().unwrap(), golden);
    assert_eq!(Tail::decode(&hex(golden)).unwrap(), samples::tail());
    let footer = Footer::decode(&hex(golden)[4032..]).unwrap();
    assert_eq!((footer.fragment_bytes, footer.directory_bytes, footer.fragments), (0x13000, 70, 2));
    assert_eq!((footer.directory_offset(), footer.tail_bytes()), (0x14000, 4096));
    assert_eq!(footer.shard_bytes(), 0x15000);
}

#[test]
fn directory() {
    let golden = "4f4c4452 | 0000 | 0000 | 02000000 | 02000000 | 08000000 \
                  | 5ex12 00000007 00000009 | 5ex12 00000007 00000002 \
                  | 00000000 05000000 07000001 08000000 00x24 | 01000000 00000200 00090002 00200000 00x24 \
                  | aax32 01000000 00200000 00000100 | bbx32 00000000 04030201 6c000001 \
                  | bbx32 01000000 00100100 00300002 | bex32 01000000 00400100 50010003 \
                  | cbx32 01000000 00000000 00100080 | ccx32 01000000 00100000 00100080 | cdx32 00000000 00000000 08000080 \
                  | cex32 01000000 00000300 06000f04 \
                  | 346b6b3f8afb658e";
    let directory = samples::directory();
    same("directory", &directory.encode().unwrap(), golden);
    assert_eq!(directory.encoded_len(), hex(golden).len());
    assert_eq!(Directory::decode(&hex(golden)).unwrap(), directory);
}

#[test]
fn node() {
    let golden = "4f4c4e44 | 0000 | 02 | 00 | 03000000 | a1x32 | 00x32 | a3x32";
    same("node", &samples::node().encode().unwrap(), golden);
    assert_eq!(InnerNode::decode(&hex(golden)).unwrap(), samples::node());
}

#[test]
fn full_leaf() {
    // Page | (pages - 1) << 9 | first << 18: 0, 4, 12; then 4, 1, 0; then 300, 212, 300.
    let golden = "4f4c4c46 | 0000 | 00 | 00 | 0200 | 0300 | c2x32 | c1x32 \
                  | 00063000 0000 | 04000000 0100 | 2ca7b104 0000";
    same("full leaf", &samples::full_leaf().encode().unwrap(), golden);
    assert_eq!(samples::full_leaf().encoded_len(), hex(golden).len());
    assert_eq!(Leaf::decode(&hex(golden)).unwrap(), samples::full_leaf());
}

#[test]
fn delta_leaf() {
    let golden = "4f4c4c46 | 0000 | 01 | 03 | 0100 | 0200 | bax32 | c5x32 \
                  | 07020000 ffff | ff013c00 0000";
    same("delta leaf", &samples::delta_leaf().encode().unwrap(), golden);
    assert_eq!(samples::delta_leaf().encoded_len(), hex(golden).len());
    assert_eq!(Leaf::decode(&hex(golden)).unwrap(), samples::delta_leaf());
}

#[test]
fn catalog() {
    let golden = "4f4c4341 | 0000 | 0000 | 0500000000000000 | 0200000000000000 \
                  | 0300000000000000 \
                  | 02000000 0300 02 00 3000000000000000 | 2000000000000000 \
                  | 0200000000000000 0300000000000000 | c3bc | 3c6638 \
                  | 04000000 0000 00 01 0100200000000000 | 01 00x7 60x32 | 67726964 \
                  | 01000000 0300 02 02 0400000000000000 | 5000000000000000 \
                  | 0200000000000000 0200000000000000 | 0201000000000000 0300000000000000 \
                  | 0001000000000000 0100000000000000 | 70 | 7c7531 \
                  | 01000000 0300 01 05 0000100000000000 | 00 00x7 61x32 | 0100000000000000 \
                  | 72 | 7c6931 \
                  | 01000000 0300 02 06 0600000000000000 | 6000000000000000 \
                  | 0300000000000000 0200000000000000 | 0b01000000000000 0300000000000000 \
                  | 0301000000000000 0000000000000000 | 0200000000000000 0100000000000000 \
                  | 0600000000000000 0200000000000000 | 63 | 7c7531 | 7b7d | 6f7574";
    same("catalog", &samples::catalog().encode().unwrap(), golden);
    assert_eq!(Catalog::decode(&hex(golden)).unwrap(), samples::catalog());
}

#[test]
fn outputs() {
    let golden = "4f4c4f55 | 0000 | 0000 | 0201000000000000 | 0300000000000000 | 0200000000000000 \
                  | 0700000000000000 2100000000000000 08000000 0400000000000000 \
                  | 66696c653a2fc3bc | 6c696e65 \
                  | 0900000000000000 2200000000000000 03000000 0000000000000000 | 6f7574 \
                  | 0101000000000000 0000000000000000 03000000 0100000000000000 | 6f7574 | 78 \
                  | 08000000 08000000 | 66696c653a2fc3bc | 04x8 | 03000000 00000000 | 6f7574";
    same("outputs", &samples::outputs().encode().unwrap(), golden);
    assert_eq!(Outputs::decode(&hex(golden)).unwrap(), samples::outputs());
    assert_eq!(Outputs::of_catalog(&[]).unwrap().encode().unwrap(), Vec::<u8>::new());
}

#[test]
fn records() {
    let golden = [
        "4f4c5243 | 0000 | 01 | 00 | 0100000000000000 | 4000000000000000 | 00x32 | 00x48 \
         | 5ex12 | 92100000 | 0807060504030201 | 0302000000000000 | 0500 | 6ec3b66465 | 0600 | 626f6f742031 | 0f00 | 6320316620626f6f74206c6f63616c \
         | 483bb5742574d7577f0b881de6f36f566f04d7e8c05ad315ac88e7ad5e3f3d29",
        "4f4c5243 | 0000 | 02 | 00 | 0200000000000000 | 8501000000000000 | fex32 | 00x48 \
         | 5ex12 | 01000000 | 0c00000000000000 | 0b00000000000000 | 0400000000000000 | 0807060504030201 \
         | 0010000000000000 | 0020000000000000 | 0300000000000000 | 0400000000000000 \
         | 0500000000000000 | 0600000000000000 | 0700000000000000 \
         | 00000000 | 0100 | 0300 | 01 | 00 0203 \
         | 00000000 00000000 0200000000000000 3100200000000000 \
         | 0d0c0b0a | 02000000 | c800000000000000 00 00x7 cax32 | 5000200000000000 01 00x7 9ax32 \
         | 5ex12 00000007 00000002 00300100 46000000 00 00 0000 d0x32 \
         | 5ex12 00000007 00000003 01400000 50000000 01 02 0000 d3x32 \
         | 0400 6c6f7373 000000000000e03f | 677574 \
         | 68d63b8e672e4564be7ecfb8aae42bdb0443667757e1d422b5c617bcc0b19d5d",
        "4f4c5243 | 0000 | 03 | 00 | 0300000000000000 | 4000000000000000 | fex32 | 00x48 \
         | 6cx12 | 00000000 | 02000000 | 00000000 | 5ex12 00000007 00000002 | 5ex12 00000007 00000001 \
         | 6a166fcc37dfa1cceb65bb0e7ee1e39445ff82c8d9cdbe7383e4c3de8ec1b406",
        "4f4c5243 | 0000 | 04 | 00 | 0400000000000000 | 1000000000000000 | fex32 | 00x48 \
         | 5ex12 | 00000000 \
         | 1c8f7186b521c1b6951353ed5ee285b6b7e3c0136d5a28f30456acb2c7bd8533",
        "4f4c5243 | 0000 | 05 | 00 | 0500000000000000 | 3603000000000000 | fex32 | 00x48 \
         | 6cx12 | 01000000 | 0d00000000000000 | 01000000 | 01000000 | 02000000 | 01000000 | 01000000 | 00000000 \
         | 5ex12 | 92100000 | 0807060504030201 | 0302000000000000 | 0500 | 6ec3b66465 | 0600 | 626f6f742031 | 0f00 | 6320316620626f6f74206c6f63616c \
         | 5ex12 00000007 00000001 | 5ex12 00000007 00000003 01400000 50000000 01 01 0000 d3x32 \
         | 00000000 | 5ex12 00000007 00000004 | 00200000 | 50010000 | b0x32 \
         | 0c00000000000000 | 05010000 \
         | 5ex12 | 01000000 | 0c00000000000000 | 0b00000000000000 | 0400000000000000 | 0807060504030201 \
         | 0010000000000000 | 0020000000000000 | 0300000000000000 | 0400000000000000 \
         | 0500000000000000 | 0600000000000000 | 0700000000000000 \
         | 00000000 | 0100 | 0300 | 01 | 00 0203 \
         | 00000000 00000000 0200000000000000 3100200000000000 \
         | 0d0c0b0a | 00000000 | c800000000000000 00 00x7 cax32 | 5000200000000000 01 00x7 9ax32 \
         | 0400 6c6f7373 000000000000e03f | 677574 \
         | 1d010000 \
         | 5ex12 | 03000000 | 0d00000000000000 | 0c00000000000000 | 0400000000000000 | 0807060504030201 \
         | 0010000000000000 | 0020000000000000 | 0300000000000000 | 0400000000000000 \
         | 0500000000000000 | 0600000000000000 | 0700000000000000 \
         | 02000000 | 0100 | 0300 | 01 | 00 0203 \
         | 00000000 | 05000000 | 0600000000000000 | 9300600000000000 \
         | 00000000 | 5ex12 00000007 00000004 | 00100000 | 50010000 | b0x32 \
         | 02000000 | 5ex12 00000007 00000004 | 50110000 | 50010000 | b0x32 \
         | 0400 6c6f7373 000000000000e03f | 677574 \
         | 01eab1dd94f97feaffc8abef378765fabfcfdb6725e7edde61e8669e76535200",
        "4f4c5243 | 0000 | 06 | 00 | 0600000000000000 | 1800000000000000 | fex32 | 00x48 \
         | 0c00000000000000 | 08 | 02 | 0200 | 00000000 | c3bc | 01 61 | 03 62c3a9 \
         | 8960d08993d2dc0d0554ac556240087b13242f8f81da343346fe87ca3dde0028",
        "4f4c5243 | 0000 | 07 | 00 | 0700000000000000 | 2000000000000000 | fex32 | 00x48 \
         | 0d00000000000000 | 02000000 | 00000000 | 0300000000000000 | 0c00000000000000 \
         | 827af7b6941573c479ba9aa8d8a5df5da2868aba44fa6200fa2a371fd375ecf5",
        "4f4c5243 | 0000 | 02 | 00 | 0800000000000000 | 1d01000000000000 | fex32 | 00x48 \
         | 5ex12 | 03000000 | 0d00000000000000 | 0c00000000000000 | 0400000000000000 | 0807060504030201 \
         | 0010000000000000 | 0020000000000000 | 0300000000000000 | 0400000000000000 \
         | 0500000000000000 | 0600000000000000 | 0700000000000000 \
         | 02000000 | 0100 | 0300 | 01 | 00 0203 \
         | 00000000 | 05000000 | 0600000000000000 | 9300600000000000 \
         | 00000000 | 5ex12 00000007 00000004 | 00100000 | 50010000 | b0x32 \
         | 02000000 | 5ex12 00000007 00000004 | 50110000 | 50010000 | b0x32 \
         | 0400 6c6f7373 000000000000e03f | 677574 \
         | 8546bf0c917bd6cd3b3d1fb690b411fc0edb0b4df7f40b075f5411a013f6fc94",
    ];
    let records = samples::records();
    assert_eq!(records.len(), golden.len());
    for (record, golden) in records.iter().zip(golden) {
        same("record", &record.encode().unwrap(), golden);
        assert_eq!(&Record::decode(&hex(golden)).unwrap(), record);
    }
}

#[test]
fn table_page() {
    let golden = "4f4c4954 | 0000 | 0000 | 02000000 | 00000000 \
                  | 06000000 00000000 0200000000000000 3100200000000000 \
                  | 0d0c0b0a | 01000000 | c800000000000000 00 00x7 cax32 | 5000200000000000 01 00x7 9ax32 \
                  | 5ex12 00000007 00000003 01400000 50000000 01 02 0000 d3x32 \
                  | 07000000 00000000 0200000000000000 3100200000000000 \
                  | 0d0c0b0a | 01000000 | c800000000000000 00 00x7 cax32 | 5000200000000000 01 00x7 9ax32 \
                  | 5ex12 00000007 00000003 01400000 50000000 01 02 0000 d3x32";
    same("table page", &samples::table_page().encode().unwrap(), golden);
    assert_eq!(TablePage::decode(&hex(golden)).unwrap(), samples::table_page());
}

#[test]
fn segment_lists() {
    let golden = "4f4c534c | 0000 | 0000 | 02000000 | 00000000 \
                  | 06000000 | 02000000 \
                  | 5ex12 00000007 00000002 00300100 46000000 00 00 0000 d0x32 \
                  | 5ex12 00000007 00000003 01400000 50000000 01 02 0000 d3x32 \
                  | 07000000 | 00000000";
    same("segment lists", &samples::segment_lists().encode().unwrap(), golden);
    assert_eq!(SegmentLists::decode(&hex(golden)).unwrap(), samples::segment_lists());
}

#[test]
fn recipes() {
    let golden = [
        "4f4c524e | 0000 | 00 | 00 | 04000000 | 41x32 0050000000000000 \
         | 00x32 0000000000010000 | 42x32 0700000000000000 | 41x32 0900000000000000",
        "4f4c524e | 0000 | 01 | 00 | 01000000 | 43x32 1050000000000100",
    ];
    for (recipe, golden) in [samples::recipe(), samples::upper_recipe()].iter().zip(golden) {
        same("recipe", &recipe.encode().unwrap(), golden);
        assert_eq!(&Recipe::decode(&hex(golden)).unwrap(), recipe);
    }
}

#[test]
fn listing() {
    // Owner, times, device and inode, the same for all items except the hard link.
    let common = "e8030000 64000000 | ffc99a3b ffffffffffffffff | 05000000 0403020100000000 \
                  | 01fd000000000000 6655443322110000";
    let item = |head: &str, mode: &str, rest: &str| format!("{head} | {mode} | {common} | {rest} ");
    let none = "0000000000000000";
    let golden = [
        "4f4c4c49 | 0000 | 0000 ".to_owned(),
        item(
            "51000000 01 00 0000",
            "ed030000",
            &format!("{none} | 01000000 00000000 00000000 00000000 | 2e"),
        ),
        item(
            "51000000 04 00 0000",
            "a0010000",
            "0301000000000000 | 01000000 00000000 00000000 00000000 | 63",
        ),
        item(
            "51000000 01 00 0000",
            "a0010000",
            &format!("{none} | 01000000 00000000 00000000 00000000 | 64"),
        ),
        item(
            "53000000 05 00 0000",
            "a0010000",
            "0008000000000000 | 03000000 00000000 00000000 00000000 | 642f62",
        ),
        item(
            "71000000 00 00 0000",
            "a0010000",
            &format!(
                "{none} | 07000000 00000000 1a000000 00000000 | 642f656d707479 \
                 | 0600 02000000 757365722e61 00ff | 0600 00000000 757365722e62"
            ),
        ),
        item(
            "52000000 03 00 0000",
            "a0010000",
            &format!("{none} | 02000000 00000000 00000000 00000000 | 642d"),
        ),
        item(
            "56000000 00 06 0000",
            "a0010000",
            "0500000000000000 | 01000000 00000000 00000000 05000000 | 65 | 73686f7274",
        ),
        item(
            "a1000000 00 01 0000",
            "a0010000",
            "0040000000000000 | 01000000 00000000 00000000 02000000 | 66 \
             | 51x32 0010000000000000 | 00x32 0030000000000000",
        ),
        "52000000 07 00 0000 | 00x4 | 00x8 00x24 00x16 | 00x8 \
         | 01000000 01000000 00000000 00000000 | 67 | 66 "
            .to_owned(),
        item(
            "71000000 00 08 0000",
            "a0010000",
            "1050000000000100 | 01000000 00000000 00000000 00000000 | 68 | 52x32",
        ),
        item(
            "51000000 06 00 0000",
            "a0010000",
            &format!("{none} | 01000000 00000000 00000000 00000000 | 69"),
        ),
        item(
            "55000000 02 00 0000",
            "a0010000",
            &format!("{none} | 01000000 04000000 00000000 00000000 | 6a | 2e2e2f78"),
        ),
        item(
            "79000000 08 00 0000",
            "a0010000",
            "0100000000000000 | 01000000 00000000 00000000 01000000 | 6b | 53x32 0100000000000000",
        ),
        "00000000 0d00000000000000".to_owned(),
    ];
    let golden = golden.concat();
    same("listing", &samples::listing().encode().unwrap(), &golden);
    assert_eq!(Listing::decode(&hex(&golden)).unwrap(), samples::listing());
}

#[test]
fn hashes() {
    let zero = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
    assert_eq!(fingerprint(b"").to_string(), zero);
    assert_eq!(checksum(b""), 0x2d06_8005_38d3_94c2);
    assert_eq!((VERSION, REVISION), (0, 20));
    let document = include_str!("../../../../docs/format.md");
    assert!(document.contains(&format!("\n    revision = {REVISION} ")), "docs/format.md is older");
    assert!(document.contains(&format!("(now {REVISION})")), "docs/format.md is older");
}
