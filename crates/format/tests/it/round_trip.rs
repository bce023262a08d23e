//! For any value, decoding returns what was encoded.

use outlive_format::*;
use outlive_types::{Distribution, Fingerprint, PackId, RegionDesc, RegionLocation, SessionId};
use proptest::collection::{btree_map, btree_set, hash_set, vec};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet};

fn fp() -> impl Strategy<Value = Fingerprint> {
    any::<[u8; 32]>().prop_filter("zero has a meaning", |b| *b != [0; 32]).prop_map(Fingerprint)
}

fn pack() -> impl Strategy<Value = PackId> {
    any::<[u8; 20]>().prop_map(PackId)
}

fn session() -> impl Strategy<Value = SessionId> {
    any::<[u8; 12]>().prop_map(SessionId)
}

fn stream_bytes() -> impl Strategy<Value = u64> {
    prop_oneof![0..1_u64 << 22, 0..=STREAM_BYTES_MAX]
}

fn tree() -> impl Strategy<Value = TreeRef> {
    (stream_bytes(), prop::option::of(fp())).prop_map(|(bytes, root)| {
        let root = root.filter(|_| bytes > 0).unwrap_or(Fingerprint::ZERO);
        TreeRef { bytes, root }
    })
}

fn header() -> impl Strategy<Value = ShardHeader> {
    let sizes = (1..=255_u8, 0..=255_u8, 16..=16384_u64, 0..=64_u64 << 10, any::<u32>());
    (pack(), any::<[u8; 16]>(), any::<u8>(), sizes).prop_map(
        |(pack, pool_id, shard, (k, m, pages, all_pages, directory_bytes))| {
            let m = m.min((256 - u16::from(k)).min(255) as u8);
            let shard = (u16::from(shard) % (u16::from(k) + u16::from(m))) as u8;
            let container_bytes = pages * 4096;
            let containers_bytes =
                (all_pages * 4096).min(64 * container_bytes).min(u32::MAX as u64 & !4095);
            let geometry = Geometry { k, m, container_bytes };
            ShardHeader { pack, pool_id, shard, geometry, containers_bytes, directory_bytes }
        },
    )
}

fn directory() -> impl Strategy<Value = Directory> {
    let kind = prop::sample::select(vec![
        EntryKind::Chunk,
        EntryKind::Node,
        EntryKind::Segment,
        EntryKind::Page,
        EntryKind::Slice(SliceForm::new(PageSet::of(1, 2, 0), 7, 0).unwrap()),
        EntryKind::Slice(SliceForm::new(PageSet::of(30, 2, 4), 2, 4).unwrap()),
    ]);
    let codec = prop::sample::select(vec![Codec::Lz4, Codec::Zstd]);
    // Few fingerprints and frames, so that some have several pack extents, and some share a frame.
    let entry = (0..40_u8, any::<u32>(), any::<u32>(), 1..=LENGTH_MAX, kind);
    let framed = (any::<u32>(), 0..8_u32, 1..9000_u32, 0..=u32::MAX, codec);
    let entries = vec((entry, proptest::option::of(framed)), 0..120);
    (hash_set(pack(), 1..6), entries).prop_map(|(packs, entries)| {
        let packs: Vec<PackId> = packs.into_iter().collect();
        let mut places = HashSet::new();
        let mut frames = HashMap::new();
        let entries = entries.into_iter().map(|((byte, pack, offset, length, kind), framed)| {
            let length = kind.slice().map_or(length, |form| form.length() as u32);
            let entry = DirectoryEntry {
                fp: fingerprint(&[byte]),
                pack: pack % packs.len() as u32,
                offset: offset.min(u32::MAX - length),
                length,
                kind,
                frame: None,
            };
            let Some((pack, offset, raw_bytes, first, codec)) = framed else { return entry };
            let pack = pack % packs.len() as u32;
            let raw_bytes = raw_bytes + 1;
            let stored_bytes = raw_bytes / 2 + 1 - u32::from(raw_bytes == 2);
            // Each pack extent has one frame.
            let (stored_bytes, raw_bytes, codec) =
                *frames.entry((pack, offset)).or_insert((stored_bytes, raw_bytes, codec));
            let first = first % raw_bytes;
            // A slice has the length that its form determines.
            let kind = match kind.slice().is_some() && length <= raw_bytes - first {
                true => kind,
                false => EntryKind::Chunk,
            };
            let length = length.min(raw_bytes - first);
            let frame = Some(InFrame { first, stored_bytes, raw_bytes, codec });
            DirectoryEntry { pack, offset, length, kind, frame, ..entry }
        });
        let key = |e: &DirectoryEntry| (e.fp, e.pack, e.offset, e.frame.map_or(0, |f| f.first));
        let entries = entries.filter(|e| places.insert(key(e))).collect();
        Directory { packs, entries }
    })
}

