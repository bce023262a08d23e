//! Measures one target: the figures 1 to 6 of the Rainbow paper, and the figures of queues.

use crate::curve::{Point, least_depth};
use crate::measurement::{Measurement, Options};
use crate::scratch::{Order, Plan, ReadTotal, Scratch, ScratchShard, Written};
use outlive_backend::Target;
use outlive_io::DEPTH_DEFAULT;
use outlive_types::{Error, PAGE_BYTES, Result, shown_bytes};
use std::collections::BTreeMap;
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

/// Multiple of its time after which a sample counts as stalled.
const STALLED: u32 = 8;
/// Longest access of figures over position: several of them make a segment.
const POSITION_ACCESS_MAX: u64 = 1 << 20;
/// Length of the shards of these figures, if the scratch space has room for some of them.
const PACK_BYTES: u64 = 64 << 20;
const SHARDS_MIN: u64 = 4;

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
        segment: 0,
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

/// Samples of throughput, by size or queue depth.
#[derive(Default)]
struct Samples(BTreeMap<u64, Vec<f64>>);

impl Samples {
    fn add(&mut self, at: u64, bytes_per_s: f64) {
        self.0.entry(at).or_default().push(bytes_per_s);
    }

    fn medians(self) -> Vec<Point> {
        let medians = self.0.into_iter().filter_map(|(at, mut samples)| {
            samples.sort_by(f64::total_cmp);
            samples.get(samples.len() / 2).map(|middle| Point { at, bytes_per_s: *middle })
        });
        medians.collect()
    }
}

