//! A location in an etcd cluster, named by a URL.

use crate::cluster::Cluster;
use crate::endpoint::Endpoint;
use crate::files::EtcdFiles;
use crate::medium::EtcdMedium;
use crate::settings::Settings;
use outlive_types::{Error, Result};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// A prefix of the keys of a cluster: `etcd://HOST:PORT,HOST:PORT,…/PREFIX`, or `etcds://` for TLS.
/// Credentials are not in the URL; they are read when it is opened.
///
/// Two locations are equal if they have the same prefix and name the same members, in any order.
#[derive(Clone)]
pub struct EtcdUrl {
    is_tls: bool,
    endpoints: Vec<Endpoint>,
    prefix: String,
    variables: Option<HashMap<String, String>>,
}

/// Characters of a prefix besides letters and digits, as in a bucket's prefix.
const OF_PREFIXES: &str = "-_.=+@,";
/// Longest prefix, as of a bucket.
const PREFIX_BYTES_MAX: usize = 512;

impl EtcdUrl {
    /// Parses `etcd://HOST:PORT,…` or `etcd://HOST:PORT,…/PREFIX`, and the same with `etcds://`.
    /// The default port is 2379. Nothing in it is escaped.
    ///
    /// # Errors
    /// `Invalid` for anything else; the message names the fault.
    pub fn parse(text: &str) -> Result<EtcdUrl> {
        let wrong = |what: String| {
            Error::invalid(format!(
                "{text:?} is no location in etcd: {what}; write it as \
                 \"etcd://HOST:PORT,HOST:PORT/PREFIX\", or with \"etcds://\" for TLS"
            ))
        };
        let (is_tls, rest) = match (text.strip_prefix("etcd://"), text.strip_prefix("etcds://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(wrong("it does not begin with \"etcd://\"".to_owned())),
        };
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let endpoints: std::result::Result<Vec<_>, _> =
            hosts.split(',').map(Endpoint::parse).collect();
        let endpoints = endpoints.map_err(wrong)?;
        let prefix = prefix.strip_suffix('/').filter(|it| !it.is_empty()).unwrap_or(prefix);
        check_prefix(prefix).map_err(wrong)?;
        Ok(EtcdUrl { is_tls, endpoints, prefix: prefix.to_owned(), variables: None })
    }

    /// Reads settings from `variables` instead of the environment of the process.
    #[must_use]
    pub fn with_variables<'a>(
        self,
        variables: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> EtcdUrl {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        EtcdUrl { variables: Some(variables.into_iter().map(owned).collect()), ..self }
    }

    /// Returns this location and those that contain it, up to the cluster. Each has the part of
    /// this one's prefix that follows there; this one has none.
    pub fn ancestors(&self) -> Vec<(EtcdUrl, Option<String>)> {
        let parts: Vec<&str> = self.prefix.split('/').filter(|part| !part.is_empty()).collect();
        let above = |length: usize| {
            let url = EtcdUrl { prefix: parts[..length].join("/"), ..self.clone() };
            (url, parts.get(length).map(|part| (*part).to_owned()))
        };
        (0..=parts.len()).rev().map(above).collect()
    }

    fn open(&self) -> Result<Arc<Cluster>> {
        let found = match &self.variables {
            Some(given) => Settings::find(&|name| given.get(name).cloned(), self.is_tls),
            None => Settings::find(&|name| std::env::var(name).ok(), self.is_tls),
        };
        let settings = found.map_err(|error| error.context(format!("cannot open {self}")))?;
        let addresses = self.endpoints.iter().map(Endpoint::address).collect();
        Ok(Arc::new(Cluster::new(self.to_string(), addresses, &self.prefix, settings)))
    }

    /// Checks that the cluster responds, has a majority, and permits reads and writes below the
    /// prefix. Writes nothing.
    ///
    /// # Errors
    /// `Invalid` if the endpoints are not etcd, or of different clusters, or if the credentials are
    /// refused; `Retry` if no majority of the cluster can be reached.
    pub fn check(&self) -> Result<()> {
        self.open()?.wait(|cluster| async move { cluster.check().await })
    }

    /// Opens it as a medium of records. Sends no request yet.
    ///
    /// # Errors
    /// `Invalid` if the settings are not complete.
    pub fn open_medium(&self) -> Result<EtcdMedium> {
        self.open().map(EtcdMedium::new)
    }

    /// Opens it as storage of small files. Sends no request yet.
    ///
    /// # Errors
    /// As [`EtcdUrl::open_medium`].
    pub fn open_files(&self) -> Result<EtcdFiles> {
        self.open().map(EtcdFiles::new)
    }
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

