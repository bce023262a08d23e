//! Markers of a pool: files in its log and on its targets that name the pool, how it was made, and
//! its targets. Only the pool's own commands write them.

use crate::descriptor::config::{FormatConfig, LogConfig, PoolConfig};
use crate::descriptor::encryption::EncryptionConfig;
use crate::descriptor::redundancy::{Redundancy, TargetConfig, Tier};
use outlive_types::{Error, Result};
use serde::{Deserialize, Serialize};

/// Text of a marker. Unknown keys are for newer builds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Marker {
    /// Format with which the pool was made.
    pub format: FormatConfig,
    /// Redundancy with which it was made.
    #[serde(default, skip_serializing_if = "Redundancy::is_default")]
    pub redundancy: Redundancy,
    /// Whether it is encrypted, and how; without the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<EncryptionConfig>,
    /// The target that this marker is on; none in the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub this: Option<This>,
    /// The replica of the log that this marker is in, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<ThisReplica>,
    /// `[log]` of its configuration, so that the marker may serve as a descriptor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogConfig>,
    /// Configuration that comes instead of this one: the replica is sealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<Moved>,
    /// A number that no target has or had; without it, one above all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_target: Option<u32>,
    /// All targets of the pool, with their locations when they were added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target: Vec<TargetConfig>,
}

/// `[replica]`: the replica of the log that a marker is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ThisReplica {
    /// Its number, from 1, which must not change.
    pub number: u32,
    /// Number of replicas.
    pub of: u32,
}

/// `[this]`: the target that a marker is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct This {
    /// Its number.
    pub id: u32,
}

/// `[moved]`: the configuration that comes instead of this one. A marker with it is sealed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Moved {
    /// Number of the new configuration.
    pub number: u32,
    /// Its replicas, in their order.
    pub replica: Vec<MovedReplica>,
}

/// One of its replicas.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct MovedReplica {
    /// Its location, as it is called where the log was moved from.
    pub location: String,
    /// Its number in the old configuration: other hosts may have another name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<u32>,
}

impl Moved {
    /// Returns it as text, the same each time.
    ///
    /// # Errors
    /// `Bug` if it cannot be written as TOML.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let text = toml::to_string(self).map(String::into_bytes);
        text.map_err(|e| Error::bug(format!("where a log is moved to cannot be written: {e}")))
    }

    /// Reads the text.
    ///
    /// # Errors
    /// `Damaged` for anything else.
    pub fn parse(bytes: &[u8]) -> Result<Moved> {
        let moved = toml::from_str(&String::from_utf8_lossy(bytes));
        moved.map_err(|e| {
            Error::damaged(format!("what the log says of where it was moved to is damaged: {e}"))
        })
    }
}

impl Marker {
    /// Returns a marker that names nothing but the pool.
    pub fn bare(format: FormatConfig) -> Marker {
        let (this, replica, log, moved, next_target) = Default::default();
        let (redundancy, encryption, target) = Default::default();
        Marker { format, redundancy, encryption, this, replica, log, moved, next_target, target }
    }

    /// Returns the marker of a pool's log.
    pub fn of(config: &PoolConfig) -> Marker {
        let PoolConfig { format, redundancy, target, log, encryption, .. } = config.clone();
        let encryption = encryption.as_ref().map(EncryptionConfig::without_key);
        let log = log.filter(|log| !log.locations.is_empty());
        let (this, replica, moved, next_target) = (None, None, None, None);
        Marker { format, redundancy, encryption, this, replica, log, moved, next_target, target }
    }

    /// Returns the same for one of several replicas of the log.
    pub fn in_place(&self, replica: Option<ThisReplica>) -> Marker {
        Marker { replica, ..self.clone() }
    }

    /// Returns the same for a target.
    pub fn on(&self, id: Option<u32>) -> Marker {
        let this = id.map(|id| This { id });
        Marker { this, replica: None, log: None, moved: None, ..self.clone() }
    }

    /// Returns the same for a replica of a newer configuration, at `log`.
    pub fn in_set(&self, log: LogConfig, replica: Option<ThisReplica>) -> Marker {
        Marker { log: Some(log), replica, moved: None, ..self.clone() }
    }

