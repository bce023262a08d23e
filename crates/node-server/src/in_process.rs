//! A node without a network, for fuzzing: requests are the bytes that a client would send.

use crate::data::Data;
use crate::options::NodeOptions;
use crate::service::Service;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use outlive_backend::Location;
use outlive_node::protocol::KIND_HEADER;
use outlive_node::stubs::node_server::NodeServer as Stubs;
use outlive_types::{Error, Result};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request};
use tonic::codegen::{Service as _, http};

/// A node that is called by functions.
pub struct InProcessNode {
    runtime: Arc<Runtime>,
    service: Arc<Service>,
}

/// A reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The status: 0 is success.
    pub code: i32,
    /// Kind of the error, if the node made the status.
    pub kind: Option<String>,
    /// Text of the error.
    pub text: String,
    /// The messages, each without its prefix.
    pub messages: Vec<Bytes>,
}

/// Returns a runtime for nodes.
///
/// # Errors
/// `Retry` if the system gives no threads.
pub fn runtime() -> Result<Arc<Runtime>> {
    let built = Builder::new_current_thread().enable_all().max_blocking_threads(4).build();
    built.map(Arc::new).map_err(|error| Error::no_thread("the requests of clients", &error))
}

impl InProcessNode {
    /// Opens a node on a location.
    ///
    /// # Errors
    /// Errors of the location.
    pub fn open(runtime: &Arc<Runtime>, data: Location) -> Result<InProcessNode> {
        let session = Duration::from_secs(120);
        let data = Data::open(vec![data], session)?;
        let service = Service::new(data, session, NodeOptions::STAGING_BYTES_MIN);
        Ok(InProcessNode { runtime: runtime.clone(), service: Arc::new(service) })
    }

    /// Calls a method, such as "Begin". `body` has messages, each behind five bytes of prefix.
    pub fn call(&self, method: &str, body: Vec<u8>) -> Reply {
        let request = Request::builder()
            .method(http::Method::POST)
            .uri(format!("http://node/outlive.node.v1.Node/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Body::new(Full::new(Bytes::from(body))));
        let mut stubs = Stubs::from_arc(self.service.clone());
        self.runtime.block_on(async move {
            let request = request.expect("the parts are valid");
            let response = stubs.call(request).await.expect("errors are statuses");
            let (head, body) = response.into_parts();
            let collected = body.collect().await;
            let (trailers, bytes) = match collected {
                Ok(collected) => (collected.trailers().cloned(), collected.to_bytes()),
                // A stream that ends with an error of its own.
                Err(status) => {
                    let (code, kind) = (status.code() as i32, kind_in(status.metadata().as_ref()));
                    let text = status.message().to_owned();
                    return Reply { code, kind, text, messages: Vec::new() };
                }
            };
            let says = trailers.as_ref().filter(|it| it.contains_key("grpc-status"));
            let says = says.unwrap_or(&head.headers);
            let code = says.get("grpc-status").and_then(|code| code.to_str().ok()?.parse().ok());
            let text = says.get("grpc-message").and_then(|text| text.to_str().ok());
            let text = text.unwrap_or_default().to_owned();
            let (code, kind) = (code.unwrap_or(-1), kind_in(says));
            Reply { code, kind, text, messages: messages_of(bytes) }
        })
    }

    /// Ends silent sessions, and forgets what was read long ago.
    pub fn tidy(&self) {
        self.runtime.block_on(async { self.service.tidy() });
    }

    /// Returns the bytes of staging memory in use, and the number of unfinished shards.
    pub fn in_use(&self) -> (usize, usize) {
        (self.service.admission.taken().0, self.service.writers.count())
    }
}

fn kind_in(headers: &HeaderMap) -> Option<String> {
    headers.get(KIND_HEADER)?.to_str().ok().map(str::to_owned)
}

/// Splits a body at the prefixes of its messages.
fn messages_of(mut bytes: Bytes) -> Vec<Bytes> {
    let mut messages = Vec::new();
    while let Some((head, _)) = bytes.split_first_chunk::<5>() {
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if bytes.len() < 5 + length {
            break;
        }
        drop(bytes.split_to(5));
        messages.push(bytes.split_to(length));
    }
    messages
}

/// Returns a message behind its prefix.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], message].concat()
}
