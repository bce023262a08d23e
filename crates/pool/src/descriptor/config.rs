//! `pool.toml`: values that are fixed at creation, and values that only tune.

use crate::descriptor::encryption::EncryptionConfig;
use crate::descriptor::location::parse as parse_location;
use crate::descriptor::redundancy::{Redundancy, TARGET, TargetConfig, TiersConfig};
use outlive_backend::Location;
use outlive_chunk::Compression;
use outlive_format::{Geometry, REVISION};
use outlive_types::{BLOCK_BYTES, Codec, Error, FreezeMode, PAGE_BYTES, Result, TrackerChoice};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// The whole descriptor `pool.toml`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(from = "DescriptorText")]
pub struct PoolConfig {
    /// Values that are fixed when the pool is made.
    pub format: FormatConfig,
    /// Values that may change at any time.
    pub tuning: Tuning,
    /// Rule that says how many targets may be lost.
    #[serde(skip_serializing_if = "Redundancy::is_default")]
    pub redundancy: Redundancy,
    /// Location of the log; `None`: beside the descriptor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<LogConfig>,
    /// Encryption of all bytes; `None`: they are stored as they are. Fixed when the pool is made,
    /// apart from the key that wraps its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<EncryptionConfig>,
    /// Rule for the checkpoints that the slow tier gets.
    #[serde(skip_serializing_if = "TiersConfig::is_default")]
    pub tiers: TiersConfig,
    /// Targets that keep the packs; empty: the pool's own directory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub target: Vec<TargetConfig>,
}

/// A descriptor as it is read. A marker of the log, which has more keys, may serve as one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DescriptorText {
    format: FormatConfig,
    #[serde(default)]
    tuning: Tuning,
    #[serde(default)]
    redundancy: Redundancy,
    #[serde(default)]
    log: Option<LogConfig>,
    #[serde(default)]
    encryption: Option<EncryptionConfig>,
    #[serde(default)]
    tiers: TiersConfig,
    #[serde(default)]
    target: Vec<TargetConfig>,
    #[serde(default, rename = "next_target")]
    _next_target: Option<u32>,
    #[serde(default, rename = "replica")]
    _replica: Option<IgnoredAny>,
    #[serde(default, rename = "moved")]
    _moved: Option<IgnoredAny>,
}

impl From<DescriptorText> for PoolConfig {
    fn from(text: DescriptorText) -> PoolConfig {
        let DescriptorText { format, tuning, redundancy, log, encryption, tiers, target, .. } =
            text;
        PoolConfig { format, tuning, redundancy, log, encryption, tiers, target }
    }
}

/// `[log]`: one replica, or several.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// Number of the log's configuration, from 1: `outlive pool move-log` makes the next one.
    #[serde(skip_serializing_if = "is_first")]
    pub number: u32,
    /// A directory, a bucket that honours conditional puts, or an etcd cluster (docs/pool.md).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// Three, five or seven of these, of which a minority may be lost. Their order is fixed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub locations: Vec<String>,
}

fn is_first(number: &u32) -> bool {
    *number == 1
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig { number: 1, location: None, locations: Vec::new() }
    }
}

impl LogConfig {
    /// Returns a log with replicas at these locations; `None` if there are none.
    pub fn at(locations: &[String]) -> Option<LogConfig> {
        LogConfig::numbered(locations, 1)
    }

    /// Returns the same, as configuration `number`.
    pub(crate) fn numbered(locations: &[String], number: u32) -> Option<LogConfig> {
        match locations {
            [] => None,
            [one] => Some(LogConfig { number, location: Some(one.clone()), locations: Vec::new() }),
            several => Some(LogConfig { number, location: None, locations: several.to_vec() }),
        }
    }

    /// Returns the locations of all replicas, in their order.
    pub(crate) fn all(&self) -> Vec<&String> {
        self.location.iter().chain(&self.locations).collect()
    }

    pub(crate) fn check(&self) -> Result<()> {
        for location in self.all() {
            parse_location(location, LOG)?;
        }
        if self.number == 0 {
            return Err(Error::invalid("[log] number = 0 is not possible: it counts from 1"));
        }
        match (self.location.is_some(), self.locations.len()) {
            (true, 0) | (false, 3 | 5 | 7) => Ok(()),
            (true, _) => {
                Err(Error::invalid("[log] has both location and locations: leave one out"))
            }
            (false, count) => Err(Error::invalid(format!(
                "[log] has {count} locations: give one as `location`, or 3, 5 or 7 as `locations`, of \
                 which a minority may be lost"
            ))),
        }
    }
}

