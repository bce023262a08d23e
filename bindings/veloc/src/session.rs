//! The state between an init and a finalize: protected memory, the checkpoint or restart that was
//! begun, and a client for each name of checkpoints.
#![allow(unsafe_code)]

use crate::config::Config;
use crate::files::{self, FILE, forget};
use crate::versions::{notes, versions};
use outlive_capture::Region;
use outlive_capture::fill::MutRegion;
use outlive_client::{Client, Destination, End, Offer, WritePermit};
use outlive_connect::Functions;
use outlive_pool::{Environment, Pool, Tuning, open_or_create};
use outlive_store::gc::GcOptions;
use outlive_store::group::{GroupOptions, agree, unless_failed};
use outlive_store::retention::Rules;
use outlive_store::{EpochInfo, JobOptions, RestoreSink, Select};
use outlive_types::{Epoch, Error, ErrorKind, Event, FreezeMode, Observer, RegionDesc, Result};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Memory of the program under one number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Memory {
    pub start: usize,
    pub count: usize,
    pub element_bytes: usize,
}

impl Memory {
    fn bytes(&self) -> usize {
        self.count * self.element_bytes
    }

    /// Returns the memory as a region. Ranks of a group may use different element sizes, so their
    /// regions are bytes.
    fn region(&self, id: i32, is_of_group: bool) -> Region {
        let start = std::ptr::with_exposed_provenance(self.start);
        let (dtype, shape) = match self.element_bytes {
            bytes if bytes == 1 || is_of_group => ("|u1".to_owned(), vec![self.bytes() as u64]),
            bytes => (format!("|V{bytes}"), vec![self.count as u64]),
        };
        // SAFETY: a region is made only inside a call that ends a checkpoint. VELOC requires that
        // protected memory is there then, and docs/veloc.md that no thread writes it until the call
        // returns.
        unsafe { Region::from_raw(id.to_string(), dtype, shape, start, self.bytes()) }
    }

    /// Returns its first bytes as a destination of a restore.
    fn to_fill(self, bytes: usize) -> MutRegion {
        let start = std::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: at most as many bytes as were protected (see `destination`). They are filled only
        // inside a call that recovers, with a permit that is withdrawn before the call returns.
        unsafe { MutRegion::from_raw(start, bytes) }
    }
}

/// Selects protected regions by their numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum IdSelection {
    All,
    Some(Vec<i32>),
    Rest(Vec<i32>),
}

impl IdSelection {
    fn has(&self, id: i32) -> bool {
        match self {
            IdSelection::All => true,
            IdSelection::Some(ids) => ids.contains(&id),
            IdSelection::Rest(ids) => !ids.contains(&id),
        }
    }
}

/// The checkpoint or restart that was begun.
#[derive(Debug, Default)]
enum PendingOperation {
    #[default]
    Nothing,
    Checkpoint {
        name: String,
        version: i32,
        /// The regions to save, once the program has chosen them.
        choice: Option<IdSelection>,
        /// Whether the program got the path for a file.
        is_routed: bool,
    },
    Restart {
        name: String,
        version: i32,
        epoch: Epoch,
        regions: Vec<RegionDesc>,
    },
}

/// Writes notices to standard error.
#[derive(Debug)]
struct Notices;

impl Observer for Notices {
    fn event(&self, event: Event) {
        if let Event::Warning(text) = event {
            say("warning", &text);
        }
    }
}

/// Writes a line to standard error.
pub(crate) fn say(level: &str, text: &str) {
    use std::io::Write;
    let _ = std::io::stderr().lock().write_all(format!("outlive: {level}: {text}\n").as_bytes());
}

/// A process between its init and its finalize.
pub(crate) struct VelocSession {
    id: u32,
    config: Config,
    pool: Pool,
    /// By the name of the checkpoints that save it; "" means all.
    memory: HashMap<String, BTreeMap<i32, Memory>>,
    clients: HashMap<String, Client>,
    begun: PendingOperation,
    /// The communicator of the program, if it has several ranks.
    group: Option<Functions>,
}

