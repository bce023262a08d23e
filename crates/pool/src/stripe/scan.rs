//! The verified read: a pack, container by container, every fragment against its checksum. A
//! fragment that is damaged or unreadable is read from any other copy of its shard, on either tier,
//! or computed from the fragments of other shards. Only after all of these were tried, it counts as
//! damaged.

use super::shard::OpenShard;
use crate::Pool;
use crate::descriptor::redundancy::Tier;
use crate::layout::Layout;
use crate::targets::TargetSet;
use outlive_backend::{ReadRange, ReadTicket, ShardName};
use outlive_format::{Directory, ShardHeader, checksum};
use outlive_io::AlignedBuf;
use outlive_types::{Error, ErrorKind, PackId, Result};
use std::collections::VecDeque;
use std::sync::Arc;

/// Containers whose reads are in progress while one is checked.
const AHEAD: usize = 2;

/// Fault of a shard, or of one copy of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardFault {
    /// Number of the shard in its pack.
    pub shard: u8,
    /// Target that has the faulty copy; `None` if the fast tier has no copy at all.
    pub target: Option<u32>,
    /// Whether that is a slow target.
    pub is_slow: bool,
    /// The reason.
    pub error: Error,
}

/// A copy of a shard on one target.
struct ShardCopy {
    shard: u8,
    targets: Arc<TargetSet>,
    /// Number of the target in that set.
    member: usize,
    /// Header and tail, once they were read.
    open: Option<Result<Arc<OpenShard>>>,
}

impl ShardCopy {
    /// Returns the id of its target.
    fn id(&self) -> u32 {
        self.targets.members()[self.member].id
    }
}

/// Copies that are read ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Breadth<'a> {
    /// Every copy of every shard, to find all damage.
    All,
    /// One copy of each of these shards; others if that is not enough.
    Shards(&'a [u8]),
}

/// A pack that is being read.
pub(crate) struct Scan {
    pool: Pool,
    pack: PackId,
    layout: Layout,
    /// Copies in the order in which they were found and are tried: of each shard those on the fast
    /// tier first.
    copies: Vec<ShardCopy>,
    /// Shards whose copies the scan has looked for.
    looked: Vec<u8>,
    /// Faults, in the order in which they were found.
    faults: Vec<ShardFault>,
    /// Error of a target that cannot be asked and may have a copy.
    unasked: Option<Error>,
    /// Copies that are read ahead.
    ahead: Vec<usize>,
    under_way: VecDeque<Vec<(usize, ReadTicket)>>,
    asked: u64,
    next: u64,
    /// Whether everything is read for the second time.
    is_second: bool,
}

/// Fragments of one container that were read or computed.
pub(crate) struct Fragments {
    /// Number of the container.
    pub number: u64,
    /// Bytes of each shard's fragment.
    pub bytes: Vec<Option<AlignedBuf>>,
}

impl Scan {
    /// Looks for all copies of a pack's shards, and opens those that are read ahead.
    ///
    /// # Errors
    /// If no header and tail can be read: `Damaged` if every target answered, otherwise the error
    /// of one that did not.
    pub fn open(pool: &Pool, pack: PackId, breadth: Breadth<'_>) -> Result<Scan> {
        let layout = Layout::new(pool.config().geometry(), 0)?;
        let mut scan = Scan {
            pool: pool.clone(),
            pack,
            layout,
            copies: Vec::new(),
            looked: Vec::new(),
            faults: Vec::new(),
            unasked: None,
            ahead: Vec::new(),
            under_way: VecDeque::new(),
            asked: 0,
            next: 0,
            is_second: false,
        };
        scan.begin(breadth)?;
        Ok(scan)
    }

    /// Returns the numbers of all shards.
    fn all(&self) -> Vec<u8> {
        (0..self.layout.shards() as u8).collect()
    }

    /// Looks for the copies of shards that it has not looked for yet. If there are none, looks for
    /// all once more, on the targets that the pool has now: a shard may have been moved. Returns
    /// whether there is something to read.
    fn look_further(&mut self) -> Result<bool> {
        let left: Vec<u8> =
            self.all().into_iter().filter(|shard| !self.looked.contains(shard)).collect();
        if left.is_empty() {
            self.pool.refresh_targets()?;
            let is_new = self.look(&self.all())?;
            return Ok(is_new || self.read_again());
        }
        let is_new = self.look(&left)?;
        Ok(is_new || self.look_further()?)
    }

