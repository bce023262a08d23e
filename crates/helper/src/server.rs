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
use std::sync::Arc;
use std::time::Duration;

/// Time without any program after which the helper ends.
const IDLE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Most sentences that are kept for programs that may ask.
const SAID_MAX: usize = 256;

/// Most workers for one save: one that is ended by others says nothing about the save.
const WORKERS_MAX: u32 = 3;

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
    /// `None` once the program has closed it. It may still run, and its image stays until it ends.
    socket: Option<OwnedFd>,
    /// Its number.
    born_at: u64,
    /// The program's job.
    of: Option<JobId>,
    /// The program, once it has introduced itself.
    program: Option<Program>,
    /// Descriptors that are ready once the program has ended, or become another one.
    life: Vec<OwnedFd>,
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
    images: Arc<Vec<Held>>,
    /// Number of this worker for its save, from 1.
    number: u32,
}

/// All that the helper knows.
struct Server {
    listener: OwnedFd,
    connections: Vec<Connection>,
    /// Number of connections so far.
    accepted: u64,
    /// Images of programs that are gone.
    orphans: Vec<Held>,
    /// Jobs of programs that have ended without an image, and the number of connections so far then.
    empty: Vec<(JobId, u64)>,
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
    let (connections, accepted, orphans, empty, workers, said) = Default::default();
    Server { listener, connections, accepted, orphans, empty, workers, said }.run()
}

impl Server {
    fn run(mut self) -> Result<()> {
        loop {
            let is_idle = self.connections.is_empty() && self.workers.is_empty();
            if self.wait(is_idle)? {
                return Ok(());
            }
            // All that had happened before a program asks is known when it is answered: it may ask
            // about one that has ended a moment ago.
            self.accept();
            for at in (0..self.connections.len()).rev() {
                self.listen_to(at);
            }
            self.reap();
            self.complete();
            self.answer();
        }
    }

    /// Waits until something happens. Returns whether nothing has happened for long.
    fn wait(&self, is_idle: bool) -> Result<bool> {
        let connections = self.connections.iter();
        let connections = connections.flat_map(|it| it.socket.iter().chain(&it.life));
        let workers = self.workers.iter().map(|it| &it.pidfd);
        let all = std::iter::once(&self.listener).chain(connections).chain(workers);
        let mut polled: Vec<PollFd<'_>> =
            all.map(|descriptor| PollFd::new(descriptor, PollFlags::IN)).collect();
        loop {
            match poll(&mut polled, is_idle.then_some(&IDLE)) {
                Err(Errno::INTR) => {}
                Ok(ready) => return Ok(ready == 0),
                Err(error) => {
                    return Err(Error::bug(format!("the helper cannot poll: {error}")));
                }
            }
        }
    }

