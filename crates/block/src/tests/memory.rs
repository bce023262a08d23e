//! A device in memory. Its writes are lost in part when the power is cut.

use crate::device::Device;
use crate::locks::Guard;
use outlive_types::{Error, Result, Rng, SeededRng};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Smallest part that the device writes as a whole.
const SECTOR: usize = 512;

const PAGE: usize = 4096;

/// One process's handle of the device.
#[derive(Clone)]
pub(super) struct MemoryDevice {
    medium: Arc<Medium>,
    process: Arc<Process>,
}

struct Medium {
    state: Mutex<State>,
    unlocked: Condvar,
    reads: AtomicU64,
}

#[derive(Clone, Default)]
struct State {
    bytes: u64,
    /// Pages that were written; the others hold zeros.
    durable: BTreeMap<usize, Vec<u8>>,
    /// Writes since the last flush, oldest first.
    pending: Vec<(usize, Vec<u8>)>,
    changes: Vec<u8>,
    locked_by: Option<u64>,
    /// Slots whose writer lives, with its process.
    owners: BTreeMap<u32, u64>,
    discarded: u64,
}

struct Process {
    id: u64,
    /// Operations until every further one fails.
    left: AtomicU64,
    /// Operations until one of them fails.
    sound: AtomicU64,
    is_dead: AtomicBool,
}

/// Fate of the writes since the last flush.
pub(super) enum Power {
    Kept,
    Cut(u64),
}

static PROCESSES: AtomicU64 = AtomicU64::new(1);

impl Process {
    fn new() -> Arc<Process> {
        let id = PROCESSES.fetch_add(1, Ordering::Relaxed);
        let [left, sound] = [(); 2].map(|()| AtomicU64::new(u64::MAX));
        Arc::new(Process { id, left, sound, is_dead: AtomicBool::new(false) })
    }
}

impl MemoryDevice {
    pub(super) fn new(bytes: u64) -> MemoryDevice {
        MemoryDevice::over(State { bytes, changes: vec![0; PAGE], ..State::default() })
    }

    fn over(state: State) -> MemoryDevice {
        let (state, unlocked) = (Mutex::new(state), Condvar::new());
        let medium = Arc::new(Medium { state, unlocked, reads: AtomicU64::new(0) });
        MemoryDevice { medium, process: Process::new() }
    }

    /// Returns the device as another process sees it: of the same machine, or after a power cut.
    pub(super) fn reopened(&self, power: Power) -> MemoryDevice {
        let Power::Cut(seed) = power else {
            return MemoryDevice { medium: self.medium.clone(), process: Process::new() };
        };
        let random = SeededRng::new(seed);
        let draw = |below: u64| {
            let mut bytes = [0; 8];
            random.fill(&mut bytes);
            u64::from_le_bytes(bytes) % below
        };
        let old = self.state().clone();
        let mut durable = old.durable;
        // Each sector of each write may have arrived or not. Seed 0 loses all, seed 1 none.
        for (at, bytes) in old.pending {
            let fate = if seed < 2 { seed } else { draw(3) };
            for (number, sector) in bytes.chunks(SECTOR).enumerate() {
                if fate == 1 || fate == 2 && draw(2) == 0 {
                    put(&mut durable, at + number * SECTOR, sector);
                }
            }
        }
        // The page of changes is as old as the device has it.
        let changes = if draw(2) == 0 { vec![0; PAGE] } else { old.changes };
        MemoryDevice::over(State { bytes: old.bytes, durable, changes, ..State::default() })
    }

    /// Returns a copy of another size.
    pub(super) fn resized(&self, bytes: u64) -> MemoryDevice {
        let durable = self.state().durable.clone();
        MemoryDevice::over(State { bytes, durable, changes: vec![0; PAGE], ..State::default() })
    }

    /// Lets this process do no more than `count` further operations.
    pub(super) fn stop_after(&self, count: u64) {
        self.process.left.store(count, Ordering::SeqCst);
    }

    /// Lets one operation fail, after `count` others.
    pub(super) fn fail_once_after(&self, count: u64) {
        self.process.sound.store(count, Ordering::SeqCst);
    }

    /// Returns whether any writer lives.
    pub(super) fn is_owned_at_all(&self) -> bool {
        !self.state().owners.is_empty()
    }

    pub(super) fn left(&self) -> u64 {
        self.process.left.load(Ordering::SeqCst)
    }

    /// Ends the process: the kernel ends its locks.
    pub(super) fn die(&self) {
        self.process.is_dead.store(true, Ordering::SeqCst);
        self.stop_after(0);
        let mut state = self.state();
        if state.locked_by == Some(self.process.id) {
            state.locked_by = None;
        }
        state.owners.retain(|_, owner| *owner != self.process.id);
        self.medium.unlocked.notify_all();
    }

