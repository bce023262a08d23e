//! Writes the shards of a pack that are missing or damaged anew, of those that are left.

use super::scan::Scan;
use super::shard::OpenShard;
use crate::Pool;
use crate::redundancy::Tier;
use crate::targets::TargetSet;
use outlive_format::{Fragment, SHARD_HEADER_BYTES, ShardHeader, Tail, checksum};
use outlive_io::{AlignedBuf, Completions, SharedBuf};
use outlive_target::{Fault, ReadRange, ShardName, ShardWriter};
use outlive_types::{Error, ErrorKind, PackId, Result};

/// What a repair did for one pack.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PackRepair {
    /// Shards that were written anew.
    pub shards: usize,
    /// Bytes of these.
    pub written_bytes: u64,
    /// Shards that are still missing, as no target could take them.
    pub missing: usize,
}

/// A shard that is being written anew.
struct NewShard {
    number: u8,
    member: usize,
    writer: Box<dyn ShardWriter>,
    fragments: Vec<Fragment>,
    in_flight: Completions<u64, std::result::Result<(), Fault<SharedBuf>>>,
}

/// Writes of one shard that are under way at once.
const AHEAD: usize = 4;

impl NewShard {
    fn write(&mut self, offset: u64, bytes: SharedBuf) -> Result<()> {
        while self.in_flight.len() >= AHEAD
            && let Some((_, written)) = self.in_flight.wait_next()
        {
            written?;
        }
        self.in_flight.push(offset, self.writer.write(offset, bytes));
        Ok(())
    }

    fn finish(mut self, header: &ShardHeader, directory: &[u8]) -> Result<u64> {
        let header = ShardHeader { shard: self.number, ..*header };
        let fragments = std::mem::take(&mut self.fragments);
        let tail = Tail { pack: header.pack, directory: directory.to_vec(), fragments }.encode()?;
        let length = header.directory_offset() + tail.len() as u64;
        self.write(header.directory_offset(), aligned(&tail))?;
        self.write(0, aligned(&header.encode()?))?;
        while let Some((_, written)) = self.in_flight.wait_next() {
            written?;
        }
        self.writer.finish(length).wait()?;
        Ok(length)
    }
}

fn aligned(bytes: &[u8]) -> SharedBuf {
    let mut buffer = AlignedBuf::zeroed(bytes.len());
    buffer.copy_from_slice(bytes);
    buffer.share()
}

impl Pool {
    /// Copies a shard from one target to another that has no other of its pack, each part of it checked.
    /// Answers its length.
    ///
    /// # Errors
    /// `Damaged` if it is not whole; `Full` if no target can take it; what the targets report.
    pub(crate) fn copy_shard(
        &self,
        targets: &TargetSet,
        shard: ShardName,
        from: usize,
    ) -> Result<u64> {
        let open = OpenShard::open(self, targets, shard, from)?;
        let now = self.targets();
        let tier = targets.members()[from].tier;
        let taken: Vec<usize> = now.number_of(targets.members()[from].id).into_iter().collect();
        // It may have been copied before, and not deleted.
        if now.find_elsewhere_on(tier, shard, &taken)?.is_some() {
            return Ok(open.stored_bytes);
        }
        let names = self.shards_of(shard.pack);
        let begun = match tier {
            Tier::Fast => now.begin_one(shard, &names, &taken, open.stored_bytes)?,
            Tier::Slow => {
                let others = names.into_iter().filter(|other| *other != shard);
                let there: Vec<usize> = others.flat_map(|other| now.slow_copies(other)).collect();
                now.begin_slow(shard, &there, false, open.stored_bytes)?
            }
        };
        let (member, writer) = begun.ok_or_else(|| {
            Error::new(ErrorKind::Full, format!("no other target can take shard {shard}"))
        })?;
        let written = self.copy_open(targets, (shard, from), &open, (member, writer))?;
        now.is_on(shard, member);
        Ok(written)
    }

    /// Copies a shard that was opened on the target `from` to where it was begun, each part of it checked.
    /// Answers its length.
    ///
    /// # Errors
    /// `Damaged` if it is not whole; what the targets report.
    pub(crate) fn copy_open(
        &self,
        targets: &TargetSet,
        (shard, from): (ShardName, usize),
        open: &OpenShard,
        (member, writer): (usize, Box<dyn ShardWriter>),
    ) -> Result<u64> {
        let (fragments, in_flight) = (Vec::new(), Completions::new());
        let mut new = NewShard { number: shard.shard, member, writer, fragments, in_flight };
        let mut offset = SHARD_HEADER_BYTES as u64;
        for fragment in &open.tail.fragments {
            let range = ReadRange { offset, buffer: AlignedBuf::zeroed(fragment.length as usize) };
            let bytes = targets.members()[from].read(shard, range).wait()?;
            if checksum(&bytes) != fragment.checksum {
                return Err(Error::damaged(format!("shard {shard} does not match its checksums")));
            }
            new.fragments.push(*fragment);
            new.write(offset, bytes.share())?;
            offset += u64::from(fragment.length);
        }
        new.finish(&open.header, &open.tail.directory)
    }