    fn accept(&mut self) {
        while is_ready(&self.listener) {
            match accept_own(self.listener.as_fd()) {
                Ok(Some(socket)) => {
                    self.accepted += 1;
                    self.connections.push(Connection {
                        socket: Some(socket),
                        born_at: self.accepted,
                        of: None,
                        program: None,
                        life: Vec::new(),
                        held: None,
                        waits_for: None,
                    });
                }
                Ok(None) => {}
                // Most likely a lack of descriptors, which passes.
                Err(_) => return std::thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    /// Takes the messages of a program. If it has ended, or become another one, its image is an
    /// orphan. A connection that is closed alone is no end: the program may have lost patience.
    fn listen_to(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        // Asked first: all that a program has sent before its end is then there.
        let has_ended = connection.life.iter().any(is_ready);
        while let Some(socket) = connection.socket.as_ref().filter(|it| is_ready(it)) {
            match receive(socket) {
                Ok(Some(parcel)) => connection.take(parcel),
                Ok(None) => connection.socket = None,
                // Its next message may be that it has committed: nothing may be completed.
                Err(_) => (connection.socket, connection.held) = (None, None),
            }
        }
        let is_over = connection.socket.is_none() && connection.held.is_none();
        if has_ended || is_over {
            let connection = self.connections.swap_remove(at);
            let died_at = self.accepted;
            match connection.held {
                Some(held) => self.orphans.push(Held { died_at, ..held }),
                None => self.empty.extend(connection.of.map(|of| (of, died_at))),
            }
        }
    }

    /// Takes account of workers that have ended.
    fn reap(&mut self) {
        for mut worker in std::mem::take(&mut self.workers) {
            // An error: another one has reaped it, so its status is lost.
            let status = match worker.process.try_wait() {
                Ok(None) => {
                    self.workers.push(worker);
                    continue;
                }
                Ok(Some(status)) => Some(status),
                Err(_) => None,
            };
            let mut text = String::new();
            if let Some(mut output) = worker.process.stdout.take() {
                let _ = output.read_to_string(&mut text);
            }
            match text.trim() {
                // The save had been committed.
                "" if status.is_none_or(|status| status.success()) => {}
                "" if worker.number < WORKERS_MAX => {
                    self.start(worker.images.clone(), worker.number + 1);
                }
                "" => self.fail(&worker.of, worker.epoch, "its workers were ended"),
                text => self.say(worker.of, text.to_owned()),
            }
        }
    }

    fn start(&mut self, images: Arc<Vec<Held>>, number: u32) {
        let Some(keep) = images.first().map(|first| &first.keep) else { return };
        let (of, epoch) = (keep.of.clone(), keep.epoch);
        match Worker::start(images, number) {
            Ok(worker) => self.workers.push(worker),
            Err(error) => self.fail(&of, epoch, &format!("no worker could be started: {error}")),
        }
    }

    fn fail(&mut self, of: &JobId, epoch: Epoch, why: &str) {
        self.say(of.clone(), format!("a helper could not complete checkpoint {epoch}: {why}"));
    }

    fn say(&mut self, of: JobId, text: String) {
        self.said.push((of, text));
        let old = self.said.len().saturating_sub(SAID_MAX);
        self.said.drain(..old);
    }

    /// Starts workers for saves of which all images are orphans.
    fn complete(&mut self) {
        while let Some(ready) =
            self.orphans.iter().find(|it| self.is_whole(it) || self.is_whole_here(it))
        {
            let key = ready.key();
            let (ready, left) = std::mem::take(&mut self.orphans)
                .into_iter()
                .partition::<Vec<Held>, _>(|orphan| orphan.key() == key);
            self.orphans = left;
            self.start(Arc::new(ready), 1);
        }
        // The rest of a group is of use as long as another rank may still hand over its image.
        let (mut orphans, mut empty) =
            (std::mem::take(&mut self.orphans), std::mem::take(&mut self.empty));
        orphans.retain(|it| it.keep.group.is_some() && self.has_peers(&it.keep.of, it.died_at));
        empty.retain(|(of, died_at)| self.has_peers(of, *died_at));
        (self.orphans, self.empty) = (orphans, empty);
    }

    /// Whether another rank of a job's program may still hand over its image: it was there when one
    /// died.
    fn has_peers(&self, of: &JobId, died_at: u64) -> bool {
        let mut connections = self.connections.iter();
        connections.any(|it| it.of.as_ref() == Some(of) && it.born_at <= died_at)
    }

    /// Whether all images of an orphan's save are here.
    fn is_whole(&self, orphan: &Held) -> bool {
        let wanted = orphan.keep.ranks() as usize;
        let same = self.orphans.iter().filter(|it| it.key() == orphan.key());
        same.map(|it| it.keep.rank).collect::<BTreeSet<_>>().len() >= wanted
    }

    /// Whether all ranks that this host had have left images of the same save. The others are then
    /// with helpers of other hosts.
    fn is_whole_here(&self, orphan: &Held) -> bool {
        let of = &orphan.keep.of;
        let mut orphans = self.orphans.iter().filter(|it| it.keep.of == *of);
        orphan.keep.group.is_some()
            && !self.has_peers(of, orphan.died_at)
            && self.empty.iter().all(|(job, _)| job != of)
            && orphans.all(|it| it.key() == orphan.key())
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
            connection.send(&answer);
        }
    }
}

impl Connection {
    /// Answers. A program that is gone needs no answer.
    fn send(&self, message: &Message) {
        if let Some(socket) = &self.socket {
            let _ = send(socket, &message.encode(), &[]);
        }
    }

    fn take(&mut self, parcel: Parcel) {
        let Parcel { bytes, descriptors } = parcel;
        // Bytes that no build of this version sends.
        let Ok(message) = Message::decode(&bytes) else { return };
        match message {
            Message::Hello(program, of) => {
                (self.of, self.program, self.life) = (of, Some(program), descriptors);
                self.send(&Message::Welcome);
            }
            Message::Keep(keep) => {
                let wanted = usize::from(keep.has_copies) + 3 * usize::from(keep.has_child);
                // Otherwise the system has had no room for all of them.
                let is_whole = descriptors.len() == wanted;
                let program = self.program.clone().filter(|_| is_whole);
                self.held =
                    program.map(|program| Held { keep, bytes, descriptors, program, died_at: 0 });
                self.send(&Message::Kept(self.held.is_some()));
            }
            Message::Forget => self.held = None,
            Message::Settle(of) => {
                self.waits_for = Some(of);
                self.send(&Message::Welcome);
            }
            Message::Welcome | Message::Kept(_) | Message::Settled(_) => {}
        }
    }
}

impl Held {
    /// Returns the things that the images of one save have in common.
    fn key(&self) -> (JobId, Epoch, u32, [u8; 12]) {
        (self.keep.of.clone(), self.keep.epoch, self.keep.ranks(), self.keep.session)
    }
}

impl Worker {
    /// Starts a worker in the environment of the program, and gives it the images.
    fn start(images: Arc<Vec<Held>>, number: u32) -> std::io::Result<Worker> {
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
        let given = images.clone();
        std::thread::spawn(move || {
            for image in given.iter() {
                let descriptors: Vec<BorrowedFd<'_>> =
                    image.descriptors.iter().map(AsFd::as_fd).collect();
                if send(&ours, &image.bytes, &descriptors).is_err() {
                    return;
                }
            }
        });
        Ok(Worker { process, pidfd, of, epoch, images, number })
    }
}
