//! `outlive node`: serves locations of this machine.

use crate::args::{NodeCommand, NodeServeArgs};
use crate::node_local;
use crate::node_options::node_options;
use crate::output::{Answer, Reporter, shown};
use crate::{print, print_json, stdout_error};
use outlive_backend::Location;
use outlive_node_server::NodeServer;
use outlive_types::Result;
use serde_json::{Value, json};
use std::sync::Arc;

/// `outlive node`.
pub fn node(command: NodeCommand, json: bool, reporter: &Arc<Reporter>) -> Result<Answer> {
    match command {
        NodeCommand::Serve(args) => serve(&args, json),
        NodeCommand::Local(args) => node_local::local(args, json, reporter),
    }
}

/// `outlive node serve`. Returns once Ctrl-C or SIGTERM ends it.
fn serve(args: &NodeServeArgs, json: bool) -> Result<Answer> {
    let data: Result<Vec<Location>> =
        args.data.iter().map(|text| Ok(outlive_registry::parse(text)?.absolute())).collect();
    let data = data?;
    let options = node_options(data, args.listen, &args.how)?;
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
