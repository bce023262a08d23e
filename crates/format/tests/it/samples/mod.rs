//! One small value of each structure, shared by the golden and the damage tests.
#![allow(dead_code)] // each test file uses some of them

use outlive_format::*;
use outlive_types::{
    Distribution, Error, Fingerprint, PackId, RegionDesc, RegionLocation, SessionId,
};
use std::collections::BTreeMap;

pub fn fp(byte: u8) -> Fingerprint {
    Fingerprint([byte; 32])
}

pub fn session() -> SessionId {
    SessionId([0x5E; 12])
}

pub fn pack(number: u32) -> PackId {
    PackId::new(session(), 7, number)
}

pub fn header() -> ShardHeader {
    ShardHeader {
        pack: pack(0x0102_0304),
        pool_id: [0x77; 16],
        shard: 5,
        geometry: Geometry { k: 4, m: 2, container_bytes: 4 << 20 },
        containers_bytes: 0x0080_3000,
        directory_bytes: 70,
    }
}

pub fn directory() -> Directory {
    let entry = |byte, pack, offset, length, kind| DirectoryEntry {
        fp: fp(byte),
        pack,
        offset,
        length,
        kind,
        frame: None,
    };
    let framed = |byte, first| DirectoryEntry {
        frame: Some(InFrame { first, stored_bytes: 0x900, raw_bytes: 0x2000, codec: Codec::Zstd }),
        ..entry(byte, 1, 0x0002_0000, 0x1000, EntryKind::Chunk)
    };
    let form = SliceForm::new(PageSet::of(1, 2, 0), 16, 0).unwrap();
    let slice = EntryKind::Slice(form);
    Directory::new(
        vec![pack(9), pack(2)],
        vec![
            entry(0xCE, 1, 0x0003_0000, form.length() as u32, slice),
            entry(0xBB, 1, 0x0001_1000, 0x3000, EntryKind::Segment),
            entry(0xBE, 1, 0x0001_4000, 0x150, EntryKind::Page),
            entry(0xAA, 1, 0x0000_2000, 0x01_0000, EntryKind::Chunk),
            entry(0xBB, 0, 0x0102_0304, 0x6C, EntryKind::Node),
            framed(0xCC, 0x1000),
            framed(0xCB, 0),
            DirectoryEntry {
                frame: Some(InFrame { first: 0, stored_bytes: 7, raw_bytes: 8, codec: Codec::Lz4 }),
                ..entry(0xCD, 0, 5, 8, EntryKind::Chunk)
            },
        ],
    )
}

pub fn tail() -> Tail {
    Tail {
        pack: pack(2),
        directory: vec![0xD1; 70],
        fragments: vec![
            Fragment { length: 0x10000, checksum: 0x1111_2222_3333_4444 },
            Fragment { length: 0x03000, checksum: 0x5555_6666_7777_8888 },
        ],
    }
}

pub fn node() -> InnerNode {
    InnerNode::new(2, vec![fp(0xA1), Fingerprint::ZERO, fp(0xA3), Fingerprint::ZERO])
}

pub fn full_leaf() -> Leaf {
    let extent =
        |page, pages, first, byte| PageExtent { page, pages, first, chunk: Some(fp(byte)) };
    let extents = [extent(0, 4, 12, 0xC2), extent(4, 1, 0, 0xC1), extent(300, 212, 300, 0xC2)];
    Leaf::build(LeafKind::Full, extents).unwrap()
}

pub fn delta_leaf() -> Leaf {
    let kind = LeafKind::Delta { base: fp(0xBA), chain: 3 };
    let extents = [
        PageExtent { page: 7, pages: 2, first: 0, chunk: None },
        PageExtent { page: 511, pages: 1, first: 15, chunk: Some(fp(0xC5)) },
    ];
    Leaf::build(kind, extents).unwrap()
}

