//! A program's side: a connection for each job, and the wait for a save that a helper completes.

use crate::message::{JobId, Keep, Message, Program, descriptors_of};
use crate::socket::{connect_to, receive, send};
use crate::start::{name, start};
use outlive_pool::Pool;
use outlive_store::{ImageKeeper, KeptSave};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, JobName, Rank, Result};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::{Duration, Instant};

/// Longest time until a helper that was started listens.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// Attempts to connect with helpers that end.
const TRIES: u32 = 5;
/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Time after which a program whose helper is gone looks for another one.
const AGAIN: Duration = Duration::from_secs(60);

/// The connection of a job of this program with the helper.
#[derive(Debug)]
pub struct HelperConnection {
    link: Mutex<Link>,
    of: JobId,
    rank: Rank,
    ranks: Option<u32>,
    /// Command line of `outlive` that starts a helper, up to its subcommand.
    command: Vec<OsString>,
}

#[derive(Debug)]
struct Link {
    socket: Option<OwnedFd>,
    tried: Instant,
}

impl HelperConnection {
    /// Connects a job with the helper. If there is none, `command` starts one: the words before
    /// `helper` of a command line of `outlive`.
    ///
    /// # Errors
    /// `Retry` if there is no helper, and none can be started.
    pub fn open(
        pool: &Pool,
        job: &JobName,
        (rank, ranks): (Rank, Option<u32>),
        command: Vec<OsString>,
    ) -> Result<HelperConnection> {
        let socket = Some(introduce(&command)?);
        let link = Mutex::new(Link { socket, tried: Instant::now() });
        Ok(HelperConnection { link, of: JobId::new(pool, job), rank, ranks, command })
    }

    /// Sends a message. After an error the connection is over.
    fn send(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        let mut link = self.link.lock();
        let Some(socket) = &link.socket else { return Err(Error::retry("the helper is gone")) };
        let sent = send(socket, &message.encode(), descriptors);
        if sent.is_err() {
            *link = Link { socket: None, tried: Instant::now() };
        }
        sent.map_err(gone)
    }
}

/// Connects this process with the helper, which is started if there is none.
fn introduce(command: &[OsString]) -> Result<OwnedFd> {
    let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).map_err(gone)?;
    let hello = Message::Hello(this_program(command)).encode();
    let mut tries = 0;
    loop {
        tries += 1;
        let socket = connect_or_start(command)?;
        let sent = send(&socket, &hello, &[pidfd.as_fd()]);
        match sent.and_then(|()| receive(&socket)) {
            Ok(Some(_)) => return Ok(socket),
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
        let mut link = self.link.lock();
        if link.socket.is_none() && link.tried.elapsed() > AGAIN {
            *link = Link { socket: introduce(&self.command).ok(), tried: Instant::now() };
        }
        link.socket.is_some()
    }

    fn keep(&self, save: KeptSave<'_>) -> Result<()> {
        let keep = Keep::new(self.of.clone(), (self.rank, self.ranks), &save)?;
        self.send(&Message::Keep(Box::new(keep)), &descriptors_of(&save.shared))
    }

    fn forget(&self) {
        // If the helper is gone, the image is, too; the next save says so.
        let _ = self.send(&Message::Forget, &[]);
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
        introduce(command).map(HelperGuard)
    }
}

/// Waits until no helper of this host completes a save of a program that is gone, for this job.
/// Returns what it has completed, or why it could not: a sentence each.
///
/// # Errors
/// `Retry` if the helper ends meanwhile.
pub fn settle(pool: &Pool, job: &JobName) -> Result<Vec<String>> {
    let Some(socket) = connect_to(&name())? else { return Ok(Vec::new()) };
    send(&socket, &Message::Settle(JobId::new(pool, job)).encode(), &[]).map_err(gone)?;
    let parcel = receive(&socket).map_err(gone)?;
    let parcel = parcel.ok_or_else(|| Error::retry("the helper has ended"))?;
    match Message::decode(&parcel.bytes)? {
        Message::Settled(said) => Ok(said),
        _ => Err(Error::bug("the helper's answer is none")),
    }
}

fn connect_or_start(command: &[OsString]) -> Result<OwnedFd> {
    let name = name();
    if let Some(socket) = connect_to(&name)? {
        return Ok(socket);
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

fn gone(error: rustix::io::Errno) -> Error {
    Error::retry(format!("the helper is gone: {error}"))
}
