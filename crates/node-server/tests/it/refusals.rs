//! The log of a node has its refusals, and clients without a word are not kept.

use crate::access::{client, run, session, tls};
use crate::certificates::certificates;
use crate::support::{any_port, directory, serve};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use outlive_backend::BackendLocation;
use outlive_node::NodeUrl;
use outlive_node::protocol::{FileRequest, HelloReply, HelloRequest, MESSAGE_BYTES_MAX, VERSION};
use outlive_node_server::in_process::framed;
use outlive_node_server::{NodeOptions, NodeServer};
use outlive_types::ErrorKind;
use prost::Message;
use serde_json::Value;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::transport::Server;

/// A node, and what its log has when it has stopped.
struct Logged {
    server: NodeServer,
    lines: Arc<Mutex<Vec<String>>>,
    _dir: TempDir,
}

impl Logged {
    fn start(change: impl FnOnce(&mut NodeOptions)) -> Logged {
        let (dir, lines) = (TempDir::new().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let mut options = NodeOptions::new(vec![directory(dir.path())], any_port());
        let taken: Arc<Mutex<Vec<String>>> = lines.clone();
        options.log = Some(Arc::new(move |line| taken.lock().unwrap().push(line.to_owned())));
        change(&mut options);
        Logged { server: NodeServer::start(options).unwrap(), lines, _dir: dir }
    }

    /// Waits for the first line of a refusal, stops the node, and returns all.
    fn refused(self) -> Vec<Told> {
        while told(&self.lines).is_empty() {
            thread::sleep(Duration::from_millis(20));
        }
        drop(self.server);
        told(&self.lines)
    }
}

/// The kind, the call, the text and the number of a line.
type Told = (String, String, String, u64);

fn told(lines: &Mutex<Vec<String>>) -> Vec<Told> {
    let lines = lines.lock().unwrap();
    let events = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let refused = events.filter(|event| event["event"] == "refused");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    refused
        .inspect(|it| assert!(it["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{it}"))
        .map(|it| {
            let times = it["times"].as_u64().unwrap();
            (text(&it["kind"]), text(&it["call"]), text(&it["text"]), times)
        })
        .collect()
}

/// Waits until the node closes a connection.
fn wait_for_end(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    // A reset ends it too: the node had bytes that it did not read.
    let _ = stream.read_to_end(&mut rest);
}

#[test]
fn refused_requests_are_in_the_log() {
    let node = Logged::start(|_| ());
    run(async {
        let mut client = client(node.server.address()).await;
        for build in ["0.9.7", "\u{7}"] {
            let hello = HelloRequest {
                version: VERSION + 1,
                session: session(),
                build: build.to_owned(),
                ..HelloRequest::default()
            };
            client.hello(hello).await.unwrap_err();
            // The log has a line of each within some seconds, and both if the node ends.
        }
        let file = FileRequest {
            session: session(),
            bytes: Bytes::from(vec![0; MESSAGE_BYTES_MAX + 1]),
            ..FileRequest::default()
        };
        client.file(file).await.unwrap_err();
    });
    let refused = node.refused();
    let times = |kind: &str, call: &str, said: &str| -> u64 {
        let are = refused.iter().filter(|it| it.0 == kind && it.1 == call && it.2.contains(said));
        are.map(|it| it.3).sum()
    };
    assert_eq!(times("Invalid", "Hello", "use one version of outlive"), 2, "{refused:?}");
    assert!(times("Invalid", "Hello", "of an unknown version") > 0, "{refused:?}");
    assert_eq!(times("Message", "File", "too large"), 1, "{refused:?}");
}

#[test]
fn wrong_tokens_are_in_the_log_and_never_the_tokens() {
    let node = Logged::start(|options| options.tokens = vec!["first".into()]);
    let url = NodeUrl::parse(&format!("node://{}/p", node.server.address())).unwrap();
    url.with_variables([("OUTLIVE_NODE_TOKEN", "guessed")]).check().unwrap_err();
    let lines = node.lines.clone();
    let refused = node.refused();
    assert!(!refused.is_empty() && refused.iter().all(|it| it.0 == "Token" && it.1 == "Hello"));
    let all = lines.lock().unwrap().join("\n");
    assert!(!all.contains("guessed") && !all.contains("first"), "{all}");
}

#[test]
fn certificates_that_do_not_count_are_in_the_log() {
    let (dir, strange) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    certificates(dir.path(), &[("node", "2"), ("expired", "-1")]);
    certificates(strange.path(), &[("client", "2")]);
    let path = |of: &Path, name: &str| of.join(name).to_str().unwrap().to_owned();
    let ca = path(dir.path(), "ca.pem");
    let checked = |scheme: &str, ca: &str, certificate: Option<(&Path, &str)>| {
        let node = Logged::start(|options| options.tls = Some(tls(dir.path(), "node", true)));
        let url = NodeUrl::parse(&format!("{scheme}://{}/p", node.server.address())).unwrap();
        let mut variables = vec![("OUTLIVE_NODE_CA", ca.to_owned())];
        if let Some((of, name)) = certificate {
            variables.push(("OUTLIVE_NODE_CERT", path(of, &format!("{name}.pem"))));
            variables.push(("OUTLIVE_NODE_KEY", path(of, &format!("{name}.key"))));
        }
        let given: Vec<(&str, &str)> = variables.iter().map(|it| (it.0, it.1.as_str())).collect();
        url.with_variables(given).check().unwrap_err();
        let refused = node.refused();
        assert!(refused.iter().all(|it| it.0 == "Connection" && it.1.is_empty()), "{refused:?}");
        refused.last().unwrap_or_else(|| panic!("nothing was refused")).2.clone()
    };
    for (scheme, ca, certificate, told) in [
        ("nodes", &ca, Some((dir.path(), "expired")), "certificate: Expired"),
        ("nodes", &ca, Some((strange.path(), "client")), "certificate: "),
        ("nodes", &ca, None, "no certificates"),
        ("nodes", &path(strange.path(), "ca.pem"), None, "alert"),
        ("node", &ca, None, "corrupt message"),
    ] {
        let said = checked(scheme, ca, certificate);
        assert!(said.contains(told), "{told}: {said}");
    }
}

/// A node of another version: it answers each greeting with a version of its own.
#[derive(Clone)]
struct OtherVersion;

impl NamedService for OtherVersion {
    const NAME: &'static str = "outlive.node.v1.Node";
}

impl Service<http::Request<Body>> for OtherVersion {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        let reply =
            HelloReply { version: VERSION + 1, node: session(), run: session(), session_s: 120 };
        let message = Full::new(Bytes::from(framed(&reply.encode_to_vec())));
        let status = http::HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-status"),
            http::HeaderValue::from_static("0"),
        )]);
        let body = Body::new(message.with_trailers(ready(Some(Ok(status)))));
        let answer = http::Response::builder().header("content-type", "application/grpc");
        ready(Ok(answer.body(body).unwrap()))
    }
}

