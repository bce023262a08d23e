//! The ranks of a program as real processes: each makes its image and sends it to the committer,
//! which commits one checkpoint of them. One of them is killed at the worst moment.

use crate::common;

use common::{State, Vectors, changed, noise, regions_of, small_config};
use outlive_capture::{ChangeTracker, MemorySource, Region};
use outlive_format::SaveMessage;
use outlive_pool::{Environment, Pool, create, open};
use outlive_store::commit::Commit;
use outlive_store::gc::{GcOptions, collect};
use outlive_store::save::{CheckpointHeader, Committer, RankImage, RankWriter, SaveRequest};
use outlive_store::{Job, MemoryImage, Select};
use outlive_types::{Epoch, JobName, Rank};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

const RANKS: Rank = 3;
/// Set for the process of a rank: the pool, its socket, and the rank.
const ROLE: &str = "OUTLIVE_TEST_RANK";
/// Orders besides messages.
const SAVE: u8 = 1;
const MESSAGE: u8 = 2;

fn state(rank: Rank, step: u64) -> State {
    let first = State::from([
        ("a".to_owned(), noise(u64::from(rank), 300_000)),
        ("shared".to_owned(), noise(99, 200_000)),
    ]);
    (1..=step).fold(first, |state, step| changed(state, step as usize, step))
}

fn send(to: &mut UnixStream, order: u8, bytes: &[u8]) -> std::io::Result<()> {
    to.write_all(&[order])?;
    to.write_all(&(bytes.len() as u64).to_le_bytes())?;
    to.write_all(bytes)
}

fn receive(from: &mut UnixStream) -> std::io::Result<(u8, Vec<u8>)> {
    let (mut order, mut length) = ([0], [0; 8]);
    from.read_exact(&mut order)?;
    from.read_exact(&mut length)?;
    let mut bytes = vec![0; u64::from_le_bytes(length) as usize];
    from.read_exact(&mut bytes)?;
    Ok((order[0], bytes))
}

fn tell(to: &mut UnixStream, message: &SaveMessage) -> std::io::Result<()> {
    send(to, MESSAGE, &message.encode().unwrap())
}

fn hear(from: &mut UnixStream) -> std::io::Result<SaveMessage> {
    receive(from).map(|(_, bytes)| SaveMessage::decode(&bytes).unwrap())
}

fn opened(pool: &Path) -> Pool {
    open(pool, Environment::system()).unwrap()
}

/// The process of a rank: follows the orders of the committer until none comes any more.
#[test]
fn the_process_of_a_rank() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (rank, dir) = role.split_once(' ').unwrap();
    let (rank, dir): (Rank, _) = (rank.parse().unwrap(), Path::new(dir));
    let pool = opened(&dir.join("pool"));
    let mut committer = UnixStream::connect(dir.join("socket")).unwrap();
    committer.write_all(&rank.to_le_bytes()).unwrap();
    let mut writer = RankWriter::new(rank, 1 << 20);
    let tracker = Arc::new(ChangeTracker::new());
    while let Ok((SAVE, order)) = receive(&mut committer) {
        let (epoch, step) = order.split_first_chunk::<8>().unwrap();
        let epoch: Epoch = u64::from_le_bytes(*epoch);
        let memory = state(rank, u64::from_le_bytes(step.try_into().unwrap()));
        let region = |(name, bytes): (&String, &Vec<u8>)| {
            Region::from_bytes(name.as_str(), "|u1", vec![bytes.len() as u64], bytes.as_slice())
        };
        let regions = memory.iter().map(region).collect();
        let mut source = MemorySource::new(tracker.clone(), regions, Vec::new(), 1);
        let SaveMessage::Session(session) = hear(&mut committer).unwrap() else {
            panic!("a session")
        };
        let packs = writer.begin(&pool, &session).unwrap();
        let (frozen, plan) = writer.freeze(&pool, epoch, &mut source, false).unwrap();
        let order = SaveRequest::default();
        let mut stored = writer.store(&pool, &packs, &plan, &*frozen, &order, &|| ()).unwrap();
        loop {
            tell(&mut committer, &SaveMessage::Image(stored.image().clone())).unwrap();
            match hear(&mut committer) {
                Ok(SaveMessage::Committed(committed)) => {
                    writer.follow(&pool, stored, &committed);
                    frozen.commit_baseline(Some(epoch));
                    break;
                }
                Ok(SaveMessage::Changed(changes)) => {
                    writer.rebase(&pool, &packs, &mut stored, changes).unwrap();
                }
                _ => return,
            }
        }
    }
}

/// The committer's side: its ranks, each with its process.
struct Group {
    pool: Pool,
    committer: Committer,
    ranks: Vec<(UnixStream, Child)>,
}