fn tail() -> impl Strategy<Value = Tail> {
    let sums = vec(any::<u64>(), 0..=FRAGMENTS_MAX);
    (pack(), vec(any::<u8>(), 0..9000), sums, 1..=16_u32, 0..16_u32).prop_map(
        |(pack, directory, sums, pages, less)| {
            let count = sums.len();
            let fragments = sums.into_iter().enumerate().map(|(at, checksum)| {
                let pages = if at + 1 == count { pages - less % pages } else { pages };
                Fragment { length: pages * 4096, checksum }
            });
            Tail { pack, directory, fragments: fragments.collect() }
        },
    )
}

fn region() -> impl Strategy<Value = CatalogRegion> {
    let own = (tree(), "\\PC{0,6}", vec(any::<u64>(), 0..=DIMENSIONS_MAX), Just(None));
    let packed =
        (tree(), "[<>|][a-z][0-9]", vec(any::<u64>(), 0..4), (0..1_u64 << 40).prop_map(Some));
    prop_oneof![own, packed]
        .prop_map(|(tree, dtype, shape, offset)| {
            let (location, root) = match offset {
                Some(offset) => (RegionLocation::Packed { offset: offset * 16 }, Fingerprint::ZERO),
                None => (RegionLocation::Own, tree.root),
            };
            let (name, distribution) = (String::new(), Distribution::Local);
            let desc = RegionDesc { name, dtype, shape, bytes: tree.bytes, location, distribution };
            CatalogRegion { desc, root }
        })
        .prop_flat_map(|region| {
            let parts = region.desc.shape.clone().into_iter().map(part).collect::<Vec<_>>();
            (Just(region), parts, 0..4)
        })
        .prop_map(|(mut region, parts, kind)| {
            region.desc.distribution = match kind {
                1 if !parts.is_empty() => {
                    let (global_shape, offset) = parts.into_iter().unzip();
                    Distribution::Subarray { global_shape, offset }
                }
                3 if !parts.is_empty() => in_blocks(&region.desc.shape, parts),
                2 => Distribution::Replicated,
                _ => Distribution::Local,
            };
            region
        })
}

/// Extent of a global array, and start in it of a part with extent `extent`.
fn part(extent: u64) -> impl Strategy<Value = (u64, u64)> {
    (0..=u64::MAX - extent).prop_flat_map(move |offset| (offset + extent..=u64::MAX, Just(offset)))
}

/// Returns such parts in blocks of up to 3 elements, every 7.
fn in_blocks(shape: &[u64], parts: Vec<(u64, u64)>) -> Distribution {
    let (global_shape, offset): (Vec<u64>, Vec<u64>) = parts.into_iter().unzip();
    let block: Vec<u64> = offset.iter().map(|offset| 1 + offset % 3).collect();
    let stride = vec![7; shape.len()];
    let blocks = Distribution::BlockCyclic {
        global_shape: global_shape.clone(),
        offset: offset.clone(),
        block,
        stride,
    };
    // Otherwise the array has no room for the gaps.
    match blocks.check(shape) {
        Ok(()) => blocks,
        Err(_) => Distribution::BlockCyclic {
            global_shape,
            offset,
            block: shape.iter().map(|extent| *extent.max(&1)).collect(),
            stride: vec![u64::MAX; shape.len()],
        },
    }
}