impl VelocSession {
    /// Opens the pool.
    ///
    /// # Errors
    /// Errors of the pool; `Invalid` for a scratch directory that cannot be made.
    pub fn open(id: u32, config: Config, group: Option<Functions>) -> Result<VelocSession> {
        config.warnings.iter().for_each(|text| say("note", text));
        fs::create_dir_all(&config.scratch)
            .map_err(|e| Error::io_named("making", &config.scratch, &e))?;
        let location = config.pool();
        if let Some(parent) = location.parent().filter(|_| !location.starts_with("s3:")) {
            fs::create_dir_all(parent).map_err(|e| Error::io_named("making", parent, &e))?;
        }
        let mut pool = open_or_create(&location, Environment::observed(Arc::new(Notices)))?;
        // As VELOC's backend does, a helper completes what this process has saved.
        let tuning = &pool.config().tuning;
        if !config.is_sync && tuning.freeze()? == FreezeMode::Auto {
            let freeze = FreezeMode::Helper.name().to_owned();
            pool = pool.with_tuning(Tuning { freeze, ..tuning.clone() });
        }
        let (memory, clients) = (HashMap::new(), HashMap::new());
        Ok(VelocSession {
            id,
            config,
            pool,
            memory,
            clients,
            begun: PendingOperation::Nothing,
            group,
        })
    }

    /// Returns the memory of a checkpoint: the regions protected for its name, or else those for
    /// all names.
    fn memory_of(&self, name: &str) -> BTreeMap<i32, Memory> {
        let own = self.memory.get(name).filter(|own| !own.is_empty());
        own.or_else(|| self.memory.get("")).cloned().unwrap_or_default()
    }

    pub fn protect(&mut self, name: &str, id: i32, memory: Memory) {
        self.memory.entry(name.to_owned()).or_default().insert(id, memory);
    }

    pub fn unprotect(&mut self, name: &str, id: i32) -> Result<()> {
        let found = self.memory.get_mut(name).and_then(|memory| memory.remove(&id));
        found.map(drop).ok_or_else(|| Error::invalid(format!("no region {id} is protected")))
    }

    pub fn clear(&mut self, name: &str) {
        self.memory.remove(name);
    }

    /// Returns the client for a name. Each process has a job of its own; the ranks of a group share
    /// one.
    fn client(&mut self, name: &str) -> Result<&Client> {
        if !self.clients.contains_key(name) {
            let job = match self.group {
                Some(_) => name.to_owned(),
                None => format!("{name}-{}", self.id),
            };
            let group = self.group.map(|functions| GroupOptions {
                // Some ranks may have written no file.
                is_lone: |name| name == FILE,
                ..GroupOptions::new(Arc::new(functions))
            });
            let options = JobOptions { group, ..JobOptions::default() };
            let client = Client::open(&self.pool, &job, options)?;
            self.clients.insert(name.to_owned(), client);
        }
        self.clients.get(name).ok_or_else(|| Error::bug("a client is missing"))
    }

    fn nothing_begun(&self, what: &str) -> Result<()> {
        match &self.begun {
            PendingOperation::Checkpoint { name, version, .. } => Err(Error::invalid(format!(
                "{what}: checkpoint {name} {version} was begun: first call VELOC_Checkpoint_end"
            ))),
            PendingOperation::Nothing | PendingOperation::Restart { .. } => Ok(()),
        }
    }

    /// Passes an error of this rank to the other ranks of its group, which begin the checkpoint.
    fn declined(&self, version: i32, error: Error) -> Error {
        if let Some(group) = &self.group {
            drop(same_version::<()>(group, version, Err(error.clone())));
        }
        error
    }

