//! Real S3 servers on loopback, and a proxy in front of them that does what networks do.
#![allow(dead_code)] // each test needs a part of it

pub mod proxy;

use outlive_io::{AlignedBuf, SharedBuf};
use outlive_s3::S3Place;
use outlive_target::{ReadRange, ShardName, ShardWriter, Target, read_one};
use outlive_types::{PackId, Result, Rng, SeededRng, SessionId};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;
use std::{env, fs};
use tempfile::TempDir;

pub const BUCKET: &str = "ckpt";
pub const PAGE: usize = 4096;
pub const ACCESS: &str = "outlive";
pub const SECRET: &str = "outlive-secret";

/// A server of our own, with one bucket. It ends with this value.
pub struct Server {
    kind: Kind,
    program: PathBuf,
    arguments: Vec<String>,
    address: SocketAddr,
    child: Option<Child>,
    root: Arc<TempDir>,
}

#[derive(Clone, Copy)]
enum Kind {
    Versitygw,
    S3sFs,
}

impl Server {
    /// A sound server; `None` if this machine cannot build it. Then the test is skipped, but in CI it
    /// fails.
    pub fn versitygw() -> Option<Server> {
        Server::new(Kind::Versitygw, "versitygw", &[])
    }

    /// The same, for measurements: it keeps connections. The proxy takes one request a connection.
    pub fn fast() -> Option<Server> {
        Server::new(Kind::Versitygw, "versitygw", &["--keep-alive"])
    }

    /// The same over https, with `cert.pem` and `key.pem` of `dir`.
    pub fn with_tls(dir: &Path) -> Option<Server> {
        let file = |name| dir.join(name).to_string_lossy().into_owned();
        let arguments = ["--cert", &file("cert.pem"), "--key", &file("key.pem")];
        Server::new(Kind::Versitygw, "versitygw", &arguments)
    }

    /// A server whose conditional put is broken.
    pub fn s3s_fs() -> Option<Server> {
        Server::new(Kind::S3sFs, "s3s-fs", &[])
    }

    fn new(kind: Kind, script: &str, arguments: &[&str]) -> Option<Server> {
        if env::var_os("OUTLIVE_WITHOUT_S3").is_some() {
            eprintln!("SKIPPED, as OUTLIVE_WITHOUT_S3 is set");
            return None;
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(script);
        let found = Command::new(&path).stderr(Stdio::piped()).output().expect("the script runs");
        if !found.status.success() {
            let why = String::from_utf8_lossy(&found.stderr).into_owned();
            assert!(env::var_os("CI").is_none(), "{why}");
            eprintln!("SKIPPED, as there is no S3 server:{why}");
            return None;
        }
        let root = Arc::new(tempfile::tempdir().expect("a temporary directory"));
        fs::create_dir_all(root.path().join("buckets").join(BUCKET)).expect("a bucket");
        let program = PathBuf::from(String::from_utf8_lossy(&found.stdout).trim());
        // Somebody else may take the port before the server does; then it takes another.
        let started = (0..10).find_map(|_| {
            let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = free.local_addr().expect("its address");
            drop(free);
            let mut server = Server {
                kind,
                program: program.clone(),
                arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
                address,
                child: None,
                root: root.clone(),
            };
            server.try_start().then_some(server)
        });
        Some(started.expect("the server starts; has the file system extended attributes?"))
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends it as a power cut does.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it was running");
            child.wait().expect("it ends");
        }
    }

    /// Starts it again with what it had.
    pub fn start(&mut self) {
        assert!(self.try_start(), "the port is free again");
    }

    /// Starts it and waits until it takes connections; false if it ends instead.
    fn try_start(&mut self) -> bool {
        let buckets = self.root.path().join("buckets");
        let mut command = Command::new(&self.program);
        match self.kind {
            Kind::Versitygw => command
                .args(["--access", ACCESS, "--secret", SECRET, "--quiet"])
                .args(["--port", &self.address.to_string()])
                .args(&self.arguments)
                // Its metadata is in extended attributes. With --sidecar or --nometa conditional puts
                // are not sound.
                .arg("posix")
                .arg(buckets),
            Kind::S3sFs => command
                .args(["--access-key", ACCESS, "--secret-key", SECRET, "--host", "127.0.0.1"])
                .args(["--port", &self.address.port().to_string()])
                .arg(buckets),
        };
        let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = self.child.insert(quiet.spawn().expect("it starts"));
        while TcpStream::connect(self.address).is_err() {
            if child.try_wait().expect("its state").is_some() {
                self.child = None;
                return false;
            }
            thread::sleep(Duration::from_millis(2));
        }
        true
    }

    pub fn bucket_dir(&self) -> PathBuf {
        self.root.path().join("buckets").join(BUCKET)
    }

    /// A place of its own in the bucket, each time.
    pub fn place(&self) -> S3Place {
        place_at(self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A place of its own in the bucket of the server that is reached at `address`.
pub fn place_at(address: SocketAddr) -> S3Place {
    place_at_url(&format!("http://{address}"))
}

/// The same by the server's URL.
pub fn place_at_url(url: &str) -> S3Place {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("a,b=c+d@e/p_{}.x", NEXT.fetch_add(1, Ordering::Relaxed));
    named_place(&format!("s3://{BUCKET}/{prefix}"), url, SECRET)
}

/// The place `name` on the server at `url`, with the key `secret`.
pub fn named_place(name: &str, url: &str, secret: &str) -> S3Place {
    S3Place::parse(name).expect("a place").with_variables([
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

/// Writes `bytes` as the packer does: containers behind the header, then the header.
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
    let range = ReadRange { offset: at as u64, buffer: AlignedBuf::zeroed(bytes) };
    let got = read_one(target, shard, range).wait();
    got.map(|buffer| buffer.to_vec()).map_err(Into::into)
}

/// Waits for something that happens in the background.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}
