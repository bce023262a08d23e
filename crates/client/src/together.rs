//! Restores of a group, by all ranks together. Each reads its own image, the data that is the same
//! on all ranks, and parts of global arrays from whichever ranks have saved them. A single process
//! restores in the same way.

use crate::client::Client;
use crate::job_gate::RankLists;
use crate::parts::{PartWish, PartsPlan, plan_parts, read_parts};
use crate::plan::{Destination, FillPlan, Offer, is_part};
use crate::restore::{Filled, FilledImage, Sink, sink};
use crate::write_permit::{WritePermit, interrupted};
use outlive_store::{
    MemoryImage, RankImages, RankRegions, RestoreStats, Restored, Select, Skipped,
};
use outlive_types::{Distribution, Epoch, Rank, RegionDesc, Result};
use std::cell::RefCell;
use std::sync::Arc;

/// Plan of what a rank reads of one checkpoint.
struct Planned {
    own: Option<(MemoryImage, FillPlan)>,
    /// Plan for rank 0's image.
    common: Option<(MemoryImage, FillPlan)>,
    parts: Option<PartsPlan>,
    /// A requested region that each rank has for itself.
    local: Option<String>,
    /// Whether the next save may continue from the own image, if all of that is read.
    follows: bool,
    /// Outputs that the images list whose place this rank takes.
    outputs: RankLists,
    /// Whether every region was requested.
    whole: bool,
}

/// Data that a rank has read of one checkpoint.
struct Attempt {
    epoch: Epoch,
    own: Option<(MemoryImage, Sink)>,
    common: Option<Sink>,
    /// A requested region that each rank has for itself.
    local: Option<String>,
    /// Whether the next save may continue from the own image: all of that was read.
    follows: bool,
    outputs: RankLists,
    /// Whether every region was requested.
    whole: bool,
    stats: RestoreStats,
}

/// Contents of a checkpoint for one rank.
struct RankContents {
    own: Option<MemoryImage>,
    /// Regions of rank 0, if this is another one.
    first: Option<RankRegions>,
    outputs: RankLists,
}

impl Client {
    /// As [`Client::restore`], on all ranks. Collective.
    ///
    /// # Errors
    /// The same on all ranks.
    pub(crate) fn restore_together(
        &self,
        select: Select,
        permit: &Arc<WritePermit>,
        ask: &mut dyn FnMut(Offer) -> Result<Vec<Destination>>,
    ) -> Result<Option<Filled>> {
        let (rank, ranks) = (self.job.rank(), self.job.ranks());
        let (pool, name) = (self.job.pool(), self.job.name());
        let ask = RefCell::new(ask);
        let plan = |images: &RankImages<'_>| {
            RankContents::look(images, rank, ranks)?.plan(
                images,
                rank,
                ranks,
                &mut **ask.borrow_mut(),
            )
        };
        // All plan before they read: a rank that reads its image keeps a device busy that may have
        // another rank's catalog.
        let planned = RefCell::new(None);
        let mut look = |manifest: &_, as_of| {
            let images = RankImages::new(pool, name, manifest, as_of);
            planned.replace(Some((images.epoch(), as_of, plan(&images)?)));
            Ok(())
        };
        let mut attempt = |manifest: &_, as_of| {
            let images = RankImages::new(pool, name, manifest, as_of);
            let planned = match planned.take() {
                Some((epoch, of, planned)) if (epoch, of) == (images.epoch(), as_of) => planned,
                // Chunks may have been moved since, or this is a second attempt.
                _ => plan(&images)?,
            };
            planned.read(&images, permit)
        };
        let done = self.job.restore_together(select, &mut look, &mut attempt)?;
        let Some(done) = done else { return Ok(None) };
        self.finish(done.value, done.skipped, permit).map(Some)
    }

    /// As [`Client::restore`], without a group: the part of one process, however many ranks have
    /// saved the checkpoint.
    ///
    /// # Errors
    /// As [`Client::restore`].
    pub(crate) fn restore_alone(
        &self,
        select: Select,
        permit: &Arc<WritePermit>,
        ask: &mut dyn FnMut(Offer) -> Result<Vec<Destination>>,
    ) -> Result<Option<Filled>> {
        let (pool, name) = (self.job.pool(), self.job.name());
        let done = self.job.restore_alone(select, &mut |manifest, as_of| {
            let images = RankImages::new(pool, name, manifest, as_of);
            RankContents::look(&images, 0, 1)?.plan(&images, 0, 1, ask)?.read(&images, permit)
        })?;
        let Some((attempt, skipped)) = done else { return Ok(None) };
        self.finish(attempt, skipped, permit).map(Some)
    }

    /// Ends a restore after a checkpoint was read.
    fn finish(&self, attempt: Attempt, skipped: Skipped, permit: &WritePermit) -> Result<Filled> {
        let Attempt { epoch, own, common, local, follows, outputs, whole, stats } = attempt;
        if let (Some((of, _)), Some(region), 0) = (&own, local, self.job.rank()) {
            self.tell_of_fewer(of, &region);
        }
        let mut image = FilledImage::default();
        if let Some((of, sink)) = own {
            image = self.conclude(sink, follows.then_some(epoch), permit)?;
            if follows {
                self.job.follow_restored(&of);
            }
        }
        let common = common.map(|sink| self.conclude(sink, None, permit)).transpose()?;
        self.note_outputs(epoch, outputs, whole)?;
        stats.count();
        Ok(Filled { restored: Restored { epoch, stats, skipped }, image, common })
    }
}

