//! The table of targets of a pool in a directory: the marker in its log, and the places that its
//! descriptor gives them.

use crate::config::{FormatConfig, PoolConfig};
use crate::environment::Environment;
use crate::location::Location;
use crate::marker::{Marker, targets_of};
use crate::place::{DESCRIPTOR, MARKER, check_marker, check_target, read_descriptor};
use crate::places::{refuse_used, write_target};
use crate::redundancy::TargetConfig;
use crate::targets::{OpenTarget, TargetTable};
use crate::texts::replace_text;
use outlive_format::checksum;
use outlive_types::{Error, Result};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// The table of the pool in `dir`.
pub(crate) struct DirectoryTable {
    dir: PathBuf,
    format: FormatConfig,
    env: Environment,
}

impl fmt::Debug for DirectoryTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the targets of {}", self.dir.display())
    }
}

impl DirectoryTable {
    pub fn new(dir: &Path, format: &FormatConfig, env: &Environment) -> DirectoryTable {
        DirectoryTable { dir: dir.to_owned(), format: format.clone(), env: env.clone() }
    }

    fn read(&self) -> Result<(PoolConfig, Marker)> {
        let marker = check_marker(&self.dir, &self.format)?;
        Ok((read_descriptor(&self.dir)?, marker))
    }

    fn location(&self, row: &TargetConfig) -> Result<Location> {
        Ok(Location::parse(&row.location)?.seen_from(&self.dir))
    }
}

impl TargetTable for DirectoryTable {
    fn version(&self) -> Result<u64> {
        let path = self.dir.join(MARKER);
        let text = fs::read(&path).map_err(|e| Error::io("reading", &path, &e))?;
        Ok(checksum(&text).max(1))
    }

    fn rows(&self) -> Result<Vec<TargetConfig>> {
        let (descriptor, marker) = self.read()?;
        let mut rows = targets_of(&descriptor, &marker)
            .map_err(|error| error.context(self.dir.join(DESCRIPTOR).display()))?;
        if rows.is_empty() {
            rows.push(TargetConfig::at("."));
        }
        if let [only] = &mut rows[..] {
            only.id = Some(only.id.unwrap_or(1));
        }
        Ok(rows)
    }

    fn open(&self, row: &TargetConfig) -> Result<OpenTarget> {
        let location = self.location(row)?;
        let is_own = location.is_in(&self.dir);
        let target = location.open(&self.dir.join(DESCRIPTOR), is_own, &self.env)?;
        if is_own {
            return Ok((target, None)); // the log beside it has a marker
        }
        // The only target of a pool may be moved as docs/format.md says, without a number.
        let id = row.id.filter(|_| self.rows().is_ok_and(|rows| rows.len() > 1));
        let (dir, format) = (self.dir.clone(), self.format.clone());
        let Location::Directory(root) = location;
        let still_there = move || check_target(&dir, &format, &root, id);
        Ok((target, Some(Box::new(still_there))))
    }

    fn prepare(&self, row: &TargetConfig) -> Result<()> {
        let (_, marker) = self.read()?;
        let location = self.location(row)?;
        for other in self.rows()? {
            if location.is_same(&self.location(&other)?) {
                return Err(Error::invalid(format!(
                    "{} is target {} of this pool already",
                    row.location,
                    other.id.unwrap_or(1)
                )));
            }
        }
        if location.is_in(&self.dir) {
            return Ok(());
        }
        let Location::Directory(root) = location;
        refuse_used(&self.dir, &root)?;
        write_target(&root, &marker.on(row.id), &*self.env.rng)
    }

    fn next_id(&self) -> Result<u32> {
        let (_, marker) = self.read()?;
        let highest = self.rows()?.iter().filter_map(|row| row.id).max().unwrap_or(1);
        Ok(marker.next_target.unwrap_or(0).max(highest + 1))
    }

    fn replace(&self, rows: &[TargetConfig]) -> Result<()> {
        let (descriptor, marker) = self.read()?;
        let next_target = Some(self.next_id()?);
        let marker = Marker { target: rows.to_vec(), next_target, ..marker };
        replace_text(&self.dir.join(MARKER), &marker.to_text()?, &*self.env.rng)?;
        // What was removed would be refused there; what is new is found without it.
        let text = descriptor_text(&self.dir, &descriptor, rows)?;
        replace_text(&self.dir.join(DESCRIPTOR), &text, &*self.env.rng)
    }
}

/// The descriptor with other targets: what a person wrote in it stays as it is, if that can be.
fn descriptor_text(dir: &Path, before: &PoolConfig, rows: &[TargetConfig]) -> Result<String> {
    let wanted = PoolConfig { target: rows.to_vec(), ..before.clone() };
    let path = dir.join(DESCRIPTOR);
    let text = fs::read_to_string(&path).map_err(|e| Error::io("reading", &path, &e))?;
    let mut kept = String::new();
    let mut is_target = false;
    for line in text.lines() {
        if line.trim_start().starts_with('[') {
            is_target = line.trim_start().starts_with("[[target]]");
        }
        if !is_target {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    let whole = wanted.to_text()?;
    let tables = whole.find("[[target]]").map_or("", |at| &whole[at..]);
    let edited = format!("{}\n\n{tables}", kept.trim_end());
    match PoolConfig::parse(&edited, DESCRIPTOR) {
        Ok(config) if config == wanted => Ok(edited),
        _ => Ok(whole),
    }
}
