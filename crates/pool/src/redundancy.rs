//! What `pool.toml` says of redundancy, and of the targets that carry it.

use crate::host::this_host_or_refuse;
use crate::location::Location;
use outlive_format::Geometry;
use outlive_types::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// `[redundancy]`: how many targets may be lost before a checkpoint is. Neither `mirror` nor `erasure`:
/// none.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Redundancy {
    /// Copies of everything, each on a target of its own, at least two: all but one may be lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<u8>,
    /// Stripes of data and parity, each part on a target of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub erasure: Option<Erasure>,
    /// What a save does while a target is missing.
    #[serde(skip_serializing_if = "Writes::is_default")]
    pub writes: Writes,
}

/// Each container is cut into `data` parts, to which `parity` parts are added: so many may be lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Erasure {
    /// Parts that hold the data, at least one.
    pub data: u8,
    /// Parts that hold parity, at least one.
    pub parity: u8,
}

/// What a save does while it cannot have all its redundancy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Writes {
    /// It goes on with less, and says so.
    #[default]
    Degraded,
    /// It is refused.
    Full,
}

impl Writes {
    fn is_default(&self) -> bool {
        *self == Writes::default()
    }
}

/// `[[target]]`: a place that keeps packs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetConfig {
    /// Its number, which no other target of the pool ever has. A pool's only target needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// A directory's path, by itself or after `file:`; a relative one counts from the pool's
    /// directory.
    pub location: String,
    /// What fails together: no two parts of a stripe are on targets of one host. Without it, the target
    /// fails by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// What is to become of it. Only the table in the log says so.
    #[serde(default, skip_serializing_if = "TargetState::is_default")]
    pub state: TargetState,
    /// It leaves the pool once it is empty.
    #[serde(default, skip_serializing_if = "is_false")]
    pub remove: bool,
    /// The version of the table since which it is active again, if it was not before: a save that began earlier does
    /// not count on what it has there.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub since: u64,
    /// Whether saves write there, or only `outlive pool fill` does.
    #[serde(default, skip_serializing_if = "Tier::is_default")]
    pub tier: Tier,
    /// It is a directory in the memory of `host`: empty when that was started anew, and then made anew.
    #[serde(default, skip_serializing_if = "is_false")]
    pub volatile: bool,
    /// It was made anew, and what was lost with the one before is not in the logs yet: nothing is saved
    /// meanwhile.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unsettled: bool,
}

/// What is to become of a target. `outlive pool repair` brings the pool to what the table says.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum TargetState {
    /// Saves write there.
    #[default]
    Active,
    /// Nothing new is put there, and what is there is moved to the others.
    Draining,
    /// The same, and a save that has written there counts it as gone. Readers still ask it.
    Closed,
    /// It was given up: the pool does without what is on it. If it is there all the same, what it has is
    /// moved to the others.
    Lost,
}

impl TargetState {
    fn is_default(&self) -> bool {
        *self == TargetState::default()
    }

    /// Whether a save counts on what it has written there.
    pub fn counts(self) -> bool {
        matches!(self, TargetState::Active | TargetState::Draining)
    }

    /// Its word in `pool.toml`.
    pub fn name(self) -> &'static str {
        match self {
            TargetState::Active => "active",
            TargetState::Draining => "draining",
            TargetState::Closed => "closed",
            TargetState::Lost => "lost",
        }
    }
}

/// What a target is for. It is fixed when the target is added.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Saves write there, and wait until it is durable. The rule of redundancy concerns these targets.
    #[default]
    Fast,
    /// It has copies of what is on the fast tier, made behind the saves.
    Slow,
}

impl Tier {
    fn is_default(&self) -> bool {
        *self == Tier::default()
    }

    /// Its word in `pool.toml`.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Fast => "fast",
            Tier::Slow => "slow",
        }
    }
}

