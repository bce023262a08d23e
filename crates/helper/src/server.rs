//! The helper: which images it holds, and when a worker completes them.

use crate::message::{JobId, Keep, Message, Program};
use crate::socket::{Parcel, accept_own, is_ready, listen_at, pair, receive, send};
use crate::start::{name, separate};
use outlive_types::{Epoch, Error, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Time without any program after which the helper ends.
const IDLE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Most sentences that are kept for programs that may ask.
const SAID_MAX: usize = 256;

/// An image that is held, and the message that came with it.
struct Held {
    keep: Box<Keep>,
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    program: Program,
    /// Number of connections that had been accepted when the program ended.
    died_at: u64,
}

/// A connection of a program.
struct Connection {
    socket: OwnedFd,
    /// Its number.
    born_at: u64,
    /// The program's job.
    of: Option<JobId>,
    /// The program, once it has introduced itself, and its pidfd.
    program: Option<(Program, Option<OwnedFd>)>,
    held: Option<Held>,
    /// The job that it waits for.
    waits_for: Option<JobId>,
}

/// A process that completes a save.
struct Worker {
    process: Child,
    pidfd: OwnedFd,
    of: JobId,
    epoch: Epoch,
}

/// All that the helper knows.
struct Server {
    listener: OwnedFd,
    connections: Vec<Connection>,
    /// Number of connections so far.
    accepted: u64,
    /// Images of programs that are gone.
    orphans: Vec<Held>,
    workers: Vec<Worker>,
    /// Sentences of workers, for the next program that asks about the job.
    said: Vec<(JobId, String)>,
}

/// Serves the programs of this user on this host, until there is none for some seconds. Returns at
/// once if there is a helper already.
///
/// # Errors
/// If the system refuses the socket.
pub fn serve() -> Result<()> {
    separate();
    let listener = match listen_at(&name()) {
        Ok(listener) => listener,
        Err(Errno::ADDRINUSE) => return Ok(()),
        Err(error) => return Err(Error::retry(format!("the helper cannot listen: {error}"))),
    };
    let (connections, accepted, orphans, workers, said) = Default::default();
    Server { listener, connections, accepted, orphans, workers, said }.run()
}

impl Server {
    fn run(mut self) -> Result<()> {
        loop {
            let is_idle = self.connections.is_empty() && self.workers.is_empty();
            let (ready, timed_out) = self.wait(is_idle)?;
            if timed_out {
                return Ok(());
            }
            if ready[0] {
                self.accept();
            }
            // New connections come behind those that were polled.
            let polled = (ready.len() - 1).min(self.connections.len());
            for at in (0..polled).rev() {
                self.listen_to(at);
            }
            self.reap();
            self.complete();
            self.answer();
        }
    }

    /// Waits until something happens. Returns which descriptors are ready, the listener first, and
    /// whether nothing has happened for long.
    fn wait(&self, is_idle: bool) -> Result<(Vec<bool>, bool)> {
        let listener: &dyn AsDescriptor = &self.listener;
        let sockets = self.connections.iter().map(|it| &it.socket as &dyn AsDescriptor);
        let programs = self.connections.iter().filter_map(|it| {
            let pidfd = it.program.as_ref()?.1.as_ref()?;
            Some(pidfd as &dyn AsDescriptor)
        });
        let workers = self.workers.iter().map(|it| &it.pidfd as &dyn AsDescriptor);
        let all: Vec<_> =
            std::iter::once(listener).chain(sockets).chain(programs).chain(workers).collect();
        let mut polled: Vec<PollFd<'_>> =
            all.iter().map(|it| PollFd::from_borrowed_fd(it.descriptor(), PollFlags::IN)).collect();
        let ready = loop {
            match poll(&mut polled, is_idle.then_some(&IDLE)) {
                Err(Errno::INTR) => {}
                ready => break ready,
            }
        };
        let ready =
            ready.map_err(|error| Error::bug(format!("the helper cannot poll: {error}")))?;
        let count = 1 + self.connections.len();
        let is_ready = |it: &PollFd<'_>| !it.revents().is_empty();
        Ok((polled[..count].iter().map(is_ready).collect(), ready == 0))
    }

    fn accept(&mut self) {
        if let Ok(Some(socket)) = accept_own(self.listener.as_fd()) {
            self.accepted += 1;
            self.connections.push(Connection {
                socket,
                born_at: self.accepted,
                of: None,
                program: None,
                held: None,
                waits_for: None,
            });
        }
    }

    /// Takes the messages of a program. If it is gone, its image is an orphan: it has ended, or become
    /// another program.
    fn listen_to(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        let is_gone = loop {
            let pidfd = connection.program.as_ref().and_then(|(_, pidfd)| pidfd.as_ref());
            // Asked first: what a program has sent before its end is then there.
            let has_ended = pidfd.is_some_and(is_ready);
            if !is_ready(&connection.socket) {
                break has_ended;
            }
            match receive(&connection.socket) {
                Ok(Some(parcel)) => connection.take(parcel),
                Ok(None) => break true,
                // Its next message may be that it has committed: nothing may be completed.
                Err(_) if !has_ended => {
                    connection.held = None;
                    break true;
                }
                Err(_) => break true,
            }
        };
        if is_gone {
            let connection = self.connections.swap_remove(at);
            let died_at = self.accepted;
            self.orphans.extend(connection.held.map(|held| Held { died_at, ..held }));
        }
    }

    /// Takes account of workers that have ended.
    fn reap(&mut self) {
        let said = &mut self.said;
        self.workers.retain_mut(|worker| {
            // An error: another one has reaped it, so its status is lost.
            let status = match worker.process.try_wait() {
                Ok(None) => return true,
                Ok(Some(status)) => Some(status),
                Err(_) => None,
            };
            let mut text = String::new();
            if let Some(mut output) = worker.process.stdout.take() {
                let _ = output.read_to_string(&mut text);
            }
            let text = match text.trim() {
                // The save had been committed.
                "" if status.is_none_or(|status| status.success()) => return false,
                "" => format!(
                    "a helper could not complete checkpoint {}: its worker was ended",
                    worker.epoch
                ),
                text => text.to_owned(),
            };
            said.push((worker.of.clone(), text));
            let old = said.len().saturating_sub(SAID_MAX);
            said.drain(..old);
            false
        });
    }

    /// Starts workers for saves of which all images are orphans.
    fn complete(&mut self) {
        while let Some(ready) = self.orphans.iter().find(|it| self.is_whole(it)) {
            let key = ready.key();
            let (ready, left) = std::mem::take(&mut self.orphans)
                .into_iter()
                .partition::<Vec<Held>, _>(|orphan| orphan.key() == key);
            self.orphans = left;
            let (of, epoch) = (key.0, key.1);
            match Worker::start(ready) {
                Ok(worker) => self.workers.push(worker),
                Err(error) => {
                    let text = format!(
                        "a helper could not complete checkpoint {epoch}: no worker could be started: {error}"
                    );
                    self.said.push((of, text));
                }
            }
        }
        // The rest of a group is of use as long as another rank may still hand over its image.
        let connections = &self.connections;
        self.orphans.retain(|orphan| {
            let is_peer = |it: &&Connection| {
                it.of.as_ref() == Some(&orphan.keep.of) && it.born_at <= orphan.died_at
            };
            orphan.keep.ranks.is_some() && connections.iter().any(|it| is_peer(&it))
        });
    }

    /// Whether all images of an orphan's save are here.
    fn is_whole(&self, orphan: &Held) -> bool {
        let wanted = orphan.keep.ranks.unwrap_or(1) as usize;
        let same = self.orphans.iter().filter(|it| it.key() == orphan.key());
        same.map(|it| it.keep.rank).collect::<BTreeSet<_>>().len() >= wanted
    }

    /// Answers programs that wait for a job which no worker works for.
    fn answer(&mut self) {
        let Server { connections, workers, said, .. } = self;
        for connection in connections {
            let of = connection.waits_for.clone();
            let Some(of) = of.filter(|of| workers.iter().all(|it| it.of != *of)) else { continue };
            connection.waits_for = None;
            let of_job = said.extract_if(.., |(job, _)| *job == of).map(|(_, text)| text);
            let answer = Message::Settled(of_job.collect());
            // A program that is gone needs no answer.
            let _ = send(&connection.socket, &answer.encode(), &[]);
        }
    }
}

impl Connection {
    fn take(&mut self, parcel: Parcel) {
        let Parcel { bytes, descriptors } = parcel;
        // Bytes that no build of this version sends.
        let Ok(message) = Message::decode(&bytes) else { return };
        match message {
            Message::Hello(program, of) => {
                self.of = of;
                self.program = Some((program, descriptors.into_iter().next()));
                let _ = send(&self.socket, &Message::Welcome.encode(), &[]);
            }
            Message::Keep(keep) => {
                let Some((program, _)) = &self.program else { return };
                let wanted = usize::from(keep.has_copies) + 3 * usize::from(keep.has_child);
                if descriptors.len() != wanted {
                    // The system has had no room for all of them.
                    return;
                }
                let (program, died_at) = (program.clone(), 0);
                self.held = Some(Held { keep, bytes, descriptors, program, died_at });
            }
            Message::Forget => self.held = None,
            Message::Settle(of) => self.waits_for = Some(of),
            Message::Welcome | Message::Settled(_) => {}
        }
    }
}

impl Held {
    /// Returns the things that the images of one save have in common.
    fn key(&self) -> (JobId, Epoch, Option<u32>, [u8; 12]) {
        (self.keep.of.clone(), self.keep.epoch, self.keep.ranks, self.keep.session)
    }
}

impl Worker {
    /// Starts a worker in the environment of the program, and gives it the images.
    fn start(images: Vec<Held>) -> std::io::Result<Worker> {
        let first = images.first().ok_or(std::io::ErrorKind::NotFound)?;
        let (of, epoch) = (first.keep.of.clone(), first.keep.epoch);
        let text = |bytes: &Vec<u8>| OsStr::from_bytes(bytes).to_owned();
        let Program { variables, directory, command } = &first.program;
        let (program, arguments) = command.split_first().ok_or(std::io::ErrorKind::NotFound)?;
        let (ours, theirs) = pair()?;
        let mut start = Command::new(text(program));
        start.args(arguments.iter().map(text)).args(["helper", "--complete"]).env_clear();
        start.envs(variables.iter().map(|(name, value)| (text(name), text(value))));
        // A relative location is none: but credentials may lie beside the program.
        let directory = PathBuf::from(text(directory));
        start.current_dir(if directory.is_dir() { &*directory } else { Path::new("/") });
        start.stdin(Stdio::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = start.spawn()?;
        let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
        let Some(pidfd) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
            let _ = process.kill().and_then(|()| process.wait());
            return Err(std::io::Error::other("no pidfd"));
        };
        // A socket takes few messages at a time, and the worker needs a moment to start.
        std::thread::spawn(move || {
            for image in &images {
                let descriptors: Vec<BorrowedFd<'_>> =
                    image.descriptors.iter().map(AsFd::as_fd).collect();
                if send(&ours, &image.bytes, &descriptors).is_err() {
                    return;
                }
            }
        });
        Ok(Worker { process, pidfd, of, epoch })
    }
}

/// Anything with a descriptor.
trait AsDescriptor {
    fn descriptor(&self) -> BorrowedFd<'_>;
}

impl AsDescriptor for OwnedFd {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}
