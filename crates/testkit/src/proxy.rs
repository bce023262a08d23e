//! A proxy that spoils requests: it cuts connections, loses replies, and refuses.

use outlive_types::sync::plain::{Condvar, Mutex};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// Fault that the proxy applies to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// No fault.
    None,
    /// The request never reaches the server.
    LoseRequest,
    /// The server does the request, but its reply never comes back.
    LoseReply,
    /// Only this number of bytes of the reply come back.
    CutReply(usize),
    /// The proxy refuses it with this status; it never reaches the server.
    Refuse(u16),
    /// The server gets its body with the last bit flipped.
    FlipBit,
    /// It waits in the proxy until [`Proxy::let_go`] is called.
    Hold,
}

/// Chooses the fault of a request, by its method and target ("/bucket/key?query").
type Rule = Box<dyn FnMut(&str, &str) -> Fault + Send>;

/// Passes requests on to a server.
pub struct Proxy {
    address: SocketAddr,
    rule: Arc<Mutex<Rule>>,
    held: Arc<HeldRequests>,
}

/// Requests that the proxy holds.
#[derive(Default)]
struct HeldRequests {
    /// Number of requests held so far, and whether they may continue.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl HeldRequests {
    fn wait(&self) {
        let mut state = self.state.lock();
        state.0 += 1;
        while !state.1 {
            state = self.changed.wait(state);
        }
    }
}

impl Proxy {
    /// Starts a proxy in front of the server at `to`. Its threads end with the test.
    pub fn before(to: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let rule: Arc<Mutex<Rule>> = Arc::new(Mutex::new(Box::new(|_, _| Fault::None)));
        let held = Arc::new(HeldRequests::default());
        let shared = (rule.clone(), held.clone());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (rule, held) = shared.clone();
                thread::spawn(move || {
                    // A connection that breaks is expected here.
                    let _ = pass_on(&client, to, &rule, &held);
                    let _ = client.shutdown(Shutdown::Both);
                });
            }
        });
        Proxy { address, rule, held }
    }

    /// Returns the number of requests held so far.
    pub fn held(&self) -> usize {
        self.held.state.lock().0
    }

    /// Releases the held requests, and holds no more.
    pub fn let_go(&self) {
        self.held.state.lock().1 = true;
        self.held.changed.notify_all();
    }

    /// Returns the address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Applies `rule` to requests from now on.
    pub fn spoil(&self, rule: impl FnMut(&str, &str) -> Fault + Send + 'static) {
        *self.rule.lock() = Box::new(rule);
    }

    /// Applies `fault` to the next request that `matches`, and none to others.
    pub fn spoil_once(
        &self,
        fault: Fault,
        matches: impl Fn(&str, &str) -> bool + Send + 'static,
    ) -> Arc<Mutex<bool>> {
        let done = Arc::new(Mutex::new(false));
        let mark = done.clone();
        self.spoil(move |method, target| {
            let mut done = mark.lock();
            if *done || !matches(method, target) {
                return Fault::None;
            }
            *done = true;
            fault
        });
        done
    }
}

/// Passes one request on, and its reply back: the server closes the connection after it.
fn pass_on(
    mut client: &TcpStream,
    to: SocketAddr,
    rule: &Mutex<Rule>,
    held: &HeldRequests,
) -> io::Result<()> {
    let mut request = read_request(client)?;
    let head = String::from_utf8_lossy(&request[..request.len().min(4096)]).into_owned();
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let fault = rule.lock()(method, target);
    match fault {
        Fault::LoseRequest => return Ok(()),
        Fault::Refuse(status) => {
            let reply =
                format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            return client.write_all(reply.as_bytes());
        }
        Fault::Hold => held.wait(),
        Fault::FlipBit => request.last_mut().into_iter().for_each(|last| *last ^= 1),
        _ => {}
    }
    let mut server = TcpStream::connect(to)?;
    // So the end of the connection marks the end of the reply.
    let (line, rest) = request.split_at(head.find("\r\n").map_or(0, |end| end + 2));
    server.write_all(&[line, b"Connection: close\r\n", rest].concat())?;
    match fault {
        Fault::LoseReply => io::copy(&mut server, &mut io::sink()),
        Fault::CutReply(bytes) => io::copy(&mut server.take(bytes as u64), &mut client),
        _ => io::copy(&mut server, &mut client),
    }
    .map(drop)
}

/// Reads a request with its body, whose length it states.
fn read_request(mut client: &TcpStream) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    let mut whole = None;
    while whole.is_none_or(|whole| request.len() < whole) {
        let got = client.read(&mut chunk)?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        request.extend_from_slice(&chunk[..got]);
        if whole.is_none() {
            whole = request.windows(4).position(|window| window == b"\r\n\r\n").map(|end| {
                let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
                end + 4 + length.and_then(|length| length.trim().parse().ok()).unwrap_or(0)
            });
        }
    }
    Ok(request)
}
