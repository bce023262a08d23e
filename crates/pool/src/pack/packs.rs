//! Packs as wholes: lists them, counts their bytes, and deletes them.

use crate::Pool;
use crate::descriptor::redundancy::{TargetState, Tier};
use outlive_backend::{Capacity, ShardName, Target};
use outlive_types::{Error, ErrorKind, JobName, PackId, Result};
use std::collections::BTreeSet;

/// Reserve of all targets: this share of the bytes in use, for new segments; of each target, at
/// least this number of bytes, for records and directories.
const RESERVE_SHARE: u64 = 512;
const RESERVE_BYTES_MIN: u64 = 1 << 20;

/// Contents and room of one target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetUsage {
    /// Its number in `pool.toml`.
    pub id: u32,
    /// Kind and location of the target, for messages.
    pub target: String,
    /// Its tier.
    pub tier: Tier,
    /// Its state.
    pub state: TargetState,
    /// Reason why it cannot be used now; then the numbers are zero.
    pub away: Option<String>,
    /// Number of finished shards on it.
    pub shards: usize,
    /// Bytes of these shards.
    pub stored_bytes: u64,
    /// Bytes that are free for this user.
    pub free_bytes: u64,
    /// Bytes of the whole target.
    pub total_bytes: u64,
}

/// Contents of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolUsage {
    /// Number of finished packs.
    pub packs: usize,
    /// Bytes of all shards.
    pub stored_bytes: u64,
    /// Usage of each target.
    pub targets: Vec<TargetUsage>,
}

impl Pool {
    /// Returns all finished packs, sorted: those with a shard on a target that is there.
    ///
    /// # Errors
    /// If more targets cannot be listed than the pool can do without.
    pub fn packs(&self) -> Result<Vec<PackId>> {
        self.targets().list().map(|shards| self.packs_of(shards))
    }

    /// Returns the packs that were begun and not finished: being written, or left behind by a
    /// crash.
    ///
    /// # Errors
    /// As [`Pool::packs`].
    pub fn unfinished_packs(&self) -> Result<Vec<PackId>> {
        self.targets().unfinished().map(|shards| self.packs_of(shards))
    }

    /// Returns the packs of shards. A shard with a number that no pack here has belongs to none.
    fn packs_of(&self, shards: Vec<(ShardName, usize)>) -> Vec<PackId> {
        let is_alone = self.targets().members().len() == 1;
        let is_a_packs = |(shard, _): &(ShardName, usize)| !is_alone || shard.shard == 0;
        let mut packs: Vec<PackId> =
            shards.into_iter().filter(is_a_packs).map(|(shard, _)| shard.pack).collect();
        packs.dedup();
        packs
    }

    /// Returns the names of the shards that a pack may have: those of its layout, if that is known,
    /// and otherwise of the pool's.
    pub(crate) fn shards_of(&self, pack: PackId) -> Vec<ShardName> {
        let geometry = self.known_layout(pack).map_or(self.config().geometry(), |it| it.geometry);
        let count = usize::from(geometry.k) + usize::from(geometry.m);
        (0..count).map(|shard| ShardName { pack, shard: shard as u8 }).collect()
    }

    /// Returns the bytes of a finished pack on the targets that are there, headers and directories
    /// included.
    ///
    /// # Errors
    /// `Damaged` if none of its shards is there.
    pub fn stored_bytes(&self, pack: PackId) -> Result<u64> {
        let (mut stored_bytes, mut error) = (None, None);
        for shard in self.shards_of(pack) {
            match self.targets().length(shard) {
                Ok(bytes) => stored_bytes = Some(stored_bytes.unwrap_or(0) + bytes),
                Err(e) if e.kind() == ErrorKind::Damaged => error = error.or(Some(e)),
                Err(e) => error = Some(e),
            }
        }
        let missing = || Error::damaged(format!("pack {pack} is missing"));
        stored_bytes.ok_or_else(|| error.unwrap_or_else(missing))
    }

    /// Removes a pack, finished or not; a missing one is no error. Shards on a target that is away
    /// appear again when that is back.
    ///
    /// # Errors
    /// As [`Pool::packs`].
    pub fn delete_pack(&self, pack: PackId) -> Result<()> {
        self.targets().delete(&self.shards_of(pack))
    }

