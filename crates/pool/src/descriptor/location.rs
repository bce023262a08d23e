//! Locations of a pool's parts, as its descriptor and the front doors name them.

use crate::descriptor::vacant::parse_vacant;
use outlive_backend::Location;
use outlive_registry::{directory, parse_path};
use outlive_types::Result;
use std::path::{self, Component, Path, PathBuf};

/// Reads a location. `key` names its table in `pool.toml`.
///
/// # Errors
/// `Invalid` for an unknown scheme, and for text that the scheme does not understand.
pub(crate) fn parse(text: &str, key: &str) -> Result<Location> {
    if let Some(vacant) = parse_vacant(text) {
        return Ok(vacant);
    }
    let parsed = outlive_registry::parse(text);
    parsed.map_err(|e| e.context(format!("{key} location = {text:?} is not possible")))
}

/// Reads a pool's name: a directory, a bucket, or the descriptor in one.
///
/// # Errors
/// `Invalid` for an impossible location, and for one that keeps no shards.
pub(crate) fn of_pool(named: &Path, descriptor: &str) -> Result<Location> {
    let is_descriptor = named.file_name().is_some_and(|name| name == descriptor);
    let whole = parse_path(named)?;
    let root = match named.parent() {
        Some(parent) if is_descriptor && whole.as_directory().is_some() => match parent {
            parent if parent == Path::new("") => directory("."),
            parent => directory(parent),
        },
        Some(parent) if is_descriptor => match parse_path(parent) {
            Ok(root) if root.as_directory().is_none() => root,
            // A bucket may have the descriptor's name.
            _ => whole,
        },
        _ => whole,
    };
    match root.keeps_shards() {
        true => Ok(root),
        false => Err(root.keeps_no_shards()),
    }
}

/// Returns where the log's configuration of this number is in a location.
///
/// # Errors
/// `Invalid` if the prefix gets too long.
pub(crate) fn of_configuration(location: &Location, number: u32) -> Result<Location> {
    if number == 1 { Ok(location.clone()) } else { location.child(&format!("log-{number}")) }
}

/// Returns one text for all paths to a location.
pub(crate) fn resolved(location: &Location) -> String {
    let path = location.as_directory().and_then(|path| path.canonicalize().ok());
    path.map_or_else(|| location.to_string(), |path| path.display().to_string())
}

/// Returns a location without links, as far as it exists.
pub(crate) fn real(location: &Location) -> Option<Location> {
    match location.as_directory() {
        Some(path) => real_path(path).map(directory),
        None => Some(location.clone()),
    }
}

/// Returns a path without links, as far as it exists.
pub(crate) fn real_path(path: &Path) -> Option<PathBuf> {
    let path = path::absolute(path).ok()?;
    let there = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let (above, real) = there?;
    let rest = path.strip_prefix(above).ok()?.components();
    Some(real.components().chain(rest).collect())
}

/// Returns whether a location is within `parts` of another one.
pub(crate) fn is_within(location: &Location, other: &Location, parts: &[&str]) -> bool {
    let (Some(one), Some(other)) = (real(location), real(other)) else { return false };
    match (one.as_directory(), other.as_directory()) {
        (Some(one), Some(other)) => parts.iter().any(|part| one.starts_with(other.join(part))),
        (None, None) => {
            let one = format!("{}/", one.identity());
            let other = other.identity();
            let other = other.trim_end_matches('/');
            parts.iter().any(|part| one.starts_with(&format!("{other}/{part}/")))
        }
        _ => false,
    }
}

/// Resolves a location that begins in `root` before `root` is made: no system resolves `..` in a
/// missing directory.
pub(crate) fn as_if_made(root: &Location, location: Location) -> Location {
    let (Some(dir), Some(path)) = (root.as_directory(), location.as_directory()) else {
        return location;
    };
    let Ok(rest) = path.strip_prefix(dir) else { return location };
    let Some(mut followed) = real_path(dir).filter(|_| !dir.exists()) else { return location };
    for part in rest.components() {
        match part {
            // The part that exists has no links any more, and the missing part has none.
            Component::ParentDir => drop(followed.pop()),
            part => followed.push(part),
        }
    }
    directory(followed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::paths::DESCRIPTOR;
    use outlive_types::ErrorKind;

    fn seen(text: &str, root: &Location) -> Result<Location> {
        parse(text, "[[target]]").unwrap().seen_from(root)
    }

    #[test]
    fn a_path_is_a_directory_with_its_scheme_and_without() {
        for (text, path) in [
            ("/scratch/ckpt", "/scratch/ckpt"),
            ("file:/scratch/ckpt", "/scratch/ckpt"),
            ("file:///scratch/ckpt", "/scratch/ckpt"),
            ("FILE:/scratch/ckpt", "/scratch/ckpt"),
            ("//scratch", "//scratch"),
            (".", "/pool"),
            ("file:.", "/pool"),
            ("../big disk/ü", "/pool/../big disk/ü"),
            ("file:a:b", "/pool/a:b"),
            ("./a:b", "/pool/a:b"),
            ("/a:b", "/a:b"),
            ("1:b", "/pool/1:b"),
            ("file:100%25", "/pool/100%25"),
        ] {
            assert_eq!(seen(text, &directory("/pool")).unwrap(), directory(path), "{text}");
        }
    }

    #[test]
    fn buckets_hold_targets_and_whole_pools() {
        let bucket = seen("s3://ckpt/a", &directory("/pool")).unwrap();
        assert_eq!(bucket.to_string(), "s3://ckpt/a");
        for (text, there) in [(".", "s3://ckpt/a"), ("S3://other", "s3://other"), ("/x", "/x")] {
            assert_eq!(seen(text, &bucket).unwrap().to_string(), there);
        }
        let error = seen("../x", &bucket).unwrap_err();
        assert!(error.message().contains("relative"), "{error}");
        for (named, pool) in [
            ("s3://ckpt/a", "s3://ckpt/a"),
            ("s3:/ckpt/a", "s3://ckpt/a"),
            ("s3://ckpt/a/pool.toml", "s3://ckpt/a"),
            ("s3:/ckpt/pool.toml", "s3://ckpt"),
            ("s3://pool.toml", "s3://pool.toml"),
            ("./s3:/x", "./s3:/x"),
            ("/pool/pool.toml", "/pool"),
            ("pool.toml", "."),
            ("pool", "pool"),
        ] {
            let location = of_pool(Path::new(named), DESCRIPTOR).unwrap();
            assert_eq!(location.to_string(), pool, "{named}");
        }
        assert!(of_pool(Path::new("s3://Wrong"), DESCRIPTOR).is_err());
        for (within, is) in [("s3://ckpt/a/packs", true), ("s3://ckpt/a/packs2", false)] {
            let within = seen(within, &bucket).unwrap();
            assert_eq!(is_within(&within, &bucket, &["log", "packs"]), is);
        }
    }

    #[test]
    fn a_wrong_location_is_refused_with_advice() {
        for (text, told) in [
            ("", "no directory"),
            ("file:", "no directory"),
            ("a\0b", "zero bytes"),
            ("file://host/path", "\"host\"; mount"),
            ("s3://Bucket/prefix", "no 'B'"),
            ("c:ckpt", "Write \"file:PATH\" if \"c\""),
            ("http://x", "no scheme \"http\"; it takes a directory, as \"/scratch/ckpt\""),
        ] {
            let error = parse(text, "[log]").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(error.message().contains(told), "{text}: {error}");
            let start = format!("[log] location = {text:?} is not possible: ");
            assert!(error.message().starts_with(&start), "{error}");
        }
    }
}
