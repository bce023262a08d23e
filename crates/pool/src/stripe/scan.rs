//! Reads a pack from one end to the other, container by container, every fragment against its checksum;
//! what is lost or damaged is made from the others.

use super::shard::OpenShard;
use crate::Pool;
use crate::layout::Layout;
use crate::redundancy::Tier;
use crate::targets::TargetSet;
use outlive_format::{Directory, ShardHeader, checksum};
use outlive_io::AlignedBuf;
use outlive_target::{ReadRange, ReadTicket, ShardName};
use outlive_types::{Error, ErrorKind, PackId, Result};
use std::collections::VecDeque;
use std::sync::Arc;

/// Containers whose reads are under way while one is looked at.
const AHEAD: usize = 2;

/// A pack that is being read.
pub(crate) struct Scan {
    pool: Pool,
    targets: Arc<TargetSet>,
    pack: PackId,
    layout: Layout,
    shards: Vec<Option<(OpenShard, usize)>>,
    /// What is wrong with which shard: damaged, or missing, in the order found.
    faults: Vec<(u8, Error)>,
    /// Shards that are read at first; others if one of these fails.
    reads: usize,
    under_way: VecDeque<Vec<Option<ReadTicket>>>,
    asked: u64,
    next: u64,
}

/// The fragments of one container: those that were read or made.
pub(crate) struct Fragments {
    /// Which container.
    pub number: u64,
    /// By shard.
    pub bytes: Vec<Option<AlignedBuf>>,
}

impl Scan {
    /// Opens all shards of a pack. `whole`: all of them are read; otherwise as many as are needed.
    ///
    /// # Errors
    /// Too few of them can be read.
    pub fn open(pool: &Pool, pack: PackId, whole: bool) -> Result<Scan> {
        let targets = pool.targets();
        let (mut shards, mut faults, mut unread) = (Vec::new(), Vec::new(), None);
        for shard in pool.shards_of(pack) {
            let open =
                |member| OpenShard::open(pool, &targets, shard, member).map(|open| (open, member));
            match targets.find_on(Tier::Fast, shard).and_then(open) {
                Ok(open) => shards.push(Some(open)),
                Err(error) => {
                    targets.forget(shard);
                    // What is on the fast tier is at fault, also where a copy makes up for it.
                    let copy = open_copy(pool, &targets, shard);
                    if let Err(unasked) = &copy {
                        unread = unread.or(Some(unasked.clone()));
                    }
                    let copy = copy.ok().flatten();
                    if copy.is_none() && error.kind() != ErrorKind::Damaged {
                        unread = unread.or(Some(error.clone()));
                    }
                    faults.push((shard.shard, error));
                    shards.push(copy);
                }
            }
        }
        let geometry = pool.config().geometry();
        let there = shards.iter().flatten().count();
        let first = shards.iter().flatten().next();
        let (Some((first, _)), true) = (first, there >= usize::from(geometry.k)) else {
            // What cannot be read just now may be whole.
            let error = unread.or_else(|| faults.first().map(|(_, error)| error.clone()));
            return Err(error.unwrap_or_else(|| Error::bug("a pack without shards")));
        };
        let layout =
            Layout::new(geometry, geometry.fragments_bytes(first.header.containers_bytes))?;
        let reads = if whole { shards.len() } else { geometry.k.into() };
        let under_way = VecDeque::new();
        let (asked, next) = (0, 0);
        let pool = pool.clone();
        Ok(Scan { pool, targets, pack, layout, shards, faults, reads, under_way, asked, next })
    }

    /// The same of as many shards as are needed, but none of these; copies of them on slow targets may be.
    ///
    /// # Errors
    /// Too few others can be read.
    pub fn without(pool: &Pool, pack: PackId, others: &[u8]) -> Result<Scan> {
        let mut scan = Scan::open(pool, pack, false)?;
        for number in others {
            let name = ShardName { pack, shard: *number };
            let shard = &mut scan.shards[usize::from(*number)];
            let tier = shard.as_ref().map(|(_, member)| scan.targets.members()[*member].tier);
            if tier != Some(Tier::Slow) {
                *shard = open_copy(pool, &scan.targets, name).ok().flatten();
            }
        }
        if scan.shards.iter().all(Option::is_none) {
            return Err(Error::damaged(format!("pack {pack}: no other shard of it is left")));
        }
        Ok(scan)
    }

    /// What was found wrong so far: shards by number.
    pub fn faults(&self) -> &[(u8, Error)] {
        &self.faults
    }

    /// The header of the first shard that has one.
    ///
    /// # Errors
    /// `Bug` if none has, which an open scan excludes.
    pub fn header(&self) -> Result<&ShardHeader> {
        self.first().map(|open| &open.header)
    }

    /// The pack's directory.
    ///
    /// # Errors
    /// As [`Scan::header`].
    pub fn directory(&self) -> Result<&Directory> {
        self.first().map(|open| &open.directory)
    }