fn catalog() -> impl Strategy<Value = Catalog> {
    let bytes = || vec(any::<u8>(), 0..100);
    (vec(region(), 0..20), "\\PC{0,40}", bytes(), bytes()).prop_map(
        |(mut regions, word, attachment, outputs)| {
            for (number, region) in regions.iter_mut().enumerate() {
                region.desc.name = format!("{word}{number}");
            }
            Catalog { regions, attachment, outputs }
        },
    )
}

fn segments() -> impl Strategy<Value = Vec<SegmentRef>> {
    let segment = (pack(), any::<u32>(), 1..=u32::MAX, any::<Option<u8>>(), fp());
    vec(
        segment.prop_map(|(pack, offset, length, merged, fp)| SegmentRef {
            pack,
            offset,
            length,
            kind: if merged.is_some() { SegmentKind::Segment } else { SegmentKind::Directory },
            level: merged.unwrap_or(0),
            fp,
        }),
        0..20,
    )
}

fn remarks() -> impl Strategy<Value = Remarks> {
    let tags = btree_set("\\PC{1,40}", 0..5);
    (any::<(bool, bool)>(), 0..3usize, "\\PC{0,20}", tags).prop_map(
        |((pinned, suspect), mark, label, tags)| {
            let tags = tags.into_iter().collect();
            Remarks { pinned, suspect, mark: Mark::ALL[mark], label, tags }
        },
    )
}

fn image() -> impl Strategy<Value = Image> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u32>(), any::<bool>());
    (numbers, tree(), tree(), segments()).prop_map(
        |((regions, state_bytes, next_pack, files), catalog, packed, segments)| {
            let (kind, packed) = match files {
                true => (ImageKind::Files, TreeRef::EMPTY),
                false => (ImageKind::Memory, packed),
            };
            let reference = ImageRef { rank: 0, kind, regions, state_bytes, catalog, packed };
            Image { reference, next_pack, segments }
        },
    )
}

fn pages() -> impl Strategy<Value = Vec<PageRef>> {
    vec((1..1000_u32, pack(), any::<u32>(), 1..=u32::MAX, fp()), 1..20).prop_map(|pages| {
        let mut end = 0;
        let page = |(ranks, pack, offset, length, fp)| {
            let first_rank = end;
            end += ranks;
            PageRef { first_rank, pack, offset, length, fp }
        };
        pages.into_iter().map(page).collect()
    })
}

fn images() -> impl Strategy<Value = (u32, Images)> {
    let table = (any::<(u64, u64, u32, bool)>(), pages(), 1..100_u32);
    let table = table.prop_map(|((regions, state_bytes, next_pack, files), pages, more)| {
        let kind = if files { ImageKind::Files } else { ImageKind::Memory };
        let world_size = 1 + pages.last().map_or(0, |page| page.first_rank) + more;
        let lists = Vec::new();
        let table = ImageTable { kind, regions, state_bytes, next_pack, pages, lists };
        (world_size, Images::Table(table))
    });
    prop_oneof![image().prop_map(|image| (1, Images::One(image))), table]
}

fn table_page() -> impl Strategy<Value = TablePage> {
    (vec(image(), 1..9), 0..u32::MAX - 9).prop_map(|(mut images, first)| {
        for (image, rank) in images.iter_mut().zip(first..) {
            image.reference.rank = rank;
        }
        TablePage { images }
    })
}

fn segment_lists() -> impl Strategy<Value = SegmentLists> {
    (vec(segments(), 1..9), 0..u32::MAX - 9)
        .prop_map(|(lists, first)| SegmentLists { ranks: (first..).zip(lists).collect() })
}

