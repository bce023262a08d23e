//! Nodes in this process.

use outlive_backend::{
    Location, ReadRange, ShardName, SmallFiles, Target, TargetOptions, read_one,
};
use outlive_dir::DirectoryLocation;
use outlive_io::AlignedBuf;
use outlive_node::NodeUrl;
use outlive_node_server::{NodeOptions, NodeServer};
use outlive_types::{NoObserver, PackId, Result, SessionId};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

/// A node on a new directory.
pub struct Served {
    pub server: NodeServer,
    dirs: Vec<TempDir>,
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
    Served { server: NodeServer::start(options).unwrap(), dirs, next: AtomicUsize::new(0) }
}

impl Served {
    pub fn url(&self, prefix: &str) -> NodeUrl {
        NodeUrl::parse(&format!("node://{}/{prefix}", self.server.address())).unwrap()
    }

    /// Returns the first directory of its data.
    pub fn dir(&self) -> &Path {
        self.dirs[0].path()
    }

    /// Returns a new location on the node, with the folders of a pool.
    pub fn new_location(&self) -> Location {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let location = Location::new(self.url(&format!("p/{number}")));
        location.make_folders(&["packs", "log"]).unwrap();
        location
    }
}

pub fn name(pack: u32) -> ShardName {
    ShardName { pack: PackId::new(SessionId([0xD0; 12]), 0, pack), shard: 0 }
}

/// Writes a shard that has one byte again and again, in writes of 128 KiB.
pub fn put(target: &dyn Target, shard: ShardName, byte: u8, bytes: usize) -> Result<()> {
    let mut writer = target.create(shard, bytes as u64)?;
    let write = |offset: usize| {
        let mut buffer = AlignedBuf::zeroed((bytes - offset).min(128 << 10));
        buffer.fill(byte);
        writer.write(offset as u64, buffer.share())
    };
    let tickets: Vec<_> = (0..bytes).step_by(128 << 10).map(write).collect();
    for ticket in tickets {
        ticket.wait()?;
    }
    writer.finish(bytes as u64).wait()
}

/// Reads a shard.
pub fn whole(target: &dyn Target, shard: ShardName) -> Vec<u8> {
    let bytes = target.length(shard).unwrap() as usize;
    read_one(target, shard, ReadRange::new(0, AlignedBuf::zeroed(bytes))).wait().unwrap().to_vec()
}
