//! VELOC's configuration: a file, read as VELOC reads it, and variables `VELOC_KEY`, which override
//! it.

use outlive_types::{Error, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Keys of VELOC that configure its own ways to store data, and why outlive ignores each.
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

/// A configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Config {
    /// Directory for the files that a program writes itself, until they are saved.
    pub scratch: PathBuf,
    /// The pool, or the directory for it.
    pub persistent: PathBuf,
    /// Whether a test for a restart reads all of a checkpoint.
    pub is_checked: bool,
    /// Whether the end of a checkpoint waits for its commit.
    pub is_sync: bool,
    /// Number of newest checkpoints to keep; `None` keeps all.
    pub max_versions: Option<u64>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

impl Config {
    /// Reads a file, if there is one. `variable` looks up a variable of the environment.
    ///
    /// # Errors
    /// `Invalid` if it cannot be read, a line is not `key = value`, or a value is not possible.
    pub fn read(path: Option<&Path>, variable: &dyn Fn(&str) -> Option<String>) -> Result<Config> {
        let Some(path) = path else { return Config::parse("", variable) };
        let text = fs::read_to_string(path)
            .map_err(|e| Error::io_named("reading the configuration", path, &e))?;
        Config::parse(&text, variable).map_err(|error| error.context(path.display()))
    }

    fn parse(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Config> {
        let (values, mut warnings) = lines(text)?;
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
            let is_there = |value: &String| !value.is_empty();
            variable(&name).filter(is_there).or_else(|| values.get(key).cloned().filter(is_there))
        };
        let is_sync = match value("mode").as_deref() {
            None | Some("sync") => true,
            Some("async") => false,
            Some(other) => {
                return Err(Error::invalid(format!("mode = {other:?}: must be sync or async")));
            }
        };
        let chksum = value("chksum").map(|text| text.to_lowercase());
        let is_checked = match chksum.as_deref() {
            None | Some("true" | "yes" | "on" | "1") => true,
            Some("false" | "no" | "off" | "0") => false,
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
            return Err(Error::invalid(
                "scratch is missing: name a directory, in the configuration file or as VELOC_SCRATCH",
            ));
        };
        // Absolute, since the program may change its working directory.
        let absolute =
            |path: PathBuf| match path.to_str().is_some_and(|text| text.starts_with("s3:")) {
                true => Ok(path),
                false => std::path::absolute(&path)
                    .map_err(|e| Error::io_named("looking for", &path, &e)),
            };
        let scratch = absolute(scratch)?;
        let persistent = value("persistent").map(PathBuf::from).unwrap_or_else(|| {
            warnings.push("persistent is missing: checkpoints are stored in scratch".to_owned());
            scratch.clone()
        });
        let persistent = absolute(persistent)?;
        Ok(Config { scratch, persistent, is_checked, is_sync, max_versions, warnings })
    }

    /// Returns the pool's location: `persistent` itself if it is a pool or a bucket, else a
    /// directory in it. A pool that has lost its `pool.toml` counts as a pool, and its open is
    /// refused.
    pub fn pool(&self) -> PathBuf {
        let is_bucket = self.persistent.to_str().is_some_and(|text| text.starts_with("s3:"));
        let is_pool = outlive_pool::is_pool(&self.persistent)
            || self.persistent.file_name().is_some_and(|name| name == "pool.toml");
        if is_bucket || is_pool { self.persistent.clone() } else { self.persistent.join("outlive") }
    }
}

/// Returns the keys and values of a file, as VELOC's reader of INI files does, and warnings for the
/// user.
fn lines(text: &str) -> Result<(BTreeMap<String, String>, Vec<String>)> {
    let (mut values, mut warnings) = (BTreeMap::new(), Vec::new());
    let (mut has_section, mut last) = (false, None::<String>);
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (number, whole) in (1..).zip(text.lines()) {
        let line = whole.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        let no_effect =
            |why: &str| format!("line {number}: {line:?} has no effect, as in VELOC: {why}");
        if let (Some(key), true) = (&last, whole.starts_with(char::is_whitespace)) {
            // VELOC treats the line as a part of the value.
            match values.get_mut(key).filter(|value: &&mut String| value.is_empty()) {
                Some(value) => before_comment(line).clone_into(value),
                None => warnings
                    .push(no_effect("a line that begins with a blank continues the one before")),
            }
            continue;
        }
        if let Some(section) = line.strip_prefix('[') {
            let end = section.find(']').ok_or_else(|| {
                Error::invalid(format!("line {number}: {line:?} lacks the `]`: put it right"))
            })?;
            (has_section, last) = (end > 0, None);
            continue;
        }
        let Some((key, value)) = line.split_once(['=', ':']) else {
            return Err(Error::invalid(format!(
                "line {number}: {line:?} is not `key = value`: put it right"
            )));
        };
        let key = last.insert(key.trim().to_lowercase());
        if has_section {
            warnings.push(no_effect("it is in a section"));
            continue;
        }
        if values.get(key).is_some_and(|value| !value.is_empty()) {
            // VELOC uses the first of two numbers, and both lines of a text.
            warnings.push(format!(
                "line {number}: {line:?} has no effect: {key} has a value before, which counts"
            ));
            continue;
        }
        values.insert(key.clone(), before_comment(value).to_owned());
    }
    Ok((values, warnings))
}

/// Returns a value without the comment that may follow after a blank.
fn before_comment(value: &str) -> &str {
    let begins = |(at, _): &(usize, &str)| value[..*at].ends_with(char::is_whitespace);
    let comment = value.match_indices(';').find(begins);
    comment.map_or(value, |(at, _)| &value[..at]).trim()
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

    #[test]
    fn a_configuration_is_read_as_veloc_reads_it() {
        let text = "\u{feff}[]\nscratch: /s#1\nPersistent = /p ; durable\n  max_versions = 9\nmode:async\n\
                    persistent = /later\nchksum = FALSE\n[other] ; a comment\nmax_versions = 3\n";
        let config = Config::parse(text, &nothing).unwrap();
        assert_eq!(
            (config.scratch.as_path(), config.persistent.as_path()),
            (Path::new("/s#1"), Path::new("/p"))
        );
        assert!(!config.is_sync && !config.is_checked && config.max_versions.is_none());
        assert_eq!(config.warnings.len(), 3, "{:?}", config.warnings);
        for (warning, part) in
            config.warnings.iter().zip(["line 4", "persistent has a value before", "in a section"])
        {
            assert!(warning.contains(part), "{warning}");
        }
        let config = Config::parse("scratch =\n  /s #3\nmode =\nmode = async\n", &nothing).unwrap();
        assert_eq!((config.scratch.as_path(), config.is_sync), (Path::new("/s #3"), false));
        for (text, is_checked) in
            [("True", true), ("YES", true), ("oN", true), ("Off", false), ("0", false)]
        {
            let config =
                Config::parse(&format!("scratch = /s\nchksum = {text}"), &nothing).unwrap();
            assert_eq!(config.is_checked, is_checked, "{text}");
        }
    }

    /// `VELOC_Init(comm, "")` reads no file.
    #[test]
    fn the_environment_is_enough() {
        let variable = |name: &str| match name {
            "VELOC_SCRATCH" => Some("/s".to_owned()),
            "VELOC_PERSISTENT" => Some("relative".to_owned()),
            "VELOC_MODE" => Some(String::new()),
            _ => None,
        };
        let config = Config::read(None, &variable).unwrap();
        assert_eq!(config.scratch, Path::new("/s"));
        assert!(config.persistent.is_absolute() && config.persistent.ends_with("relative"));
        assert!(config.is_sync, "an empty variable is none");
        assert!(Config::read(None, &nothing).unwrap_err().message().contains("VELOC_SCRATCH"));
    }

    /// An open must not create another pool inside a pool without its `pool.toml`.
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
    fn impossible_settings_are_refused() {
        for (text, part) in [
            ("", "scratch is missing"),
            ("scratch", "line 1"),
            ("[veloc\nscratch = /s", "lacks the `]`"),
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