pub fn catalog() -> Catalog {
    let region = |name: &str, dtype: &str, shape: &[u64], bytes, location, root| CatalogRegion {
        desc: RegionDesc {
            name: name.to_owned(),
            dtype: dtype.to_owned(),
            shape: shape.to_vec(),
            bytes,
            location,
            distribution: Distribution::Local,
        },
        root,
    };
    let distributed = |region: CatalogRegion, distribution| CatalogRegion {
        desc: RegionDesc { distribution, ..region.desc },
        ..region
    };
    let part = Distribution::Subarray { global_shape: vec![0x102, 3], offset: vec![0x100, 1] };
    let blocks = Distribution::BlockCyclic {
        global_shape: vec![0x10B, 3],
        offset: vec![0x103, 0],
        block: vec![2, 1],
        stride: vec![6, 2],
    };
    Catalog {
        regions: vec![
            region("ü", "<f8", &[2, 3], 48, RegionLocation::Packed { offset: 32 }, fp(0)),
            region("grid", "", &[], (2 << 20) + 1, RegionLocation::Own, fp(0x60)),
            distributed(
                region("p", "|u1", &[2, 2], 4, RegionLocation::Packed { offset: 80 }, fp(0)),
                part,
            ),
            distributed(
                region("r", "|i1", &[1], 1 << 20, RegionLocation::Own, fp(0x61)),
                Distribution::Replicated,
            ),
            distributed(
                region("c", "|u1", &[3, 2], 6, RegionLocation::Packed { offset: 96 }, fp(0)),
                blocks,
            ),
        ],
        attachment: b"{}".to_vec(),
        outputs: b"out".to_vec(),
    }
}

pub fn outputs() -> Outputs {
    let output = |number, epoch, sink: &str, token: &[u8]| Output {
        number,
        epoch,
        sink: sink.to_owned(),
        token: token.to_vec(),
    };
    Outputs {
        next: 0x0102,
        outputs: vec![
            output(7, 0x21, "file:/ü", b"line"),
            output(9, 0x22, "out", b""),
            output(0x0101, 0, "out", b"x"),
        ],
        positions: BTreeMap::from([("file:/ü".into(), vec![4; 8]), ("out".into(), vec![])]),
    }
}

pub fn recipe() -> Recipe {
    let piece = |byte, bytes| Piece { fp: fp(byte), bytes };
    Recipe {
        level: 0,
        children: vec![piece(0x41, 0x5000), Piece::zeros(1 << 40), piece(0x42, 7), piece(0x41, 9)],
    }
}

pub fn upper_recipe() -> Recipe {
    Recipe { level: 1, children: vec![Piece { fp: fp(0x43), bytes: 0x0001_0000_0000_5010 }] }
}

/// Returns an item of each kind, with a content of each kind.
pub fn listing() -> Listing {
    let time = |s, ns| FileTime { s, ns };
    let item = |path: &str, kind| Item {
        mode: 0o640,
        uid: 1000,
        gid: 100,
        mtime: time(-1, 999_999_999),
        ctime: time(0x0102_0304, 5),
        device: 0xFD01,
        inode: 0x1122_3344_5566,
        ..Item::new(path.as_bytes().to_vec(), kind)
    };
    let file = |path, content, bytes| Item { content, bytes, ..item(path, ItemKind::File) };
    let attribute = |name: &str, value: &[u8]| Attribute {
        name: name.as_bytes().to_vec(),
        value: value.to_vec(),
    };
    let pieces = vec![Piece { fp: fp(0x51), bytes: 0x1000 }, Piece::zeros(0x3000)];
    Listing {
        items: vec![
            Item { mode: 0o1755, ..item(".", ItemKind::Directory) },
            Item { bytes: 0x0103, ..item("c", ItemKind::CharDevice) },
            item("d", ItemKind::Directory),
            Item { bytes: 0x0800, ..item("d/b", ItemKind::BlockDevice) },
            Item {
                attributes: vec![attribute("user.a", b"\x00\xFF"), attribute("user.b", b"")],
                ..file("d/empty", Content::Empty, 0)
            },
            item("d-", ItemKind::Fifo),
            Item { unsettled: true, ..file("e", Content::Inline(b"short".to_vec()), 5) },
            Item { holes: true, ..file("f", Content::Pieces(pieces), 0x4000) },
            Item { target: b"f".to_vec(), ..Item::new(b"g".to_vec(), ItemKind::HardLink) },
            file("h", Content::Recipe(fp(0x52)), 0x0001_0000_0000_5010),
            item("i", ItemKind::Socket),
            Item { target: b"../x".to_vec(), ..item("j", ItemKind::Symlink) },
            Item {
                content: Content::Pieces(vec![Piece { fp: fp(0x53), bytes: 1 }]),
                bytes: 1,
                ..item("k", ItemKind::Stream)
            },
        ],
    }
}

