//! The pool that a command names: a path, or `-` for the one that OUTLIVE_POOL names.

use clap::builder::{OsStringValueParser, TryMapValueParser, TypedValueParser, ValueParserFactory};
use std::ffi::{OsStr, OsString};
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// Environment variable that names a pool.
pub const VARIABLE: &str = "OUTLIVE_POOL";

/// The path of a pool, and where it is from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolName {
    path: PathBuf,
    /// Whether the command line names the variable, and not the pool itself.
    pub is_from_variable: bool,
}

impl PoolName {
    /// Returns the pool of a word in the place of POOL. The variable counts only for the word `-`:
    /// a word in another place never becomes a pool, and no word loses its meaning by a variable.
    ///
    /// # Errors
    /// A text for the user if the word is `-`, and the variable names no pool.
    fn of_word(word: OsString, variable: Option<OsString>) -> Result<PoolName, String> {
        match word.as_os_str() == OsStr::new("-") {
            false => Ok(PoolName { path: word.into(), is_from_variable: false }),
            true => PoolName::of_value(variable)
                .map_err(|why| format!("- stands for the pool that {VARIABLE} names, and {why}")),
        }
    }

    fn of_value(variable: Option<OsString>) -> Result<PoolName, String> {
        let path = match variable {
            None => return Err(format!("{VARIABLE} is not set: set it, or name the pool")),
            Some(value) if value.is_empty() || value == *"-" => {
                return Err(format!("{VARIABLE} is {value:?}: set it to a pool, or name the pool"));
            }
            Some(value) => value.into(),
        };
        Ok(PoolName { path, is_from_variable: true })
    }

    /// Returns the pool that the variable names, for a command without a pool.
    ///
    /// # Errors
    /// A text for the user if it names none.
    pub fn from_variable() -> Result<PoolName, String> {
        PoolName::of_value(std::env::var_os(VARIABLE))
    }
}

impl Deref for PoolName {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl ValueParserFactory for PoolName {
    type Parser = TryMapValueParser<OsStringValueParser, fn(OsString) -> Result<PoolName, String>>;

    fn value_parser() -> Self::Parser {
        let parse: fn(OsString) -> Result<PoolName, String> =
            |word| PoolName::of_word(word, std::env::var_os(VARIABLE));
        OsStringValueParser::new().try_map(parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_counts_only_for_a_dash() {
        let named = |word: &str, value: Option<&str>| {
            PoolName::of_word(word.into(), value.map(OsString::from))
        };
        let plain = named("a", Some("b")).unwrap();
        assert!(*plain == *Path::new("a") && !plain.is_from_variable);
        let other = named("-", Some("b c")).unwrap();
        assert!(*other == *Path::new("b c") && other.is_from_variable);
        let bucket = named("-", Some("s3://b/p")).unwrap();
        assert_eq!(&*bucket, Path::new("s3://b/p"));
        assert!(!named("./-", Some("b")).unwrap().is_from_variable);
        for value in [None, Some(""), Some("-")] {
            let refused = named("-", value).unwrap_err();
            assert!(
                refused.contains("OUTLIVE_POOL") && refused.contains("name the pool"),
                "{refused}"
            );
        }
    }
}
