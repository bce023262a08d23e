//! `outlive show` for a checkpoint of files.

use crate::chosen::{head_text, is_incomplete, select_sound, skipped_json};
use crate::ls::manifest_json;
use crate::output::{Answer, Table, bytes, count, path_json, when};
use crate::tiers::Tiers;
use outlive_format::{Item, ItemKind};
use outlive_store::Job;
use outlive_types::{Epoch, Error, Result, shown_path};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Default number of items listed as text.
const ITEMS_SHOWN: usize = 40;

/// Shows the manifest and the items.
pub fn show(job: &Job, epoch: Option<Epoch>, limit: Option<usize>) -> Result<Answer> {
    let (checkpoint, skipped) = job.files(select_sound(epoch))?.ok_or_else(|| no_files(job))?;
    let manifest = checkpoint.manifest();
    let total = manifest.regions();
    let incomplete = is_incomplete(job, manifest.epoch)?;
    let tiers = Tiers::of(job.pool())?.at(job.name(), manifest, incomplete);
    let mut text = head_text(job, manifest, incomplete, tiers.as_deref(), "item");
    text.push('\n');
    let mut table = Table::new(&["MODE", ">OWNER", ">BYTES", "CHANGED", "PATH"]);
    let (limit, text_limit) = (limit.unwrap_or(usize::MAX), limit.unwrap_or(ITEMS_SHOWN));
    let mut listed = Vec::new();
    let mut items = checkpoint.items();
    while listed.len() < limit
        && let Some(item) = items.next_item()?
    {
        if listed.len() < text_limit {
            table.row(row(&item));
        }
        listed.push(item_json(&item));
    }
    text.push_str(&table.text());
    let more = total.saturating_sub(text_limit as u64);
    if more > 0 {
        let _ = writeln!(text, "… and {}; --regions {total} lists all", count(more, "more item"));
    }
    let json = json!({
        "job": job.name().as_str(),
        "manifest": manifest_json(manifest, incomplete, 0, tiers.as_deref()),
        "items": listed,
        "skipped": skipped_json(&skipped),
    });
    Ok(Answer::new(text, json))
}

/// Returns the letter of `ls -l` for a kind, and a word for programs.
pub fn kind_of(kind: ItemKind) -> (char, &'static str) {
    match kind {
        ItemKind::File => ('-', "file"),
        ItemKind::Directory => ('d', "directory"),
        ItemKind::Symlink => ('l', "symlink"),
        ItemKind::Fifo => ('p', "fifo"),
        ItemKind::CharDevice => ('c', "char device"),
        ItemKind::BlockDevice => ('b', "block device"),
        ItemKind::Socket => ('s', "socket"),
        ItemKind::HardLink => ('h', "hard link"),
        ItemKind::Stream => ('-', "stream"),
    }
}

/// Returns permissions in the form of `ls -l`.
fn mode_text(item: &Item) -> String {
    let bit = |at: u32| item.mode >> at & 1 == 1;
    let mut text = String::from(kind_of(item.kind).0);
    for (shift, special, letter) in [(6, bit(11), 's'), (3, bit(10), 's'), (0, bit(9), 't')] {
        text.push(if bit(shift + 2) { 'r' } else { '-' });
        text.push(if bit(shift + 1) { 'w' } else { '-' });
        text.push(match (special, bit(shift)) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

fn row(item: &Item) -> Vec<String> {
    let path = shown_path(&item.path);
    let target = shown_path(&item.target);
    if item.kind == ItemKind::HardLink {
        let none = String::new;
        return vec!["h".to_owned(), none(), none(), none(), format!("{path} = {target}")];
    }
    let ns = u64::try_from(item.mtime.s).ok().and_then(|s| s.checked_mul(1_000_000_000));
    vec![
        mode_text(item),
        format!("{}:{}", item.uid, item.gid),
        match item.kind {
            ItemKind::File | ItemKind::Stream => bytes(item.bytes),
            _ => String::new(),
        },
        ns.map(when).unwrap_or_else(|| format!("{} s", item.mtime.s)),
        if target.is_empty() { path } else { format!("{path} -> {target}") },
    ]
}

/// Returns an item as JSON.
pub fn item_json(item: &Item) -> Value {
    let mut json = json!({
        "path": path_json(&item.path),
        "kind": kind_of(item.kind).1,
        "mode": format!("{:o}", item.mode),
        "uid": item.uid,
        "gid": item.gid,
        "bytes": item.bytes,
        "mtime_s": item.mtime.s,
        "mtime_ns": item.mtime.ns,
        "holes": item.holes,
    });
    if !item.target.is_empty() {
        json["target"] = json!(path_json(&item.target));
    }
    if !item.attributes.is_empty() {
        let names: Vec<String> = item.attributes.iter().map(|a| path_json(&a.name)).collect();
        json["attributes"] = json!(names);
    }
    json
}

/// Returns the error for a job without files.
pub fn no_files(job: &Job) -> Error {
    Error::invalid(format!(
        "job {} has no checkpoint of files; what a program saved of its memory comes out with \
         `outlive export`",
        job.name()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_look_like_those_of_ls() {
        for (kind, mode, text) in [
            (ItemKind::File, 0o644, "-rw-r--r--"),
            (ItemKind::Directory, 0o1777, "drwxrwxrwt"),
            (ItemKind::File, 0o4755, "-rwsr-xr-x"),
            (ItemKind::File, 0o2640, "-rw-r-S---"),
        ] {
            let mut item = Item::new(b"x".to_vec(), kind);
            item.mode = mode;
            assert_eq!(mode_text(&item), text);
        }
    }
}
