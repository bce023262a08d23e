//! Lazy restores: bit-exact while the program runs; saves, gcs and damage meanwhile.

use crate::common;
use crate::stepped;
use crate::two_disks;

use common::{
    Program, State, Warnings, is_asleep, noise, pool_of, regions_of, small_config, this_thread,
    until,
};
use outlive_backend::{FaultWorld, MemoryTarget, ShardName, Target};
use outlive_capture::fill::MutRegion;
use outlive_capture::lazy::{LazyMemory, LazyOptions};
use outlive_format::SHARD_HEADER_BYTES;
use outlive_log::MemoryLog;
use outlive_pool::{Environment, Pool, TiersConfig};
use outlive_store::gc::{GcOptions, Thoroughness, collect};
use outlive_store::retention::Rules;
use outlive_store::{LazyEnds, LazyFill, LazySink, MemoryImage, RestoreSink, Restored, Select};
use outlive_types::sync::{Scheduler, scheduled};
use outlive_types::{
    BLOCK_BYTES, Epoch, Error, ErrorKind, JobName, Missing, PAGE_BYTES, Result, SeededRng,
};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use stepped::{Steps, World};
use two_disks::Disks;

/// Holds the background up until it is opened.
#[derive(Clone, Default)]
struct Latch(Arc<(Mutex<bool>, Condvar)>);

impl Latch {
    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn is_open(&self) -> bool {
        *self.0.0.lock().unwrap()
    }

    fn pass(&self) {
        let mut open = self.0.0.lock().unwrap();
        while !*open {
            open = self.0.1.wait(open).unwrap();
        }
    }
}

struct Sink {
    memory: Arc<LazyMemory>,
    latch: Latch,
    told: Told,
}

/// Events that the sink has seen.
#[derive(Clone, Default)]
struct Told {
    /// Opened once the background has read the tree, and reads data next.
    zeros: Latch,
    /// Opened once a fault waits for the background.
    expects: Latch,
}

impl RestoreSink for Sink {
    fn write(&self, stream: usize, offset: u64, bytes: &[u8]) {
        if self.memory.is_lazy(stream) {
            self.latch.pass();
        }
        self.memory.write(stream, offset, bytes);
    }

    fn zero(&self, stream: usize, offset: u64, length: u64) {
        self.memory.zero(stream, offset, length);
        self.told.zeros.open();
    }
}

impl LazySink for Sink {
    fn is_lazy(&self, stream: usize) -> bool {
        self.memory.is_lazy(stream)
    }
    fn edges(&self) -> Vec<(usize, Range<u64>)> {
        self.memory.edges()
    }
    fn write_edge(&self, stream: usize, offset: u64, bytes: &[u8]) {
        self.memory.write_edge(stream, offset, bytes);
    }
    fn next_missing(&self) -> Option<Missing> {
        self.memory.next_missing()
    }
    fn expect(&self, missing: &Missing) {
        self.memory.expect(missing);
        self.told.expects.open();
    }
    fn expect_nothing(&self) {
        self.memory.expect_nothing();
    }
    fn deliver(&self, missing: &Missing, bytes: Option<&[u8]>) {
        self.memory.deliver(missing, bytes);
    }
    fn failure(&self) -> Option<Error> {
        self.memory.failure()
    }
    fn give_up(&self) {
        self.memory.give_up();
    }
    fn stop(&self) {
        self.memory.stop();
    }
}

/// A restore under way.
struct Lazy {
    restored: Restored,
    fill: LazyFill,
    memory: Arc<LazyMemory>,
    failures: Mutex<Receiver<Error>>,
    names: Vec<String>,
}

impl Lazy {
    /// The state, once it is whole.
    fn into_state(self, pool: &Pool) -> State {
        self.fill.wait(None).unwrap().unwrap();
        let program = Program::start(pool, "job");
        let select = Select::Epoch(self.restored.epoch);
        let (checkpoint, _) = program.job.image(select).unwrap().unwrap();
        // The fill's threads release it soon after its end.
        let mut memory = self.memory;
        let memory = loop {
            match Arc::try_unwrap(memory) {
                Ok(memory) => break memory,
                Err(shared) => memory = shared,
            }
            std::thread::yield_now();
        };
        let streams = memory.into_streams().into_iter();
        let streams: Vec<Vec<u8>> = streams.map(|s| s.into_bytes().unwrap().to_vec()).collect();
        regions_of(&checkpoint, &streams)
    }

