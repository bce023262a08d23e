//! A location on a storage node, named by a URL.

use crate::client::{Node, NodeFiles, NodeMedium, NodeTarget, Settings};
use outlive_backend::{
    BackendLocation, Location, RetryMedium, RetryPolicy, RetryTarget, Scheme, SmallFiles, Target,
    TargetOptions, prefix,
};
use outlive_log::LogMedium;
use outlive_types::{Error, Result};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// The port of a URL that names none.
pub const PORT_DEFAULT: u16 = 7410;

/// The scheme of nodes.
pub const NODE: Scheme = Scheme {
    name: "node",
    help: "a storage node, as \"node://HOST:PORT/PREFIX\"",
    parse: |rest| NodeUrl::parse(&format!("node:{rest}")).map(Location::new),
};

/// The scheme of nodes with TLS.
pub const NODES: Scheme = Scheme {
    name: "nodes",
    help: "the same with TLS, as \"nodes://HOST:PORT/PREFIX\"",
    parse: |rest| NodeUrl::parse(&format!("nodes:{rest}")).map(Location::new),
};

/// A location on a node: `node://HOST:PORT/PREFIX`, or `nodes://` for TLS. Tokens and certificates
/// are not in the URL; they are read when it is opened.
#[derive(Clone)]
pub struct NodeUrl {
    is_tls: bool,
    /// The host as written, in brackets if it is an IPv6 address.
    host: String,
    port: Option<u16>,
    prefix: String,
    variables: Option<HashMap<String, String>>,
}

impl NodeUrl {
    /// Parses `node://HOST`, `node://HOST:PORT/PREFIX`, and the same with `nodes://`. Nothing in it
    /// is escaped.
    ///
    /// # Errors
    /// `Invalid` for anything else; the message names the fault.
    pub fn parse(text: &str) -> Result<NodeUrl> {
        let wrong = |what: String| {
            Error::invalid(format!(
                "{text:?} is no location on a storage node: {what}; write it as \
                 \"node://HOST:PORT/PREFIX\", or with \"nodes://\" for TLS"
            ))
        };
        let (is_tls, rest) = match (text.strip_prefix("node://"), text.strip_prefix("nodes://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(wrong("it does not begin with \"node://\"".to_owned())),
        };
        let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = split_port(authority).map_err(wrong)?;
        let prefix = prefix::parse(prefix).map_err(wrong)?;
        Ok(NodeUrl { is_tls, host: host.to_owned(), port, prefix, variables: None })
    }

    /// Reads settings from `variables` instead of the environment of the process.
    #[must_use]
    pub fn with_variables<'a>(
        self,
        variables: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> NodeUrl {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        NodeUrl { variables: Some(variables.into_iter().map(owned).collect()), ..self }
    }

    fn open(&self) -> Result<Arc<Node>> {
        let found = match &self.variables {
            Some(given) => Settings::find(&|name| given.get(name).cloned(), self.is_tls),
            None => Settings::find(&|name| std::env::var(name).ok(), self.is_tls),
        };
        let settings = found.map_err(|error| error.context(format!("cannot open {self}")))?;
        let address = format!("{}:{}", self.host, self.port.unwrap_or(PORT_DEFAULT));
        Ok(Arc::new(Node::new(self.to_string(), address, self.prefix.clone(), settings)))
    }
}

/// Attempts in all around a client, which repeats requests itself.
const ATTEMPTS: u32 = 2;

impl BackendLocation for NodeUrl {
    fn identity(&self) -> String {
        let scheme = if self.is_tls { "nodes" } else { "node" };
        let port = self.port.unwrap_or(PORT_DEFAULT);
        let tail = if self.prefix.is_empty() { String::new() } else { format!("/{}", self.prefix) };
        format!("{scheme}://{}:{port}{tail}", self.host.to_lowercase())
    }

    /// Asks both nodes for their numbers, if only the names of the hosts differ.
    fn is_same(&self, other: &Location) -> bool {
        if self.identity() == other.identity() {
            return true;
        }
        let Ok(other) = NodeUrl::parse(&other.identity()) else { return false };
        let other = NodeUrl { variables: self.variables.clone(), ..other };
        let number = |url: &NodeUrl| url.open().and_then(Node::number).ok();
        self.prefix == other.prefix && number(self).is_some_and(|it| Some(it) == number(&other))
    }

    fn child(&self, name: &str) -> Result<Location> {
        let prefix = prefix::child(&self.prefix, name)
            .map_err(|why| Error::invalid(format!("{self}/{name} is no location: {why}")))?;
        Ok(Location::new(NodeUrl { prefix, ..self.clone() }))
    }

