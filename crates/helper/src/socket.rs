//! Messages with descriptors, between processes of one user on a host.

use outlive_types::{Error, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, Timespec, memfd_create};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with, socketpair,
};
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Most descriptors with one message.
pub const DESCRIPTORS_MAX: usize = 5;
/// Longest message that travels without a file.
const INLINE_BYTES_MAX: usize = 4096;
/// Time for which a sender waits for a peer that reads nothing.
const SEND_PATIENCE: Duration = Duration::from_secs(5);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// A message. Long ones come in a file in memory, since they may be too long for the socket; its
/// descriptor is the first one.
#[derive(Debug)]
pub struct Parcel {
    /// The message.
    pub bytes: Vec<u8>,
    /// Descriptors that come with it.
    pub descriptors: Vec<OwnedFd>,
}

/// Returns a new socket. `SEQPACKET` keeps messages apart.
fn make() -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Returns two connected sockets.
///
/// # Errors
/// If the system gives none.
pub fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Listens at an abstract name: it is free again when this process ends in any way.
///
/// # Errors
/// `ADDRINUSE` if another process listens there.
pub fn listen_at(name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let socket = make()?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Accepts a connection of this user; `None` for one of another user.
///
/// # Errors
/// Those of the system.
pub fn accept_own(listener: BorrowedFd<'_>) -> rustix::io::Result<Option<OwnedFd>> {
    let socket = accept_with(listener, SocketFlags::CLOEXEC)?;
    Ok(is_own(&socket)?.then_some(socket))
}

/// Connects with the process of this user that listens at a name; `None` if there is none.
///
/// # Errors
/// If another user's process listens there; those of the system.
pub fn connect_to(name: &[u8]) -> Result<Option<OwnedFd>> {
    let shown = || String::from_utf8_lossy(name).into_owned();
    let failed =
        |error: Errno| Error::retry(format!("no connection with the helper {}: {error}", shown()));
    let socket = make().map_err(failed)?;
    let address = SocketAddrUnix::new_abstract_name(name).map_err(failed)?;
    match connect(&socket, &address) {
        Ok(()) => {}
        Err(Errno::CONNREFUSED) => return Ok(None),
        Err(error) => return Err(failed(error)),
    }
    if !is_own(&socket).map_err(failed)? {
        return Err(Error::invalid(format!(
            "a process of another user listens as the helper {}",
            shown()
        )));
    }
    set_socket_timeout(&socket, Timeout::Send, Some(SEND_PATIENCE)).map_err(failed)?;
    Ok(Some(socket))
}

fn is_own(socket: &OwnedFd) -> rustix::io::Result<bool> {
    Ok(socket_peercred(socket)?.uid == rustix::process::geteuid())
}

/// Sends a message.
///
/// # Errors
/// `PIPE` or `CONNRESET` if the peer is gone, `AGAIN` if it reads nothing.
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let body = match bytes.len() {
        ..=INLINE_BYTES_MAX => None,
        _ => Some(file_of(bytes)?),
    };
    let kind: &[u8] = if body.is_some() { b"f" } else { b"i" };
    let inline = if body.is_some() { &[] } else { bytes };
    let body = body.iter().map(AsFd::as_fd);
    let all: Vec<BorrowedFd<'_>> = body.chain(descriptors.iter().copied()).collect();
    assert!(all.len() <= DESCRIPTORS_MAX, "a message has {} descriptors", all.len());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !all.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&all)), "there is space for all");
    }
    loop {
        let parts = [IoSlice::new(kind), IoSlice::new(inline)];
        match sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent.map(drop),
        }
    }
}

/// Returns a file in memory with these bytes.
fn file_of(bytes: &[u8]) -> rustix::io::Result<File> {
    // A longer file would not only fail: the system sends SIGXFSZ.
    let limit = getrlimit(Resource::Fsize).current;
    if limit.is_some_and(|limit| limit < bytes.len() as u64) {
        return Err(Errno::FBIG);
    }
    let body = File::from(memfd_create("outlive-message", MemfdFlags::CLOEXEC)?);
    (&body).write_all(bytes).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(body)
}

/// Receives a message; `None` once the peer has closed the connection, or is gone.
///
/// # Errors
/// Those of the system; `IO` for a message of no program of ours.
pub fn receive(socket: impl AsFd) -> rustix::io::Result<Option<Parcel>> {
    let mut inline = vec![0; 1 + INLINE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let parts = &mut [IoSliceMut::new(&mut inline)];
        match recvmsg(&socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            received => break received?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(given) = message {
            descriptors.extend(given);
        }
    }
    if inline[0] == b'i' {
        return Ok(Some(Parcel { bytes: inline[1..received.bytes].to_vec(), descriptors }));
    }
    if descriptors.is_empty() {
        return Err(Errno::MFILE);
    }
    let mut body = File::from(descriptors.remove(0));
    let mut bytes = Vec::new();
    let read = body.rewind().and_then(|()| body.read_to_end(&mut bytes));
    read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(Some(Parcel { bytes, descriptors }))
}

/// Receives a message as [`receive`] does, and waits at most until `limit`.
///
/// # Errors
/// As [`receive`]; `TIMEDOUT`.
pub fn receive_within(socket: impl AsFd, limit: Duration) -> rustix::io::Result<Option<Parcel>> {
    let began = Instant::now();
    loop {
        let left = limit.saturating_sub(began.elapsed());
        let mut one = [PollFd::new(&socket, PollFlags::IN)];
        let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut one, Some(&time)) {
            Err(Errno::INTR) if !left.is_zero() => {}
            Ok(0) | Err(Errno::INTR) => return Err(Errno::TIMEDOUT),
            Err(error) => return Err(error),
            Ok(_) => return receive(&socket),
        }
    }
}

/// Whether a descriptor has something to read, or its peer is gone.
pub fn is_ready(descriptor: impl AsFd) -> bool {
    let mut one = [PollFd::new(&descriptor, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut one, Some(&now)).is_ok_and(|ready| ready > 0)
}