/// `[tiers]`: which checkpoints the slow tier gets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TiersConfig {
    /// Of each job, the checkpoints whose epoch is a multiple of this.
    pub every: u64,
    /// Of these, those that are at least so old, in seconds.
    pub older_than_s: u64,
    /// Programs fill the slow tier behind their commits; otherwise only `pool fill` does.
    pub fill: bool,
    /// At most so many bytes a second are copied by one program; 0 for no limit.
    pub bytes_per_s: u64,
    /// A job that is closed waits at most so many seconds for the slow tier.
    pub finish_s: u64,
    /// Of each job, so many newest checkpoints stay on the fast tier once the slow one has them; 0 for all.
    pub keep_fast: u64,
}

impl Default for TiersConfig {
    fn default() -> TiersConfig {
        let (older_than_s, bytes_per_s, keep_fast) = (0, 0, 0);
        TiersConfig { every: 1, older_than_s, fill: true, bytes_per_s, finish_s: 60, keep_fast }
    }
}

impl TiersConfig {
    pub(crate) fn is_default(&self) -> bool {
        *self == TiersConfig::default()
    }

    /// Refuses impossible values.
    ///
    /// # Errors
    /// `Invalid`, naming the key.
    pub(crate) fn check(&self) -> Result<()> {
        match self.every {
            0 => Err(Error::invalid(
                "tiers.every = 0 is not possible: give 1 for every checkpoint, or N for every Nth",
            )),
            _ => Ok(()),
        }
    }

    /// Whether the slow tier gets a checkpoint of this epoch, frozen so long ago.
    pub fn takes(&self, epoch: u64, age_s: u64) -> bool {
        epoch.is_multiple_of(self.every.max(1)) && age_s >= self.older_than_s
    }
}