/// Name of its table in `pool.toml`.
pub(crate) const LOG: &str = "[log]";

/// Values that decide the bytes in the pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormatConfig {
    /// Format version (docs/format.md).
    pub version: u32,
    /// Draft of that version.
    pub revision: u32,
    /// 32 hexadecimal digits, random.
    pub pool_id: String,
    /// Length of a container, the unit of I/O.
    pub container_bytes: u64,
    /// Length of all containers of a pack together.
    pub pack_bytes: u64,
    /// Length of the longest chunk.
    pub chunk_bytes_max: u64,
}

/// Values that decide speed and memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tuning {
    /// Memory for containers on their way to or from the targets.
    pub staging_bytes: u64,
    /// Memory for frozen copies of dirty pages; a save persists what exceeds it while `save` still
    /// blocks.
    pub freeze_bytes_max: u64,
    /// Method to snapshot dirty pages: `copy`, `fork`, `precopy`, `helper`, or `auto`, which takes the one
    /// that stops the program least (docs/capture.md).
    pub freeze: String,
    /// Method to find changed pages: `auto`, `wp-async` or `hash`.
    pub tracker: String,
    /// Memory for the index of known chunks; a duplicate that it misses costs only space.
    pub index_bytes_max: u64,
    /// Number of threads that hash and copy; 0 takes the machine's cores, at most 4.
    pub threads: u32,
    /// Percentage of a save's new bytes that it may spend on rewriting fragmented data.
    pub rewrite_percent_max: u32,
    /// Gap below which one read takes two ranges.
    pub read_gap_bytes: u64,
    /// Whether reads of a pool with redundancy go around late targets.
    pub reads_around: bool,
    /// Compression of new chunks: `none`, `lz4`, `zstd`, or `auto`: where it makes saves faster.
    pub compression: String,
    /// Level of Zstandard, 1 to 12; files are compressed at 5 at least.
    pub compression_level: u32,
    /// Compression of new chunks of files: no program waits for them, and they are kept long.
    pub compression_files: String,
    /// Rules for prunings that are given none; empty: such prunings are refused.
    pub keep: String,
    /// Longest encoding of a leaf that stays in memory; longer leaves are read again when needed.
    pub leaf_bytes_max: u64,
    /// Seconds after which a program that saves sets the times of its checkpoints' files to now; 0:
    /// never. For file systems that delete files by age.
    pub freshen_every_s: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            staging_bytes: 64 << 20,
            freeze_bytes_max: 64 << 20,
            freeze: FreezeMode::Auto.name().to_owned(),
            tracker: "auto".to_owned(),
            index_bytes_max: 64 << 20,
            threads: 0,
            rewrite_percent_max: 10,
            read_gap_bytes: 64 << 10,
            reads_around: true,
            compression: "auto".to_owned(),
            compression_level: 1,
            compression_files: "zstd".to_owned(),
            keep: String::new(),
            leaf_bytes_max: 2048,
            freshen_every_s: 0,
        }
    }
}

impl Tuning {
    /// Returns the defaults of a new pool with packs in buckets: a distant server needs more data
    /// in flight to keep the network busy.
    pub fn of_buckets() -> Tuning {
        Tuning { staging_bytes: 128 << 20, ..Tuning::default() }
    }

    /// Returns the compression of saves.
    ///
    /// # Errors
    /// `Invalid` for an unknown word.
    pub fn compression(&self) -> Result<Compression> {
        compression_of("compression", &self.compression)
    }

    /// Returns the compression of files.
    ///
    /// # Errors
    /// `Invalid` for an unknown word.
    pub fn compression_files(&self) -> Result<Compression> {
        compression_of("compression_files", &self.compression_files)
    }

    /// Returns the method to snapshot dirty pages.
    ///
    /// # Errors
    /// `Invalid` for an unknown word.
    pub fn freeze(&self) -> Result<FreezeMode> {
        FreezeMode::from_name(&self.freeze).ok_or_else(|| {
            let word = &self.freeze;
            Error::invalid(format!(
                "tuning.freeze = {word:?} is not possible: give auto, copy, fork, precopy or helper"
            ))
        })
    }

    /// Returns the method to find changed pages.
    ///
    /// # Errors
    /// `Invalid` for an unknown word.
    pub fn tracker(&self) -> Result<TrackerChoice> {
        TrackerChoice::parse(&self.tracker).map_err(|e| e.context("tuning"))
    }

