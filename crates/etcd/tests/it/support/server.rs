//! Real etcd clusters on loopback.

use super::{named_url, until, url_at};
use outlive_backend::BackendLocation;
use outlive_etcd::EtcdUrl;
use std::env;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command};
use tempfile::TempDir;

/// A cluster of the test's own. It ends when this value is dropped.
pub struct Cluster {
    members: Vec<Member>,
    flags: Vec<String>,
    tls: Option<Tls>,
    root: TempDir,
}

struct Member {
    clients: SocketAddr,
    peers: SocketAddr,
    child: Option<Child>,
}

/// Certificates in files.
#[derive(Clone)]
pub struct Tls {
    pub roots: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Cluster {
    /// Starts a cluster with `members` members, and waits until all respond.
    pub fn of(members: usize) -> Cluster {
        Cluster::with(members, &[], None)
    }

    /// Starts a cluster with further flags; with `tls` it uses TLS only, with certificates on both
    /// sides.
    pub fn with(members: usize, flags: &[&str], tls: Option<Tls>) -> Cluster {
        // Another process may take a port before its member does; then other ports are taken.
        let started = (0..10).find_map(|_| Cluster::try_new(members, flags, tls.clone()));
        started.expect("a cluster starts")
    }

    fn try_new(members: usize, flags: &[&str], tls: Option<Tls>) -> Option<Cluster> {
        // All at once, so that they differ.
        let bind = || TcpListener::bind("127.0.0.1:0").expect("a free port");
        let free: Vec<_> = (0..members).map(|_| (bind(), bind())).collect();
        let address = |listener: &TcpListener| listener.local_addr().expect("its address");
        let members = free.iter().map(|(clients, peers)| Member {
            clients: address(clients),
            peers: address(peers),
            child: None,
        });
        let mut cluster = Cluster {
            members: members.collect(),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            tls,
            root: tempfile::tempdir().expect("a temporary directory"),
        };
        drop(free);
        (0..cluster.members.len()).for_each(|number| cluster.spawn(number));
        cluster.is_up().then_some(cluster)
    }

    /// Returns the addresses of its members.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.clients).collect()
    }

    /// Returns the address of the only member.
    pub fn address(&self) -> SocketAddr {
        self.members[0].clients
    }

    /// Returns a new prefix in the cluster at each call.
    pub fn pool_url(&self) -> EtcdUrl {
        url_at(&self.addresses())
    }

    /// Kills a member, as a power cut would.
    pub fn stop(&mut self, number: usize) {
        if let Some(mut child) = self.members[number].child.take() {
            child.kill().expect("it was running");
            child.wait().expect("it ends");
        }
    }

    /// Restarts members with their data, and waits until all respond.
    pub fn start(&mut self, numbers: &[usize]) {
        // Another process's connection may use a port for a moment.
        until("the members come back", || {
            for number in numbers {
                if self.members[*number].child.is_none() {
                    self.spawn(*number);
                }
            }
            self.is_up()
        });
    }

    /// Waits until each member responds or has ended; returns false if one has ended.
    fn is_up(&mut self) -> bool {
        let mut is_up = true;
        for number in 0..self.members.len() {
            let (address, tls) = (self.members[number].clients, self.tls.clone());
            until("each member answers", || {
                let child = self.members[number].child.as_mut().expect("it was started");
                if child.try_wait().expect("its state").is_some() {
                    self.members[number].child = None;
                    is_up = false;
                    return true;
                }
                TcpStream::connect(address).is_ok() && answers(address, tls.as_ref())
            });
        }
        is_up
    }

    fn spawn(&mut self, number: usize) {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let member = &self.members[number];
        let peers: Vec<String> = self
            .members
            .iter()
            .enumerate()
            .map(|(number, member)| format!("m{number}=http://{}", member.peers))
            .collect();
        let log = self.root.path().join(format!("log{number}"));
        let log = File::options().create(true).append(true).open(log).expect("a log");
        let mut command = Command::new("etcd");
        for (name, _) in env::vars().filter(|(name, _)| name.starts_with("ETCD")) {
            command.env_remove(name);
        }
        if cfg!(target_arch = "aarch64") {
            command.env("ETCD_UNSUPPORTED_ARCH", "arm64");
        }
        command
            .args(["--name", &format!("m{number}")])
            .arg("--data-dir")
            .arg(self.root.path().join(format!("m{number}")))
            .args(["--listen-client-urls", &format!("{scheme}://{}", member.clients)])
            .args(["--advertise-client-urls", &format!("{scheme}://{}", member.clients)])
            .args(["--listen-peer-urls", &format!("http://{}", member.peers)])
            .args(["--initial-advertise-peer-urls", &format!("http://{}", member.peers)])
            .args(["--initial-cluster", &peers.join(",")])
            .args(&self.flags)
            .stdout(log.try_clone().expect("a log"))
            .stderr(log);
        if let Some(tls) = &self.tls {
            command
                .args(["--client-cert-auth", "--trusted-ca-file"])
                .arg(&tls.roots)
                .arg("--cert-file")
                .arg(&tls.cert)
                .arg("--key-file")
                .arg(&tls.key);
        }
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("etcd does not run ({error}): these tests need Debian's etcd-server; run `make setup`")
        });
        self.members[number].child = Some(child);
    }

    /// Returns the output of a member, for messages.
    pub fn log(&self, number: usize) -> String {
        fs::read_to_string(self.root.path().join(format!("log{number}"))).unwrap_or_default()
    }
}

/// Returns whether a member takes part in its cluster, and requires no more than a user.
fn answers(address: SocketAddr, tls: Option<&Tls>) -> bool {
    let pool_url = match tls {
        None => url_at(&[address]),
        Some(tls) => tls.pool_url(address),
    };
    pool_url.check().err().is_none_or(|error| error.message().contains("asks for a user"))
}

impl Tls {
    /// Returns a location on a member that is reached with these certificates.
    pub fn pool_url(&self, address: SocketAddr) -> EtcdUrl {
        let path = |path: &PathBuf| path.to_str().expect("a path that is text").to_owned();
        let (roots, cert, key) = (path(&self.roots), path(&self.cert), path(&self.key));
        let variables =
            [("ETCDCTL_CACERT", &*roots), ("ETCDCTL_CERT", &cert), ("ETCDCTL_KEY", &key)];
        named_url("etcds", &[address], "ckpt", &variables)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|number| self.stop(number));
    }
}
