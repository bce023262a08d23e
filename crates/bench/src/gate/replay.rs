//! Experiment I: what it costs a program that a gate holds its outputs.
//!
//! A trace is replayed. Each flow computes between its operations for as long as it did, and each
//! operation starts when the one before has ended. So a delay shifts all that depends on it.

use super::release::Release;
use super::sectors::{SECTOR_BYTES, flushed};
use super::trace::{Operation, Trace, What};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// Treatment of an output until it may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    /// The program waits, as in the seed.
    Delay,
    /// The program goes on at once, and the gate keeps the output in memory: external synchrony
    /// (Nightingale, Veeraraghavan, Chen and Flinn, 2006).
    Hold,
    /// Writes go to a log on the disk at once, from which a rollback takes them back; the seed's
    /// future work. Messages are kept in memory.
    Log,
}

/// Outputs that a gate holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Writes that reach the disk, as in the seed.
    Disk,
    /// Messages, too.
    All,
}

/// A gate.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    pub variant: Variant,
    pub scope: Scope,
    pub release: Release,
    /// Memory for held outputs, with [`Variant::Hold`]. Beyond it the program waits.
    pub buffer_bytes: u64,
}

/// The disks below the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disks {
    /// Each operation takes as long as it was recorded.
    Recorded,
    /// Each disk serves one operation after the other; files are spread over them.
    Queues { count: u32, service_ns: u64 },
}

/// Times and counts of a replay.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Outcome {
    /// Time until the last flow with clients has ended, or the last one if none has clients.
    pub run_ns: u64,
    /// Time until the last flow has ended.
    pub all_ns: u64,
    /// Number of outputs that the gate held.
    pub held: u64,
    /// Sum of the times for which it held them.
    pub held_ns: u64,
    /// Most bytes of outputs held at a time.
    pub peak_bytes: u64,
    /// Number of outputs that had to wait for room in the buffer.
    pub stalls: u64,
}

impl Outcome {
    /// Returns the mean number of outputs that the gate holds.
    pub fn outstanding(&self) -> f64 {
        self.held_ns as f64 / self.all_ns.max(1) as f64
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The operation starts.
    Begin(usize),
    /// The gate lets the output of the operation go.
    Release(usize),
    /// The program is done with a sync under this lock.
    Unlock(usize),
}

struct Replay<'a> {
    operations: &'a [Operation],
    gate: Option<Gate>,
    disks: Disks,
    /// Time that the flow computes before each operation.
    compute_ns: Vec<u64>,
    /// Next operation of the same flow.
    next: Vec<Option<usize>>,
    /// Bytes that each operation sends out.
    out_bytes: Vec<u64>,
    /// For a receive, the time from the flow's last send until it had the reply, and that send.
    reply: Vec<Option<(usize, u64)>>,
    /// Order of events at the same time.
    number: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    disk_free_ns: Vec<u64>,
    /// When the peer sees each send.
    seen_ns: Vec<u64>,
    woke_ns: Vec<Option<u64>>,
    /// Waits for each wake, with the times from which they wait.
    waiting: Vec<Vec<(usize, u64)>>,
    flow_end_ns: Vec<u64>,
    /// Lock under which the operation syncs, if any.
    lock: Vec<Option<usize>>,
    /// Whether each lock is taken, and the operations that wait for it.
    locks: Vec<(bool, VecDeque<usize>)>,
    /// Operations that the sync of each one serves, too.
    group: Vec<VecDeque<usize>>,
    held_bytes: u64,
    /// Outputs that wait for room.
    no_room: VecDeque<usize>,
    outcome: Outcome,
}

/// Replays a trace behind a gate, or without one.
pub fn replay(trace: &Trace, gate: Option<Gate>, disks: Disks) -> Outcome {
    let operations = &trace.operations;
    let count = operations.len();
    let flows = trace.flows as usize;
    let (mut compute_ns, mut next, mut reply) =
        (vec![0; count], vec![None; count], vec![None; count]);
    let mut last: Vec<Option<usize>> = vec![None; flows];
    let mut last_send: Vec<Option<usize>> = vec![None; flows];
    let mut first = Vec::new();
    for (at, operation) in operations.iter().enumerate() {
        let flow = operation.flow as usize;
        let before_ns = last[flow].map_or(0, |before| operations[before].end_ns());
        compute_ns[at] = operation.start_ns.saturating_sub(before_ns);
        match last[flow] {
            Some(before) => next[before] = Some(at),
            None => first.push(at),
        }
        last[flow] = Some(at);
        match operation.what {
            What::Send { .. } => last_send[flow] = Some(at),
            What::Receive { .. } => {
                reply[at] = last_send[flow].map(|send| {
                    (send, operation.end_ns().saturating_sub(operations[send].end_ns()))
                });
            }
            _ => {}
        }
    }
    let out_bytes = flushed(trace)
        .iter()
        .zip(operations)
        .map(|(sectors, operation)| match operation.what {
            What::Send { bytes } => bytes,
            _ => sectors.len() as u64 * SECTOR_BYTES,
        })
        .collect();
    let lock = locks(operations);
    let disk_count = match disks {
        Disks::Recorded => 0,
        Disks::Queues { count, .. } => count.max(1) as usize,
    };
    let mut replay = Replay {
        operations,
        gate,
        disks,
        compute_ns,
        next,
        out_bytes,
        reply,
        number: 0,
        events: BinaryHeap::new(),
        disk_free_ns: vec![0; disk_count],
        seen_ns: vec![0; count],
        woke_ns: vec![None; count],
        waiting: vec![Vec::new(); count],
        flow_end_ns: vec![0; flows],
        locks: vec![
            (false, VecDeque::new());
            lock.iter().flatten().max().map_or(0, |most| most + 1)
        ],
        lock,
        group: vec![VecDeque::new(); count],
        held_bytes: 0,
        no_room: VecDeque::new(),
        outcome: Outcome::default(),
    };
    for at in first {
        replay.push(replay.compute_ns[at], Event::Begin(at));
    }
    while let Some(Reverse((now_ns, _, event))) = replay.events.pop() {
        match event {
            Event::Begin(at) => replay.begin(at, now_ns),
            Event::Release(at) => replay.release(at, now_ns),
            Event::Unlock(lock) => replay.unlock(lock, now_ns),
        }
    }
    replay.end(trace)
}

