//! Wrappers that make a target or a log as slow as another one would be.

use crate::Target;
use crate::operation::Manner;
use crate::wrapped::{WrappedMedium, WrappedTarget};
use outlive_io::{SystemTimer, Timer};
use outlive_log::LogMedium;
use outlive_types::sync::plain::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A speed limit. The bytes of all operations share one line; latencies overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Throttle {
    /// Bytes per second, of writes and reads together; `None` is no limit.
    pub bytes_per_s: Option<u64>,
    /// Extra time for every operation.
    pub latency: Duration,
}

/// A throttle in use.
#[derive(Debug)]
pub struct Line {
    throttle: Throttle,
    busy_until: Mutex<Instant>,
}

impl Line {
    fn new(throttle: Throttle) -> Arc<Line> {
        Arc::new(Line { throttle, busy_until: Mutex::new(Instant::now()) })
    }
}

impl Manner for Line {
    fn timer(&self) -> &dyn Timer {
        &SystemTimer
    }

    /// Returns the time that an operation on `bytes` bytes takes.
    fn delay(&self, bytes: usize) -> Duration {
        let now = Instant::now();
        let mut until = now;
        if let Some(bytes_per_s) = self.throttle.bytes_per_s {
            let takes = Duration::from_secs_f64(bytes as f64 / bytes_per_s.max(1) as f64);
            let mut busy_until = self.busy_until.lock();
            until = now.max(*busy_until) + takes;
            *busy_until = until;
        }
        until - now + self.throttle.latency
    }
}

/// A slower target. It keeps buffers as long as the slow medium would, so back-pressure is real.
pub type ThrottledTarget = WrappedTarget<Line>;

impl ThrottledTarget {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Target>, throttle: Throttle) -> ThrottledTarget {
        WrappedTarget::with(inner, Line::new(throttle))
    }
}

/// A medium of records that is slower.
pub type ThrottledMedium = WrappedMedium<Line>;

impl ThrottledMedium {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn LogMedium>, throttle: Throttle) -> ThrottledMedium {
        WrappedMedium::with(inner, Line::new(throttle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryTarget, ShardName};
    use outlive_io::StagingPool;
    use outlive_types::{PackId, SessionId};

    #[test]
    fn the_line_sets_the_pace_and_buffers_wait_with_it() {
        let throttle = Throttle { bytes_per_s: Some(10 << 20), latency: Duration::from_millis(1) };
        let target = ThrottledTarget::new(Arc::new(MemoryTarget::new()), throttle);
        let pool = StagingPool::new(2 << 16, 1 << 16);
        let shard = ShardName { pack: PackId::new(SessionId([1; 12]), 0, 1), shard: 0 };
        let started = Instant::now();
        let mut writer = target.create(shard, 1 << 20).unwrap();
        let tickets: Vec<_> =
            (0..16).map(|index| writer.write(index << 16, pool.take().share())).collect();
        // At most 2 of 16 buffers are in flight, so 14 have passed the line: 87 ms.
        assert!(started.elapsed() >= Duration::from_millis(80), "{:?}", started.elapsed());
        writer.finish(1 << 20).wait().unwrap();
        assert!(started.elapsed() >= Duration::from_millis(100));
        assert!(tickets.into_iter().all(|ticket| ticket.wait().is_ok()));
    }
}
