//! Real S3 servers on loopback.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use std::{env, fs};
use tempfile::TempDir;

pub const BUCKET: &str = "ckpt";
pub const ACCESS: &str = "outlive";
pub const SECRET: &str = "outlive-secret";

/// A server of the test's own, with one bucket. It ends when this value is dropped.
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
    /// Starts a sound server; `None` if this machine cannot build it. Then the test is skipped, but
    /// in CI it fails.
    pub fn versitygw() -> Option<Server> {
        Server::new(Kind::Versitygw, "versitygw", &[])
    }

    /// Starts a sound server for measurements: it keeps connections. The proxy needs one request a
    /// connection.
    pub fn fast() -> Option<Server> {
        Server::new(Kind::Versitygw, "versitygw", &["--keep-alive"])
    }

    /// Starts a sound server over https, with `cert.pem` and `key.pem` of `dir`.
    pub fn with_tls(dir: &Path) -> Option<Server> {
        let file = |name| dir.join(name).to_string_lossy().into_owned();
        let arguments = ["--cert", &file("cert.pem"), "--key", &file("key.pem")];
        Server::new(Kind::Versitygw, "versitygw", &arguments)
    }

    /// Starts a server whose conditional put is broken.
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
        // Another process may take the port before the server does; then it takes another port.
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

    /// Kills the server, as a power cut would.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it was running");
            child.wait().expect("it ends");
        }
    }

    /// Restarts the server with its data.
    pub fn start(&mut self) {
        assert!(self.try_start(), "the port is free again");
    }

    /// Starts the server and waits until it accepts connections; returns false if it ends instead.
    fn try_start(&mut self) -> bool {
        let buckets = self.root.path().join("buckets");
        let mut command = Command::new(&self.program);
        match self.kind {
            Kind::Versitygw => command
                .args(["--access", ACCESS, "--secret", SECRET, "--quiet"])
                .args(["--port", &self.address.to_string()])
                .args(&self.arguments)
                // Its metadata is in extended attributes. With --sidecar or --nometa, conditional
                // puts are not sound.
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
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}
