//! The targets of a pool as one: which of them has a shard, which gets one, and which are away.

mod begin;
mod member;
mod placement;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use member::{Member, UnderWay};
pub use table::{Claim, FoundTarget, OpenTarget, Rows, StillThere, TargetLocations, TargetTable};

use crate::PoolConfig;
use crate::redundancy::{Redundancy, TargetConfig, Tier};
use outlive_io::{AlignedBuf, StagingPool, Ticket};
use outlive_target::{Fault, ReadRange, ReadTicket, ShardName, ShardWriter, Target};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, ErrorKind, Result, sync};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The targets of a table.
pub(crate) fn members(table: &TargetTable, rows: &[TargetConfig]) -> Result<Vec<Member>> {
    let member = |row: &TargetConfig| {
        let (target, still_there) = table.locations().open(row, rows.len() == 1)?;
        let member = Member::new(row.id.unwrap_or(1), target).on(row.host.as_deref());
        let member = member.on_tier(row.tier).in_memory(row.volatile, row.unsettled);
        let member = member.in_state(row.state);
        let member = match still_there {
            Some(still_there) => member.if_there(still_there),
            None => member,
        };
        // Nothing goes on without the only one.
        Ok(match rows.len() {
            1 => member,
            _ => member.watched(table.locations().watch(row)),
        })
    };
    rows.iter().map(member).collect()
}

/// What is told of several errors: see [`Error::or_rather`].
pub(crate) fn rather(first: Option<Error>, next: Error) -> Error {
    match first {
        Some(first) => first.or_rather(next),
        None => next,
    }
}

/// Shards of which it is known where they are.
const HOMES_MAX: usize = 1 << 17;

/// Microseconds that a read takes, until one was read.
const UNKNOWN_US: u64 = 12_500;

/// Targets that keep shards together, each shard on one of them. Which one is written nowhere: whoever
/// reads asks, and remembers. So nothing can disagree with what is there, and a shard may be moved.
#[derive(Debug)]
pub(crate) struct TargetSet {
    members: Vec<Member>,
    redundancy: Redundancy,
    /// Where finished shards were found. Only ever tried: a forked child may inherit it locked.
    homes: Mutex<HashMap<ShardName, usize>>,
    /// Shards that were not found, or not whole: others are read first.
    lost: Mutex<HashSet<ShardName>>,
    /// Memory for fragments that are read in the place of others.
    fragments: Arc<StagingPool>,
    /// Whether reads go around targets that are late.
    reads_around: bool,
    /// Of what takes turns.
    counter: AtomicU32,
    /// What names them.
    source: Option<Source>,
    /// Those that the table names now, as far as somebody needed to know. Held while the table is read: who
    /// comes meanwhile waits for that, and does not read it, too.
    successor: sync::Mutex<Option<Arc<TargetSet>>>,
}

/// The table that names targets, as it was seen.
#[derive(Debug)]
struct Source {
    table: Arc<TargetTable>,
    rows: Rows,
    /// A version of the table in which it says so.
    version: AtomicU64,
}

/// Where copies of a shard are.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// The targets that have one, in the order in which they are tried.
    pub members: Vec<usize>,
    /// Why a target cannot be asked that may have one.
    pub unasked: Option<Error>,
}

/// A shard that was begun.
pub(crate) struct BegunShard {
    pub writer: Box<dyn ShardWriter>,
    pub member: usize,
    pub under_way: UnderWay,
}