    fn around(&self) -> Vec<(Location, Option<String>)> {
        let at = |(prefix, below)| (Location::new(NodeUrl { prefix, ..self.clone() }), below);
        prefix::around(&self.prefix).into_iter().map(at).collect()
    }

    fn check(&self) -> Result<()> {
        self.open()?.check()
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn advice(&self) -> &'static str {
        "see whether this is the right host and port, and whether `outlive node serve` runs there"
    }

    fn open_target(&self, _how: &TargetOptions) -> Result<Arc<dyn Target>> {
        let policy = RetryPolicy { attempts_max: ATTEMPTS, ..RetryPolicy::default() };
        Ok(Arc::new(RetryTarget::new(Arc::new(NodeTarget::new(self.open()?)), policy)))
    }

    fn open_medium(&self) -> Result<Arc<dyn LogMedium>> {
        let policy = RetryPolicy { attempts_max: ATTEMPTS, ..RetryPolicy::default() };
        Ok(Arc::new(RetryMedium::new(Arc::new(NodeMedium::new(self.open()?)), policy)))
    }

    fn open_files(&self) -> Result<Arc<dyn SmallFiles>> {
        Ok(Arc::new(NodeFiles::new(self.open()?)))
    }
}

/// Splits an authority into a host and a port.
fn split_port(authority: &str) -> std::result::Result<(&str, Option<u16>), String> {
    if authority.contains('@') {
        return Err("it names a user; tokens come from OUTLIVE_NODE_TOKEN_FILE".to_owned());
    }
    let is_bare_address = |text: &str| !text.starts_with('[') && text.matches(':').count() > 1;
    if is_bare_address(authority) {
        return Err(format!("{authority:?} is an IPv6 address, which stands in brackets"));
    }
    let after_host = match authority.strip_prefix('[') {
        Some(rest) => {
            let end = rest.find(']').ok_or_else(|| "a bracket is not closed".to_owned())?;
            let address = &rest[..end];
            address
                .parse::<std::net::Ipv6Addr>()
                .map_err(|_| format!("{address:?} is no IPv6 address"))?;
            end + 2
        }
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, port) = authority.split_at(after_host);
    if host.is_empty() {
        return Err("it names no host".to_owned());
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if !host.starts_with('[') && !host.chars().all(fits) {
        return Err(format!("{host:?} is no name of a host"));
    }
    if port.is_empty() {
        return Ok((host, None));
    }
    let digits = port.strip_prefix(':').filter(|it| it.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|digits| digits.parse().ok()).filter(|port| *port > 0) {
        Some(port) => Ok((host, Some(port))),
        None => Err(format!("{authority:?} has no port from 1 to 65535 behind the colon")),
    }
}

impl fmt::Display for NodeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.is_tls { "nodes" } else { "node" }, self.host)?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

impl fmt::Debug for NodeUrl {
    // Shows no variables: a token is among them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::ErrorKind;

    #[test]
    fn a_location_is_shown_as_it_was_written() {
        for text in
            ["node://a", "node://a:7410/ckpt", "nodes://n_1.example.org/a/b=2", "node://[::1]:99/x"]
        {
            assert_eq!(NodeUrl::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(NodeUrl::parse("node://a/x/").unwrap().to_string(), "node://a/x");
    }

    #[test]
    fn locations_are_equal_with_the_port_that_none_stands_for() {
        let identity = |text: &str| NodeUrl::parse(text).unwrap().identity();
        assert_eq!(identity("node://a/x"), identity("node://A:7410/x"));
        for other in ["node://a", "node://b/x", "nodes://a/x", "node://a:1/x"] {
            assert_ne!(identity("node://a/x"), identity(other), "{other}");
        }
    }

    #[test]
    fn wrong_locations_are_refused_with_the_reason() {
        for (text, told) in [
            ("node:a", "does not begin"),
            ("node://", "names no host"),
            ("node:///x", "names no host"),
            ("node://me@a/x", "OUTLIVE_NODE_TOKEN_FILE"),
            ("node://a:/x", "no port"),
            ("node://a:0", "no port"),
            ("node://a:+1", "no port"),
            ("node://a:65536", "no port"),
            ("node://::1/x", "in brackets"),
            ("node://[::g]/x", "no IPv6 address"),
            ("node://[::1/x", "not closed"),
            ("node://a b/x", "no name of a host"),
            ("node://a//b", "the part \"\""),
            ("node://a/../b", "the part \"..\""),
            ("node://a/b%20c", "'%'"),
        ] {
            let error = NodeUrl::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let said = error.message();
            assert!(said.contains(told) && said.contains("HOST:PORT/PREFIX"), "{text}: {error}");
        }
    }
}
