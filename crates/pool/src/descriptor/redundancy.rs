//! Tables of `pool.toml` for redundancy, and for the targets that carry it.

use crate::descriptor::location::parse;
use crate::descriptor::vacant::{is_vacant, vacant};
use crate::host::this_host_or_refuse;
use outlive_backend::Location;
use outlive_format::Geometry;
use outlive_types::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// `[redundancy]`: how many targets may be lost before a checkpoint is. Without `mirror` and
/// `erasure`: none.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Redundancy {
    /// Number of copies of everything, each on its own target, at least two: all but one may be
    /// lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<u8>,
    /// Stripes of data and parity, each part on its own target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub erasure: Option<Erasure>,
    /// Behaviour of a save while a target is missing.
    #[serde(skip_serializing_if = "Writes::is_default")]
    pub writes: Writes,
}

/// Each container is cut into `data` parts, and `parity` parts are added: `parity` of all may be
/// lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Erasure {
    /// Parts that hold the data, at least one.
    pub data: u8,
    /// Parts that hold parity, at least one.
    pub parity: u8,
}

/// Behaviour of a save that cannot have all its redundancy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Writes {
    /// It goes on with less, and warns.
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

/// `[[target]]`: a location that keeps packs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetConfig {
    /// Its number, which no other target of the pool ever has. A pool's only target needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// A directory's path, by itself or after `file:`; a relative one counts from the pool's
    /// directory.
    pub location: String,
    /// Host that it fails with: no two parts of a stripe are on targets of one host. Without it,
    /// the target fails by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Its state, which only the table in the log decides.
    #[serde(default, skip_serializing_if = "TargetState::is_default")]
    pub state: TargetState,
    /// Whether it leaves the pool once it is empty.
    #[serde(default, skip_serializing_if = "is_false")]
    pub remove: bool,
    /// Version of the table since which it is active again, if it was not before: a save that began
    /// earlier does not count its shards there.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub since: u64,
    /// Its tier: saves write to fast targets, and `outlive pool fill` to slow ones.
    #[serde(default, skip_serializing_if = "Tier::is_default")]
    pub tier: Tier,
    /// Whether it is a directory in the memory of `host`: empty after a restart, and then
    /// recreated.
    #[serde(default, skip_serializing_if = "is_false")]
    pub volatile: bool,
    /// Whether it was recreated, and the logs do not say yet what was lost with the old one:
    /// nothing is saved meanwhile.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unsettled: bool,
}

/// State of a target. `outlive pool repair` makes the pool match it.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum TargetState {
    /// Saves write there.
    #[default]
    Active,
    /// It gets nothing new, and its shards are moved to the others.
    Draining,
    /// The same, and a save that has written there counts it as gone. Readers still read it.
    Closed,
    /// It was given up: the pool does without its shards. If it is there all the same, they are
    /// moved to the others.
    Lost,
}

impl TargetState {
    fn is_default(&self) -> bool {
        *self == TargetState::default()
    }

    /// Returns whether a save counts the shards that it has written there.
    pub fn counts(self) -> bool {
        matches!(self, TargetState::Active | TargetState::Draining)
    }

    /// Returns its name in `pool.toml`.
    pub fn name(self) -> &'static str {
        match self {
            TargetState::Active => "active",
            TargetState::Draining => "draining",
            TargetState::Closed => "closed",
            TargetState::Lost => "lost",
        }
    }
}

/// Tier of a target, which is fixed when the target is added.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Saves write there, and wait until that is durable. The redundancy rule concerns these
    /// targets.
    #[default]
    Fast,
    /// It has copies of the fast tier's data, made behind the saves.
    Slow,
}

impl Tier {
    fn is_default(&self) -> bool {
        *self == Tier::default()
    }

    /// Returns its name in `pool.toml`.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Fast => "fast",
            Tier::Slow => "slow",
        }
    }
}

/// The checkpoints of a job that the slow tier gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "NumberOrWord", into = "NumberOrWord")]
pub enum FillEvery {
    /// Those whose epoch is a multiple of this.
    Multiple(u64),
    /// The newest, as often as the program has learned.
    Auto,
}

/// [`FillEvery`] in `pool.toml`.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum NumberOrWord {
    Number(u64),
    Word(String),
}

/// The word for [`FillEvery::Auto`].
const AUTO: &str = "auto";

impl TryFrom<NumberOrWord> for FillEvery {
    type Error = String;

    fn try_from(read: NumberOrWord) -> std::result::Result<FillEvery, String> {
        match read {
            NumberOrWord::Number(step) => Ok(FillEvery::Multiple(step)),
            NumberOrWord::Word(word) if word == AUTO => Ok(FillEvery::Auto),
            NumberOrWord::Word(word) => {
                Err(format!("tiers.every = {word:?} is not possible: give a number, or {AUTO:?}"))
            }
        }
    }
}

impl From<FillEvery> for NumberOrWord {
    fn from(every: FillEvery) -> NumberOrWord {
        match every {
            FillEvery::Multiple(step) => NumberOrWord::Number(step),
            FillEvery::Auto => NumberOrWord::Word(AUTO.to_owned()),
        }
    }
}

/// `[tiers]`: which checkpoints the slow tier gets, and when.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TiersConfig {
    /// The checkpoints of each job.
    pub every: FillEvery,
    /// Least age of these, in seconds.
    pub older_than_s: u64,
    /// Whether programs fill the slow tier behind their commits; otherwise only `pool fill` does.
    pub fill: bool,
    /// Limit for the bytes that one program copies in a second; 0 for no limit.
    pub bytes_per_s: u64,
    /// Longest wait for the slow tier when a job is closed, in seconds.
    pub finish_s: u64,
    /// Number of newest checkpoints of each job that stay on the fast tier once the slow one has
    /// them; 0 for all.
    pub keep_fast: u64,
}