#[test]
fn a_node_of_another_version_is_refused() {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind(any_port())).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(
        Server::builder()
            .add_service(OtherVersion)
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    let error = NodeUrl::parse(&format!("node://{address}/p")).unwrap().check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let told = format!("{address} speaks version {} of the protocol", VERSION + 1);
    assert!(error.message().contains(&told), "{error}");
}

#[test]
fn clients_without_a_word_are_closed() {
    for (greeting, told) in [
        (&b""[..], "did not greet"),
        (b"PRI * HTTP/2", "did not greet"),
        (b"GET / HTTP/1.1\r\nHost: node\r\n\r\n", "does not speak gRPC"),
    ] {
        let node = Logged::start(|options| options.session = Duration::from_secs(12));
        let connect = || TcpStream::connect(node.server.address()).unwrap();
        // One that leaves at once, as probes of ports do, is no refusal.
        drop(connect());
        let mut stream = connect();
        stream.write_all(greeting).unwrap();
        wait_for_end(&mut stream);
        let url = NodeUrl::parse(&format!("node://{}/p", node.server.address())).unwrap();
        url.check().unwrap();
        let refused = node.refused();
        assert!(matches!(&refused[..], [it] if it.2.contains(told) && it.3 == 1), "{refused:?}");
    }
}

/// The client speaks HTTP/2 and answers all signs of life, but has no token.
#[test]
fn clients_without_a_request_that_is_let_in_are_closed() {
    let node = Logged::start(|options| {
        options.session = Duration::from_secs(12);
        options.tokens = vec!["known".to_owned()];
    });
    let mut stream = TcpStream::connect(node.server.address()).unwrap();
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream.write_all(&SETTINGS).unwrap();
    let mut head = [0; 9];
    while stream.read_exact(&mut head).is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut rest = vec![0; length];
        if stream.read_exact(&mut rest).is_err() {
            break;
        }
        let (kind, is_answer) = (head[3], head[4] & 1 == 1);
        if kind == 6 && !is_answer {
            head[4] = 1;
            let _ = stream.write_all(&[&head[..], &rest].concat());
        }
    }
    let url = NodeUrl::parse(&format!("node://{}/p", node.server.address())).unwrap();
    url.with_variables([("OUTLIVE_NODE_TOKEN", "known")]).check().unwrap();
}

/// The kernel takes the connection, and no byte comes back.
/// A reset would take the reason along. The client has sent more than the node reads.
#[test]
fn a_client_reads_why_its_handshake_has_failed() {
    let dir = TempDir::new().unwrap();
    certificates(dir.path(), &[("node", "2")]);
    let served = serve(1, |options| options.tls = Some(tls(dir.path(), "node", true)));
    let mut stream = TcpStream::connect(served.server.address()).unwrap();
    stream.write_all(&[7; 64 << 10]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap();
    // A record with a fatal alert (RFC 8446, section 6).
    assert!(said.len() == 7 && said[0] == 21 && said[5] == 2, "{said:?}");
}

#[test]
fn a_tls_client_gives_a_silent_node_up() {
    let silent = std::net::TcpListener::bind(any_port()).unwrap();
    let url = NodeUrl::parse(&format!("nodes://{}/p", silent.local_addr().unwrap())).unwrap();
    let dir = TempDir::new().unwrap();
    certificates(dir.path(), &[]);
    let ca = dir.path().join("ca.pem");
    let error =
        url.with_variables([("OUTLIVE_NODE_CA", ca.to_str().unwrap())]).check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
}