struct Run<'a> {
    scratch: Scratch<'a>,
    options: Options,
    scratch_bytes: u64,
    began: Instant,
    /// Distance of two positions.
    segment: u64,
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
            let plan = Plan { bytes: page, access: page, order: Order::Ascending, depth: 1 };
            let written = self.scratch.write(plan, 0, deadline)?;
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
        let plan = Plan { bytes, access, order, depth };
        let Some(written) = self.scratch.write(plan, 0, deadline)? else {
            self.found.is_cut = true;
            return Ok(None);
        };
        self.scratch.delete(written.shard.name)?;
        Ok(Some(bytes as f64 / self.net_s(&written)))
    }

    fn write_sizes(&mut self) -> Result<()> {
        let sizes = self.sizes();
        let time = self.share(30) / (2 * sizes.len() as u32 * self.options.rounds);
        // A longer access is at least as fast as the one before, and a page at least as fast as a
        // shard with nothing else.
        let least = PAGE_BYTES as f64 / self.found.shard_s.max(1e-9);
        let mut samples = [Samples::default(), Samples::default()];
        for _ in 0..self.options.rounds {
            let mut expected = [least; 2];
            for access in &sizes {
                for (which, order) in [Order::Ascending, Order::Random].into_iter().enumerate() {
                    let found = self.sample_write(*access, order, 1, expected[which], time)?;
                    self.found.is_cut |= found.is_none();
                    if let Some(bytes_per_s) = found {
                        expected[which] = bytes_per_s;
                        samples[which].add(*access, bytes_per_s);
                    }
                }
            }
        }
        let [ascending, random] = samples;
        self.found.write_sizes = ascending.medians();
        self.found.write_sizes_random = random.medians();
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
        let mut depths = self.depths();
        let time = self.share(12) / (depths.len() as u32 * self.options.rounds);
        let at = |point: &&Point| point.at == access;
        let alone = self.found.write_sizes.iter().find(at).map_or(0.0, |it| it.bytes_per_s);
        let mut samples = Samples::default();
        for _ in 0..self.options.rounds {
            let mut expected = alone;
            for (number, depth) in depths.iter().enumerate() {
                let began = Instant::now();
                let found = self.sample_write(access, Order::Ascending, *depth, expected, time)?;
                let Some(bytes_per_s) = found else { break };
                expected = expected.max(bytes_per_s);
                samples.add(u64::from(*depth), bytes_per_s);
                // A target may stall beyond some depth. Once is enough, and deeper queues are no
                // better.
                if began.elapsed() > time * STALLED {
                    self.found.is_cut = true;
                    depths.truncate(number);
                    break;
                }
            }
        }
        self.found.write_depths = samples.medians();
        Ok(())
    }

    /// Fills the scratch space twice, with shards as long as usual packs. Returns the shards of the
    /// second time.
    fn write_positions(&mut self) -> Result<Vec<ScratchShard>> {
        let access = self.pool_access(&self.found.write_sizes).min(POSITION_ACCESS_MAX);
        let at = |point: &&Point| point.at == access;
        let speed = self.found.write_sizes.iter().find(at).map_or(0.0, |it| it.bytes_per_s);
        let affordable = (speed * self.share(10).as_secs_f64()) as u64;
        let bytes = affordable.min(self.scratch_bytes);
        let segment = (bytes / self.options.positions / access).max(1) * access;
        let positions = (bytes / segment).clamp(1, self.options.positions);
        let in_shard = (PACK_BYTES / segment).clamp(1, positions.div_ceil(SHARDS_MIN));
        (self.found.position_access_bytes, self.segment) = (access, segment);
        let depth = least_depth(&self.found.write_depths);
        for (is_queued, depth) in [(true, depth), (false, 1)] {
            let until = self.until(15);
            let (mut shards, mut points) = (Vec::new(), Vec::new());
            while (points.len() as u64) < positions {
                let first = points.len() as u64;
                if Instant::now() >= until && first > 0 {
                    self.found.is_cut = true;
                    break;
                }
                let bytes = in_shard.min(positions - first) * segment;
                let plan = Plan { bytes, access, order: Order::Ascending, depth };
                let Some(written) = self.scratch.write(plan, segment, self.until(100))? else {
                    self.found.is_cut = true;
                    break;
                };
                points.extend(self.segments(first * segment, &written));
                shards.push(written.shard);
            }
            match is_queued {
                true => self.found.write_positions_queued = points,
                false => self.found.write_positions = points,
            }
            if !is_queued {
                return Ok(shards);
            }
            self.scratch.clear()?;
        }
        Ok(Vec::new())
    }

    /// Returns the throughput of each segment of a shard. The time after the last write, such as that
    /// of a sync or an upload, is that of all segments alike.
    fn segments(&self, first: u64, written: &Written) -> Vec<Point> {
        let writes: Duration = written.segments.iter().sum();
        let rest = self.net_s(written) - writes.as_secs_f64();
        let rest = rest.max(0.0) / written.segments.len().max(1) as f64;
        let point = |(number, took): (u64, &Duration)| {
            let bytes_per_s = self.segment as f64 / (took.as_secs_f64() + rest).max(1e-9);
            Point { at: first + number * self.segment, bytes_per_s }
        };
        (0..).zip(&written.segments).map(point).collect()
    }

    fn read_sizes(&mut self, shards: &[ScratchShard]) -> Result<()> {
        let sizes = self.sizes();
        let time = self.share(12) / (sizes.len() as u32 * self.options.rounds);
        let mut samples = Samples::default();
        for _ in 0..self.options.rounds {
            let mut before = f64::INFINITY;
            for access in &sizes {
                // One access may take four times its share, as with writes.
                let is_slow = *access as f64 / before > 4.0 * time.as_secs_f64();
                let read = self.sample_reads(shards, *access, 1, time, is_slow)?;
                let Some(read) = read else { break };
                before = read.bytes as f64 / read.took.as_secs_f64().max(1e-9);
                samples.add(*access, before);
            }
        }
        self.found.read_sizes = samples.medians();
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
        let time = self.share(8) / (depths.len() as u32 * self.options.rounds);
        let mut samples = Samples::default();
        for _ in 0..self.options.rounds {
            for depth in &depths {
                let read = self.sample_reads(shards, access, *depth, time, false)?;
                let Some(read) = read else { break };
                let bytes_per_s = read.bytes as f64 / read.took.as_secs_f64().max(1e-9);
                samples.add(u64::from(*depth), bytes_per_s);
            }
        }
        self.found.read_depths = samples.medians();
        let reads = least_depth(&self.found.read_depths);
        self.found.depth = reads.max(least_depth(&self.found.write_depths));
        let page = PAGE_BYTES as u64;
        let mut samples = Samples::default();
        for _ in 0..self.options.rounds {
            let time = self.share(3) / self.options.rounds;
            let depth = DEPTH_DEFAULT as u32;
            let Some(pages) = self.sample_reads(shards, page, depth, time, false)? else { break };
            samples.add(page, pages.bytes as f64 / pages.took.as_secs_f64().max(1e-9));
        }
        if let Some(pages) = samples.medians().first() {
            self.found.request_s = page as f64 / pages.bytes_per_s;
        }
        Ok(())
    }

    fn read_positions(&mut self, shards: &[ScratchShard]) -> Result<()> {
        let (access, segment) = (self.found.position_access_bytes, self.segment);
        let depth = least_depth(&self.found.read_depths);
        for (is_queued, depth) in [(false, 1), (true, depth)] {
            let until = self.until(8);
            let mut points: Vec<Point> = Vec::new();
            for shard in shards {
                if Instant::now() >= until {
                    self.found.is_cut = true;
                    break;
                }
                let read = self.scratch.read_all(*shard, access, depth, segment)?;
                for took in read.segments {
                    let bytes_per_s = segment as f64 / took.as_secs_f64().max(1e-9);
                    points.push(Point { at: points.len() as u64 * segment, bytes_per_s });
                }
            }
            match is_queued {
                true => self.found.read_positions_queued = points,
                false => self.found.read_positions = points,
            }
        }
        Ok(())
    }
}