    /// Saves all protected memory, after the save under way.
    pub fn checkpoint(&mut self, name: Result<&str>, version: i32) -> Result<()> {
        let begun = name.and_then(|name| {
            self.wait()?;
            self.checkpoint_begin(name, version)
        });
        begun.map_err(|error| self.declined(version, error))?;
        let chosen = self.checkpoint_choose(IdSelection::All);
        let ended = self.checkpoint_end(chosen.is_ok());
        chosen.and(ended)
    }

    pub fn checkpoint_begin(&mut self, name: &str, version: i32) -> Result<()> {
        self.nothing_begun("VELOC_Checkpoint_begin")?;
        check_name(name, version)?;
        self.begun = PendingOperation::Checkpoint {
            name: name.to_owned(),
            version,
            choice: None,
            is_routed: false,
        };
        Ok(())
    }

    pub fn checkpoint_choose(&mut self, chosen: IdSelection) -> Result<()> {
        let PendingOperation::Checkpoint { name, .. } = &self.begun else {
            return Err(Error::invalid("no checkpoint was begun: call VELOC_Checkpoint_begin"));
        };
        if !self.memory_of(name).keys().any(|id| chosen.has(*id)) {
            return Err(Error::invalid(
                "no protected memory was chosen: protect some, or choose other regions",
            ));
        }
        // As in VELOC, the last choice counts.
        if let PendingOperation::Checkpoint { choice, .. } = &mut self.begun {
            *choice = Some(chosen);
        }
        Ok(())
    }

    /// Saves the checkpoint that was begun. If the program reports a failure, the checkpoint is
    /// dropped, which is an error on all ranks.
    pub fn checkpoint_end(&mut self, is_good: bool) -> Result<()> {
        let begun = std::mem::take(&mut self.begun);
        let PendingOperation::Checkpoint { name, version, choice, is_routed } = begun else {
            self.begun = begun;
            let nothing = Error::invalid("no checkpoint was begun: call VELOC_Checkpoint_begin");
            return Err(self.declined(0, nothing));
        };
        let file = is_routed.then(|| files::place(&self.config.scratch, &name, self.id, version));
        let forget_file = || file.as_deref().map_or(Ok(()), forget);
        if !is_good {
            let forgotten = forget_file();
            let given_up = Error::invalid(format!(
                "checkpoint {name} {version} was given up by the program, and is dropped"
            ));
            // The other ranks of a group wait for this one, and drop the checkpoint as well.
            let declined = self.declined(version, given_up);
            return forgotten.and(Err(declined));
        }
        let ready = self.regions(&name, version, choice.as_ref(), file.as_deref());
        let (is_sync, max_versions) = (self.config.is_sync, self.config.max_versions);
        let group = self.group;
        let client = self.client(&name);
        let ready = ready.and_then(|regions| {
            let client = client?;
            // Drops the checkpoints that became superfluous when the last one was committed.
            client.job().wait()?;
            keep_newest(client, max_versions);
            Ok((client, regions, notes(version)?))
        });
        let ready = match &group {
            Some(group) => same_version(group, version, ready),
            None => ready,
        };
        let (client, regions, notes) = ready?;
        let handle = client.save(regions, Vec::new(), notes)?;
        // The checkpoint has the bytes of the file, and the other ranks wait, so a failure is only
        // a warning.
        if let Err(error) = forget_file() {
            client.job().pool().warn(format!("the routed file stays in scratch: {error}"));
        }
        if is_sync {
            handle.wait(None).ok_or_else(|| Error::bug("a wait without limit ended"))??;
            keep_newest(client, max_versions);
        }
        Ok(())
    }

