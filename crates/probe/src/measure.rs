//! Measures one target: the figures 1 to 6 of the Rainbow paper, and the figures of queues.

use crate::curve::{Point, least_depth};
use crate::scratch::{Order, ReadTotal, Scratch, ScratchShard, Written};
use outlive_backend::Target;
use outlive_types::{Error, PAGE_BYTES, Result, shown_bytes};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Part of the free space that a probe uses at most: one of this many.
const FREE_PARTS: u64 = 25;
/// Least scratch space that gives meaningful figures.
const SCRATCH_BYTES_MIN: u64 = 8 << 20;
/// Number of empty shards that give the fixed time of a shard.
const EMPTY_SHARDS: usize = 5;
/// Most accesses of one sample.
const READS_MAX: u64 = 2000;
/// Bytes of a sample beyond which it says nothing new.
const SAMPLE_BYTES_MAX: u64 = 64 << 20;

/// Limits of a probe, for each target.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// Time for all measurements together.
    pub budget: Duration,
    /// Space for scratch shards; a small target gives less.
    pub scratch_bytes_max: u64,
    /// Number of positions.
    pub positions: u64,
    /// Longest access, a power of two.
    pub access_bytes_max: u64,
    /// Length of the writes that the pool makes: a container, or its fragment.
    pub fragment_bytes: u64,
    /// Largest number of requests in flight.
    pub depth_max: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            budget: Duration::from_secs(40),
            scratch_bytes_max: 256 << 20,
            positions: 32,
            access_bytes_max: 8 << 20,
            fragment_bytes: 4 << 20,
            depth_max: 16,
        }
    }
}

impl Options {
    /// Returns limits for more samples: up to five minutes and 2 GiB.
    pub fn thorough() -> Options {
        Options {
            budget: Duration::from_secs(300),
            scratch_bytes_max: 2 << 30,
            positions: 128,
            access_bytes_max: 16 << 20,
            depth_max: 64,
            ..Options::default()
        }
    }
}

/// Figures of one target. Throughput counts durable bytes: the time of a write ends with the `finish`
/// of its shard, less the time that an empty shard takes.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
pub struct Measurement {
    /// Seconds that a shard of one page takes.
    pub shard_s: f64,
    /// Seconds of one read of a page while `depth` of them are in flight: what each adds.
    pub request_s: f64,
    /// Least queue depth that is within 5 % of the best, of reads and of writes.
    pub depth: u32,
    /// Length of the accesses of figures over position.
    pub position_access_bytes: u64,
    /// Reads over position, one at a time.
    pub read_positions: Vec<Point>,
    /// Reads over position, `depth` in flight.
    pub read_positions_queued: Vec<Point>,
    /// Writes over position, one at a time.
    pub write_positions: Vec<Point>,
    /// Writes over position, `depth` in flight.
    pub write_positions_queued: Vec<Point>,
    /// Random reads over size, one at a time.
    pub read_sizes: Vec<Point>,
    /// Ascending writes over size, one at a time.
    pub write_sizes: Vec<Point>,
    /// Writes in random order over size, one at a time.
    pub write_sizes_random: Vec<Point>,
    /// Random reads over the number in flight.
    pub read_depths: Vec<Point>,
    /// Writes over the number in flight.
    pub write_depths: Vec<Point>,
    /// Bytes of the scratch shards that existed at once, at most.
    pub scratch_bytes: u64,
    /// Bytes written and read in all.
    pub written_bytes: u64,
    /// Bytes read in all.
    pub read_bytes: u64,
    /// Seconds of the whole probe.
    pub took_s: f64,
    /// Whether time was short, so that some samples are missing.
    pub is_cut: bool,
}