    /// The same as it is stored.
    ///
    /// # Errors
    /// As [`Scan::header`].
    pub fn directory_bytes(&self) -> Result<&[u8]> {
        self.first().map(|open| &open.tail.directory[..])
    }

    fn first(&self) -> Result<&OpenShard> {
        let first = self.shards.iter().flatten().next();
        first.map(|(open, _)| open).ok_or_else(|| Error::bug("a scan without shards"))
    }

    /// Bytes of all shards that are there.
    pub fn stored_bytes(&self) -> u64 {
        self.shards.iter().flatten().map(|(open, _)| open.stored_bytes).sum()
    }

    /// Number of containers.
    ///
    /// # Errors
    /// As [`Scan::header`].
    pub fn containers(&self) -> Result<usize> {
        self.first().map(|open| open.tail.fragments.len())
    }

    /// Where the fragments of a container begin in each shard, and their length.
    pub fn fragment_of(&self, container: u64) -> (u64, u64) {
        self.layout.fragment_of(container)
    }

    /// Length of a container.
    ///
    /// # Errors
    /// As [`Scan::header`].
    pub fn container_bytes(&self, number: u64) -> Result<u64> {
        let ShardHeader { containers_bytes, geometry, .. } = *self.header()?;
        Ok(geometry.container_bytes.min(containers_bytes - number * geometry.container_bytes))
    }

    /// The next container's fragments; `None` behind the last. Those of `wanted` shards are made if they
    /// cannot be read, and so is all data.
    ///
    /// # Errors
    /// `Damaged` if too few can be read, or why one of them cannot just now.
    pub fn next(&mut self, wanted: &[u8]) -> Result<Option<Fragments>> {
        let total = self.first()?.tail.fragments.len() as u64;
        while self.asked < total && self.under_way.len() <= AHEAD {
            let reads = self.ask(self.asked);
            self.under_way.push_back(reads);
            self.asked += 1;
        }
        let Some(reads) = self.under_way.pop_front() else { return Ok(None) };
        let number = self.next;
        self.next += 1;
        let mut bytes: Vec<Option<AlignedBuf>> = Vec::with_capacity(reads.len());
        let mut unread = None;
        for (shard, read) in reads.into_iter().enumerate() {
            bytes.push(match read {
                Some(read) => self.checked(shard as u8, number, read, &mut unread),
                None => None,
            });
        }
        // Those that were not to be read are, where others failed.
        for shard in 0..bytes.len() {
            if bytes.iter().flatten().count() >= self.layout.code.k() {
                break;
            }
            if bytes[shard].is_none() && shard >= self.reads_below() {
                let read = self.read(shard as u8, number);
                bytes[shard] =
                    read.and_then(|read| self.checked(shard as u8, number, read, &mut unread));
            }
        }
        self.make(number, &mut bytes, wanted, unread)?;
        Ok(Some(Fragments { number, bytes }))
    }

    /// One container's fragments, by itself.
    ///
    /// # Errors
    /// As [`Scan::next`]; `Damaged` if there is no such container.
    pub fn only(&mut self, container: u64) -> Result<Fragments> {
        self.under_way = VecDeque::from([self.ask(container)]);
        (self.asked, self.next) = (u64::MAX, container);
        if container >= self.first()?.tail.fragments.len() as u64 {
            return Err(Error::damaged(format!("it has no container {container}")));
        }
        self.next(&[])?.ok_or_else(|| Error::damaged(format!("it has no container {container}")))
    }

    /// The number of the shard at which reading ends at first: so that `reads` of those that are there are
    /// below.
    fn reads_below(&self) -> usize {
        let there = |shard: &usize| self.shards[*shard].is_some();
        (0..self.shards.len()).filter(there).nth(self.reads).unwrap_or(self.shards.len())
    }

    fn ask(&self, container: u64) -> Vec<Option<ReadTicket>> {
        let below = self.reads_below();
        let read = |shard| if shard < below { self.read(shard as u8, container) } else { None };
        (0..self.shards.len()).map(read).collect()
    }

    fn read(&self, shard: u8, container: u64) -> Option<ReadTicket> {
        let (_, member) = self.shards[usize::from(shard)].as_ref()?;
        let (offset, length) = self.layout.fragment_of(container);
        let range = ReadRange { offset, buffer: AlignedBuf::zeroed(length as usize) };
        let name = ShardName { pack: self.pack, shard };
        Some(self.targets.members()[*member].read(name, range))
    }

