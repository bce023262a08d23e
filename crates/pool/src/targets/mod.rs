//! The targets of a pool as one: which of them have a shard, which get one, and which are away.

mod begin;
mod member;
mod placement;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use member::{Member, PendingBytes};
pub use table::{Claim, FoundTarget, OpenTarget, Rows, StillThere, TargetLocations, TargetTable};

use crate::PoolConfig;
use crate::descriptor::redundancy::{Redundancy, TargetConfig, Tier};
use crate::descriptor::vacant::vacant_target;
use outlive_backend::{Fault, ReadRange, ReadTicket, ShardName, ShardWriter, Target};
use outlive_io::{AlignedBuf, StagingPool, Ticket};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, ErrorKind, Result, sync};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Opens the targets of a table.
pub(crate) fn members(table: &TargetTable, rows: &[TargetConfig]) -> Result<Vec<Member>> {
    let member = |row: &TargetConfig| {
        let (target, still_there) = match vacant_target(&row.location) {
            Some(vacant) => (vacant, None), // it has no marker, and is never away
            None => table.locations().open(row, rows.len() == 1)?,
        };
        let member = Member::new(row.id.unwrap_or(1), target).on(row.host.as_deref());
        let member = member.on_tier(row.tier).in_memory(row.volatile, row.unsettled);
        let member = member.in_state(row.state).vacant(row.is_vacant());
        let member = match still_there {
            Some(still_there) => member.if_there(still_there),
            None => member,
        };
        // An only target has no watch, since nothing goes on without it.
        Ok(match rows.len() {
            _ if row.is_vacant() => member,
            1 => member,
            _ => member.watched(table.locations().watch(row)),
        })
    };
    rows.iter().map(member).collect()
}

/// Chooses which of several errors to report: see [`Error::or_rather`].
pub(crate) fn rather(first: Option<Error>, next: Error) -> Error {
    match first {
        Some(first) => first.or_rather(next),
        None => next,
    }
}

/// Number of shards whose target is remembered.
const HOMES_MAX: usize = 1 << 17;

/// Microseconds of a read, before the first one.
const UNKNOWN_US: u64 = 12_500;

/// Targets that keep shards together, each shard on one of them. No record says which one: a reader
/// asks, and remembers the answer. So nothing can disagree with what is there, and a shard may be
/// moved.
#[derive(Debug)]
pub(crate) struct TargetSet {
    members: Vec<Member>,
    redundancy: Redundancy,
    /// Targets on which finished shards were found. Nothing waits for the lock: a forked child may
    /// inherit it in use.
    homes: Mutex<HashMap<ShardName, usize>>,
    /// Shards that were not found, or not whole: others are read first.
    lost: Mutex<HashSet<ShardName>>,
    /// Memory for fragments that are read in place of others.
    fragments: Arc<StagingPool>,
    /// Whether reads go around late targets.
    reads_around: bool,
    /// Counter for choices that alternate.
    counter: AtomicU32,
    /// Table that names them.
    source: Option<Source>,
    /// Targets that the table names now, as far as they were needed. Locked while the table is
    /// read: other callers wait for that, and do not read it, too.
    successor: sync::Mutex<Option<Arc<TargetSet>>>,
}

/// The table that names targets, as it was read.
#[derive(Debug)]
struct Source {
    table: Arc<TargetTable>,
    rows: Rows,
    /// A version of the table that has these rows.
    version: AtomicU64,
}

/// Copies of a shard.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// Targets that have one, in the order in which they are tried.
    pub members: Vec<usize>,
    /// Error of a target that cannot be asked and may have one.
    pub unasked: Option<Error>,
}

/// A shard that was begun.
pub(crate) struct BegunShard {
    pub writer: Box<dyn ShardWriter>,
    pub member: usize,
    pub under_way: PendingBytes,
}

impl TargetSet {
    pub fn new(members: Vec<Member>, config: &PoolConfig) -> TargetSet {
        let (redundancy, reads_around) = (config.redundancy.clone(), config.tuning.reads_around);
        let container_bytes = config.format.container_bytes;
        let geometry = redundancy.geometry(container_bytes);
        let fragment_bytes = geometry.fragment_bytes(container_bytes) as usize;
        // As many as a restore without two targets has in progress.
        let containers = config.tuning.staging_bytes / container_bytes;
        let fragments = StagingPool::new(2 * containers as usize * fragment_bytes, fragment_bytes);
        TargetSet::with(members, redundancy, reads_around, fragments)
    }

