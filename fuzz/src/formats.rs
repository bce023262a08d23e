//! Fuzzes the decoders of `crates/format`: they never panic, and accepted bytes encode to the same
//! bytes. The target `safetensors` does the same with headers of models, whose JSON has several forms.
//! One binary holds all targets, so that it is built once; `fuzz/run` starts it.
//!
//! `OUTLIVE_FUZZ` names the target. With `OUTLIVE_SEEDS` (a directory) the binary writes that
//! target's seeds there and ends.
#![no_main]

#[path = "../../crates/format/tests/it/samples/mod.rs"]
mod samples;

use libfuzzer_sys::fuzz_target;
use outlive_format::{Directory, Leaf, LeafKind, Lookup, PageExtent, SHARD_HEADER_BYTES, Tail};
use outlive_safetensors::{Header, Index};
use outlive_types::Fingerprint;
use samples::{STRUCTURES, Structure};
use std::sync::LazyLock;

/// Name of the target for headers of models.
const MODELS: &str = "safetensors";
static IS_OF_MODELS: LazyLock<bool> =
    LazyLock::new(|| std::env::var("OUTLIVE_FUZZ").is_ok_and(|name| name == MODELS));

static TARGET: LazyLock<&Structure> = LazyLock::new(|| {
    let name = std::env::var("OUTLIVE_FUZZ").unwrap_or_default();
    let known = || STRUCTURES.iter().map(|structure| structure.name).collect::<Vec<_>>().join(", ");
    STRUCTURES.iter().find(|structure| structure.name == name).unwrap_or_else(|| {
        eprintln!("set OUTLIVE_FUZZ to one of: {}", known());
        std::process::exit(2);
    })
});

fn write_seeds() {
    let Some(directory) = std::env::var_os("OUTLIVE_SEEDS") else { return };
    let samples = if *IS_OF_MODELS { models() } else { (TARGET.samples)() };
    for (number, sample) in samples.iter().enumerate() {
        let path = std::path::Path::new(&directory).join(format!("seed-{number}"));
        if let Err(error) = std::fs::write(&path, sample) {
            eprintln!("cannot write the seed {}: {error}", path.display());
            std::process::exit(2);
        }
    }
    std::process::exit(0);
}

fuzz_target!(init: write_seeds(), |data: &[u8]| {
    if *IS_OF_MODELS {
        return model(data);
    }
    canonical(data);
    // The fuzzer can neither guess checksums nor keep to the lengths that the format prescribes.
    if let Some(seal) = TARGET.seal {
        let mut sealed = data.to_vec();
        match TARGET.name {
            "shard_header" => sealed.resize(SHARD_HEADER_BYTES, 0),
            "shard_tail" => {
                let missing = sealed.len().next_multiple_of(4096) - sealed.len();
                sealed.splice(0..0, vec![0; missing]);
            }
            _ => {}
        }
        seal(&mut sealed);
        canonical(&sealed);
    }
});

/// Returns headers, each behind the length of the data.
fn models() -> Vec<Vec<u8>> {
    let texts = [
        (0, r#"{}"#),
        (28, r#"{"__metadata__":{"format":"pt"},"x":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},
            "y":{"dtype":"F4","shape":[4,8],"data_offsets":[12,28]}}"#),
    ];
    texts.map(|(bytes, text): (u64, &str)| [&bytes.to_le_bytes(), text.as_bytes()].concat()).to_vec()
}

/// Panics if an accepted header is another one when it is written and read again.
fn model(data: &[u8]) {
    let Some((bytes, text)) = data.split_first_chunk() else { return };
    let bytes = u64::from_le_bytes(*bytes);
    let _ = Index::decode(text);
    let Ok(header) = Header::decode(text, bytes) else { return };
    let written = header.encode().expect("it was short");
    let again = Header::decode(&written[8..], bytes).expect("it was written");
    assert_eq!(again, header);
}

/// Panics if `bytes` decode to a value that encodes differently.
fn canonical(bytes: &[u8]) {
    let Ok(again) = (TARGET.again)(bytes) else { return };
    assert!(again == bytes, "accepted, but encoded as {again:02x?}");
    match TARGET.name {
        "leaf" => leaf_operations(&Leaf::decode(bytes).expect("it was decoded before")),
        "shard_tail" => {
            let tail = Tail::decode(bytes).expect("it was decoded before");
            let _ = Directory::decode(&tail.directory);
        }
        _ => {}
    }
}

fn leaf_operations(leaf: &Leaf) {
    assert_eq!(&Leaf::overlay(leaf, [leaf]), leaf);
    // The leaf lies over one extent, so every extent of the leaf splits it.
    let below = Fingerprint([0xB0; 32]);
    let whole = PageExtent { page: 0, pages: 512, first: 0, chunk: Some(below) };
    let whole = Leaf::build(LeafKind::Full, [whole]).expect("one extent");
    let merged = Leaf::overlay(&whole, [leaf]);
    assert!(merged.encode().is_ok() || merged.is_zero());
    for page in 0..512 {
        let covered = leaf.extents.iter().any(|e| (e.page..e.page + e.pages).contains(&page));
        let there = if covered { leaf.lookup(page) } else { whole.lookup(page) };
        assert_eq!(merged.lookup(page), there, "page {page}");
    }
    assert_eq!(&Leaf::build(leaf.kind, leaf.page_extents()).expect("its own extents"), leaf);
    let live: u32 = leaf.live_pages_per_chunk().into_iter().map(u32::from).sum();
    let found = (0..512).filter(|page| matches!(leaf.lookup(*page), Lookup::Chunk { .. }));
    assert_eq!(live, found.count() as u32);
}