    /// A fragment that was read, if it is what it should be.
    fn checked(
        &mut self,
        shard: u8,
        container: u64,
        read: ReadTicket,
        unread: &mut Option<Error>,
    ) -> Option<AlignedBuf> {
        let (open, _) = self.shards[usize::from(shard)].as_ref()?;
        let expected = open.tail.fragments[container as usize].checksum;
        let error = match read.wait() {
            Ok(bytes) if checksum(&bytes) == expected => return Some(bytes),
            Ok(_) => Error::damaged(format!("fragment {container} does not match its checksum")),
            Err(fault) => fault.error,
        };
        if error.kind() != ErrorKind::Damaged {
            *unread = unread.take().or(Some(error.clone()));
        }
        let (was_copy, bytes) = self.in_a_copy(shard, container, expected);
        if bytes.is_some() && unread.as_ref() == Some(&error) {
            *unread = None;
        }
        if !was_copy && !self.faults.iter().any(|(other, _)| *other == shard) {
            self.faults.push((shard, error));
        }
        bytes
    }

    /// A fragment that was damaged or could not be read, from a copy of its shard on another, slow target;
    /// and whether the first one was on a slow target as well.
    fn in_a_copy(&self, shard: u8, container: u64, expected: u64) -> (bool, Option<AlignedBuf>) {
        let Some((_, member)) = &self.shards[usize::from(shard)] else { return (false, None) };
        let name = ShardName { pack: self.pack, shard };
        let (offset, length) = self.layout.fragment_of(container);
        let others = self.targets.slow_copies(name).into_iter().filter(|other| other != member);
        let mut bytes = others.filter_map(|other| {
            OpenShard::open(&self.pool, &self.targets, name, other).ok()?;
            let range = ReadRange { offset, buffer: AlignedBuf::zeroed(length as usize) };
            let bytes = self.targets.members()[other].read(name, range).wait().ok()?;
            (checksum(&bytes) == expected).then_some(bytes)
        });
        let was_copy = self.targets.members()[*member].tier == Tier::Slow;
        (was_copy, bytes.next())
    }

    /// Makes what is missing of the data and of the wanted shards.
    fn make(
        &self,
        container: u64,
        bytes: &mut [Option<AlignedBuf>],
        wanted: &[u8],
        unread: Option<Error>,
    ) -> Result<()> {
        let (k, length) = (self.layout.code.k(), self.layout.fragment_of(container).1 as usize);
        let is_needed = |shard: &usize| {
            bytes[*shard].is_none() && (*shard < k || wanted.contains(&(*shard as u8)))
        };
        let lost: Vec<usize> = (0..bytes.len()).filter(is_needed).collect();
        if lost.is_empty() {
            return Ok(());
        }
        if bytes.iter().flatten().count() < k {
            let known = || {
                let damaged = |(_, error): &&(u8, Error)| error.kind() == ErrorKind::Damaged;
                self.faults.iter().find(damaged).map(|(_, error)| error.clone())
            };
            return Err(unread
                .or_else(known)
                .unwrap_or_else(|| Error::damaged("too little is left of it")));
        }
        let mut made: Vec<(usize, AlignedBuf)> =
            lost.into_iter().map(|shard| (shard, AlignedBuf::zeroed(length))).collect();
        let given: Vec<(usize, &[u8])> = bytes
            .iter()
            .enumerate()
            .filter_map(|(shard, bytes)| Some((shard, &bytes.as_ref()?[..])))
            .collect();
        let mut outs: Vec<(usize, &mut [u8])> =
            made.iter_mut().map(|(shard, bytes)| (*shard, &mut bytes[..])).collect();
        self.layout.code.rebuild(&given, &mut outs)?;
        for (shard, made) in made {
            bytes[shard] = Some(made);
        }
        Ok(())
    }

    /// A container of its fragments.
    ///
    /// # Errors
    /// As [`Scan::header`].
    pub fn container(&self, fragments: &Fragments) -> Result<Vec<u8>> {
        let length = self.container_bytes(fragments.number)? as usize;
        let mut container = Vec::with_capacity(length);
        for bytes in fragments.bytes.iter().take(self.layout.code.k()).flatten() {
            let left = length - container.len();
            container.extend_from_slice(&bytes[..left.min(bytes.len())]);
        }
        Ok(container)
    }
}

/// A copy of a shard on a slow target that is whole at its ends; `None` if there is none.
///
/// # Errors
/// Why a slow target cannot be asked that may have one.
fn open_copy(
    pool: &Pool,
    targets: &TargetSet,
    shard: ShardName,
) -> Result<Option<(OpenShard, usize)>> {
    let mut unasked = None;
    for (number, member) in targets.of_tier(Tier::Slow) {
        let has = member.has(shard).and_then(|has| match has {
            true => OpenShard::open(pool, targets, shard, number).map(Some),
            // One that has vanished has nothing, as it seems.
            false => member.look().map(|()| None),
        });
        match has {
            Ok(Some(open)) => return Ok(Some((open, number))),
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::Damaged => {}
            Err(error) => unasked = unasked.or(Some(error)),
        }
    }
    unasked.map_or(Ok(None), Err)
}
