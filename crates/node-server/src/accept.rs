//! Takes in connections: those that soon show that they speak the protocol, and have a proper
//! certificate where one is asked for. A connection without a word ends.

use crate::guard::Peer;
use crate::options::NodeTls;
use crate::refusals::Refused;
use crate::service::Service;
use outlive_types::{Error, Result};
use rustix::process::{Resource, getrlimit};
use std::io::{self, Cursor, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// Longest wait for a client's part of a TLS handshake, and for its first bytes.
const GREETING_MAX: Duration = Duration::from_secs(10);
/// First bytes of a connection of HTTP/2 (RFC 9113, section 3.4).
const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Pause after the system gave no connection, as when there is no handle left.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections that are open at once, if the limit of open files is no lower than twice that.
const CONNECTIONS_MAX: u64 = 4096;

/// A connection that speaks HTTP/2.
pub(crate) struct Connection {
    stream: Stream,
    /// Bytes of the preface that were handed on; all of it was received.
    given: usize,
    peer: SocketAddr,
    _place: OwnedSemaphorePermit,
}

/// A connection of TCP, with TLS or without.
type Stream = Box<dyn Bytes>;

trait Bytes: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Bytes for T {}

/// Takes in connections.
pub(crate) struct Acceptor {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    service: Arc<Service>,
    places: Arc<Semaphore>,
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
        // The other half is for files and devices.
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let places = (files / 2).clamp(1, CONNECTIONS_MAX) as usize;
        Ok(Acceptor {
            listener,
            tls: tls.map(|config| TlsAcceptor::from(Arc::new(config))),
            service: service.clone(),
            places: Arc::new(Semaphore::new(places)),
        })
    }

    /// Returns the connections, as they come. It listens until that is dropped.
    pub(crate) fn start(self) -> ReceiverStream<io::Result<Connection>> {
        let (give, connections) = mpsc::channel(1);
        tokio::spawn(self.accept(give));
        ReceiverStream::new(connections)
    }

    async fn accept(self, give: mpsc::Sender<io::Result<Connection>>) {
        let acceptor = Arc::new(self);
        loop {
            let accepted = tokio::select! {
                () = give.closed() => return,
                accepted = acceptor.next() => accepted,
            };
            let (stream, peer, place) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    acceptor.note(&format!("no connection can be taken ({error})"), None);
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let (acceptor, give) = (acceptor.clone(), give.clone());
            tokio::spawn(async move {
                let longest = GREETING_MAX.min(acceptor.service.slow);
                let greeted = tokio::time::timeout(longest, acceptor.greet(stream)).await;
                let stream = match greeted {
                    Ok(Ok(Some(stream))) => stream,
                    Ok(Ok(None)) => return,
                    Ok(Err(error)) => return acceptor.note(&error.to_string(), Some(peer)),
                    Err(_) => {
                        let text = format!("the client did not greet within {longest:?}");
                        return acceptor.note(&text, Some(peer));
                    }
                };
                let connection = Connection { stream, given: 0, peer, _place: place };
                // Without a receiver the node is about to stop.
                let _ = give.send(Ok(connection)).await;
            });
        }
    }

    async fn next(&self) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let place = match self.places.clone().try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                self.note("as many connections are open as there may be, and others wait", None);
                self.places.clone().acquire_owned().await.map_err(io::Error::other)?
            }
        };
        let (stream, peer) = self.listener.accept().await?;
        Ok((stream, peer, place))
    }

    /// Returns the stream behind the handshake and the preface; `None` if the client left without a
    /// word, as probes of ports do.
    async fn greet(&self, stream: TcpStream) -> io::Result<Option<Stream>> {
        stream.set_nodelay(true)?;
        if stream.peek(&mut [0]).await? == 0 {
            return Ok(None);
        }
        let mut stream: Stream = match &self.tls {
            None => Box::new(stream),
            Some(tls) => Box::new(tls.accept(stream).await.map_err(|error| {
                io::Error::other(format!("there is no safe connection with the client ({error})"))
            })?),
        };
        let mut preface = [0; PREFACE.len()];
        stream.read_exact(&mut preface).await?;
        match preface == PREFACE {
            true => Ok(Some(stream)),
            false => Err(io::Error::other("the client does not speak gRPC")),
        }
    }

    fn note(&self, text: &str, peer: Option<SocketAddr>) {
        self.service.refusals.note(Refused { kind: "Connection", call: "" }, text, peer);
    }
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
        Peer(self.peer)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
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