fn manifest() -> impl Strategy<Value = Manifest> {
    let numbers = any::<[u64; 10]>();
    let value = any::<f64>().prop_filter("a number", |value| !value.is_nan());
    let metrics = btree_map("\\PC{1,9}", value, 0..4);
    (session(), numbers, images(), remarks(), metrics).prop_map(
        |(session, numbers, (world_size, images), remarks, metrics)| {
            let [epoch, parent, frozen_ns, new_bytes, changed_bytes, ..] = numbers;
            let [.., known_bytes, zero_bytes, raw_bytes, stall_ns, drain_ns] = numbers;
            let epoch = epoch.max(1);
            Manifest {
                session,
                world_size,
                epoch,
                parent: parent % epoch,
                frozen_ns,
                figures: SaveFigures {
                    new_bytes,
                    changed_bytes,
                    known_bytes,
                    zero_bytes,
                    raw_bytes,
                    stall_ns,
                    drain_ns,
                },
                predecessor: drain_ns % epoch,
                failed_before: (stall_ns >> 48) as u16,
                remarks,
                metrics: metrics.into_iter().collect(),
                images,
            }
        },
    )
}

fn writer() -> impl Strategy<Value = Session> {
    let text = || "\\PC{0,60}";
    (session(), any::<u32>(), any::<[u64; 2]>(), text(), text(), text()).prop_map(
        |(session, process_id, [opened_ns, started], host, system, lease)| Session {
            session,
            process_id,
            opened_ns,
            started,
            host,
            system,
            lease,
        },
    )
}

fn archive() -> impl Strategy<Value = Archive> {
    let state = proptest::option::of((writer(), any::<bool>()));
    let manifests = vec(manifest(), 0..4);
    let condemned = vec(pack(), 0..9);
    (session(), state, any::<u64>(), condemned, (segments(), pages()), manifests).prop_map(
        |(gc, session, last_epoch, condemned, (segments, lists), manifests)| {
            let mut kept: BTreeMap<u64, Manifest> = BTreeMap::new();
            for mut manifest in manifests {
                if let Images::One(image) = &mut manifest.images {
                    image.segments.clear();
                }
                kept.insert(manifest.epoch, manifest);
            }
            let manifests: Vec<Manifest> = kept.into_values().collect();
            let newest = manifests.last().map_or(0, |manifest| manifest.epoch);
            let last_epoch = last_epoch.max(newest);
            let incomplete =
                manifests.iter().map(|m| m.epoch).filter(|epoch| epoch % 2 == 1).collect();
            Archive { gc, session, last_epoch, condemned, segments, lists, incomplete, manifests }
        },
    )
}

fn record() -> impl Strategy<Value = Record> {
    let body = prop_oneof![
        writer().prop_map(Body::Session),
        manifest().prop_map(Body::Manifest),
        (session(), vec(pack(), 0..30)).prop_map(|(gc, packs)| Body::Sweep(Sweep { gc, packs })),
        session().prop_map(|session| Body::Close(Close { session })),
        archive().prop_map(Body::Archive),
        (1..=u64::MAX, remarks()).prop_map(|(epoch, remarks)| Body::Note(Note { epoch, remarks })),
        btree_set(1..=u64::MAX, 1..20).prop_map(|epochs| {
            let epochs: Vec<u64> = epochs.into_iter().collect();
            Body::Prune(Prune { last_epoch: epochs[epochs.len() - 1], epochs })
        }),
    ];
    (1..=u64::MAX, fp(), body).prop_map(|(number, previous, body)| {
        let previous = if number == 1 { Fingerprint::ZERO } else { previous };
        Record { number, previous, body }
    })
}

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    vec((prop::option::of(fp()), 1..=1_u64 << 50), 1..=64).prop_map(|pieces| {
        let pieces = pieces
            .into_iter()
            .map(|(fp, bytes)| Piece { fp: fp.unwrap_or(Fingerprint::ZERO), bytes });
        let mut pieces: Vec<Piece> = pieces.collect();
        pieces.dedup_by(|a, b| a.is_zeros() && b.is_zeros());
        pieces
    })
}