pub fn manifest() -> Manifest {
    Manifest {
        session: session(),
        world_size: 1,
        epoch: 12,
        parent: 11,
        frozen_ns: 0x0102_0304_0506_0708,
        figures: SaveFigures {
            new_bytes: 0x1000,
            changed_bytes: 0x2000,
            known_bytes: 3,
            zero_bytes: 4,
            raw_bytes: 5,
            stall_ns: 6,
            drain_ns: 7,
        },
        predecessor: 4,
        failed_before: 0x0302,
        remarks: Remarks { pinned: true, label: "gut".to_owned(), ..Remarks::default() },
        metrics: vec![("loss".to_owned(), 0.5)],
        images: Images::One(image(0)),
    }
}

/// Returns the image of a rank.
pub fn image(rank: u32) -> Image {
    Image {
        reference: ImageRef {
            rank,
            kind: ImageKind::Memory,
            regions: 2,
            state_bytes: 0x20_0031,
            catalog: TreeRef { bytes: 200, root: fp(0xCA) },
            packed: TreeRef { bytes: (2 << 20) + 80, root: fp(0x9A) },
        },
        next_pack: 0x0A0B_0C0D,
        segments: vec![
            SegmentRef {
                pack: pack(2),
                offset: 0x13000,
                length: 70,
                kind: SegmentKind::Directory,
                level: 0,
                fp: fp(0xD0),
            },
            SegmentRef {
                pack: pack(3),
                offset: 0x4001,
                length: 0x50,
                kind: SegmentKind::Segment,
                level: 2,
                fp: fp(0xD3),
            },
        ],
    }
}

fn page_ref(first_rank: u32, offset: u32) -> PageRef {
    PageRef { first_rank, pack: pack(4), offset, length: 0x150, fp: fp(0xB0) }
}

/// Returns a checkpoint of three ranks.
pub fn manifest_of_ranks() -> Manifest {
    let table = ImageTable {
        kind: ImageKind::Memory,
        regions: 6,
        state_bytes: 0x60_0093,
        next_pack: 5,
        pages: vec![page_ref(0, 0x1000), page_ref(2, 0x1150)],
        lists: Vec::new(),
    };
    Manifest { world_size: 3, epoch: 13, parent: 12, images: Images::Table(table), ..manifest() }
}

pub fn table_page() -> TablePage {
    let few = |rank| Image { segments: vec![image(0).segments[1]], ..image(rank) };
    TablePage { images: vec![few(6), few(7)] }
}

pub fn segment_lists() -> SegmentLists {
    SegmentLists { ranks: vec![(6, image(0).segments), (7, Vec::new())] }
}

pub fn writer() -> Session {
    Session {
        session: session(),
        process_id: 4242,
        opened_ns: 0x0102_0304_0506_0708,
        started: 0x0203,
        host: "nöde".to_owned(),
        system: "boot 1".to_owned(),
        lease: "c 1f boot local".to_owned(),
    }
}