    fn with(
        members: Vec<Member>,
        redundancy: Redundancy,
        reads_around: bool,
        fragments: Arc<StagingPool>,
    ) -> TargetSet {
        let (homes, lost, counter) = Default::default();
        let (source, successor) = (None, sync::Mutex::default());
        TargetSet {
            members,
            redundancy,
            homes,
            lost,
            fragments,
            reads_around,
            counter,
            source,
            successor,
        }
    }

    /// Returns the same, as a table of that version names them.
    pub fn of_table(self, table: Arc<TargetTable>, rows: Rows, version: u64) -> TargetSet {
        let version = AtomicU64::new(version);
        TargetSet { source: Some(Source { table, rows, version }), ..self }
    }

    /// Returns a version of the table that names them; 0 without one.
    pub fn version(&self) -> u64 {
        self.source.as_ref().map_or(0, |source| source.version.load(Ordering::Relaxed))
    }

    /// Returns the number of the next target that comes; 0 without a table.
    pub fn next_id(&self) -> u32 {
        self.source.as_ref().map_or(0, |source| source.rows.next_id)
    }

    /// Returns whether a later version of the table has the same rows. Then it counts as theirs.
    pub fn is_still(&self, rows: &Rows, version: u64) -> bool {
        let source = self.source.as_ref().filter(|source| source.rows == *rows);
        source.is_some_and(|source| {
            source.version.fetch_max(version, Ordering::Relaxed);
            true
        })
    }

    /// Returns the targets that the table names now, if they are others: shards may have been moved
    /// to them.
    fn successor(&self) -> Result<Option<Arc<TargetSet>>> {
        let Some(Source { table, .. }) = &self.source else { return Ok(None) };
        let now = table.version()?;
        if now == self.version() {
            return Ok(None);
        }
        let mut successor = self.successor.lock();
        match &*successor {
            Some(known) if known.version() == now => Ok(Some(known.clone())),
            _ => {
                let rows = table.seen()?;
                if self.is_still(&rows, now) {
                    return Ok(None);
                }
                let members = members(table, &rows.targets)?;
                let (redundancy, fragments) = (self.redundancy.clone(), self.fragments.clone());
                let set = TargetSet::with(members, redundancy, self.reads_around, fragments);
                let set = Arc::new(set.of_table(table.clone(), rows, now));
                *successor = Some(set.clone());
                Ok(Some(set))
            }
        }
    }

    /// Returns which member has this number in the table.
    pub fn number_of(&self, id: u32) -> Option<usize> {
        self.members.iter().position(|member| member.id == id)
    }

    /// Returns whether reads go around late targets.
    pub fn reads_around(&self) -> bool {
        self.reads_around
    }

    /// Returns one more than at the last call, for choices that alternate.
    pub fn count(&self) -> u32 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the targets of a tier, with their numbers in this set.
    pub fn of_tier(&self, tier: Tier) -> impl Iterator<Item = (usize, &Member)> {
        self.members.iter().enumerate().filter(move |(_, member)| member.tier == tier)
    }

    /// Returns whether there are targets in memory.
    pub fn has_volatile(&self) -> bool {
        self.members.iter().any(|member| member.is_volatile)
    }

    /// Makes sure that the logs know what was lost with targets in memory.
    ///
    /// # Errors
    /// `Retry` if they do not know yet.
    pub fn check_settled(&self) -> Result<()> {
        let mut unsettled = self.of_tier(Tier::Fast).filter(|(_, member)| member.is_unsettled);
        match unsettled.nth(self.survives()) {
            None => Ok(()),
            Some((_, member)) => Err(Error::retry(format!(
                "target {} takes the place of one that was lost, and it is not recorded yet what was lost with \
                 that: try again",
                member.id
            ))),
        }
    }

    /// Returns whether there are slow targets.
    pub fn has_slow(&self) -> bool {
        self.of_tier(Tier::Slow).next().is_some()
    }

    /// Returns how many fast targets may be away without loss.
    pub fn survives(&self) -> usize {
        self.redundancy.survives()
    }

    /// Describes the targets and their locations, for messages.
    pub fn describe(&self) -> String {
        let each: Vec<String> = self.members.iter().map(|one| one.target().describe()).collect();
        match &each[..] {
            [only] => only.clone(),
            several => format!("{} targets: {}", several.len(), several.join(", ")),
        }
    }