/// Measures a target. `begin` gets the name of each phase. Afterwards the target is as it was before,
/// also if the probe fails.
///
/// # Errors
/// `Full` if too little is free; `Retry` if `was_asked_to_stop` returns true, or if the target is too
/// slow for a single sample; errors of the target.
pub fn measure(
    target: &dyn Target,
    options: &Options,
    was_asked_to_stop: &dyn Fn() -> bool,
    begin: &dyn Fn(&'static str),
) -> Result<Measurement> {
    let scratch_bytes = scratch_bytes(target, options)?;
    // Eight accesses are the least for a curve over position.
    let access_bytes_max = options.access_bytes_max.min(scratch_bytes / 8);
    let access_bytes_max = 1 << access_bytes_max.max(PAGE_BYTES as u64).ilog2();
    let mut run = Run {
        scratch: Scratch::new(target, access_bytes_max, was_asked_to_stop),
        options: Options { access_bytes_max, ..options.clone() },
        scratch_bytes,
        began: Instant::now(),
        found: Measurement { scratch_bytes, ..Measurement::default() },
    };
    begin("fixed time of a shard");
    run.empty_shards()?;
    begin("writes over size");
    run.write_sizes()?;
    begin("writes over queue depth");
    run.write_depths()?;
    begin("writes over position");
    let shards = run.write_positions()?;
    begin("reads over size");
    run.read_sizes(&shards)?;
    begin("reads over queue depth");
    run.read_depths(&shards)?;
    begin("reads over position");
    run.read_positions(&shards)?;
    run.scratch.clear()?;
    let mut found = run.found.clone();
    found.is_cut |= run.is_over();
    found.took_s = run.began.elapsed().as_secs_f64();
    (found.written_bytes, found.read_bytes) = (run.scratch.written_bytes, run.scratch.read_bytes);
    Ok(found)
}

/// Returns how much a probe may write at once.
fn scratch_bytes(target: &dyn Target, options: &Options) -> Result<u64> {
    let free = target.capacity()?.free_bytes;
    let bytes = (free / FREE_PARTS).min(options.scratch_bytes_max);
    if bytes >= SCRATCH_BYTES_MIN {
        return Ok(bytes / (1 << 20) * (1 << 20));
    }
    Err(Error::full(format!(
        "cannot probe {}: {} are free, and a probe needs {}, of which it uses 4 %; free some space, \
         for example with `outlive prune`",
        target.describe(),
        shown_bytes(free),
        shown_bytes(SCRATCH_BYTES_MIN * FREE_PARTS)
    )))
}

struct Run<'a> {
    scratch: Scratch<'a>,
    options: Options,
    scratch_bytes: u64,
    began: Instant,
    found: Measurement,
}

