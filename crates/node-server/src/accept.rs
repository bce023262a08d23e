//! Takes in connections: those that soon show that they speak the protocol, and have a proper
//! certificate where one is asked for. A connection ends that says nothing, or has soon no request
//! that the node lets in.

use crate::guard::Peer;
use crate::options::NodeTls;
use crate::refusals::Refused;
use crate::service::Service;
use outlive_types::{Error, Result};
use rustix::net::sockopt::set_tcp_user_timeout;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{self, Cursor, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// Longest wait for a client's part of a TLS handshake, and for its first bytes; then for its first
/// request that is let in.
const GREETING_MAX: Duration = Duration::from_secs(10);
/// The same while connections wait for a place: clients take a node as away that is silent for 8 s. A
/// busy machine needs as much at least.
const GREETING_OF_MANY: Duration = Duration::from_secs(2);
/// Longest wait for the end of a connection whose handshake has failed.
const PARTING_MAX: Duration = Duration::from_secs(1);
/// Longest time for which a client may take nothing that is sent.
const UNTAKEN_MAX_MS: u32 = 20_000;
/// First bytes of a connection of HTTP/2 (RFC 9113, section 3.4).
const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Pause after the system gave no connection, as when there is no handle left.
const PAUSE: Duration = Duration::from_millis(100);
/// Most connections that are open at once, whatever the limit of open files.
const PLACES_MAX: usize = 1 << 20;

/// A connection that speaks HTTP/2.
pub(crate) struct Connection {
    stream: Stream,
    /// Bytes of the preface that were handed on; all of it was received.
    given: usize,
    peer: Peer,
    /// The end of a connection without a request that was let in.
    ends: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

/// A connection of TCP, with TLS or without.
type Stream = Box<dyn Bytes>;

trait Bytes: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Bytes for T {}

/// Takes in connections.
pub(crate) struct Acceptor {
    listener: TcpListener,
    places: Arc<Semaphore>,
    greeter: Arc<Greeter>,
}

/// Finds out whether a connection speaks the protocol.
struct Greeter {
    tls: Option<TlsAcceptor>,
    service: Arc<Service>,
}

impl Acceptor {
    /// Takes connections from `listener`, by TLS if there are certificates.
    ///
    /// # Errors
    /// `Invalid` if the certificates cannot be used.
    pub(crate) fn new(
        listener: TcpListener,
        tls: Option<&NodeTls>,
        service: &Arc<Service>,
    ) -> Result<Acceptor> {
        let tls = tls.map(config).transpose().map_err(|error| {
            Error::invalid(format!(
                "the node's certificate cannot be used ({error}): correct --tls-cert, --tls-key and \
                 --client-ca"
            ))
        })?;
        let files = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
        let files = getrlimit(Resource::Nofile).current;
        // The other half is for files and devices.
        let places =
            files.map_or(PLACES_MAX, |files| (files / 2).clamp(1, PLACES_MAX as u64) as usize);
        let tls = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
        Ok(Acceptor {
            listener,
            places: Arc::new(Semaphore::new(places)),
            greeter: Arc::new(Greeter { tls, service: service.clone() }),
        })
    }

    /// Returns the connections, as they come. It listens until that is dropped.
    pub(crate) fn start(self) -> ReceiverStream<io::Result<Connection>> {
        let (give, connections) = mpsc::channel(1);
        tokio::spawn(self.accept(give));
        ReceiverStream::new(connections)
    }

    async fn accept(self, give: mpsc::Sender<io::Result<Connection>>) {
        loop {
            let accepted = tokio::select! {
                () = give.closed() => return,
                accepted = self.next() => accepted,
            };
            let (stream, peer, place) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    let text = format!("no connection can be taken ({error})");
                    self.greeter.service.refusals.note_wait(&text);
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let longest = match self.places.available_permits() {
                0 => GREETING_OF_MANY,
                _ => GREETING_MAX,
            };
            let (greeter, give) = (self.greeter.clone(), give.clone());
            tokio::spawn(async move {
                let longest = greeter.service.slow.clamp(GREETING_OF_MANY, longest);
                let greeted = timeout(longest, greeter.greet(stream)).await;
                let stream = match greeted {
                    Ok(Ok(Some(stream))) => stream,
                    Ok(Ok(None)) => return,
                    Ok(Err(error)) => return greeter.refuse(&error.to_string(), peer),
                    Err(_) => {
                        let text = format!("the client did not greet within {longest:?}");
                        return greeter.refuse(&text, peer);
                    }
                };
                let ends = Some(Box::pin(tokio::time::sleep(longest)));
                let peer = Peer::new(peer);
                let connection = Connection { stream, given: 0, peer, ends, _place: place };
                // Without a receiver the node is about to stop.
                let _ = give.send(Ok(connection)).await;
            });
        }
    }

    async fn next(&self) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let place = match self.places.clone().try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                let text = "as many connections are open as there may be: further ones wait";
                self.greeter.service.refusals.note_wait(text);
                self.places.clone().acquire_owned().await.map_err(io::Error::other)?
            }
        };
        let (stream, peer) = self.listener.accept().await?;
        Ok((stream, peer, place))
    }
}

