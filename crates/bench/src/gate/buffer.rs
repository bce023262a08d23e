//! Experiment II: how large the buffer of a gate must be. Operations keep their recorded times.

use super::release::Release;
use super::sectors::{SECTOR_BYTES, Sector, flushed, touched};
use super::trace::{Trace, What};
use std::collections::{HashMap, VecDeque};

/// Where a gate takes writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// At the program's calls, above the page cache.
    Calls,
    /// At the disk, below the page cache, as in the seed.
    Disk,
}

/// The content of a buffer over a trace.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Held {
    /// Most bytes at a time.
    pub peak_bytes: u64,
    /// Mean over the time of the trace.
    pub mean_bytes: f64,
    /// Bytes of all writes, in whole sectors.
    pub written_bytes: u64,
    /// Of these, bytes that replaced others of the same checkpoint, and so took no room.
    pub coalesced_bytes: u64,
    /// Bytes of all reads, in whole sectors.
    pub read_bytes: u64,
    /// Of these, bytes whose newest version was in the buffer.
    pub hit_bytes: u64,
}

/// Returns what a buffer holds if each write stays until its release.
///
/// A write replaces an older one of the same sector only if the same checkpoint covers both:
/// otherwise the older one must reach the disk by itself.
pub fn hold(trace: &Trace, place: Place, release: Release) -> Held {
    let mut buffer = Buffer::default();
    let flushes = if place == Place::Disk { flushed(trace) } else { Vec::new() };
    for (at, operation) in trace.operations.iter().enumerate() {
        let now_ns = operation.start_ns;
        buffer.let_go(now_ns);
        match (operation.what, place) {
            (What::Write(range) | What::Durable(range), Place::Calls) => {
                buffer.take(touched(range), now_ns, release);
            }
            (What::Sync { .. } | What::Durable(_), Place::Disk) => {
                buffer.take(flushes[at].iter().copied(), now_ns, release);
            }
            (What::Read(range), _) => {
                for sector in touched(range) {
                    buffer.held.read_bytes += SECTOR_BYTES;
                    let hit = buffer.newest_ns.get(&sector).is_some_and(|until| *until > now_ns);
                    buffer.held.hit_bytes += u64::from(hit) * SECTOR_BYTES;
                }
            }
            _ => {}
        }
    }
    buffer.let_go(u64::MAX);
    let end_ns = trace.length_ns().max(buffer.last_ns);
    buffer.held.mean_bytes = buffer.byte_ns / end_ns.max(1) as f64;
    buffer.held
}

#[derive(Default)]
struct Buffer {
    bytes: u64,
    /// Bytes that go at each time, in order.
    goes: VecDeque<(u64, u64)>,
    /// When the newest version of each sector goes.
    newest_ns: HashMap<Sector, u64>,
    /// Time up to which `byte_ns` counts.
    last_ns: u64,
    byte_ns: f64,
    held: Held,
}

impl Buffer {
    fn count_until(&mut self, now_ns: u64) {
        self.byte_ns += self.bytes as f64 * (now_ns - self.last_ns) as f64;
        self.last_ns = now_ns;
    }

    fn let_go(&mut self, now_ns: u64) {
        while let Some((at_ns, bytes)) = self.goes.front().copied().filter(|(at, _)| *at <= now_ns)
        {
            self.count_until(at_ns);
            self.bytes -= bytes;
            self.goes.pop_front();
        }
    }

    fn take(&mut self, sectors: impl Iterator<Item = Sector>, now_ns: u64, release: Release) {
        self.count_until(now_ns);
        let goes_ns = release.at(now_ns);
        let mut new_bytes = 0;
        for sector in sectors {
            self.held.written_bytes += SECTOR_BYTES;
            if self.newest_ns.insert(sector, goes_ns) == Some(goes_ns) {
                self.held.coalesced_bytes += SECTOR_BYTES;
            } else {
                new_bytes += SECTOR_BYTES;
            }
        }
        self.bytes += new_bytes;
        self.held.peak_bytes = self.held.peak_bytes.max(self.bytes);
        match self.goes.back_mut() {
            Some((at_ns, bytes)) if *at_ns == goes_ns => *bytes += new_bytes,
            _ => self.goes.push_back((goes_ns, new_bytes)),
        }
    }
}

/// Time until a buffer is full if nothing leaves it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fill {
    pub mean_ns: f64,
    pub shortest_ns: u64,
}

