//! Measures puts and gets of 64 MiB shards, next to plain requests of 8 MiB to the same server in
//! the same run: `cargo bench -p outlive-s3 --bench throughput`.

#[path = "../tests/it/support/mod.rs"]
mod support;

use futures_util::StreamExt;
use futures_util::stream;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStoreExt, PutPayload};
use outlive_backend::{ReadRange, Target};
use outlive_io::{AlignedBuf, SharedBuf, StagingPool, Ticket};
use outlive_s3::S3Target;
use std::time::Instant;
use support::{ACCESS, BUCKET, PAGE, SECRET, Server, content, name};
use tokio::runtime::Runtime;

const PART: usize = 8 << 20;
const SHARD: usize = 64 << 20;
const CONTAINER: usize = 4 << 20;
const SHARDS: u32 = 8;
const ROUNDS: u32 = 9;
/// Concurrent requests of every method.
const DEPTH: usize = 8;

fn raw(server: &Server) -> AmazonS3 {
    AmazonS3Builder::new()
        .with_endpoint(format!("http://{}", server.address()))
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_access_key_id(ACCESS)
        .with_secret_access_key(SECRET)
        .with_bucket_name(BUCKET)
        .build()
        .unwrap()
}

fn path(at: usize) -> Path {
    Path::from(format!("raw/{at}"))
}

/// Puts objects of 8 MiB.
async fn raw_put(store: &AmazonS3, bytes: &[PutPayload]) {
    stream::iter(0..SHARDS as usize * SHARD / PART)
        .for_each_concurrent(DEPTH, async |at| {
            drop(store.put(&path(at), bytes[at % bytes.len()].clone()).await.unwrap())
        })
        .await;
}

/// Uploads shards in parts, without our code: two at once.
async fn raw_upload(store: &AmazonS3, bytes: &[PutPayload]) {
    stream::iter(0..SHARDS as usize)
        .for_each_concurrent(2, async |shard| {
            let path = path(1000 + shard);
            let id = store.create_multipart(&path).await.unwrap();
            let part = async |at| store.put_part(&path, &id, at, bytes[at].clone()).await.unwrap();
            let parts = stream::iter(0..SHARD / PART).map(part).buffered(DEPTH / 2).collect().await;
            store.complete_multipart(&path, &id, parts).await.unwrap();
        })
        .await;
}

async fn raw_get(store: &AmazonS3) {
    stream::iter(0..SHARDS as usize * SHARD / PART)
        .for_each_concurrent(DEPTH, async |at| {
            let bytes = store.get(&path(at)).await.unwrap().bytes().await.unwrap();
            assert_eq!(bytes.len(), PART);
        })
        .await;
}

/// Writes shards as the packer does: containers of 4 MiB, the header last; two at once.
fn put(target: &S3Target, first: u32, bytes: &SharedBuf) {
    let mut finishing: Vec<Ticket<_>> = Vec::new();
    for pack in 0..SHARDS {
        let mut writer = target.create(name(first + pack), SHARD as u64).unwrap();
        let mut at = PAGE;
        let mut tickets = Vec::new();
        while at < SHARD {
            let end = SHARD.min(at + CONTAINER);
            tickets.push(writer.write(at as u64, bytes.slice(at..end)));
            at = end;
        }
        tickets.push(writer.write(0, bytes.slice(0..PAGE)));
        tickets.into_iter().for_each(|ticket| ticket.wait().unwrap());
        finishing.push(writer.finish(SHARD as u64));
        if finishing.len() > 1 {
            finishing.remove(0).wait().unwrap();
        }
    }
    finishing.into_iter().for_each(|ticket| ticket.wait().unwrap());
}

/// Reads ranges of 8 MiB into reused buffers.
fn get(target: &S3Target, first: u32) {
    let pool = StagingPool::new(DEPTH * PART, PART);
    let mut tickets = std::collections::VecDeque::new();
    for at in 0..SHARDS as usize * SHARD / PART {
        if tickets.len() == DEPTH {
            let ticket: outlive_backend::ReadTicket = tickets.pop_front().unwrap();
            assert_eq!(ticket.wait().unwrap().len(), PART);
        }
        let range = ReadRange::new((at % (SHARD / PART) * PART) as u64, pool.take());
        let shard = name(first + (at / (SHARD / PART)) as u32);
        tickets.extend(target.read_ranges(shard, vec![range]));
    }
    tickets.into_iter().for_each(|ticket| assert_eq!(ticket.wait().unwrap().len(), PART));
}

/// Returns the rate of `work` in MiB a second.
fn rate(work: impl FnOnce()) -> f64 {
    // Earlier writes reach the disk first, and do not slow this down.
    rustix::fs::sync();
    let since = Instant::now();
    work();
    ((SHARDS as usize * SHARD) >> 20) as f64 / since.elapsed().as_secs_f64()
}

fn main() {
    let Some(server) = Server::fast() else { return };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let target = server.pool_url().target().unwrap();
    // The first request chooses the TLS implementation, for all clients of a process.
    assert_eq!(target.list().unwrap(), []);
    let (runtime, store): (Runtime, AmazonS3) = (runtime.unwrap(), raw(&server));
    // A whole shard: a single part that is sent repeatedly would stay in the processor's caches.
    let bytes = content(1, SHARD);
    let payloads: Vec<_> = bytes.chunks(PART).map(|part| PutPayload::from(part.to_vec())).collect();
    let mut shard = AlignedBuf::zeroed(SHARD);
    shard.copy_from_slice(&bytes);
    let shard = shard.share();
    let mut ratios: [Vec<f64>; 3] = Default::default();
    println!("MiB/s: put 8 MiB, upload of parts, put shard; get 8 MiB, get shard");
    for round in 0..=ROUNDS {
        let mut rates = [0.0; 5];
        // Each method is first, second and third equally often.
        for turn in 0..3 {
            let way = (round as usize + turn) % 3;
            rates[way] = rate(|| match way {
                0 => runtime.block_on(raw_put(&store, &payloads)),
                1 => runtime.block_on(raw_upload(&store, &payloads)),
                _ => put(&target, round * SHARDS, &shard),
            });
        }
        for turn in 0..2 {
            let way = (round as usize + turn) % 2;
            rates[3 + way] = rate(|| match way {
                0 => runtime.block_on(raw_get(&store)),
                _ => get(&target, round * SHARDS),
            });
        }
        let [raw_put, raw_upload, our_put, raw_get, our_get] = rates;
        println!("{raw_put:6.0} {raw_upload:6.0} {our_put:6.0}; {raw_get:6.0} {our_get:6.0}");
        (0..SHARDS).for_each(|pack| target.delete(name(round * SHARDS + pack)).unwrap());
        // The first round warms up.
        if round > 0 {
            ratios[0].push(our_put / raw_put);
            ratios[1].push(our_put / raw_upload);
            ratios[2].push(our_get / raw_get);
        }
    }
    for (what, ratios) in ["put / put", "put / upload", "get / get"].into_iter().zip(&mut ratios) {
        ratios.sort_by(f64::total_cmp);
        println!("{what}: median {:.2}, all {ratios:.2?}", ratios[ratios.len() / 2]);
    }
}
