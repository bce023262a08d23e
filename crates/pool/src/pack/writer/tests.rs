use super::*;
use crate::{Environment, FormatConfig, PoolConfig, Tuning};
use outlive_backend::{
    Capacity, Fault, ReadRange, ReadTicket, ShardName, ShardWriter, Target, WriteTicket,
};
use outlive_io::{AlignedBuf, SharedBuf, Ticket};
use outlive_log::MemoryLog;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// A target whose writes end only once their shard has been given up.
#[derive(Debug, Default)]
struct Slow {
    written: Arc<AtomicUsize>,
}

struct SlowWriter {
    written: Arc<AtomicUsize>,
    under_way: Vec<outlive_io::Promise<std::result::Result<(), Fault<SharedBuf>>>>,
}

impl Target for Slow {
    fn describe(&self) -> String {
        "a slow target".to_owned()
    }
    fn create(&self, _: ShardName, _: u64) -> Result<Box<dyn ShardWriter>> {
        Ok(Box::new(SlowWriter { written: self.written.clone(), under_way: Vec::new() }))
    }
    fn replace(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        self.create(shard, bytes_max)
    }
    fn read_ranges(&self, _: ShardName, _: Vec<ReadRange>) -> Vec<ReadTicket> {
        Vec::new()
    }
    fn length(&self, _: ShardName) -> Result<u64> {
        Err(Error::damaged("nothing is kept"))
    }
    fn list(&self) -> Result<Vec<ShardName>> {
        Ok(Vec::new())
    }
    fn delete(&self, _: ShardName) -> Result<()> {
        Ok(())
    }
    fn capacity(&self) -> Result<Capacity> {
        Ok(Capacity { total_bytes: 0, free_bytes: 0 })
    }
}

impl ShardWriter for SlowWriter {
    fn write(&mut self, _: u64, _: SharedBuf) -> WriteTicket {
        let (promise, ticket) = Ticket::pair();
        self.under_way.push(promise);
        ticket
    }
    fn finish(self: Box<Self>, _: u64) -> Ticket<Result<()>> {
        Ticket::done(Err(Error::bug("it is given up")))
    }
}

impl Drop for SlowWriter {
    fn drop(&mut self) {
        let (written, under_way) = (self.written.clone(), std::mem::take(&mut self.under_way));
        thread::spawn(move || {
            for promise in under_way {
                thread::yield_now();
                written.fetch_add(1, Ordering::AcqRel);
                promise.fulfil(Ok(()));
            }
        });
    }
}

/// A writer that gives up for lack of space may try something smaller, and finds no space while
/// writes go on.
#[test]
fn nothing_is_under_way_once_a_pack_is_given_up() {
    const CONTAINERS: usize = 5;
    let target = Slow::default();
    let written = target.written.clone();
    let format = FormatConfig { container_bytes: 64 << 10, ..FormatConfig::new([7; 16]) };
    let config = PoolConfig::new(format, Tuning::default());
    let log = Arc::new(MemoryLog::new());
    let pool = Pool::new(config, Arc::new(target), log, Environment::system());
    let mut pack = PackWriter::new(&pool, PackId([1; 20]), 1 << 20).unwrap();
    for _ in 0..=CONTAINERS {
        pack.open(Container::new(AlignedBuf::zeroed(64 << 10))).unwrap();
    }
    assert_eq!(pack.check_writes().unwrap(), CONTAINERS);
    pack.give_up();
    assert_eq!(written.load(Ordering::Acquire), CONTAINERS);
}