impl Group {
    fn start(dir: &Path) -> Group {
        let socket = dir.join("socket");
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let start = |rank: Rank| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "rank_processes::the_process_of_a_rank", "--nocapture"])
                .env(ROLE, format!("{rank} {}", dir.display()))
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        };
        let mut children: Vec<Option<Child>> = (0..RANKS).map(|rank| Some(start(rank))).collect();
        let mut ranks: Vec<_> = (0..RANKS)
            .map(|_| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut rank = [0; 4];
                stream.read_exact(&mut rank).unwrap();
                let rank = u32::from_le_bytes(rank);
                (rank, stream, children[rank as usize].take().unwrap())
            })
            .collect();
        ranks.sort_by_key(|(rank, ..)| *rank);
        let ranks = ranks.into_iter().map(|(_, stream, child)| (stream, child)).collect();
        let committer = Committer::new(JobName::new("job").unwrap());
        Group { pool: opened(&dir.join("pool")), committer, ranks }
    }

    /// Makes every rank store its image; returns the images.
    fn images(&mut self, step: u64) -> (Epoch, Vec<RankImage>) {
        let session = SaveMessage::Session(self.committer.open(&self.pool).unwrap());
        let epoch = self.committer.head.last_epoch + 1;
        for (stream, _) in &mut self.ranks {
            send(stream, SAVE, &[epoch.to_le_bytes(), step.to_le_bytes()].concat()).unwrap();
            tell(stream, &session).unwrap();
        }
        (epoch, self.ranks.iter_mut().map(|(stream, _)| image(stream)).collect())
    }

    fn commit(&mut self, epoch: Epoch, mut images: Vec<RankImage>) -> usize {
        let draft = CheckpointHeader { epoch, ..CheckpointHeader::default() };
        for round in 1.. {
            let message = match self.committer.commit(&self.pool, &draft, &images).unwrap() {
                Commit::Done(committed) => SaveMessage::Committed(committed),
                Commit::Changed(changes) => SaveMessage::Changed(changes),
            };
            self.ranks.iter_mut().for_each(|(stream, _)| tell(stream, &message).unwrap());
            if matches!(message, SaveMessage::Committed(_)) {
                return round;
            }
            images = self.ranks.iter_mut().map(|(stream, _)| image(stream)).collect();
        }
        unreachable!("it commits, or panics")
    }

    fn end(self) {
        for (stream, mut child) in self.ranks {
            drop(stream);
            child.wait().unwrap();
        }
    }
}

fn image(from: &mut UnixStream) -> RankImage {
    match hear(from).unwrap() {
        SaveMessage::Image(image) => image,
        other => panic!("an image, not {other:?}"),
    }
}

fn restored(checkpoint: &MemoryImage) -> State {
    let vectors = Vectors::for_all(checkpoint);
    let all: Vec<usize> = (0..checkpoint.streams().len()).collect();
    checkpoint.read(&all, &vectors).unwrap();
    regions_of(checkpoint, &vectors.into_inner())
}

#[test]
fn processes_save_together_and_one_that_is_killed_costs_only_uncommitted_images() {
    let dir = tempfile::tempdir().unwrap();
    create(&dir.path().join("pool"), small_config(), Environment::system()).unwrap();
    let mut group = Group::start(dir.path());
    for step in 0..4 {
        let (epoch, images) = group.images(step);
        if step == 3 {
            // A gc moves or deletes data that the images share with older checkpoints, before they
            // are committed.
            let drop = [(JobName::new("job").unwrap(), [1, 2].into())].into();
            collect(&group.pool, &GcOptions { drop, ..GcOptions::default() }).unwrap();
        }
        let rounds = group.commit(epoch, images);
        assert!(rounds == 1 || step == 3, "step {step} took {rounds} rounds");
    }
    // All images are stored, and none is committed, when a rank is killed: the program ends.
    group.images(4);
    group.ranks[1].1.kill().unwrap();
    group.end();

    let pool = opened(&dir.path().join("pool"));
    let job = Job::open(&pool, "job", Default::default()).unwrap();
    let epochs: Vec<Epoch> = job.epochs().unwrap().iter().map(|info| info.epoch).collect();
    assert_eq!(epochs, [3, 4]);
    for (epoch, step) in [(3, 2), (4, 3)] {
        for rank in 0..RANKS {
            let found = job.image_of_rank(Select::Epoch(epoch), rank).unwrap().unwrap();
            assert!(restored(&found.0) == state(rank, step), "rank {rank} of epoch {epoch}");
        }
    }
    // The next program begins, and its session makes garbage of the uncommitted images.
    let mut group = Group::start(dir.path());
    let (epoch, images) = group.images(5);
    assert_eq!(epoch, 5);
    group.commit(epoch, images);
    collect(&pool, &GcOptions::default()).unwrap();
    assert_eq!(job.verify(None).unwrap().findings, vec![]);
    let found = job.image_of_rank(Select::Newest, 2).unwrap().unwrap();
    assert!(restored(&found.0) == state(2, 5));
    group.end();
}
