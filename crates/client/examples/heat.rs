//! A program that outlives its failures, written like one in C or with MPI: it names its memory
//! once, restores at its start, and saves as it goes.
//!
//!     cargo run -p outlive-client --example heat -- /tmp/heat 1000
#![allow(unsafe_code)] // the example hands over its own memory

use outlive_capture::{Region, fill::MutRegion};
use outlive_client::{Client, End, NamedMemory, WritePermit};
use outlive_pool::{Environment, open_or_create};
use outlive_store::{JobOptions, SaveNotes, Select};
use outlive_types::{Distribution, Result};
use std::path::Path;
use std::sync::Arc;

const CELLS: usize = 100_000;

/// Runs from the point that the last run reached up to step `until`. Returns the step it began
/// with, and the temperatures.
pub fn run(dir: &Path, until: u64) -> Result<(u64, Vec<f64>)> {
    let pool = open_or_create(dir, Environment::system())?;
    let client = Client::open(&pool, "heat", JobOptions::default())?;
    let mut cells = vec![0.0_f64; CELLS];
    let mut step = [0_u64];
    cells[CELLS / 2] = 1e6;

    let bytes = CELLS * size_of::<f64>();
    let (cells_at, step_at) = (cells.as_mut_ptr().cast::<u8>(), step.as_mut_ptr().cast::<u8>());
    let target = |name: &str, dtype: &str, length: usize, start: *mut u8, bytes: usize| {
        let (name, dtype, shape) = (name.to_owned(), dtype.to_owned(), vec![length as u64]);
        // SAFETY: the vectors are initialised, and nothing uses them before `restore_named` has
        // returned.
        let memory = unsafe { MutRegion::from_raw(start, bytes) };
        NamedMemory { name, dtype, shape, memory, distribution: Distribution::Local }
    };
    let permit = Arc::new(WritePermit::default());
    client.restore_named(Select::Newest, &permit, &mut || {
        vec![target("cells", "<f8", CELLS, cells_at, bytes), target("step", "<u8", 1, step_at, 8)]
    })?;
    permit.withdraw();

    let begun = step[0];
    while step[0] < until {
        let before = cells.clone();
        for at in 1..CELLS - 1 {
            cells[at] += 0.25 * (before[at - 1] - 2.0 * before[at] + before[at + 1]);
        }
        step[0] += 1;
        if step[0].is_multiple_of(10) {
            let region =
                |name: &str, dtype: &str, length: usize, start: *const u8, bytes: usize| {
                    // SAFETY: nothing writes the vectors before `save` has returned.
                    unsafe { Region::from_raw(name, dtype, vec![length as u64], start, bytes) }
                };
            let regions = vec![
                region("cells", "<f8", CELLS, cells.as_ptr().cast(), bytes),
                region("step", "<u8", 1, step.as_ptr().cast(), 8),
            ];
            // The program goes on while the checkpoint is written; the next save waits, if it must.
            client.save(regions, Vec::new(), SaveNotes::default())?;
        }
    }
    client.close(End::Together)?;
    Ok((begun, cells))
}

#[allow(dead_code)] // a test includes this file
fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().unwrap_or_else(|| "heat-checkpoints".to_owned());
    let until = args.next().and_then(|steps| steps.parse().ok()).unwrap_or(100);
    let (begun, cells) = run(Path::new(&dir), until)?;
    let warm = cells.iter().filter(|cell| **cell > 0.0).count();
    println!("steps {begun} to {until}: {warm} cells are warm");
    Ok(())
}