    fn stream(&self, name: &str) -> usize {
        self.names.iter().position(|known| known == name).unwrap()
    }
}

/// Restores as a front door does: the tracker is primed when all data is there.
fn restore(program: &Program, select: Select, latch: &Latch) -> Result<Option<Lazy>> {
    restore_that(program, select, latch, &Told::default())
}

/// Does the same; the sink opens the latches of `told`.
fn restore_that(
    program: &Program,
    select: Select,
    latch: &Latch,
    told: &Told,
) -> Result<Option<Lazy>> {
    let (mut taken, mut names) = (None, Vec::new());
    let (sender, failures): (Sender<Error>, _) = channel();
    let failures = Mutex::new(failures);
    let tracker = program.tracker.clone();
    let ends = LazyEnds {
        filled: Box::new(move |checkpoint: &MemoryImage, sink: &Sink| {
            let streams = checkpoint.streams().iter().enumerate();
            let hashes = |(at, stream): (usize, &outlive_store::read::Stream)| {
                Some((stream.name.clone(), sink.memory.take_hashes(at)?))
            };
            tracker.prime_hashes(checkpoint.epoch(), streams.filter_map(hashes).collect());
        }),
        failed: Box::new(move |error| sender.send(error.clone()).unwrap()),
    };
    let mut prepare = |checkpoint: &MemoryImage| {
        let streams = checkpoint.streams();
        names = streams.iter().map(|stream| stream.name.clone()).collect();
        let memory = streams.iter().map(|s| MutRegion::zeroed(s.tree.bytes as usize)).collect();
        let memory = Arc::new(LazyMemory::new(memory, LazyOptions::default())?);
        taken = Some(memory.clone());
        let sink = Sink { memory, latch: latch.clone(), told: told.clone() };
        Ok(((0..streams.len()).collect(), sink))
    };
    let done = program.job.restore_lazily(select, &mut prepare, ends)?;
    Ok(done.map(|(restored, fill)| Lazy {
        restored,
        fill,
        memory: taken.take().unwrap(),
        failures,
        names,
    }))
}

fn open() -> Latch {
    let latch = Latch::default();
    latch.open();
    latch
}

fn change(state: &mut State, region: &str, page: usize, seed: u64) {
    let bytes = state.get_mut(region).unwrap();
    bytes[page * PAGE_BYTES..][..PAGE_BYTES].copy_from_slice(&noise(seed, PAGE_BYTES));
}

/// Large and small, odd lengths, zeros inside and only zeros.
fn state() -> State {
    let mut holed = noise(3, 3 * BLOCK_BYTES + 77);
    holed[100 * PAGE_BYTES..700 * PAGE_BYTES].fill(0);
    State::from([
        ("big".to_owned(), noise(1, 5 * BLOCK_BYTES)),
        ("holed".to_owned(), holed),
        ("small".to_owned(), vec![1, 2, 3]),
        ("medium".to_owned(), noise(2, 100_001)),
        ("zeros".to_owned(), vec![0; BLOCK_BYTES + 5 * PAGE_BYTES]),
        ("empty".to_owned(), Vec::new()),
    ])
}

/// Three epochs: each changes some scattered pages.
fn saved() -> (FaultWorld, Vec<State>) {
    let world = FaultWorld::new();
    let pool = pool(&world);
    let program = Program::start(&pool, "job");
    let mut states = vec![state()];
    program.save(&states[0]).unwrap();
    for step in 1..3u64 {
        let mut next = states.last().unwrap().clone();
        for page in 0..60 {
            change(&mut next, "big", (page * 41 + step as usize) % 2560, step * 1000 + page as u64);
        }
        program.save(&next).unwrap();
        states.push(next);
    }
    program.job.close().unwrap();
    (world, states)
}

fn pool(world: &FaultWorld) -> Pool {
    pool_of(world.target(), world.log())
}

