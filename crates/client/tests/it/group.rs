//! Programs of several ranks, each rank a thread with its own client: they save together, and go on
//! with the same number of ranks or another one.
#![allow(unsafe_code)] // the tests hand over their own memory

use outlive_capture::{Region, fill::MutRegion};
use outlive_client::{Client, End, NamedMemory, WritePermit};
use outlive_pool::{Environment, FormatConfig, Pool, PoolConfig, Tuning, create, open};
use outlive_store::group::{GroupOptions, Schedule};
use outlive_store::{JobOptions, Restored, SaveNotes, SaveStats, Select};
use outlive_types::{
    Coordinator, Distribution, Error, ErrorKind, Rank, Result, Rng, SeededRng, ThreadRank,
};
use std::path::Path;
use std::sync::Arc;
use std::thread;

/// Shape of the global array.
const ROWS: u64 = 120;
const COLUMNS: u64 = 700;

/// A rank's part of the array: rows and columns.
#[derive(Clone, Debug)]
struct Share {
    offset: [u64; 2],
    shape: [u64; 2],
    /// Block and stride; `None` for a box.
    blocks: Option<([u64; 2], [u64; 2])>,
}

impl Share {
    /// Returns its indices along the axis `at`.
    fn along(&self, at: usize) -> Vec<u64> {
        let (offset, extent) = (self.offset[at], self.shape[at]);
        match self.blocks {
            None => (offset..offset + extent).collect(),
            Some((block, stride)) => {
                let (block, stride) = (block[at], stride[at]);
                (0..extent).map(|local| offset + local / block * stride + local % block).collect()
            }
        }
    }

    fn distribution(&self) -> Distribution {
        let (global_shape, offset) = (vec![ROWS, COLUMNS], self.offset.to_vec());
        match self.blocks {
            None => Distribution::Subarray { global_shape, offset },
            Some((block, stride)) => {
                let (block, stride) = (block.to_vec(), stride.to_vec());
                Distribution::BlockCyclic { global_shape, offset, block, stride }
            }
        }
    }
}

/// Memory of one rank.
struct Memory {
    part: Share,
    /// Its part of the array.
    cells: Vec<u64>,
    /// Table that is the same on all ranks.
    table: Vec<u8>,
    /// Bytes of this rank alone; if empty, it has no such region.
    own: Vec<u8>,
    /// Number that is the same on all ranks.
    step: Box<u64>,
}

/// Returns the element of the array at this row and column, after `step` steps.
fn cell(row: u64, column: u64, step: u64) -> u64 {
    if (row + column).is_multiple_of(7) {
        row * COLUMNS + column + (step << 32)
    } else {
        row << 20 | column
    }
}

fn table(step: u64) -> Vec<u8> {
    let mut bytes = vec![0; 150_000];
    SeededRng::new(step).fill(&mut bytes);
    bytes
}

fn cells(part: &Share, step: u64) -> Vec<u64> {
    let columns = part.along(1);
    let row = |row| columns.iter().map(move |column| cell(row, *column, step));
    part.along(0).into_iter().flat_map(row).collect()
}

impl Memory {
    fn new(part: Share, step: u64, rank: Rank) -> Memory {
        let cells = cells(&part, step);
        Memory { part, cells, table: table(step), own: vec![rank as u8; 100], step: Box::new(step) }
    }

    fn empty(part: Share, own: usize) -> Memory {
        let count = part.shape.iter().product::<u64>() as usize;
        Memory {
            part,
            cells: vec![!0; count],
            table: vec![1; 150_000],
            own: vec![9; own],
            step: Box::default(),
        }
    }

    fn regions(&self) -> Vec<Region> {
        let region = |name: &str, dtype: &str, shape: Vec<u64>, start: *const u8, bytes: usize| {
            // SAFETY: every test waits for `save`, and only then writes its memory.
            unsafe { Region::from_raw(name, dtype, shape, start, bytes) }
        };
        let bytes = self.cells.len() * 8;
        let shape = self.part.shape.to_vec();
        let cells = region("cells", "<u8", shape, self.cells.as_ptr().cast(), bytes);
        let local = |name, bytes: &[u8]| {
            region(name, "|u1", vec![bytes.len() as u64], bytes.as_ptr(), bytes.len())
        };
        let mut regions = vec![
            cells.distributed(self.part.distribution()),
            local("table", &self.table).distributed(Distribution::Replicated),
            region("step", "<u8", vec![], (&raw const *self.step).cast(), 8)
                .distributed(Distribution::Replicated),
        ];
        if !self.own.is_empty() {
            regions.push(local("own", &self.own));
        }
        regions
    }

