//! `outlive-bench gate`: what holding outputs until their checkpoint costs a program, and how large
//! the buffer for them must be. It simulates, from recorded and synthetic traces; no clock, no disk.

mod buffer;
mod figures;
mod numbers;
mod release;
mod replay;
mod sectors;
mod seed;
mod study;
mod synthetic;
mod tables;
mod trace;

use crate::args::GateArgs;
use outlive_cli::numbers::size;
use outlive_cli::output::{Answer, Reporter};
use outlive_types::{Error, Result};
use std::path::Path;
use study::{Settings, Study};
use trace::Trace;

/// `outlive-bench gate`.
pub fn run(args: &GateArgs, reporter: &Reporter) -> Result<Answer> {
    let buffer_bytes = match &args.buffer {
        None => u64::MAX,
        Some(text) => size(text).map_err(|wrong| Error::invalid(format!("--buffer: {wrong}")))?,
    };
    let settings = Settings {
        delays_ms: args.delays_ms.clone(),
        intervals_ms: args.intervals_ms.clone(),
        commit_ms: args.commit_ms,
        buffer_bytes,
        disks: args.disks,
        service_ms: args.service_ms,
    };
    let mut traces = args.trace.iter().map(|file| read(file)).collect::<Result<Vec<Trace>>>()?;
    let of_seed = if args.no_synthetic { Vec::new() } else { synthetic::seed() };
    let seed = seed::rows(&of_seed);
    traces.extend(of_seed);
    if traces.is_empty() {
        return Err(Error::invalid("there is no trace: give --trace FILE, or no --no-synthetic"));
    }
    let mut studies = Vec::new();
    for trace in &traces {
        reporter.step("bench gate", &trace.name);
        studies.push(Study::new(trace, &settings));
    }
    reporter.finish();
    if let Some(folder) = &args.plot {
        std::fs::create_dir_all(folder)
            .map_err(|e| Error::io_named("making the folder for pictures", folder, &e))?;
        for (name, picture) in figures::all(&studies) {
            let file = folder.join(name);
            std::fs::write(&file, picture)
                .map_err(|e| Error::io_named("writing the picture", &file, &e))?;
        }
    }
    let text = tables::text(&studies, &seed, &settings);
    Ok(Answer::new(text, tables::json(&studies, &seed, &settings)))
}

fn read(file: &Path) -> Result<Trace> {
    let text = std::fs::read_to_string(file)
        .map_err(|e| Error::io_named("reading the trace", file, &e))?;
    let name = file.file_stem().unwrap_or(file.as_os_str()).to_string_lossy();
    Trace::parse(&name, &text).map_err(|e| e.context(file.display()))
}
