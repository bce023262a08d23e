//! A relay of connections, which cuts them or holds their bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// Bytes that wait in the relay.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub enum Held {
    #[default]
    None,
    Replies,
    All,
}

/// Passes connections on to a server.
pub struct Relay {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Bytes until all connections are cut; none are if it is negative.
    left: AtomicI64,
    next_cut: Mutex<Option<Box<dyn FnMut() -> i64 + Send>>>,
    cuts: AtomicUsize,
    held: Mutex<Held>,
    changed: Condvar,
    open: Mutex<Vec<TcpStream>>,
    taken: AtomicUsize,
}

impl Relay {
    pub fn before(to: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State { left: AtomicI64::new(-1), ..State::default() });
        let of = state.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(to) else { continue };
                of.taken.fetch_add(1, Ordering::SeqCst);
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let mut open = of.open.lock().unwrap();
                open.push(client.try_clone().unwrap());
                open.push(server.try_clone().unwrap());
                drop(open);
                let requests = (client.try_clone().unwrap(), server.try_clone().unwrap());
                for (ends, is_reply) in [(requests, false), ((server, client), true)] {
                    let of = of.clone();
                    thread::spawn(move || of.pass(ends, is_reply));
                }
            }
        });
        Relay { address, state }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts all connections after as many bytes as `next` says, again and again.
    pub fn cut_after(&self, mut next: impl FnMut() -> i64 + Send + 'static) {
        self.state.left.store(next(), Ordering::SeqCst);
        *self.state.next_cut.lock().unwrap() = Some(Box::new(next));
    }

    /// Cuts no more. Returns the number of cuts.
    pub fn stop_cutting(&self) -> usize {
        *self.state.next_cut.lock().unwrap() = None;
        self.state.left.store(-1, Ordering::SeqCst);
        self.state.cuts.load(Ordering::SeqCst)
    }

    /// Returns the number of connections that were made.
    pub fn taken(&self) -> usize {
        self.state.taken.load(Ordering::SeqCst)
    }

    /// Holds bytes, or passes them on again.
    pub fn hold(&self, holds: Held) {
        *self.state.held.lock().unwrap() = holds;
        self.state.changed.notify_all();
    }
}

impl State {
    fn pass(&self, (mut from, mut to): (TcpStream, TcpStream), is_reply: bool) {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(mut length @ 1..) = from.read(&mut buffer) {
            let mut held = self.held.lock().unwrap();
            while *held == Held::All || (is_reply && *held == Held::Replies) {
                held = self.changed.wait(held).unwrap();
            }
            drop(held);
            let left = self.left.load(Ordering::SeqCst);
            let cuts =
                left >= 0 && self.left.fetch_sub(length as i64, Ordering::SeqCst) <= length as i64;
            if cuts {
                length = length.min(usize::try_from(left).unwrap_or(0));
            }
            let passed = to.write_all(&buffer[..length]);
            if cuts {
                self.cuts.fetch_add(1, Ordering::SeqCst);
                self.cut();
                let next = self.next_cut.lock().unwrap().as_mut().map_or(-1, |next| next());
                self.left.store(next, Ordering::SeqCst);
            }
            if passed.is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }

    fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
