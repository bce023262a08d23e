//! On which tiers a checkpoint is, of a pool that has a slow one.

use outlive_format::Manifest;
use outlive_pool::{Pool, Tier};
use outlive_store::RedundancyLook;
use outlive_types::{JobName, Result};
use serde_json::{Value, json};

/// Looks at the tiers, if there are two.
pub struct Tiers<'a>(Option<RedundancyLook<'a>>);

impl<'a> Tiers<'a> {
    /// Lists what the targets have.
    ///
    /// # Errors
    /// What they report.
    pub fn of(pool: &'a Pool) -> Result<Tiers<'a>> {
        let look = pool.has_slow_tier().then(|| RedundancyLook::new(pool));
        Ok(Tiers(look.transpose()?))
    }

    /// Whether there are two.
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Those from which alone a checkpoint can be read now; `None` where there is only one.
    pub fn at(
        &mut self,
        job: &JobName,
        manifest: &Manifest,
        incomplete: bool,
    ) -> Option<Vec<Tier>> {
        self.0.as_mut().map(|look| look.at(job, manifest, incomplete).tiers)
    }
}

/// Tiers as a person reads them.
pub fn tiers_text(tiers: &[Tier]) -> String {
    match tiers {
        [] => "none".to_owned(),
        tiers => tiers.iter().map(|tier| tier.name()).collect::<Vec<_>>().join(" + "),
    }
}

/// The same as JSON; null where there is only one.
pub fn tiers_json(tiers: Option<&[Tier]>) -> Value {
    json!(tiers.map(|tiers| tiers.iter().map(|tier| tier.name()).collect::<Vec<_>>()))
}