    /// Returns the number in this set of the target that has a finished shard: a fast one, if one
    /// has it.
    ///
    /// # Errors
    /// `Damaged` if every target answers that it lacks the shard; otherwise the error of one that
    /// cannot be asked.
    pub fn find(&self, shard: ShardName) -> Result<usize> {
        let found = self.find_here(&[Tier::Fast, Tier::Slow], shard)?;
        found.map_or_else(|| self.not_found(&[Tier::Fast, Tier::Slow], shard), Ok)
    }

    /// Does the same for one tier.
    ///
    /// # Errors
    /// As [`TargetSet::find`].
    pub fn find_on(&self, tier: Tier, shard: ShardName) -> Result<usize> {
        let found = self.find_here(&[tier], shard)?;
        found.map_or_else(|| self.not_found(&[tier], shard), Ok)
    }

    fn not_found(&self, tiers: &[Tier], shard: ShardName) -> Result<usize> {
        // A target that has vanished seems empty. Or the shard is on a target that came meanwhile.
        if let Some(vanished) = self.vanished(tiers) {
            return Err(vanished);
        }
        match self.successor()? {
            Some(_) => Err(Error::retry("the targets of the pool have changed: try again")),
            None => {
                Err(Error::damaged(format!("shard {shard} is missing from {}", self.describe())))
            }
        }
    }

    /// Does the same for these tiers; `None` if all their targets answer that they lack the shard.
    /// Earlier tiers are asked first. A copy on a later tier is as good, whether or not an earlier
    /// one can be asked.
    fn find_here(&self, tiers: &[Tier], shard: ShardName) -> Result<Option<usize>> {
        if self.members.len() == 1 {
            return Ok(tiers.contains(&self.members[0].tier).then_some(0));
        }
        if let Some(homes) = self.homes.try_lock()
            && let Some(paths) = homes.get(&shard)
            && tiers.contains(&self.members[*paths].tier)
            && self.members[*paths].away().is_none()
        {
            return Ok(Some(*paths));
        }
        let mut unknown = None;
        for tier in tiers {
            let mut order = placement::preferred(&self.members, *tier, shard.pack);
            let first = usize::from(shard.shard) % order.len().max(1);
            order.rotate_left(first);
            for number in order {
                match self.members[number].has(shard) {
                    Ok(true) => {
                        self.is_on(shard, number);
                        return Ok(Some(number));
                    }
                    Ok(false) => {}
                    // The shard may be there.
                    Err(error) => unknown = Some(rather(unknown, error)),
                }
            }
        }
        unknown.map_or(Ok(None), Err)
    }

    /// Returns all copies of a shard, fast ones first.
    pub fn copies(&self, shard: ShardName) -> Copies {
        self.copies_on(&[Tier::Fast, Tier::Slow], shard)
    }

    /// Does the same for these tiers.
    pub fn copies_on(&self, tiers: &[Tier], shard: ShardName) -> Copies {
        if self.members.len() == 1 {
            return Copies { members: vec![0], unasked: None };
        }
        let mut copies = Copies::default();
        for tier in tiers {
            for number in placement::preferred(&self.members, *tier, shard.pack) {
                match self.members[number].has(shard) {
                    Ok(true) => copies.members.push(number),
                    Ok(false) => {}
                    Err(error) => copies.unasked = Some(rather(copies.unasked.take(), error)),
                }
            }
        }
        copies
    }

    /// Returns a target that has a shard, none of `others`: a fast one, if one has it.
    ///
    /// # Errors
    /// If no target that answers has it, and another one may have it.
    pub fn find_elsewhere(&self, shard: ShardName, others: &[usize]) -> Result<Option<usize>> {
        let mut unknown = None;
        for tier in [Tier::Fast, Tier::Slow] {
            for (number, member) in self.of_tier(tier) {
                if others.contains(&number) || member.away().is_some() {
                    continue;
                }
                match member.has(shard) {
                    Ok(true) => return Ok(Some(number)),
                    Ok(false) => {}
                    Err(error) => unknown = Some(rather(unknown, error)),
                }
            }
        }
        unknown.map_or(Ok(None), Err)
    }