impl TargetSet {
    pub fn new(members: Vec<Member>, config: &PoolConfig) -> TargetSet {
        let (redundancy, reads_around) = (config.redundancy.clone(), config.tuning.reads_around);
        let container_bytes = config.format.container_bytes;
        let geometry = redundancy.geometry(container_bytes);
        let fragment_bytes = geometry.fragment_bytes(container_bytes) as usize;
        // As many as a restore has on its way of two lost targets.
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

    /// The same, as a table of that version names them.
    pub fn of_table(self, table: Arc<TargetTable>, rows: Rows, version: u64) -> TargetSet {
        let version = AtomicU64::new(version);
        TargetSet { source: Some(Source { table, rows, version }), ..self }
    }

    /// A version of the table that names them; 0 without one.
    pub fn version(&self) -> u64 {
        self.source.as_ref().map_or(0, |source| source.version.load(Ordering::Relaxed))
    }

    /// The number of the next target that comes; 0 without a table.
    pub fn next_id(&self) -> u32 {
        self.source.as_ref().map_or(0, |source| source.rows.next_id)
    }

    /// Whether a later version of the table says the same. Then it counts as theirs.
    pub fn is_still(&self, rows: &Rows, version: u64) -> bool {
        let source = self.source.as_ref().filter(|source| source.rows == *rows);
        source.is_some_and(|source| {
            source.version.fetch_max(version, Ordering::Relaxed);
            true
        })
    }

    /// The targets that the table names now, if they are others: somebody may have moved shards to them.
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

    /// The target with a number in the table.
    pub fn number_of(&self, id: u32) -> Option<usize> {
        self.members.iter().position(|member| member.id == id)
    }

    /// Whether reads go around targets that are late.
    pub fn reads_around(&self) -> bool {
        self.reads_around
    }

    /// One more than at the last call: for what takes turns.
    pub fn count(&self) -> u32 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Those of a tier, with their numbers here.
    pub fn of_tier(&self, tier: Tier) -> impl Iterator<Item = (usize, &Member)> {
        self.members.iter().enumerate().filter(move |(_, member)| member.tier == tier)
    }

    /// Whether there are targets in memory.
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
                "target {} is made anew, as its memory was lost, and it is not recorded yet what was lost with \
                 it: try again",
                member.id
            ))),
        }
    }

    /// Whether there are slow targets.
    pub fn has_slow(&self) -> bool {
        self.of_tier(Tier::Slow).next().is_some()
    }

    /// So many fast targets may be away, and all is there.
    pub fn survives(&self) -> usize {
        self.redundancy.survives()
    }

    /// What and where they are, for messages.
    pub fn describe(&self) -> String {
        let each: Vec<String> = self.members.iter().map(|one| one.target().describe()).collect();
        match &each[..] {
            [only] => only.clone(),
            several => format!("{} targets: {}", several.len(), several.join(", ")),
        }
    }

    /// The number of the target that has a finished shard: a fast one, if one has it.
    ///
    /// # Errors
    /// `Damaged` if every target says that it has not; otherwise why one cannot be asked.
    pub fn find(&self, shard: ShardName) -> Result<usize> {
        let found = self.find_here(&[Tier::Fast, Tier::Slow], shard)?;
        found.map_or_else(|| self.not_found(&[Tier::Fast, Tier::Slow], shard), Ok)
    }

    /// The same of one tier.
    ///
    /// # Errors
    /// As [`TargetSet::find`].
    pub fn find_on(&self, tier: Tier, shard: ShardName) -> Result<usize> {
        let found = self.find_here(&[tier], shard)?;
        found.map_or_else(|| self.not_found(&[tier], shard), Ok)
    }

    fn not_found(&self, tiers: &[Tier], shard: ShardName) -> Result<usize> {
        // One that has vanished has nothing, as it seems; and it may be on one that came meanwhile.
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

    /// The same of these targets; `None` if every one of these tiers says that it has not. Earlier tiers
    /// are asked first. What a later one has is as good, whether or not an earlier one can be asked.
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
                    // It may be there.
                    Err(error) => unknown = Some(rather(unknown, error)),
                }
            }
        }
        unknown.map_or(Ok(None), Err)
    }

    /// All copies of a shard, fast ones first.
    pub fn copies(&self, shard: ShardName) -> Copies {
        self.copies_on(&[Tier::Fast, Tier::Slow], shard)
    }

    /// The same of these tiers.
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

    /// A target that has a shard, none of `others`: a fast one, if one has it.
    ///
    /// # Errors
    /// None of those that can be asked has it, and another one may have it.
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
            // A pool may have more than should be kept in memory; they are found again.
            if homes.len() >= HOMES_MAX {
                homes.clear();
            }
            homes.insert(shard, number);
        });
        if let Some(mut lost) = self.lost.try_lock() {
            lost.remove(&shard);
        }
    }

    /// Notes that a shard gave nothing: it is read only if others are not enough, or once in a while.
    pub fn is_lost(&self, shard: ShardName) {
        self.forget(shard);
        if let Some(mut lost) = self.lost.try_lock() {
            if lost.len() >= HOMES_MAX {
                lost.clear();
            }
            lost.insert(shard);
        }
    }

    /// Memory for a part of a fragment.
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

    /// Whether a shard is lost or its target slow, as far as that can be said at once: for who would
    /// rather read another one.
    pub fn is_late(&self, shard: ShardName) -> bool {
        self.is_known_lost(shard) || self.is_slow(shard)
    }

    fn is_known_lost(&self, shard: ShardName) -> bool {
        self.lost.try_lock().is_some_and(|lost| lost.contains(&shard))
    }

    /// The target of a shard, for who would only like to know how busy it is. A shard that is on none is noted as
    /// lost and not looked for again here: parity that a slow tier does not have would cost requests at
    /// each read. Who needs it asks all targets, and then the note goes.
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

    /// Whether the target of a shard takes far longer than the others do.
    fn is_slow(&self, shard: ShardName) -> bool {
        if !self.reads_around {
            return false;
        }
        let typical = placement::typical_read_us(&self.members);
        self.likely(shard).is_some_and(|number| placement::is_slow(&self.members[number], typical))
    }

    /// Microseconds until the target of a shard has done what it was asked for.
    pub fn wait_us(&self, shard: ShardName) -> u64 {
        match self.likely(shard) {
            Some(number) if self.reads_around => self.members[number].wait_us(UNKNOWN_US),
            _ => 0,
        }
    }

    /// Whether a read of a shard that has not come yet should be overtaken: its target is slow, or it is
    /// not known what is usual.
    pub fn is_overdue(&self, shard: ShardName) -> bool {
        self.typical_read_us() == 0 || self.is_slow(shard)
    }

    /// Microseconds that a read usually takes; 0 if that is not known.
    pub fn typical_read_us(&self) -> u64 {
        placement::typical_read_us(&self.members)
    }

    /// Reads a range of a finished shard, wherever it is; also if it is moved just then.
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

    /// Reads a shard that was not where it was thought to be, which was the target `before`, if it is
    /// somewhere else by now.
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

    /// Why a target of these tiers seems to have nothing of what it had, if one has vanished.
    pub fn vanished(&self, tiers: &[Tier]) -> Option<Error> {
        let is_asked = |member: &&Member| tiers.contains(&member.tier) && !member.is_lost();
        self.members.iter().filter(is_asked).find_map(|member| member.look().err())
    }

    /// Length of a finished shard.
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

    /// What each target that is there says, with its number. Slow ones may be missing: they have copies.
    ///
    /// # Errors
    /// More fast targets than may be missing cannot be asked: why the first of them cannot.
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

    /// All finished shards on the targets that are there, with the target's number, sorted.
    ///
    /// # Errors
    /// More targets than may be missing cannot be asked: why the first of them cannot.
    pub fn list(&self) -> Result<Vec<(ShardName, usize)>> {
        self.ask(|member| member.asked(|target| target.list())).map(flat)
    }

    /// The same; a power cut takes none of them back.
    ///
    /// # Errors
    /// As [`TargetSet::list`].
    pub fn list_durable(&self) -> Result<Vec<(ShardName, usize)>> {
        self.ask(Member::durable).map(flat)
    }

    /// The same of as many targets as are there, be they too few. A power cut takes back nothing that is on slow ones.
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

    /// All shards that were begun and not finished.
    ///
    /// # Errors
    /// As [`TargetSet::list`].
    pub fn unfinished(&self) -> Result<Vec<(ShardName, usize)>> {
        self.ask(|member| member.asked(|target| target.unfinished())).map(flat)
    }

    /// Removes what was written of unfinished shards.
    ///
    /// # Errors
    /// As [`TargetSet::list`].
    pub fn delete_unfinished(&self, shards: &[ShardName]) -> Result<()> {
        let each = |target: &dyn Target| {
            shards.iter().try_for_each(|shard| target.delete_unfinished(*shard))
        };
        self.ask(|member| member.asked(each)).map(drop)
    }

    /// Removes shards from every target that is there. On one that is away they stay, and are seen
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

    /// The same from fast targets only: from all that are there, also if one of them fails.
    ///
    /// # Errors
    /// What the first target reports that fails.
    pub fn delete_fast(&self, shard: ShardName) -> Result<()> {
        self.forget(shard);
        let there = self.of_tier(Tier::Fast).filter(|(_, one)| one.away().is_none());
        let deleted: Vec<_> = there.map(|(_, member)| member.target().delete(shard)).collect();
        deleted.into_iter().collect()
    }

    /// Makes sure that everything can be read: enough fast targets are there, or a slow one. Answers why nothing can
    /// be saved, if it is only a slow one.
    ///
    /// # Errors
    /// As [`TargetSet::check`], if there is no slow target either.
    pub fn check_readable(&self) -> Result<Option<Error>> {
        self.check_or(|member| member.tier == Tier::Slow)
    }

    /// Makes sure that a target is there. Answers why nothing can be saved, if too few fast ones are.
    ///
    /// # Errors
    /// As [`TargetSet::check`], if no target is there.
    pub fn check_any(&self) -> Result<Option<Error>> {
        self.check_or(|_| true)
    }

    /// Answers why nothing can be saved, if too few fast targets are there and one that `is_enough`.
    fn check_or(&self, is_enough: impl Fn(&Member) -> bool) -> Result<Option<Error>> {
        let fast = self.check();
        let mut is_readable = false;
        for (_, member) in self.of_tier(Tier::Slow) {
            is_readable |= is_enough(member) && member.check().is_ok();
        }
        let Err(error) = fast else { return Ok(None) };
        // Only now it is known of each of them.
        for (_, member) in self.of_tier(Tier::Fast) {
            is_readable |= member.check().is_ok() && is_enough(member);
        }
        if is_readable { Ok(Some(error)) } else { Err(error) }
    }

    /// Makes sure that there are as many fast targets as the pool needs.
    ///
    /// # Errors
    /// More than may be missing are away: why the first of them is.
    pub fn check(&self) -> Result<()> {
        let fast = || {
            let fast = self.of_tier(Tier::Fast).map(|(_, member)| member);
            fast.filter(|member| !member.is_lost())
        };
        // One that was given up may be back.
        self.members.iter().filter(|member| member.is_lost()).for_each(|lost| drop(lost.check()));
        // All at once: if several do not answer, they are waited for at the same time.
        let begun: Vec<_> = fast().map(Member::begin_check).collect();
        let looked = fast().zip(begun);
        let mut away = looked.filter_map(|(member, begun)| member.end_check(begun).err());
        match away.nth(self.survives()) {
            None => Ok(()),
            Some(last) => {
                // The first says as much, and nothing is asked twice for one target.
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
