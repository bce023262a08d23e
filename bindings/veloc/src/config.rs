//! VELOC's configuration file: lines of `key = value`, each overridable by a variable `VELOC_KEY`.

use outlive_types::{Error, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Keys of VELOC that mean something to its own ways of storing, and why they are not needed here.
const NOT_NEEDED: [(&str, &str); 13] = [
    (
        "persistent_interval",
        "every checkpoint is stored durably, and only what has changed is written",
    ),
    ("ec_interval", "redundancy is the pool's, see docs/pool.md"),
    ("failure_domain", "redundancy is the pool's, see docs/pool.md"),
    ("scratch_versions", "checkpoints are not kept in scratch"),
    ("watchdog_interval", "there is no backend process"),
    ("max_parallelism", "set `threads` in the pool's pool.toml"),
    ("meta", "the pool keeps what describes its checkpoints"),
    ("axl_type", "the pool writes by itself"),
    ("threaded", "there is no backend"),
    ("aggregated", "data of all checkpoints is in packs"),
    ("log_prefix", "messages go to standard error"),
    ("max_cache_size", "memory is bounded by pool.toml"),
    ("ec_type", "redundancy is the pool's, see docs/pool.md"),
];

/// What a configuration says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Config {
    /// Where files lie that a program writes itself, until they are saved.
    pub scratch: PathBuf,
    /// The pool, or the directory in which it is made.
    pub persistent: PathBuf,
    /// Whether a test for a restart reads a checkpoint before it is called whole.
    pub is_checked: bool,
    /// Whether a checkpoint's end waits for its commit.
    pub is_sync: bool,
    /// Number of newest checkpoints to keep; all without one.
    pub max_versions: Option<u64>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

impl Config {
    /// Reads a file. `variable` looks up a variable of the environment.
    ///
    /// # Errors
    /// `Invalid` if it cannot be read, a line is not `key = value`, or a value is not possible.
    pub fn read(path: &Path, variable: &dyn Fn(&str) -> Option<String>) -> Result<Config> {
        let text = fs::read_to_string(path)
            .map_err(|e| Error::io_named("reading the configuration", path, &e))?;
        Config::parse(&text, variable).map_err(|error| error.context(path.display()))
    }

    fn parse(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Config> {
        let mut values = BTreeMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                return Err(Error::invalid(format!(
                    "line {number}: {line:?} is not `key = value`: put it right"
                )));
            };
            // A comment may follow after a blank.
            let value = value.split([';', '#']).next().unwrap_or_default();
            values.insert(key.trim().to_lowercase(), value.trim().to_owned());
        }
        let mut warnings = Vec::new();
        for key in values.keys() {
            let known = ["scratch", "persistent", "mode", "max_versions", "chksum"];
            let known = known.contains(&key.as_str());
            let why = NOT_NEEDED.iter().find(|(name, _)| name == key);
            match (known, why) {
                (true, _) => {}
                (false, Some((_, why))) => warnings.push(format!("{key} has no effect: {why}")),
                (false, None) => warnings.push(format!("{key} is unknown, and has no effect")),
            }
        }
        let value = |key: &str| {
            let name = format!("VELOC_{}", key.to_uppercase());
            variable(&name).or_else(|| values.get(key).cloned()).filter(|value| !value.is_empty())
        };
        let is_sync = match value("mode").as_deref() {
            None | Some("sync") => true,
            Some("async") => false,
            Some(other) => {
                return Err(Error::invalid(format!("mode = {other:?}: must be sync or async")));
            }
        };
        let is_checked = match value("chksum").as_deref() {
            None | Some("true" | "1") => true,
            Some("false" | "0") => false,
            Some(other) => {
                return Err(Error::invalid(format!("chksum = {other:?}: must be true or false")));
            }
        };
        let max_versions = match value("max_versions").map(|text| (text.parse(), text)) {
            None => None,
            Some((Ok(0), _)) => None,
            Some((Ok(count), _)) => Some(count),
            Some((Err(_), text)) => {
                return Err(Error::invalid(format!(
                    "max_versions = {text:?}: must be a number, from 0 (keep all)"
                )));
            }
        };
        let Some(scratch) = value("scratch").map(PathBuf::from) else {
            return Err(Error::invalid("scratch is missing: name a directory"));
        };
        let persistent = value("persistent").map(PathBuf::from).unwrap_or_else(|| {
            warnings.push("persistent is missing: checkpoints are stored in scratch".to_owned());
            scratch.clone()
        });
        Ok(Config { scratch, persistent, is_checked, is_sync, max_versions, warnings })
    }

    /// Where the pool is: `persistent` itself if it is one or a bucket, else a directory in it. A pool that has lost
    /// its `pool.toml` stays one, and is refused when it is opened.
    pub fn pool(&self) -> PathBuf {
        let is_bucket = self.persistent.to_str().is_some_and(|text| text.starts_with("s3:"));
        let is_pool = outlive_pool::is_pool(&self.persistent)
            || self.persistent.file_name().is_some_and(|name| name == "pool.toml");
        if is_bucket || is_pool { self.persistent.clone() } else { self.persistent.join("outlive") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn a_configuration_of_veloc_is_understood() {
        let text = "# a comment\n scratch = /tmp/scratch \npersistent=/lustre/p ; durable\nmode = async\n\n\
                    max_versions = 3\nchksum = true\nec_interval = -1\nnonsense = 1\n";
        let config = Config::parse(text, &nothing).unwrap();
        assert_eq!(config.scratch, Path::new("/tmp/scratch"));
        assert_eq!(config.pool(), Path::new("/lustre/p/outlive"));
        assert!(!config.is_sync && config.max_versions == Some(3));
        assert_eq!(config.warnings.len(), 2, "{:?}", config.warnings);
        assert!(config.warnings[1].contains("nonsense is unknown"), "{:?}", config.warnings);
        let variable = |name: &str| match name {
            "VELOC_PERSISTENT" => Some("s3://bucket/prefix".to_owned()),
            "VELOC_MODE" => Some("sync".to_owned()),
            "VELOC_MAX_VERSIONS" => Some("0".to_owned()),
            _ => None,
        };
        let config = Config::parse(text, &variable).unwrap();
        assert_eq!(config.pool(), Path::new("s3://bucket/prefix"));
        assert!(config.is_sync && config.max_versions.is_none());
    }

    /// With its `pool.toml` lost, another pool was made below it.
    #[test]
    fn a_pool_that_has_lost_its_descriptor_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::parse(&format!("scratch = {}", dir.path().display()), &nothing);
        let config = config.unwrap();
        assert_eq!(config.pool(), dir.path().join("outlive"));
        let name = dir.path().join(".pool.toml");
        fs::write(&name, "x").unwrap();
        assert_eq!(config.pool(), dir.path());
        for next in ["pool.toml", "log/.pool.toml"] {
            fs::create_dir_all(dir.path().join("log")).unwrap();
            let before = if next == "pool.toml" { ".pool.toml" } else { "pool.toml" };
            fs::rename(dir.path().join(before), dir.path().join(next)).unwrap();
            assert_eq!(config.pool(), dir.path(), "{next}");
        }
    }

    #[test]
    fn what_is_not_possible_is_refused() {
        for (text, part) in [
            ("", "scratch is missing"),
            ("scratch", "line 1"),
            ("scratch = /s\nmode = later", "must be sync or async"),
            ("scratch = /s\nmax_versions = -1", "must be a number"),
            ("scratch = /s\nchksum = perhaps", "must be true or false"),
            ("scratch =\n", "scratch is missing"),
        ] {
            let error = Config::parse(text, &nothing).unwrap_err();
            assert!(error.message().contains(part), "{error}");
        }
        let alone = Config::parse("scratch = /s", &nothing).unwrap();
        assert!(alone.persistent == Path::new("/s") && alone.warnings.len() == 1);
    }
}