/// Returns one record of each kind, and a manifest of several ranks.
pub fn records() -> Vec<Record> {
    let segment = SegmentRef { level: 1, ..image(0).segments[1] };
    let image = Image { segments: Vec::new(), ..image(0) };
    let kept = Manifest { images: Images::One(image), ..manifest() };
    let bodies = [
        Body::Session(writer()),
        Body::Manifest(manifest()),
        Body::Sweep(Sweep { gc: SessionId([0x6C; 12]), packs: vec![pack(2), pack(1)] }),
        Body::Close(Close { session: session() }),
        Body::Archive(Archive {
            gc: SessionId([0x6C; 12]),
            session: Some((writer(), true)),
            last_epoch: 13,
            condemned: vec![pack(1)],
            segments: vec![segment],
            lists: vec![page_ref(0, 0x2000)],
            incomplete: vec![kept.epoch],
            manifests: vec![kept, manifest_of_ranks()],
        }),
        Body::Note(Note {
            epoch: 12,
            remarks: Remarks {
                mark: Mark::Bad,
                label: "ü".to_owned(),
                tags: vec!["a".to_owned(), "bé".to_owned()],
                ..Remarks::default()
            },
        }),
        Body::Prune(Prune { last_epoch: 13, epochs: vec![3, 12] }),
        Body::Manifest(manifest_of_ranks()),
    ];
    let record =
        |(number, body)| Record { number, previous: fp(if number == 1 { 0 } else { 0xFE }), body };
    (1..).zip(bodies).map(record).collect()
}

/// One structure for the damage tests and the fuzzer.
pub struct Structure {
    /// Name of the structure, and of the fuzzer's target.
    pub name: &'static str,
    /// Bytes of the samples above.
    pub samples: fn() -> Vec<Vec<u8>>,
    /// Decodes and encodes again.
    pub again: fn(&[u8]) -> outlive_types::Result<Vec<u8>>,
    /// Corrects its own checksums, if it has some. Nodes, leaves, pages, catalogs, recipes and
    /// listings have none: readers verify their fingerprints.
    pub seal: Option<fn(&mut [u8])>,
}

pub const STRUCTURES: [Structure; 16] = [
    Structure {
        name: "shard_header",
        samples: || vec![header().encode().unwrap()],
        again: |bytes| ShardHeader::decode(bytes)?.encode(),
        seal: Some(seal_checksum),
    },
    Structure {
        name: "shard_tail",
        samples: || {
            let directory = directory().encode().unwrap();
            let none = Tail { pack: pack(1), directory, fragments: Vec::new() };
            vec![tail().encode().unwrap(), none.encode().unwrap()]
        },
        again: |bytes| Tail::decode(bytes)?.encode(),
        seal: Some(seal_tail),
    },
    Structure {
        name: "table_page",
        samples: || vec![table_page().encode().unwrap()],
        again: |bytes| TablePage::decode(bytes)?.encode(),
        seal: None,
    },
    Structure {
        name: "segment_lists",
        samples: || vec![segment_lists().encode().unwrap()],
        again: |bytes| SegmentLists::decode(bytes)?.encode(),
        seal: None,
    },
    Structure {
        name: "directory",
        samples: || vec![directory().encode().unwrap()],
        again: |bytes| Directory::decode(bytes)?.encode(),
        seal: Some(seal_checksum),
    },
    Structure {
        name: "node",
        samples: || vec![node().encode().unwrap()],
        again: |bytes| InnerNode::decode(bytes)?.encode(),
        seal: None,
    },
    Structure {
        name: "leaf",
        samples: || vec![full_leaf().encode().unwrap(), delta_leaf().encode().unwrap()],
        again: |bytes| Leaf::decode(bytes)?.encode(),
        seal: None,
    },
    Structure {
        name: "catalog",
        samples: || vec![catalog().encode().unwrap(), Catalog::default().encode().unwrap()],
        again: |bytes| Catalog::decode(bytes)?.encode(),
        seal: None,
    },
    Structure {
        name: "outputs",
        samples: || vec![outputs().encode().unwrap()],
        again: |bytes| Outputs::decode(bytes)?.encode(),
        seal: None,
    },
    Structure {
        name: "recipe",
        samples: || vec![recipe().encode().unwrap(), upper_recipe().encode().unwrap()],
        again: |bytes| Recipe::decode(bytes)?.encode(),
        seal: None,
    },
    Structure {
        name: "listing",
        samples: || vec![listing().encode().unwrap(), Listing::default().encode().unwrap()],
        again: |bytes| Listing::decode(bytes)?.encode(),
        seal: None,
    },
    Structure {
        name: "record",
        samples: || records().iter().map(|record| record.encode().unwrap()).collect(),
        again: |bytes| Record::decode(bytes)?.encode(),
        seal: Some(seal_fingerprint),
    },
    Structure {
        name: "message",
        samples: || messages().iter().map(|message| message.encode().unwrap()).collect(),
        again: |bytes| SaveMessage::decode(bytes)?.encode(),
        seal: Some(seal_checksum),
    },
    Structure {
        name: "envelope",
        samples: || {
            messages().into_iter().map(|message| enveloped(message).encode().unwrap()).collect()
        },
        again: |bytes| Envelope::decode(bytes)?.encode(),
        seal: Some(seal_envelope),
    },
    Structure {
        name: "word",
        samples: || words().iter().map(|word| word.encode().unwrap()).collect(),
        again: |bytes| CallMessage::decode(bytes)?.encode(),
        seal: Some(seal_checksum),
    },
    Structure {
        name: "plain",
        samples: || vec![plain(plain_values), plain(|to| to.floats(PlainKind::List, 0))],
        again: plain_again,
        seal: None,
    },
];

