//! The settings of a node.

use crate::log::TakeLine;
use outlive_backend::Location;
use outlive_node::protocol::{SESSION_S, UNIT_BYTES};
use outlive_types::{Error, Result};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Settings of a node.
pub struct NodeOptions {
    /// Locations on the node's machine that keep its data.
    pub data: Vec<Location>,
    /// Address that clients connect to; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Bytes of the staging memory: what is received and not written yet, or read and not sent yet.
    pub staging_bytes: usize,
    /// Time after which a session ends that its client does not renew.
    pub session: Duration,
    /// Tokens of which a client must have one; none are needed if there are none.
    pub tokens: Vec<String>,
    /// Certificates, if clients connect by TLS.
    pub tls: Option<NodeTls>,
    /// Port on loopback that serves metrics.
    pub metrics_port: Option<u16>,
    /// Takes the lines of its log.
    pub log: Option<TakeLine>,
}

/// Certificates of a node, as in PEM files.
pub struct NodeTls {
    /// The node's certificate.
    pub certificate: Vec<u8>,
    /// Its key.
    pub key: Vec<u8>,
    /// Certificates that sign those of clients, if clients must have one.
    pub clients: Option<Vec<u8>>,
}

impl NodeOptions {
    /// Bytes of staging if nothing is said.
    pub const STAGING_BYTES: usize = 64 << 20;
    /// Least bytes of staging: half of it is for requests, of which a session may hold half, and
    /// needs a unit.
    pub const STAGING_BYTES_MIN: usize = 4 * UNIT_BYTES;
    /// Shortest life of a session.
    pub const SESSION_MIN: Duration = Duration::from_millis(100);

    /// Returns the settings of a node that has only these.
    pub fn new(data: Vec<Location>, listen: SocketAddr) -> NodeOptions {
        NodeOptions {
            data,
            listen,
            staging_bytes: NodeOptions::STAGING_BYTES,
            session: Duration::from_secs(SESSION_S.into()),
            tokens: Vec::new(),
            tls: None,
            metrics_port: None,
            log: Some(Arc::new(to_stderr)),
        }
    }
}

/// Writes a line of the log to standard error. Without a reader there is no log; the node goes on.
fn to_stderr(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Refuses settings that would let strangers in.
///
/// # Errors
/// `Invalid` if other machines could connect without TLS, or without a token or certificate.
pub fn check_exposure(options: &NodeOptions) -> Result<()> {
    if options.listen.ip().is_loopback() {
        return Ok(());
    }
    let at = options.listen;
    let Some(tls) = &options.tls else {
        return Err(Error::invalid(format!(
            "other machines could read along what is sent to {at}: give the node a certificate with \
             --tls-cert and --tls-key, or say --insecure"
        )));
    };
    match options.tokens.is_empty() && tls.clients.is_none() {
        true => Err(Error::invalid(format!(
            "any client could connect to {at}: give the node --token-file or --client-ca, or say \
             --insecure"
        ))),
        false => Ok(()),
    }
}
