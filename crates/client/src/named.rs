//! Restores into memory that the program names, as programs in C and MPI do at their start.

use crate::client::Client;
use crate::plan::{Destination, Offer};
use crate::write_permit::WritePermit;
use outlive_capture::fill::MutRegion;
use outlive_store::{Restored, Select};
use outlive_types::{Distribution, Error, Rank, RegionDesc, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// Memory of the program for one region.
#[derive(Debug)]
pub struct NamedMemory {
    /// The region's name.
    pub name: String,
    /// Type of its elements, as it was saved.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Memory of the region's length.
    pub memory: MutRegion,
    /// Distribution over the ranks. A part of a global array may differ from the saved one.
    pub distribution: Distribution,
}

impl Client {
    /// Restores all regions of a checkpoint into memory that the program names. `targets` is called
    /// for each candidate checkpoint; its names must differ. The next save writes only what has
    /// changed since. `None` if there is no checkpoint: the program begins from scratch.
    ///
    /// # Errors
    /// `Invalid` if program and checkpoint do not have the same regions, with the same dtypes,
    /// shapes and lengths; nothing was written then. Otherwise as [`Client::restore`].
    pub fn restore_named(
        &self,
        select: Select,
        permit: &Arc<WritePermit>,
        targets: &mut dyn FnMut() -> Vec<NamedMemory>,
    ) -> Result<Option<Restored>> {
        let filled = self.restore(select, permit, &mut |offer| {
            destinations(self.job.rank(), &offer, targets())
        })?;
        Ok(filled.map(|filled| filled.restored))
    }
}

/// Returns each region's destination.
fn destinations(rank: Rank, offer: &Offer, targets: Vec<NamedMemory>) -> Result<Vec<Destination>> {
    let mut named = HashMap::with_capacity(targets.len());
    for target in targets {
        if let Some(NamedMemory { name, .. }) = named.insert(target.name.clone(), target) {
            return Err(Error::invalid(format!("the program names the region {name:?} twice")));
        }
    }
    let mut destinations = Vec::with_capacity(offer.regions.len());
    for region in &offer.regions {
        let target = named.remove(&region.name).ok_or_else(|| {
            Error::invalid(format!(
                "checkpoint {} has a region {:?}, for which the program names no memory: name it, or \
                 restore another epoch",
                offer.epoch, region.name
            ))
        })?;
        destinations.push(wish_for(offer, region, target)?);
    }
    let mut missing: Vec<&str> = named.keys().map(String::as_str).collect();
    missing.sort_unstable();
    match missing.first() {
        None => Ok(destinations),
        Some(first) if rank >= offer.ranks => Err(Error::invalid(format!(
            "checkpoint {} was saved by {} ranks, so rank {rank} has no region {first:?} in it that is each \
             rank's own: declare it as part of a global array or as the same on all ranks when it is saved, \
             or restart with {} ranks",
            offer.epoch, offer.ranks, offer.ranks
        ))),
        Some(first) => Err(Error::invalid(format!(
            "the program names {} that checkpoint {} does not have, {first:?} first: leave them out, or \
             restore another epoch",
            match missing.len() {
                1 => "a region".to_owned(),
                count => format!("{count} regions"),
            },
            offer.epoch
        ))),
    }
}

/// Returns the destination of a region: all of it, or a part of the array that it is part of.
///
/// # Errors
/// `Invalid` if the memory does not match the region.
pub fn wish_for(offer: &Offer, region: &RegionDesc, target: NamedMemory) -> Result<Destination> {
    let global = |distribution: &Distribution| distribution.global_shape().map(<[_]>::to_vec);
    let (there, here) = (global(&region.distribution), global(&target.distribution));
    if there.is_some() && there == here && region.dtype == target.dtype {
        let part = target.distribution.part(&target.shape);
        if let Some(part) = part {
            return Ok(Destination::Part(part, target.memory));
        }
    }
    let is_like = (&region.dtype, &region.shape) == (&target.dtype, &target.shape)
        && target.memory.length() as u64 == region.bytes;
    if is_like && there.is_none() && here.is_none() {
        return Ok(Destination::Into(target.memory));
    }
    let array = |global: Option<Vec<u64>>| {
        global.map_or(String::new(), |shape| format!(", part of an array of shape {shape:?}"))
    };
    Err(Error::invalid(format!(
        "region {:?} of checkpoint {} has dtype {:?}, shape {:?} and {} bytes{}; the program has {:?}, {:?} \
         and {}{} for it: restore it into memory like what was saved",
        region.name,
        offer.epoch,
        region.dtype,
        region.shape,
        region.bytes,
        array(there),
        target.dtype,
        target.shape,
        target.memory.length(),
        array(here)
    )))
}