fn file() -> impl Strategy<Value = Item> {
    let content = prop_oneof![
        Just((Content::Empty, 0)),
        vec(any::<u8>(), 1..=INLINE_BYTES_MAX).prop_map(|bytes| {
            let count = bytes.len() as u64;
            (Content::Inline(bytes), count)
        }),
        pieces().prop_map(|pieces| {
            let bytes = pieces.iter().map(|piece| piece.bytes).sum();
            (Content::Pieces(pieces), bytes)
        }),
        (fp(), 1..=u64::MAX).prop_map(|(fp, bytes)| (Content::Recipe(fp), bytes)),
    ];
    let time = || (any::<i64>(), 0..1_000_000_000_u32).prop_map(|(s, ns)| FileTime { s, ns });
    let attributes = btree_map(vec(1..=255_u8, 1..30), vec(any::<u8>(), 0..50), 0..4);
    let numbers = any::<(bool, bool, u32, u32, u64, u64)>();
    (content, time(), time(), attributes, numbers, 0..=0o7777_u32).prop_map(
        |((content, bytes), mtime, ctime, attributes, numbers, mode)| {
            let (holes, unsettled, uid, gid, device, inode) = numbers;
            let attributes =
                attributes.into_iter().map(|(name, value)| Attribute { name, value }).collect();
            Item {
                holes,
                unsettled,
                mode,
                uid,
                gid,
                mtime,
                ctime,
                device,
                inode,
                bytes,
                attributes,
                content,
                ..Item::new(Vec::new(), ItemKind::File)
            }
        },
    )
}

