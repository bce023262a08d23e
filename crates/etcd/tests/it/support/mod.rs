//! Shared parts of the tests: clusters, and a proxy before them that imitates network faults.
#![allow(dead_code)] // each test needs a part of it

pub mod server;

#[allow(unused_imports)]
pub use server::{Cluster, Tls};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outlive_etcd::EtcdUrl;
use outlive_types::JobName;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Returns a new prefix at each call, on the members at `addresses`.
pub fn url_at(addresses: &[SocketAddr]) -> EtcdUrl {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("a,b=c+d@e/p_{}.x", NEXT.fetch_add(1, Ordering::Relaxed));
    url_with(addresses, &prefix, &[])
}

/// Returns the location with this prefix and these variables.
pub fn url_with(addresses: &[SocketAddr], prefix: &str, variables: &[(&str, &str)]) -> EtcdUrl {
    named_url("etcd", addresses, prefix, variables)
}

pub fn named_url(
    scheme: &str,
    addresses: &[SocketAddr],
    prefix: &str,
    variables: &[(&str, &str)],
) -> EtcdUrl {
    let hosts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let pool_url = EtcdUrl::parse(&format!("{scheme}://{}/{prefix}", hosts.join(",")));
    pool_url.expect("a place").with_variables(variables.iter().copied())
}

pub fn job() -> JobName {
    JobName::new("x").unwrap()
}

/// Returns the gateway's reply to a request that outlive never makes; it must succeed.
pub fn post(address: SocketAddr, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    let length = body.len();
    write!(
        stream,
        "POST /v3/{path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer of HTTP");
    assert!(head.contains(" 200 "), "{path}: {answer}");
    body.to_owned()
}

/// Encodes keys and values as in the gateway's JSON.
pub fn encode(text: &str) -> String {
    STANDARD.encode(text)
}

/// Waits until a condition holds that the background makes true.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}
