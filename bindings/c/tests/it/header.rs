//! The committed header equals the one that the sources generate.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// In the order of the header.
const SOURCES: [&str; 16] = [
    "status",
    "call",
    "notices",
    "pool",
    "core",
    "job",
    "group",
    "protect",
    "save",
    "events",
    "gate",
    "gather",
    "notes",
    "checkpoint",
    "restore",
    "prune",
];

fn generated(root: &Path) -> String {
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for name in SOURCES {
        builder = builder.with_src(root.join(format!("src/{name}.rs")));
        if name == "pool" {
            builder = builder.with_src(root.join("../connect/src/lib.rs"));
        }
    }
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn the_header_is_that_of_the_sources() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("include/outlive.h");
    let wanted = generated(&root);
    if env::var_os("OUTLIVE_WRITE_HEADER").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    let first = there.lines().zip(wanted.lines()).position(|(there, wanted)| there != wanted);
    assert!(
        there == wanted,
        "bindings/c/include/outlive.h is not what bindings/c/src gives, from line {} on: run `make header`",
        first.map_or(there.lines().count().min(wanted.lines().count()), |line| line) + 1
    );
}

#[test]
fn every_exported_function_is_in_the_header() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let header = generated(&root);
    let mut exported = 0;
    for file in fs::read_dir(root.join("src")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for (at, _) in text.match_indices("#[unsafe(no_mangle)]") {
            let name = text[at..].split("fn ").nth(1).unwrap();
            let name = &name[..name.find('(').unwrap()];
            assert!(header.contains(&format!("{name}(")), "{name}");
            exported += 1;
        }
    }
    assert!(exported > 30, "{exported}");
}
