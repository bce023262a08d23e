//! Locations of a pool's parts: reads them in `pool.toml`, and opens targets and logs there. Each
//! scheme of locations is one entry of [`SCHEMES`] and one [`Location`].

use crate::environment::Environment;
use outlive_etcd::EtcdUrl;
use outlive_s3::S3Url;
use outlive_target::{
    DirectoryMedium, DirectoryOptions, DirectoryTarget, LogMedium, ManifestLog, RecordLog,
    RetryMedium, RetryPolicy, RetryTarget, Target, TargetWatch, Work,
};
use outlive_types::{Error, Result};
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{self, Component, Path, PathBuf};
use std::sync::Arc;

/// Threads that write and read in each of several directories. Two of them have as many as a single
/// one.
const THREADS_OF_SEVERAL: usize = 4;

/// A kind of medium, named by the text before the colon of a location.
struct Scheme {
    name: &'static str,
    /// Description of the medium and of its locations, for messages.
    help: &'static str,
    /// Reads the text behind the colon.
    parse: fn(&str) -> Result<Location>,
}

/// All schemes of this build.
const SCHEMES: [Scheme; 4] = [
    Scheme {
        name: "file",
        help: "a directory, as \"/scratch/ckpt\" or \"file:/scratch/ckpt\"",
        parse: parse_file,
    },
    Scheme {
        name: "s3",
        help: "a bucket of S3 and its like, as \"s3://BUCKET/PREFIX\"",
        parse: parse_bucket,
    },
    Scheme {
        name: "etcd",
        help: "an etcd cluster, for a log only, as \"etcd://HOST,HOST,HOST/PREFIX\"",
        parse: |rest| parse_etcd("etcd", rest),
    },
    Scheme {
        name: "etcds",
        help: "the same with TLS, as \"etcds://HOST,HOST,HOST/PREFIX\"",
        parse: |rest| parse_etcd("etcds", rest),
    },
];

/// Attempts in all around the clients of buckets and of etcd, which repeat requests themselves.
const CLIENT_ATTEMPTS: u32 = 2;

/// Location of shards, of records, or of a descriptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Location {
    /// A directory; a relative path counts from the pool's own.
    Directory(PathBuf),
    /// A bucket, or a prefix in one.
    Bucket(S3Url),
    /// A prefix in an etcd cluster, which keeps records and no shards.
    Etcd(EtcdUrl),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Directory(path) => path.display().fmt(f),
            Location::Bucket(place) => place.fmt(f),
            Location::Etcd(place) => place.fmt(f),
        }
    }
}

impl Location {
    /// Reads a location. `key` names its table in `pool.toml`.
    ///
    /// # Errors
    /// `Invalid` for an unknown scheme, and for text that the scheme does not understand.
    pub(crate) fn parse(text: &str, key: &str) -> Result<Location> {
        let parsed = match scheme_of(text) {
            None => directory(text),
            Some((name, rest)) => {
                match SCHEMES.iter().find(|scheme| scheme.name.eq_ignore_ascii_case(name)) {
                    Some(scheme) => (scheme.parse)(rest),
                    None => Err(Error::invalid(unknown(name))),
                }
            }
        };
        parsed.map_err(|e| e.context(format!("{key} location = {text:?} is not possible")))
    }

    /// Reads a pool's name: a directory, the descriptor in it, or a bucket.
    ///
    /// # Errors
    /// `Invalid` for an impossible bucket.
    pub(crate) fn of_pool(named: &Path, descriptor: &str) -> Result<Location> {
        let is_descriptor = named.file_name().is_some_and(|name| name == descriptor);
        if let Some(rest) = named.to_str().and_then(|text| text.strip_prefix("s3:/")) {
            // A path type turns two slashes into one.
            let rest = rest.trim_start_matches('/');
            let rest = rest.strip_suffix(descriptor).filter(|_| is_descriptor).unwrap_or(rest);
            return parse_bucket(&format!("//{rest}"));
        }
        if let Some(text) =
            named.to_str().filter(|text| text.starts_with("etcd") && text.contains(":/"))
        {
            return Err(Error::invalid(format!(
                "{text}: an etcd cluster can keep a pool's log, and no packs: name a directory or a bucket, \
                 and the cluster with --log"
            )));
        }
        let dir = match named.parent() {
            Some(parent) if is_descriptor && parent == Path::new("") => Path::new("."),
            Some(parent) if is_descriptor => parent,
            _ => named,
        };
        Ok(Location::Directory(dir.to_owned()))
    }