impl PartialEq for EtcdUrl {
    fn eq(&self, other: &EtcdUrl) -> bool {
        let has_all = |one: &EtcdUrl, other: &EtcdUrl| {
            one.endpoints.iter().all(|endpoint| other.endpoints.contains(endpoint))
        };
        (self.is_tls, &self.prefix, &self.variables)
            == (other.is_tls, &other.prefix, &other.variables)
            && has_all(self, other)
            && has_all(other, self)
    }
}

impl Eq for EtcdUrl {}

impl fmt::Display for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_tls { "etcds://" } else { "etcd://" })?;
        for (number, endpoint) in self.endpoints.iter().enumerate() {
            write!(f, "{}{endpoint}", if number == 0 { "" } else { "," })?;
        }
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

impl fmt::Debug for EtcdUrl {
    // Shows no variables: a password is among them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::ErrorKind;

    fn url(text: &str) -> EtcdUrl {
        EtcdUrl::parse(text).unwrap()
    }

    #[test]
    fn a_place_is_told_as_it_was_written() {
        for text in [
            "etcd://node1",
            "etcd://node1:2379/ckpt",
            "etcd://node1,node_2.example.org:4001,[::1]:2379,[fe80::1],10.0.0.1/a/b=2/c_D,+@.x",
            "etcds://node1,node2/ckpt",
        ] {
            assert_eq!(url(text).to_string(), text);
        }
        assert_eq!(url("etcd://node1/ckpt/").to_string(), "etcd://node1/ckpt");
    }

    #[test]
    fn places_are_equal_whatever_the_order_of_their_members() {
        assert_eq!(url("etcd://a,b:2379/x"), url("etcd://B,A:2379/x"));
        for other in
            ["etcd://a/x", "etcd://a,b:1/x", "etcd://a,b,c/x", "etcds://a,b/x", "etcd://a,b"]
        {
            assert_ne!(url("etcd://a,b/x"), url(other), "{other}");
        }
    }

    #[test]
    fn a_place_is_in_others() {
        let told: Vec<String> = url("etcd://a,b/x/y")
            .ancestors()
            .iter()
            .map(|(url, below)| format!("{url} {}", below.as_deref().unwrap_or("-")))
            .collect();
        assert_eq!(told, ["etcd://a,b/x/y -", "etcd://a,b/x y", "etcd://a,b x"]);
    }

    #[test]
    fn what_is_no_place_is_told_with_what_is_wrong() {
        for (text, told) in [
            ("", "does not begin"),
            ("etcd:node1", "does not begin"),
            ("s3://abc", "does not begin"),
            ("etcd://", "names no host"),
            ("etcd:///ckpt", "names no host"),
            ("etcd://a,,b/x", "names no host"),
            ("etcd://a:/x", "\"a:\" has no port"),
            ("etcd://a:0/x", "no port"),
            ("etcd://a:+1/x", "no port"),
            ("etcd://a:65536/x", "no port"),
            ("etcd://::1/x", "in brackets"),
            ("etcd://[::g]/x", "no IPv6 address"),
            ("etcd://me:secret@a/x", "set ETCDCTL_USER"),
            ("etcd://me@a/x", "set ETCDCTL_USER"),
            ("etcd://a b/x", "no ' '"),
            ("etcd://a//b", "the part \"\""),
            ("etcd://a//", "the part \"\""),
            ("etcd://a/../b", "the part \"..\""),
            ("etcd://a/b%20c", "'%'"),
            ("etcd://a/ü", "'ü'"),
        ] {
            let error = EtcdUrl::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(
                error.message().contains(told) && error.message().contains("HOST:PORT/PREFIX"),
                "{error}"
            );
        }
        assert!(EtcdUrl::parse(&format!("etcd://a/{}", "x".repeat(513))).is_err());
    }

    #[test]
    fn a_place_shows_no_password() {
        let url = url("etcd://a/x").with_variables([("ETCDCTL_USER", "me:hush")]);
        let medium = url.open_medium().unwrap();
        assert!(!format!("{url:?} {medium:?} {url}").contains("hush"));
        let error = url.with_variables([("ETCDCTL_USER", "me")]).open_medium().unwrap_err();
        assert!(error.message().starts_with("cannot open etcd://a/x: "), "{error}");
    }
}
