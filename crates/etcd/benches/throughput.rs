//! Measures the requests of a log, and a listing of 100,000 records: `cargo bench -p outlive-etcd
//! --bench throughput`.

#[path = "../tests/it/support/mod.rs"]
mod support;

use outlive_log::{LogRecords, Put};
use std::thread;
use std::time::{Duration, Instant};
use support::{Cluster, job, url_with};

const RECORDS: u64 = 100_000;
const MANIFEST: usize = 20_000;
const ROUNDS: u64 = 300;
const THREADS: u64 = 64;

/// Returns the median duration of `work` over the numbers.
fn median(numbers: impl Iterator<Item = u64>, mut work: impl FnMut(u64)) -> Duration {
    let mut took: Vec<Duration> = numbers
        .map(|number| {
            let since = Instant::now();
            work(number);
            since.elapsed()
        })
        .collect();
    took.sort_unstable();
    took[took.len() / 2]
}

fn main() {
    for members in [1, 3] {
        let cluster = Cluster::of(members);
        let medium = url_with(&cluster.addresses(), "p", &[]).medium().unwrap();
        let put = |number: u64, bytes: usize| {
            assert_eq!(medium.put_new(&job(), number, &vec![7; bytes]).unwrap(), Put::Made);
        };
        let small = median(1..=ROUNDS, |number| put(number, 500));
        let large = median(ROUNDS + 1..=2 * ROUNDS, |number| put(number, MANIFEST));
        let get = median(ROUNDS + 1..=2 * ROUNDS, |number| {
            assert_eq!(medium.get(&job(), number).unwrap().unwrap().len(), MANIFEST);
        });
        println!(
            "{members} members: put 500 bytes {small:?}, put 20 kB {large:?}, get 20 kB {get:?}"
        );
        if members > 1 {
            return;
        }
        let since = Instant::now();
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let numbers = (2 * ROUNDS + 1..=RECORDS).filter(move |it| it % THREADS == thread);
                scope.spawn(move || numbers.for_each(|number| put(number, 500)));
            }
        });
        println!("{RECORDS} puts by {THREADS} threads: {:?}", since.elapsed());
        let listed = median(0..3, |_| {
            assert_eq!(medium.list(&job()).unwrap().len() as u64, RECORDS);
        });
        println!("list of {RECORDS}: {listed:?}");
        println!("jobs: {:?}", median(0..ROUNDS, |_| drop(medium.jobs().unwrap())));
    }
}
