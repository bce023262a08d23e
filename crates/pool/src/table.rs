//! The table of targets of a pool: the marker in its log, and the places that its descriptor gives them.

use crate::claim::claim;
use crate::config::{FormatConfig, PoolConfig};
use crate::environment::Environment;
use crate::home::{DESCRIPTOR, Home, MARKER};
use crate::marker::{Marker, targets_of};
use crate::place::{check_marker, check_target, marker_bytes, read_descriptor, read_text};
use crate::places::{refuse_used, write_target};
use crate::redundancy::TargetConfig;
use crate::targets::{Claim, OpenTarget, TargetTable};
use outlive_format::checksum;
use outlive_types::{Error, Result};
use std::fmt;

/// The table of a pool in a directory or a bucket.
pub(crate) struct HomeTable {
    home: Home,
    format: FormatConfig,
    env: Environment,
}

impl fmt::Debug for HomeTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the targets of {}", self.home.root)
    }
}

impl HomeTable {
    pub fn new(home: &Home, format: &FormatConfig, env: &Environment) -> HomeTable {
        HomeTable { home: home.clone(), format: format.clone(), env: env.clone() }
    }

    fn read(&self) -> Result<(PoolConfig, Marker)> {
        let marker = check_marker(&self.home, &self.format)?;
        Ok((read_descriptor(&self.home.root)?, marker))
    }
}

impl TargetTable for HomeTable {
    fn version(&self) -> Result<u64> {
        Ok(checksum(&marker_bytes(&self.home)?).max(1))
    }

    fn rows(&self) -> Result<Vec<TargetConfig>> {
        let (descriptor, marker) = self.read()?;
        let mut rows = targets_of(&descriptor, &marker)
            .map_err(|error| error.context(self.home.descriptor()))?;
        if rows.is_empty() {
            rows.push(TargetConfig::at("."));
        }
        if let [only] = &mut rows[..] {
            only.id = Some(only.id.unwrap_or(1));
        }
        Ok(rows)
    }

    fn open(&self, row: &TargetConfig) -> Result<OpenTarget> {
        let location = row.seen_from(&self.home.root)?;
        let is_own = location.is_same(&self.home.root);
        let probe = self.home.root.as_directory().map(|dir| dir.join(DESCRIPTOR));
        let target = location.open_target(probe.as_deref(), is_own, &self.env)?;
        if is_own {
            return Ok((target, None)); // the descriptor is beside it
        }
        // The only target of a pool may be moved as docs/format.md says, without a number.
        let id = row.id.filter(|_| self.rows().is_ok_and(|rows| rows.len() > 1));
        let (home, format) = (self.home.clone(), self.format.clone());
        let still_there = move || check_target(&home, &format, &location, id);
        Ok((target, Some(Box::new(still_there))))
    }

    fn prepare(&self, row: &TargetConfig) -> Result<()> {
        let (_, marker) = self.read()?;
        let root = &self.home.root;
        let location = row.seen_from(root)?;
        for other in self.rows()? {
            if location.is_same(&other.seen_from(root)?) {
                return Err(Error::invalid(format!(
                    "{} is target {} of this pool already",
                    row.location,
                    other.id.unwrap_or(1)
                )));
            }
        }
        if location.is_same(root) {
            return Ok(());
        }
        refuse_used(&self.home, &location)?;
        write_target(&location, &marker.on(row.id), &*self.env.rng)
    }

    fn claim(&self) -> Result<Option<Claim>> {
        claim(&self.home.log, &*self.env.rng)
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
        self.home.log.replace(MARKER, &marker.to_text()?, &*self.env.rng)?;
        // What was removed would be refused there; what is new is found without it.
        let text = descriptor_text(&self.home, &descriptor, rows)?;
        self.home.root.replace(DESCRIPTOR, &text, &*self.env.rng)
    }
}

/// The descriptor with other targets: what a person wrote in it stays as it is, if that can be.
fn descriptor_text(home: &Home, before: &PoolConfig, rows: &[TargetConfig]) -> Result<String> {
    let wanted = PoolConfig { target: rows.to_vec(), ..before.clone() };
    let text = read_text(&home.root)?;
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