#[test]
fn every_touch_finds_the_saved_bytes() {
    let (world, states) = saved();
    let pool = pool(&world);
    for (epoch, want) in (1..).zip(&states) {
        let latch = Latch::default();
        let program = Program::start(&pool, "job");
        let lazy = restore(&program, Select::Epoch(epoch), &latch).unwrap().unwrap();
        assert_eq!(lazy.restored.epoch, epoch);
        assert!(!lazy.fill.done());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let lazy = &lazy;
                scope.spawn(move || {
                    let rng = SeededRng::new(thread);
                    for name in ["big", "holed", "zeros"].iter().cycle().take(600) {
                        let at = rng.next_u64() as usize % want[*name].len();
                        let got = lazy.memory.touch(lazy.stream(name), at, 0);
                        assert_eq!(got, want[*name][at], "byte {at} of {name}");
                    }
                });
            }
            scope.spawn(|| {
                // The first touches are served while the background does nothing.
                until("touches of what is missing", || lazy.memory.traffic().faults > 4);
                latch.open();
            });
        });
        assert!(lazy.memory.traffic().faults > 0);
        let (done, total) = lazy.fill.progress();
        assert!(done <= total);
        assert!(lazy.into_state(&pool) == *want, "epoch {epoch}");
    }
}

#[test]
fn a_save_waits_for_the_fill_and_is_incremental() {
    let (world, states) = saved();
    let pool = pool(&world);
    let program = Program::start(&pool, "job");
    let latch = Latch::default();
    let lazy = restore(&program, Select::Newest, &latch).unwrap().unwrap();
    let mut now = states[2].clone();
    // The program changes a page before it has arrived.
    let stream = lazy.stream("big");
    lazy.memory.touch(stream, 7 * PAGE_BYTES + 1, 0xFF);
    now.get_mut("big").unwrap()[7 * PAGE_BYTES + 1] ^= 0xFF;
    let stats = std::thread::scope(|scope| {
        let (sender, saver) = channel();
        let (program, now) = (&program, &now);
        let save = scope.spawn(move || {
            sender.send(this_thread()).unwrap();
            program.save(now).unwrap()
        });
        let saver = saver.recv().unwrap();
        until("a save that waits", || is_asleep(&saver) || save.is_finished());
        assert!(!save.is_finished() && !lazy.fill.done(), "a save must wait for the fill");
        latch.open();
        save.join().unwrap()
    });
    assert_eq!((stats.epoch, stats.changed_bytes), (4, PAGE_BYTES as u64), "{stats:?}");
    assert!(lazy.into_state(&pool) == now);
    assert_eq!(program.job.epochs().unwrap()[3].manifest.predecessor, 3);
    let (_, again) = Program::start(&pool, "job").restore(Select::Newest).unwrap().unwrap();
    assert!(again == now);
}

/// Returns the shards of the newest epoch: those that did not exist with two epochs.
fn newest_shards(world: &FaultWorld) -> Vec<ShardName> {
    let job = Program::start(&pool(world), "job").job;
    let epochs = job.epochs().unwrap();
    let packs = |at: usize| -> Vec<_> {
        let image = epochs[at].manifest.images.one().unwrap();
        image.segments.iter().map(|segment| segment.pack).collect()
    };
    let before = packs(1);
    let new = packs(2).into_iter().filter(|pack| !before.contains(pack));
    new.map(|pack| ShardName { pack, shard: 0 }).collect()
}

