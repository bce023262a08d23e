//! A location in an etcd cluster, named by a URL.

use crate::cluster::Cluster;
use crate::endpoint::Endpoint;
use crate::files::EtcdFiles;
use crate::medium::EtcdMedium;
use crate::settings::Settings;
use outlive_backend::{
    BackendLocation, Location, RetryMedium, RetryPolicy, Scheme, SmallFiles, Target, TargetOptions,
    prefix,
};
use outlive_log::LogMedium;
use outlive_types::{Error, Result};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// The scheme of clusters.
pub const ETCD: Scheme = Scheme {
    name: "etcd",
    help: "an etcd cluster, for a log only, as \"etcd://HOST,HOST,HOST/PREFIX\"",
    parse: |rest| EtcdUrl::parse(&format!("etcd:{rest}")).map(Location::new),
};

/// The scheme of clusters with TLS.
pub const ETCDS: Scheme = Scheme {
    name: "etcds",
    help: "the same with TLS, as \"etcds://HOST,HOST,HOST/PREFIX\"",
    parse: |rest| EtcdUrl::parse(&format!("etcds:{rest}")).map(Location::new),
};

/// A prefix of the keys of a cluster: `etcd://HOST:PORT,HOST:PORT,…/PREFIX`, or `etcds://` for TLS.
/// Credentials are not in the URL; they are read when it is opened.
#[derive(Clone)]
pub struct EtcdUrl {
    is_tls: bool,
    endpoints: Vec<Endpoint>,
    prefix: String,
    variables: Option<HashMap<String, String>>,
}

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
        let prefix = prefix::parse(prefix).map_err(wrong)?;
        Ok(EtcdUrl { is_tls, endpoints, prefix, variables: None })
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

    fn open(&self) -> Result<Arc<Cluster>> {
        let found = match &self.variables {
            Some(given) => Settings::find(&|name| given.get(name).cloned(), self.is_tls),
            None => Settings::find(&|name| std::env::var(name).ok(), self.is_tls),
        };
        let settings = found.map_err(|error| error.context(format!("cannot open {self}")))?;
        let addresses = self.endpoints.iter().map(Endpoint::address).collect();
        Ok(Arc::new(Cluster::new(self.to_string(), addresses, &self.prefix, settings)))
    }

    /// Opens it as a medium of records. Sends no request yet.
    ///
    /// # Errors
    /// `Invalid` if the settings are not complete.
    pub fn medium(&self) -> Result<EtcdMedium> {
        self.open().map(EtcdMedium::new)
    }

    /// Opens it as storage of small files. Sends no request yet.
    ///
    /// # Errors
    /// As [`EtcdUrl::medium`].
    pub fn files(&self) -> Result<EtcdFiles> {
        self.open().map(EtcdFiles::new)
    }
}

/// Attempts in all around a client, which repeats requests itself.
const ATTEMPTS: u32 = 2;

impl BackendLocation for EtcdUrl {
    fn identity(&self) -> String {
        let mut members: Vec<String> =
            self.endpoints.iter().map(|it| it.address().to_lowercase()).collect();
        members.sort_unstable();
        members.dedup();
        format!(
            "{}{}/{}",
            if self.is_tls { "etcds://" } else { "etcd://" },
            members.join(","),
            self.prefix
        )
    }

    fn child(&self, name: &str) -> Result<Location> {
        let prefix = prefix::child(&self.prefix, name)
            .map_err(|why| Error::invalid(format!("{self}/{name} is no location: {why}")))?;
        Ok(Location::new(EtcdUrl { prefix, ..self.clone() }))
    }

    /// Checks that the cluster responds, has a majority, and permits reads and writes below the
    /// prefix.
    fn check(&self) -> Result<()> {
        self.open()?.wait(|cluster| async move { cluster.check().await })
    }

    fn keeps_shards(&self) -> bool {
        false
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn advice(&self) -> &'static str {
        "see whether these are the right hosts, and the right prefix"
    }

    fn open_target(&self, _how: &TargetOptions) -> Result<Arc<dyn Target>> {
        Err(Location::new(self.clone()).keeps_no_shards())
    }

    fn open_medium(&self) -> Result<Arc<dyn LogMedium>> {
        let policy = RetryPolicy { attempts_max: ATTEMPTS, ..RetryPolicy::default() };
        Ok(Arc::new(RetryMedium::new(Arc::new(self.medium()?), policy)))
    }

    fn open_files(&self) -> Result<Arc<dyn SmallFiles>> {
        Ok(Arc::new(self.files()?))
    }
}

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
    fn a_location_is_shown_as_it_was_written() {
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
    fn locations_are_equal_in_any_order_of_their_members() {
        let identity = |text: &str| url(text).identity();
        assert_eq!(identity("etcd://a,b:2379/x"), identity("etcd://B,A:2379/x"));
        for other in
            ["etcd://a/x", "etcd://a,b:1/x", "etcd://a,b,c/x", "etcds://a,b/x", "etcd://a,b"]
        {
            assert_ne!(identity("etcd://a,b/x"), identity(other), "{other}");
        }
    }

    #[test]
    fn wrong_locations_are_refused_with_the_reason() {
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
    fn a_location_shows_no_password() {
        let url = url("etcd://a/x").with_variables([("ETCDCTL_USER", "me:hush")]);
        let medium = url.medium().unwrap();
        assert!(!format!("{url:?} {medium:?} {url}").contains("hush"));
        let error = url.with_variables([("ETCDCTL_USER", "me")]).medium().unwrap_err();
        assert!(error.message().starts_with("cannot open etcd://a/x: "), "{error}");
    }
}