    fn targets(&mut self) -> Vec<NamedMemory> {
        let target = |name: &str, dtype: &str, shape, start, bytes, distribution| {
            // SAFETY: every test keeps its memory, and does not look at it, until the restore is
            // over.
            let memory = unsafe { MutRegion::from_raw(start, bytes) };
            NamedMemory {
                name: name.to_owned(),
                dtype: dtype.to_owned(),
                shape,
                memory,
                distribution,
            }
        };
        let (array, shape) = (self.part.distribution(), self.part.shape.to_vec());
        let bytes = self.cells.len() * 8;
        let cells = target("cells", "<u8", shape, self.cells.as_mut_ptr().cast(), bytes, array);
        let local = |name: &str, bytes: &mut Vec<u8>, distribution| {
            let length = bytes.len();
            target(name, "|u1", vec![length as u64], bytes.as_mut_ptr(), length, distribution)
        };
        let mut targets = vec![cells, local("table", &mut self.table, Distribution::Replicated)];
        let step = (&raw mut *self.step).cast();
        targets.push(target("step", "<u8", vec![], step, 8, Distribution::Replicated));
        if !self.own.is_empty() {
            targets.push(local("own", &mut self.own, Distribution::Local));
        }
        targets
    }

    fn check(&self, step: u64) {
        assert!(self.cells == cells(&self.part, step), "{:?} at step {step}", self.part);
        assert!(self.table == table(step), "the table at step {step}");
        assert_eq!(*self.step, step);
    }
}

/// Cuts the array: blocks of rows, of columns or of both; or cyclic: rows one by one, columns by
/// fives, or blocks of both.
fn parts(ranks: u32, by: &str) -> Vec<Share> {
    let cut = |extent: u64, pieces: u64, at: u64| {
        (extent * at / pieces, extent * (at + 1) / pieces - extent * at / pieces)
    };
    let grid = match by {
        "rows" | "cyclic rows" => (u64::from(ranks), 1),
        "columns" | "columns by fives" => (1, u64::from(ranks)),
        _ if ranks.is_multiple_of(2) => (u64::from(ranks) / 2, 2),
        _ => (u64::from(ranks), 1),
    };
    let block = match by {
        "cyclic rows" => Some([1, COLUMNS]),
        "columns by fives" => Some([ROWS, 5]),
        "block-cyclic" => Some([7, 64]),
        _ => None,
    };
    let part = |rank: u64| {
        if let Some(block) = block {
            let offset = [rank / grid.1 * block[0], rank % grid.1 * block[1]];
            let stride = [grid.0 * block[0], grid.1 * block[1]];
            let has = |at: usize, extent: u64| {
                let own = |index: &u64| {
                    *index >= offset[at] && (*index - offset[at]) % stride[at] < block[at]
                };
                (0..extent).filter(own).count() as u64
            };
            let (shape, blocks) = ([has(0, ROWS), has(1, COLUMNS)], Some((block, stride)));
            return Share { offset, shape, blocks };
        }
        let (row, rows) = cut(ROWS, grid.0, rank / grid.1);
        let (column, columns) = cut(COLUMNS, grid.1, rank % grid.1);
        Share { offset: [row, column], shape: [rows, columns], blocks: None }
    };
    (0..u64::from(ranks)).map(part).collect()
}

fn pool(dir: &Path) -> Pool {
    let path = dir.join("pool");
    if !path.exists() {
        let format = FormatConfig {
            container_bytes: 128 << 10,
            pack_bytes: 512 << 10,
            ..FormatConfig::new([3; 16])
        };
        let tuning = Tuning { staging_bytes: 2 << 20, threads: 1, ..Tuning::default() };
        create(&path, PoolConfig::new(format, tuning), Environment::system()).unwrap();
    }
    open(&path, Environment::system()).unwrap()
}