impl Client {
    /// Warns that regions are left out, if there are fewer ranks than before; each rank has a
    /// `region` of its own.
    fn tell_of_fewer(&self, image: &MemoryImage, region: &str) {
        let (before, ranks) = (image.manifest().world_size, self.job.ranks());
        if ranks < before {
            self.job.pool().warn(format!(
                "checkpoint {} of job {} was saved by {before} ranks, and these are {ranks}: what the others had \
                 for themselves, such as {region:?}, is left out",
                image.epoch(),
                self.job.name(),
            ));
        }
    }

    /// Restores what this rank has saved of one epoch, without the other ranks, which must all have
    /// agreed on it. Otherwise as [`Client::restore`].
    ///
    /// # Errors
    /// As [`Client::restore`]; `Invalid` if the checkpoint has no such rank.
    pub fn restore_own(
        &self,
        epoch: Epoch,
        permit: &Arc<WritePermit>,
        ask: &mut dyn FnMut(Offer) -> Result<Vec<Destination>>,
    ) -> Result<Option<Filled>> {
        let (rank, select) = (self.job.rank(), Select::Epoch(epoch));
        self.job.settle()?;
        self.job.note_position()?;
        let found = self.job.attempt_rank(select, rank, &mut |image| {
            let plan = FillPlan::new(image, ask(Offer::of(image))?)?;
            let mut stats = RestoreStats::default();
            read_image(image, plan, permit, &mut stats).map(|sink| (sink, stats))
        })?;
        let Some((of, (sink, stats), skipped)) = found else { return Ok(None) };
        self.job.note_restored(epoch);
        permit.with(|| ()).ok_or_else(interrupted)?;
        let follows = sink.whole && of.manifest().world_size == self.job.ranks();
        let (outputs, whole) = (vec![(rank, of.outputs().to_vec())], sink.whole);
        let image = self.conclude(sink, follows.then_some(epoch), permit)?;
        if follows {
            self.job.follow_restored(&of);
        }
        self.note_outputs(epoch, outputs, whole)?;
        stats.count();
        let restored = Restored { epoch, stats, skipped };
        Ok(Some(Filled { restored, image, common: None }))
    }
}

impl RankContents {
    fn look(images: &RankImages<'_>, rank: Rank, ranks: u32) -> Result<RankContents> {
        let own = (rank < images.count()).then(|| images.open(rank)).transpose()?;
        let first = (rank > 0).then(|| images.regions(0)).transpose()?;
        // Outputs of ranks that there are no more.
        let mut outputs: RankLists = own.iter().map(|own| (rank, own.outputs().to_vec())).collect();
        let left = (rank..images.count()).step_by(ranks.max(1) as usize).skip(1);
        for rank in left {
            outputs.push((rank, images.regions(rank)?.outputs));
        }
        Ok(RankContents { own, first, outputs })
    }

    /// Returns the regions of the checkpoint that concern this rank.
    fn offer(&self, images: &RankImages<'_>, rank: Rank) -> Offer {
        let mut offer = Offer {
            epoch: images.epoch(),
            ranks: images.count(),
            regions: Vec::new(),
            attachment: Vec::new(),
        };
        if let Some(own) = &self.own {
            offer.regions.extend(own.regions().iter().cloned());
            offer.attachment = own.attachment().to_vec();
        }
        let Some(first) = &self.first else { return offer };
        if rank >= images.count() {
            offer.attachment.clone_from(&first.attachment);
        }
        for region in &first.regions {
            match (&region.distribution, region.distribution.global_shape()) {
                (Distribution::Replicated, _) => offer.regions.push(region.clone()),
                (_, Some(global_shape)) if self.own.is_none() => {
                    let nothing = vec![0; global_shape.len()];
                    let distribution = Distribution::Subarray {
                        global_shape: global_shape.to_vec(),
                        offset: nothing.clone(),
                    };
                    let (shape, bytes) = (nothing, 0);
                    offer.regions.push(RegionDesc { shape, bytes, distribution, ..region.clone() });
                }
                _ => {}
            }
        }
        offer
    }

