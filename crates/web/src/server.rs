//! The server: one thread a connection, few connections, one request each.

use crate::Part;
use crate::owner::may_read;
use crate::page::served;
use crate::reply::Reply;
use crate::request::{HEAD_BYTES_MAX, Refusal, Resource, head_length, parse};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Connections at a time; a browser opens six.
const CONNECTIONS_MAX: usize = 16;
/// Time for a request to arrive.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// Time for a reply to move on.
const REPLY_TIME: Duration = Duration::from_secs(30);
/// Time after which the server looks whether it is to end.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Bytes that are read and ignored behind a request, so that its reply is not lost.
const SURPLUS_BYTES_MAX: usize = 64 << 10;

/// Reads a part of the data from the pool. An error reaches the page as JSON.
pub type Source = dyn Fn(Part) -> Result<Value> + Send + Sync;

/// Returns metrics in the text format of Prometheus.
pub type Metrics = dyn Fn() -> Result<String> + Send + Sync;

/// Content of a server.
pub struct Content {
    /// The data of the page at `/`.
    page: Option<Box<Source>>,
    /// The metrics at `/metrics`.
    metrics: Option<Box<Metrics>>,
}

impl Content {
    /// Returns a page, for the user of this process and root.
    pub fn page(source: Box<Source>) -> Content {
        Content { page: Some(source), metrics: None }
    }

    /// Returns metrics alone, for all users of this machine: a collector has a user of its own.
    pub fn metrics(metrics: Box<Metrics>) -> Content {
        Content { page: None, metrics: Some(metrics) }
    }

    /// Adds metrics to a page.
    #[must_use]
    pub fn and_metrics(self, metrics: Box<Metrics>) -> Content {
        Content { metrics: Some(metrics), ..self }
    }
}

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    own: SocketAddrV4,
    shared: Arc<Shared>,
}

struct Shared {
    content: Content,
    /// Held while a part is read, one for each, and one for metrics: reads of the same part beside
    /// each other would only slow each other down.
    reading: [Mutex<()>; 3],
    connections: AtomicUsize,
}

