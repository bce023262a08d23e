//! Targets for a probe that measures them, and the change of the tuning that follows.

use crate::Pool;
use crate::descriptor::config::{PoolConfig, Tuning};
use crate::descriptor::redundancy::{TargetState, Tier};
use crate::opening::rewrite::rewrite;
use outlive_backend::Target;
use outlive_log::Lock;
use outlive_types::{Error, Result};
use std::cell::Cell;
use std::sync::Arc;

/// A target to measure. It takes shards as the pool writes them: encrypted if the pool is.
#[derive(Debug)]
pub struct ProbedTarget {
    /// Its number in `pool.toml`.
    pub id: u32,
    /// Its tier.
    pub tier: Tier,
    /// The target.
    pub target: Arc<dyn Target>,
    /// Reason why it cannot be measured now.
    pub unusable: Option<Error>,
}

/// The targets of a pool while they are measured. No gc, scrub or repair works meanwhile, as far as
/// the log has locks: to them a scratch shard is a pack that no checkpoint needs.
#[derive(Debug)]
pub struct Probing {
    /// All targets.
    pub targets: Vec<ProbedTarget>,
    _lock: Lock,
}

impl Pool {
    /// Begins to measure the targets.
    ///
    /// # Errors
    /// `Retry` while a gc, scrub or repair works; errors of the log.
    pub fn begin_probe(&self) -> Result<Probing> {
        let lock = self.lock_collecting()?;
        if matches!(lock, Lock::Busy) {
            return Err(Error::retry(
                "a gc, scrub, repair or change of the targets works in this pool, and would meet \
                 scratch shards: probe again when it has ended",
            ));
        }
        self.refresh_targets()?;
        let targets = self.targets();
        let probed = targets.members().iter().map(|member| {
            let unusable = match member.state {
                TargetState::Active => member.look().err(),
                state => {
                    Some(Error::retry(format!("it is {}, and gets no new shards", state.name())))
                }
            };
            let target = member.target().clone();
            ProbedTarget { id: member.id, tier: member.tier, target, unusable }
        });
        Ok(Probing { targets: probed.collect(), _lock: lock })
    }

    /// Writes other tuning to `pool.toml`; programs use it when they open the pool next. Comments and
    /// all other values stay. Returns whether that was a change.
    ///
    /// # Errors
    /// `Invalid` for impossible values, or if the pool has no descriptor; errors of its location.
    pub fn change_tuning(&self, change: &dyn Fn(Tuning) -> Tuning) -> Result<bool> {
        let paths = self.paths().ok_or_else(|| {
            Error::invalid("this pool has no pool.toml, so its tuning cannot be changed there")
        })?;
        let is_change = Cell::new(false);
        let changed = |there: PoolConfig| {
            let tuning = change(there.tuning.clone());
            is_change.set(is_change.get() || tuning != there.tuning);
            let wanted = PoolConfig { tuning, ..there };
            wanted.check()?;
            Ok(wanted)
        };
        rewrite(paths, &self.config().format, &changed)?;
        Ok(is_change.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Environment, open, open_or_create};
    use outlive_types::ErrorKind;
    use std::fs;

    #[test]
    fn other_tuning_keeps_comments_and_is_checked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        let pool = open_or_create(&path, Environment::system()).unwrap();
        let file = path.join("pool.toml");
        let text = fs::read_to_string(&file).unwrap();
        let text = format!("# mine\n{text}")
            .replace("read_gap_bytes = 65536", "# small\nread_gap_bytes = 65536 # of an SSD");
        let text = text.replace("compression = \"auto\"\n", "");
        fs::write(&file, &text).unwrap();
        let change =
            |there| Tuning { read_gap_bytes: 1 << 20, compression: "none".to_owned(), ..there };
        assert!(pool.change_tuning(&change).unwrap());
        let now = fs::read_to_string(&file).unwrap();
        assert!(now.contains("# small\nread_gap_bytes = 1048576 # of an SSD\n"), "{now}");
        let put_in = "[tuning]\ncompression = \"none\"\n";
        assert!(now.starts_with("# mine\n") && now.contains(put_in), "{now}");
        assert!(!pool.change_tuning(&change).unwrap());
        assert_eq!(fs::read_to_string(&file).unwrap(), now);
        let again = open(&path, Environment::system()).unwrap();
        assert_eq!(again.config().tuning.read_gap_bytes, 1 << 20);
        let wrong = |there| Tuning { staging_bytes: 1, ..there };
        let error = pool.change_tuning(&wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(fs::read_to_string(&file).unwrap(), now);
    }

    #[test]
    fn a_collector_keeps_probes_out() {
        let dir = tempfile::tempdir().unwrap();
        let pool = open_or_create(&dir.path().join("pool"), Environment::system()).unwrap();
        let probing = pool.begin_probe().unwrap();
        assert_eq!(probing.targets.len(), 1);
        assert!(probing.targets[0].unusable.is_none());
        let error = pool.begin_probe().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Retry);
        drop(probing);
        assert!(pool.begin_probe().is_ok());
    }
}
