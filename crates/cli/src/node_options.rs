//! The options of `outlive node` as those of a node.

use crate::args::NodeHowArgs;
use outlive_backend::Location;
use outlive_node_server::{NodeOptions, NodeTls, check_exposure};
use outlive_types::{Error, Result};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// Returns the options of a node on these locations.
///
/// # Errors
/// `Invalid` for files that cannot be read, and for a node that would let in other machines.
pub fn node_options(
    data: Vec<Location>,
    listen: SocketAddr,
    args: &NodeHowArgs,
) -> Result<NodeOptions> {
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => Some(NodeTls {
            certificate: read(certificate)?,
            key: read(key)?,
            clients: args.client_ca.as_deref().map(read).transpose()?,
        }),
        _ => None,
    };
    let options = NodeOptions {
        staging_bytes: usize::try_from(args.staging).unwrap_or(usize::MAX),
        session: args.session,
        tokens: args.token_file.as_deref().map(tokens).transpose()?.unwrap_or_default(),
        tls,
        metrics_port: args.metrics_port,
        ..NodeOptions::new(data, listen)
    };
    if !args.insecure {
        check_exposure(&options)?;
    }
    Ok(options)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| Error::io_named("reading", path, &error))
}

/// Reads a file of tokens, one a line.
fn tokens(path: &Path) -> Result<Vec<String>> {
    let bytes = read(path)?;
    let text = String::from_utf8_lossy(&bytes);
    let tokens: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    let is_token = |token: &String| token.bytes().all(|byte| byte.is_ascii_graphic());
    match !tokens.is_empty() && tokens.iter().all(is_token) {
        true => Ok(tokens),
        false => Err(Error::invalid(format!(
            "{} has no tokens: write one a line, each a word of plain letters, digits and signs",
            path.display()
        ))),
    }
}
