//! A location in a bucket, named by a URL.

use crate::bucket::Bucket;
use crate::files::S3Files;
use crate::medium::S3Medium;
use crate::settings::Settings;
use crate::target::S3Target;
use outlive_types::{Error, Result};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// A bucket, or a prefix in one: `s3://BUCKET/PREFIX`. Credentials and the server are not in the
/// URL; they are read when it is opened.
#[derive(Clone, PartialEq, Eq)]
pub struct S3Url {
    bucket: String,
    prefix: String,
    variables: Option<HashMap<String, String>>,
}

/// Characters of a prefix besides letters and digits: those that all servers treat alike.
const OF_PREFIXES: &str = "-_.=+@,";
/// Longest prefix. A key has at most 1024 bytes, and our names add less than half of that.
const PREFIX_BYTES_MAX: usize = 512;

impl S3Url {
    /// Parses `s3://BUCKET` or `s3://BUCKET/PREFIX`. Nothing in it is escaped.
    ///
    /// # Errors
    /// `Invalid` for anything else; the message names the fault.
    pub fn parse(text: &str) -> Result<S3Url> {
        let wrong = |what: String| {
            Error::invalid(format!(
                "{text:?} is no location in a bucket: {what}; write it as \"s3://BUCKET/PREFIX\""
            ))
        };
        let rest = text.strip_prefix("s3://");
        let rest = rest.ok_or_else(|| wrong("it does not begin with \"s3://\"".to_owned()))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        check_bucket(bucket).map_err(wrong)?;
        let prefix = prefix.strip_suffix('/').filter(|it| !it.is_empty()).unwrap_or(prefix);
        check_prefix(prefix).map_err(wrong)?;
        Ok(S3Url { bucket: bucket.to_owned(), prefix: prefix.to_owned(), variables: None })
    }

    /// Reads settings from `variables` instead of the environment of the process.
    #[must_use]
    pub fn with_variables<'a>(
        self,
        variables: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> S3Url {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        S3Url { variables: Some(variables.into_iter().map(owned).collect()), ..self }
    }

    /// Returns this location and those that contain it, up to the bucket. Each has the part of this
    /// one's prefix that follows there; this one has none.
    pub fn ancestors(&self) -> Vec<(S3Url, Option<String>)> {
        let parts: Vec<&str> = self.prefix.split('/').filter(|part| !part.is_empty()).collect();
        let above = |length: usize| {
            let url = S3Url { prefix: parts[..length].join("/"), ..self.clone() };
            (url, parts.get(length).map(|part| (*part).to_owned()))
        };
        (0..=parts.len()).rev().map(above).collect()
    }

    fn open(&self) -> Result<Arc<Bucket>> {
        let found = match &self.variables {
            Some(given) => Settings::find(&|name| given.get(name).cloned()),
            None => Settings::find(&|name| std::env::var(name).ok()),
        };
        let settings = found.map_err(|error| error.context(format!("cannot open {self}")))?;
        Ok(Arc::new(Bucket::new(&self.bucket, &self.prefix, settings)))
    }

    /// Checks that the bucket exists and may be used.
    ///
    /// # Errors
    /// `Invalid` if it does not exist, if there are no credentials, or if they are refused; `Retry`
    /// if the server cannot be reached.
    pub fn check(&self) -> Result<()> {
        self.open()?.wait(|bucket| async move { bucket.check().await })
    }

    /// Opens it as a target for shards. Sends no request yet.
    ///
    /// # Errors
    /// `Invalid` if the settings are not complete.
    pub fn open_target(&self) -> Result<S3Target> {
        self.open().map(S3Target::new)
    }

    /// Opens it as a medium of records. Sends no request yet. Before the first record,
    /// [`S3Medium::check_conditional_put`] shows whether it can keep any.
    ///
    /// # Errors
    /// As [`S3Url::open_target`].
    pub fn open_medium(&self) -> Result<S3Medium> {
        self.open().map(S3Medium::new)
    }

    /// Opens it as storage of small files. Sends no request yet.
    ///
    /// # Errors
    /// As [`S3Url::open_target`].
    pub fn open_files(&self) -> Result<S3Files> {
        self.open().map(S3Files::new)
    }
}

