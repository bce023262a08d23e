//! `outlive-bench metadata`: the page tree beside the two structures that the paper on Rainbow's
//! pageserver compares in its section V, an in-place array and a hash table.

mod array;
mod marks;
mod regions;
mod space;
mod structure;
mod table;
mod tables;
mod tree;

use super::report::{Goal, Report, Unit};
use super::{Bench, gib_bytes, machine, median, state};
use crate::args::MetadataArgs;
use array::InPlaceArray;
use outlive_cli::numbers::size;
use outlive_cli::output::Answer;
use outlive_types::{Error, PAGE_BYTES, Result, SeededRng};
use space::{Kind, Space};
use std::time::Instant;
use structure::{ENTRY_BYTES, Structure};
use table::{HashTable, SLOT_BYTES};
use tables::{Rounds, Row, Study};
use tree::StoredTree;

/// Most bytes of metadata for each page of a dense space, with the locations of chunks.
const DENSE_MAX: f64 = 16.0;
/// The same for any space.
const WORST_MAX: f64 = 48.0;
const TREE: &str = "page tree";
/// The structure whose sizes come from encoding alone.
const REGIONS: &str = "trees of regions";
/// Pages of the array that one page of memory holds.
const ENTRIES_A_PAGE: u64 = PAGE_BYTES as u64 / ENTRY_BYTES;

pub fn run(mut bench: Bench, args: &MetadataArgs) -> Result<Answer> {
    let memory_bytes = size(&args.memory)
        .map_err(|reason| Error::invalid(format!("--memory {}: {reason}", args.memory)))?;
    let (before, started) = (machine::Cpu::now(), Instant::now());
    let mut studies = Vec::new();
    for space in spaces(args) {
        let study = study(&bench, args, &space, memory_bytes)?;
        judge(&mut bench.report, &study);
        studies.push(study);
    }
    let report = &mut bench.report;
    report.others(machine::Cpu::now().since(before), started.elapsed().as_secs_f64());
    report.detail("spaces", tables::json(&studies));
    bench.reporter.finish();
    let mut answer = bench.report.answer();
    answer.text.push('\n');
    answer.text.push_str(&tables::sizes(&studies));
    answer.text.push('\n');
    answer.text.push_str(&tables::times(&studies));
    Ok(answer)
}

/// Returns the spaces to measure.
fn spaces(args: &MetadataArgs) -> Vec<Space> {
    let largest = gib_bytes(args.gib) / PAGE_BYTES as u64;
    let (dense, sparse): (Vec<u64>, &[(u64, u64)]) = match args.quick {
        true => (vec![(16 << 10).min(largest)], &[(1, 256), (16, 256), (512, 32)]),
        false => {
            let parts = [256, 16, 1].map(|part| (largest / part).max(1));
            (parts.to_vec(), &[(1, 4 << 10), (1, 1 << 20), (16, 64 << 10), (512, 32 << 10)])
        }
    };
    let of = |kind| dense.iter().map(move |pages| Space::dense(kind, *pages));
    let mut spaces: Vec<Space> = of(Kind::Dense).chain(of(Kind::Fragmented)).collect();
    let runs = |(pages, runs): &(u64, u64)| {
        Space::sparse(*pages, *runs, &SeededRng::new(args.seed ^ pages << 32 ^ runs))
    };
    spaces.extend(sparse.iter().map(runs));
    if !args.quick && largest >= LARGE_RUN_PAGES {
        spaces.push(runs(&(LARGE_RUN_PAGES, largest / LARGE_RUN_PAGES)));
    }
    spaces
}

/// Pages of a large run in a 48-bit space: 128 MiB.
const LARGE_RUN_PAGES: u64 = 32 << 10;

/// Measures the three structures in one space, one after the other.
fn study(bench: &Bench, args: &MetadataArgs, space: &Space, memory_bytes: u64) -> Result<Study> {
    let name = tables::name(space);
    bench.step(&format!("{name}: page tree"));
    let tree = tree_row(bench, args, space, memory_bytes)?;
    bench.step(&format!("{name}: in-place array"));
    let array = array_row(args, space, memory_bytes)?;
    bench.step(&format!("{name}: hash table"));
    let table = table_row(args, space, memory_bytes)?;
    let mut rows = vec![tree, array, table];
    if space.kind == Kind::Sparse {
        bench.step(&format!("{name}: page trees of regions"));
        rows.insert(1, regions_row(bench, space)?);
    }
    Ok(Study { name, kind: space.kind, pages: space.pages(), rows })
}

fn tree_row(bench: &Bench, args: &MetadataArgs, space: &Space, memory_bytes: u64) -> Result<Row> {
    let row = {
        let pool = state::pool(&bench.scratch.join("pool"))?;
        let chunk_pages = match space.kind {
            Kind::Fragmented => 1,
            Kind::Dense | Kind::Sparse => pool.config().format.chunk_pages_max(),
        };
        let mut row = Row::new(TREE);
        match StoredTree::build(&pool, space, chunk_pages, memory_bytes, args.seed)? {
            Err(tree::TooLarge(ram_bytes)) => row.ram_bytes = ram_bytes,
            Ok(mut tree) => {
                let chunk_pages = space.run_pages.min(u64::from(chunk_pages)) as u32;
                let chunk_bytes = tree::chunk_location_bytes(&pool, chunk_pages)?;
                row.stored_bytes = Some(tree.first.nodes);
                let of_chunks = (tree.first.chunks as f64 * chunk_bytes) as u64;
                row.location_bytes = tree.first.node_locations + of_chunks;
                row.node_count = Some(tree.first.node_count);
                row.ram_bytes = tree.ram_bytes();
                row.rounds = Some(all_rounds(&mut tree, args, space)?);
                row.ram_after_bytes = Some(tree.ram_bytes());
            }
        }
        row
    };
    bench.scratch.clear("pool")?;
    Ok(row)
}