#[test]
fn damage_marks_the_epoch_and_the_next_start_takes_the_one_before() {
    let (world, states) = saved();
    let target = world.target();
    let shard = newest_shards(&world)[0];
    let mut outcomes = [0; 2];
    // A byte in each page; some belong to the tree, and the restore finds them before the program
    // goes on.
    let offsets: Vec<u64> = (4096..target.length(shard).unwrap()).step_by(4096).collect();
    for offset in offsets.into_iter().map(|offset| offset + 7) {
        world.corrupt(shard, offset, 4);
        let program = Program::start(&pool(&world), "job");
        let lazy = restore(&program, Select::Newest, &open()).unwrap().unwrap();
        if lazy.restored.epoch == 3 {
            match lazy.fill.wait(None).unwrap() {
                // Padding, or bytes that only readers of the shard itself need.
                Ok(_) => assert!(lazy.into_state(&pool(&world)) == states[2]),
                Err(error) => {
                    outcomes[1] += 1;
                    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
                    assert!(error.message().contains("marked suspect"), "{error}");
                    assert_eq!(lazy.failures.lock().unwrap().recv().unwrap(), error);
                    let failed = program.save(&states[2]).unwrap_err();
                    assert!(failed.message().contains("lazy restore"), "{failed}");
                    check_passed_over(&world, &states);
                }
            }
        } else {
            outcomes[0] += 1;
            assert!(lazy.into_state(&pool(&world)) == states[1]);
        }
        world.corrupt(shard, offset, 4);
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

/// Epoch 3 is suspect and damaged: lazy and eager restores take 2. Only a lazy one relies on the
/// mark.
fn check_passed_over(world: &FaultWorld, states: &[State]) {
    let program = Program::start(&pool(world), "job");
    let lazy = restore(&program, Select::Newest, &open()).unwrap().unwrap();
    let (skipped, why) = lazy.restored.skipped[0].clone();
    assert_eq!((lazy.restored.epoch, skipped), (2, 3));
    assert!(why.message().contains("suspect"), "{why}");
    assert!(lazy.into_state(&pool(world)) == states[1]);
    assert_eq!(program.restore(Select::Newest).unwrap().unwrap().0, 2);
    let refused = restore(&program, Select::Epoch(3), &open()).err().unwrap();
    assert!(refused.kind() == ErrorKind::Damaged, "{refused}");
    let rules = Rules { last: Some(1), ..Rules::default() };
    assert_eq!(program.job.retention(&rules).unwrap().dropped(), [1].into(), "2 is what is left");
    let whole = program.job.verify(Some(3)).unwrap().findings.is_empty();
    assert!(!whole, "a verification finds the damage, too");
    program.job.note(3, |remarks| remarks.suspect = false).unwrap();
}

/// With each page of the newest packs damaged, memory fills if an eager restore finds everything: if a
/// chunk is there twice, either copy will do.
#[test]
fn memory_fills_from_the_other_copy_of_a_chunk() {
    let world = FaultWorld::new();
    let mut config = small_config();
    // No room for all chunks of the first save: the second one stores some again.
    config.tuning.index_bytes_max = 1;
    let pool = || Pool::new(config.clone(), world.target(), world.log(), Environment::system());
    let program = Program::start(&pool(), "job");
    let one = State::from([("a".to_owned(), noise(1, 2 * BLOCK_BYTES))]);
    program.save(&one).unwrap();
    let old = world.target().list().unwrap();
    let mut two = one.clone();
    two.insert("c".to_owned(), one["a"][..BLOCK_BYTES].to_vec());
    program.save(&two).unwrap();
    program.job.close().unwrap();
    let target = world.target();
    let mut filled = 0;
    for shard in target.list().unwrap().into_iter().filter(|shard| !old.contains(shard)) {
        for offset in (0..target.length(shard).unwrap()).step_by(PAGE_BYTES) {
            world.corrupt(shard, offset + 40, 4);
            let program = Program::start(&pool(), "job");
            if program.restore(Select::Epoch(2)).is_ok() {
                let lazy = restore(&program, Select::Epoch(2), &open()).unwrap().unwrap();
                assert!(lazy.into_state(&pool()) == two, "{offset} of {shard}");
                filled += 1;
            }
            world.corrupt(shard, offset + 40, 4);
        }
    }
    assert!(filled > 400, "{filled}");
}

/// The oldest segment lists a chunk that no save has changed since, and nothing else that is needed.
#[test]
fn a_damaged_segment_is_replaced_while_memory_fills() {
    let world = FaultWorld::new();
    let program = Program::start(&pool(&world), "job");
    let mut now = State::from([("a".to_owned(), noise(1, 2 * BLOCK_BYTES))]);
    for save in 0..70 {
        for page in (0..2 * BLOCK_BYTES / PAGE_BYTES).filter(|page| page % 512 != 100) {
            change(&mut now, "a", page, save * 10_000 + page as u64);
        }
        program.save(&now).unwrap();
    }
    program.job.close().unwrap();
    let newest = program.job.epochs().unwrap().pop().unwrap().manifest;
    let segments = newest.images.one().unwrap().segments.clone();
    let oldest = segments.iter().max_by_key(|segment| segment.level).unwrap();
    assert!(oldest.level > 0, "{segments:?}");
    let shard = ShardName { pack: oldest.pack, shard: 0 };
    world.corrupt(shard, SHARD_HEADER_BYTES as u64 + u64::from(oldest.offset) + 40, 4);
    let warnings = Arc::new(Warnings::default());
    let env = Environment::observed(warnings.clone());
    let pool = Pool::new(small_config(), world.target(), world.log(), env);
    let program = Program::start(&pool, "job");
    let latch = Latch::default();
    let lazy = restore(&program, Select::Newest, &latch).unwrap().unwrap();
    assert_eq!(lazy.restored.epoch, 70);
    latch.open();
    assert!(lazy.into_state(&pool) == now);
    let warnings = warnings.0.lock().unwrap().join("\n");
    assert!(warnings.contains("the directories of all packs tell where"), "{warnings}");
    let newest = program.job.epochs().unwrap().pop().unwrap().manifest;
    assert!(newest.remarks.suspect);
}

#[test]
fn damage_that_only_a_fault_meets_ends_the_program_too() {
    let (world, _) = saved();
    let target = world.target();
    for shard in target.list().unwrap() {
        for offset in (4096..target.length(shard).unwrap()).step_by(4096) {
            world.corrupt(shard, offset + 100, 1);
        }
    }
    // The page trees are damaged as well; nothing can begin.
    let program = Program::start(&pool(&world), "job");
    let error = restore(&program, Select::Newest, &open()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Damaged);

    let (world, _) = saved();
    let latch = Latch::default();
    let program = Program::start(&pool(&world), "job");
    let lazy = restore(&program, Select::Newest, &latch).unwrap().unwrap();
    let target = world.target();
    for shard in target.list().unwrap() {
        for offset in (4096..target.length(shard).unwrap()).step_by(512) {
            world.corrupt(shard, offset + 100, 1);
        }
    }
    let (memory, stream) = (lazy.memory.clone(), lazy.stream("big"));
    // In a program, this thread would wait until the process ends. Here it gets its memory back.
    let toucher = std::thread::spawn(move || memory.touch(stream, 3 * BLOCK_BYTES, 0));
    let error = lazy.failures.lock().unwrap().recv().unwrap();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    latch.open();
    assert!(lazy.fill.wait(None).unwrap().is_err());
    assert!(!toucher.is_finished());
}

#[test]
fn chunks_that_a_gc_moves_meanwhile_are_found_again() {
    let (world, states) = saved();
    let pool = pool(&world);
    let latch = Latch::default();
    let program = Program::start(&pool, "job");
    let lazy = restore(&program, Select::Newest, &latch).unwrap().unwrap();
    let before = world.target().list().unwrap();
    let drop: std::collections::BTreeSet<Epoch> = [1, 2].into();
    let options = GcOptions {
        drop: [(JobName::new("job").unwrap(), drop)].into(),
        thoroughness: Thoroughness { unused_max: 0.0, ..Thoroughness::default() },
        ..GcOptions::default()
    };
    let report = collect(&pool, &options).unwrap();
    let after = world.target().list().unwrap();
    assert!(report.deleted > 0 && before.iter().any(|shard| !after.contains(shard)), "{report:?}");
    // By a fault first, then by the background.
    let stream = lazy.stream("big");
    for at in (0..states[2]["big"].len()).step_by(BLOCK_BYTES / 2) {
        assert_eq!(lazy.memory.touch(stream, at, 0), states[2]["big"][at]);
    }
    latch.open();
    assert!(lazy.into_state(&pool) == states[2]);
}

/// Without locks, nothing keeps a gc from deleting data that must still be read: a warning says so.
#[test]
fn a_lazy_restore_warns_of_a_log_without_locks() {
    for (log, is_told) in [(MemoryLog::new(), true), (MemoryLog::with_locks(), false)] {
        let warnings = Arc::new(Warnings::default());
        let env = Environment::observed(warnings.clone());
        let pool = Pool::new(small_config(), Arc::new(MemoryTarget::new()), Arc::new(log), env);
        let program = Program::start(&pool, "job");
        assert!(restore(&program, Select::Newest, &open()).unwrap().is_none());
        assert!(warnings.0.lock().unwrap().is_empty(), "nothing is read");
        program.save(&state()).unwrap();
        let lazy = restore(&program, Select::Newest, &open()).unwrap().unwrap();
        assert!(lazy.into_state(&pool) == state());
        let warnings = warnings.0.lock().unwrap();
        assert_eq!(warnings.iter().any(|text| text.contains("no locks")), is_told, "{warnings:?}");
    }
}

/// A program prunes the checkpoint that it restores, and another one collects: nothing goes until
/// memory is full.
#[test]
fn data_that_is_pruned_meanwhile_stays_until_memory_is_full() {
    let target = Arc::new(MemoryTarget::new());
    let pool = pool_of(target.clone(), Arc::new(MemoryLog::with_locks()));
    let program = Program::start(&pool, "job");
    let states = [1, 2].map(|seed| State::from([("big".to_owned(), noise(seed, 6 * BLOCK_BYTES))]));
    for state in &states {
        program.save(state).unwrap();
    }
    drop(program);
    let program = Program::start(&pool, "job");
    let latch = Latch::default();
    let lazy = restore(&program, Select::Epoch(1), &latch).unwrap().unwrap();
    let before = target.list().unwrap();
    let gone = [(JobName::new("job").unwrap(), [1].into())].into();
    let report = collect(&pool, &GcOptions { drop: gone, ..GcOptions::default() }).unwrap();
    assert!(report.is_read && report.held > 0 && report.deleted == 0, "{report:?}");
    let after = target.list().unwrap();
    assert!(before.iter().all(|shard| after.contains(shard)));
    assert_eq!(program.job.epochs().unwrap().len(), 1, "the prune itself does not wait");
    let stream = lazy.stream("big");
    assert_eq!(lazy.memory.touch(stream, 5 * BLOCK_BYTES, 0), states[0]["big"][5 * BLOCK_BYTES]);
    latch.open();
    lazy.fill.wait(None).unwrap().unwrap();
    for at in (0..states[0]["big"].len()).step_by(PAGE_BYTES) {
        assert_eq!(lazy.memory.touch(stream, at, 0), states[0]["big"][at]);
    }
    drop(lazy);
    let report = collect(&pool, &GcOptions::default()).unwrap();
    assert!(!report.is_read && report.held == 0 && report.deleted > 0, "{report:?}");
    assert_eq!(program.save(&states[1]).unwrap().epoch, 3);
    let restored = Program::start(&pool, "job").restore(Select::Newest).unwrap().unwrap();
    assert!(restored == (3, states[1].clone()));
}

#[test]
fn without_lazy_memory_it_is_an_eager_restore() {
    let (world, states) = saved();
    let pool = pool(&world);
    let program = Program::start(&pool, "job");
    let small = State::from([("a".to_owned(), noise(1, 70_000)), ("b".to_owned(), vec![4; 9])]);
    let other = Program::start(&pool, "other");
    other.save(&small).unwrap();
    let lazy = restore(&other, Select::Newest, &open()).unwrap().unwrap();
    assert!(lazy.fill.done() && !lazy.memory.is_lazy(0) && !lazy.memory.is_lazy(1));
    let stats = other.save(&small).unwrap();
    assert_eq!(stats.changed_bytes, 0, "the first save afterwards is incremental");
    assert!(restore(&Program::start(&pool, "none"), Select::Newest, &open()).unwrap().is_none());
    drop((program, states));
}

/// Lets no thread of the store start, so a fill takes place before the program goes on. The fast
/// disk may be away meanwhile, until the fill has rested the given number of times.
#[derive(Default)]
struct NoThreads {
    away: Option<(Disks, usize)>,
    rests: AtomicUsize,
}

impl Scheduler for NoThreads {
    fn pause(&self, _: &str) {}
    fn sleep(&self, _: std::time::Duration) {
        let rests = self.rests.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some((disks, _)) = self.away.as_ref().filter(|(_, until)| rests == *until) {
            disks.set_away(false);
        }
    }
    fn wait_for(&self, _: usize, _: std::time::Duration) -> bool {
        true
    }
    fn wait(&self, _: usize) {
        std::thread::yield_now();
    }
    fn wake(&self, _: usize) {}
    fn spawn(&self, name: &str, _: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        if let Some((disks, _)) = &self.away {
            disks.set_away(true);
        }
        Err(std::io::Error::other(format!("no thread for {name}")))
    }
}

/// A fill that gives up would leave zeros in memory, which other jobs may save.
#[test]
fn without_a_thread_memory_is_whole_before_the_program_goes_on() {
    let (world, states) = saved();
    let pool = pool(&world);
    let program = Program::start(&pool, "job");
    let no_threads = Arc::new(NoThreads::default());
    let restored = scheduled(no_threads, || restore(&program, Select::Newest, &open()));
    let lazy = restored.unwrap().unwrap();
    assert!(lazy.memory.is_lazy(lazy.stream("big")), "{:?}", lazy.memory.how());
    assert!(lazy.fill.done(), "no other thread fills it");
    assert!(lazy.into_state(&pool) == *states.last().unwrap());
}

/// Threads as usual, except that the background rests until a page was touched. Its reads fail
/// until then.
#[derive(Clone, Default)]
struct RestsUntilTouched {
    touched: Latch,
    fails: Arc<AtomicBool>,
}

impl Scheduler for RestsUntilTouched {
    fn pause(&self, _: &str) {}
    fn sleep(&self, _: std::time::Duration) {
        self.touched.pass();
        self.fails.store(false, Ordering::Release);
    }
    fn wait_for(&self, _: usize, _: std::time::Duration) -> bool {
        true
    }
    fn wait(&self, _: usize) {
        std::thread::yield_now();
    }
    fn wake(&self, _: usize) {}
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        let this = Arc::new(self.clone());
        let thread = std::thread::Builder::new().name(name.to_owned());
        match name {
            "outlive-fill" => thread.spawn(move || scheduled(this, work)).map(drop),
            _ => thread.spawn(work).map(drop),
        }
    }
}

/// A fault waits for the background's only read of data. That read fails, and the next pass does
/// not begin before the fault has been served.
#[test]
fn a_fault_whose_background_fails_is_served_by_itself() {
    let faults = FaultWorld::new();
    let world = World { target: faults.target(), log: faults.log() };
    let mut bytes = noise(1, 64 << 10);
    bytes.resize(4 << 20, 0);
    let state = State::from([("a".to_owned(), bytes)]);
    Program::start(&world.pool(), "job").save(&state).unwrap();
    let (begun, told) = (Latch::default(), Told::default());
    let rests = RestsUntilTouched::default();
    let urgent = Arc::new(AtomicUsize::new(0));
    let is_background = || std::thread::current().name() == Some("outlive-fill");
    let (has_begun, sink) = (begun.clone(), told.clone());
    let (fails, urgent_too) = (rests.fails.clone(), urgent.clone());
    let steps = Steps::default();
    steps.hook(move |_, what| match what {
        "read shard" if is_background() && sink.zeros.is_open() && !has_begun.is_open() => {
            fails.store(true, Ordering::Release);
            has_begun.open();
            sink.expects.pass();
        }
        "read shard urgently" => drop(urgent_too.fetch_add(1, Ordering::Relaxed)),
        _ => {}
    });
    let fails = rests.fails.clone();
    faults.count_reads(true);
    faults.fail_when(move |_, _| {
        (is_background() && fails.load(Ordering::Acquire)).then_some(ErrorKind::Retry)
    });
    let program = Program::start(&world.stepped(&steps), "job");
    let restores = || restore_that(&program, Select::Newest, &open(), &told);
    let lazy = scheduled(Arc::new(rests.clone()), restores).unwrap().unwrap();
    begun.pass();
    assert_eq!(lazy.memory.touch(lazy.stream("a"), 5 * PAGE_BYTES, 0), state["a"][5 * PAGE_BYTES]);
    assert!(urgent.load(Ordering::Relaxed) > 0, "the fault was read like anything else");
    rests.touched.open();
    assert!(lazy.into_state(&world.pool()) == state);
}

/// The program needs the awaited page to go on, so the fill tries for two minutes: 119 rests of a
/// second.
#[test]
fn a_fill_waits_for_a_target_that_is_away() {
    for (rests, is_whole) in [(1, true), (119, true), (usize::MAX, false)] {
        let disks = Disks::new(FaultWorld::new());
        let tiers = TiersConfig { fill: false, ..TiersConfig::default() };
        let pool = disks.pool(tiers, Environment::system());
        let program = Program::start(&pool, "job");
        program.save(&state()).unwrap();
        let away = Arc::new(NoThreads { away: Some((disks, rests)), ..NoThreads::default() });
        let restored = scheduled(away.clone(), || restore(&program, Select::Newest, &open()));
        let lazy = restored.unwrap().unwrap();
        let had = away.rests.load(Ordering::Relaxed);
        match is_whole {
            true => {
                assert_eq!(had, rests);
                assert!(lazy.into_state(&pool) == state());
            }
            false => {
                assert_eq!(had, 119);
                let error = lazy.failures.lock().unwrap().try_recv().unwrap();
                assert!(error.is_away() && error.kind() == ErrorKind::Retry, "{error}");
            }
        }
    }
}
