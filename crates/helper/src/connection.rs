//! A program's side: a connection for each job, and the wait for a save that a helper completes.

use crate::message::{JobId, Keep, Message, Program, RankGroup, descriptors_of};
use crate::socket::{connect_to, receive_within, send};
use crate::start::{STARTED_VARIABLE, name, start};
use outlive_io::PerProcess;
use outlive_pool::Pool;
use outlive_store::group::GroupOptions;
use outlive_store::{ImageKeeper, KeptSave};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, JobName, Rank, Result};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time until a helper that was started listens, and until one answers.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// Longest time until a helper answers: that it has an image, or that it is at work.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// Attempts to connect with helpers that end.
const TRIES: u32 = 5;
/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Time after which a program whose helper is gone looks for another one.
const AGAIN: Duration = Duration::from_secs(60);

/// The connection of a job of this program with the helper.
#[derive(Debug)]
pub struct HelperConnection {
    link: Arc<Mutex<Link>>,
    of: JobId,
    rank: Rank,
    group: Option<RankGroup>,
    /// Command line of `outlive` that starts a helper, up to its subcommand.
    command: Vec<OsString>,
    /// Time after which it looks for another helper.
    again: Duration,
    /// A process that the program forks has a copy of the connection, and no say in it.
    process_id: u32,
}

#[derive(Debug)]
struct Link {
    socket: Option<OwnedFd>,
    tried: Instant,
}

impl HelperConnection {
    /// Connects a job with the helper. If there is none, `command` starts one: the words before
    /// `helper` of a command line of `outlive`. Returns also why there is no helper, if that fails:
    /// later saves look for one again.
    pub fn open(
        pool: &Pool,
        job: &JobName,
        group: Option<&GroupOptions>,
        command: Vec<OsString>,
    ) -> (HelperConnection, Option<Error>) {
        let of = JobId::new(pool, job);
        let rank = group.map_or(0, |group| group.coordinator.rank());
        let group = group.map(RankGroup::of);
        let (socket, trouble) = match introduce(&command, Some(&of)) {
            Ok(socket) => (Some(socket), None),
            Err(error) => (None, Some(error)),
        };
        let link = Arc::new(Mutex::new(Link { socket, tried: Instant::now() }));
        let (again, process_id) = (AGAIN, std::process::id());
        (HelperConnection { link, of, rank, group, command, again, process_id }, trouble)
    }

    /// Sends a message, and returns the result of `then`. If the peer is gone or silent, the connection
    /// is over. (The helper does not take that for the end of this program.)
    fn send<T>(
        &self,
        message: &Message,
        descriptors: &[BorrowedFd<'_>],
        then: impl FnOnce(&OwnedFd) -> rustix::io::Result<T>,
    ) -> Result<T> {
        const GONE: [Errno; 4] = [Errno::PIPE, Errno::CONNRESET, Errno::AGAIN, Errno::TIMEDOUT];
        let mut link = self.link.lock();
        let Some(socket) = &link.socket else { return Err(Error::retry("the helper is gone")) };
        let sent = send(socket, &message.encode(), descriptors).and_then(|()| then(socket));
        // After other errors, such as a lack of descriptors, the helper is still there.
        if sent.as_ref().is_err_and(|error| GONE.contains(error)) {
            *link = Link { socket: None, tried: Instant::now() };
        }
        sent.map_err(gone)
    }
}

/// A pipe whose write end is closed by the end of this process, and by an `exec`.
static LIFE: PerProcess<Option<(OwnedFd, OwnedFd)>> =
    PerProcess::new(|_| pipe_with(PipeFlags::CLOEXEC).ok());

/// Connects this process with the helper, which is started if there is none.
fn introduce(command: &[OsString], of: Option<&JobId>) -> Result<OwnedFd> {
    let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).map_err(gone)?;
    let life = LIFE.lock();
    let (life, _) = life.as_ref().ok_or_else(|| Error::retry("a pipe could not be made"))?;
    let hello = Message::Hello(this_program(command), of.cloned()).encode();
    let mut tries = 0;
    loop {
        tries += 1;
        let socket = connect_or_start(command)?;
        let sent = send(&socket, &hello, &[pidfd.as_fd(), life.as_fd()]);
        match sent.and_then(|()| receive_within(&socket, START_PATIENCE)) {
            Ok(Some(_)) => return Ok(socket),
            Err(Errno::TIMEDOUT) => {
                return Err(Error::retry("the helper of this user does not answer"));
            }
            // It has just ended, since there was no program.
            _ if tries < TRIES => {}
            answer => {
                return Err(answer.err().map_or_else(|| Error::retry("the helper ends"), gone));
            }
        }
    }
}

