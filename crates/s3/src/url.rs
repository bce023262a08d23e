//! A location in a bucket, named by a URL.

use crate::bucket::Bucket;
use crate::files::S3Files;
use crate::medium::S3Medium;
use crate::settings::Settings;
use crate::target::S3Target;
use outlive_backend::{
    BackendLocation, Location, RetryMedium, RetryPolicy, RetryTarget, Scheme, SmallFiles, Target,
    TargetOptions, prefix,
};
use outlive_log::LogMedium;
use outlive_types::{Error, Result};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// The scheme of buckets.
pub const S3: Scheme = Scheme {
    name: "s3",
    help: "a bucket of S3 and its like, as \"s3://BUCKET/PREFIX\"",
    parse: |rest| S3Url::parse(&format!("s3:{rest}")).map(Location::new),
};

/// A bucket, or a prefix in one: `s3://BUCKET/PREFIX`. Credentials and the server are not in the
/// URL; they are read when it is opened.
#[derive(Clone)]
pub struct S3Url {
    bucket: String,
    prefix: String,
    variables: Option<HashMap<String, String>>,
}

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
        let prefix = prefix::parse(prefix).map_err(wrong)?;
        Ok(S3Url { bucket: bucket.to_owned(), prefix, variables: None })
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

    fn open(&self) -> Result<Arc<Bucket>> {
        let found = match &self.variables {
            Some(given) => Settings::find(&|name| given.get(name).cloned()),
            None => Settings::find(&|name| std::env::var(name).ok()),
        };
        let settings = found.map_err(|error| error.context(format!("cannot open {self}")))?;
        Ok(Arc::new(Bucket::new(&self.bucket, &self.prefix, settings)))
    }

    /// Opens it as a target for shards. Sends no request yet.
    ///
    /// # Errors
    /// `Invalid` if the settings are not complete.
    pub fn target(&self) -> Result<S3Target> {
        self.open().map(S3Target::new)
    }

    /// Opens it for small files. Sends no request yet.
    ///
    /// # Errors
    /// As [`S3Url::target`].
    pub fn files(&self) -> Result<S3Files> {
        self.open().map(S3Files::new)
    }

    /// Opens it as a medium of records. Sends no request yet. Before the first record,
    /// [`S3Medium::check_conditional_put`] shows whether it can keep any.
    ///
    /// # Errors
    /// As [`S3Url::target`].
    pub fn medium(&self) -> Result<S3Medium> {
        self.open().map(S3Medium::new)
    }
}

/// Attempts in all around a client, which repeats requests itself.
const ATTEMPTS: u32 = 2;

impl BackendLocation for S3Url {
    fn child(&self, name: &str) -> Result<Location> {
        let prefix = prefix::child(&self.prefix, name)
            .map_err(|why| Error::invalid(format!("{self}/{name} is no location: {why}")))?;
        Ok(Location::new(S3Url { prefix, ..self.clone() }))
    }

    fn around(&self) -> Vec<(Location, Option<String>)> {
        let at = |(prefix, below)| (Location::new(S3Url { prefix, ..self.clone() }), below);
        prefix::around(&self.prefix).into_iter().map(at).collect()
    }

    fn check(&self) -> Result<()> {
        self.open()?.wait(|bucket| async move { bucket.check().await })
    }

    fn check_records(&self) -> Result<()> {
        self.medium()?.check_conditional_put()
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn advice(&self) -> &'static str {
        "see whether this is the right bucket, at the right endpoint (AWS_ENDPOINT_URL)"
    }

    fn open_target(&self, _how: &TargetOptions) -> Result<Arc<dyn Target>> {
        let policy = RetryPolicy { attempts_max: ATTEMPTS, ..RetryPolicy::default() };
        Ok(Arc::new(RetryTarget::new(Arc::new(self.target()?), policy)))
    }

    fn open_medium(&self) -> Result<Arc<dyn LogMedium>> {
        let policy = RetryPolicy { attempts_max: ATTEMPTS, ..RetryPolicy::default() };
        Ok(Arc::new(RetryMedium::new(Arc::new(self.medium()?), policy)))
    }

    fn open_files(&self) -> Result<Arc<dyn SmallFiles>> {
        Ok(Arc::new(self.files()?))
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
    fn a_location_is_a_bucket_with_a_prefix_or_without() {
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
    fn a_location_is_in_others() {
        let url = S3Url::parse("s3://ckpt/a/b").unwrap();
        let around: Vec<String> = url
            .around()
            .iter()
            .map(|(url, below)| format!("{url} {}", below.as_deref().unwrap_or("-")))
            .collect();
        assert_eq!(around, ["s3://ckpt/a/b -", "s3://ckpt/a b", "s3://ckpt a"]);
        assert_eq!(S3Url::parse("s3://ckpt").unwrap().around().len(), 1);
    }

    #[test]
    fn wrong_locations_are_refused_with_the_reason() {
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
    fn a_location_without_settings_says_so_and_shows_no_secret() {
        let url = S3Url::parse("s3://abc/x").unwrap().with_variables([
            ("AWS_SECRET_ACCESS_KEY", "hush"),
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
        ]);
        let error = url.target().unwrap_err();
        assert!(error.message().starts_with("cannot open s3://abc/x: "), "{error}");
        assert!(!format!("{url:?} {error}").contains("hush"));
    }
}