/// Encodes the runs as regions; only the bytes on a disk are of interest.
fn regions_row(bench: &Bench, space: &Space) -> Result<Row> {
    let pool = state::pool(&bench.scratch.join("pool"))?;
    let chunk_pages_max = pool.config().format.chunk_pages_max();
    let regions = regions::encode(space, chunk_pages_max)?;
    let of_chunks = tree::chunk_location_bytes(&pool, chunk_pages_max)? * regions.chunks as f64;
    let of_nodes = tree::chunk_location_bytes(&pool, 1)? * regions.nodes as f64;
    drop(pool);
    bench.scratch.clear("pool")?;
    let mut row = Row::new(REGIONS);
    row.stored_bytes = Some(regions.stored_bytes);
    row.location_bytes = (of_chunks + of_nodes) as u64;
    row.node_count = Some(regions.nodes);
    Ok(row)
}

fn array_row(args: &MetadataArgs, space: &Space, memory_bytes: u64) -> Result<Row> {
    let mut row = Row::new("in-place array");
    row.stored_bytes = Some(space.range_pages * ENTRY_BYTES);
    row.ram_bytes = array::ram_bytes(space.range_pages);
    row.touched_bytes = Some(space.touched(ENTRIES_A_PAGE) * PAGE_BYTES as u64);
    if row.ram_bytes <= memory_bytes {
        let keeps_before = 2 * row.ram_bytes <= memory_bytes;
        let mut array = InPlaceArray::build(space.range_pages, space.each_page(), keeps_before);
        row.ram_bytes = array.ram_bytes();
        row.rounds = Some(all_rounds(&mut array, args, space)?);
    }
    Ok(row)
}

fn table_row(args: &MetadataArgs, space: &Space, memory_bytes: u64) -> Result<Row> {
    let mut row = Row::new("hash table");
    row.stored_bytes = Some(space.pages() * SLOT_BYTES);
    row.ram_bytes = table::ram_bytes(space.pages());
    if row.ram_bytes <= memory_bytes {
        let keeps_before = 2 * row.ram_bytes <= memory_bytes;
        let mut table = HashTable::build(space.pages(), space.each_page(), keeps_before)?;
        row.ram_bytes = table.ram_bytes();
        row.rounds = Some(all_rounds(&mut table, args, space)?);
    }
    Ok(row)
}

/// Changes 1 % of the pages in each round, then one page in each round.
fn all_rounds(
    structure: &mut dyn Structure,
    args: &MetadataArgs,
    space: &Space,
) -> Result<[Rounds; 2]> {
    // Each structure gets the same pages.
    let rng = SeededRng::new(args.seed);
    let runs = if args.quick { 1 } else { args.runs };
    let many = (space.pages() / 100).max(1);
    let many = rounds(structure, space, many, 1..=u64::from(runs), &rng)?;
    let first = u64::from(runs) + 1;
    let one = rounds(structure, space, 1, first..=u64::from(2 * runs), &rng)?;
    Ok([many, one])
}

/// Returns the medians of some rounds, in each of which `count` pages change.
fn rounds(
    structure: &mut dyn Structure,
    space: &Space,
    count: u64,
    versions: std::ops::RangeInclusive<u64>,
    rng: &SeededRng,
) -> Result<Rounds> {
    let mut update_s = Vec::new();
    let mut durable_s = Vec::new();
    let (mut delta_s, mut compare_s, mut open_s) = (Vec::new(), Vec::new(), Vec::new());
    let (mut changed, mut written_bytes) = (0, 0);
    for version in versions {
        let pages = space.choose(count, rng);
        let check = |found: u64| match found == pages.len() as u64 {
            true => Ok(()),
            false => Err(Error::bug(format!("{found} changed pages found of {}", pages.len()))),
        };
        let update = structure.update(&pages, version)?;
        update_s.push(update.took_s);
        durable_s.push(update.durable_s);
        changed += pages.len() as u64;
        written_bytes += update.written_bytes;
        if let Some(found) = structure.delta() {
            check(found.pages)?;
            delta_s.push(found.took_s);
        }
        if let Some(found) = structure.compare()? {
            check(found.pages)?;
            compare_s.push(found.took_s);
            open_s.push(found.open_s);
        }
    }
    let of_some = |values: &[f64]| (!values.is_empty()).then(|| median(values));
    Ok(Rounds {
        changed,
        written_bytes,
        update_s: median(&update_s),
        durable_s: median(&durable_s),
        delta_s: of_some(&delta_s),
        compare_s: of_some(&compare_s),
        open_s: median(&open_s),
    })
}

/// Adds the goals of one space.
fn judge(report: &mut Report, study: &Study) {
    let most = if study.kind == Kind::Dense { DENSE_MAX } else { WORST_MAX };
    let a_page = |bytes: u64| bytes as f64 / study.pages as f64;
    let of_trees = |row: &&Row| row.structure == TREE || row.structure == REGIONS;
    for row in study.rows.iter().filter(of_trees) {
        let Some(stored_bytes) = row.stored_bytes else { continue };
        let what = format!("{}: {} with locations", study.name, row.structure);
        let all = a_page(stored_bytes + row.location_bytes);
        report.goal(what, all, Unit::BytesPerPage, Goal::AtMost(most));
        report.add("  without locations", a_page(stored_bytes), Unit::BytesPerPage);
    }
}
