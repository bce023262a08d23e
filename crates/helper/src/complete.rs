//! The worker: completes the save of a program that is gone.

use crate::image::HeldImage;
use crate::message::{JobId, Keep, Message, descriptors_of};
use crate::socket::receive;
use outlive_pool::Pool;
use outlive_store::commit::Position;
use outlive_store::group::GroupOptions;
use outlive_store::read::Select;
use outlive_store::{Job, JobOptions, KeptSave, SaveNotes};
use outlive_types::{Epoch, Error, ErrorKind, JobName, Result, ThreadRank};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Time for which a worker tries again after errors that may pass.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause after the first attempt; the double after each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The outcome of the save of a program that is gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Completed {
    /// It is committed as this checkpoint.
    Committed(Epoch),
    /// It had been committed, or the job has gone on elsewhere.
    NotNeeded,
}

/// A save of one rank, with its image.
#[derive(Debug)]
pub struct HeldSave {
    keep: Keep,
    image: HeldImage,
}

impl HeldSave {
    fn new(keep: Keep, descriptors: Vec<OwnedFd>) -> Result<HeldSave> {
        let image = HeldImage::new(&keep, descriptors)?;
        Ok(HeldSave { keep, image })
    }

    /// Holds a save of a program without a group within this process.
    ///
    /// # Errors
    /// If its descriptors cannot be duplicated, or the image cannot be described.
    pub fn of(pool: &Pool, job: &JobName, save: &KeptSave<'_>) -> Result<HeldSave> {
        let keep = Keep::new(JobId::new(pool, job), (0, None), save)?;
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

/// Gets the images of a save over `socket`, opens their pool, and completes the save. Returns the
/// pool, the job and what became of it.
///
/// # Errors
/// Why the save could not be completed.
pub fn work(
    socket: impl AsFd,
    open: &dyn Fn(&Path) -> Result<Pool>,
) -> Result<(Pool, JobName, Completed)> {
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
    let mut pause = FIRST_PAUSE;
    loop {
        let tried = open(&location).and_then(|pool| {
            let completed = complete(&pool, &name, &mut saves)?;
            Ok((pool, name.clone(), completed))
        });
        match tried {
            Err(error) if error.kind() == ErrorKind::Retry && began.elapsed() < PATIENCE => {
                thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            tried => return tried,
        }
    }
}

/// Completes a save, whose program is gone, from the images of all its ranks in their order.
///
/// # Errors
/// Those of a save; then another attempt may succeed.
pub fn complete(pool: &Pool, name: &JobName, saves: &mut [HeldSave]) -> Result<Completed> {
    let first = saves.first().ok_or_else(|| Error::invalid("there is no image to complete"))?;
    let (epoch, ranks) = (first.keep.epoch, first.keep.ranks);
    if is_over(Position::of(pool, name)?, &first.keep) {
        return Ok(Completed::NotNeeded);
    }
    let saved = match ranks {
        None => complete_rank(pool, name, JobOptions::default(), &mut saves[0]),
        Some(ranks) => {
            let group = ThreadRank::group(ranks);
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
        // The program's own commit, or a new program, may have come in between.
        Err(error) if error.kind() == ErrorKind::Fenced => Ok(Completed::NotNeeded),
        Err(_) if Position::of(pool, name)?.epoch >= epoch => Ok(Completed::NotNeeded),
        Err(error) => Err(error),
        Ok(()) => Ok(Completed::Committed(epoch)),
    }
}

/// Whether the program itself could not commit its save any more: the epoch exists, or another
/// program has opened a session. (A gc that ends a session leaves none.)
fn is_over(position: Position, keep: &Keep) -> bool {
    let is_other = position.session.is_some_and(|session| session.0 != keep.session);
    position.epoch >= keep.epoch || is_other
}

fn complete_rank(
    pool: &Pool,
    name: &JobName,
    options: JobOptions,
    HeldSave { keep, image }: &mut HeldSave,
) -> Result<()> {
    let job = Job::open(pool, name.as_str(), options)?;
    // If others save from now on, this save is refused.
    job.note_position()?;
    let position = Position::of(pool, name).map_err(|error| job.abort_collective(error))?;
    if keep.rank == 0 && is_over(position, keep) {
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
    let save = job.save_with(image, notes)?;
    let saved = save.wait(None);
    let closed = job.close();
    saved.ok_or_else(|| Error::bug("a wait without limit has ended"))??;
    closed
}
