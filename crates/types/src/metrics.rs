//! Process metrics, for operators: named counters, gauges and histograms with units.
//!
//! A new one is a line in the table at the end, and a call where its value arises. Names and units
//! are those of Prometheus (<https://prometheus.io/docs/practices/naming/>); [`text`] writes its
//! format. All values are of the whole process, so they add up over jobs and pools. A forked child
//! goes on from the values of its parent.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A sum that only rises. Its name ends with `_total`.
#[derive(Debug)]
pub struct Counter {
    name: &'static str,
    help: &'static str,
    value: AtomicU64,
}

/// A value that rises and falls. It has none before it is set.
#[derive(Debug)]
pub struct Gauge {
    name: &'static str,
    help: &'static str,
    value: AtomicU64,
}

/// Durations, counted by size. Its name ends with `_seconds`.
#[derive(Debug)]
pub struct Histogram {
    name: &'static str,
    help: &'static str,
    /// Number of durations up to each of [`BOUNDS_US`], and of longer ones.
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
}

/// Upper bounds of a histogram, in microseconds: from 100 µs to 28 minutes, each four times the one
/// before.
const BOUNDS_US: [u64; 13] = {
    let mut bounds = [100; 13];
    let mut number = 1;
    while number < bounds.len() {
        bounds[number] = bounds[number - 1] * 4;
        number += 1;
    }
    bounds
};

/// A value of a metric at one moment.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// The value of a counter.
    Counter(u64),
    /// The value of a gauge.
    Gauge(u64),
    /// The durations of a histogram.
    Histogram {
        /// Upper bound of each bucket in seconds, and the number of durations up to it.
        buckets: Vec<(f64, u64)>,
        /// Number of all durations.
        count: u64,
        /// Their sum in seconds.
        sum_s: f64,
    },
}

/// A metric with its value.
#[derive(Clone, PartialEq, Debug)]
pub struct NamedValue {
    /// Full name, with the unit: `outlive_save_seconds`.
    pub name: String,
    /// One sentence about it.
    pub help: &'static str,
    /// The value.
    pub value: Value,
}

/// The content of a gauge that was never set.
const UNSET: u64 = u64::MAX;

/// A metric of any kind.
trait Metric: Sync {
    /// Returns its value; `None` for a gauge that was never set.
    fn named(&self) -> Option<NamedValue>;
}

impl Counter {
    const fn new(name: &'static str, help: &'static str) -> Counter {
        Counter { name, help, value: AtomicU64::new(0) }
    }

    /// Adds to the sum.
    pub fn add(&self, more: u64) {
        self.value.fetch_add(more, Ordering::Relaxed);
    }

    /// Returns the sum.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

impl Gauge {
    const fn new(name: &'static str, help: &'static str) -> Gauge {
        Gauge { name, help, value: AtomicU64::new(UNSET) }
    }

    /// Replaces the value.
    pub fn set(&self, value: u64) {
        self.value.store(value.min(UNSET - 1), Ordering::Relaxed);
    }
}

impl Histogram {
    const fn new(name: &'static str, help: &'static str) -> Histogram {
        let counts = [const { AtomicU64::new(0) }; BOUNDS_US.len() + 1];
        Histogram { name, help, counts, sum_ns: AtomicU64::new(0) }
    }

