//! Makes a trace for `outlive-bench plan` from directories, one version each, oldest first.
//!
//!     trace_of CONTAINER_BYTES DIRECTORY... > trace.txt
//!
//! Each directory is one stream: its files in the order of their paths, one after another. It is
//! cut by content (FastCDC, Xia et al., USENIX ATC 2016; 2 to 32 KiB, 8 on average). A chunk that
//! no version had before goes into the open container.

use fastcdc::v2020::FastCDC;
use outlive_chunk::fingerprint;
use outlive_files::planner::{Item, Trace, Version};
use outlive_types::Fingerprint;
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn files(dir: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            files(&entry.path(), found)?;
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [container_bytes, dirs @ ..] = &words[..] else {
        return Err("usage: trace_of CONTAINER_BYTES DIRECTORY...".into());
    };
    let container_bytes: u64 = container_bytes.parse()?;
    let mut places: HashMap<Fingerprint, Item> = HashMap::new();
    let (mut container, mut used) = (0, 0);
    let mut trace = Trace { container_bytes, versions: Vec::new() };
    for dir in dirs {
        let dir = Path::new(dir);
        let mut paths = Vec::new();
        files(dir, &mut paths)?;
        paths.sort();
        let mut stream = Vec::new();
        for path in paths {
            stream.extend(fs::read(path)?);
        }
        let mut recipe = Vec::new();
        for cut in FastCDC::new(&stream, 2048, 8192, 32768) {
            let bytes = &stream[cut.offset..cut.offset + cut.length];
            let length = cut.length as u32;
            let item = *places.entry(fingerprint(bytes)).or_insert_with(|| {
                if u64::from(used + length) > container_bytes {
                    (container, used) = (container + 1, 0);
                }
                let item = Item { container, offset: used, length };
                used += length;
                item
            });
            recipe.push(item);
        }
        let name = dir.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        eprintln!("{name}: {} chunks, container {container}", recipe.len());
        trace.versions.push(Version { name, recipe });
    }
    io::stdout().write_all(trace.to_text().as_bytes())?;
    Ok(())
}