fn plain(write: impl Fn(&mut PlainWriter<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut PlainWriter::new(&mut bytes));
    bytes
}

/// Writes a tree with one value of each kind.
pub fn plain_values(to: &mut PlainWriter<'_>) {
    use PlainKind::{Dict, List, Tuple};
    to.open(List, 17);
    to.none();
    to.bool(false);
    to.bool(true);
    for value in [0, 255, 256, 65_535, 65_536, -1, i64::MAX, i64::MIN] {
        to.int(value);
    }
    to.open(Tuple, 8);
    to.unsigned(u64::MAX);
    to.big(&[0; 32]);
    to.float(-0.0);
    to.complex(0.5, f64::INFINITY);
    to.text(b"short");
    to.text(&[b'x'; 128]);
    to.bytes(b"\0\xFF");
    to.open(Tuple, 0);
    to.open(Dict, 2);
    to.text(b"a");
    to.ints(Tuple, &[1, 2, 300]);
    to.int(-5);
    to.ints(List, &[-1]);
    to.again();
    to.ints(List, &[]);
    to.floats(Tuple, 1);
    to.float_of_run(1.5);
    to.open(Dict, 0);
    to.ints(List, &[i64::MAX]);
    to.open(List, 33);
    to.pad();
    (0..33).for_each(|_| to.none());
}

/// Reads a tree and writes it again.
fn plain_again(bytes: &[u8]) -> outlive_types::Result<Vec<u8>> {
    let mut reader = PlainReader::new(bytes)?;
    let mut again = Vec::new();
    let mut to = PlainWriter::new(&mut again);
    while let Some(value) = reader.next()? {
        match value {
            Plain::Pad => to.pad(),
            Plain::None => to.none(),
            Plain::Bool(value) => to.bool(value),
            Plain::Int(value) => to.int(value),
            Plain::Unsigned(value) => to.unsigned(value),
            Plain::Big(bytes) => to.big(bytes),
            Plain::Float(value) => to.float(value),
            Plain::Complex(real, imaginary) => to.complex(real, imaginary),
            Plain::Text(text) => to.text(text),
            Plain::Bytes(bytes) => to.bytes(bytes),
            Plain::Open(kind, count) => to.open(kind, count),
            Plain::Again(_) => to.again(),
            Plain::Run(kind, count, Numbers::F64(_)) => {
                to.floats(kind, count);
                let Plain::Run(_, _, numbers) = value else { unreachable!() };
                numbers.each(|_| 0.0, |value| value, |value| to.float_of_run(value));
            }
            Plain::Run(kind, count, numbers) => {
                let mut ints = Vec::new();
                numbers.each(|value| value, |_| 0, |value| ints.push(value));
                assert_eq!(ints.len(), count);
                to.ints(kind, &ints);
            }
        }
    }
    Ok(again)
}