    /// Returns the regions of a checkpoint.
    fn regions(
        &self,
        name: &str,
        version: i32,
        choice: Option<&IdSelection>,
        file: Option<&Path>,
    ) -> Result<Vec<Region>> {
        let memory = self.memory_of(name);
        let chosen = memory.iter().filter(|(id, _)| choice.is_some_and(|c| c.has(**id)));
        let is_group = self.group.is_some();
        let mut regions: Vec<Region> =
            chosen.map(|(id, memory)| memory.region(*id, is_group)).collect();
        regions.extend(file.map(files::region).transpose()?);
        if regions.is_empty() {
            return Err(Error::invalid(format!(
                "checkpoint {name} {version} has neither memory nor files: call VELOC_Checkpoint_mem, or \
                 write the file that VELOC_Route_file names"
            )));
        }
        Ok(regions)
    }

    /// Waits until all saves are committed.
    pub fn wait(&mut self) -> Result<()> {
        self.nothing_begun("VELOC_Checkpoint_wait")?;
        let outcomes: Vec<_> = self.clients.values().map(|client| client.job().wait()).collect();
        outcomes.into_iter().collect()
    }

    /// Whether all saves are committed or have failed.
    pub fn is_finished(&self) -> Result<bool> {
        self.nothing_begun("VELOC_Checkpoint_finished")?;
        Ok(!self.clients.values().any(|client| client.job().is_saving()))
    }

    /// Returns the highest version, up to this one, that can be restored (in a group, by every
    /// rank); 0 allows any version.
    pub fn newest_version(&mut self, name: Result<&str>, needed: i32) -> Result<Option<i32>> {
        let name = name.and_then(|name| check_name(name, needed).map(|()| name));
        let is_wanted = |version: i32| needed == 0 || version <= needed;
        Ok(self.find(name, &is_wanted)?.map(|found| found.version))
    }

    pub fn restart_begin(&mut self, name: Result<&str>, version: i32) -> Result<()> {
        let ready = name.and_then(|name| {
            self.nothing_begun("VELOC_Restart_begin")?;
            check_name(name, version).map(|()| name)
        });
        let found = self.find(ready.clone(), &|there| there == version)?;
        let name = ready?;
        let RestorableCheckpoint { version, epoch, regions } = found.ok_or_else(|| {
            Error::invalid(format!(
                "there is no version {version} of checkpoint {name} that can be restored; \
                 VELOC_Restart_test says which there are"
            ))
        })?;
        self.begun = PendingOperation::Restart { name: name.to_owned(), version, epoch, regions };
        Ok(())
    }

    /// Fills all protected memory from a version.
    pub fn restart(&mut self, name: Result<&str>, version: i32) -> Result<()> {
        self.restart_begin(name, version)?;
        let recovered = self.recover(&IdSelection::All);
        recovered.and(self.restart_end())
    }

    /// Finds the newest checkpoint of the highest wanted version that can be restored. In a group
    /// every rank takes part, also one without a `name`.
    fn find(
        &mut self,
        name: Result<&str>,
        is_wanted: &dyn Fn(i32) -> bool,
    ) -> Result<Option<RestorableCheckpoint>> {
        let (group, is_checked) = (self.group, self.config.is_checked);
        let client = name.and_then(|name| self.client(name));
        let there = |client: &Client| {
            let job = client.job();
            job.wait()?;
            let epochs = job.epochs()?;
            if job.rank() == 0 {
                tell_of_others(&epochs, job.ranks());
            }
            versions(&epochs, job.ranks())
                .into_iter()
                .filter(|(version, _)| is_wanted(*version))
                .flat_map(|(version, epochs)| epochs.into_iter().map(move |epoch| (version, epoch)))
                .map(Ok)
                .collect::<Result<Vec<(i32, Epoch)>>>()
        };
        let mut ready = client.clone().and_then(there);
        loop {
            // Rank 0 chooses the next one.
            let ours = ready.as_ref().map(|there| there.last().copied()).map_err(Error::clone);
            let next = match &group {
                None => ours?,
                Some(group) => next_of(group, ours)?,
            };
            let Some((version, epoch)) = next else { return Ok(None) };
            let tried = client.clone().and_then(|client| look(client, epoch, is_checked));
            let outcome = match &group {
                None => tried.as_ref().map(drop).map_err(Error::clone),
                Some(group) => {
                    let tried = tried.as_ref().map(|_| Vec::new()).map_err(Error::clone);
                    agree(group, tried, &mut |all| unless_failed(all).map(|_| Vec::new())).map(drop)
                }
            };
            match (outcome, tried) {
                (Ok(()), Ok(regions)) => {
                    return Ok(Some(RestorableCheckpoint { version, epoch, regions }));
                }
                (Err(error), _) if error.kind() == ErrorKind::Damaged => {
                    say("warning", &format!("version {version} is passed over: {error}"));
                    if let Ok(there) = &mut ready {
                        there.retain(|it| *it != (version, epoch));
                    }
                }
                (Err(error), _) | (Ok(()), Err(error)) => return Err(error),
            }
        }
    }