impl Default for TiersConfig {
    fn default() -> TiersConfig {
        let (older_than_s, bytes_per_s, keep_fast) = (0, 0, 0);
        TiersConfig {
            every: FillEvery::Multiple(1),
            older_than_s,
            fill: true,
            bytes_per_s,
            finish_s: 60,
            keep_fast,
        }
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
            FillEvery::Multiple(0) => Err(Error::invalid(
                "tiers.every = 0 is not possible: give 1 for every checkpoint, N for every Nth, or \"auto\"",
            )),
            _ => Ok(()),
        }
    }
}

fn is_false(value: &bool) -> bool {
    !*value
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl TargetConfig {
    /// Returns a target at `location`, which fails by itself, and has no number yet.
    pub fn at(location: impl Into<String>) -> TargetConfig {
        let (id, host, state, remove, since, tier) = Default::default();
        let (location, volatile, unsettled) = (location.into(), false, false);
        TargetConfig { id, location, host, state, remove, since, tier, volatile, unsettled }
    }

    /// Returns the same in the memory of this host, unless it names another.
    ///
    /// # Errors
    /// `Invalid` if this host has no unique name.
    pub fn in_memory(self) -> Result<TargetConfig> {
        let host = match self.host {
            Some(host) => host,
            None => this_host_or_refuse()?,
        };
        Ok(TargetConfig { volatile: true, host: Some(host), ..self })
    }

    /// Returns a seat that no node has taken, with a number that no target has or had.
    pub fn vacant(id: u32) -> TargetConfig {
        TargetConfig { id: Some(id), volatile: true, ..TargetConfig::at(vacant(id)) }
    }

    /// Returns whether it is a seat: the node of a host takes it while a job runs there.
    pub fn is_seat(&self) -> bool {
        self.volatile && (self.is_vacant() || is_node(&self.location))
    }

    /// Returns whether it is a seat that no node has taken.
    pub fn is_vacant(&self) -> bool {
        is_vacant(&self.location)
    }

    /// Returns the same in another state; `remove`: it leaves the pool once it is empty.
    #[must_use]
    pub fn in_state(self, state: TargetState, remove: bool) -> TargetConfig {
        TargetConfig { state, remove, ..self }
    }

    /// Returns the same on another tier.
    #[must_use]
    pub fn on_tier(self, tier: Tier) -> TargetConfig {
        TargetConfig { tier, ..self }
    }

    /// Returns its location, for a pool at `root`.
    ///
    /// # Errors
    /// `Invalid` for an impossible location.
    pub(crate) fn seen_from(&self, root: &Location) -> Result<Location> {
        parse(&self.location, TARGET)?.seen_from(root)
    }
}

/// Name of its table in `pool.toml`.
pub(crate) const TARGET: &str = "[[target]]";

impl Redundancy {
    /// Returns the rule for `copies` of everything.
    pub fn mirror(copies: u8) -> Redundancy {
        Redundancy { mirror: Some(copies), ..Redundancy::default() }
    }

    /// Returns the rule for stripes of `data` parts, and `parity` parts more.
    pub fn erasure(data: u8, parity: u8) -> Redundancy {
        Redundancy { erasure: Some(Erasure { data, parity }), ..Redundancy::default() }
    }

    pub(crate) fn is_default(&self) -> bool {
        *self == Redundancy::default()
    }

    /// Returns how the containers of a pack are spread over shards.
    pub fn geometry(&self, container_bytes: u64) -> Geometry {
        match (self.mirror, self.erasure) {
            (Some(copies), _) => Geometry { k: 1, m: copies.saturating_sub(1), container_bytes },
            (None, Some(Erasure { data, parity })) => {
                Geometry { k: data, m: parity, container_bytes }
            }
            (None, None) => Geometry::plain(container_bytes),
        }
    }

    /// Returns how many targets may be lost.
    pub fn survives(&self) -> usize {
        self.geometry(0).m.into()
    }

    /// Returns the rule in words, as in `pool.toml`.
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
    /// `Invalid`, with the number that they need.
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

/// Returns whether a location is on a storage node.
fn is_node(location: &str) -> bool {
    ["node:", "nodes:"].iter().any(|scheme| location.starts_with(scheme))
}

/// Refuses directories in the memory of several hosts: no host sees the memory of another, so no
/// pack can be spread over both. Seats are seen by all.
fn check_volatile(fast: &[&TargetConfig]) -> Result<()> {
    if let Some(vacant) = fast.iter().find(|one| one.is_vacant() && !one.volatile) {
        return Err(Error::invalid(format!(
            "{} is a seat, which is made by `outlive pool init --seats`",
            vacant.location
        )));
    }
    let hosts: BTreeSet<Option<&str>> = fast
        .iter()
        .filter(|one| one.volatile && !one.is_seat())
        .map(|one| one.host.as_deref())
        .collect();
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

/// Returns how many of the targets fail by themselves: those of one host count once.
fn domains(targets: &[&TargetConfig]) -> usize {
    let hosts: BTreeSet<&str> = targets.iter().filter_map(|one| one.host.as_deref()).collect();
    hosts.len() + targets.iter().filter(|one| one.host.is_none()).count()
}
