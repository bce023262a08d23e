//! Nodes in this process.

use outlive_backend::{Location, SmallFiles, TargetOptions};
use outlive_dir::DirectoryLocation;
use outlive_node::NodeUrl;
use outlive_node_server::{NodeOptions, NodeServer};
use outlive_types::NoObserver;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

/// A node on a new directory.
pub struct Served {
    pub server: NodeServer,
    _dirs: Vec<TempDir>,
    next: AtomicUsize,
}

pub fn directory(path: &Path) -> Location {
    Location::new(DirectoryLocation::at(path))
}

pub fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

pub fn options() -> TargetOptions {
    TargetOptions {
        is_own: false,
        probe: None,
        watch: None,
        observer: std::sync::Arc::new(NoObserver),
    }
}

/// Starts a node on this many new directories.
pub fn serve(directories: usize, change: impl FnOnce(&mut NodeOptions)) -> Served {
    let dirs: Vec<TempDir> = (0..directories).map(|_| TempDir::new().unwrap()).collect();
    let data = dirs.iter().map(|dir| directory(dir.path())).collect();
    let mut options = NodeOptions::new(data, any_port());
    change(&mut options);
    Served { server: NodeServer::start(options).unwrap(), _dirs: dirs, next: AtomicUsize::new(0) }
}

impl Served {
    pub fn url(&self, prefix: &str) -> NodeUrl {
        NodeUrl::parse(&format!("node://{}/{prefix}", self.server.address())).unwrap()
    }

    /// Returns a new location on the node, with the folders of a pool.
    pub fn new_location(&self) -> Location {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let location = Location::new(self.url(&format!("p/{number}")));
        location.make_folders(&["packs", "log"]).unwrap();
        location
    }
}