/// Runs `ranks` ranks, each in its own thread.
fn run<T: Send>(
    dir: &Path,
    ranks: u32,
    schedule: Schedule,
    work: impl Fn(Rank, Client) -> T + Sync,
) -> Vec<T> {
    pool(dir);
    let start = |coordinator: Arc<ThreadRank>| {
        let rank = coordinator.rank();
        let group = GroupOptions { schedule, ..GroupOptions::new(coordinator) };
        let options = JobOptions { group: Some(group), ..JobOptions::default() };
        work(rank, Client::open(&pool(dir), "job", options).unwrap())
    };
    let start = &start;
    thread::scope(|scope| {
        let threads: Vec<_> =
            ThreadRank::group(ranks).into_iter().map(|it| scope.spawn(move || start(it))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn save(client: &Client, memory: &Memory) -> Result<SaveStats> {
    let handle = client.save(memory.regions(), b"{}".to_vec(), SaveNotes::default())?;
    handle.wait(None).unwrap()
}

fn restore(client: &Client, into: &mut Memory) -> Result<Option<Restored>> {
    let permit = Arc::new(WritePermit::default());
    let restored = client.restore_named(Select::Newest, &permit, &mut || into.targets());
    permit.withdraw();
    restored
}

#[test]
fn ranks_save_together_and_write_only_changes() {
    for schedule in [Schedule::Coordinated, Schedule::Staggered, Schedule::Striped(2)] {
        let dir = tempfile::tempdir().unwrap();
        let by_rows = parts(4, "rows");
        let new_bytes = run(dir.path(), 4, schedule, |rank, client| {
            let part = by_rows[rank as usize].clone();
            let mut memory = Memory::new(part.clone(), 1, rank);
            let first = save(&client, &memory).unwrap();
            assert_eq!(first.epoch, 1);
            memory.cells[0] ^= 1;
            let second = save(&client, &memory).unwrap();
            assert!(second.changed_bytes <= 8192, "{second:?}");
            client.close(End::Together).unwrap();
            first.new_bytes
        });
        // One of the ranks stores the table.
        assert!(new_bytes[0] > 150_000 + new_bytes[1], "{new_bytes:?}");
        run(dir.path(), 4, schedule, |rank, client| {
            let mut found = Memory::empty(by_rows[rank as usize].clone(), 100);
            let restored = restore(&client, &mut found).unwrap().unwrap();
            assert_eq!((restored.epoch, found.own.clone()), (2, vec![rank as u8; 100]));
            found.cells[0] ^= 1;
            found.check(1);
            let next = save(&client, &found).unwrap();
            assert!((1..=8192).contains(&next.changed_bytes), "{next:?}");
        });
    }
}

#[test]
fn another_number_of_ranks_takes_the_parts_it_needs() {
    for (saved, by) in [(4, "rows"), (3, "columns"), (4, "both"), (1, "rows")] {
        let dir = tempfile::tempdir().unwrap();
        let there = parts(saved, by);
        run(dir.path(), saved, Schedule::Coordinated, |rank, client| {
            let mut memory = Memory::new(there[rank as usize].clone(), 5, rank);
            memory.own.clear();
            save(&client, &memory).unwrap();
            client.close(End::Together).unwrap();
        });
        for (ranks, by) in [(1, "rows"), (2, "columns"), (5, "rows"), (6, "both"), (4, "both")] {
            let here = parts(ranks, by);
            let read = run(dir.path(), ranks, Schedule::Coordinated, |rank, client| {
                let mut found = Memory::empty(here[rank as usize].clone(), 0);
                let restored = restore(&client, &mut found).unwrap().unwrap();
                found.check(5);
                restored.stats.read_bytes
            });
            // Rows lie side by side: no rank reads data in which it has no part.
            if by == "rows" && ranks == 5 && saved == 4 {
                let all: u64 = ROWS * COLUMNS * 8;
                assert!(read.iter().all(|read| *read < all / 2 + 400_000), "{read:?} of {all}");
            }
        }
    }
}

#[test]
fn blocks_that_are_dealt_out_become_any_others() {
    let all = ["rows", "cyclic rows", "columns by fives", "block-cyclic"];
    for (saved, there) in
        [(4, "cyclic rows"), (3, "columns by fives"), (6, "block-cyclic"), (4, "both")]
    {
        let dir = tempfile::tempdir().unwrap();
        let shares = parts(saved, there);
        run(dir.path(), saved, Schedule::Coordinated, |rank, client| {
            let mut memory = Memory::new(shares[rank as usize].clone(), 5, rank);
            memory.own.clear();
            save(&client, &memory).unwrap();
            client.close(End::Together).unwrap();
        });
        for (ranks, here) in [1, 2, 4, 5, 6].into_iter().flat_map(|n| all.map(|here| (n, here))) {
            let shares = parts(ranks, here);
            run(dir.path(), ranks, Schedule::Coordinated, |rank, client| {
                let mut found = Memory::empty(shares[rank as usize].clone(), 0);
                restore(&client, &mut found).unwrap().unwrap();
                found.check(5);
            });
        }
    }
}

/// With the same blocks, each rank reads its own image, and then writes only its changes.
#[test]
fn a_rank_goes_on_with_its_own_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let shares = parts(4, "block-cyclic");
    run(dir.path(), 4, Schedule::Coordinated, |rank, client| {
        save(&client, &Memory::new(shares[rank as usize].clone(), 1, rank)).unwrap();
        client.close(End::Together).unwrap();
    });
    run(dir.path(), 4, Schedule::Coordinated, |rank, client| {
        let mut found = Memory::empty(shares[rank as usize].clone(), 100);
        let own = (found.cells.len() * 8 + found.table.len()) as u64;
        let restored = restore(&client, &mut found).unwrap().unwrap();
        found.check(1);
        assert!(restored.stats.read_bytes < own + 100_000, "{:?}", restored.stats);
        found.cells[0] ^= 1;
        let next = save(&client, &found).unwrap();
        assert!((1..=8192).contains(&next.changed_bytes), "{next:?}");
    });
}

#[test]
fn elements_that_no_rank_has_saved_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut shares = parts(2, "cyclic rows");
    shares[1].shape[0] -= 1;
    run(dir.path(), 2, Schedule::Coordinated, |rank, client| {
        save(&client, &Memory::new(shares[rank as usize].clone(), 1, rank)).unwrap();
        client.close(End::Together).unwrap();
    });
    let here = parts(1, "rows");
    let errors = run(dir.path(), 1, Schedule::Coordinated, |_, client| {
        let mut memory = Memory::empty(here[0].clone(), 100);
        let error = restore(&client, &mut memory).unwrap_err();
        // The restore wrote nothing, not even data that is there.
        assert!(memory.cells.iter().all(|cell| *cell == !0));
        assert!(memory.table.iter().all(|byte| *byte == 1) && memory.own == [9; 100]);
        error
    });
    let text = "no rank has saved the [1, 700] elements from [119, 0] on";
    assert_eq!(errors[0].kind(), ErrorKind::Invalid);
    assert!(errors[0].message().contains(text), "{}", errors[0]);
}

#[test]
fn a_program_goes_on_with_other_ranks_and_saves() {
    let dir = tempfile::tempdir().unwrap();
    for (step, (ranks, by)) in (1u64..).zip([(2, "rows"), (3, "columns"), (1, "rows"), (4, "both")])
    {
        let here = parts(ranks, by);
        run(dir.path(), ranks, Schedule::Coordinated, |rank, client| {
            let mut memory = Memory::empty(here[rank as usize].clone(), 0);
            let restored = restore(&client, &mut memory).unwrap();
            assert_eq!(restored.map(|it| it.epoch), (step > 1).then_some(step - 1));
            if step > 1 {
                memory.check(step - 1);
            }
            memory = Memory::new(memory.part, step, rank);
            memory.own.clear();
            assert_eq!(save(&client, &memory).unwrap().epoch, step);
            client.close(End::Together).unwrap();
        });
    }
}

#[test]
fn more_ranks_cannot_restore_regions_that_each_rank_has_for_itself() {
    let dir = tempfile::tempdir().unwrap();
    let there = parts(2, "rows");
    run(dir.path(), 2, Schedule::Coordinated, |rank, client| {
        save(&client, &Memory::new(there[rank as usize].clone(), 1, rank)).unwrap();
        client.close(End::Together).unwrap();
    });
    let here = parts(3, "rows");
    let errors = run(dir.path(), 3, Schedule::Coordinated, |rank, client| {
        let mut found = Memory::empty(here[rank as usize].clone(), 100);
        restore(&client, &mut found).unwrap_err()
    });
    assert!(errors.windows(2).all(|pair| pair[0] == pair[1]), "{errors:?}");
    assert_eq!(errors[0].kind(), ErrorKind::Invalid);
    let message = errors[0].message();
    assert!(message.contains("rank 2") && message.contains("\"own\""), "{message}");
    // Fewer ranks are possible: each one that is left gets its own region.
    run(dir.path(), 1, Schedule::Coordinated, |_, client| {
        let mut found = Memory::empty(parts(1, "rows").remove(0), 100);
        restore(&client, &mut found).unwrap().unwrap();
        found.check(1);
        assert_eq!(found.own, [0; 100]);
    });
}

/// Every rank gets the same error, nothing is saved, and the next save succeeds.
#[test]
fn every_rank_gets_the_error_of_one_rank() {
    type Wrong = fn(&mut Memory, Rank);
    let wrongs: [(&str, Wrong); 5] = [
        ("rank 2 lacks region \"own\"", |memory, rank| {
            if rank == 2 {
                memory.own.clear();
            }
        }),
        ("rank 1 has \"step\" = 3, and rank 0 has \"step\" = 2", |memory, rank| {
            *memory.step += u64::from(rank == 1);
        }),
        ("rank 1 has region \"table\"", |memory, rank| {
            if rank == 1 {
                memory.table.push(0);
            }
        }),
        ("in dimension 0 it begins at 119", |memory, rank| {
            if rank == 2 {
                memory.part.offset[0] = 119;
            }
        }),
        ("rank 0 lacks region \"own\"", |memory, rank| {
            if rank != 0 {
                memory.own.clear();
            }
        }),
    ];
    for (text, wrong) in wrongs {
        let dir = tempfile::tempdir().unwrap();
        let there = parts(3, "rows");
        let errors: Vec<Error> = run(dir.path(), 3, Schedule::Coordinated, |rank, client| {
            let part = there[rank as usize].clone();
            save(&client, &Memory::new(part.clone(), 1, rank)).unwrap();
            let mut memory = Memory::new(part.clone(), 2, rank);
            wrong(&mut memory, rank);
            let error = save(&client, &memory).unwrap_err();
            assert_eq!(save(&client, &Memory::new(part, 3, rank)).unwrap().epoch, 2);
            client.close(End::Together).unwrap();
            error
        });
        assert!(errors.windows(2).all(|pair| pair[0] == pair[1]), "{errors:?}");
        assert_eq!(errors[0].kind(), ErrorKind::Invalid, "{}", errors[0]);
        let is_told = errors[0].message().contains(text)
            || text.starts_with("rank 0") && errors[0].message().contains("which rank 0 has");
        assert!(is_told, "{text}: {}", errors[0]);
    }
}

/// After it, the rank is a step ahead of the others: no checkpoint may mix two steps.
#[test]
fn a_rank_that_leaves_out_a_save_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let there = parts(2, "rows");
    let errors = run(dir.path(), 2, Schedule::Coordinated, |rank, client| {
        let mut errors = Vec::new();
        for step in 1..=6 {
            // Each rank leaves out one save.
            if (rank, step) == (1, 3) || (rank, step) == (0, 6) {
                continue;
            }
            let saved = save(&client, &Memory::new(there[rank as usize].clone(), step, rank));
            errors.extend(saved.err().map(|error| error.message().to_owned()));
        }
        let mut found = Memory::empty(there[rank as usize].clone(), 100);
        let restored = restore(&client, &mut found).unwrap().unwrap();
        assert_eq!(restored.epoch, 2);
        found.check(2);
        client.close(End::Together).unwrap();
        errors
    });
    for (behind, told) in (3..).zip(&errors[0]) {
        let text =
            format!("rank 1 has \"step\" = {}, and rank 0 has \"step\" = {behind}:", behind + 1);
        assert!(told.starts_with(&text), "{told}");
    }
    assert_eq!((errors[0].len(), &errors[0]), (3, &errors[1]));
}
