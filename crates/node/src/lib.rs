//! A storage node as a backend: shards, records and small files over gRPC. The crate `node-server`
//! is the other end.

mod client;
pub mod protocol;
mod status;
mod url;

pub use client::HeldLocks;
pub use status::{error_of, status_of};
pub use url::{NODE, NODES, NodeUrl, PORT_DEFAULT};

/// The stubs of the service.
#[expect(unused_qualifications, reason = "generated")]
pub mod stubs {
    tonic::include_proto!("outlive.node.v1.Node");
}
