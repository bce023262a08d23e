use super::*;
use outlive_backend::MemoryTarget;
use outlive_types::{ErrorKind, PackId, SessionId};

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

/// A state in which these pages wait.
fn waiting(
    target: &Arc<dyn Target>,
    pages: &[u64],
) -> (State, Vec<oneshot::Receiver<Result<Piece>>>) {
    let mut state = State::default();
    let mut told = Vec::new();
    for (number, page) in (0..).zip(pages) {
        let (tell, receiver) = oneshot::channel();
        let (place, offset) = ((Arc::from("p"), shard()), page * PAGE as u64);
        state.places.insert((place.clone(), offset, number), ());
        state.others.push([number as u8; 16], number);
        let (target, session) = (target.clone(), [number as u8; 16]);
        let wait = Wait { session, place, target, offset, length: PAGE, mode: mode(), tell };
        state.waits.insert(number, wait);
        told.push(receiver);
    }
    state.next = pages.len() as u64;
    (state, told)
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
    let stage = Stage::new(Admission::new(64 << 20), Buffers::new(64 << 20));
    let target = filled();
    let place = (Arc::from("p"), shard());
    let mut reads = Vec::new();
    for client in 0..16_u8 {
        for page in 0..64_u64 {
            let range = (page * PAGE as u64, PAGE, mode());
            reads.push((page, stage.read([client; 16], (&target, &place), range)));
        }
    }
    for (page, read) in reads {
        let piece = read.await.unwrap().unwrap();
        assert!(piece.bytes().iter().all(|byte| *byte == page as u8), "page {page}");
    }
    let made = stage.reads.load(Ordering::Relaxed);
    assert!(made < 100, "{made} reads for 1,024 ranges of 64 pages");
}

#[tokio::test]
async fn a_range_beyond_the_end_fails_alone() {
    let stage = Stage::new(Admission::new(64 << 20), Buffers::new(64 << 20));
    let target = filled();
    let place = (Arc::from("p"), shard());
    let pages = [62_u64, 63, 64, 65];
    let read =
        |page: &u64| stage.read([1; 16], (&target, &place), (page * PAGE as u64, PAGE, mode()));
    // They wait while the disk is at work.
    stage.state.lock().at_work = DEPTH;
    let reads: Vec<_> = pages.iter().map(read).collect();
    stage.state.lock().at_work = 0;
    stage.start_reads();
    let mut outcomes = Vec::new();
    for read in reads {
        outcomes.push(read.await.unwrap().map(drop).map_err(|error| error.kind()));
    }
    let damaged = Err(ErrorKind::Damaged);
    assert_eq!(outcomes, [Ok(()), Ok(()), damaged, damaged]);
}

#[tokio::test]
async fn nothing_of_a_replaced_shard_is_kept() {
    let stage = Stage::new(Admission::new(64 << 20), Buffers::new(64 << 20));
    let target = filled();
    let place = (Arc::from("p"), shard());
    let range = (0, PAGE, mode());
    stage.read([1; 16], (&target, &place), range).await.unwrap().unwrap();
    assert_eq!(stage.state.lock().recent.len(), 1);
    stage.forget(shard());
    assert_eq!(stage.state.lock().recent.len(), 0);
    // A read that began before.
    let batch = {
        let mut state = stage.state.lock();
        let (tell, _told) = oneshot::channel();
        let wait = Wait {
            session: [1; 16],
            place: place.clone(),
            target: target.clone(),
            offset: 0,
            length: PAGE,
            mode: mode(),
            tell,
        };
        state.waits.insert(99, wait);
        state.others.push([1; 16], 99);
        state.next_batch().unwrap()
    };
    stage.forget(shard());
    stage.carry_out(batch).await;
    let state = stage.state.lock();
    assert_eq!((state.recent.len(), state.recent_bytes), (0, 0));
}
