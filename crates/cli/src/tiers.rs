//! The tiers that have a checkpoint, in a pool with a slow tier.

use outlive_format::Manifest;
use outlive_pool::{Pool, Tier};
use outlive_store::RedundancyLook;
use outlive_types::{JobName, Result};
use serde_json::{Value, json};

/// Finds the tiers of checkpoints, if there are two.
pub struct Tiers<'a>(Option<RedundancyLook<'a>>);

impl<'a> Tiers<'a> {
    /// Lists the shards of the targets.
    ///
    /// # Errors
    /// Errors of the targets.
    pub fn of(pool: &'a Pool) -> Result<Tiers<'a>> {
        let look = pool.has_slow_tier().then(|| RedundancyLook::new(pool));
        Ok(Tiers(look.transpose()?))
    }

    /// Returns whether there are two tiers.
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the tiers that each alone can now restore a checkpoint; `None` if the pool has only
    /// one tier.
    pub fn at(
        &mut self,
        job: &JobName,
        manifest: &Manifest,
        incomplete: bool,
    ) -> Option<Vec<Tier>> {
        self.0.as_mut().map(|look| look.at(job, manifest, incomplete).tiers)
    }
}

/// Returns tiers as text for people.
pub fn tiers_text(tiers: &[Tier]) -> String {
    match tiers {
        [] => "none".to_owned(),
        tiers => tiers.iter().map(|tier| tier.name()).collect::<Vec<_>>().join(" + "),
    }
}

/// Returns tiers as JSON; null if the pool has only one.
pub fn tiers_json(tiers: Option<&[Tier]>) -> Value {
    json!(tiers.map(|tiers| tiers.iter().map(|tier| tier.name()).collect::<Vec<_>>()))
}