/// Paths of few letters, so that they have long common prefixes.
fn path() -> impl Strategy<Value = Vec<u8>> {
    let part = vec(prop::sample::select(b"ab-.~\xFF".to_vec()), 1..5)
        .prop_filter("these lead elsewhere", |part| part != b"." && part != b"..");
    vec(part, 1..5).prop_map(|parts| parts.join(&b'/'))
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn headers(header in header()) {
        prop_assert_eq!(ShardHeader::decode(&header.encode().unwrap()).unwrap(), header);
    }

    #[test]
    fn tails(tail in tail()) {
        let bytes = tail.encode().unwrap();
        prop_assert_eq!(bytes.len() % 4096, 0);
        prop_assert_eq!(Tail::decode(&bytes).unwrap(), tail);
    }

    #[test]
    fn table_pages(page in table_page()) {
        let bytes = page.encode().unwrap();
        prop_assert_eq!(bytes.len(), page.encoded_len());
        prop_assert_eq!(TablePage::decode(&bytes).unwrap(), page);
    }

    #[test]
    fn lists_of_segments(lists in segment_lists()) {
        prop_assert_eq!(SegmentLists::decode(&lists.encode().unwrap()).unwrap(), lists);
    }

    #[test]
    fn a_rank_is_on_one_page(pages in pages(), rank in any::<u32>()) {
        let page = page_of(&pages, rank).unwrap();
        let next = pages.iter().find(|other| other.first_rank > page.first_rank);
        prop_assert!(page.first_rank <= rank && next.is_none_or(|next| rank < next.first_rank));
    }

    #[test]
    fn fragments_cover_a_container(header in header()) {
        let Geometry { k, container_bytes, .. } = header.geometry;
        let fragment = header.geometry.fragment_bytes(container_bytes);
        prop_assert!(fragment % 4096 == 0 && fragment * u64::from(k) >= container_bytes);
        prop_assert!((fragment - 4096) * u64::from(k) < container_bytes);
        let all = header.geometry.fragments_bytes(header.containers_bytes);
        prop_assert_eq!(header.directory_offset(), 4096 + all);
        prop_assert!(k > 1 || all == header.containers_bytes, "with k = 1 a fragment is a container");
    }

    #[test]
    fn directories(unsorted in directory()) {
        let bytes = unsorted.encode().unwrap();
        prop_assert_eq!(bytes.len(), unsorted.encoded_len());
        let sorted = Directory::new(unsorted.packs.clone(), unsorted.entries.clone());
        prop_assert_eq!(&Directory::decode(&bytes).unwrap(), &sorted);
        for entry in &unsorted.entries {
            let there = unsorted.entries.iter().filter(|other| other.fp == entry.fp).count();
            let found = sorted.find(&entry.fp);
            prop_assert_eq!(found.len(), there);
            prop_assert!(found.contains(entry));
        }
        prop_assert!(sorted.find(&fingerprint(b"elsewhere")).is_empty());
    }

    #[test]
    fn nodes(level in 1..=LEVEL_MAX, children in vec(prop::option::of(fp()), 0..=NODE_CHILDREN)) {
        let children = children.into_iter().map(|c| c.unwrap_or(Fingerprint::ZERO)).collect();
        let children: Vec<Fingerprint> = children;
        let node = InnerNode::new(level, children.clone());
        for (index, child) in children.iter().enumerate() {
            prop_assert_eq!(node.child(index), *child);
        }
        if node.is_zero() {
            prop_assert!(node.encode().is_err());
        } else {
            prop_assert_eq!(InnerNode::decode(&node.encode().unwrap()).unwrap(), node);
        }
    }

    #[test]
    fn catalogs(catalog in catalog()) {
        prop_assert_eq!(Catalog::decode(&catalog.encode().unwrap()).unwrap(), catalog);
    }

    #[test]
    fn recipes(level in 0..=RECIPE_LEVEL_MAX, pieces in pieces()) {
        let mut recipe = Recipe { level, children: pieces };
        if level > 0 {
            recipe.children.retain(|child| !child.is_zeros());
        }
        if recipe.children.is_empty() {
            prop_assert!(recipe.encode().is_err());
        } else {
            prop_assert_eq!(Recipe::decode(&recipe.encode().unwrap()).unwrap(), recipe);
        }
    }

    #[test]
    fn listings(files in vec((path(), file()), 0..12), steps in vec(1..300_usize, 1..20)) {
        let mut items: Vec<Item> =
            files.into_iter().map(|(path, item)| Item { path, ..item }).collect();
        items.sort_by(|a, b| path_cmp(&a.path, &b.path));
        items.dedup_by(|a, b| a.path == b.path);
        let listing = Listing { items };
        let bytes = listing.encode().unwrap();
        prop_assert_eq!(&Listing::decode(&bytes).unwrap(), &listing);
        // The parts in which it arrives do not matter.
        let mut reader = ListingReader::new();
        let mut read = Vec::new();
        let (mut rest, mut steps) = (&bytes[..], steps.into_iter().cycle());
        while !rest.is_empty() {
            let (part, later) = rest.split_at(steps.next().unwrap().min(rest.len()));
            reader.push(part);
            rest = later;
            while let Some(item) = reader.next_item().unwrap() {
                read.push(item);
            }
        }
        prop_assert_eq!(reader.finish().unwrap(), read.len() as u64);
        prop_assert_eq!(read, listing.items);
    }

    /// The order is that of a walk: names by their bytes, each directory before its contents.
    #[test]
    fn paths_are_in_the_order_of_a_walk(mut paths in vec(path(), 2..20)) {
        paths.push(b".".to_vec());
        let parts = |path: &[u8]| match path {
            b"." => Vec::new(),
            path => path.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect::<Vec<_>>(),
        };
        for a in &paths {
            for b in &paths {
                prop_assert_eq!(path_cmp(a, b), parts(a).cmp(&parts(b)));
            }
        }
    }

    #[test]
    fn records(record in record()) {
        prop_assert_eq!(Record::decode(&record.encode().unwrap()).unwrap(), record);
    }
}
