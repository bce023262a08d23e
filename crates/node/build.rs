//! Writes the stubs of the service. Its messages are in `src/protocol.rs`, so no compiler of
//! protocol buffers is needed.

use tonic_build::manual::{Builder, Method, Service};

fn method(
    name: &str,
    route: &str,
    takes: &str,
    returns: &str,
) -> tonic_build::manual::MethodBuilder {
    Method::builder()
        .name(name)
        .route_name(route)
        .input_type(format!("crate::protocol::{takes}"))
        .output_type(format!("crate::protocol::{returns}"))
        .codec_path("tonic_prost::ProstCodec")
}

fn main() {
    let service = Service::builder()
        .name("Node")
        .package("outlive.node.v1")
        .method(method("hello", "Hello", "HelloRequest", "HelloReply").build())
        .method(method("renew", "Renew", "RenewRequest", "RenewReply").build())
        .method(method("begin", "Begin", "BeginRequest", "Done").build())
        .method(method("write", "Write", "WritePart", "Done").client_streaming().build())
        .method(method("finish", "Finish", "FinishRequest", "Done").build())
        .method(method("abandon", "Abandon", "AbandonRequest", "Done").build())
        .method(method("read", "Read", "ReadRequest", "ReadPart").server_streaming().build())
        .method(method("list", "List", "ListRequest", "ListPart").server_streaming().build())
        .method(method("shard", "Shard", "ShardRequest", "ShardReply").build())
        .method(method("record", "Record", "RecordRequest", "RecordReply").build())
        .method(method("lock", "Lock", "LockRequest", "LockReply").build())
        .method(method("file", "File", "FileRequest", "FileReply").build())
        .build();
    Builder::new().compile(&[service]);
}