impl ImageKeeper for HelperConnection {
    fn is_there(&self) -> bool {
        if self.process_id != std::process::id() {
            return false;
        }
        let mut link = self.link.lock();
        if link.socket.is_none() && link.tried.elapsed() >= self.again {
            link.tried = Instant::now();
            let (there, command, of) = (self.link.clone(), self.command.clone(), self.of.clone());
            // No save waits for the start of a helper.
            let look = move || {
                let found = introduce(&command, Some(&of)).ok();
                there.lock().socket = found;
            };
            let _ = std::thread::Builder::new().name("outlive-helper".to_owned()).spawn(look);
        }
        link.socket.is_some()
    }

    fn keep(&self, save: KeptSave<'_>) -> Result<()> {
        let keep = Keep::new(self.of.clone(), self.rank, self.group, &save)?;
        let descriptors = descriptors_of(&save.shared);
        let answer = |socket: &OwnedFd| match receive_within(socket, ANSWER_PATIENCE)? {
            Some(parcel) => Ok(parcel.bytes),
            None => Err(Errno::PIPE),
        };
        let answer = self.send(&Message::Keep(Box::new(keep)), &descriptors, answer)?;
        match Message::decode(&answer)? {
            Message::Kept(true) => Ok(()),
            _ => Err(Error::retry("the helper has no room for it")),
        }
    }

    fn forget(&self) {
        if self.process_id != std::process::id() {
            return;
        }
        // If the helper is gone, the image is, too; the next save says so.
        let _ = self.send(&Message::Forget, &[], |_| Ok(()));
    }
}

/// Keeps a helper alive, without a job.
#[derive(Debug)]
pub struct HelperGuard(#[allow(dead_code, reason = "its end closes the connection")] OwnedFd);

impl HelperGuard {
    /// Starts a helper, if there is none, that lives at least as long as the result.
    ///
    /// # Errors
    /// `Retry` if none can be started.
    pub fn new(command: &[OsString]) -> Result<HelperGuard> {
        introduce(command, None).map(HelperGuard)
    }
}

/// Time between two looks whether the wait is to go on.
const SETTLE_LOOK: Duration = Duration::from_millis(100);

/// Waits until no helper of this host completes a save of a program that is gone, for this job. The
/// worker gives up by itself; `goes_on` is asked ten times a second, and ends the wait by no. Returns
/// what was completed, or why it could not be: a sentence each.
///
/// # Errors
/// Errors of the connection.
pub fn settle(
    pool: &Pool,
    job: &JobName,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Vec<String>> {
    let Some(socket) = connect_to(&name())? else { return Ok(Vec::new()) };
    send(&socket, &Message::Settle(JobId::new(pool, job)).encode(), &[]).map_err(gone)?;
    let (began, mut has_answered) = (Instant::now(), false);
    loop {
        let parcel = match receive_within(&socket, SETTLE_LOOK) {
            Err(Errno::TIMEDOUT) if !goes_on() => return Ok(Vec::new()),
            Err(Errno::TIMEDOUT) if !has_answered && began.elapsed() > ANSWER_PATIENCE => {
                return Err(Error::retry("the helper of this user does not answer"));
            }
            Err(Errno::TIMEDOUT) => continue,
            parcel => parcel.map_err(gone)?,
        };
        // A helper that has just ended had nothing to do.
        let Some(parcel) = parcel else { return Ok(Vec::new()) };
        match Message::decode(&parcel.bytes)? {
            Message::Welcome => has_answered = true,
            Message::Settled(said) => return Ok(said),
            _ => return Err(Error::bug("the helper's answer is none")),
        }
    }
}

fn connect_or_start(command: &[OsString]) -> Result<OwnedFd> {
    let name = name();
    if let Some(socket) = connect_to(&name)? {
        return Ok(socket);
    }
    if std::env::var_os(STARTED_VARIABLE).is_some() {
        return Err(Error::invalid("this process was started as a helper, and is none"));
    }
    let shown = command.join(OsStr::new(" ")).to_string_lossy().into_owned();
    start(command).map_err(|error| {
        Error::retry(format!("no helper could be started with `{shown} helper`: {error}"))
    })?;
    let began = Instant::now();
    loop {
        if let Some(socket) = connect_to(&name)? {
            return Ok(socket);
        }
        if began.elapsed() > START_PATIENCE {
            return Err(Error::retry(format!(
                "the helper that `{shown} helper` has started does not listen"
            )));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn this_program(command: &[OsString]) -> Program {
    let variables = std::env::vars_os().map(|(name, value)| (name.into_vec(), value.into_vec()));
    let directory = std::env::current_dir().unwrap_or_else(|_| "/".into());
    Program {
        variables: variables.collect(),
        directory: directory.as_os_str().as_bytes().to_vec(),
        command: command.iter().map(|word| word.as_bytes().to_vec()).collect(),
    }
}

fn gone(error: Errno) -> Error {
    Error::retry(format!("the helper is gone: {error}"))
}