    /// Returns the length of a region in the checkpoint; `None` if it has no such region.
    pub fn recover_size(&self, id: i32) -> Result<Option<u64>> {
        let PendingOperation::Restart { regions, .. } = &self.begun else {
            return Err(Error::invalid("no restart was begun: call VELOC_Restart_begin"));
        };
        let name = id.to_string();
        Ok(regions.iter().find(|region| region.name == name).map(|region| region.bytes))
    }

    /// Fills protected memory from the checkpoint.
    pub fn recover(&mut self, choice: &IdSelection) -> Result<()> {
        let PendingOperation::Restart { name, epoch, .. } = &self.begun else {
            return Err(Error::invalid("no restart was begun: call VELOC_Restart_begin"));
        };
        let (name, epoch) = (name.clone(), *epoch);
        let memory = self.memory_of(&name);
        let client = self.client(&name)?;
        client.detach();
        let mut ask = |offer: Offer| {
            offer.regions.iter().map(|region| destination(region, choice, &memory)).collect()
        };
        let permit = Arc::new(WritePermit::default());
        let outcome = client.restore_own(epoch, &permit, &mut ask);
        permit.withdraw();
        outcome?.map(drop).ok_or_else(|| Error::bug("a checkpoint that was opened is not there"))
    }

    pub fn restart_end(&mut self) -> Result<()> {
        match std::mem::take(&mut self.begun) {
            PendingOperation::Restart { .. } => Ok(()),
            begun => {
                self.begun = begun;
                Err(Error::invalid("no restart was begun: call VELOC_Restart_begin"))
            }
        }
    }

    /// Returns the path of the file that the program writes for the checkpoint, or reads in the
    /// restart.
    pub fn route(&mut self) -> Result<PathBuf> {
        let (scratch, id) = (&self.config.scratch, self.id);
        match &mut self.begun {
            PendingOperation::Nothing => Err(Error::invalid(
                "neither a checkpoint nor a restart was begun: call VELOC_Checkpoint_begin or \
                 VELOC_Restart_begin first",
            )),
            PendingOperation::Checkpoint { name, version, is_routed, .. } => {
                *is_routed = true;
                Ok(files::place(scratch, name, id, *version))
            }
            PendingOperation::Restart { name, version, epoch, .. } => {
                let (name, epoch) = (name.clone(), *epoch);
                let place = files::place(scratch, &name, id, *version);
                self.bring(&name, epoch, &place)?;
                Ok(place)
            }
        }
    }

    /// Writes the file of a checkpoint to its path in scratch.
    fn bring(&mut self, name: &str, epoch: Epoch, place: &Path) -> Result<()> {
        let mut regions = Vec::new();
        let mut ask = |offer: Offer| {
            regions = offer.regions;
            let destination = |region: &RegionDesc| match region.name == FILE {
                true => Destination::Copy,
                false => Destination::Nothing,
            };
            Ok(regions.iter().map(destination).collect())
        };
        let client = self.client(name)?;
        let permit = Arc::new(WritePermit::default());
        let filled = client.restore_own(epoch, &permit, &mut ask);
        permit.withdraw();
        let filled =
            filled?.ok_or_else(|| Error::bug("a checkpoint that was opened is not there"))?;
        let region = regions.iter().find(|region| region.name == FILE);
        let bytes = region.and_then(|region| filled.bytes(region)).ok_or_else(|| {
            Error::invalid(format!(
                "checkpoint {name} has no file of this process: its memory is restored by VELOC_Recover_mem"
            ))
        })?;
        fs::write(place, bytes).map_err(|e| Error::io_named("writing", place, &e))
    }

