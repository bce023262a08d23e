//! The backends of this build, by the schemes of their locations. A new backend is a crate, and one
//! line in [`BUILT_IN`]. A program may bring another one, with [`register`].

use outlive_backend::{Location, Scheme};
use outlive_dir::DirectoryLocation;
use outlive_types::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The schemes of this build.
pub const BUILT_IN: [Scheme; 7] = [
    outlive_dir::FILE,
    outlive_block::BLOCK,
    outlive_s3::S3,
    outlive_etcd::ETCD,
    outlive_etcd::ETCDS,
    outlive_node::NODE,
    outlive_node::NODES,
];

/// Most schemes that a program may bring.
const BROUGHT_MAX: usize = 16;

/// Schemes that the program brought. Reads wait for no lock: a forked child may inherit it in any
/// state.
static BROUGHT: [OnceLock<Scheme>; BROUGHT_MAX] = [const { OnceLock::new() }; BROUGHT_MAX];

/// Adds a scheme to those of this build, for the rest of this process. A second one
/// of a name changes nothing.
///
/// # Errors
/// `Invalid` if the name is not one of lower-case letters, digits, `+`, `-` and `.` that begins with
/// a letter; or after 16 schemes.
pub fn register(scheme: Scheme) -> Result<()> {
    if scheme.name != scheme.name.to_ascii_lowercase()
        || split(&format!("{}:", scheme.name)).is_none()
    {
        return Err(Error::invalid(format!("{:?} is no name of a scheme", scheme.name)));
    }
    if find(scheme.name).is_some() {
        return Ok(());
    }
    match BROUGHT.iter().any(|free| free.set(scheme).is_ok()) {
        true => Ok(()),
        false => Err(Error::invalid(format!("more than {BROUGHT_MAX} schemes were registered"))),
    }
}

fn all() -> impl Iterator<Item = &'static Scheme> {
    BUILT_IN.iter().chain(BROUGHT.iter().map_while(OnceLock::get))
}

fn find(name: &str) -> Option<&'static Scheme> {
    all().find(|scheme| scheme.name.eq_ignore_ascii_case(name))
}

/// Returns the location of a path.
pub fn directory(path: impl Into<PathBuf>) -> Location {
    Location::new(DirectoryLocation::at(path))
}

/// Reads a location, such as `/scratch/ckpt` or `s3://ckpt/heat`. Text without a scheme is a path.
///
/// # Errors
/// `Invalid` for an unknown scheme, and for text that the scheme does not understand.
pub fn parse(text: &str) -> Result<Location> {
    match split(text) {
        None => DirectoryLocation::parse(text).map(Location::new),
        Some((name, rest)) => match find(name) {
            Some(scheme) => (scheme.parse)(rest),
            None => Err(Error::invalid(unknown(name, "file:PATH"))),
        },
    }
}

/// Reads a path that may be a location with a known scheme, `SCHEME://…`, in which a path type has
/// turned two slashes into one. Any other text is a path, unless it is `SCHEME://…`.
///
/// # Errors
/// As [`parse`].
pub fn parse_path(path: &Path) -> Result<Location> {
    if let Some((name, rest)) = path.to_str().and_then(split)
        && rest.starts_with("//")
        && find(name).is_none()
    {
        return Err(Error::invalid(unknown(name, &format!("./{name}:PATH"))));
    }
    let url = path.to_str().and_then(split).filter(|(name, rest)| {
        rest.starts_with('/')
            && find(name).is_some_and(|scheme| scheme.name != outlive_dir::FILE.name)
    });
    match url {
        Some((name, rest)) => parse(&format!("{name}://{}", rest.trim_start_matches('/'))),
        None => Ok(directory(path)),
    }
}

/// Splits at the colon, if the text before it can be a scheme (RFC 3986).
fn split(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = text.split_once(':')?;
    let fits = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let is_scheme = name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(fits);
    is_scheme.then_some((name, rest))
}

fn unknown(name: &str, as_path: &str) -> String {
    let known: Vec<&str> = all().map(|scheme| scheme.help).collect();
    format!(
        "this build has no scheme {name:?}; it takes {}. Write {as_path:?} if {name:?} is part of a \
         path",
        known.join(", or ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_named_by_a_path_or_a_location() {
        for (named, is) in [
            ("s3://ckpt/a", "s3://ckpt/a"),
            ("s3:/ckpt/a", "s3://ckpt/a"),
            ("S3://ckpt/a", "s3://ckpt/a"),
            ("etcd://node1/a", "etcd://node1/a"),
            ("./s3:/x", "./s3:/x"),
            ("file:/x", "file:/x"),
            ("http:/x", "http:/x"),
            ("./http://x", "./http://x"),
            ("a:b", "a:b"),
            ("pool", "pool"),
        ] {
            assert_eq!(parse_path(Path::new(named)).unwrap().to_string(), is, "{named}");
        }
        assert!(parse_path(Path::new("s3://Wrong")).is_err());
        let unknown = parse_path(Path::new("gs://bucket/prefix")).unwrap_err();
        assert!(unknown.message().contains("this build has no scheme \"gs\""), "{unknown}");
        assert!(unknown.message().contains("\"./gs:PATH\""), "{unknown}");
    }

    #[test]
    fn all_schemes_have_names_of_their_own() {
        for (number, scheme) in BUILT_IN.iter().enumerate() {
            assert!(BUILT_IN[..number].iter().all(|other| other.name != scheme.name));
            assert_eq!(split(&format!("{}:x", scheme.name)), Some((scheme.name, "x")));
        }
    }
}