/// Fills a buffer with all writes of the program, empties it when the next one has no room, and so
/// on. A trace that is too short for one fill is repeated. Returns nothing if it has no writes.
pub fn time_to_fill(trace: &Trace, buffer_bytes: u64) -> Option<Fill> {
    let writes: Vec<(u64, u64)> =
        trace.writes().map(|(at_ns, range)| (at_ns, range.bytes)).collect();
    let total_bytes: u64 = writes.iter().map(|(_, bytes)| bytes).sum();
    if total_bytes == 0 {
        return None;
    }
    // Repetitions that surely leave the buffer empty are not walked through.
    let skipped = (buffer_bytes / total_bytes).saturating_sub(1);
    let (mut fills, mut sum_ns, mut shortest_ns) = (0u64, 0u64, u64::MAX);
    let (mut bytes, mut since_ns) = (skipped * total_bytes, 0u64);
    for round in skipped.. {
        let round_ns = round.saturating_mul(trace.length_ns());
        for (at_ns, more) in &writes {
            if bytes + more > buffer_bytes && bytes > 0 {
                let now_ns = round_ns.saturating_add(*at_ns);
                let took_ns = now_ns - since_ns;
                (fills, sum_ns) = (fills + 1, sum_ns.saturating_add(took_ns));
                shortest_ns = shortest_ns.min(took_ns);
                (bytes, since_ns) = (0, now_ns);
            }
            bytes += more;
        }
        if fills > 0 {
            break;
        }
    }
    Some(Fill { mean_ns: sum_ns as f64 / fills as f64, shortest_ns })
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::{self, WRITE_BYTES, serial};
    use super::*;

    const AFTER_100_US: Release = Release::After { ns: 100_000 };
    const EVERY_100_US: Release = Release::Checkpoints { every_ns: 100_000, commit_ns: 0 };

    fn trace(lines: &str) -> Trace {
        Trace::parse("test", &format!("outlive-io-trace 1\n{lines}")).unwrap()
    }

    #[test]
    fn the_peak_is_that_of_a_trace_by_hand() {
        // 2 and 1 sectors overlap from 50 to 100; a third write comes when the first has gone.
        let trace = trace("0 0 write 0 0 1024 1\n50 0 write 0 4096 512 1\n100 0 write 1 0 512 1\n");
        let held = hold(&trace, Place::Calls, AFTER_100_US);
        assert_eq!((held.peak_bytes, held.written_bytes, held.coalesced_bytes), (1536, 2048, 0));
        // 1024 for 100, 512 for 100, 512 for 100 of 200 us.
        assert!((held.mean_bytes - 1024.0).abs() < 1e-9, "{}", held.mean_bytes);
    }

    #[test]
    fn only_writes_of_one_checkpoint_coalesce() {
        let trace = trace(
            "0 0 write 0 0 1024 1\n10 0 write 0 512 1024 1\n90 0 write 1 512 512 1\n\
             120 0 write 0 512 512 1\n",
        );
        let held = hold(&trace, Place::Calls, EVERY_100_US);
        assert_eq!((held.written_bytes, held.coalesced_bytes), (3072, 512));
        assert_eq!(held.peak_bytes, 2048);
        // Without checkpoints each write stays by itself.
        let held = hold(&trace, Place::Calls, AFTER_100_US);
        assert_eq!((held.coalesced_bytes, held.peak_bytes), (0, 2560));
    }

    #[test]
    fn a_read_hits_what_is_held() {
        let trace = trace(
            "0 0 write 0 0 1024 1\n50 0 read 0 512 1024 1\n60 0 read 1 0 512 1\n\
             99 0 read 0 0 512 1\n100 0 read 0 0 512 1\n",
        );
        let held = hold(&trace, Place::Calls, AFTER_100_US);
        assert_eq!((held.read_bytes, held.hit_bytes), (2560, 1024));
    }

    #[test]
    fn a_gate_at_the_disk_sees_syncs() {
        let trace = trace(
            "0 0 write 0 0 512 1\n10 0 write 0 0 512 1\n20 0 sync 0 - - 5\n30 0 write 0 0 512 1\n",
        );
        assert_eq!(hold(&trace, Place::Disk, AFTER_100_US).written_bytes, 512);
        assert_eq!(hold(&trace, Place::Calls, AFTER_100_US).written_bytes, 1536);
    }

    #[test]
    fn the_mean_follows_littles_law() {
        for trace in &synthetic::seed()[1..] {
            let held = hold(trace, Place::Disk, Release::After { ns: 4_000_000 });
            let rate = held.written_bytes as f64 / (trace.length_ns() as f64 + 4e6);
            assert!((held.mean_bytes / (rate * 4e6) - 1.0).abs() < 1e-3, "{}", trace.name);
        }
    }

    #[test]
    fn a_longer_validation_needs_no_smaller_buffer() {
        for trace in synthetic::seed() {
            let mut before = 0;
            for ms in [1, 2, 4, 8, 16, 1000] {
                let release = Release::After { ns: ms * 1_000_000 };
                let peak = hold(&trace, Place::Disk, release).peak_bytes;
                assert!(peak >= before && peak >= WRITE_BYTES, "{}: {ms} ms", trace.name);
                before = peak;
            }
        }
    }

    #[test]
    fn a_buffer_fills_at_the_rate_of_the_writes() {
        let trace = serial("x", 100, 1_000_000, 0);
        let fill = |buffer_bytes| time_to_fill(&trace, buffer_bytes).unwrap();
        // Each write after 1 ms. The first fill begins with the trace, others with a write.
        assert_eq!(fill(10 * WRITE_BYTES).shortest_ns, 10_000_000);
        assert!((fill(10 * WRITE_BYTES).mean_ns / 1e7 - 1.0).abs() < 0.02);
        // Longer than the trace, which is repeated.
        assert_eq!(fill(1000 * WRITE_BYTES).shortest_ns, 1_001_000_000);
        assert_eq!(time_to_fill(&self::trace("0 0 sync 0 - - 1\n"), 4096), None);
        // One byte in days: longer than any number of nanoseconds, and not endless.
        let slow = self::trace("1000000000000 0 write 0 0 1 1\n");
        assert_eq!(time_to_fill(&slow, 1 << 40).unwrap().shortest_ns, u64::MAX);
    }
}