    /// Returns the number of threads to use on this machine.
    pub fn threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get().min(4)),
            n => n as usize,
        }
    }
}

fn compression_of(key: &str, word: &str) -> Result<Compression> {
    Ok(match word {
        "none" => Compression::None,
        "lz4" => Compression::Always(Codec::Lz4),
        "zstd" => Compression::Always(Codec::Zstd),
        "auto" => Compression::Auto,
        other => {
            return Err(Error::invalid(format!(
                "tuning.{key} = {other:?} is not possible: give none, lz4, zstd or auto"
            )));
        }
    })
}

impl FormatConfig {
    /// Returns the defaults of a new pool.
    pub fn new(pool_id: [u8; 16]) -> FormatConfig {
        let mut hex = String::with_capacity(32);
        for byte in pool_id {
            let _ = write!(hex, "{byte:02x}");
        }
        FormatConfig {
            version: 0,
            revision: REVISION,
            pool_id: hex,
            container_bytes: 4 << 20,
            pack_bytes: 64 << 20,
            chunk_bytes_max: 64 << 10,
        }
    }

    /// Returns the pool's id as bytes. The configuration must have been checked.
    pub fn pool_id_bytes(&self) -> [u8; 16] {
        let mut id = [0; 16];
        for (byte, pair) in id.iter_mut().zip(self.pool_id.as_bytes().chunks(2)) {
            *byte = std::str::from_utf8(pair)
                .ok()
                .and_then(|pair| u8::from_str_radix(pair, 16).ok())
                .unwrap_or(0);
        }
        id
    }

    /// Returns the length of the longest chunk in pages.
    pub fn chunk_pages_max(&self) -> u32 {
        (self.chunk_bytes_max / PAGE_BYTES as u64) as u32
    }
}

impl PoolConfig {
    /// Returns the configuration of a pool that keeps its packs in its own directory.
    pub fn new(format: FormatConfig, tuning: Tuning) -> PoolConfig {
        let (redundancy, tiers, target) = Default::default();
        PoolConfig { format, tuning, redundancy, log: None, encryption: None, tiers, target }
    }

    /// Returns how the containers of new packs are spread over shards.
    pub fn geometry(&self) -> Geometry {
        self.redundancy.geometry(self.format.container_bytes)
    }

    /// Returns the locations of its targets, seen from the pool's `root`; without targets, `root`.
    ///
    /// # Errors
    /// `Invalid` for an impossible location.
    pub(crate) fn locations(&self, root: &Location) -> Result<Vec<Location>> {
        if self.target.is_empty() {
            return Ok(vec![root.clone()]);
        }
        self.target.iter().map(|target| target.seen_from(root)).collect()
    }

    /// Returns the locations of the targets that are not at the pool's own `root`, and not vacant.
    ///
    /// # Errors
    /// As [`PoolConfig::locations`].
    pub(crate) fn locations_elsewhere(&self, root: &Location) -> Result<Vec<Location>> {
        let mut locations = Vec::new();
        for (number, location) in self.locations(root)?.into_iter().enumerate() {
            let is_vacant = self.target.get(number).is_some_and(TargetConfig::is_vacant);
            if !is_vacant && !location.is_same(root) {
                locations.push(location);
            }
        }
        Ok(locations)
    }

    /// Reads a descriptor. `path` is for messages.
    ///
    /// # Errors
    /// `Invalid` for text that is no descriptor, another version, or impossible values.
    pub fn parse(text: &str, path: &str) -> Result<PoolConfig> {
        // The version decides whether the rest can be understood at all, so it is read first.
        #[derive(Deserialize)]
        struct Version {
            version: u32,
            revision: u32,
        }
        #[derive(Deserialize)]
        struct Head {
            format: Version,
        }
        let refuse = |what: String| Error::invalid(format!("{path}: {what}"));
        let head: Head =
            toml::from_str(text).map_err(|e| refuse(format!("not a pool descriptor: {e}")))?;
        if (head.format.version, head.format.revision) != (0, REVISION) {
            return Err(refuse(format!(
                "the pool has format {}.{}, this build reads and writes 0.{REVISION}: use the build \
                 that made the pool, or make a new pool",
                head.format.version, head.format.revision
            )));
        }
        let config: PoolConfig = toml::from_str(text).map_err(|e| refuse(e.to_string()))?;
        config.check().map_err(|e| e.context(path))?;
        Ok(config)
    }

