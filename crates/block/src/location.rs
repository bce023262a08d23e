//! A block device as a location of a pool's parts.

use crate::device::BlockDevice;
use crate::files::BlockFiles;
use crate::init::lay_out;
use crate::layout::Layout;
use crate::locks::{Lock, Locks};
use crate::space::Space;
use crate::target::{BlockTarget, open_space};
use outlive_backend::{
    BackendLocation, Location, RetryPolicy, RetryTarget, Scheme, ServedAlone, SmallFiles, Target,
    TargetOptions,
};
use outlive_io::DEPTH_DEFAULT;
use outlive_log::LogMedium;
use outlive_types::{Error, Result};
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The scheme of block devices.
pub const BLOCK: Scheme = Scheme {
    name: "block",
    help: "a block device, as \"block:///dev/nvme1n1\"",
    parse: |rest| BlockLocation::parse(rest).map(Location::new),
};

/// Threads that write and read on each of several devices.
const THREADS_OF_SEVERAL: usize = 4;

/// A block device.
#[derive(Clone, Debug)]
struct BlockLocation {
    path: PathBuf,
    /// The content that may be lost when the device is laid out. No descriptor keeps it.
    overwrite: Option<String>,
}

impl BlockLocation {
    fn parse(rest: &str) -> Result<BlockLocation> {
        let refused = |why: &str| {
            let form = "write it as block:///dev/NAME, or block:///dev/NAME?overwrite=TYPE";
            Error::invalid(format!("\"block:{rest}\" {why}: {form}"))
        };
        let (path, query) = rest.split_once('?').map_or((rest, None), |(a, b)| (a, Some(b)));
        // A pool's name comes as a path, in which several slashes have become one or two.
        let name = path.trim_start_matches('/');
        if name == path || name.is_empty() || name.contains('\0') {
            return Err(refused("names no device by an absolute path"));
        }
        let overwrite = match query.map(|query| query.split_once('=')) {
            None => None,
            Some(Some(("overwrite", content))) if !content.is_empty() => Some(content.to_owned()),
            Some(_) => return Err(refused("has an unknown option")),
        };
        Ok(BlockLocation { path: format!("/{name}").into(), overwrite })
    }

    /// Returns the number of the device, which all its names share.
    fn device(&self) -> Option<u64> {
        self.path.metadata().ok().map(|there| there.rdev()).filter(|device| *device != 0)
    }
}

impl BackendLocation for BlockLocation {
    fn is_same(&self, other: &Location) -> bool {
        let Ok(text) = other.to_string().strip_prefix("block:").ok_or(()).map(BlockLocation::parse)
        else {
            return false;
        };
        text.is_ok_and(|other| {
            other.path == self.path || self.device().is_some_and(|it| other.device() == Some(it))
        })
    }

    fn child(&self, name: &str) -> Result<Location> {
        Err(Error::invalid(format!("{self} has no part {name:?}: a device is one location")))
    }

    fn check(&self) -> Result<()> {
        BlockDevice::open_to_read(&self.path).map(drop)
    }

    fn check_records(&self) -> Result<()> {
        Err(no_records(self))
    }

    fn advice(&self) -> &'static str {
        "attach the device; if its name has changed, give it the old one, such as by /dev/disk/by-id"
    }

    fn serve_alone(&self) -> Result<Option<ServedAlone>> {
        self.check()?;
        Locks::new(&self.path, true).attempt(Lock::Server)
    }

    fn open_target(&self, how: &TargetOptions) -> Result<Arc<dyn Target>> {
        let threads = how.watch.as_ref().map_or(DEPTH_DEFAULT, |_| THREADS_OF_SEVERAL);
        let target = Arc::new(BlockTarget::at(&self.path, threads));
        Ok(Arc::new(RetryTarget::new(target, RetryPolicy::default())))
    }

    fn open_medium(&self) -> Result<Arc<dyn LogMedium>> {
        Err(no_records(self))
    }

    fn open_files(&self) -> Result<Arc<dyn SmallFiles>> {
        Ok(Arc::new(LazyFiles(self.clone())))
    }
}

/// Small files of a device that may have no layout yet. Each call opens the device.
#[derive(Debug)]
struct LazyFiles(BlockLocation);

impl LazyFiles {
    /// Returns the files for reading; `None` if the device has no layout.
    fn there(&self) -> Result<Option<BlockFiles>> {
        let device = BlockDevice::open_to_read(&self.0.path)?;
        let layout = Layout::read(&device)?;
        Ok(layout.map(|layout| BlockFiles(Arc::new(Space::new(Arc::new(device), layout)))))
    }

    fn to_write(&self) -> Result<BlockFiles> {
        let device = BlockDevice::open(&self.0.path)?;
        open_space(Arc::new(device)).map(|space| BlockFiles(Arc::new(space)))
    }
}

impl SmallFiles for LazyFiles {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.there()?.map_or(Ok(None), |files| files.read(name))
    }

    fn has(&self, name: &str) -> Result<bool> {
        self.there()?.map_or(Ok(false), |files| files.has(name))
    }

    fn write_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        self.to_write()?.write_new(name, bytes)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.to_write()?.write(name, bytes)
    }

    /// Lays out the device.
    fn make_folders(&self, _: &[&str]) -> Result<()> {
        lay_out(&self.0.path, self.0.overwrite.as_deref())
    }
}

fn no_records(location: &BlockLocation) -> Error {
    Error::invalid(format!(
        "{location} is a block device, which keeps packs and no log: give the pool a directory, a \
         bucket or a cluster for its log"
    ))
}

impl fmt::Display for BlockLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block://{}", Path::new(&self.path).display())
    }
}