    /// Lets everything be read once more, at the first call. A wrong bit may have appeared on the
    /// way. Or another command may have repaired one copy after it was read here, before the next
    /// one was damaged.
    fn read_again(&mut self) -> bool {
        for copy in &mut self.copies {
            copy.open.take_if(|open| open.is_err());
        }
        !std::mem::replace(&mut self.is_second, true)
    }

    /// Looks for copies of these shards that are not known yet. Returns whether it has found any.
    fn look(&mut self, shards: &[u8]) -> Result<bool> {
        let targets = self.pool.targets();
        let (mut is_new, mut missing) = (false, Vec::new());
        self.unasked = None;
        for shard in shards.iter().copied() {
            let name = ShardName { pack: self.pack, shard };
            if !self.looked.contains(&shard) {
                self.looked.push(shard);
            }
            let found = targets.copies(name);
            if !found.members.iter().any(|member| targets.members()[*member].tier == Tier::Fast) {
                missing.push((name, found.unasked.clone()));
            }
            self.unasked = self.unasked.take().or(found.unasked);
            for member in found.members {
                let id = targets.members()[member].id;
                let is_known = |copy: &ShardCopy| (copy.shard, copy.id()) == (name.shard, id);
                if !self.copies.iter().any(is_known) {
                    let (shard, targets, open) = (name.shard, targets.clone(), None);
                    self.copies.push(ShardCopy { shard, targets, member, open });
                    is_new = true;
                }
            }
        }
        // A target that has vanished seems to be empty.
        let vanished = if missing.is_empty() { None } else { targets.vanished(&[Tier::Fast]) };
        self.unasked = self.unasked.take().or(vanished.clone());
        for (name, unasked) in missing {
            let error = unasked.or_else(|| vanished.clone());
            let error = error.unwrap_or_else(|| Error::damaged(format!("shard {name} is missing")));
            let (shard, target, is_slow) = (name.shard, None, false);
            let fault = ShardFault { shard, target, is_slow, error };
            if !self.faults.iter().any(|other| (other.shard, other.target) == (shard, target)) {
                self.faults.push(fault);
            }
        }
        Ok(is_new)
    }

    fn begin(&mut self, breadth: Breadth<'_>) -> Result<()> {
        match breadth {
            Breadth::All => self.look(&self.all())?,
            Breadth::Shards(shards) => self.look(shards)?,
        };
        for at in 0..self.copies.len() {
            let shard = self.copies[at].shard;
            let is_read = |scan: &Scan| scan.ahead.iter().any(|at| scan.copies[*at].shard == shard);
            let is_wanted = match breadth {
                Breadth::All => true,
                Breadth::Shards(shards) => shards.contains(&shard) && !is_read(self),
            };
            if is_wanted && self.opened(at).is_some() {
                self.ahead.push(at);
            }
        }
        self.read_ahead_in_place_of(breadth)?;
        // The header of any shard has the length of all.
        let first = loop {
            match (0..self.copies.len()).find_map(|at| self.opened(at)) {
                Some(first) => break first,
                None if self.look_further()? => {}
                None => return Err(self.too_few()),
            }
        };
        let geometry = self.layout.geometry;
        self.layout =
            Layout::new(geometry, geometry.fragments_bytes(first.header.containers_bytes))?;
        Ok(())
    }

    /// Reads k others ahead, if a shard has to be computed from them.
    fn read_ahead_in_place_of(&mut self, breadth: Breadth<'_>) -> Result<()> {
        let Breadth::Shards(shards) = breadth else { return Ok(()) };
        let ahead =
            |scan: &Scan, shard: u8| scan.ahead.iter().any(|at| scan.copies[*at].shard == shard);
        if shards.iter().all(|shard| ahead(self, *shard)) {
            return Ok(());
        }
        let others: Vec<u8> =
            self.all().into_iter().filter(|shard| !self.looked.contains(shard)).collect();
        self.look(&others)?;
        for at in 0..self.copies.len() {
            let is_enough = self.ahead.len() >= self.layout.code.k();
            if !is_enough && !ahead(self, self.copies[at].shard) && self.opened(at).is_some() {
                self.ahead.push(at);
            }
        }
        Ok(())
    }

    /// Returns header and tail of a copy, if they are whole; notes a fault once.
    fn opened(&mut self, at: usize) -> Option<Arc<OpenShard>> {
        if self.copies[at].open.is_none() {
            let ShardCopy { shard, targets, member, .. } = &self.copies[at];
            let name = ShardName { pack: self.pack, shard: *shard };
            let opened = OpenShard::open(&self.pool, targets, name, *member).map(Arc::new);
            if let Err(error) = &opened {
                self.note(at, error.clone());
            }
            self.copies[at].open = Some(opened);
        }
        self.copies[at].open.as_ref()?.as_ref().ok().cloned()
    }