    /// Removes the data of a pack that was not finished; a missing one is no error. Shards that are
    /// finished by now stay. A writer that was about to finish the pack fails.
    ///
    /// # Errors
    /// As [`Pool::packs`].
    pub fn delete_unfinished_pack(&self, pack: PackId) -> Result<()> {
        self.targets().delete_unfinished(&self.shards_of(pack))
    }

    /// Describes the targets and their locations, for messages: "directory /scratch/ckpt".
    pub fn describe_targets(&self) -> String {
        self.targets().describe()
    }

    /// Makes a reserve on each target that is there, since a gc on a full disk needs room for its
    /// records. It gives no warnings: a gc works without a reserve where there is room.
    pub fn make_reserve(&self, used_bytes: u64) {
        let targets = self.targets();
        let share = used_bytes / RESERVE_SHARE / targets.members().len().max(1) as u64;
        let bytes = share.max(RESERVE_BYTES_MIN);
        for member in targets.members() {
            let _ = member.asked(|target| target.make_reserve(bytes));
        }
    }

    /// Deletes the reserves. Returns their bytes.
    pub fn delete_reserve(&self) -> u64 {
        let targets = self.targets();
        let members = targets.members().iter();
        members.filter_map(|member| member.asked(|target| target.delete_reserve()).ok()).sum()
    }

    /// Sets the times of the files of packs, of a job's records, and of the pool itself to now, on
    /// targets that are there. File systems that delete files by age spare them then.
    ///
    /// # Errors
    /// Errors of the log and the targets.
    pub fn freshen(&self, job: &JobName, packs: &BTreeSet<PackId>) -> Result<()> {
        let shards: Vec<ShardName> = packs.iter().flat_map(|pack| self.shards_of(*pack)).collect();
        for member in self.targets().members().iter().filter(|member| member.away().is_none()) {
            member.asked(|target| target.freshen(&shards))?;
        }
        self.log().freshen(job)?;
        self.log().freshen(&JobName::targets())
    }

    /// Closes cached files: all, or those of packs that other processes have deleted.
    pub fn close_files(&self, all: bool) {
        for member in self.targets().members() {
            member.target().close_files(all);
        }
    }

    /// Returns the pool's contents, and its room.
    ///
    /// # Errors
    /// Errors of a target that is there.
    pub fn usage(&self) -> Result<PoolUsage> {
        let (mut all, mut stored_bytes, mut targets) = (Vec::new(), 0, Vec::new());
        for (number, member) in self.targets().members().iter().enumerate() {
            let target = member.target();
            let mut usage = TargetUsage {
                id: member.id,
                target: target.describe(),
                tier: member.tier,
                state: member.state,
                away: None,
                shards: 0,
                stored_bytes: 0,
                free_bytes: 0,
                total_bytes: 0,
            };
            match member.asked(stored_on) {
                Ok((shards, bytes, capacity)) => {
                    (usage.shards, usage.stored_bytes) = (shards.len(), bytes);
                    (usage.free_bytes, usage.total_bytes) =
                        (capacity.free_bytes, capacity.total_bytes);
                    stored_bytes += bytes;
                    all.extend(shards.into_iter().map(|shard| (shard, number)));
                }
                Err(error) => usage.away = Some(error.message().to_owned()),
            }
            targets.push(usage);
        }
        all.sort_unstable();
        Ok(PoolUsage { packs: self.packs_of(all).len(), stored_bytes, targets })
    }
}

