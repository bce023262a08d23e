//! Traces that stand beside the recorded ones: the seed's mean write intervals, and its TPC-C.

use super::trace::{Operation, Range, Trace, What};

/// Mean intervals between disk writes that the seed measured, in milliseconds.
pub const SEED_INTERVALS_MS: [(&str, f64); 3] =
    [("seed SPECmail", 13.0), ("seed SPECweb", 151.0), ("seed TPC-B", 3511.0)];
/// Time of a disk write without a gate: the smaller of the seed's two.
pub const SEED_SERVICE_MS: f64 = 0.04;
/// Compute between two writes that makes TPC-C 5.8 times slower if a write takes 4 instead of
/// 0.04 ms: `(c + 4) / (c + 0.04) = 5.8`.
pub const SEED_TPCC_COMPUTE_MS: f64 = 0.785;
/// A block of a database.
pub const WRITE_BYTES: u64 = 8192;
const FILE_BYTES: u64 = 1 << 30;

/// Returns one flow of serial durable writes, with the same computing before each.
pub fn serial(name: &str, writes: u64, compute_ns: u64, service_ns: u64) -> Trace {
    flows(name, 1, writes, service_ns, |_| compute_ns)
}

/// Returns flows side by side, each of serial durable writes to a file of its own.
pub fn flows(
    name: &str,
    count: u32,
    writes: u64,
    service_ns: u64,
    mut compute_ns: impl FnMut(u64) -> u64,
) -> Trace {
    let mut operations = Vec::new();
    for flow in 0..count {
        let mut now_ns = 0;
        for number in 0..writes {
            now_ns += compute_ns(number);
            let offset = number * WRITE_BYTES % FILE_BYTES;
            let range = Range { file: flow, offset, bytes: WRITE_BYTES };
            let what = What::Durable(range);
            operations.push(Operation { start_ns: now_ns, took_ns: service_ns, flow, what });
            now_ns += service_ns;
        }
    }
    operations.sort_by_key(|o| (o.start_ns, o.flow));
    let program = format!("synthetic, flows: {count}, writes of each: {writes}");
    Trace { name: name.to_owned(), program, flows: count, operations }
}

/// Returns writes whose intervals have this mean and an exponential distribution, as of many
/// independent users.
pub fn random(name: &str, writes: u64, mean_ms: f64) -> Trace {
    let mut random = 88_172_645_463_325_252u64;
    let service_ns = (SEED_SERVICE_MS * 1e6) as u64;
    flows(name, 1, writes, service_ns, |_| {
        // xorshift, so that every run sees the same trace.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let share = ((random >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        ((-share.ln() * mean_ms * 1e6) as u64).saturating_sub(service_ns)
    })
}

/// Returns the four traces of the seed's workloads.
pub fn seed() -> Vec<Trace> {
    const WRITES: u64 = 4000;
    let ns = |ms: f64| (ms * 1e6) as u64;
    let tpcc = serial("seed TPC-C", WRITES, ns(SEED_TPCC_COMPUTE_MS), ns(SEED_SERVICE_MS));
    let mut traces = vec![tpcc];
    traces.extend(SEED_INTERVALS_MS.iter().map(|(name, ms)| random(name, WRITES, *ms)));
    traces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_the_mean_of_the_seed() {
        for (trace, (name, mean_ms)) in seed()[1..].iter().zip(SEED_INTERVALS_MS) {
            assert_eq!(trace.name, name);
            let mean = trace.length_ns() as f64 / trace.operations.len() as f64 / 1e6;
            assert!((mean / mean_ms - 1.0).abs() < 0.05, "{name}: {mean} ms");
            assert_eq!(*trace, seed().into_iter().find(|t| t.name == name).unwrap());
        }
    }

    #[test]
    fn flows_are_serial_and_stand_side_by_side() {
        let trace = flows("x", 3, 2, 10, |_| 100);
        let starts: Vec<u64> = trace.operations.iter().map(|o| o.start_ns).collect();
        assert_eq!(starts, [100, 100, 100, 210, 210, 210]);
        assert_eq!(trace.length_ns(), 220);
    }
}