    /// Returns one text for all paths to this location.
    pub(crate) fn resolved(&self) -> String {
        let path = self.as_directory().and_then(|path| path.canonicalize().ok());
        path.map_or_else(|| self.to_string(), |path| path.display().to_string())
    }

    /// Returns the directory, if it is one.
    pub(crate) fn as_directory(&self) -> Option<&Path> {
        match self {
            Location::Directory(path) => Some(path),
            Location::Bucket(_) | Location::Etcd(_) => None,
        }
    }

    /// Returns the same for a pool at `root`.
    ///
    /// # Errors
    /// `Invalid` for a relative path, if the pool is not in a directory.
    pub(crate) fn seen_from(self, root: &Location) -> Result<Location> {
        match (self, root) {
            (Location::Directory(path), Location::Directory(dir)) => {
                // Without a "." in it, which would read as ".." at the end of a sentence.
                Ok(Location::Directory(dir.join(path).components().collect()))
            }
            (Location::Directory(path), root) if path == Path::new(".") => Ok(root.clone()),
            (Location::Directory(path), root) if path.is_relative() => {
                Err(Error::invalid(format!(
                    "{} is a relative path, and the pool is not in a directory but in {root}: write an \
                     absolute path",
                    path.display()
                )))
            }
            (location, _) => Ok(location),
        }
    }

    /// Returns the same as an absolute path, in case the program changes its directory.
    pub(crate) fn absolute(self) -> Location {
        match self {
            Location::Directory(dir) => Location::Directory(path::absolute(&dir).unwrap_or(dir)),
            other => other,
        }
    }

    /// Returns where the log's configuration of this number is in this location.
    ///
    /// # Errors
    /// `Invalid` if the prefix gets too long.
    pub(crate) fn of_set(&self, number: u32) -> Result<Location> {
        let name = format!("log-{number}");
        match self {
            _ if number == 1 => Ok(self.clone()),
            Location::Directory(path) => Ok(Location::Directory(path.join(name))),
            Location::Bucket(place) => {
                S3Url::parse(&format!("{place}/{name}")).map(Location::Bucket)
            }
            Location::Etcd(place) => EtcdUrl::parse(&format!("{place}/{name}")).map(Location::Etcd),
        }
    }

    /// Returns whether both are one location.
    pub(crate) fn is_same(&self, other: &Location) -> bool {
        match (self, other) {
            // Compares inodes: of links, and of one directory that is mounted in two locations.
            (Location::Directory(one), Location::Directory(other)) => {
                let inode =
                    |path: &PathBuf| path.metadata().ok().map(|there| (there.dev(), there.ino()));
                one == other || inode(one).is_some_and(|one| Some(one) == inode(other))
            }
            (one, other) => one == other,
        }
    }

    /// Returns the same without links, as far as it exists.
    pub(crate) fn real(&self) -> Option<Location> {
        match self {
            Location::Directory(path) => real(path).map(Location::Directory),
            Location::Bucket(_) | Location::Etcd(_) => Some(self.clone()),
        }
    }

    /// Returns whether it is within `parts` of another location.
    pub(crate) fn is_within(&self, other: &Location, parts: &[&str]) -> bool {
        match (self.real(), other.real()) {
            (Some(Location::Directory(one)), Some(Location::Directory(other))) => {
                parts.iter().any(|part| one.starts_with(other.join(part)))
            }
            (Some(Location::Bucket(one)), Some(Location::Bucket(other))) => {
                let one = format!("{one}/");
                parts.iter().any(|part| one.starts_with(&format!("{other}/{part}/")))
            }
            _ => false,
        }
    }

