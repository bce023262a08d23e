//! Writes the shards of one pack, side by side.

use crate::Pool;
use crate::layout::Layout;
use crate::targets::{BegunShard, TargetSet};
use outlive_backend::{Fault, ShardName};
use outlive_erasure::Code;
use outlive_format::{Fragment, Geometry, SHARD_HEADER_BYTES, ShardHeader, Tail, checksum};
use outlive_io::{AlignedBuf, Completions, SharedBuf, Ticket};
use outlive_types::{Error, ErrorKind, PackId, Result};
use std::sync::Arc;
use std::time::Duration;

/// Time after which parity without a buffer gets memory of its own: the buffers in use may wait
/// until a failure is noticed.
const PATIENCE: Duration = Duration::from_secs(1);

/// The shards of a pack that is being written.
pub(crate) struct Shards {
    pool: Pool,
    targets: Arc<TargetSet>,
    pack: PackId,
    geometry: Geometry,
    code: Code,
    shards: Vec<Shard>,
    /// Bytes of containers so far.
    containers_bytes: u64,
    losses: Losses,
    in_flight: WritesInFlight,
}

struct Shard {
    begun: Option<BegunShard>,
    fragments: Vec<Fragment>,
}

/// The shards of a pack whose last writes are in progress.
pub(crate) struct ShardsEnd {
    losses: Losses,
    writes: WritesInFlight,
    finishes: Vec<Finish>,
    /// Length of all shards together.
    pub stored_bytes: u64,
    /// Length of the fragments of one shard.
    pub fragments_bytes: u64,
}

/// A shard that becomes durable.
struct Finish {
    shard: u8,
    /// Number of its target in the pool.
    target: u32,
    ticket: Ticket<Result<()>>,
}

/// Writes by shard and offset.
type WritesInFlight = Completions<(u8, u64), std::result::Result<(), Fault<SharedBuf>>>;

/// Shards that a pack has to do without.
struct Losses {
    pool: Pool,
    lost: Vec<u8>,
    max: usize,
}

impl Losses {
    /// Notes a failure.
    ///
    /// # Errors
    /// That failure, if it is one too many.
    fn note(&mut self, shard: u8, error: Error) -> Result<()> {
        if !self.lost.contains(&shard) {
            if self.lost.len() >= self.max {
                return Err(error);
            }
            self.lost.push(shard);
            self.pool.lacks_redundancy(&error);
        }
        Ok(())
    }

    /// Notes the result of an operation for a shard.
    ///
    /// # Errors
    /// As [`Losses::note`].
    fn see(&mut self, shard: u8, outcome: Result<()>) -> Result<()> {
        match outcome {
            Ok(()) => {
                self.pool.note_progress();
                Ok(())
            }
            Err(error) => self.note(shard, error),
        }
    }

    /// Notes which writes have ended, and returns how many have not.
    fn check(&mut self, in_flight: &mut WritesInFlight) -> Result<usize> {
        while let Some(((shard, _), written)) = in_flight.try_next() {
            self.see(shard, written.map_err(|fault| fault.error))?;
        }
        Ok(in_flight.len())
    }
}

impl Shards {
    /// Begins a pack of at most `capacity_bytes` of containers, with a tail of at most
    /// `tail_bytes`.
    ///
    /// # Errors
    /// Errors of the targets.
    pub fn begin(
        pool: &Pool,
        pack: PackId,
        capacity_bytes: u64,
        tail_bytes: u64,
    ) -> Result<Shards> {
        let geometry = pool.config().geometry();
        let code = Code::new(geometry.k.into(), geometry.m.into())?;
        let count = code.k() + code.m();
        let bytes_max =
            SHARD_HEADER_BYTES as u64 + geometry.fragments_bytes(capacity_bytes) + tail_bytes;
        let targets = pool.targets().clone();
        let max = targets.may_lack(count);
        let mut losses = Losses { pool: pool.clone(), lost: Vec::new(), max };
        let mut shards = Vec::with_capacity(count);
        for (number, begun) in targets.create(pack, count, bytes_max)?.into_iter().enumerate() {
            let begun = match begun {
                Ok(begun) => Some(begun),
                Err(error) => losses.note(number as u8, error).map(|()| None)?,
            };
            shards.push(Shard { begun, fragments: Vec::new() });
        }
        // A thread that lacks a buffer checks whether its writes have failed.
        let staging = pool.staging().clone();
        let in_flight = Completions::telling(move || staging.tell());
        let (pool, containers_bytes) = (pool.clone(), 0);
        Ok(Shards {
            pool,
            targets,
            pack,
            geometry,
            code,
            shards,
            containers_bytes,
            losses,
            in_flight,
        })
    }