/// Returns the number of the lock under which each operation syncs its file.
///
/// Flows that never sync a file at the same time have a lock for it, such as that of PostgreSQL for
/// its log. A longer sync makes them wait for each other more often than in the recording, and those
/// that wait share the next sync.
fn locks(operations: &[Operation]) -> Vec<Option<usize>> {
    struct Synced {
        flow: u32,
        until_ns: u64,
        flows_differ: bool,
        overlap: bool,
    }
    let file = |operation: &Operation| match operation.what {
        What::Durable(range) => Some(range.file),
        What::Sync { file } => Some(file),
        _ => None,
    };
    let mut files: BTreeMap<u32, Synced> = BTreeMap::new();
    for operation in operations {
        let Some(file) = file(operation) else { continue };
        let (flow, until_ns) = (operation.flow, operation.end_ns());
        let new = Synced { flow, until_ns: 0, flows_differ: false, overlap: false };
        let synced = files.entry(file).or_insert(new);
        synced.flows_differ |= synced.flow != flow;
        synced.overlap |= operation.start_ns < synced.until_ns;
        synced.until_ns = synced.until_ns.max(until_ns);
    }
    let locked = files.iter().filter(|(_, synced)| synced.flows_differ && !synced.overlap);
    let numbers: BTreeMap<u32, usize> =
        locked.enumerate().map(|(number, (file, _))| (*file, number)).collect();
    operations.iter().map(|o| numbers.get(&file(o)?).copied()).collect()
}

