//! Where targets are: reads the locations in `pool.toml`, and opens what is there. Each scheme of
//! locations is one entry of [`SCHEMES`] and one [`Location`].

use crate::environment::Environment;
use outlive_target::{DirectoryOptions, DirectoryTarget, RetryPolicy, RetryTarget, Target};
use outlive_types::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A kind of medium, told by what stands before the colon of a location.
struct Scheme {
    name: &'static str,
    /// What it is, and how its locations are written, for messages.
    help: &'static str,
    /// Reads what stands behind the colon.
    parse: fn(&str) -> Result<Location>,
}

/// All that this build has.
const SCHEMES: [Scheme; 1] = [Scheme {
    name: "file",
    help: "a directory, as \"/scratch/ckpt\" or \"file:/scratch/ckpt\"",
    parse: parse_file,
}];

/// Where a target is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Location {
    /// A directory; a relative path counts from the pool's own.
    Directory(PathBuf),
}

impl Location {
    /// Reads a location.
    ///
    /// # Errors
    /// `Invalid` for an unknown scheme, and for what the scheme does not understand.
    pub(crate) fn parse(text: &str) -> Result<Location> {
        let parsed = match scheme_of(text) {
            None => directory(text),
            Some((name, rest)) => {
                match SCHEMES.iter().find(|scheme| scheme.name.eq_ignore_ascii_case(name)) {
                    Some(scheme) => (scheme.parse)(rest),
                    None => Err(Error::invalid(unknown(name))),
                }
            }
        };
        parsed.map_err(|e| e.context(format!("[[target]] location = {text:?} is not possible")))
    }

    /// The same for a pool in `dir`.
    pub(crate) fn seen_from(self, dir: &Path) -> Location {
        match self {
            Location::Directory(path) => Location::Directory(dir.join(path)),
        }
    }

    /// Whether it is the pool's own directory, `dir`.
    pub(crate) fn is_in(&self, dir: &Path) -> bool {
        self.is_same(&Location::Directory(dir.to_owned()))
    }

    /// Whether both are one place.
    pub(crate) fn is_same(&self, other: &Location) -> bool {
        let (Location::Directory(one), Location::Directory(other)) = (self, other);
        one == other
            || one.canonicalize().is_ok_and(|one| Ok(one) == other.canonicalize().map_err(drop))
    }

    /// Opens the target. `probe` is a file of the pool that can be read; `own` says that it is the pool's
    /// own directory, of which parts may be made again.
    ///
    /// # Errors
    /// `Invalid` if something else is there.
    pub(crate) fn open(
        &self,
        probe: &Path,
        own: bool,
        env: &Environment,
    ) -> Result<Arc<dyn Target>> {
        match self {
            Location::Directory(root) => {
                let options = DirectoryOptions {
                    observer: env.observer.clone(),
                    make_root: own,
                    ..Default::default()
                };
                let target = DirectoryTarget::open(root, &options)?;
                target.probe(probe);
                // A network mount may drop a request, and another program may close files.
                Ok(Arc::new(RetryTarget::new(Arc::new(target), RetryPolicy::default())))
            }
        }
    }
}

/// What stands before and behind the colon, if what stands before it can be a scheme (RFC 3986).
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
        known.join(", ")
    )
}

/// A path, or `//` and a path without a host. Nothing in it is escaped.
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

fn directory(path: &str) -> Result<Location> {
    match path {
        "" => Err(Error::invalid("it names no directory; \".\" is the pool's own")),
        path if path.contains('\0') => Err(Error::invalid("a path has no zero bytes")),
        path => Ok(Location::Directory(PathBuf::from(path))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::ErrorKind;

    fn path_of(text: &str) -> PathBuf {
        let Location::Directory(path) =
            Location::parse(text).unwrap().seen_from(Path::new("/pool"));
        path
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
            assert_eq!(path_of(text), Path::new(path), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_a_location_is_named_with_what_can() {
        for (text, told) in [
            ("", "no directory"),
            ("file:", "no directory"),
            ("a\0b", "zero bytes"),
            ("file://host/path", "\"host\"; mount"),
            ("s3://bucket/prefix", "no scheme \"s3\"; it takes a directory, as \"/scratch/ckpt\""),
            ("c:ckpt", "Write \"file:PATH\" if \"c\""),
            ("http://x", "no scheme \"http\""),
        ] {
            let error = Location::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(error.message().contains(told), "{text}: {error}");
            let start = format!("[[target]] location = {text:?} is not possible: ");
            assert!(error.message().starts_with(&start), "{error}");
        }
    }
}
