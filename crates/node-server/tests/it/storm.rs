//! Random requests, many of them twice, compared with a model of the shards.

use crate::support::{Served, serve};
use bytes::Bytes;
use outlive_backend::ShardName;
use outlive_node::protocol::{
    AbandonRequest, BeginRequest, FinishRequest, ListRequest, Range, ReadRequest, Shard, ShardDo,
    ShardRequest, WritePart,
};
use outlive_node::stubs::node_client::NodeClient;
use outlive_types::{PackId, SeededRng, SessionId};
use std::collections::BTreeMap;
use tokio::runtime::Builder;
use tonic::transport::{Channel, Endpoint};

const PAGE: u64 = 4096;
const SHARDS: u64 = 16;
const SESSIONS: u64 = 3;
const STEPS: usize = 3000;

/// A writer, as the node should know it.
#[derive(Clone)]
struct Writer {
    session: u8,
    shard: u32,
    /// The byte of each page that is written.
    pages: BTreeMap<u64, u8>,
    /// Whether its finish succeeded, once it has come.
    finished: Option<bool>,
}

struct Storm {
    client: NodeClient<Channel>,
    chance: SeededRng,
    writers: BTreeMap<u8, Writer>,
    /// The bytes of the pages of each finished shard.
    shards: BTreeMap<u32, Vec<u8>>,
    finishes: usize,
    refusals: usize,
}

fn name(shard: u32) -> Shard {
    Shard::from(ShardName { pack: PackId::new(SessionId([0xE0; 12]), 0, shard), shard: 0 })
}

fn bytes(of: u8) -> Bytes {
    Bytes::copy_from_slice(&[of; 16])
}

impl Storm {
    fn below(&mut self, end: u64) -> u64 {
        self.chance.next_u64() % end
    }

    /// Number of times that a request is sent: a client sends it again after a lost reply.
    fn times(&mut self) -> usize {
        if self.below(4) == 0 { 2 } else { 1 }
    }

    async fn begin(&mut self) {
        let id = self.below(200) as u8;
        let session = self.below(SESSIONS) as u8;
        let shard = self.below(SHARDS) as u32;
        let replaces = self.below(2) == 0;
        let request = BeginRequest {
            session: bytes(session),
            prefix: "p/0".to_owned(),
            writer: bytes(id),
            shard: Some(name(shard)),
            bytes_max: 8 * PAGE,
            replaces,
        };
        let is_known = self.writers.contains_key(&id);
        for _ in 0..self.times() {
            let begun = self.client.begin(request.clone()).await;
            match (&begun, self.writers.get(&id)) {
                (Ok(_), Some(known)) => {
                    assert_eq!((known.session, known.shard), (session, shard), "another's writer");
                }
                (Ok(_), None) => {
                    assert!(replaces || !self.shards.contains_key(&shard), "it was created twice");
                    let pages = BTreeMap::new();
                    self.writers.insert(id, Writer { session, shard, pages, finished: None });
                }
                (Err(_), known) => {
                    self.refusals += 1;
                    let exists = !replaces && self.shards.contains_key(&shard);
                    assert!(known.is_some() || exists, "writer {id}: {begun:?}");
                    assert!(is_known || exists);
                }
            }
        }
    }

    fn some_writer(&mut self) -> Option<u8> {
        let count = self.writers.len() as u64;
        let at = if count == 0 { return None } else { self.below(count) };
        self.writers.keys().nth(at as usize).copied()
    }

    async fn write(&mut self) {
        let Some(id) = self.some_writer() else { return };
        let (page, byte) = (self.below(9), self.below(255) as u8 + 1);
        let writer = self.writers[&id].clone();
        // A range that is known keeps its bytes.
        let part = WritePart {
            session: bytes(writer.session),
            writer: bytes(id),
            offset: page * PAGE,
            length: PAGE,
            bytes: vec![byte; PAGE as usize].into(),
        };
        for _ in 0..self.times() {
            let written = self.client.write(tokio_stream::iter([part.clone()])).await;
            match written {
                Ok(_) => {
                    assert!(page < 8, "a page beyond the end was written");
                    let pages = &mut self.writers.get_mut(&id).unwrap().pages;
                    pages.entry(page).or_insert(byte);
                }
                Err(_) => {
                    self.refusals += 1;
                    let is_known = writer.pages.contains_key(&page);
                    assert!(page >= 8 || (writer.finished.is_some() && !is_known), "page {page}");
                }
            }
        }
    }

