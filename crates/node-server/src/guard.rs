//! Stands before the methods of the protocol: asks for a token, and notes what is refused.

use crate::refusals::Refused;
use crate::service::Service;
use outlive_node::error_of;
use outlive_node::protocol::TOKEN_HEADER;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::server::NamedService;

/// The methods of the protocol.
const CALLS: [&str; 12] = [
    "Hello", "Renew", "Begin", "Write", "Finish", "Abandon", "Read", "List", "Shard", "Record",
    "Lock", "File",
];

/// The client of a connection.
#[derive(Clone)]
pub(crate) struct Peer {
    address: SocketAddr,
    /// Whether a request of it was let in.
    is_let_in: Arc<AtomicBool>,
}

impl Peer {
    pub(crate) fn new(address: SocketAddr) -> Peer {
        Peer { address, is_let_in: Arc::default() }
    }

    pub(crate) fn is_let_in(&self) -> bool {
        self.is_let_in.load(Ordering::Relaxed)
    }
}

/// A node's methods, for the clients that it lets in.
#[derive(Clone)]
pub(crate) struct Guard<S> {
    pub inner: S,
    /// Tokens of which a client must have one; none are needed if there are none.
    pub tokens: Arc<Vec<String>>,
    pub service: Arc<Service>,
}

impl<S> Guard<S> {
    fn check_token(&self, headers: &HeaderMap) -> Result<(), Status> {
        let given = headers.get(TOKEN_HEADER).map(|value| value.as_bytes());
        let given = given.and_then(|value| value.strip_prefix(b"Bearer "));
        let is_known = |given: &[u8]| {
            // All of them, so that the time tells nothing.
            self.tokens.iter().fold(false, |known, token| is_equal(token.as_bytes(), given) | known)
        };
        match (self.tokens.is_empty(), given) {
            (true, _) => Ok(()),
            (false, None) => Err(Status::unauthenticated("it needs a token")),
            (false, Some(given)) if is_known(given) => Ok(()),
            (false, Some(_)) => Err(Status::unauthenticated("it does not know the token")),
        }
    }
}

/// Compares in a time that depends only on the lengths.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

impl<S: NamedService> NamedService for Guard<S> {
    const NAME: &'static str = S::NAME;
}

type Answered = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl<S> tonic::codegen::Service<Request<Body>> for Guard<S>
where
    S: tonic::codegen::Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answered;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Answered {
        self.service.requests.fetch_add(1, Ordering::Relaxed);
        let client = request.extensions().get::<Peer>().cloned();
        let peer = client.as_ref().map(|client| client.address);
        let call = call_of(request.uri().path());
        let service = self.service.clone();
        if let Err(status) = self.check_token(request.headers()) {
            service.refusals.note(Refused { kind: "Token", call }, status.message(), peer);
            return Box::pin(std::future::ready(Ok(status.into_http())));
        }
        if let Some(client) = client {
            client.is_let_in.store(true, Ordering::Relaxed);
        }
        let answered = self.inner.call(request);
        Box::pin(async move {
            let response = answered.await?;
            if let Some(status) = Status::from_header_map(response.headers())
                && status.code() != tonic::Code::Ok
            {
                // A status without an error of ours is from the library that reads messages.
                let kind = error_of(&status).map_or("Message", |error| error.kind().name());
                service.refusals.note(Refused { kind, call }, status.message(), peer);
            }
            Ok(response)
        })
    }
}

fn call_of(path: &str) -> &'static str {
    let last = path.rsplit('/').next();
    CALLS.into_iter().find(|call| Some(*call) == last).unwrap_or("other")
}
