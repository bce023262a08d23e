//! Messages with descriptors, between processes of one user on a host.

use outlive_types::{Error, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with, socketpair,
};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Most descriptors with one message.
pub const DESCRIPTORS_MAX: usize = 4;
/// Time for which a sender waits for a peer that reads nothing.
const SEND_PATIENCE: Duration = Duration::from_secs(5);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// A message: the bytes are in a file in memory, since they may be too many for the socket.
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
    let body = File::from(memfd_create("outlive-message", MemfdFlags::CLOEXEC)?);
    (&body).write_all(bytes).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let all: Vec<BorrowedFd<'_>> =
        std::iter::once(body.as_fd()).chain(descriptors.iter().copied()).collect();
    assert!(all.len() <= DESCRIPTORS_MAX, "a message has {} descriptors", all.len());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&all)), "there is space for all");
    loop {
        match sendmsg(&socket, &[IoSlice::new(b"m")], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent.map(drop),
        }
    }
}

/// Receives a message; `None` once the peer has closed the connection, or is gone.
///
/// # Errors
/// Those of the system; `IO` for a message of no program of ours.
pub fn receive(socket: impl AsFd) -> rustix::io::Result<Option<Parcel>> {
    let mut mark = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let parts = &mut [IoSliceMut::new(&mut mark)];
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
    if descriptors.is_empty() {
        return Err(Errno::IO);
    }
    let mut body = File::from(descriptors.remove(0));
    let mut bytes = Vec::new();
    let read = body.rewind().and_then(|()| body.read_to_end(&mut bytes));
    read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(Some(Parcel { bytes, descriptors }))
}

/// Whether a descriptor has something to read, or its peer is gone.
pub fn is_ready(descriptor: impl AsFd) -> bool {
    let mut one = [PollFd::new(&descriptor, PollFlags::IN)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut one, Some(&now)).is_ok_and(|ready| ready > 0)
}
