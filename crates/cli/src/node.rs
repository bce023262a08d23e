//! `outlive node`: serves locations of this machine.

use crate::args::{NodeCommand, NodeServeArgs};
use crate::output::{Answer, shown};
use crate::{print, print_json, stdout_error};
use outlive_backend::Location;
use outlive_node_server::{NodeOptions, NodeServer, NodeTls, check_exposure};
use outlive_types::{Error, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// `outlive node`.
pub fn node(command: NodeCommand, json: bool) -> Result<Answer> {
    match command {
        NodeCommand::Serve(args) => serve(&args, json),
    }
}

/// `outlive node serve`. Returns once Ctrl-C or SIGTERM ends it.
fn serve(args: &NodeServeArgs, json: bool) -> Result<Answer> {
    let options = options(args)?;
    if !args.insecure {
        check_exposure(&options)?;
    }
    let scheme = if options.tls.is_some() { "nodes" } else { "node" };
    let server = NodeServer::start(options)?;
    server.stop_at_signals()?;
    let (url, data) = (format!("{scheme}://{}", server.address()), server.data());
    let metrics = server.metrics_url();
    // At once: the address must be known while the node runs.
    let printed = match json {
        true => print_json(&json!({ "url": url, "data": data, "metrics": metrics })),
        false => {
            let metrics =
                metrics.map_or_else(String::new, |at| format!("Its metrics are at {at}.\n"));
            print(&format!("The node {url} serves {} until Ctrl-C.\n{metrics}", shown(&data)))
        }
    };
    printed.map_err(|error| stdout_error(&error))?;
    server.wait()?;
    Ok(Answer::new(String::new(), Value::Null))
}

fn options(args: &NodeServeArgs) -> Result<NodeOptions> {
    let data: Result<Vec<Location>> =
        args.data.iter().map(|text| Ok(outlive_registry::parse(text)?.absolute())).collect();
    let data = data?;
    if let Some(remote) = data.iter().find(|location| location.is_remote()) {
        return Err(Error::invalid(format!(
            "{remote} is not on this machine: a node serves directories and devices of its own machine"
        )));
    }
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => Some(NodeTls {
            certificate: read(certificate)?,
            key: read(key)?,
            clients: args.client_ca.as_deref().map(read).transpose()?,
        }),
        _ => None,
    };
    Ok(NodeOptions {
        staging_bytes: usize::try_from(args.staging).unwrap_or(usize::MAX),
        session: args.session,
        tokens: args.token_file.as_deref().map(tokens).transpose()?.unwrap_or_default(),
        tls,
        metrics_port: args.metrics_port,
        ..NodeOptions::new(data, args.listen)
    })
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
