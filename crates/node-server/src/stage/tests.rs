use super::*;
use outlive_backend::MemoryTarget;
use outlive_types::{ErrorKind, PackId, SessionId};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const PAGE: usize = 4096;
const SHARD_BYTES: usize = 64 * PAGE;

fn shard() -> ShardName {
    ShardName { pack: PackId::new(SessionId([7; 12]), 0, 1), shard: 0 }
}

fn content() -> Vec<u8> {
    (0..SHARD_BYTES).map(|at| (at / PAGE) as u8).collect()
}

fn filled() -> Arc<dyn Target> {
    let target = MemoryTarget::new();
    let mut writer = target.create(shard(), SHARD_BYTES as u64).unwrap();
    let mut buffer = AlignedBuf::zeroed(SHARD_BYTES);
    buffer.copy_from_slice(&content());
    writer.write(0, buffer.share()).wait().unwrap();
    writer.finish(SHARD_BYTES as u64).wait().unwrap();
    Arc::new(target)
}

fn mode() -> ReadMode {
    ReadMode::default()
}

type Replies = UnboundedReceiver<(u32, Result<Bytes>)>;

/// A state in which these pages wait.
fn waiting(target: &Arc<dyn Target>, pages: &[u64]) -> (State, Replies) {
    let mut state = State::default();
    let (give, replies) = unbounded_channel();
    for (number, page) in (0..).zip(pages) {
        let (place, offset) = ((Arc::from("p"), shard()), page * PAGE as u64);
        state.places.insert((place.clone(), offset, number), ());
        state.others.push([number as u8; 16], number);
        let (target, reply) = (target.clone(), (0, give.clone()));
        let wait = Wait { place, target, offset, length: PAGE, mode: mode(), reply };
        state.waits.insert(number, wait);
    }
    state.next = pages.len() as u64;
    (state, replies)
}

fn spans(state: &mut State) -> Vec<(u64, u64, usize)> {
    let page = PAGE as u64;
    std::iter::from_fn(|| state.next_batch())
        .map(|batch| (batch.start / page, batch.end / page, batch.waits.len()))
        .collect()
}

#[test]
fn ranges_that_wait_near_each_other_are_read_at_once() {
    let target = filled();
    let gap = GAP_BYTES / PAGE as u64;
    let (mut state, _told) = waiting(&target, &[20, 3, 21, 4, 3, 20 + gap + 2]);
    assert_eq!(spans(&mut state), [(3, 22 + gap + 1, 6)], "the pages between are few");
    let far = 4 + gap + 2;
    let (mut state, _told) = waiting(&target, &[far, 3, 4]);
    assert_eq!(spans(&mut state), [(far, far + 1, 1), (3, 5, 2)]);
    assert!(state.places.is_empty() && state.waits.is_empty());
}

#[test]
fn a_batch_is_at_most_a_unit() {
    let target = filled();
    let pages: Vec<u64> = (0..3000).collect();
    let (mut state, _told) = waiting(&target, &pages);
    let spans = spans(&mut state);
    assert_eq!(spans.iter().map(|(_, _, count)| count).sum::<usize>(), 3000);
    let unit = (UNIT_BYTES / PAGE) as u64;
    assert!(spans.iter().all(|(start, end, _)| end - start <= unit), "{spans:?}");
    assert_eq!(spans.len(), 3);
}

#[tokio::test]
async fn each_client_gets_its_bytes_and_few_reads_are_made() {
    let stage = Stage::new(64 << 20, Buffers::new(64 << 20));
    let target = filled();
    let place = (Arc::from("p"), shard());
    let (give, mut replies) = unbounded_channel();
    for client in 0..16_u8 {
        for page in 0..64_u32 {
            let range = (u64::from(page) * PAGE as u64, PAGE, mode());
            stage.read([client; 16], (&target, &place), range, (page, give.clone()));
        }
    }
    drop(give);
    let mut count = 0;
    while let Some((page, read)) = replies.recv().await {
        assert!(read.unwrap().iter().all(|byte| *byte == page as u8), "page {page}");
        count += 1;
    }
    assert_eq!(count, 16 * 64);
    let made = stage.reads.load(Ordering::Relaxed);
    assert!(made < 100, "{made} reads for 1,024 ranges of 64 pages");
}

#[tokio::test]
async fn a_range_beyond_the_end_fails_alone() {
    let stage = Stage::new(64 << 20, Buffers::new(64 << 20));
    let target = filled();
    let place = (Arc::from("p"), shard());
    let (give, mut replies) = unbounded_channel();
    // They wait while the disk is at work.
    stage.state.lock().at_work = stage.depth;
    for page in 62..66_u32 {
        let range = (u64::from(page) * PAGE as u64, PAGE, mode());
        stage.read([1; 16], (&target, &place), range, (page, give.clone()));
    }
    drop(give);
    stage.state.lock().at_work = 0;
    stage.start_reads();
    let mut outcomes = BTreeMap::new();
    while let Some((page, read)) = replies.recv().await {
        outcomes.insert(page, read.map(drop).map_err(|error| error.kind()));
    }
    let damaged = Err(ErrorKind::Damaged);
    let expected = [(62, Ok(())), (63, Ok(())), (64, damaged), (65, damaged)];
    assert_eq!(outcomes, BTreeMap::from(expected));
}

#[tokio::test]
async fn nothing_is_read_for_a_client_that_is_gone() {
    let stage = Stage::new(64 << 20, Buffers::new(64 << 20));
    let target = filled();
    let place = (Arc::from("p"), shard());
    let (give, replies) = unbounded_channel();
    stage.state.lock().at_work = stage.depth;
    stage.read([1; 16], (&target, &place), (0, PAGE, mode()), (0, give));
    drop(replies);
    stage.state.lock().at_work = 0;
    stage.start_reads();
    assert_eq!(stage.reads.load(Ordering::Relaxed), 0);
    assert!(stage.state.lock().waits.is_empty());
}

#[tokio::test]
async fn nothing_of_a_replaced_shard_is_kept() {
    let stage = Stage::new(64 << 20, Buffers::new(64 << 20));
    let target = filled();
    let place = (Arc::from("p"), shard());
    let (give, mut replies) = unbounded_channel();
    stage.read([1; 16], (&target, &place), (0, PAGE, mode()), (0, give.clone()));
    replies.recv().await.unwrap().1.unwrap();
    while stage.state.lock().at_work > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(stage.state.lock().recent.len(), 1);
    stage.forget(shard());
    assert_eq!(stage.state.lock().recent.len(), 0);
    // A read that began before.
    let (mut state, _replies) = waiting(&target, &[0]);
    let batch = state.next_batch().unwrap();
    stage.forget(shard());
    stage.carry_out(batch).await;
    let state = stage.state.lock();
    assert_eq!((state.recent.len(), state.recent_bytes), (0, 0));
}