    /// Opens it as a target. `probe` is a file of the pool that can be read. `own` means the pool's
    /// own location, whose parts may be recreated. `watch` means one of several targets: the others
    /// do not wait for it.
    ///
    /// # Errors
    /// `Invalid` if something else is there.
    pub(crate) fn open_target(
        &self,
        probe: Option<PathBuf>,
        own: bool,
        watch: Option<&Arc<TargetWatch>>,
        env: &Environment,
    ) -> Result<Arc<dyn Target>> {
        // Hence the retries: a network mount may drop a request, and another program may close
        // files.
        match self {
            Location::Directory(root) => {
                let options = DirectoryOptions {
                    observer: env.observer.clone(),
                    make_root: own,
                    threads: watch.map(|_| THREADS_OF_SEVERAL),
                    ..Default::default()
                };
                let target = match watch {
                    None => DirectoryTarget::open(root, &options)?,
                    // The check of its marker finds out what is there.
                    Some(_) => DirectoryTarget::at(root, &options),
                };
                let target = Arc::new(target);
                match (probe, watch) {
                    (Some(probe), Some(watch)) => {
                        let target = target.clone();
                        let probe = move || {
                            target.probe(&probe);
                            Ok(())
                        };
                        // If the target is silent, the first call that uses it finds out.
                        let _ = watch.ask(Work::Question, probe);
                    }
                    (Some(probe), None) => target.probe(&probe),
                    (None, _) => {}
                }
                Ok(Arc::new(RetryTarget::new(target, RetryPolicy::default())))
            }
            Location::Bucket(place) => {
                Ok(Arc::new(RetryTarget::new(Arc::new(place.open_target()?), of_clients())))
            }
            Location::Etcd(_) => Err(keeps_no_packs(self)),
        }
    }

    /// Opens it as the only replica of a log.
    ///
    /// # Errors
    /// `Invalid` if it cannot be used.
    pub(crate) fn open_log(&self) -> Result<Arc<dyn ManifestLog>> {
        Ok(Arc::new(RecordLog::over(self.open_medium()?)))
    }

    /// Opens it as a medium of records.
    ///
    /// # Errors
    /// As [`Location::open_log`].
    pub(crate) fn open_medium(&self) -> Result<Arc<dyn LogMedium>> {
        let client: Arc<dyn LogMedium> = match self {
            // Its calls end in fsyncs, which are not repeated.
            Location::Directory(root) => return Ok(Arc::new(DirectoryMedium::within(root))),
            Location::Bucket(place) => Arc::new(place.open_medium()?),
            Location::Etcd(place) => Arc::new(place.open_medium()?),
        };
        Ok(Arc::new(RetryMedium::new(client, of_clients())))
    }
}

fn of_clients() -> RetryPolicy {
    RetryPolicy { attempts_max: CLIENT_ATTEMPTS, ..RetryPolicy::default() }
}

/// Returns a path without links, as far as it exists.
pub(crate) fn real(path: &Path) -> Option<PathBuf> {
    let path = path::absolute(path).ok()?;
    let there = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let (above, real) = there?;
    let rest = path.strip_prefix(above).ok()?.components();
    Some(real.components().chain(rest).collect())
}

/// Resolves a location that begins in `root` before `root` is made: no system resolves `..` in a
/// missing directory.
pub(crate) fn as_if_made(root: &Location, location: Location) -> Location {
    let (Location::Directory(dir), Location::Directory(path)) = (root, &location) else {
        return location;
    };
    let Ok(rest) = path.strip_prefix(dir) else { return location };
    let Some(mut followed) = real(dir).filter(|_| !dir.exists()) else { return location };
    for part in rest.components() {
        match part {
            // The part that exists has no links any more, and the missing part has none.
            Component::ParentDir => drop(followed.pop()),
            part => followed.push(part),
        }
    }
    Location::Directory(followed)
}