    /// Returns how many bytes of a container's buffer must be defined before it is sent: zeros
    /// behind its end.
    pub fn filled_bytes(&self, length: usize) -> usize {
        let fragment = self.geometry.fragment_bytes(length as u64) as usize;
        length.max(fragment * self.code.k())
    }

    /// Sends off a container of `length` bytes; behind them there are zeros up to
    /// [`Shards::filled_bytes`], as far as the buffer goes. `sum` is the checksum of the `length`
    /// bytes.
    ///
    /// # Errors
    /// `Bug` for memory that does not fit; earlier failures, if they are too many.
    pub fn send(&mut self, container: SharedBuf, length: usize, sum: u64) -> Result<()> {
        let (k, fragment_bytes) =
            (self.code.k(), self.geometry.fragment_bytes(length as u64) as usize);
        let data: Vec<SharedBuf> = (0..k)
            .map(|number| part(&container, number * fragment_bytes, fragment_bytes))
            .collect();
        // The last holder of bytes may change them: an encrypted target does so in their place.
        drop(container);
        let parity = self.parity(&data, fragment_bytes)?;
        let offset =
            SHARD_HEADER_BYTES as u64 + self.geometry.fragments_bytes(self.containers_bytes);
        for (number, bytes) in data.into_iter().chain(parity).enumerate() {
            // All shards of a mirror have the container itself, whose checksum is known.
            let checksum = if k == 1 { sum } else { checksum(&bytes) };
            let fragment = Fragment { length: fragment_bytes as u32, checksum };
            self.shards[number].fragments.push(fragment);
            self.write(number as u8, offset, bytes);
        }
        self.containers_bytes += length as u64;
        self.check_writes().map(drop)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "those that are out may wait for a look at a failure"
    )]
    fn parity(&mut self, data: &[SharedBuf], fragment_bytes: usize) -> Result<Vec<SharedBuf>> {
        let m = self.code.m();
        if let [only] = data {
            return Ok(vec![only.clone(); m]);
        }
        if m == 0 {
            return Ok(Vec::new());
        }
        let mut buffer = self.pool.parity().take_timeout(PATIENCE);
        if buffer.as_ref().is_none_or(|buffer| buffer.len() < m * fragment_bytes) {
            buffer = Some(AlignedBuf::zeroed(m * fragment_bytes));
        }
        let mut buffer = buffer.ok_or_else(|| Error::bug("no memory for parity"))?;
        let ins: Vec<&[u8]> = data.iter().map(|bytes| &bytes[..]).collect();
        let mut outs: Vec<&mut [u8]> =
            buffer[..m * fragment_bytes].chunks_mut(fragment_bytes).collect();
        self.code.encode(&ins, &mut outs)?;
        let shared = buffer.share();
        let slice = |row: usize| shared.slice(row * fragment_bytes..(row + 1) * fragment_bytes);
        Ok((0..m).map(slice).collect())
    }

    /// Starts a write, unless the shard is lost.
    fn write(&mut self, shard: u8, offset: u64, bytes: SharedBuf) {
        if let Some(begun) = &mut self.shards[usize::from(shard)].begun {
            self.in_flight.push((shard, offset), begun.writer.write(offset, bytes));
        }
    }

    /// Notes which writes have ended, and returns how many have not. A failed write keeps its
    /// buffer until then.
    ///
    /// # Errors
    /// Error of a write, if the pack cannot do without that shard.
    pub fn check_writes(&mut self) -> Result<usize> {
        let left = self.losses.check(&mut self.in_flight)?;
        for lost in &self.losses.lost {
            self.shards[usize::from(*lost)].begun = None;
        }
        Ok(left)
    }

    /// Ends the pack and removes every trace of it. Returns once no write is in progress.
    pub fn give_up(mut self) {
        self.shards.clear();
        while self.in_flight.wait_next().is_some() {}
    }

    /// Writes headers and tails, with this directory, and ends the shards.
    ///
    /// # Errors
    /// Earlier failures, if they are too many.
    pub fn finish(mut self, directory: &[u8]) -> Result<ShardsEnd> {
        let mut ends = Vec::new();
        let mut fragments_bytes = 0;
        for number in 0..self.shards.len() {
            let header = ShardHeader {
                shard: number as u8,
                geometry: self.geometry,
                pack: self.pack,
                pool_id: self.pool.config().format.pool_id_bytes(),
                containers_bytes: self.containers_bytes,
                directory_bytes: directory.len() as u32,
            };
            let fragments = std::mem::take(&mut self.shards[number].fragments);
            let tail =
                Tail { pack: self.pack, directory: directory.to_vec(), fragments }.encode()?;
            let offset = header.directory_offset();
            fragments_bytes = offset - SHARD_HEADER_BYTES as u64;
            ends.push(offset + tail.len() as u64);
            self.write(number as u8, 0, aligned(&header.encode()?));
            self.write(number as u8, offset, aligned(&tail));
        }
        self.check_writes()?;
        let (mut finishes, mut stored_bytes) = (Vec::new(), 0);
        for (number, (shard, end)) in self.shards.iter_mut().zip(ends).enumerate() {
            let Some(BegunShard { writer, member, under_way }) = shard.begun.take() else {
                continue;
            };
            stored_bytes += end;
            let (targets, name) =
                (self.targets.clone(), ShardName { pack: self.pack, shard: number as u8 });
            let may_be_repaired = self.geometry.m > 0;
            let target = self.targets.members()[member].id;
            let ticket = writer.finish(end).map(move |finished| {
                drop(under_way);
                if finished.is_ok() {
                    targets.is_on(name, member);
                }
                finished.map_err(|error: Error| match error.kind() {
                    // Nothing else of the pack was unfinished any more, since a target was lost. A
                    // refusal by the system has another cause.
                    ErrorKind::Invalid if may_be_repaired && error.os().is_none() => {
                        Error::retry(format!(
                            "a repair has made a shard while it was written, so save again: {}",
                            error.message()
                        ))
                    }
                    _ => error,
                })
            });
            finishes.push(Finish { shard: number as u8, target, ticket });
        }
        let code = Arc::new(self.code);
        let layout = Layout { geometry: self.geometry, fragments_bytes, code };
        self.pool.knows_layout(self.pack, layout);
        let (losses, writes) = (self.losses, self.in_flight);
        Ok(ShardsEnd { losses, writes, finishes, stored_bytes, fragments_bytes })
    }
}