/// Checks the rules of AWS, which other servers have adopted.
fn check_bucket(bucket: &str) -> std::result::Result<(), String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if bucket.is_empty() {
        return Err("it names no bucket".to_owned());
    }
    if let Some(c) = bucket.chars().find(|c| !plain(*c) && !matches!(c, '-' | '.')) {
        return Err(format!("a bucket's name has no {c:?}, only a to z, 0 to 9, hyphens and dots"));
    }
    if !(3..=63).contains(&bucket.len()) || !bucket.starts_with(plain) || !bucket.ends_with(plain) {
        return Err(format!(
            "{bucket:?} is no bucket's name, which has 3 to 63 characters and begins and ends with a \
             letter or a digit"
        ));
    }
    Ok(())
}

fn check_prefix(prefix: &str) -> std::result::Result<(), String> {
    if prefix.is_empty() {
        return Ok(());
    }
    if prefix.len() > PREFIX_BYTES_MAX {
        return Err(format!("the prefix is longer than {PREFIX_BYTES_MAX} bytes"));
    }
    for part in prefix.split('/') {
        if matches!(part, "" | "." | "..") {
            return Err(format!("the prefix has the part {part:?}"));
        }
        let fits = |c: &char| c.is_ascii_alphanumeric() || OF_PREFIXES.contains(*c);
        if let Some(c) = part.chars().find(|c| !fits(c)) {
            return Err(format!(
                "the prefix has the character {c:?}, and may have only letters, digits and \
                 {OF_PREFIXES}"
            ));
        }
    }
    Ok(())
}

impl fmt::Display for S3Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.bucket)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

impl fmt::Debug for S3Url {
    // Shows no variables: a secret is among them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S3Url({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::ErrorKind;

    #[test]
    fn a_place_is_a_bucket_with_a_prefix_or_without() {
        for (text, shown) in [
            ("s3://ckpt", "s3://ckpt"),
            ("s3://ckpt/", "s3://ckpt"),
            ("s3://my-bucket.1/a/b=2/c_D,+@.x", "s3://my-bucket.1/a/b=2/c_D,+@.x"),
            ("s3://ckpt/a/b/", "s3://ckpt/a/b"),
        ] {
            assert_eq!(S3Url::parse(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn a_place_is_in_others() {
        let url = S3Url::parse("s3://ckpt/a/b").unwrap();
        let told: Vec<String> = url
            .ancestors()
            .iter()
            .map(|(url, below)| format!("{url} {}", below.as_deref().unwrap_or("-")))
            .collect();
        assert_eq!(told, ["s3://ckpt/a/b -", "s3://ckpt/a b", "s3://ckpt a"]);
        assert_eq!(S3Url::parse("s3://ckpt").unwrap().ancestors().len(), 1);
    }

    #[test]
    fn what_is_no_place_is_told_with_what_is_wrong() {
        for (text, told) in [
            ("", "does not begin"),
            ("S3:bucket", "does not begin"),
            ("/scratch", "does not begin"),
            ("s3://", "names no bucket"),
            ("s3:///prefix", "names no bucket"),
            ("s3://Bucket", "no 'B'"),
            ("s3://my_bucket/x", "no '_'"),
            ("s3://host:9000/bucket", "no ':'"),
            ("s3://ab", "3 to 63"),
            ("s3://-ab", "3 to 63"),
            ("s3://abc/a//b", "the part \"\""),
            ("s3://abc//", "the part \"\""),
            ("s3://abc/../b", "the part \"..\""),
            ("s3://abc/a b", "' '"),
            ("s3://abc/a%20b", "'%'"),
            ("s3://abc/a?b", "'?'"),
            ("s3://abc/ü", "'ü'"),
        ] {
            let error = S3Url::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(
                error.message().contains(told) && error.message().contains("BUCKET/PREFIX"),
                "{error}"
            );
        }
        assert!(S3Url::parse(&format!("s3://abc/{}", "x".repeat(513))).is_err());
    }

    #[test]
    fn a_place_without_settings_says_so_and_shows_no_secret() {
        let url = S3Url::parse("s3://abc/x").unwrap().with_variables([
            ("AWS_SECRET_ACCESS_KEY", "hush"),
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
        ]);
        let error = url.open_target().unwrap_err();
        assert!(error.message().starts_with("cannot open s3://abc/x: "), "{error}");
        assert!(!format!("{url:?} {error}").contains("hush"));
    }
}