    /// Writes those shards of a pack anew that are missing or that `damaged` names. The pack must not be
    /// one that somebody is about to finish. It may be deleted meanwhile: then a shard is left that nobody
    /// needs, which the next gc removes.
    ///
    /// # Errors
    /// `Damaged` if too little is left of the pack; what the targets report.
    pub fn repair_pack(&self, pack: PackId, damaged: &[u8]) -> Result<PackRepair> {
        let mut repair = PackRepair::default();
        let targets = self.targets();
        let mut scan = Scan::open(self, pack, false)?;
        let is_lost = |(shard, error): &(u8, Error)| {
            // One that only cannot be read now is left as it is, unless its target is away.
            let is_away =
                || targets.find_on(Tier::Fast, ShardName { pack, shard: *shard }).is_err();
            (error.kind() == ErrorKind::Damaged || is_away()).then_some(*shard)
        };
        let mut lost: Vec<u8> = scan.faults().iter().filter_map(is_lost).collect();
        lost.extend(damaged);
        lost.sort_unstable();
        lost.dedup();
        let is_there = |shard: &u8| targets.find_on(Tier::Fast, ShardName { pack, shard: *shard });
        if lost.iter().any(|shard| is_there(shard).is_ok()) {
            // What is left of a damaged shard goes only once it is sure that nothing of it is needed.
            let mut rehearsal = Scan::without(self, pack, &lost)?;
            while rehearsal.next(&lost)?.is_some() {}
            scan = Scan::without(self, pack, &lost)?;
        }
        let header = *scan.header()?;
        let tail_bytes = Tail::bytes_for(header.directory_bytes as usize, scan.containers()?);
        let shard_bytes = header.directory_offset() + tail_bytes as u64;
        let mut shards: Vec<NewShard> = Vec::new();
        for number in lost {
            let name = ShardName { pack, shard: number };
            let taken: Vec<usize> = shards.iter().map(|shard| shard.member).collect();
            match self.begin_anew(&targets, name, &taken, shard_bytes) {
                Ok(Some((member, writer))) => {
                    let (fragments, in_flight) = (Vec::new(), Completions::new());
                    shards.push(NewShard { number, member, writer, fragments, in_flight });
                }
                Ok(None) => repair.missing += 1,
                Err(error) => return Err(error),
            }
        }
        if shards.is_empty() {
            return Ok(repair);
        }
        let wanted: Vec<u8> = shards.iter().map(|shard| shard.number).collect();
        while let Some(mut fragments) = scan.next(&wanted)? {
            let (offset, length) = scan.fragment_of(fragments.number);
            for shard in &mut shards {
                let bytes = fragments.bytes[usize::from(shard.number)].take();
                let bytes = bytes.ok_or_else(|| Error::bug("a fragment was not made"))?;
                let fragment = Fragment { length: length as u32, checksum: checksum(&bytes) };
                shard.fragments.push(fragment);
                shard.write(offset, bytes.share())?;
            }
        }
        let directory = scan.directory_bytes()?.to_vec();
        for shard in shards {
            let (name, member) = (ShardName { pack, shard: shard.number }, shard.member);
            repair.written_bytes += shard.finish(&header, &directory)?;
            repair.shards += 1;
            targets.is_on(name, member);
        }
        Ok(repair)
    }

    /// Begins a shard in the place of one that is lost; `None` if no target can take it. One that is there
    /// and damaged goes first.
    fn begin_anew(
        &self,
        targets: &TargetSet,
        shard: ShardName,
        taken: &[usize],
        bytes_max: u64,
    ) -> Result<Option<(usize, Box<dyn ShardWriter>)>> {
        targets.forget(shard);
        match targets.find_on(Tier::Fast, shard) {
            Ok(_) => targets.delete_fast(shard)?,
            Err(error) if error.kind() == ErrorKind::Damaged => {}
            // It may be on a target that is away. Should that come back, there are two, which are alike.
            Err(_) => {}
        }
        targets.begin_one(shard, &self.shards_of(shard.pack), taken, bytes_max)
    }
}