/// Returns one call message of each kind.
pub fn words() -> Vec<CallMessage> {
    let meeting = [0x3E; 16];
    let all = [
        Payload::Here,
        Payload::Met { meeting, speakers: vec![[0xA0; 16], [0xA1; 16]] },
        Payload::Call { meeting, number: 7, bytes: vec![1, 2, 3] },
        Payload::Alive,
        Payload::Left(Error::retry("no")),
    ];
    let of = |said| CallMessage { run: "r-1".to_owned(), ranks: 2, speaker: [0xA0; 16], said };
    all.into_iter().map(of).collect()
}

/// Puts a message into an envelope.
pub fn enveloped(message: SaveMessage) -> Envelope {
    Envelope { session: session(), save: 3, message }
}

/// Returns one save message of each kind, with and without changes.
pub fn messages() -> Vec<SaveMessage> {
    let moved = Moved {
        number: 9,
        segments: image(0).segments,
        lists: vec![page_ref(0, 0x3000)],
        epochs: vec![4, 12],
    };
    let changes = Changes {
        condemned: [pack(1), pack(2)].into(),
        moved: Some(moved),
        dropped: [3, 5].into(),
    };
    let figures = manifest().figures;
    vec![
        SaveMessage::Session(Opened { session: session(), changes: changes.clone() }),
        SaveMessage::Image(RankImage {
            image: image(7),
            parent: 12,
            figures,
            spread: [vec![1, 2, 4], vec![3, 5, 6]].into(),
        }),
        SaveMessage::Changed(changes),
        SaveMessage::Changed(Changes::default()),
        SaveMessage::Committed(Committed { number: 10, record_bytes: 0x234, in_table: true }),
        SaveMessage::Failed(Error::full("no room in /ckpt")),
        SaveMessage::Failed(Error::away("target 3 is not there")),
        SaveMessage::Alive,
    ]
}

/// Corrects the checksums; the message inside has its own.
fn seal_envelope(bytes: &mut [u8]) {
    const BEFORE_MESSAGE_BYTES: usize = 28;
    if let Some(end) = bytes.len().checked_sub(8)
        && let Some(message) = bytes.get_mut(BEFORE_MESSAGE_BYTES..end)
    {
        seal_checksum(message);
    }
    seal_checksum(bytes);
}

fn seal_checksum(bytes: &mut [u8]) {
    if let Some((body, stored)) = bytes.split_last_chunk_mut::<8>() {
        *stored = checksum(body).to_le_bytes();
    }
}

fn seal_fingerprint(bytes: &mut [u8]) {
    if let Some((body, stored)) = bytes.split_last_chunk_mut::<32>() {
        *stored = fingerprint(body).0;
    }
}

fn seal_tail(bytes: &mut [u8]) {
    let Some(footer_at) = bytes.len().checked_sub(FOOTER_BYTES) else { return };
    let (before, footer) = bytes.split_at_mut(footer_at);
    let directory_bytes = u32::from_le_bytes([footer[32], footer[33], footer[34], footer[35]]);
    if let Some(guarded) = before.get(directory_bytes as usize..) {
        footer[48..56].copy_from_slice(&checksum(guarded).to_le_bytes());
    }
    seal_checksum(footer);
}
