//! Members of a cluster, as listed in a location.

use std::fmt;

/// Default port of etcd for clients.
const PORT: u16 = 2379;

/// `HOST` or `HOST:PORT`.
#[derive(Clone)]
pub(crate) struct Endpoint {
    host: String,
    port: Option<u16>,
}

impl Endpoint {
    /// Parses an endpoint; the error says what is wrong.
    pub(crate) fn parse(text: &str) -> Result<Endpoint, String> {
        if text.contains('@') {
            return Err("a user is no part of it: set ETCDCTL_USER".to_owned());
        }
        // Brackets enclose the colons of an IPv6 address.
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (text, None),
        };
        let number = port.and_then(|port| port.parse().ok()).filter(|number: &u16| *number > 0);
        if port.is_some_and(|port| number.is_none_or(|number| number.to_string() != port)) {
            return Err(format!("{text:?} has no port from 1 to 65535 behind its colon"));
        }
        check_host(host)?;
        Ok(Endpoint { host: host.to_owned(), port: number })
    }

    /// Returns host and port for a URL.
    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.host, self.port())
    }

    fn port(&self) -> u16 {
        self.port.unwrap_or(PORT)
    }
}

fn check_host(host: &str) -> Result<(), String> {
    if host.is_empty() {
        return Err("it names no host".to_owned());
    }
    if let Some(address) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return match address.parse::<std::net::Ipv6Addr>() {
            Ok(_) => Ok(()),
            Err(_) => Err(format!("{address:?} is no IPv6 address")),
        };
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    match host.chars().find(|c| !fits(*c)) {
        Some(':') => {
            Err(format!("{host:?} has more than one colon: put an IPv6 address in brackets"))
        }
        Some(c) => Err(format!("a host's name has no {c:?}")),
        None => Ok(()),
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}