/// Splits at the colon, if the text before it can be a scheme (RFC 3986).
fn scheme_of(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = text.split_once(':')?;
    let fits = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let is_scheme = name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(fits);
    is_scheme.then_some((name, rest))
}

fn unknown(name: &str) -> String {
    let known: Vec<&str> = SCHEMES.iter().map(|scheme| scheme.help).collect();
    format!(
        "this build has no scheme {name:?}; it takes {}. Write \"file:PATH\" if {name:?} is part of a \
         path",
        known.join(", or ")
    )
}

/// Reads a path, or `//` and a path without a host. Nothing in it is escaped.
fn parse_file(text: &str) -> Result<Location> {
    match text.strip_prefix("//") {
        None => directory(text),
        Some(path) if path.starts_with('/') => directory(path),
        Some(host) => {
            let host = host.split('/').next().unwrap_or_default();
            Err(Error::invalid(format!(
                "it names a host, {host:?}; mount its directory here, and write \"file:/PATH\""
            )))
        }
    }
}

fn parse_bucket(text: &str) -> Result<Location> {
    S3Url::parse(&format!("s3:{text}")).map(Location::Bucket)
}

fn parse_etcd(scheme: &str, text: &str) -> Result<Location> {
    EtcdUrl::parse(&format!("{scheme}:{text}")).map(Location::Etcd)
}

fn directory(path: &str) -> Result<Location> {
    match path {
        "" => Err(Error::invalid("it names no directory; \".\" is the pool's own")),
        path if path.contains('\0') => Err(Error::invalid("a path has no zero bytes")),
        path => Ok(Location::Directory(PathBuf::from(path))),
    }
}

/// Returns the error for an etcd cluster that was named as a location for packs.
pub(crate) fn keeps_no_packs(location: &Location) -> Error {
    Error::invalid(format!(
        "{location} can keep a pool's log, and no packs: name it with --log, beside a directory or a \
         bucket"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::ErrorKind;

    fn directory_of(path: &str) -> Location {
        Location::Directory(PathBuf::from(path))
    }

    fn seen(text: &str, root: &Location) -> Result<Location> {
        Location::parse(text, "[[target]]").unwrap().seen_from(root)
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
            assert_eq!(seen(text, &directory_of("/pool")).unwrap(), directory_of(path), "{text}");
        }
    }

    #[test]
    fn buckets_hold_targets_and_whole_pools() {
        let bucket = seen("s3://ckpt/a", &directory_of("/pool")).unwrap();
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
            ("./s3:/x", "./s3:/x"),
            ("/pool/pool.toml", "/pool"),
            ("pool.toml", "."),
            ("pool", "pool"),
        ] {
            let location = Location::of_pool(Path::new(named), "pool.toml").unwrap();
            assert_eq!(location.to_string(), pool, "{named}");
        }
        assert!(Location::of_pool(Path::new("s3://Wrong"), "pool.toml").is_err());
        for (within, is) in [("s3://ckpt/a/packs", true), ("s3://ckpt/a/packs2", false)] {
            let within = seen(within, &bucket).unwrap();
            assert_eq!(within.is_within(&bucket, &["log", "packs"]), is);
        }
    }

    #[test]
    fn what_cannot_be_a_location_is_named_with_what_can() {
        for (text, told) in [
            ("", "no directory"),
            ("file:", "no directory"),
            ("a\0b", "zero bytes"),
            ("file://host/path", "\"host\"; mount"),
            ("s3://Bucket/prefix", "no 'B'"),
            ("c:ckpt", "Write \"file:PATH\" if \"c\""),
            ("http://x", "no scheme \"http\"; it takes a directory, as \"/scratch/ckpt\""),
        ] {
            let error = Location::parse(text, "[log]").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(error.message().contains(told), "{text}: {error}");
            let start = format!("[log] location = {text:?} is not possible: ");
            assert!(error.message().starts_with(&start), "{error}");
        }
    }
}