    async fn finish(&mut self) {
        let Some(id) = self.some_writer() else { return };
        let writer = self.writers[&id].clone();
        let length = writer.pages.last_key_value().map_or(0, |(last, _)| (last + 1) * PAGE);
        let request = FinishRequest { session: bytes(writer.session), writer: bytes(id), length };
        for _ in 0..self.times() {
            let finished = self.client.finish(request.clone()).await.is_ok();
            let known = self.writers[&id].finished;
            assert!(known.is_none_or(|known| known == finished), "two answers to one finish");
            if known.is_none() && finished {
                let pages = (0..length / PAGE).map(|at| *writer.pages.get(&at).unwrap_or(&0));
                self.shards.insert(writer.shard, pages.collect());
                self.finishes += 1;
            }
            self.writers.get_mut(&id).unwrap().finished = Some(finished);
        }
    }

    async fn abandon(&mut self) {
        let Some(id) = self.some_writer() else { return };
        let session = bytes(self.writers[&id].session);
        for _ in 0..self.times() {
            let request = AbandonRequest { session: session.clone(), writer: bytes(id) };
            self.client.abandon(request).await.unwrap();
        }
        self.writers.remove(&id);
    }

    async fn delete(&mut self) {
        let shard = self.below(SHARDS) as u32;
        for _ in 0..self.times() {
            let request = ShardRequest {
                session: bytes(0),
                prefix: "p/0".to_owned(),
                work: ShardDo::Delete.into(),
                shards: vec![name(shard)],
                bytes: 0,
            };
            self.client.shard(request).await.unwrap();
        }
        self.shards.remove(&shard);
    }

    /// Compares all shards with the model.
    async fn check(&mut self) {
        let list =
            ListRequest { session: bytes(0), prefix: "p/0".to_owned(), ..Default::default() };
        let mut parts = self.client.list(list).await.unwrap().into_inner();
        let mut listed = Vec::new();
        while let Some(part) = parts.message().await.unwrap() {
            listed.extend(part.shards);
        }
        let expected: Vec<Shard> = self.shards.keys().map(|shard| name(*shard)).collect();
        assert_eq!(listed, expected);
        for (shard, pages) in self.shards.clone() {
            let range = |at: u64| Range { offset: at * PAGE, length: PAGE, ..Range::default() };
            let request = ReadRequest {
                session: bytes(1),
                prefix: "p/0".to_owned(),
                shard: Some(name(shard)),
                ranges: (0..pages.len() as u64 + 1).rev().map(range).collect(),
            };
            let mut parts = self.client.read(request).await.unwrap().into_inner();
            let mut read = vec![None; pages.len() + 1];
            while let Some(part) = parts.message().await.unwrap() {
                let at = pages.len() - part.range as usize;
                match part.fault {
                    None => {
                        assert!(part.bytes.iter().all(|byte| *byte == part.bytes[0]));
                        read[at] = Some(part.bytes[0]);
                    }
                    Some(fault) => assert_eq!((fault.kind.as_str(), at), ("Damaged", pages.len())),
                }
            }
            let wanted: Vec<_> = pages.iter().map(|byte| Some(*byte)).chain([None]).collect();
            assert_eq!(read, wanted, "shard {shard}");
        }
    }
}

fn run(served: &Served, seed: u64) {
    let _folders = served.new_location();
    let address = served.server.address();
    Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let mut storm = Storm {
            client: NodeClient::new(endpoint.connect().await.unwrap()),
            chance: SeededRng::new(seed),
            writers: BTreeMap::new(),
            shards: BTreeMap::new(),
            finishes: 0,
            refusals: 0,
        };
        for _ in 0..STEPS {
            match storm.below(20) {
                0..4 => storm.begin().await,
                4..12 => storm.write().await,
                12..15 => storm.finish().await,
                15..17 => storm.abandon().await,
                17 => storm.delete().await,
                _ => storm.check().await,
            }
        }
        storm.check().await;
        let (finishes, refusals) = (storm.finishes, storm.refusals);
        assert!(finishes > 30 && refusals > 50, "{finishes} finishes, {refusals} refusals");
    });
}

#[test]
fn a_node_does_what_a_model_does_for_requests_that_come_twice() {
    for seed in 0..3 {
        run(&serve(1, |_| ()), seed);
    }
}

#[test]
fn a_node_with_several_directories_does_so_too() {
    for seed in 10..13 {
        run(&serve(3, |_| ()), seed);
    }
}