    fn note(&mut self, at: usize, error: Error) {
        let ShardCopy { shard, targets, member, .. } = &self.copies[at];
        let (shard, member) = (*shard, &targets.members()[*member]);
        targets.forget(ShardName { pack: self.pack, shard });
        let (target, is_slow) = (Some(member.id), member.tier == Tier::Slow);
        let is_noted = |fault: &ShardFault| (fault.shard, fault.target) == (shard, target);
        if !self.faults.iter().any(is_noted) {
            self.faults.push(ShardFault { shard, target, is_slow, error });
        }
    }

    /// Returns why too little can be read. An error that may pass comes before damage.
    fn too_few(&self) -> Error {
        let mut errors = self.faults.iter().map(|fault| &fault.error);
        let unread = errors.find(|error| error.kind() != ErrorKind::Damaged).cloned();
        let damaged = || {
            let known = |fault: &&ShardFault| fault.target.is_some();
            let fault = self.faults.iter().find(known).or(self.faults.first());
            fault.map(|fault| fault.error.clone())
        };
        let error = self.unasked.clone().or(unread).or_else(damaged);
        error.unwrap_or_else(|| Error::damaged("too little is left of it"))
    }

    /// Returns the faults found so far.
    pub fn faults(&self) -> &[ShardFault] {
        &self.faults
    }

    fn first(&self) -> Result<&Arc<OpenShard>> {
        let open = |copy: &'_ ShardCopy| matches!(copy.open, Some(Ok(_)));
        let first = self.copies.iter().find(|copy| open(copy)).and_then(|copy| copy.open.as_ref());
        let first = first.and_then(|open| open.as_ref().ok());
        first.ok_or_else(|| Error::bug("a scan without shards"))
    }

    /// Returns the header of some shard; its number is that of any.
    ///
    /// # Errors
    /// `Bug` without one, which an open scan excludes.
    pub fn header(&self) -> Result<&ShardHeader> {
        self.first().map(|open| &open.header)
    }

    /// Returns the pack's directory.
    ///
    /// # Errors
    /// As [`Scan::header`].
    pub fn directory(&self) -> Result<&Directory> {
        self.first().map(|open| &open.directory)
    }

    /// Returns the directory as it is stored.
    ///
    /// # Errors
    /// As [`Scan::header`].
    pub fn directory_bytes(&self) -> Result<&[u8]> {
        self.first().map(|open| &open.tail.directory[..])
    }

    /// Returns the bytes of all copies that were opened.
    pub fn stored_bytes(&self) -> u64 {
        let open = self.copies.iter().filter_map(|copy| copy.open.as_ref()?.as_ref().ok());
        open.map(|open| open.stored_bytes).sum()
    }

    /// Returns the number of containers.
    ///
    /// # Errors
    /// As [`Scan::header`].
    pub fn containers(&self) -> Result<usize> {
        self.first().map(|open| open.tail.fragments.len())
    }

    /// Returns where the fragments of a container begin in each shard, and their length.
    pub fn fragment_of(&self, container: u64) -> (u64, u64) {
        self.layout.fragment_of(container)
    }

    /// Returns the numbers of the shards that hold the data.
    pub fn data(&self) -> Vec<u8> {
        (0..self.layout.code.k() as u8).collect()
    }

    /// Returns the length of a container.
    ///
    /// # Errors
    /// As [`Scan::header`].
    pub fn container_bytes(&self, number: u64) -> Result<u64> {
        let ShardHeader { containers_bytes, geometry, .. } = *self.header()?;
        Ok(geometry.container_bytes.min(containers_bytes - number * geometry.container_bytes))
    }

    /// Returns the next container's fragments of the `wanted` shards, and others that were read;
    /// `None` after the last.
    ///
    /// # Errors
    /// `Damaged` if too few fragments are whole on all targets, or the error of one that cannot be
    /// read now.
    pub fn next(&mut self, wanted: &[u8]) -> Result<Option<Fragments>> {
        let total = self.containers()? as u64;
        while self.asked < total && self.under_way.len() <= AHEAD {
            let reads = self.ahead.iter().map(|at| (*at, self.read(*at, self.asked))).collect();
            self.under_way.push_back(reads);
            self.asked += 1;
        }
        let Some(reads) = self.under_way.pop_front() else { return Ok(None) };
        let number = self.next;
        self.next += 1;
        self.fragments(number, reads, wanted).map(Some)
    }

