//! Saves to a pool in which some targets stop answering, at any step of a save.

use super::*;
use crate::Writes;
use crate::targets::Member;
use outlive_backend::{Bounds, TargetWatch, WriteTicket};
use outlive_types::NoObserver;
use outlive_types::sync::plain::{Condvar, Mutex};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

/// Step of a save that asks a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Look,
    Capacity,
    Length,
    Create,
    Write,
    Finish,
}

const STEPS: [Step; 6] =
    [Step::Look, Step::Capacity, Step::Length, Step::Create, Step::Write, Step::Finish];

/// A server that may go: from a step on, every call hangs until the server is back.
#[derive(Default)]
struct Server {
    state: Mutex<State>,
    is_back: Condvar,
}

#[derive(Default)]
struct State {
    hangs_at: Option<Step>,
    is_gone: bool,
    asked: usize,
    /// Writes and finishes that hang.
    late: Vec<Box<dyn FnOnce() + Send>>,
}

impl Server {
    /// Notes a call. Returns whether the server is gone.
    fn asked(&self, step: Step) -> bool {
        let mut state = self.state.lock();
        state.asked += 1;
        state.is_gone |= state.hangs_at == Some(step);
        state.is_gone
    }

    /// Waits while it is gone.
    fn ask(&self, step: Step) {
        if self.asked(step) {
            let mut state = self.state.lock();
            while state.is_gone {
                state = self.is_back.wait(state);
            }
        }
    }

    fn goes_at(&self, step: Step) {
        self.state.lock().hangs_at = Some(step);
    }

    fn comes_back(&self) {
        let late = {
            let mut state = self.state.lock();
            (state.hangs_at, state.is_gone) = (None, false);
            std::mem::take(&mut state.late)
        };
        self.is_back.notify_all();
        late.into_iter().for_each(|late| late());
    }

    /// Returns the ticket of an operation that hangs until the server is back.
    fn later<T: Send + 'static>(
        &self,
        what: impl FnOnce() -> Ticket<T> + Send + 'static,
    ) -> Ticket<T> {
        let (promise, ticket) = Ticket::pair();
        let late = move || what().on_done(move |outcome| promise.settle(outcome));
        self.state.lock().late.push(Box::new(late));
        ticket
    }
}

#[derive(Debug)]
struct Remote(Arc<dyn Target>, Arc<Server>);

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Server")
    }
}

impl Target for Remote {
    fn describe(&self) -> String {
        self.0.describe()
    }

    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        self.1.ask(Step::Create);
        let inner = Arc::new(Mutex::new(Some(self.0.create(shard, bytes_max)?)));
        Ok(Box::new(RemoteWriter(inner, self.1.clone())))
    }

    fn replace(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        self.1.ask(Step::Create);
        self.0.replace(shard, bytes_max)
    }

    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket> {
        self.0.read_ranges(shard, ranges)
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        self.1.ask(Step::Length);
        self.0.length(shard)
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        self.1.ask(Step::Length);
        self.0.list()
    }

    fn delete(&self, shard: ShardName) -> Result<()> {
        self.0.delete(shard)
    }

    fn capacity(&self) -> Result<Capacity> {
        self.1.ask(Step::Capacity);
        self.0.capacity()
    }
}

struct RemoteWriter(Arc<Mutex<Option<Box<dyn ShardWriter>>>>, Arc<Server>);

impl ShardWriter for RemoteWriter {
    fn write(&mut self, offset: u64, bytes: outlive_io::SharedBuf) -> WriteTicket {
        let inner = self.0.clone();
        let write = move || match inner.lock().as_mut() {
            Some(inner) => inner.write(offset, bytes),
            None => Ticket::done(Ok(())), // its shard was given up
        };
        if self.1.asked(Step::Write) { self.1.later(write) } else { write() }
    }

    fn finish(self: Box<Self>, length: u64) -> Ticket<Result<()>> {
        let inner = self.0.clone();
        let finish = move || {
            let inner = inner.lock().take();
            inner.expect("a shard that is finished was not given up").finish(length)
        };
        if self.1.asked(Step::Finish) { self.1.later(finish) } else { finish() }
    }
}

struct Remotes {
    servers: Vec<Arc<Server>>,
    watches: Vec<Arc<TargetWatch>>,
    pool: Pool,
}

impl Remotes {
    fn new(count: usize, redundancy: Redundancy) -> Remotes {
        let servers: Vec<Arc<Server>> = (0..count).map(|_| Arc::default()).collect();
        let (mut members, mut watches) = (Vec::new(), Vec::new());
        for (id, server) in (1..).zip(&servers) {
            let (looked, still_there) = (server.clone(), server.clone());
            let look = move || {
                looked.ask(Step::Look);
                Ok(())
            };
            let name = format!("target {id}");
            let (bounds, observer) = (Bounds::default(), Arc::new(NoObserver));
            // Time passes only for targets that hang: no other one can seem to be silent.
            let watch = TargetWatch::ticked(name, bounds, observer, Arc::new(look));
            let world = FaultWorld::new();
            let member = Member::new(id, Arc::new(Remote(world.target(), server.clone())));
            let member = member.if_there(Box::new(move || {
                still_there.ask(Step::Look);
                Ok(())
            }));
            members.push(member.watched(Some(watch.clone())));
            watches.push(watch);
        }
        let format = FormatConfig {
            container_bytes: CONTAINER as u64,
            pack_bytes: 4 * CONTAINER as u64,
            ..FormatConfig::new([7; 16])
        };
        let config = PoolConfig { redundancy, ..PoolConfig::new(format, Tuning::default()) };
        let pool = Pool::of(members, config, Arc::new(MemoryLog::new()), Environment::system());
        Remotes { servers, watches, pool }
    }

