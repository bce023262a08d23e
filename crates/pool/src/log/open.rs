//! Opens a pool's log, wherever it has been moved to.

use crate::descriptor::config::FormatConfig;
use crate::descriptor::log_configuration::LogConfiguration;
use crate::descriptor::marker::{Marker, Moved, ThisReplica};
use crate::descriptor::paths::{MARKER, PoolPaths};
use crate::log::replicas::{
    ASKING, Lasting, PoolReplica, ReplicaLookup, check_replica, find_set, is_there, open_replicas,
};
use outlive_backend::{Location, SmallFiles};
use outlive_log::replicas::{NewReplica, forget, move_to};
use outlive_log::{ManifestLog, Movable, RecordLog};
use outlive_types::{Error, Result};
use std::sync::Arc;

/// Opens a pool's log, which may be moved while it is open.
///
/// # Errors
/// `Invalid` if its only replica cannot be used.
pub(crate) fn open_log(paths: &PoolPaths, format: &FormatConfig) -> Result<Arc<dyn ManifestLog>> {
    let (now, then) = (paths.clone(), format.clone());
    let follow = move |successor: &[u8]| {
        follow(&now, &then, &Moved::parse(successor)?)?;
        open_replicas(&now, &then, now.log())
    };
    let replicas = open_replicas(paths, format, paths.log())?;
    Ok(Arc::new(RecordLog::over(Movable::new(&replicas, ASKING, Box::new(follow))?)))
}

/// Returns the marker of a log, and why replicas of it are away. Refuses a log of another pool.
/// Follows a log that was moved.
///
/// # Errors
/// `Damaged` if the log is missing; `Retry` if it has several replicas, and no majority is there;
/// `Invalid` if it, or a replica of it, is another one.
pub(crate) fn check_log(paths: &PoolPaths, format: &FormatConfig) -> Result<(Marker, Vec<Error>)> {
    let set = paths.log();
    let (mut marker, mut away, mut moved) = (None, Vec::new(), None);
    for found in find_set(paths, format, set, Lasting::Now) {
        match found {
            ReplicaLookup::There(there) => {
                moved = moved.or(there.moved.clone());
                marker = marker.or(Some(*there));
            }
            ReplicaLookup::Away(error) if set.at.len() > 1 => away.push(error),
            ReplicaLookup::Away(error) | ReplicaLookup::Another(error) => return Err(error),
        }
    }
    if let Some(moved) = moved {
        let old = set.clone();
        follow(paths, format, &moved)?;
        // A mover that was killed leaves these, and soon nothing says any more where they are.
        forget_old(paths, format, &old, paths.log(), &moved);
        return check_log(paths, format);
    }
    if away.len() > set.at.len() / 2 {
        let why: Vec<&str> = away.iter().map(Error::message).collect();
        return Err(Error::retry(format!(
            "of the {} log replicas fewer than a majority are there, so nothing is read or written: {}",
            set.at.len(),
            why.join("; ")
        )));
    }
    let marker = marker.ok_or_else(|| Error::bug("a log without replicas"))?;
    Ok((marker, away))
}

/// Follows a log to where it was moved, and ends the move if that is still to be done.
///
/// # Errors
/// Reason why that is not possible: `Retry` if too few replicas are there.
pub(crate) fn follow(paths: &PoolPaths, format: &FormatConfig, moved: &Moved) -> Result<()> {
    let old = paths.log();
    if moved.number <= old.number {
        return Ok(()); // another thread has followed it
    }
    let new = old.then(&paths.root, moved)?;
    let finished = finish(paths, format, old, &new, moved, false);
    finished.map_err(|error| {
        error.context(format!(
            "the log of {} was moved to {}; if these replicas have other names on this machine, set number = {} \
             and the replicas in [log] of {}",
            paths.root,
            new.describe(),
            new.number,
            paths.descriptor()
        ))
    })?;
    paths.log_moved(new);
    Ok(())
}

/// Deletes the records of the `old` replicas once all replicas of `new` have them. A failure leaves
/// some, which does no harm. Until `pool.toml` names the new replicas, each process that opens the pool
/// tries again.
pub(crate) fn forget_old(
    paths: &PoolPaths,
    format: &FormatConfig,
    old: &LogConfiguration,
    new: &LogConfiguration,
    moved: &Moved,
) {
    if !find_set(paths, format, new, Lasting::Durably).iter().all(is_there) {
        return;
    }
    let Ok(bytes) = moved.to_bytes() else { return };
    let _ = open_replicas(paths, format, old).and_then(|from| forget(&from, ASKING, &bytes));
}

/// Moves the log from `old` to the replicas of `new`, which is decided: to a majority of them, or
/// to `all` that are there. Returns for each replica why it does not have everything, if so.
///
/// # Errors
/// `Retry` if too few replicas, old or new, are there.
pub(crate) fn finish(
    paths: &PoolPaths,
    format: &FormatConfig,
    old: &LogConfiguration,
    new: &LogConfiguration,
    moved: &Moved,
    all: bool,
) -> Result<Vec<Option<Error>>> {
    let found = find_set(paths, format, new, Lasting::Durably);
    let open = found.iter().filter(|found| is_there(found)).count();
    if open == found.len() || !all && open > found.len() / 2 {
        return Ok(found.iter().map(|_| None).collect());
    }
    let there =
        find_set(paths, format, old, Lasting::Now).into_iter().find_map(|found| match found {
            ReplicaLookup::There(marker) => Some(*marker),
            ReplicaLookup::Away(_) | ReplicaLookup::Another(_) => None,
        });
    let marker = there.ok_or_else(|| {
        Error::retry(format!(
            "none of the replicas is there that it was moved from: {}",
            old.describe()
        ))
    })?;
    let replica =
        |((location, replica), found): ((&Location, Option<ThisReplica>), ReplicaLookup)| {
            let marker = marker.in_set(new.config(), replica);
            NewReplica {
                medium: Arc::new(PoolReplica::unguarded(paths, format, location, new.number)),
                is_open: is_there(&found),
                open: open_with(paths, format, location, new.number, &marker),
            }
        };
    let look = || {
        Ok(new
            .replicas()
            .zip(find_set(paths, format, new, Lasting::Durably))
            .map(replica)
            .collect())
    };
    move_to(&open_replicas(paths, format, old)?, ASKING, &moved.to_bytes()?, &look)
}

/// Returns the function that opens a replica: it writes the marker.
fn open_with(
    paths: &PoolPaths,
    format: &FormatConfig,
    location: &Location,
    number: u32,
    marker: &Marker,
) -> Box<dyn Fn() -> Result<()> + Send + Sync> {
    let (paths, format, location, marker) =
        (paths.clone(), format.clone(), location.clone(), marker.clone());
    let replica: Option<ThisReplica> = marker.replica;
    Box::new(move || {
        location.write_new(MARKER, marker.to_text()?.as_bytes())?;
        location.sync_folder("log")?;
        check_replica(&paths, &format, &location, number, replica).map(drop)
    })
}