/// Returns the shards of a target, their bytes, and its room.
fn stored_on(target: &dyn Target) -> Result<(Vec<ShardName>, u64, Capacity)> {
    let (mut shards, mut bytes) = (target.list()?, 0);
    let mut is_there = |shard: &ShardName| match target.length(*shard) {
        Ok(length) => {
            bytes += length;
            Ok(true)
        }
        // Another process has deleted it just now.
        Err(error) if error.kind() == ErrorKind::Damaged => Ok(false),
        Err(error) => Err(error),
    };
    let there: Vec<bool> = shards.iter().map(&mut is_there).collect::<Result<_>>()?;
    let mut there = there.into_iter();
    shards.retain(|_| there.next() == Some(true));
    Ok((shards, bytes, target.capacity()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Container, Environment, PackWriter, open_or_create};
    use outlive_format::{EntryKind, fingerprint};
    use outlive_io::AlignedBuf;
    use outlive_types::ErrorKind;
    use std::fs;
    use std::path::Path;

    fn begun(pool: &Pool, pack: PackId) -> PackWriter {
        let mut writer = PackWriter::new(pool, pack, 4096).unwrap();
        writer.open(Container::new(AlignedBuf::zeroed(4 << 20))).unwrap();
        writer.append(b"bytes", fingerprint(b"bytes"), EntryKind::Chunk).unwrap();
        writer
    }

    fn path_of(dir: &Path, pack: PackId, rest: &str) -> std::path::PathBuf {
        dir.join(format!("packs/{:02x}/{pack}.{rest}", pack.0[19]))
    }

    #[test]
    fn a_pack_is_there_from_its_end_on_until_it_is_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let pool = open_or_create(dir.path(), Environment::system()).unwrap();
        let (pack, left) = (PackId([1; 20]), PackId([2; 20]));
        let (writer, _left_behind) = (begun(&pool, pack), begun(&pool, left));
        assert_eq!(pool.packs().unwrap(), []);
        assert_eq!(pool.unfinished_packs().unwrap(), [pack, left]);
        let stored_bytes = {
            let finished = writer.finish().unwrap();
            let stored_bytes = finished.stored_bytes;
            finished.wait().unwrap();
            stored_bytes
        };
        assert_eq!(pool.packs().unwrap(), [pack]);
        assert_eq!(pool.unfinished_packs().unwrap(), [left]);
        assert_eq!(pool.stored_bytes(pack).unwrap(), stored_bytes);
        let usage = pool.usage().unwrap();
        assert_eq!((usage.packs, usage.stored_bytes), (1, stored_bytes));
        let [target] = &usage.targets[..] else { panic!("{usage:?}") };
        assert_eq!((target.shards, target.stored_bytes), (1, stored_bytes));
        assert_eq!(target.target, pool.describe_targets());
        assert!(target.free_bytes <= target.total_bytes && target.total_bytes > 0);

        // A finished pack is no leftover.
        pool.delete_unfinished_pack(pack).unwrap();
        pool.delete_unfinished_pack(left).unwrap();
        assert_eq!(pool.packs().unwrap(), [pack]);
        assert_eq!(pool.unfinished_packs().unwrap(), []);
        for _ in 0..2 {
            pool.delete_pack(pack).unwrap();
            assert_eq!(pool.packs().unwrap(), []);
            assert_eq!(pool.stored_bytes(pack).unwrap_err().kind(), ErrorKind::Damaged);
        }
    }

    #[test]
    fn a_shard_that_no_pack_has_is_no_pack_and_is_verified_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let pool = open_or_create(dir.path(), Environment::system()).unwrap();
        let pack = PackId([1; 20]);
        begun(&pool, pack).finish().unwrap().wait().unwrap();
        let stored_bytes = pool.stored_bytes(pack).unwrap();
        let check = pool.check_pack(pack, &mut |_, _, _| Ok(())).unwrap();
        assert_eq!((check.stored_bytes, check.faults), (stored_bytes, Vec::new()));

        fs::copy(path_of(dir.path(), pack, "0.shard"), path_of(dir.path(), pack, "1.shard"))
            .unwrap();
        assert_eq!(pool.packs().unwrap(), [pack]);
        let [first, stray] = pool.shards().unwrap()[..] else { panic!("two shards") };
        assert_eq!((first.pack(), stray.pack()), (pack, pack));
        assert_eq!(pool.verify_shard(first).unwrap(), stored_bytes);
        let error = pool.verify_shard(stray).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        let told = format!("shard {pack}.1: its header says that it is shard 0 of pack {pack}");
        assert_eq!(error.message(), told);

        let error = pool.check_pack(PackId([3; 20]), &mut |_, _, _| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.message().starts_with(&format!("pack {}: ", PackId([3; 20]))), "{error}");
    }
}