    /// Returns the pool's id that a descriptor names, whatever else is in it; `None` if it names
    /// none.
    pub fn pool_id_of(text: &str) -> Option<String> {
        #[derive(Deserialize)]
        struct Format {
            pool_id: String,
        }
        #[derive(Deserialize)]
        struct Head {
            format: Format,
        }
        toml::from_str::<Head>(text).ok().map(|head| head.format.pool_id)
    }

    /// Returns the descriptor as text.
    ///
    /// # Errors
    /// `Bug` if it cannot be written as TOML.
    pub fn to_text(&self) -> Result<String> {
        let body = toml::to_string(self)
            .map_err(|e| Error::bug(format!("the pool's descriptor cannot be written: {e}")))?;
        Ok(format!(
            "# An outlive pool. [format] is fixed; [tuning] may change at any time (docs/format.md).\n\n{body}"
        ))
    }

    /// Refuses impossible values.
    ///
    /// # Errors
    /// `Invalid`, naming the key.
    pub fn check(&self) -> Result<()> {
        let f = &self.format;
        let page = PAGE_BYTES as u64;
        let wrong = |key: &str, value: u64, rule: &str| {
            Err(Error::invalid(format!("{key} = {value} is not possible: {rule}")))
        };
        if f.pool_id.len() != 32 || !f.pool_id.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(Error::invalid("format.pool_id must be 32 hexadecimal digits"));
        }
        if !(64 << 10..=64 << 20).contains(&f.container_bytes)
            || !f.container_bytes.is_multiple_of(page)
        {
            return wrong(
                "format.container_bytes",
                f.container_bytes,
                "a multiple of 4096 from 64 KiB to 64 MiB",
            );
        }
        let containers = f.pack_bytes / f.container_bytes;
        if !f.pack_bytes.is_multiple_of(f.container_bytes) || !(1..=64).contains(&containers) {
            return wrong("format.pack_bytes", f.pack_bytes, "1 to 64 containers");
        }
        if f.pack_bytes > 1 << 30 {
            return wrong("format.pack_bytes", f.pack_bytes, "at most 1 GiB");
        }
        let chunk_max = (BLOCK_BYTES as u64).min(f.container_bytes);
        if !f.chunk_bytes_max.is_power_of_two() || !(page..=chunk_max).contains(&f.chunk_bytes_max)
        {
            return wrong(
                "format.chunk_bytes_max",
                f.chunk_bytes_max,
                "a power of two from 4 KiB to 2 MiB, at most one container",
            );
        }
        for target in &self.target {
            parse_location(&target.location, TARGET)?;
        }
        self.log.as_ref().map_or(Ok(()), LogConfig::check)?;
        self.encryption.as_ref().map_or(Ok(()), EncryptionConfig::check)?;
        self.redundancy.check(f.container_bytes)?;
        self.tiers.check()?;
        let t = &self.tuning;
        if t.staging_bytes < 4 * f.container_bytes {
            return wrong("tuning.staging_bytes", t.staging_bytes, "at least four containers");
        }
        if t.threads > 256 {
            return wrong("tuning.threads", u64::from(t.threads), "at most 256");
        }
        t.freeze()?;
        t.compression()?;
        t.compression_files()?;
        t.tracker()?;
        if !(1..=12).contains(&t.compression_level) {
            let level = u64::from(t.compression_level);
            return wrong("tuning.compression_level", level, "1 to 12");
        }
        if t.rewrite_percent_max > 1000 {
            return wrong(
                "tuning.rewrite_percent_max",
                u64::from(t.rewrite_percent_max),
                "at most 1000",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> PoolConfig {
        PoolConfig::new(FormatConfig::new([0xab; 16]), Tuning::default())
    }

    #[test]
    fn a_descriptor_survives_its_text() {
        let config = sample();
        assert_eq!(PoolConfig::parse(&config.to_text().unwrap(), "x").unwrap(), config);
        assert_eq!(config.format.pool_id_bytes(), [0xab; 16]);
    }

    #[test]
    fn a_target_survives_its_text_and_none_is_not_written() {
        let mut config = sample();
        assert!(!config.to_text().unwrap().contains("target]"));
        config.target = vec![TargetConfig::at("file:/big disk")];
        let text = config.to_text().unwrap();
        assert!(text.ends_with("\n[[target]]\nlocation = \"file:/big disk\"\n"), "{text}");
        assert_eq!(PoolConfig::parse(&text, "x").unwrap(), config);
    }

    #[test]
    fn impossible_targets_are_named() {
        for (targets, told) in [
            ("[[target]]", "location"),
            ("[[target]]\nlocation = 1", "location"),
            ("[[target]]\nlocation = \"a\"\nlokation = \"b\"", "lokation"),
            ("[target]\nlocation = \"a\"", "target"),
            ("target = []\n[[target]]\nlocation = \"a\"", "target"),
            ("[[target]]\nlocation = \"\"", "names no directory"),
            (
                "[[target]]\nlocation = \"s3://Bucket\"",
                "[[target]] location = \"s3://Bucket\" is not",
            ),
            ("[[target]]\nlocation = \"http://x\"", "no scheme \"http\""),
            ("[log]\nlocation = \"http://x\"", "[log] location = \"http://x\" is not possible"),
            ("[log]\nplace = \"x\"", "place"),
            ("[log]\n", "0 locations"),
            ("[log]\nnumber = 0\nlocation = \"a\"", "number = 0"),
            ("[log]\nlocations = [\"a\", \"b\"]", "2 locations: give one"),
            ("[log]\nlocation = \"a\"\nlocations = [\"a\"]", "both location and locations"),
            ("[redundancy]\nmirror = 1", "at least 2 copies"),
            (
                "[redundancy]\nmirror = 2\nerasure = { data = 2, parity = 1 }",
                "both mirror and erasure",
            ),
            ("[redundancy]\nerasure = { data = 2 }", "missing field `parity`"),
            ("[redundancy]\nerasure = { data = 0, parity = 1 }", "at least one data"),
            ("[redundancy]\nerasure = { data = 255, parity = 2 }", "at most 256"),
            ("[redundancy]\nraid = 5", "raid"),
            ("[redundancy]\nwrites = \"some\"", "some"),
        ] {
            let text = format!("{}\n{targets}\n", sample().to_text().unwrap());
            let error = PoolConfig::parse(&text, "p/pool.toml").unwrap_err();
            assert_eq!(error.kind(), outlive_types::ErrorKind::Invalid, "{targets}");
            assert!(error.message().starts_with("p/pool.toml: "), "{error}");
            assert!(error.message().contains(told), "{targets}: {error}");
        }
    }

    #[test]
    fn a_descriptor_of_another_format_is_named() {
        let text = sample().to_text().unwrap();
        let ours = format!("revision = {REVISION}");
        assert!(text.contains(&ours), "{text}");
        for other in [REVISION - 1, REVISION + 1] {
            let text = text.replace(&ours, &format!("revision = {other}"));
            let error = PoolConfig::parse(&text, "p/pool.toml").unwrap_err();
            for part in [format!("0.{other},"), format!("0.{REVISION}:"), "p/pool.toml".to_owned()]
            {
                assert!(error.message().contains(&part), "{part}: {error}");
            }
        }
    }

    #[test]
    fn impossible_values_are_named() {
        for (from, to, key) in [
            ("container_bytes = 4194304", "container_bytes = 4194305", "container_bytes"),
            ("pack_bytes = 67108864", "pack_bytes = 1", "pack_bytes"),
            ("chunk_bytes_max = 65536", "chunk_bytes_max = 3", "chunk_bytes_max"),
            ("staging_bytes = 67108864", "staging_bytes = 1", "staging_bytes"),
            ("staging_bytes = 67108864", "stagging_bytes = 1", "stagging_bytes"),
            ("staging_bytes = 67108864", "staging_bytes = -1", "staging_bytes"),
            ("compression = \"auto\"", "compression = \"lzma\"", "lzma"),
            ("freeze = \"auto\"", "freeze = \"thaw\"", "freeze"),
            ("compression_level = 1", "compression_level = 13", "compression_level"),
            ("tracker = \"auto\"", "tracker = \"magic\"", "magic"),
            ("compression_files = \"zstd\"", "compression_files = \"gzip\"", "compression_files"),
        ] {
            let text = sample().to_text().unwrap();
            assert!(text.contains(from), "{text}");
            let error = PoolConfig::parse(&text.replace(from, to), "x").unwrap_err();
            assert!(error.message().contains(key), "{error}");
        }
        assert!(PoolConfig::parse("", "x").is_err());
        assert!(PoolConfig::parse("\u{0}", "x").is_err());
    }
}
