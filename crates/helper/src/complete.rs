//! The worker: completes the save of a program that is gone.

use crate::image::HeldImage;
use crate::message::{JobId, Keep, Message, RankGroup, descriptors_of};
use crate::socket::receive;
use outlive_pool::Pool;
use outlive_store::commit::Position;
use outlive_store::group::{GroupOptions, PoolRanks};
use outlive_store::read::Select;
use outlive_store::{Job, JobOptions, KeptSave, SaveNotes};
use outlive_types::{Coordinator, Epoch, Error, ErrorKind, JobName, Result, ThreadRank};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Time for which a worker tries again after errors that may pass.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause after the first attempt; the double after each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Longest time for which workers of several hosts wait for each other: whatever has ended the program on one
/// host ends it on the others within seconds.
const MEETING: Duration = Duration::from_secs(30);

/// The outcome of the save of a program that is gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Completed {
    /// It is committed as this checkpoint.
    Committed(Epoch),
    /// The job has a checkpoint of this number already.
    There,
    /// Another program has opened a session of the job.
    Fenced,
}

/// A save of one rank, with its image.
#[derive(Debug)]
pub struct HeldSave {
    keep: Keep,
    image: HeldImage,
    /// Whether an attempt to complete it has begun.
    is_tried: bool,
}

impl HeldSave {
    fn new(keep: Keep, descriptors: Vec<OwnedFd>) -> Result<HeldSave> {
        let image = HeldImage::new(&keep, descriptors)?;
        Ok(HeldSave { keep, image, is_tried: false })
    }

    /// Holds a save of a program without a group within this process.
    ///
    /// # Errors
    /// If its descriptors cannot be duplicated, or the image cannot be described.
    pub fn of(pool: &Pool, job: &JobName, save: &KeptSave<'_>) -> Result<HeldSave> {
        let keep = Keep::new(JobId::new(pool, job), 0, None, save)?;
        let bytes = Message::Keep(Box::new(keep)).encode();
        let Message::Keep(keep) = Message::decode(&bytes)? else {
            return Err(Error::bug("a message has become another one"));
        };
        let failed = |error| Error::retry(format!("a descriptor cannot be duplicated: {error}"));
        let descriptors = descriptors_of(&save.shared).into_iter();
        let descriptors = descriptors.map(|it| it.try_clone_to_owned().map_err(failed));
        HeldSave::new(*keep, descriptors.collect::<Result<_>>()?)
    }
}