    fn remember(&self, change: impl FnOnce(&mut HashMap<ShardName, usize>)) {
        if let Some(mut homes) = self.homes.try_lock() {
            change(&mut homes);
        }
    }

    /// Notes where a shard is.
    pub fn is_on(&self, shard: ShardName, number: usize) {
        self.remember(|homes| {
            // A pool may have more shards than memory should keep; they are found again.
            if homes.len() >= HOMES_MAX {
                homes.clear();
            }
            homes.insert(shard, number);
        });
        if let Some(mut lost) = self.lost.try_lock() {
            lost.remove(&shard);
        }
    }

    /// Notes that a shard gave no bytes: it is read only if others are not enough, or once in a
    /// while.
    pub fn is_lost(&self, shard: ShardName) {
        self.forget(shard);
        if let Some(mut lost) = self.lost.try_lock() {
            if lost.len() >= HOMES_MAX {
                lost.clear();
            }
            lost.insert(shard);
        }
    }

    /// Returns memory for a part of a fragment.
    pub fn fragment(&self, length: usize) -> AlignedBuf {
        if length <= self.fragments.buffer_bytes()
            && let Some(mut buffer) = self.fragments.try_take()
        {
            drop(buffer.split_off(length));
            return buffer;
        }
        AlignedBuf::zeroed(length)
    }

    /// Forgets where a shard was.
    pub fn forget(&self, shard: ShardName) {
        self.remember(|homes| {
            homes.remove(&shard);
        });
    }

    /// Returns whether a shard is lost or its target slow, as far as that is known at once: readers
    /// then prefer another shard.
    pub fn is_late(&self, shard: ShardName) -> bool {
        self.is_known_lost(shard) || self.is_slow(shard)
    }

    fn is_known_lost(&self, shard: ShardName) -> bool {
        self.lost.try_lock().is_some_and(|lost| lost.contains(&shard))
    }

    /// Returns the target of a shard, for callers that only want to know how busy it is. A shard
    /// that is nowhere is noted as lost, and not looked for here again: parity that a slow tier
    /// lacks would cost requests at each read. A read that needs the shard asks all targets, and
    /// then the note goes.
    fn likely(&self, shard: ShardName) -> Option<usize> {
        if self.is_known_lost(shard) {
            return None;
        }
        let found = self.find_here(&[Tier::Fast, Tier::Slow], shard);
        if matches!(found, Ok(None)) {
            self.is_lost(shard);
        }
        found.ok().flatten()
    }

    /// Returns whether the target of a shard takes far longer than the others do.
    fn is_slow(&self, shard: ShardName) -> bool {
        if !self.reads_around {
            return false;
        }
        let typical = placement::typical_read_us(&self.members);
        self.likely(shard).is_some_and(|number| placement::is_slow(&self.members[number], typical))
    }

    /// Returns the microseconds until the target of a shard has ended its reads in progress.
    pub fn wait_us(&self, shard: ShardName) -> u64 {
        match self.likely(shard) {
            Some(number) if self.reads_around => self.members[number].wait_us(UNKNOWN_US),
            _ => 0,
        }
    }

    /// Returns whether other reads should replace one that is not over: its target is slow, or the
    /// usual time is not known.
    pub fn is_overdue(&self, shard: ShardName) -> bool {
        self.typical_read_us() == 0 || self.is_slow(shard)
    }

    /// Returns the microseconds that a read usually takes; 0 if that is not known.
    pub fn typical_read_us(&self) -> u64 {
        placement::typical_read_us(&self.members)
    }

    /// Reads a range of a finished shard, wherever it is, even if it is being moved.
    pub fn read(self: &Arc<Self>, shard: ShardName, range: ReadRange) -> ReadTicket {
        let ReadRange { offset, mode, .. } = range;
        let number = match self.find(shard) {
            Ok(number) => number,
            Err(error) => return self.read_moved(shard, range, None, error),
        };
        let read = self.members[number].read(shard, range);
        if self.members.len() == 1 && self.source.is_none() {
            return read;
        }
        let (promise, ticket) = Ticket::pair();
        let this = self.clone();
        read.on_done(move |outcome| match outcome {
            Ok(Err(Fault { error, buffer })) if error.kind() == ErrorKind::Damaged => {
                let range = ReadRange { offset, buffer, mode };
                let again = this.read_moved(shard, range, Some(number), error);
                again.on_done(move |outcome| promise.settle(outcome));
            }
            outcome => promise.settle(outcome),
        });
        ticket
    }

