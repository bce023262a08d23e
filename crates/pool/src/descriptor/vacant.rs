//! A seat that no node has taken: a target that answers, holds no shard, and takes none. So a repair
//! does not wait for it, and a reader looks elsewhere.

use outlive_backend::{
    BackendLocation, Capacity, Location, ReadRange, ReadTicket, ShardName, ShardWriter, SmallFiles,
    Target, TargetOptions,
};
use outlive_io::Ticket;
use outlive_log::LogMedium;
use outlive_types::{Error, Result};
use std::fmt;
use std::sync::Arc;

/// Scheme of the locations of vacant seats.
const SCHEME: &str = "vacant:";

/// Returns the location of the vacant seat with this number.
pub(crate) fn vacant(id: u32) -> String {
    format!("{SCHEME}{id}")
}

/// Returns whether a location in a table is that of a vacant seat.
pub(crate) fn is_vacant(location: &str) -> bool {
    location.starts_with(SCHEME)
}

/// Reads the location of a vacant seat; `None` for any other.
pub(crate) fn parse_vacant(location: &str) -> Option<Location> {
    is_vacant(location).then(|| Location::new(Vacant { name: location.to_owned() }))
}

/// Returns a vacant seat as a target; `None` for any other location.
pub(crate) fn vacant_target(location: &str) -> Option<Arc<dyn Target>> {
    is_vacant(location).then(|| Arc::new(Vacant { name: location.to_owned() }) as Arc<dyn Target>)
}

/// A vacant seat.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Vacant {
    name: String,
}

impl fmt::Display for Vacant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Vacant {
    fn refused(&self) -> Error {
        Error::retry(format!("{self} is a seat that no node has taken"))
    }
}

impl BackendLocation for Vacant {
    fn child(&self, _: &str) -> Result<Location> {
        Err(self.refused())
    }

    fn advice(&self) -> &'static str {
        "no node has taken this seat: start `outlive node local` on another host"
    }

    fn open_target(&self, _: &TargetOptions) -> Result<Arc<dyn Target>> {
        Ok(Arc::new(self.clone()))
    }

    fn open_medium(&self) -> Result<Arc<dyn LogMedium>> {
        Err(self.refused())
    }

    fn open_files(&self) -> Result<Arc<dyn SmallFiles>> {
        Ok(Arc::new(self.clone()))
    }
}

impl Target for Vacant {
    fn describe(&self) -> String {
        format!("vacant seat {}", self.name.trim_start_matches(SCHEME))
    }

    fn create(&self, _: ShardName, _: u64) -> Result<Box<dyn ShardWriter>> {
        Err(self.refused())
    }

    fn replace(&self, _: ShardName, _: u64) -> Result<Box<dyn ShardWriter>> {
        Err(self.refused())
    }

    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket> {
        let missing = |range: ReadRange| {
            let error = self.length(shard).err().unwrap_or_else(|| self.refused());
            Ticket::done(Err(outlive_backend::Fault { error, buffer: range.buffer }))
        };
        ranges.into_iter().map(missing).collect()
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        Err(Error::damaged(format!("shard {shard} is not in {self}, which no node has taken")))
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        Ok(Vec::new())
    }

    fn delete(&self, _: ShardName) -> Result<()> {
        Ok(())
    }

    fn capacity(&self) -> Result<Capacity> {
        Ok(Capacity { total_bytes: 0, free_bytes: 0 })
    }
}

impl SmallFiles for Vacant {
    fn read(&self, _: &str) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn write_new(&self, _: &str, _: &[u8]) -> Result<bool> {
        Err(self.refused())
    }

    fn write(&self, _: &str, _: &[u8]) -> Result<()> {
        Err(self.refused())
    }
}