    /// Asks for the destinations, and plans how to read.
    fn plan(
        self,
        images: &RankImages<'_>,
        rank: Rank,
        ranks: u32,
        ask: &mut dyn FnMut(Offer) -> Result<Vec<Destination>>,
    ) -> Result<Planned> {
        let offer = self.offer(images, rank);
        let RankContents { own, first, outputs } = self;
        let own_regions = own.as_ref().map_or(&[][..], MemoryImage::regions);
        let count = own_regions.len();
        // Copies no own regions: there may be a million.
        let more = offer.regions[count..].to_vec();
        let destinations = ask(offer)?;
        let is_wanted = |it: &Destination| !matches!(it, Destination::Nothing);
        let whole = destinations.iter().all(is_wanted);
        let regions = own_regions.iter().chain(&more);
        let (mut mine, mut common, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        let mut local = None;
        for (at, (destination, region)) in destinations.into_iter().zip(regions).enumerate() {
            let destination = match destination {
                // A part just as this rank has saved it is in its own image.
                Destination::Part(part, memory) if at >= count || !is_part(region, &part) => {
                    parts.push(PartWish { region: region.clone(), part, memory });
                    Destination::Nothing
                }
                destination => destination,
            };
            if region.distribution == Distribution::Local
                && !matches!(destination, Destination::Nothing)
            {
                local.get_or_insert_with(|| region.name.clone());
            }
            match (at < count, &region.distribution) {
                (true, _) => mine.push(destination),
                (false, Distribution::Replicated) => {
                    common.push((&more[at - count].name, destination))
                }
                // A new rank has no element of these.
                (false, _) => {}
            }
        }
        let follows = parts.is_empty() && images.count() == ranks;
        let own = match own {
            Some(own) => {
                let plan = FillPlan::new(&own, mine)?;
                Some((own, plan))
            }
            None => None,
        };
        let is_wanted =
            common.iter().any(|(_, destination)| !matches!(destination, Destination::Nothing));
        let common = match first.filter(|_| is_wanted) {
            Some(first) => {
                let image = images.open_regions(&first)?;
                let mut common = common.into_iter().peekable();
                let mut of = |region: &RegionDesc| match common.peek() {
                    Some((name, _)) if **name == region.name => {
                        common.next().map(|(_, destination)| destination)
                    }
                    _ => None,
                };
                let destinations = image
                    .regions()
                    .iter()
                    .map(|it| of(it).unwrap_or(Destination::Nothing))
                    .collect();
                let plan = FillPlan::new(&image, destinations)?;
                Some((image, plan))
            }
            None => None,
        };
        let parts = (!parts.is_empty()).then(|| plan_parts(images, parts)).transpose()?;
        Ok(Planned { own, common, parts, local, follows, outputs, whole })
    }
}

impl Planned {
    fn read(self, images: &RankImages<'_>, permit: &Arc<WritePermit>) -> Result<Attempt> {
        let Planned { own, common, parts, local, follows, outputs, whole } = self;
        let stats = RestoreStats::default();
        let epoch = images.epoch();
        let mut attempt =
            Attempt { epoch, own: None, common: None, local, follows, outputs, whole, stats };
        if let Some((own, plan)) = own {
            let sink = read_image(&own, plan, permit, &mut attempt.stats)?;
            attempt.follows &= sink.whole;
            attempt.own = Some((own, sink));
        }
        if let Some((image, plan)) = common {
            attempt.common = Some(read_image(&image, plan, permit, &mut attempt.stats)?);
        }
        if let Some(parts) = parts {
            read_parts(images, parts, permit, &mut attempt.stats)?;
        }
        permit.with(|| ()).ok_or_else(interrupted)?;
        Ok(attempt)
    }
}

fn read_image(
    image: &MemoryImage,
    plan: FillPlan,
    permit: &Arc<WritePermit>,
    stats: &mut RestoreStats,
) -> Result<Sink> {
    let (selected, sink) = sink(image, plan, permit)?;
    stats.add(image.read(&selected, &sink)?);
    Ok(sink)
}
