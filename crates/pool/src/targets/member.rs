//! One target of a pool, and what is known of how it does.

use super::table::StillThere;
use outlive_target::{ReadRange, ReadTicket, ShardName, Target};
use outlive_types::{Error, ErrorKind, Result};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A target of a pool.
pub(crate) struct Member {
    /// Its number in `pool.toml`.
    pub id: u32,
    /// What fails together with it.
    pub domain: String,
    target: Arc<dyn Target>,
    still_there: Option<Box<StillThere>>,
    /// Nothing new is put there.
    pub is_leaving: bool,
    /// Why it is not used now.
    away: Mutex<Option<Error>>,
    /// Bytes that shards may take that are being written there now, by this process.
    under_way: Arc<AtomicU64>,
    /// How long a read takes, in microseconds: a mean that forgets.
    read_us: Arc<AtomicU64>,
}

impl Member {
    /// A target that is always there, as far as it can say.
    pub fn new(id: u32, target: Arc<dyn Target>) -> Member {
        Member {
            id,
            domain: format!("target {id}"),
            target,
            still_there: None,
            is_leaving: false,
            away: Mutex::default(),
            under_way: Arc::default(),
            read_us: Arc::default(),
        }
    }

    /// The same, on a host that may fail as a whole.
    pub fn on(mut self, host: Option<&str>) -> Member {
        if let Some(host) = host {
            self.domain = format!("host {host}");
        }
        self
    }

    /// The same, which takes nothing new.
    pub fn leaving(mut self) -> Member {
        self.is_leaving = true;
        self
    }

    /// The same, with a way to find out whether it is there.
    pub fn if_there(mut self, still_there: Box<StillThere>) -> Member {
        self.still_there = Some(still_there);
        self
    }

    /// The target, whether it is there or not.
    pub fn target(&self) -> &Arc<dyn Target> {
        &self.target
    }

    /// Looks whether it is there. What was away and is back is used again.
    ///
    /// # Errors
    /// What is wrong with the place where it should be.
    pub fn check(&self) -> Result<()> {
        let found = self.still_there.as_ref().map_or(Ok(()), |still_there| still_there());
        // Never `Damaged` to those who want something of it: nothing is known of what is on it.
        let away = found.as_ref().err().map(|error| Error::retry(error.message().to_owned()));
        *self.away.lock().unwrap_or_else(PoisonError::into_inner) = away;
        found
    }

    /// The same for who wants something of it.
    ///
    /// # Errors
    /// Why it cannot be used: never `Damaged`.
    pub fn look(&self) -> Result<()> {
        match self.check() {
            Ok(()) => Ok(()),
            Err(error) => Err(self.away().unwrap_or(error)),
        }
    }

    /// Why it was not used when that was looked at last.
    pub fn away(&self) -> Option<Error> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it has a finished shard.
    ///
    /// # Errors
    /// It cannot be asked.
    pub fn has(&self, shard: ShardName) -> Result<bool> {
        if let Some(error) = self.away() {
            return Err(error);
        }
        match self.target.length(shard) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Damaged => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads, and notes how long that took.
    pub fn read(&self, shard: ShardName, range: ReadRange) -> ReadTicket {
        let (asked, read_us) = (Instant::now(), self.read_us.clone());
        outlive_target::read_one(&*self.target, shard, range).map(move |read| {
            if read.is_ok() {
                let took = asked.elapsed().as_micros() as u64;
                let before = read_us.load(Ordering::Relaxed);
                let mean = if before == 0 { took } else { before - before / 8 + took / 8 };
                read_us.store(mean.max(1), Ordering::Relaxed);
            }
            read
        })
    }

    /// Microseconds that a read took lately; 0 if nothing was read yet.
    pub fn read_us(&self) -> u64 {
        self.read_us.load(Ordering::Relaxed)
    }

    /// Makes it seem slow, or quick.
    #[cfg(test)]
    pub fn set_read_us(&self, micros: u64) {
        self.read_us.store(micros, Ordering::Relaxed);
    }

    /// Bytes that this process may still put there.
    pub fn under_way(&self) -> u64 {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Counts a shard of at most so many bytes as under way, until the guard is dropped.
    pub fn begin(&self, bytes: u64) -> UnderWay {
        self.under_way.fetch_add(bytes, Ordering::Relaxed);
        UnderWay { sum: self.under_way.clone(), bytes }
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "target {} ({:?})", self.id, self.target)
    }
}

/// What a shard that is being written may take of its target.
#[derive(Debug)]
pub(crate) struct UnderWay {
    sum: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