impl Replay<'_> {
    fn push(&mut self, at_ns: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((at_ns, self.number, event)));
    }

    fn begin(&mut self, at: usize, now_ns: u64) {
        let operation = self.operations[at];
        let took_ns = operation.took_ns;
        match operation.what {
            What::Read(_) | What::Write(_) => self.finish(at, now_ns + took_ns),
            What::Durable(_) | What::Sync { .. } => match self.lock[at] {
                Some(lock) if self.locks[lock].0 => self.locks[lock].1.push_back(at),
                Some(lock) => {
                    self.locks[lock].0 = true;
                    self.sync(at, now_ns);
                }
                None => self.sync(at, now_ns),
            },
            What::Send { .. } => match self.gate {
                Some(gate) if gate.scope == Scope::All => self.hold(at, now_ns, gate),
                _ => {
                    self.seen_ns[at] = now_ns + took_ns;
                    self.finish(at, now_ns + took_ns);
                }
            },
            What::Receive { .. } => {
                let end_ns = match self.reply[at] {
                    None => now_ns + took_ns,
                    Some((send, after_ns)) => now_ns.max(self.seen_ns[send] + after_ns),
                };
                self.finish(at, end_ns);
            }
            What::Wait { cause: None } => self.finish(at, now_ns + took_ns),
            What::Wait { cause: Some(cause) } => match self.woke_ns[cause] {
                None => self.waiting[cause].push((at, now_ns)),
                Some(woke_ns) => self.wake(at, now_ns, cause, woke_ns),
            },
            What::Wake => {
                self.woke_ns[at] = Some(now_ns);
                for (wait, since_ns) in std::mem::take(&mut self.waiting[at]) {
                    self.wake(wait, since_ns, at, now_ns);
                }
                self.finish(at, now_ns + took_ns);
            }
        }
    }

    fn sync(&mut self, at: usize, now_ns: u64) {
        match self.gate {
            None => self.write_and_finish(at, now_ns),
            Some(gate) => self.hold(at, now_ns, gate),
        }
    }

    fn unlock(&mut self, lock: usize, now_ns: u64) {
        let mut waiting = std::mem::take(&mut self.locks[lock].1);
        let Some(first) = waiting.pop_front() else {
            self.locks[lock].0 = false;
            return;
        };
        // The next sync serves all that wait for it: a group commit.
        self.out_bytes[first] += waiting.iter().map(|at| self.out_bytes[*at]).sum::<u64>();
        self.group[first] = waiting;
        self.sync(first, now_ns);
    }

    /// Ends a wait, as long after its cause as it was recorded.
    fn wake(&mut self, wait: usize, since_ns: u64, cause: usize, woke_ns: u64) {
        let (wait_end, cause_start) =
            (self.operations[wait].end_ns(), self.operations[cause].start_ns);
        let late_ns = wait_end.saturating_sub(cause_start);
        self.finish(wait, since_ns.max(woke_ns + late_ns));
    }

    /// Takes an output into the gate, or lets it wait for room.
    fn hold(&mut self, at: usize, now_ns: u64, gate: Gate) {
        let no_room =
            self.held_bytes > 0 && self.held_bytes + self.out_bytes[at] > gate.buffer_bytes;
        if gate.variant == Variant::Hold && (no_room || !self.no_room.is_empty()) {
            self.outcome.stalls += 1;
            self.no_room.push_back(at);
        } else {
            self.admit(at, now_ns, gate);
        }
    }

    fn admit(&mut self, at: usize, now_ns: u64, gate: Gate) {
        self.held_bytes += self.out_bytes[at];
        let outcome = &mut self.outcome;
        outcome.peak_bytes = outcome.peak_bytes.max(self.held_bytes);
        outcome.held += 1;
        let release_ns = gate.release.at(now_ns);
        outcome.held_ns += release_ns - now_ns;
        self.push(release_ns, Event::Release(at));
        let took_ns = self.operations[at].took_ns;
        match (self.operations[at].what, gate.variant) {
            // It ends when the gate lets it go.
            (_, Variant::Delay) => {}
            (What::Send { .. }, Variant::Hold | Variant::Log) => {
                self.seen_ns[at] = release_ns + took_ns;
                self.finish(at, now_ns + took_ns);
            }
            (_, Variant::Hold) => self.finish(at, now_ns),
            (_, Variant::Log) => self.write_and_finish(at, now_ns),
        }
    }

    fn release(&mut self, at: usize, now_ns: u64) {
        self.held_bytes -= self.out_bytes[at];
        let Some(gate) = self.gate else { return };
        match (self.operations[at].what, gate.variant) {
            (What::Send { .. }, Variant::Delay) => {
                self.seen_ns[at] = now_ns + self.operations[at].took_ns;
                self.finish(at, self.seen_ns[at]);
            }
            (What::Send { .. }, _) => {}
            (_, Variant::Delay) => self.write_and_finish(at, now_ns),
            // In the background: from memory, or from the log to its place.
            (_, Variant::Hold | Variant::Log) => {
                self.write(at, now_ns);
            }
        }
        while let Some(waits) = self.no_room.front().copied() {
            if self.held_bytes > 0 && self.held_bytes + self.out_bytes[waits] > gate.buffer_bytes {
                break;
            }
            self.no_room.pop_front();
            self.admit(waits, now_ns, gate);
        }
    }

    /// Lets the disk write an output, and returns when it has.
    fn write(&mut self, at: usize, now_ns: u64) -> u64 {
        let operation = self.operations[at];
        let file = match operation.what {
            What::Durable(range) => range.file,
            What::Sync { file } => file,
            _ => 0,
        };
        match self.disks {
            Disks::Recorded => now_ns + operation.took_ns,
            Disks::Queues { service_ns, .. } => {
                let disk = file as usize % self.disk_free_ns.len();
                let end_ns = self.disk_free_ns[disk].max(now_ns) + service_ns;
                self.disk_free_ns[disk] = end_ns;
                end_ns
            }
        }
    }

    fn write_and_finish(&mut self, at: usize, now_ns: u64) {
        let end_ns = self.write(at, now_ns);
        self.finish(at, end_ns);
    }

    fn finish(&mut self, at: usize, end_ns: u64) {
        if let Some(lock) = self.lock[at] {
            self.push(end_ns, Event::Unlock(lock));
        }
        self.go_on(at, end_ns);
        for other in std::mem::take(&mut self.group[at]) {
            self.go_on(other, end_ns);
        }
    }

    /// Lets the flow go on after an operation.
    fn go_on(&mut self, at: usize, end_ns: u64) {
        self.flow_end_ns[self.operations[at].flow as usize] = end_ns;
        if let Some(next) = self.next[at] {
            self.push(end_ns + self.compute_ns[next], Event::Begin(next));
        }
    }

    fn end(mut self, trace: &Trace) -> Outcome {
        let mut serves = vec![false; self.flow_end_ns.len()];
        for operation in &trace.operations {
            serves[operation.flow as usize] |= matches!(operation.what, What::Receive { .. });
        }
        let none_serves = !serves.contains(&true);
        let ends = || self.flow_end_ns.iter().zip(&serves);
        self.outcome.all_ns = ends().map(|(end_ns, _)| *end_ns).max().unwrap_or(0);
        self.outcome.run_ns = ends()
            .filter(|(_, s)| **s || none_serves)
            .map(|(end_ns, _)| *end_ns)
            .max()
            .unwrap_or(0);
        self.outcome
    }
}

#[cfg(test)]
mod tests;