impl Greeter {
    /// Returns the stream behind the handshake and the preface; `None` if the client left without a
    /// word, as probes of ports do.
    async fn greet(&self, stream: TcpStream) -> io::Result<Option<Stream>> {
        stream.set_nodelay(true)?;
        set_tcp_user_timeout(&stream, UNTAKEN_MAX_MS)?;
        if stream.peek(&mut [0]).await? == 0 {
            return Ok(None);
        }
        let mut stream: Stream = match &self.tls {
            None => Box::new(stream),
            Some(tls) => match tls.accept(stream).into_fallible().await {
                Ok(stream) => Box::new(stream),
                Err((error, stream)) => {
                    part_from(stream).await;
                    let text = format!("there is no safe connection with the client ({error})");
                    return Err(io::Error::other(text));
                }
            },
        };
        let mut preface = [0; PREFACE.len()];
        stream.read_exact(&mut preface).await?;
        match preface == PREFACE {
            true => Ok(Some(stream)),
            false => Err(io::Error::other("the client does not speak gRPC")),
        }
    }

    fn refuse(&self, text: &str, peer: SocketAddr) {
        self.service.refusals.note(Refused { kind: "Connection", call: "" }, text, Some(peer));
    }
}

/// Ends a connection after the last words of a handshake. A close before the client's bytes are read
/// would reset it, and the client might not read the reason.
async fn part_from(mut stream: TcpStream) {
    let parting = async {
        stream.shutdown().await?;
        while stream.read(&mut [0; 4096]).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(PARTING_MAX, parting).await;
}

type Because<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Reads the certificates.
fn config(tls: &NodeTls) -> Because<ServerConfig> {
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?;
    let builder = match &tls.clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let mut roots = RootCertStore::empty();
            certificates(clients)?.into_iter().try_for_each(|it| roots.add(it))?;
            let roots = Arc::new(roots);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build()?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let key = PrivateKeyDer::from_pem_reader(&mut Cursor::new(&tls.key))?;
    let mut config = builder.with_single_cert(certificates(&tls.certificate)?, key)?;
    config.alpn_protocols.push(b"h2".to_vec());
    Ok(config)
}

fn certificates(pem: &[u8]) -> Because<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, PemError> =
        CertificateDer::pem_reader_iter(&mut Cursor::new(pem)).collect();
    match found? {
        found if found.is_empty() => Err("a file has no certificate".into()),
        found => Ok(found),
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(ends) = &mut self.ends
            && ends.as_mut().poll(context).is_ready()
        {
            if !self.peer.is_let_in() {
                let text = "the client has made no request that is let in";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)));
            }
            self.ends = None;
        }
        let left = &PREFACE[self.given..];
        if left.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let length = left.len().min(buffer.remaining());
        buffer.put_slice(&left[..length]);
        self.given += length;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