    /// Returns the number of its configuration.
    pub fn set_number(&self) -> u32 {
        self.log.as_ref().map_or(1, |log| log.number)
    }

    /// Reads a marker. `path` is for messages.
    ///
    /// # Errors
    /// `Invalid` for text that is no marker.
    pub fn parse(text: &str, path: &str) -> Result<Marker> {
        toml::from_str(text)
            .map_err(|e| Error::invalid(format!("{path}: not the marker of a pool: {e}")))
    }

    /// Returns its text.
    ///
    /// # Errors
    /// `Bug` if it cannot be written as TOML.
    pub fn to_text(&self) -> Result<String> {
        let body = toml::to_string(self)
            .map_err(|e| Error::bug(format!("the marker of a pool cannot be written: {e}")))?;
        Ok(format!(
            "# Says which outlive pool this belongs to, and how that was made (docs/format.md).\n\n{body}"
        ))
    }
}

/// Returns the targets of a pool: those in its table, at the locations in the descriptor. A target
/// that the descriptor leaves out is where the table says: its data would seem to be lost
/// otherwise. A target that has left is not used, whatever an old descriptor says.
///
/// # Errors
/// `Invalid` for targets that the pool does not have, and for two of one number.
pub(crate) fn targets_of(
    written_down: &[TargetConfig],
    marker: &Marker,
) -> Result<Vec<TargetConfig>> {
    let is_as_made = marker.next_target.is_none();
    let is_plain = !marker.target.iter().chain(written_down).any(|row| row.volatile);
    if is_as_made && is_plain && marker.target.len() <= 1 && written_down.len() <= 1 {
        return Ok(written_down.to_vec()); // it may have been moved by hand
    }
    let mut targets = marker.target.clone();
    let mut named = Vec::new();
    for row in written_down {
        // A row without a number is from before there were others: its location identifies it.
        let by_place = marker.target.iter().find(|target| target.location == row.location);
        // The first target of the pool, which was the only one then, has left.
        let first_left = || {
            let is_there = marker.target.iter().any(|target| target.id == Some(1));
            (!is_as_made && !is_there && written_down.len() == 1).then_some(1)
        };
        let id = by_place.and_then(|target| target.id);
        let id = row.id.or(id).or_else(first_left).ok_or_else(|| {
            Error::invalid(format!(
                "the [[target]] at {:?} has no id: the pool has {}; to add one, use `outlive pool add`",
                row.location,
                ids(&marker.target)
            ))
        })?;
        if named.contains(&id) {
            return Err(Error::invalid(format!("there are two [[target]] tables with id = {id}")));
        }
        named.push(id);
        match targets.iter_mut().find(|target| target.id == Some(id)) {
            Some(target) if row.tier == Tier::Slow && target.tier == Tier::Fast => {
                return Err(Error::invalid(format!(
                    "target {id} has tier = \"slow\", and was added as a fast one: take that line out; \
                     to have a slow target, use `outlive pool add --tier slow`"
                )));
            }
            Some(target) if row.volatile && !target.volatile => {
                return Err(Error::invalid(format!(
                    "target {id} has volatile = true, and was not added so: take that line out; to have a \
                     target in memory, use `outlive pool add --volatile`"
                )));
            }
            // An old descriptor without its tier makes no fast target of it.
            Some(target) => {
                // The host whose memory it is decides which programs recreate it.
                if !target.volatile {
                    target.host.clone_from(&row.host);
                }
                // The node that has taken a seat says where it is.
                if !target.is_seat() {
                    target.location.clone_from(&row.location);
                }
            }
            // The target has left since this descriptor was written.
            None if marker.next_target.is_some_and(|next| id < next) => {}
            None => {
                return Err(Error::invalid(format!(
                    "the pool has no target {id} (it has {}): take that [[target]] out, or add its location \
                     with `outlive pool add`",
                    ids(&marker.target)
                )));
            }
        }
    }
    Ok(targets)
}

fn ids(targets: &[TargetConfig]) -> String {
    let mut ids: Vec<u32> = targets.iter().map(|target| target.id.unwrap_or(1)).collect();
    ids.sort_unstable();
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    match &ids[..] {
        [] => "only its own directory".to_owned(),
        [one] => format!("target {one}"),
        several => format!("targets {}", several.join(", ")),
    }
}