fn is_false(value: &bool) -> bool {
    !*value
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl TargetConfig {
    /// A target at `location`, which fails by itself, and has no number yet.
    pub fn at(location: impl Into<String>) -> TargetConfig {
        let (id, host, state, remove, since, tier) = Default::default();
        let (location, volatile, unsettled) = (location.into(), false, false);
        TargetConfig { id, location, host, state, remove, since, tier, volatile, unsettled }
    }

    /// The same in the memory of this host, unless it names another.
    ///
    /// # Errors
    /// `Invalid` if this host has no name by which others could tell it from themselves.
    pub fn in_memory(self) -> Result<TargetConfig> {
        let host = match self.host {
            Some(host) => host,
            None => this_host_or_refuse()?,
        };
        Ok(TargetConfig { volatile: true, host: Some(host), ..self })
    }

    /// The same in another state; `remove`: until it is empty.
    #[must_use]
    pub fn in_state(self, state: TargetState, remove: bool) -> TargetConfig {
        TargetConfig { state, remove, ..self }
    }

    /// The same on another tier.
    #[must_use]
    pub fn on_tier(self, tier: Tier) -> TargetConfig {
        TargetConfig { tier, ..self }
    }

    /// Where it is, for a pool at `root`.
    ///
    /// # Errors
    /// `Invalid` for a location that is not possible.
    pub(crate) fn seen_from(&self, root: &Location) -> Result<Location> {
        Location::parse(&self.location, TARGET)?.seen_from(root)
    }
}

/// Its table in `pool.toml`.
pub(crate) const TARGET: &str = "[[target]]";

impl Redundancy {
    /// `copies` of everything.
    pub fn mirror(copies: u8) -> Redundancy {
        Redundancy { mirror: Some(copies), ..Redundancy::default() }
    }

    /// Stripes of `data` parts and `parity` parts more.
    pub fn erasure(data: u8, parity: u8) -> Redundancy {
        Redundancy { erasure: Some(Erasure { data, parity }), ..Redundancy::default() }
    }

    pub(crate) fn is_default(&self) -> bool {
        *self == Redundancy::default()
    }

    /// How the containers of a pack are spread over shards.
    pub fn geometry(&self, container_bytes: u64) -> Geometry {
        match (self.mirror, self.erasure) {
            (Some(copies), _) => Geometry { k: 1, m: copies.saturating_sub(1), container_bytes },
            (None, Some(Erasure { data, parity })) => {
                Geometry { k: data, m: parity, container_bytes }
            }
            (None, None) => Geometry::plain(container_bytes),
        }
    }

    /// So many targets may be lost.
    pub fn survives(&self) -> usize {
        self.geometry(0).m.into()
    }

    /// In words, as in `pool.toml`.
    pub fn describe(&self) -> String {
        match (self.mirror, self.erasure) {
            (Some(copies), _) => format!("mirror = {copies}"),
            (None, Some(Erasure { data, parity })) => {
                format!("erasure = {{ data = {data}, parity = {parity} }}")
            }
            (None, None) => "none".to_owned(),
        }
    }

    /// Refuses impossible values.
    ///
    /// # Errors
    /// `Invalid`, naming the key.
    pub(crate) fn check(&self, container_bytes: u64) -> Result<()> {
        let wrong = |what: String| Err(self.impossible(&what));
        if self.mirror.is_some() && self.erasure.is_some() {
            return Err(Error::invalid(
                "redundancy has both mirror and erasure: leave the one that you want",
            ));
        }
        if self.mirror.is_some_and(|copies| copies < 2) {
            return wrong("give at least 2 copies; leave the key out for no redundancy".to_owned());
        }
        if let Some(Erasure { data, parity }) = self.erasure {
            let shards = u16::from(data) + u16::from(parity);
            if data == 0 || parity == 0 || shards > 256 {
                return wrong(
                    "give at least one data and one parity part, and at most 256 in all".to_owned(),
                );
            }
            if container_bytes / u64::from(data) < 4096 {
                return wrong(format!(
                    "a container of {container_bytes} bytes is too short for {data} parts of 4096"
                ));
            }
        }
        Ok(())
    }

    fn impossible(&self, what: &str) -> Error {
        Error::invalid(format!("redundancy.{} is not possible: {what}", self.describe()))
    }

    /// Refuses rules that need more targets than there are.
    ///
    /// # Errors
    /// `Invalid`, saying how many it needs.
    pub(crate) fn check_targets(&self, targets: &[TargetConfig]) -> Result<()> {
        let all = targets.len();
        if targets.iter().any(|target| target.volatile && target.tier == Tier::Slow) {
            return Err(Error::invalid(
                "a slow target cannot be volatile: it has the copies that are left when memory is lost",
            ));
        }
        let targets: Vec<&TargetConfig> =
            targets.iter().filter(|target| target.tier == Tier::Fast).collect();
        if targets.is_empty() && all > 0 {
            return Err(Error::invalid(
                "all targets are slow ones, and a pool needs a fast one to save to: name one without \
                 tier = \"slow\"",
            ));
        }
        check_volatile(&targets)?;
        let geometry = self.geometry(0);
        let needed = usize::from(geometry.k) + usize::from(geometry.m);
        let domains = domains(&targets).max(1);
        if needed <= domains {
            return Ok(());
        }
        let on_one_host = match domains < targets.len() {
            true => format!(" ({} targets, some on one host)", targets.len()),
            false => String::new(),
        };
        Err(self.impossible(&format!(
            "it needs {needed} targets that fail by themselves, and there are {domains}{on_one_host}"
        )))
    }
}

/// Memory of one host is seen by nobody else, so no pack can be spread over that of several.
fn check_volatile(fast: &[&TargetConfig]) -> Result<()> {
    let hosts: BTreeSet<Option<&str>> =
        fast.iter().filter(|one| one.volatile).map(|one| one.host.as_deref()).collect();
    if hosts.contains(&None) {
        return Err(Error::invalid(
            "a volatile target needs `host`, which says whose memory it is",
        ));
    }
    if hosts.len() > 1 {
        let hosts: Vec<&str> = hosts.into_iter().flatten().collect();
        return Err(Error::invalid(format!(
            "the volatile targets are in the memory of several hosts ({}), and none of these sees that of \
             another: give each host a pool of its own",
            hosts.join(", ")
        )));
    }
    Ok(())
}

/// How many of the targets fail by themselves: those of one host count once.
fn domains(targets: &[&TargetConfig]) -> usize {
    let hosts: BTreeSet<&str> = targets.iter().filter_map(|one| one.host.as_deref()).collect();
    hosts.len() + targets.iter().filter(|one| one.host.is_none()).count()
}