/// Gets the images of a save over `socket`, opens their pool, and completes the save; tries again
/// for a minute after errors that may pass.
///
/// # Errors
/// Why the save could not be completed.
pub fn work(socket: impl AsFd, open: &dyn Fn(&Path) -> Result<Pool>) -> Result<Completed> {
    let mut all: Vec<(Keep, Vec<OwnedFd>)> = Vec::new();
    let lost = |error: rustix::io::Errno| Error::retry(format!("the helper is gone: {error}"));
    while let Some(parcel) = receive(&socket).map_err(lost)? {
        if let Message::Keep(keep) = Message::decode(&parcel.bytes)? {
            all.push((*keep, parcel.descriptors));
        }
    }
    all.sort_by_key(|(keep, _)| keep.rank);
    all.dedup_by_key(|(keep, _)| keep.rank);
    let (first, _) = all.first().ok_or_else(|| Error::invalid("the helper gave no image"))?;
    let of = first.of.clone();
    let name = JobName::stored(&of.job)?;
    let location = PathBuf::from(&of.location);
    let mut saves = Vec::new();
    for (keep, descriptors) in all {
        saves.push(HeldSave::new(keep, descriptors)?);
    }
    let began = Instant::now();
    let (mut pause, mut last) = (FIRST_PAUSE, None);
    loop {
        let mut meets = false;
        let tried = open(&location).and_then(|pool| {
            meets = !is_whole(&saves);
            complete(&pool, &name, &mut saves)
        });
        let may_pass = |error: &Error| {
            // A disk may get room, and a file system come back. Workers of several hosts meet once.
            matches!(error.kind(), ErrorKind::Retry | ErrorKind::Full | ErrorKind::Invalid)
                && !meets
        };
        match (tried, last.take()) {
            (Err(error), _) if may_pass(&error) && began.elapsed() < PATIENCE => {
                last = Some(error);
                thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            // A session of an earlier attempt may be there, although its append has failed.
            (Ok(Completed::Fenced), Some(error)) => return Err(error),
            (tried, _) => return tried,
        }
    }
}

/// Returns whether the images of all ranks are here.
fn is_whole(saves: &[HeldSave]) -> bool {
    saves.first().is_none_or(|first| saves.len() >= first.keep.ranks() as usize)
}

/// Returns connections of the ranks whose images these are: to each other, or through the pool to those
/// that workers of other hosts have.
fn coordinators(
    pool: &Pool,
    name: &JobName,
    saves: &[HeldSave],
    group: RankGroup,
) -> Result<Vec<Arc<dyn Coordinator>>> {
    if is_whole(saves) {
        let threads = ThreadRank::group(group.ranks).into_iter();
        return Ok(threads.map(|rank| rank as Arc<dyn Coordinator>).collect());
    }
    let patience = MEETING.min(Duration::from_millis(group.patience_ms));
    let of_rank = |Keep { rank, epoch, session, .. }: &Keep| {
        let session: String = session.iter().map(|byte| format!("{byte:02x}")).collect();
        let run = format!("helpers of checkpoint {epoch} of session {session}");
        PoolRanks::of_helpers(pool, name.as_str(), *rank, group.ranks, &run, patience)
    };
    saves.iter().map(|save| Ok(Arc::new(of_rank(&save.keep)?) as Arc<dyn Coordinator>)).collect()
}

/// Completes a save, whose program is gone, from the images of its ranks in their order. Those of other
/// hosts are with their workers, which do the same at the same time.
///
/// # Errors
/// Those of a save; then another attempt may succeed.
pub fn complete(pool: &Pool, name: &JobName, saves: &mut [HeldSave]) -> Result<Completed> {
    let first = saves.first().ok_or_else(|| Error::invalid("there is no image to complete"))?;
    let (epoch, group) = (first.keep.epoch, first.keep.group);
    let position = Position::of(pool, name)?;
    if let Some(over) = over(position, &first.keep) {
        // An earlier attempt may have committed it, although it did not learn that.
        let is_last = position.session.is_some_and(|session| session.0 == first.keep.session);
        let is_own = over == Completed::There && first.is_tried && is_last;
        return Ok(if is_own { Completed::Committed(epoch) } else { over });
    }
    let saved = match group {
        None => complete_rank(pool, name, JobOptions::default(), &mut saves[0]),
        Some(group) => {
            let group = coordinators(pool, name, saves, group)?;
            thread::scope(|scope| {
                let mut threads = Vec::new();
                for (save, coordinator) in saves.iter_mut().zip(group) {
                    // The program's own ranks have agreed on their regions.
                    let group =
                        GroupOptions { is_lone: |_| true, ..GroupOptions::new(coordinator) };
                    let options = JobOptions { group: Some(group), ..JobOptions::default() };
                    threads.push(scope.spawn(move || complete_rank(pool, name, options, save)));
                }
                let ended = threads.into_iter().map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|_| Err(Error::bug("a rank of the worker panicked")))
                });
                ended.collect::<Vec<_>>().into_iter().collect::<Result<Vec<_>>>().map(drop)
            })
        }
    };
    match saved {
        Ok(()) => Ok(Completed::Committed(epoch)),
        Err(error) if error.kind() == ErrorKind::Fenced => {
            let position = Position::of(pool, name)?;
            Ok(if position.epoch >= epoch { Completed::There } else { Completed::Fenced })
        }
        Err(error) => Err(error),
    }
}

/// Returns why the program itself could not commit its save any more, if it could not. (A gc that
/// ends a session leaves none.)
fn over(position: Position, keep: &Keep) -> Option<Completed> {
    if position.epoch >= keep.epoch {
        return Some(Completed::There);
    }
    let is_other = position.session.is_some_and(|session| session.0 != keep.session);
    is_other.then_some(Completed::Fenced)
}

fn complete_rank(
    pool: &Pool,
    name: &JobName,
    options: JobOptions,
    save: &mut HeldSave,
) -> Result<()> {
    let job = Job::open(pool, name.as_str(), options)?;
    let saved = save_rank(&job, pool, name, save);
    // The next attempt goes on from this one.
    save.is_tried = true;
    if let Some(session) = job.session() {
        save.keep.session = session.0;
    }
    // The slow tier, for which a close would wait, gets the checkpoint with the next one.
    saved
}

fn save_rank(
    job: &Job,
    pool: &Pool,
    name: &JobName,
    HeldSave { keep, image, .. }: &mut HeldSave,
) -> Result<()> {
    // If others save from now on, this save is refused.
    job.note_position()?;
    let position = Position::of(pool, name).map_err(|error| job.abort_collective(error))?;
    if keep.rank == 0 && over(position, keep).is_some() {
        return Err(job.abort_collective(Error::new(
            ErrorKind::Fenced,
            "another program has opened a session of the job",
        )));
    }
    if keep.rank == 0 && position.epoch + 1 != keep.epoch {
        let error = Error::invalid("the log lacks what the program saw in it");
        return Err(job.abort_collective(error));
    }
    if let Some(baseline) = keep.baseline {
        let select = Select::Epoch(baseline);
        let found = job.attempt_rank(select, keep.rank, &mut |_| Ok(()));
        let found = found.map_err(|error| job.abort_collective(error))?;
        if let Some((followed, (), _)) = found {
            job.follow_restored(&followed);
        }
    }
    let notes = SaveNotes::from(&keep.notes);
    let saved = job.save_with(image, notes)?.wait(None);
    saved.ok_or_else(|| Error::bug("a wait without limit has ended"))?.map(drop)
}