impl Run<'_> {
    /// Returns this share of the budget, in per cent.
    fn share(&self, percent: u32) -> Duration {
        self.options.budget * percent / 100
    }

    /// Returns the end of a phase that begins now: no later than that of the whole.
    fn until(&self, percent: u32) -> Instant {
        (Instant::now() + self.share(percent)).min(self.began + self.options.budget)
    }

    fn is_over(&self) -> bool {
        self.began.elapsed() >= self.options.budget
    }

    /// Returns all access sizes: powers of two from a page on.
    fn sizes(&self) -> Vec<u64> {
        let all = (0..).map(|n| (PAGE_BYTES as u64) << n);
        all.take_while(|size| *size <= self.options.access_bytes_max).collect()
    }

    /// Returns the seconds of a shard without its fixed time. At most half of the whole is fixed
    /// time: the rest belongs to the bytes.
    fn net_s(&self, written: &Written) -> f64 {
        let all = written.took.as_secs_f64().max(1e-9);
        (all - self.found.shard_s).max(all / 2.0)
    }

    fn empty_shards(&mut self) -> Result<()> {
        let page = PAGE_BYTES as u64;
        let deadline = self.until(100);
        let mut took = Vec::new();
        for _ in 0..EMPTY_SHARDS {
            let written = self.scratch.write(page, page, Order::Ascending, 1, deadline)?;
            let Some(written) = written else { break };
            self.scratch.delete(written.shard.name)?;
            took.push(written.took.as_secs_f64());
            if self.began.elapsed() > self.share(5) {
                break;
            }
        }
        took.sort_by(f64::total_cmp);
        let median = took.get(took.len() / 2).copied();
        self.found.shard_s = median.ok_or_else(|| {
            Error::retry(format!(
                "the target did not write a single page within {} s",
                self.options.budget.as_secs()
            ))
        })?;
        Ok(())
    }

    /// Writes a shard whose length suits the expected throughput, and deletes it. Returns its
    /// throughput; `None` if it would take too long.
    fn sample_write(
        &mut self,
        access: u64,
        order: Order,
        depth: u32,
        expected_bytes_per_s: f64,
        time: Duration,
    ) -> Result<Option<f64>> {
        let affordable = (expected_bytes_per_s * time.as_secs_f64()) as u64;
        let least = access * u64::from(depth);
        let most = SAMPLE_BYTES_MAX.min(self.scratch_bytes).max(least);
        // One access may take four times its share, so that the last sizes of slow targets count.
        if least > affordable.saturating_mul(4) || least > self.scratch_bytes || self.is_over() {
            return Ok(None);
        }
        // Short accesses are counted, not weighed: more say nothing new.
        let most = most.min(access.saturating_mul(READS_MAX)).max(least);
        let bytes = affordable.clamp(least, most) / access * access;
        let deadline = self.until(100);
        let Some(written) = self.scratch.write(bytes, access, order, depth, deadline)? else {
            self.found.is_cut = true;
            return Ok(None);
        };
        self.scratch.delete(written.shard.name)?;
        Ok(Some(bytes as f64 / self.net_s(&written)))
    }

    fn write_sizes(&mut self) -> Result<()> {
        let sizes = self.sizes();
        let time = self.share(30) / (2 * sizes.len() as u32);
        // A longer access is at least as fast as the one before, and a page at least as fast as a
        // shard with nothing else.
        let least = PAGE_BYTES as f64 / self.found.shard_s.max(1e-9);
        let mut expected = [least; 2];
        for access in sizes {
            for (which, order) in [Order::Ascending, Order::Random].into_iter().enumerate() {
                let found = self.sample_write(access, order, 1, expected[which], time)?;
                let Some(bytes_per_s) = found else {
                    self.found.is_cut = true;
                    continue;
                };
                expected[which] = bytes_per_s;
                let point = Point { at: access, bytes_per_s };
                match order {
                    Order::Ascending => self.found.write_sizes.push(point),
                    Order::Random => self.found.write_sizes_random.push(point),
                }
            }
        }
        match self.found.write_sizes.is_empty() {
            true => {
                Err(Error::retry("the target is too slow to be probed: no sample ended in time"))
            }
            false => Ok(()),
        }
    }

    /// Returns the access of the pool, or the longest shorter one that was measured.
    fn pool_access(&self, measured: &[Point]) -> u64 {
        let wanted = self.options.fragment_bytes.max(PAGE_BYTES as u64);
        let fitting = measured.iter().map(|point| point.at).filter(|at| *at <= wanted);
        fitting.max().unwrap_or(PAGE_BYTES as u64)
    }

    fn depths(&self) -> Vec<u32> {
        (0..).map(|n| 1 << n).take_while(|depth| *depth <= self.options.depth_max).collect()
    }

    fn write_depths(&mut self) -> Result<()> {
        let access = self.pool_access(&self.found.write_sizes);
        let depths = self.depths();
        let time = self.share(12) / depths.len() as u32;
        let at = |point: &&Point| point.at == access;
        let mut expected = self.found.write_sizes.iter().find(at).map_or(0.0, |it| it.bytes_per_s);
        for depth in depths {
            // At least twice the queue, so that it is full for a while.
            let found = self.sample_write(access, Order::Ascending, depth, expected, time)?;
            let Some(bytes_per_s) = found else { break };
            expected = expected.max(bytes_per_s);
            self.found.write_depths.push(Point { at: u64::from(depth), bytes_per_s });
        }
        Ok(())
    }

    /// Fills the scratch space twice. Returns the shards of the second time.
    fn write_positions(&mut self) -> Result<Vec<ScratchShard>> {
        let access = self.pool_access(&self.found.write_sizes).min(1 << 20);
        let depth = least_depth(&self.found.write_depths);
        let at = |point: &&Point| point.at == access;
        let speed = self.found.write_sizes.iter().find(at).map_or(0.0, |it| it.bytes_per_s);
        let affordable = (speed * self.share(10).as_secs_f64()) as u64 / self.options.positions;
        let most = self.scratch_bytes / self.options.positions;
        let segment = (affordable.min(most) / access).max(1) * access;
        let positions = (self.scratch_bytes / segment).min(self.options.positions);
        self.found.position_access_bytes = access;
        for (is_queued, depth) in [(true, depth), (false, 1)] {
            let until = self.until(15);
            let mut shards = Vec::new();
            for number in 0..positions {
                if Instant::now() >= until && !shards.is_empty() {
                    self.found.is_cut = true;
                    break;
                }
                let deadline = self.until(100);
                let order = Order::Ascending;
                let Some(written) = self.scratch.write(segment, access, order, depth, deadline)?
                else {
                    self.found.is_cut = true;
                    break;
                };
                let bytes_per_s = segment as f64 / self.net_s(&written);
                let point = Point { at: number * segment, bytes_per_s };
                match is_queued {
                    true => self.found.write_positions_queued.push(point),
                    false => self.found.write_positions.push(point),
                }
                shards.push(written.shard);
            }
            if !is_queued {
                return Ok(shards);
            }
            self.scratch.clear()?;
        }
        Ok(Vec::new())
    }

    fn read_sizes(&mut self, shards: &[ScratchShard]) -> Result<()> {
        let sizes = self.sizes();
        let time = self.share(12) / sizes.len() as u32;
        for access in sizes {
            // The first access may take four times its share, as with writes.
            let before = self.found.read_sizes.last().map_or(f64::INFINITY, |it| it.bytes_per_s);
            let is_slow = access as f64 / before > 4.0 * time.as_secs_f64();
            let Some(read) = self.sample_reads(shards, access, 1, time, is_slow)? else { break };
            let bytes_per_s = read.bytes as f64 / read.took.as_secs_f64().max(1e-9);
            self.found.read_sizes.push(Point { at: access, bytes_per_s });
        }
        Ok(())
    }

    /// Reads at random for some time. Shards that are shorter than an access serve through several
    /// of them no better, so longer accesses have no figure then.
    fn sample_reads(
        &mut self,
        shards: &[ScratchShard],
        access: u64,
        depth: u32,
        time: Duration,
        is_slow: bool,
    ) -> Result<Option<ReadTotal>> {
        let is_short = shards.iter().any(|shard| shard.bytes < access);
        if shards.is_empty() || is_short || is_slow || self.is_over() {
            self.found.is_cut |= !is_short;
            return Ok(None);
        }
        let count = (SAMPLE_BYTES_MAX / access).min(READS_MAX).max(2 * u64::from(depth));
        let deadline = Instant::now() + time;
        self.scratch.read_random(shards, access, depth, count, deadline).map(Some)
    }

    fn read_depths(&mut self, shards: &[ScratchShard]) -> Result<()> {
        let access = self.pool_access(&self.found.read_sizes);
        let depths = self.depths();
        let time = self.share(8) / depths.len() as u32;
        for depth in depths {
            let Some(read) = self.sample_reads(shards, access, depth, time, false)? else { break };
            let bytes_per_s = read.bytes as f64 / read.took.as_secs_f64().max(1e-9);
            self.found.read_depths.push(Point { at: u64::from(depth), bytes_per_s });
        }
        let reads = least_depth(&self.found.read_depths);
        self.found.depth = reads.max(least_depth(&self.found.write_depths));
        let page = PAGE_BYTES as u64;
        let time = self.share(3);
        let pages = self.sample_reads(shards, page, self.found.depth, time, false)?;
        if let Some(pages) = pages.filter(|pages| pages.count > 0) {
            self.found.request_s = pages.took.as_secs_f64() / pages.count as f64;
        }
        Ok(())
    }

    fn read_positions(&mut self, shards: &[ScratchShard]) -> Result<()> {
        let access = self.found.position_access_bytes;
        let depth = least_depth(&self.found.read_depths);
        for (is_queued, depth) in [(false, 1), (true, depth)] {
            let until = self.until(8);
            let mut position = 0;
            for shard in shards {
                if Instant::now() >= until {
                    self.found.is_cut = true;
                    break;
                }
                let took = self.scratch.read_all(*shard, access, depth)?;
                let bytes_per_s = shard.bytes as f64 / took.as_secs_f64().max(1e-9);
                let point = Point { at: position, bytes_per_s };
                match is_queued {
                    true => self.found.read_positions_queued.push(point),
                    false => self.found.read_positions.push(point),
                }
                position += shard.bytes;
            }
        }
        Ok(())
    }
}