    /// Does the pool's part of a save. Time passes for targets that are gone.
    fn save(&self, number: u32) -> Result<(Vec<PackExtent>, Vec<Vec<u8>>)> {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for (server, watch) in self.servers.iter().zip(&self.watches) {
                        // Under its lock, so that it does not come back meanwhile.
                        let state = server.state.lock();
                        if state.is_gone {
                            watch.tick(Instant::now() + Duration::from_secs(1000));
                        }
                    }
                    thread::yield_now();
                }
            });
            let chunks = chunks(number.into(), 2 * CONTAINER + 9000);
            let saved =
                self.pool.check_markers().and_then(|()| write(&self.pool, pack(number), &chunks));
            is_over.store(true, Ordering::Relaxed);
            saved.map(|places| (places, chunks))
        })
    }

    fn asked(&self, number: usize) -> usize {
        self.servers[number].state.lock().asked
    }

    /// Brings a server back. Returns once its target is used again.
    fn comes_back(&self, number: usize) {
        self.servers[number].comes_back();
        while self.watches[number].silent().is_some() {
            self.watches[number].tick(Instant::now() + Duration::from_secs(1000));
            thread::yield_now();
        }
    }

    fn is_whole(&self, number: u32) -> bool {
        self.pool.check_pack(pack(number), &mut |_, _, _| Ok(())).unwrap().faults.is_empty()
    }
}

/// The first save waits, and no other one does; a target that hung and is back is used again.
#[test]
fn saves_go_on_without_targets_that_do_not_answer() {
    let cases = [
        (2, Redundancy::mirror(2), 1),
        (3, Redundancy::mirror(3), 2),
        (3, Redundancy::erasure(2, 1), 1),
    ];
    for (targets, rule, gone) in cases {
        for step in STEPS {
            let what = format!("{rule:?} {step:?}");
            let remotes = Remotes::new(targets, rule.clone());
            remotes.save(1).unwrap();
            assert!(remotes.is_whole(1), "{what}");
            (0..gone).for_each(|number| remotes.servers[number].goes_at(step));
            let first = remotes.save(2).unwrap_or_else(|error| panic!("{what}: {error}"));
            let asked: Vec<usize> = (0..gone).map(|number| remotes.asked(number)).collect();
            let second = remotes.save(3).unwrap_or_else(|error| panic!("{what}: {error}"));
            for (number, asked) in asked.into_iter().enumerate() {
                assert!(remotes.watches[number].silent().is_some(), "{what}");
                let (awaited, given_up) = remotes.watches[number].under_way();
                assert!(awaited == 0 && given_up > 0, "{what}: {awaited} {given_up}");
                assert_eq!(remotes.asked(number), asked, "{what}: it is left alone");
            }
            check(&remotes.pool, &first.0, &first.1, &what);
            check(&remotes.pool, &second.0, &second.1, &what);
            (0..gone).for_each(|number| remotes.comes_back(number));
            let third = remotes.save(4).unwrap();
            check(&remotes.pool, &third.0, &third.1, &what);
            assert!(remotes.is_whole(4), "{what}");
            assert!(!remotes.is_whole(3), "{what}");
            // Shards that were given up at their end may be there all the same: they equal those
            // that a repair makes.
            for number in [2, 3] {
                remotes.pool.mend_pack(pack(number), true, &[]).unwrap();
                assert!(remotes.is_whole(number), "{what}");
            }
        }
    }
}

/// Without redundancy to spare, the save ends, and names the target.
#[test]
fn a_save_that_needs_a_silent_target_names_it() {
    let full = Redundancy { writes: Writes::Full, ..Redundancy::mirror(2) };
    for (targets, rule, gone) in
        [(2, full, 0), (2, Redundancy::mirror(2), 1), (2, Redundancy::default(), 1)]
    {
        for step in STEPS {
            let what = format!("{rule:?} {step:?}");
            let remotes = Remotes::new(targets, rule.clone());
            (0..=gone).for_each(|number| remotes.servers[number].goes_at(step));
            for number in 1..3 {
                let error = remotes.save(number).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Retry, "{what}: {error}");
                let named = "target 1 has not answered for";
                let other = "target 2 has not answered for";
                assert!(
                    error.message().contains(named) || error.message().contains(other),
                    "{what}: {error}"
                );
            }
            (0..=gone).for_each(|number| remotes.comes_back(number));
            let (places, chunks) = remotes.save(4).unwrap();
            check(&remotes.pool, &places, &chunks, &what);
            assert!(remotes.is_whole(4), "{what}");
        }
    }
}
