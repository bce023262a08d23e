//! Access to nodes: token, certificates and the number of connections, from variables.

use crate::client::lanes::CONNECTIONS;
use outlive_types::{Error, Result};
use std::fs;
use std::path::Path;
use std::time::Duration;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// Longest wait for a connection.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(3);

/// Connections for shards that a process may have to a node.
const CONNECTIONS_MAX: usize = 16;

/// Looks up an environment variable.
pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Access to a node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Settings {
    pub token: Option<String>,
    /// None without TLS.
    pub tls: Option<Tls>,
    /// Connections for shards.
    pub connections: usize,
}

/// Certificates, as in PEM files.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tls {
    /// Certificates that sign the nodes'; those of the system if there are none.
    pub roots: Option<Vec<u8>>,
    /// Our own certificate and its key, for a node that requires one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Settings {
    /// Finds the settings; certificates only if needed.
    ///
    /// # Errors
    /// `Invalid` if one of two variables that belong together is missing, or if a file cannot be
    /// read.
    pub(crate) fn find(variables: Variables, is_tls: bool) -> Result<Settings> {
        let tls = if is_tls { Some(tls(variables)?) } else { None };
        Ok(Settings { token: token(variables)?, tls, connections: connections(variables)? })
    }
}

/// Returns a variable; an empty one counts as not set.
fn variable(variables: Variables, name: &str) -> Option<String> {
    variables(name).filter(|value| !value.is_empty())
}

fn file(variables: Variables, name: &str) -> Result<Option<Vec<u8>>> {
    let Some(path) = variable(variables, name) else { return Ok(None) };
    let named = format!("reading {name}");
    let read = fs::read(&path);
    read.map(Some).map_err(|error| Error::io_named(&named, Path::new(&path), &error))
}

fn token(variables: Variables) -> Result<Option<String>> {
    let (name, text) = match variable(variables, "OUTLIVE_NODE_TOKEN") {
        Some(token) => ("OUTLIVE_NODE_TOKEN", token),
        None => match file(variables, "OUTLIVE_NODE_TOKEN_FILE")? {
            Some(bytes) => (
                "the file that OUTLIVE_NODE_TOKEN_FILE names",
                String::from_utf8_lossy(&bytes).into(),
            ),
            None => return Ok(None),
        },
    };
    let token = text.trim();
    match !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(Some(token.to_owned())),
        false => Err(Error::invalid(format!(
            "{name} has no token: a token is one word of plain letters, digits and signs"
        ))),
    }
}

fn connections(variables: Variables) -> Result<usize> {
    let name = "OUTLIVE_NODE_CONNECTIONS";
    let Some(text) = variable(variables, name) else { return Ok(CONNECTIONS) };
    let number = text.trim().parse().ok().filter(|number| (1..=CONNECTIONS_MAX).contains(number));
    number.ok_or_else(|| {
        Error::invalid(format!(
            "{name} is {text:?}: set a number from 1 to {CONNECTIONS_MAX}, or none"
        ))
    })
}

fn tls(variables: Variables) -> Result<Tls> {
    let file = |name| file(variables, name);
    let identity = match (file("OUTLIVE_NODE_CERT")?, file("OUTLIVE_NODE_KEY")?) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => {
            return Err(Error::invalid(
                "only one of OUTLIVE_NODE_CERT and OUTLIVE_NODE_KEY is set: set both, or neither",
            ));
        }
    };
    Ok(Tls { roots: file("OUTLIVE_NODE_CA")?, identity })
}

impl Tls {
    /// Returns the settings of gRPC's library.
    pub(crate) fn config(&self) -> ClientTlsConfig {
        // A node that is stopped takes a connection all the same, and says nothing.
        let config = ClientTlsConfig::new().timeout(CONNECT_MAX);
        let config = match &self.roots {
            Some(roots) => config.ca_certificate(Certificate::from_pem(roots)),
            None => config.with_native_roots(),
        };
        match &self.identity {
            Some((certificate, key)) => config.identity(Identity::from_pem(certificate, key)),
            None => config,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)], is_tls: bool) -> Result<Settings> {
        let look = |name: &str| {
            let given = variables.iter().find(|(given, _)| *given == name);
            given.map(|(_, value)| (*value).to_owned())
        };
        Settings::find(&look, is_tls)
    }

    #[test]
    fn settings_that_cannot_be_used_are_refused() {
        for (variables, told) in [
            (&[("OUTLIVE_NODE_TOKEN", "two words")][..], "one word"),
            (&[("OUTLIVE_NODE_TOKEN_FILE", "/nowhere/x")], "OUTLIVE_NODE_TOKEN_FILE"),
            (&[("OUTLIVE_NODE_CERT", "/dev/null")], "only one of"),
            (&[("OUTLIVE_NODE_CA", "/nowhere/ca.pem")], "/nowhere/ca.pem"),
            (&[("OUTLIVE_NODE_CONNECTIONS", "0")], "from 1 to 16"),
            (&[("OUTLIVE_NODE_CONNECTIONS", "17")], "from 1 to 16"),
            (&[("OUTLIVE_NODE_CONNECTIONS", "many")], "from 1 to 16"),
        ] {
            let Err(error) = found(variables, true) else { panic!("{variables:?} was taken") };
            assert!(error.message().contains(told), "{error}");
        }
        assert!(found(&[("OUTLIVE_NODE_CA", "/nowhere/ca.pem")], false).is_ok());
        let token = found(&[("OUTLIVE_NODE_TOKEN", " word\n")], false).unwrap().token;
        assert_eq!(token.as_deref(), Some("word"));
        for (text, expected) in [("", 2), ("1", 1), (" 8 ", 8)] {
            let settings = found(&[("OUTLIVE_NODE_CONNECTIONS", text)], false).unwrap();
            assert_eq!(settings.connections, expected, "{text:?}");
        }
    }
}