    /// Counts a duration.
    pub fn note(&self, time: Duration) {
        let fits = |bound: &u64| time <= Duration::from_micros(*bound);
        let bucket = BOUNDS_US.iter().position(fits).unwrap_or(BOUNDS_US.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

impl Metric for Counter {
    fn named(&self) -> Option<NamedValue> {
        let name = format!("outlive_{}_total", self.name);
        Some(NamedValue { name, help: self.help, value: Value::Counter(self.get()) })
    }
}

impl Metric for Gauge {
    fn named(&self) -> Option<NamedValue> {
        let value = self.value.load(Ordering::Relaxed);
        let name = format!("outlive_{}", self.name);
        (value != UNSET).then_some(NamedValue { name, help: self.help, value: Value::Gauge(value) })
    }
}

impl Metric for Histogram {
    fn named(&self) -> Option<NamedValue> {
        let mut count = 0;
        let mut cumulated = |(number, bound): (usize, &u64)| {
            count += self.counts[number].load(Ordering::Relaxed);
            (*bound as f64 / 1e6, count)
        };
        let buckets = BOUNDS_US.iter().enumerate().map(&mut cumulated).collect();
        count += self.counts[BOUNDS_US.len()].load(Ordering::Relaxed);
        let sum_s = self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9;
        let value = Value::Histogram { buckets, count, sum_s };
        Some(NamedValue { name: format!("outlive_{}_seconds", self.name), help: self.help, value })
    }
}

/// Returns all metrics with their values, in the order of the table. Leaves out gauges that were
/// never set.
pub fn values() -> Vec<NamedValue> {
    ALL.iter().filter_map(|metric| metric.named()).collect()
}

/// Returns the two lines before the values of a metric, in the text format of Prometheus, version
/// 0.0.4. The kind is `counter`, `gauge` or `histogram`.
pub fn head(name: &str, help: &str, kind: &str) -> String {
    format!("# HELP {name} {help}\n# TYPE {name} {kind}\n")
}

/// Returns a label in the same format: its name, and any text in quotes.
pub fn label(name: &str, value: &str) -> String {
    let escaped = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    format!("{name}=\"{escaped}\"")
}

/// Returns all metrics in the text format of Prometheus, version 0.0.4. Each value gets the label,
/// a name and a text.
pub fn text(own_label: Option<(&str, &str)>) -> String {
    let own_label = own_label.map(|(name, value)| label(name, value));
    let own = own_label.as_ref().map_or(String::new(), |label| format!("{{{label}}}"));
    let before = own_label.map_or(String::new(), |label| format!("{label},"));
    let mut text = String::new();
    for NamedValue { name, help, value } in values() {
        let kind = match value {
            Value::Counter(_) => "counter",
            Value::Gauge(_) => "gauge",
            Value::Histogram { .. } => "histogram",
        };
        text.push_str(&head(&name, help, kind));
        // A write to a string cannot fail.
        let _ = match value {
            Value::Counter(value) | Value::Gauge(value) => writeln!(text, "{name}{own} {value}"),
            Value::Histogram { buckets, count, sum_s } => {
                for (bound, count) in buckets {
                    let _ = writeln!(text, "{name}_bucket{{{before}le=\"{bound}\"}} {count}");
                }
                writeln!(
                    text,
                    "{name}_bucket{{{before}le=\"+Inf\"}} {count}\n{name}_sum{own} {sum_s}\n\
                     {name}_count{own} {count}"
                )
            }
        };
    }
    text
}

/// Makes a static of each metric, and the list of all.
macro_rules! metrics {
    ($($metric:ident: $kind:ident = $name:literal, $help:literal;)*) => {
        $(#[doc = $help] pub static $metric: $kind = $kind::new($name, $help);)*
        static ALL: &[&dyn Metric] = &[$(&$metric),*];
    };
}

metrics! {
    SAVES: Counter = "saves", "Checkpoints that saves and puts committed, one for each rank; copies do not count.";
    SAVES_FAILED: Counter = "saves_failed", "Saves and puts that failed after they began.";
    SAVE_STATE: Counter = "save_state_bytes", "Bytes of all regions of the saves.";
    SAVE_CHANGED: Counter = "save_changed_bytes", "Bytes of pages that had changed since the save before, and of files that puts read.";
    SAVE_KNOWN: Counter = "save_known_bytes", "Bytes of chunks that were stored already.";
    SAVE_WRITTEN: Counter = "save_written_bytes", "Bytes that saves wrote to targets and log, without redundancy.";
    SAVE_STALL: Histogram = "save_stall", "Time for which the program stood still for a save.";
    SAVE_TIME: Histogram = "save", "Time from the call of a save to its commit.";
    LAST_COMMIT: Gauge = "last_commit_timestamp_seconds", "Time of the newest commit, in seconds since 1970.";
    RESTORES: Counter = "restores", "Restores of memory that gave a checkpoint.";
    RESTORE_SKIPPED: Counter = "restore_skipped_checkpoints", "Checkpoints that restores passed over.";
    RESTORED: Counter = "restored_bytes", "Bytes of memory that restores filled, zeros included.";
    RESTORE_READ: Counter = "restore_read_bytes", "Bytes that restores of memory read from the targets.";
    GCS: Counter = "gcs", "Gcs that ended well.";
    GC_DELETED: Counter = "gc_deleted_bytes", "Bytes of packs that gcs deleted.";
    GC_WRITTEN: Counter = "gc_written_bytes", "Bytes that gcs wrote: what was in use of packs that they deleted, and lists.";
    GC_HELD: Gauge = "gc_held_bytes", "Bytes that the newest gc left, since programs may need them.";
    SCRUB_READ: Counter = "scrub_read_bytes", "Bytes of packs that scrubs have found whole.";
    SCRUB_REPAIRED: Counter = "scrub_repaired_shards", "Shards that scrubs rewrote.";
    SCRUB_DAMAGED: Gauge = "scrub_damaged_packs", "Packs that the newest scrub found damaged.";
    REPAIR_SHARDS: Counter = "repair_shards", "Shards that repairs made new.";
    REPAIR_WRITTEN: Counter = "repair_written_bytes", "Bytes of the shards that repairs made new or moved.";
    REPAIR_MISSING: Gauge = "repair_missing_shards", "Shards that the newest repair found no target for.";
    FILL_SHARDS: Counter = "fill_shards", "Shards copied to the slow tier.";
    FILL_COPIED: Counter = "fill_copied_bytes", "Bytes copied to the slow tier.";
    FILL_LEFT: Gauge = "fill_left_shards", "Shards that the slow tier lacked after the newest `pool fill`.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_plain() {
        let names: Vec<String> = values().into_iter().map(|named| named.name).collect();
        for (number, name) in names.iter().enumerate() {
            assert!(!names[..number].contains(name), "{name}");
            let fits = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(name.starts_with("outlive_") && name.chars().all(fits), "{name}");
        }
        for named in values() {
            assert!(named.help.ends_with('.') && !named.help.contains('\n'), "{}", named.name);
        }
    }

    #[test]
    fn durations_are_counted_by_size() {
        let histogram = Histogram::new("x", "A test.");
        for us in [0, 100, 101, 400, 5_000_000] {
            histogram.note(Duration::from_micros(us));
        }
        histogram.note(Duration::from_secs(3600));
        let NamedValue { name, value, .. } = histogram.named().unwrap();
        assert_eq!(name, "outlive_x_seconds");
        let Value::Histogram { buckets, count, sum_s } = value else { panic!() };
        assert_eq!(buckets[0], (0.0001, 2));
        assert_eq!(buckets[1], (0.0004, 4));
        assert_eq!(buckets.last().unwrap(), &(1677.7216, 5));
        assert_eq!((count, (sum_s * 1e6).round() as u64), (6, 3_605_000_601));
    }

    #[test]
    fn the_text_is_that_of_prometheus() {
        SAVE_TIME.note(Duration::from_millis(2));
        let text = text(None);
        assert!(text.contains("# TYPE outlive_saves_total counter\noutlive_saves_total "));
        assert!(!text.contains("outlive_gc_held_bytes"), "it was never set");
        GC_HELD.set(7);
        let text = self::text(None);
        assert!(text.contains("# TYPE outlive_gc_held_bytes gauge\noutlive_gc_held_bytes 7\n"));
        assert!(text.contains("outlive_save_seconds_bucket{le=\"0.0001\"} "));
        assert!(text.contains("outlive_save_seconds_bucket{le=\"+Inf\"} "));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(name.starts_with("outlive_") && value.parse::<f64>().is_ok(), "{line}");
        }
        assert!(text.ends_with('\n'));
        let text = self::text(Some(("file", "a \"\\\n.prom")));
        assert!(text.contains("\noutlive_saves_total{file=\"a \\\"\\\\\\n.prom\"} "), "{text}");
        assert!(text.contains("_bucket{file=\"a \\\"\\\\\\n.prom\",le=\"+Inf\"} "), "{text}");
    }
}