    /// Reads a shard that was not on the expected target, which is `before`, if it is elsewhere by
    /// now.
    fn read_moved(
        &self,
        shard: ShardName,
        range: ReadRange,
        before: Option<usize>,
        error: Error,
    ) -> ReadTicket {
        self.forget(shard);
        let elsewhere: Vec<usize> = before.into_iter().collect();
        match self.find_elsewhere(shard, &elsewhere) {
            Ok(Some(number)) => return self.members[number].read(shard, range),
            Ok(None) => {}
            Err(error) => return Ticket::done(Err(Fault { error, buffer: range.buffer })),
        }
        match self.successor() {
            Ok(Some(now)) => now.read(shard, range),
            Ok(None) => {
                let error = self.vanished(&[Tier::Fast, Tier::Slow]).unwrap_or(error);
                Ticket::done(Err(Fault { error, buffer: range.buffer }))
            }
            Err(error) => Ticket::done(Err(Fault { error, buffer: range.buffer })),
        }
    }

    /// Returns why a target of these tiers seems empty, if one has vanished.
    pub fn vanished(&self, tiers: &[Tier]) -> Option<Error> {
        let is_asked = |member: &&Member| tiers.contains(&member.tier) && !member.is_lost();
        self.members.iter().filter(is_asked).find_map(|member| member.look().err())
    }

    /// Returns the length of a finished shard.
    ///
    /// # Errors
    /// As [`TargetSet::find`].
    pub fn length(&self, shard: ShardName) -> Result<u64> {
        let known = self.find(shard).and_then(|number| {
            let length = self.members[number].target().length(shard);
            length.inspect_err(|_| self.forget(shard))
        });
        let error = match known {
            Err(error) if error.kind() == ErrorKind::Damaged => error,
            known => return known,
        };
        // It may have been moved just now.
        if let Some(number) = self.find_elsewhere(shard, &[])? {
            return self.members[number].target().length(shard);
        }
        match self.successor()? {
            Some(now) => now.length(shard),
            None => Err(self.vanished(&[Tier::Fast, Tier::Slow]).unwrap_or(error)),
        }
    }

    /// Returns the answer of each target that is there, with its number. Slow ones may be missing:
    /// they have copies.
    ///
    /// # Errors
    /// If more fast targets cannot be asked than may be missing: the error of the first one.
    fn ask<T>(&self, ask: impl Fn(&Member) -> Result<T>) -> Result<Vec<(usize, T)>> {
        let mut answers = Vec::with_capacity(self.members.len());
        let (mut failed, mut first) = (0, None);
        for (number, member) in self.members.iter().enumerate() {
            match ask(member) {
                Ok(answer) => answers.push((number, answer)),
                Err(_) if member.tier == Tier::Slow || member.is_lost() => {}
                Err(error) => {
                    failed += 1;
                    first = first.or(Some(error));
                }
            }
        }
        match first {
            Some(error) if failed > self.survives() => Err(error),
            _ => Ok(answers),
        }
    }

    /// Returns all finished shards on the targets that are there, with the target's number, sorted.
    ///
    /// # Errors
    /// If more targets cannot be asked than may be missing: the error of the first one.
    pub fn list(&self) -> Result<Vec<(ShardName, usize)>> {
        self.ask(|member| member.asked(|target| target.list())).map(flat)
    }

    /// Returns the same; a power cut takes none of them back.
    ///
    /// # Errors
    /// As [`TargetSet::list`].
    pub fn list_durable(&self) -> Result<Vec<(ShardName, usize)>> {
        self.ask(Member::durable).map(flat)
    }

    /// Returns the same for the targets that are there, even if they are too few. A power cut takes
    /// back no shard on slow ones.
    pub fn list_there(&self) -> Vec<(ShardName, usize)> {
        let list = |(number, member): (usize, &Member)| {
            let listed = match member.tier {
                Tier::Fast => member.asked(|target| target.list()),
                Tier::Slow => member.durable(),
            };
            listed.ok().map(|shards| (number, shards))
        };
        flat(self.members.iter().enumerate().filter_map(list).collect())
    }

    /// Returns all shards that were begun and not finished.
    ///
    /// # Errors
    /// As [`TargetSet::list`].
    pub fn unfinished(&self) -> Result<Vec<(ShardName, usize)>> {
        self.ask(|member| member.asked(|target| target.unfinished())).map(flat)
    }

