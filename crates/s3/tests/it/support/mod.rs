//! Shared parts of the tests: servers, a proxy before them that imitates network faults, and
//! shards.
#![allow(dead_code)] // each test needs a part of it

pub mod server;

pub use server::{ACCESS, BUCKET, SECRET, Server};

use outlive_backend::{ReadRange, ShardName, ShardWriter, Target, read_one};
use outlive_io::{AlignedBuf, SharedBuf};
use outlive_s3::S3Url;
use outlive_types::{PackId, Result, Rng, SeededRng, SessionId};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

pub const PAGE: usize = 4096;

impl Server {
    /// Returns a new prefix in the bucket at each call.
    pub fn pool_url(&self) -> S3Url {
        url_at(self.address())
    }
}

/// Returns a new prefix in the bucket of the server at `address`.
pub fn url_at(address: SocketAddr) -> S3Url {
    location_at_url(&format!("http://{address}"))
}

/// Returns a new prefix in the bucket of the server with this URL.
pub fn location_at_url(url: &str) -> S3Url {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("a,b=c+d@e/p_{}.x", NEXT.fetch_add(1, Ordering::Relaxed));
    named_url(&format!("s3://{BUCKET}/{prefix}"), url, SECRET)
}

/// Returns the location `name` on the server at `url`, with the key `secret`.
pub fn named_url(name: &str, url: &str, secret: &str) -> S3Url {
    S3Url::parse(name).expect("a place").with_variables([
        ("AWS_ENDPOINT_URL", url),
        ("AWS_ACCESS_KEY_ID", ACCESS),
        ("AWS_SECRET_ACCESS_KEY", secret),
    ])
}

pub fn name(pack: u32) -> ShardName {
    ShardName { pack: PackId::new(SessionId([0x53; 12]), 0, pack), shard: 0 }
}

pub fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    SeededRng::new(seed).fill(&mut content);
    content
}

pub fn buffer_of(bytes: &[u8]) -> SharedBuf {
    let mut buffer = AlignedBuf::zeroed(bytes.len());
    buffer.copy_from_slice(bytes);
    buffer.share()
}

/// Writes `bytes` as the packer does: containers after the header, then the header.
pub fn write_all(writer: &mut dyn ShardWriter, bytes: &[u8], container: usize) -> Result<()> {
    let mut tickets = Vec::new();
    let mut at = PAGE.min(bytes.len());
    while at < bytes.len() {
        let end = bytes.len().min(at + container);
        tickets.push(writer.write(at as u64, buffer_of(&bytes[at..end])));
        at = end;
    }
    tickets.push(writer.write(0, buffer_of(&bytes[..PAGE.min(bytes.len())])));
    tickets.into_iter().try_for_each(|ticket| ticket.wait().map_err(Into::into))
}

pub fn put(target: &dyn Target, shard: ShardName, bytes: &[u8]) -> Result<()> {
    let mut writer = target.create(shard, bytes.len() as u64)?;
    write_all(&mut *writer, bytes, 4 << 20)?;
    writer.finish(bytes.len() as u64).wait()
}

pub fn get(target: &dyn Target, shard: ShardName, at: usize, bytes: usize) -> Result<Vec<u8>> {
    let range = ReadRange::new(at as u64, AlignedBuf::zeroed(bytes));
    let got = read_one(target, shard, range).wait();
    got.map(|buffer| buffer.to_vec()).map_err(Into::into)
}

/// Waits until a condition holds that the background makes true.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}
