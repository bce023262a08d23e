//! Subscriptions of clients: each gets the fate of every checkpoint of its writer.
#![allow(unsafe_code)] // the tests hand over their own memory

use outlive_capture::Region;
use outlive_client::{Client, End, NextEvent, Subscription};
use outlive_pool::{Environment, FormatConfig, Pool, PoolConfig, Tuning, create, open};
use outlive_store::gc::{GcOptions, collect};
use outlive_store::{CommitEvent, JobOptions, SaveHandle, SaveNotes};
use outlive_types::{Epoch, ErrorKind, Result};
use std::path::Path;
use std::thread;
use std::time::Duration;

fn pool(dir: &Path) -> Pool {
    let path = dir.join("pool");
    if path.exists() {
        return open(&path, Environment::system()).unwrap();
    }
    let config = PoolConfig::new(FormatConfig::new([3; 16]), Tuning::default());
    create(&path, config, Environment::system()).unwrap()
}

fn client(pool: &Pool) -> Client {
    Client::open(pool, "job", JobOptions::default()).unwrap()
}

static CONSTANT: [u8; 3000] = [7; 3000];

fn save(client: &Client) -> Result<SaveHandle> {
    let (start, length) = (CONSTANT.as_ptr(), CONSTANT.len());
    // SAFETY: the memory is static, and never written.
    let region = unsafe { Region::from_raw("a", "|u1", vec![length as u64], start, length) };
    client.save(vec![region], b"{}".to_vec(), SaveNotes::default())
}

/// Takes an event, which must come.
fn next(queue: &Subscription) -> (Epoch, Option<ErrorKind>) {
    match queue.next(Some(Duration::from_secs(100))).unwrap() {
        NextEvent::Event(CommitEvent::Committed { epoch, .. }) => (epoch, None),
        NextEvent::Event(CommitEvent::Failed { epoch, error, .. }) => (epoch, Some(error.kind())),
        other => panic!("no event: {other:?}"),
    }
}

#[test]
fn every_subscription_gets_all_commits_of_the_writer_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path());
    let clients = [client(&pool), client(&pool)];
    let queues = [clients[0].events(), clients[1].events(), clients[0].events()];
    thread::scope(|scope| {
        for queue in &queues {
            scope.spawn(|| (1..=20).for_each(|epoch| assert_eq!(next(queue), (epoch, None))));
        }
        for step in 0..20 {
            save(&clients[step % 2]).unwrap();
        }
    });
    // An event is there before a wait for its save returns, and when the checkpoint is stored.
    save(&clients[0]).unwrap().wait(None).unwrap().unwrap();
    assert_eq!(queues[1].next(Some(Duration::ZERO)).unwrap(), queues[0].next(None).unwrap());
    save(&clients[0]).unwrap();
    assert_eq!([next(&queues[2]), next(&queues[2])], [(21, None), (22, None)]);
    let another = open(&dir.path().join("pool"), Environment::system()).unwrap();
    let seen = client(&another).job().epochs().unwrap();
    assert_eq!(seen.last().unwrap().epoch, 22);
}

#[test]
fn a_subscription_ends_with_its_client() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path());
    let (first, second) = (client(&pool), client(&pool));
    let (of_first, of_second) = (first.events(), second.events());
    thread::scope(|scope| {
        let last = first.events();
        let takes = scope.spawn(move || {
            assert_eq!(next(&last), (1, None));
            last.next(None).unwrap()
        });
        save(&first).unwrap();
        first.close(End::Together).unwrap();
        assert_eq!(takes.join().unwrap(), NextEvent::Over);
    });
    save(&second).unwrap().wait(None).unwrap().unwrap();
    assert_eq!(next(&of_first), (1, None));
    assert_eq!(of_first.next(None).unwrap(), NextEvent::Over);
    assert_eq!([next(&of_second), next(&of_second)], [(1, None), (2, None)]);
    // A closed client can be used again, with another subscription.
    let again = first.events();
    save(&first).unwrap();
    assert_eq!(next(&again), (3, None));
    drop(first);
    assert_eq!(again.next(None).unwrap(), NextEvent::Over);
    assert_eq!(next(&of_second), (3, None));
}

#[test]
fn a_save_that_is_refused_gives_no_event() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path());
    let client = client(&pool);
    let queue = client.events();
    save(&client).unwrap();
    assert_eq!(next(&queue), (1, None));
    // A gc with a fence stands for another program that takes over the job.
    client.job().wait().unwrap();
    let options = GcOptions { fence: vec![client.job().name().clone()], ..GcOptions::default() };
    collect(&pool, &options).unwrap();
    assert_eq!(save(&client).unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(queue.next(Some(Duration::ZERO)).unwrap(), NextEvent::NotYet);
}
