//! `outlive-bench memory`: the memory that saves need in addition to the state, against the
//! promised bounds.

use super::machine::{reset_peak, resident};
use super::report::{Goal, Report, Unit};
use super::{Bench, gib_bytes, state};
use crate::args::MemoryArgs;
use outlive_cli::output::bytes;
use outlive_types::{Error, Result, SeededRng, pages_of};

const MIB: u64 = 1 << 20;
/// Bounds of the design: page tree and hashes, for each GiB of state.
const PER_GIB_BYTES: u64 = 6 * MIB;

pub fn run(mut bench: Bench, args: &MemoryArgs) -> Result<Report> {
    let total_bytes = gib_bytes(args.gib);
    bench.step("making the state");
    let mut source = state::source(total_bytes, 8)?;
    let pool = state::pool(&bench.scratch.join("pool"))?;
    let job = state::job(&pool)?;
    let tuning = pool.config().tuning.clone();
    let tree_bytes = (PER_GIB_BYTES as f64 * total_bytes as f64 / (1u64 << 30) as f64) as u64;
    let bound =
        tuning.staging_bytes + tuning.freeze_bytes_max + tuning.index_bytes_max + tree_bytes;
    if !reset_peak() {
        return Err(Error::invalid(
            "this system does not let a process reset its peak memory (/proc/self/clear_refs)",
        ));
    }
    let before = resident().now_bytes;
    let rng = SeededRng::new(9);
    let goal = Goal::AtMost(bound as f64);
    let pages = pages_of(total_bytes);
    for (what, dirty) in [
        ("first save", 0),
        ("one page changed", 1),
        ("1 % of pages changed", pages / 100),
        ("all pages changed", pages),
    ] {
        bench.step(what);
        let state = state::edit(&mut source)?;
        if dirty == pages {
            state::fill(state, 10);
        } else {
            for _ in 0..dirty {
                state::change_page(state, rng.below(pages), &rng);
            }
        }
        reset_peak();
        state::save(&job, &mut source)?;
        let peak = resident().peak_bytes.saturating_sub(before) as f64;
        bench.report.goal(format!("peak beyond the state: {what}"), peak, Unit::Bytes, goal);
    }
    let kept = resident().now_bytes.saturating_sub(before) as f64;
    bench.report.add("kept between saves", kept, Unit::Bytes);
    let staging = pool.staging().peak_bytes() as f64;
    bench.report.add("  staging buffers of it", staging, Unit::Bytes);
    let hashes = source.tracker().memory_bytes() as f64;
    bench.report.add("  page hashes of it", hashes, Unit::Bytes);
    let spare = source.tracker().spare_bytes() as f64;
    bench.report.add("  frozen copies' buffers of it", spare, Unit::Bytes);
    bench.report.note(format!(
        "{} GiB of state, resident {} before the first save. The bound: staging {} + frozen copies {} \
         + index {} + page tree and hashes {} (6 MiB a GiB).",
        args.gib,
        bytes(before),
        bytes(tuning.staging_bytes),
        bytes(tuning.freeze_bytes_max),
        bytes(tuning.index_bytes_max),
        bytes(tree_bytes)
    ));
    job.close()?;
    Ok(bench.report)
}