impl ShardsEnd {
    /// Does the same as [`Shards::check_writes`].
    ///
    /// # Errors
    /// As [`Shards::check_writes`].
    pub fn check_writes(&mut self) -> Result<usize> {
        self.losses.check(&mut self.writes)
    }

    /// Waits until the shards are durable.
    ///
    /// # Errors
    /// Error of a shard, if the pack cannot do without it.
    pub fn wait(mut self) -> Result<()> {
        let mut outcome = Ok(());
        while let Some(((shard, _), written)) = self.writes.wait_next() {
            let seen = self.losses.see(shard, written.map_err(|fault| fault.error));
            outcome = outcome.and(seen);
        }
        let mut durable_on = Vec::new();
        for Finish { shard, target, ticket } in self.finishes {
            let finished = ticket.wait();
            if finished.is_ok() && !self.losses.lost.contains(&shard) {
                durable_on.push(target);
            }
            outcome = outcome.and(self.losses.see(shard, finished));
        }
        if outcome.is_ok() {
            self.losses.pool.written().note(durable_on);
        }
        outcome
    }
}

/// Returns a fragment of a container, with zeros behind the container's end.
fn part(container: &SharedBuf, start: usize, length: usize) -> SharedBuf {
    if start + length <= container.len() {
        return container.slice(start..start + length);
    }
    let mut bytes = AlignedBuf::zeroed(length);
    let there = container.len().saturating_sub(start);
    bytes[..there].copy_from_slice(&container[container.len() - there..]);
    bytes.share()
}

/// Copies a header or a tail into memory of its own, which happens once a pack.
fn aligned(bytes: &[u8]) -> SharedBuf {
    let mut buffer = AlignedBuf::zeroed(bytes.len());
    buffer.copy_from_slice(bytes);
    buffer.share()
}