    /// Returns one container's fragments of the `wanted` shards, by itself.
    ///
    /// # Errors
    /// As [`Scan::next`]; `Damaged` if there is no such container.
    pub fn only(&mut self, container: u64, wanted: &[u8]) -> Result<Fragments> {
        if container >= self.containers()? as u64 {
            return Err(Error::damaged(format!("it has no container {container}")));
        }
        let reads = self.ahead.iter().map(|at| (*at, self.read(*at, container))).collect();
        self.fragments(container, reads, wanted)
    }

    fn fragments(
        &mut self,
        number: u64,
        reads: Vec<(usize, ReadTicket)>,
        wanted: &[u8],
    ) -> Result<Fragments> {
        let mut bytes: Vec<Option<AlignedBuf>> = (0..self.layout.shards()).map(|_| None).collect();
        let mut tried = vec![false; self.copies.len()];
        for (at, read) in reads {
            tried[at] = true;
            let read = self.checked(at, number, read);
            let place = &mut bytes[usize::from(self.copies[at].shard)];
            *place = place.take().or(read);
        }
        self.try_others(number, wanted, &mut bytes, &mut tried);
        loop {
            let is_lost = |shard: &u8| bytes[usize::from(*shard)].is_none();
            let lost: Vec<u8> = wanted.iter().copied().filter(is_lost).collect();
            if lost.is_empty() {
                return Ok(Fragments { number, bytes });
            }
            let all: Vec<u8> = (0..bytes.len() as u8).collect();
            self.try_others(number, &all, &mut bytes, &mut tried);
            if bytes.iter().flatten().count() >= self.layout.code.k() {
                self.make(number, &mut bytes, &lost)?;
                return Ok(Fragments { number, bytes });
            }
            // A copy that has vanished may be elsewhere: it is deleted only when another one is
            // whole.
            if !self.look_further()? {
                return Err(self.too_few());
            }
            tried = vec![false; self.copies.len()];
        }
    }

    /// Tries copies of these shards that were not read yet, where bytes are missing, until there
    /// are enough.
    fn try_others(
        &mut self,
        number: u64,
        shards: &[u8],
        bytes: &mut [Option<AlignedBuf>],
        tried: &mut [bool],
    ) {
        for (at, tried) in tried.iter_mut().enumerate() {
            let shard = self.copies[at].shard;
            let is_needed = bytes[usize::from(shard)].is_none() && shards.contains(&shard);
            if *tried || !is_needed {
                continue;
            }
            // Any k are enough to compute all others.
            let is_all = shards.len() == bytes.len();
            if is_all && bytes.iter().flatten().count() >= self.layout.code.k() {
                return;
            }
            *tried = true;
            if self.opened(at).is_some() {
                let read = self.read(at, number);
                bytes[usize::from(shard)] = self.checked(at, number, read);
            }
        }
    }

    fn read(&self, at: usize, container: u64) -> ReadTicket {
        let ShardCopy { shard, targets, member, .. } = &self.copies[at];
        let (offset, length) = self.layout.fragment_of(container);
        let range = ReadRange::new(offset, AlignedBuf::zeroed(length as usize));
        targets.members()[*member].read(ShardName { pack: self.pack, shard: *shard }, range)
    }

    /// Returns a fragment that was read, if it matches its checksum.
    fn checked(&mut self, at: usize, container: u64, read: ReadTicket) -> Option<AlignedBuf> {
        let open = self.opened(at)?;
        let expected = open.tail.fragments.get(container as usize)?.checksum;
        let error = match read.wait() {
            Ok(bytes) if checksum(&bytes) == expected => return Some(bytes),
            Ok(_) => Error::damaged(format!("fragment {container} does not match its checksum")),
            Err(fault) => fault.error,
        };
        self.note(at, error);
        None
    }

    /// Computes lost fragments from the others.
    fn make(&self, container: u64, bytes: &mut [Option<AlignedBuf>], lost: &[u8]) -> Result<()> {
        let length = self.layout.fragment_of(container).1 as usize;
        let lost = lost.iter().map(|shard| usize::from(*shard));
        let lost: Vec<usize> = lost.filter(|shard| bytes[*shard].is_none()).collect();
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

    /// Joins a container from its fragments.
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