    /// Removes the data of unfinished shards.
    ///
    /// # Errors
    /// As [`TargetSet::list`].
    pub fn delete_unfinished(&self, shards: &[ShardName]) -> Result<()> {
        let each = |target: &dyn Target| {
            shards.iter().try_for_each(|shard| target.delete_unfinished(*shard))
        };
        self.ask(|member| member.asked(each)).map(drop)
    }

    /// Removes shards from every target that is there. On one that is away they stay, and appear
    /// again when it is back.
    ///
    /// # Errors
    /// As [`TargetSet::list`].
    pub fn delete(&self, shards: &[ShardName]) -> Result<()> {
        self.remember(|homes| {
            for shard in shards {
                homes.remove(shard);
            }
        });
        let each = |target: &dyn Target| shards.iter().try_for_each(|shard| target.delete(*shard));
        self.ask(|member| member.asked(each)).map(drop)
    }

    /// Removes a shard from all fast targets that are there, even if one of them fails.
    ///
    /// # Errors
    /// Error of the first target that fails.
    pub fn delete_fast(&self, shard: ShardName) -> Result<()> {
        self.forget(shard);
        let there = self.of_tier(Tier::Fast).filter(|(_, one)| one.away().is_none());
        let deleted: Vec<_> = there.map(|(_, member)| member.target().delete(shard)).collect();
        deleted.into_iter().collect()
    }

    /// Makes sure that everything can be read: enough fast targets are there, or a slow one.
    /// Returns why nothing can be saved, if it is only a slow one.
    ///
    /// # Errors
    /// As [`TargetSet::check`], if no slow target is there either.
    pub fn check_readable(&self) -> Result<Option<Error>> {
        self.check_or(|member| member.tier == Tier::Slow)
    }

    /// Makes sure that a target is there. Returns why nothing can be saved, if too few fast ones
    /// are there.
    ///
    /// # Errors
    /// As [`TargetSet::check`], if no target is there.
    pub fn check_any(&self) -> Result<Option<Error>> {
        self.check_or(|_| true)
    }

    /// Returns why nothing can be saved, if too few fast targets are there, but one that
    /// `is_enough`.
    fn check_or(&self, is_enough: impl Fn(&Member) -> bool) -> Result<Option<Error>> {
        let fast = self.check();
        let mut is_readable = false;
        for (_, member) in self.of_tier(Tier::Slow) {
            is_readable |= is_enough(member) && member.check().is_ok();
        }
        let Err(error) = fast else { return Ok(None) };
        // Only now each of them has been checked.
        for (_, member) in self.of_tier(Tier::Fast) {
            is_readable |= member.check().is_ok() && is_enough(member);
        }
        if is_readable { Ok(Some(error)) } else { Err(error) }
    }

    /// Makes sure that as many fast targets are there as the pool needs.
    ///
    /// # Errors
    /// If more are away than may be missing: the error of the first one.
    pub fn check(&self) -> Result<()> {
        let fast = || {
            let fast = self.of_tier(Tier::Fast).map(|(_, member)| member);
            fast.filter(|member| !member.is_lost())
        };
        // A target that was given up may be back.
        self.members.iter().filter(|member| member.is_lost()).for_each(|lost| drop(lost.check()));
        // All at once, so that the waits for silent ones overlap.
        let begun: Vec<_> = fast().map(Member::begin_check).collect();
        let looked = fast().zip(begun);
        let mut away = looked.filter_map(|(member, begun)| member.end_check(begun).err());
        match away.nth(self.survives()) {
            None => Ok(()),
            Some(last) => {
                // The first error says as much, and no target is asked twice.
                let first = fast().find_map(|member| member.check().err());
                let error = first.unwrap_or(last);
                Err(match self.survives() {
                    0 => error,
                    some => error.context(format!(
                        "more than {some} of {} targets are away",
                        fast().count()
                    )),
                })
            }
        }
    }
}

fn flat(answers: Vec<(usize, Vec<ShardName>)>) -> Vec<(ShardName, usize)> {
    let each = |(number, shards): (usize, Vec<ShardName>)| {
        shards.into_iter().map(move |shard| (shard, number))
    };
    let mut all: Vec<(ShardName, usize)> = answers.into_iter().flat_map(each).collect();
    all.sort_unstable();
    all
}