    /// Removes this process's files in scratch of all versions of a name.
    pub fn cleanup(&self, name: &str) -> Result<()> {
        check_name(name, 0)?;
        files::remove(&self.config.scratch, name, self.id)
    }

    /// Completes the saves under way, and closes all clients.
    pub fn close(mut self) -> Result<()> {
        let max_versions = self.config.max_versions;
        let mut first = Ok(());
        for client in self.clients.values() {
            let closed = client.job().wait();
            keep_newest(client, max_versions);
            let closed = closed.and(client.close(End::Exit));
            first = first.and(closed);
        }
        self.clients.clear();
        if let Some(functions) = self.group {
            functions.release();
        }
        first
    }
}

/// Returns `ready` of this rank, if all ranks are ready, with the same version.
fn same_version<T>(group: &Functions, version: i32, ready: Result<T>) -> Result<T> {
    let ours = ready.as_ref().map(|_| version.to_le_bytes().to_vec()).map_err(Error::clone);
    let agreed = agree(group, ours, &mut |all| {
        let versions = unless_failed(all)?;
        let Some(rank) = versions.iter().position(|it| *it != versions[0]) else {
            return Ok(Vec::new());
        };
        let of =
            |rank: usize| versions[rank].first_chunk().map_or(-1, |it| i32::from_le_bytes(*it));
        Err(Error::invalid(format!(
            "rank {rank} saves version {}, and rank 0 version {}: all ranks save the same one. Nothing was \
             saved",
            of(rank),
            of(0)
        )))
    });
    ready.and_then(|ready| agreed.map(|_| ready))
}

/// A checkpoint that can be restored.
struct RestorableCheckpoint {
    version: i32,
    epoch: Epoch,
    /// The regions of this process in it.
    regions: Vec<RegionDesc>,
}

/// Returns the choice of rank 0 on all ranks; nothing if some rank could not look.
fn next_of(group: &Functions, ours: Result<Option<(i32, Epoch)>>) -> Result<Option<(i32, Epoch)>> {
    let bytes = |next: Option<(i32, Epoch)>| match next {
        Some((version, epoch)) => [&version.to_le_bytes()[..], &epoch.to_le_bytes()].concat(),
        None => Vec::new(),
    };
    let decided = agree(group, ours.map(bytes), &mut |all| {
        Ok(unless_failed(all)?.into_iter().next().unwrap_or_default())
    })?;
    let Some((version, epoch)) = decided.split_first_chunk::<4>() else { return Ok(None) };
    let epoch = epoch.try_into().map_err(|_| Error::bug("rank 0 has named no epoch"))?;
    Ok(Some((i32::from_le_bytes(*version), Epoch::from_le_bytes(epoch))))
}

/// Opens this process's part of a checkpoint, and reads it all if it is to be checked.
fn look(client: &Client, epoch: Epoch, is_checked: bool) -> Result<Vec<RegionDesc>> {
    struct Nowhere;
    impl RestoreSink for Nowhere {
        fn write(&self, _stream: usize, _offset: u64, _bytes: &[u8]) {}
        fn zero(&self, _stream: usize, _offset: u64, _length: u64) {}
    }
    let (job, select) = (client.job(), Select::Epoch(epoch));
    let found = job.attempt_rank(select, job.rank(), &mut |image| {
        if is_checked {
            let all: Vec<usize> = (0..image.streams().len()).collect();
            image.read(&all, &Nowhere)?;
        }
        Ok(image.regions().to_vec())
    })?;
    let found = found.ok_or_else(|| Error::damaged("the job has no checkpoint any more"))?;
    Ok(found.1)
}