    /// Spoils a page.
    pub(super) fn damage(&self, at: u64) {
        let mut state = self.state();
        State::flush(&mut state);
        state.durable.entry(at as usize).or_insert_with(|| vec![0; PAGE])[5] ^= 0x55;
    }

    pub(super) fn discarded(&self) -> u64 {
        self.state().discarded
    }

    pub(super) fn reads(&self) -> u64 {
        self.medium.reads.load(Ordering::SeqCst)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.medium.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation.
    fn operate(&self) -> Result<()> {
        let Process { left, sound, .. } = &*self.process;
        if sound.fetch_sub(1, Ordering::SeqCst) == 0 {
            return Err(Error::bug("the operation has failed"));
        }
        let less = |left: u64| left.checked_sub(1);
        match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::bug("the process has ended")),
        }
    }
}

impl State {
    fn flush(&mut self) {
        for (at, bytes) in std::mem::take(&mut self.pending) {
            put(&mut self.durable, at, &bytes);
        }
    }
}

/// Puts bytes that cross no page, or whole pages.
fn put(durable: &mut BTreeMap<usize, Vec<u8>>, at: usize, bytes: &[u8]) {
    for (number, part) in bytes.chunks(PAGE).enumerate() {
        let at = at + number * PAGE;
        let page = durable.entry(at / PAGE * PAGE).or_insert_with(|| vec![0; PAGE]);
        page[at % PAGE..at % PAGE + part.len()].copy_from_slice(part);
    }
}

/// A lock of this process, which ends with it.
struct Unlock {
    device: MemoryDevice,
    slot: Option<u32>,
}

impl Drop for Unlock {
    fn drop(&mut self) {
        let mut state = self.device.state();
        let id = self.device.process.id;
        match self.slot {
            None if state.locked_by == Some(id) => state.locked_by = None,
            Some(slot) if state.owners.get(&slot) == Some(&id) => drop(state.owners.remove(&slot)),
            _ => {}
        }
        self.device.medium.unlocked.notify_all();
    }
}

impl Device for MemoryDevice {
    fn describe(&self) -> String {
        "a device in memory".to_owned()
    }

    fn bytes(&self) -> u64 {
        self.state().bytes
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        self.medium.reads.fetch_add(1, Ordering::SeqCst);
        let state = self.state();
        let (at, end) = (at as usize, at as usize + into.len());
        for (number, page) in into.chunks_mut(PAGE).enumerate() {
            match state.durable.get(&(at + number * PAGE)) {
                Some(there) => page.copy_from_slice(there),
                None => page.fill(0),
            }
        }
        for (start, bytes) in &state.pending {
            let (from, to) = (at.max(*start), end.min(start + bytes.len()));
            if from < to {
                into[from - at..to - at].copy_from_slice(&bytes[from - start..to - start]);
            }
        }
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.operate()?;
        assert!(at.is_multiple_of(4096) && bytes.len().is_multiple_of(4096));
        let mut state = self.state();
        assert!(at + bytes.len() as u64 <= state.bytes);
        state.pending.push((at as usize, bytes.to_vec()));
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.operate()?;
        self.state().flush();
        Ok(())
    }

    fn discard(&self, at: u64, bytes: u64) {
        if self.process.is_dead.load(Ordering::SeqCst) || self.operate().is_err() {
            return;
        }
        let mut state = self.state();
        state.discarded += bytes;
        // Other bytes than zeros, so that a shard that is still needed would be found spoiled.
        let (at, bytes) = (at as usize, bytes as usize);
        state.flush();
        (at..at + bytes).step_by(PAGE).for_each(|at| put(&mut state.durable, at, &[0xDD; PAGE]));
    }

    fn read_changes(&self, into: &mut [u8]) -> Result<()> {
        into.copy_from_slice(&self.state().changes);
        Ok(())
    }

    fn write_changes(&self, page: &[u8]) -> Result<()> {
        self.operate()?;
        self.state().changes.copy_from_slice(page);
        Ok(())
    }

    fn lock(&self, _alone: bool) -> Result<Guard> {
        if self.process.is_dead.load(Ordering::SeqCst) {
            return Err(Error::bug("the process has ended"));
        }
        let mut state = self.state();
        while state.locked_by.is_some() {
            state = self.medium.unlocked.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.locked_by = Some(self.process.id);
        Ok(Box::new(Unlock { device: self.clone(), slot: None }))
    }

    fn own(&self, slot: u32) -> Result<Option<Guard>> {
        let mut state = self.state();
        if state.owners.contains_key(&slot) {
            return Ok(None);
        }
        state.owners.insert(slot, self.process.id);
        Ok(Some(Box::new(Unlock { device: self.clone(), slot: Some(slot) })))
    }

    fn is_owned(&self, slot: u32) -> Result<bool> {
        Ok(self.state().owners.contains_key(&slot))
    }
}

impl fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryDevice")
    }
}