impl Server {
    /// Listens on a port of loopback; 0 takes a free one.
    ///
    /// # Errors
    /// `Invalid` if the port cannot be used.
    pub fn bind(port: u16, content: Content) -> Result<Server> {
        let unusable = |error: io::Error| {
            let other = "choose another one with --port (in Python: `port`), or leave it out for a \
                         free one";
            Error::invalid(format!("cannot listen on port {port} of 127.0.0.1: {error}; {other}"))
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(unusable)?;
        listener.set_nonblocking(true).map_err(unusable)?;
        let own = match listener.local_addr().map_err(unusable)? {
            SocketAddr::V4(own) => own,
            SocketAddr::V6(_) => unreachable!("it is bound to an address of version 4"),
        };
        let (reading, connections) = (Default::default(), AtomicUsize::new(0));
        Ok(Server { listener, own, shared: Arc::new(Shared { content, reading, connections }) })
    }

    /// Returns the address for a browser.
    pub fn url(&self) -> String {
        format!("http://{}/", self.own)
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.own.port()
    }

    /// Serves until `stop` is set. Threads of unfinished replies end with the process.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn serve(&self, stop: &AtomicBool) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let mut sockets = [PollFd::new(&self.listener, PollFlags::IN)];
            match poll(&mut sockets, Some(&LOOK_EVERY)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(Error::bug(format!("polling a socket: {error}"))),
            }
            match self.listener.accept() {
                Ok((stream, SocketAddr::V4(peer))) => self.begin(stream, peer),
                // The other end is gone again, or this process has too many files open for the
                // moment: in both cases the next connection decides.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
        Ok(())
    }

    /// Answers a connection in a thread of its own.
    fn begin(&self, stream: TcpStream, peer: SocketAddrV4) {
        let (shared, own) = (self.shared.clone(), self.own);
        let place = Place::of(&shared);
        // The same number again is told that it has to wait; the rest is closed.
        if place.number >= 2 * CONNECTIONS_MAX {
            return;
        }
        let work = move || {
            let reply = match place.number < CONNECTIONS_MAX {
                true => shared.reply(&stream, peer, own),
                false => {
                    Some(Reply::text(503, "Too many connections: close some, then load again."))
                }
            };
            // A reader that is gone needs no reply.
            let _ = reply.map_or(Ok(()), |reply| send(&stream, &reply));
            drop(place);
        };
        // Without a thread the connection is closed.
        let _ = thread::Builder::new().name("outlive-web".to_owned()).spawn(work);
    }
}

/// One of the connections at a time.
struct Place {
    shared: Arc<Shared>,
    /// Number of the others.
    number: usize,
}

impl Place {
    fn of(shared: &Arc<Shared>) -> Place {
        let number = shared.connections.fetch_add(1, Ordering::Relaxed);
        Place { shared: shared.clone(), number }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    /// Reads a request, and returns the reply; `None` if none is needed.
    fn reply(&self, stream: &TcpStream, peer: SocketAddrV4, own: SocketAddrV4) -> Option<Reply> {
        let Content { page, metrics } = &self.content;
        if page.is_some() && !may_read(peer, own) {
            let sentence = "Only the user who started `outlive web` may read this page.";
            return Some(Reply::text(403, sentence));
        }
        let resource = match read_head(stream) {
            Err(_) => return None,
            Ok(Err(refusal)) => Err(refusal),
            Ok(Ok(head)) => parse(&head),
        };
        let resource = match resource {
            Err(Refusal(status, sentence)) => return Some(Reply::text(status, sentence)),
            Ok(resource) => resource,
        };
        Some(match (resource, page, metrics) {
            (Resource::Page, Some(_), _) => match served() {
                Ok((body, policy)) => Reply::page(body, policy),
                Err(error) => Reply::text(503, error.message()),
            },
            (Resource::Part(part), Some(source), _) => {
                let read = {
                    let _reading = self.reading[part as usize].lock();
                    source(part)
                };
                match read {
                    Ok(value) => Reply::json(200, &value),
                    Err(error) => Reply::json(503, &error_json(&error)),
                }
            }
            (Resource::Metrics, _, Some(metrics)) => {
                let read = {
                    let _reading = self.reading[2].lock();
                    metrics()
                };
                match read {
                    Ok(text) => Reply::metrics(text),
                    Err(error) => Reply::text(503, error.message()),
                }
            }
            (Resource::Metrics, _, None) => Reply::text(404, "This server has no metrics."),
            (_, None, _) => Reply::text(404, "There is no page here; the metrics are at /metrics."),
        })
    }
}

fn error_json(error: &Error) -> Value {
    json!({ "error": { "kind": error.kind().name(), "message": error.message() } })
}

/// Reads until the head of a request is whole.
///
/// # Errors
/// Errors of the connection, and its end before any byte.
fn read_head(mut stream: &TcpStream) -> io::Result<std::result::Result<Vec<u8>, Refusal>> {
    let until = Instant::now() + REQUEST_TIME;
    stream.set_nonblocking(false)?;
    let (mut head, mut buffer) = (Vec::new(), [0; 1024]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Err(Refusal(408, "The request did not arrive in time.")));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => head.extend_from_slice(&buffer[..length]),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => {
                    continue;
                }
                _ => return Err(error),
            },
        }
        if let Some(length) = head_length(&head) {
            head.truncate(length);
            return Ok(match head.len() <= HEAD_BYTES_MAX {
                true => Ok(head),
                false => Err(Refusal(431, "The headers are too long.")),
            });
        }
        if head.len() > HEAD_BYTES_MAX {
            return Ok(Err(Refusal(431, "The headers are too long.")));
        }
    }
}

/// Sends a reply, and closes the connection such that it arrives.
fn send(mut stream: &TcpStream, reply: &Reply) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(REPLY_TIME))?;
    stream.write_all(&reply.bytes())?;
    stream.shutdown(Shutdown::Write)?;
    // Bytes that nothing has read would make the kernel reset the connection, and the other end
    // might lose the reply.
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let (mut buffer, mut surplus) = ([0; 1024], 0);
    while surplus < SURPLUS_BYTES_MAX {
        match stream.read(&mut buffer)? {
            0 => break,
            length => surplus += length,
        }
    }
    Ok(())
}