/// Chooses the destination of a region of a checkpoint.
fn destination(
    region: &RegionDesc,
    choice: &IdSelection,
    memory: &BTreeMap<i32, Memory>,
) -> Result<Destination> {
    if region.name == FILE {
        return Ok(Destination::Nothing);
    }
    let Ok(id) = region.name.parse::<i32>() else {
        return Err(Error::invalid(format!(
            "the checkpoint has a region {:?}, which was not saved by VELOC's names",
            region.name
        )));
    };
    if !choice.has(id) {
        return Ok(Destination::Nothing);
    }
    let Some(memory) = memory.get(&id) else {
        return Err(Error::invalid(format!(
            "the checkpoint has a region {id}, and no memory is protected for it: protect it, or choose \
             other regions"
        )));
    };
    let (there, here) = (region.bytes, memory.bytes());
    match usize::try_from(there).ok().filter(|bytes| *bytes <= here) {
        Some(bytes) => Ok(Destination::Into(memory.to_fill(bytes))),
        None => Err(Error::invalid(format!(
            "region {id} has {there} bytes in the checkpoint, and {here} are protected for it: protect \
             as many (VELOC_Recover_size tells)"
        ))),
    }
}

/// Warns if another number of ranks has saved the newest checkpoint: VELOC's names cannot restore
/// it.
fn tell_of_others(epochs: &[EpochInfo], ranks: u32) {
    let newest = epochs.iter().rev().find(|it| !it.manifest.is_of_files());
    if let Some(newest) = newest.filter(|it| it.manifest.world_size != ranks) {
        let (epoch, count) = (newest.epoch, newest.manifest.world_size);
        let text = format!(
            "{count} ranks have saved checkpoint {epoch}, and these are {ranks}: VELOC's names restore on as many \
             ranks only, so such versions are left alone"
        );
        say("warning", &text);
    }
}

/// Prunes as [`prune`]; its failure is only a warning, since the checkpoint is committed.
fn keep_newest(client: &Client, keep_last: Option<u64>) {
    if let Err(error) = prune(client, keep_last) {
        say("warning", &format!("older versions are left: {error}"));
    }
}

/// Keeps the N newest checkpoints of this number of ranks, and all of other numbers.
fn prune(client: &Client, keep_last: Option<u64>) -> Result<()> {
    let job = client.job();
    // Rank 0 prunes for all.
    let Some(last) = keep_last.filter(|_| job.rank() == 0) else { return Ok(()) };
    let plan = job.retention(&Rules { last: Some(last), one_line: true, ..Rules::default() })?;
    if plan.dropped().is_empty() {
        return Ok(());
    }
    let epochs = job.epochs()?;
    let (ours, others): (Vec<_>, Vec<_>) =
        epochs.iter().partition(|it| it.manifest.world_size == job.ranks());
    let newest = ours.into_iter().rev().take(usize::try_from(last).unwrap_or(usize::MAX));
    let kept: BTreeSet<Epoch> = newest.chain(others).map(|it| it.epoch).collect();
    let dropped = &plan.dropped() - &kept;
    if dropped.is_empty() {
        return Ok(());
    }
    let mut options = GcOptions { keep_one: plan.keeps_any(), ..GcOptions::default() };
    options.drop.insert(job.name().clone(), dropped);
    client.collect(&options).map(drop)
}

fn check_name(name: &str, version: i32) -> Result<()> {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    if name.is_empty() || !name.chars().all(is_letter) {
        return Err(Error::invalid(format!(
            "{name:?} is no name of checkpoints: use letters, digits, _ and ."
        )));
    }
    if version < 0 {
        return Err(Error::invalid(format!("version {version}: must be 0 or more")));
    }
    Ok(())
}
