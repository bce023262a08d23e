//! Starts and ends a node.

use crate::accept::Acceptor;
use crate::admission::Admission;
use crate::buffers::Buffers;
use crate::data::Data;
use crate::figures;
use crate::guard::Guard;
use crate::log::Log;
use crate::options::NodeOptions;
use crate::service::Service;
use crate::sessions::{Sessions, hex};
use crate::stage::Stage;
use crate::writers::Writers;
use outlive_node::protocol::MESSAGE_BYTES_MAX;
use outlive_node::stubs::node_server::NodeServer as Stubs;
use outlive_types::{Error, Result, Rng, SystemRng};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Server;

/// Pause between two signs of life of a connection, and the longest wait for the answer to one.
const PING: Duration = Duration::from_secs(10);
/// Requests of one connection at once.
const STREAMS: u32 = 32;
/// Bytes that a request may send ahead of the node's staging.
const REQUEST_WINDOW_BYTES: u32 = 64 << 10;
/// Bytes that a connection may send ahead. All its requests fit: if some wait for staging, the bytes
/// of the others must still come through.
const WINDOW_BYTES: u32 = STREAMS * REQUEST_WINDOW_BYTES;
/// Part of the life of a session that a client may take for the next bytes of a request.
const SLOW_SHARE: u32 = 6;
/// Longest wait for requests in flight when the node is told to stop.
const GRACE: Duration = Duration::from_secs(10);
/// Threads for calls of the disks that may block.
const BLOCKING_MAX: usize = 64;
/// Pause between two looks for silent sessions.
const TIDY: Duration = Duration::from_secs(1);

/// A running node. It stops when this is dropped.
pub struct NodeServer {
    runtime: Option<Runtime>,
    stop: Stop,
    serving: Option<JoinHandle<std::result::Result<(), tonic::transport::Error>>>,
    address: SocketAddr,
    metrics: Option<(String, Arc<AtomicBool>, thread::JoinHandle<Result<()>>)>,
    service: Arc<Service>,
    log: Log,
}

/// Tells a node to stop.
#[derive(Clone)]
pub struct Stop(Arc<watch::Sender<bool>>);

impl Stop {
    /// Tells the node to take no more requests, and to end those in flight.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Service {
    /// Returns the service of a node on this data.
    pub(crate) fn new(data: Data, session: Duration, staging_bytes: usize) -> Service {
        let mut run = [0; 16];
        SystemRng.fill(&mut run);
        let now = Instant::now();
        let knows_from = data.earlier_session.map_or(now, |life| now + life.max(session));
        // The other half is for reads of the disks.
        let admission = Admission::new(staging_bytes / 2);
        let buffers = Buffers::new(staging_bytes);
        Service {
            sessions: Sessions::new(data.id, session, knows_from),
            data,
            writers: Writers::default(),
            stage: Stage::new(staging_bytes / 2, buffers.clone()),
            admission,
            buffers,
            run,
            slow: session / SLOW_SHARE,
            writing_max: session,
            written_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            refusals: Arc::default(),
        }
    }
}

impl NodeServer {
    /// Opens the data, and begins to serve it.
    ///
    /// # Errors
    /// `Invalid` if the settings cannot be used; `Retry` if the address or the data is in use.
    pub fn start(options: NodeOptions) -> Result<NodeServer> {
        if options.staging_bytes < NodeOptions::STAGING_BYTES_MIN {
            return Err(Error::invalid(format!(
                "{} bytes of staging are too few: a node needs {} or more",
                options.staging_bytes,
                NodeOptions::STAGING_BYTES_MIN
            )));
        }
        if options.session < NodeOptions::SESSION_MIN {
            return Err(Error::invalid(format!(
                "a session of {:?} is too short: a client cannot renew it in time",
                options.session
            )));
        }
        let data = Data::open(options.data, options.session)?;
        let service = Arc::new(Service::new(data, options.session, options.staging_bytes));
        let runtime = Builder::new_multi_thread()
            .thread_name("outlive-node")
            .max_blocking_threads(BLOCKING_MAX)
            .enable_all()
            .build()
            .map_err(|error| Error::no_thread("the requests of clients", &error))?;
        let (stop, stopped) = watch::channel(false);
        let listener = runtime.block_on(TcpListener::bind(options.listen)).map_err(|error| {
            Error::retry(format!(
                "the node cannot listen at {} ({error}): choose another address, or end the program \
                 that has it",
                options.listen
            ))
        })?;
        let address = listener
            .local_addr()
            .map_err(|error| Error::retry(format!("the node has no address ({error})")))?;
        let acceptor = Acceptor::new(listener, options.tls.as_ref(), &service)?;
        let mut server = Server::builder()
            .http2_keepalive_interval(Some(PING))
            .http2_keepalive_timeout(Some(PING))
            .max_concurrent_streams(STREAMS)
            .initial_connection_window_size(WINDOW_BYTES)
            .initial_stream_window_size(REQUEST_WINDOW_BYTES);
        let (health, health_service) = tonic_health::server::health_reporter();
        let stubs = Stubs::from_arc(service.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let guard =
            Guard { inner: stubs, tokens: Arc::new(options.tokens), service: service.clone() };
        let serving = runtime.spawn({
            let mut stopped = stopped.clone();
            async move {
                health.set_serving::<Stubs<Service>>().await;
                let end = async move {
                    let _ = stopped.wait_for(|stop| *stop).await;
                    health.set_not_serving::<Stubs<Service>>().await;
                };
                server
                    .add_service(health_service)
                    .add_service(guard)
                    .serve_with_incoming_shutdown(acceptor.start(), end)
                    .await
            }
        });
        let log = Log(options.log);
        runtime.spawn(tidy(service.clone(), log.clone()));
        let metrics = options.metrics_port.map(|port| serve_metrics(port, &service)).transpose()?;
        log.event(
            "started",
            &[
                ("address", address.to_string().into()),
                ("data", service.data.describe().into()),
                ("node", hex(&service.data.id).into()),
                ("version", env!("CARGO_PKG_VERSION").into()),
            ],
        );
        Ok(NodeServer {
            runtime: Some(runtime),
            stop: Stop(Arc::new(stop)),
            serving: Some(serving),
            address,
            metrics,
            service,
            log,
        })
    }

    /// Returns the address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the locations that it serves, for messages.
    pub fn data(&self) -> String {
        self.service.data.describe()
    }

    /// Returns the bytes of staging memory in use.
    pub fn staging_bytes(&self) -> usize {
        self.service.admission.taken().0
    }

    /// Returns the URL of the metrics, if it serves any.
    pub fn metrics_url(&self) -> Option<&str> {
        self.metrics.as_ref().map(|(url, _, _)| url.as_str())
    }

    /// Returns a handle by which any thread stops it.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Stops when the process gets SIGTERM or SIGINT.
    ///
    /// # Errors
    /// `Retry` if the system lets no handler be set.
    pub fn stop_at_signals(&self) -> Result<()> {
        let Some(runtime) = &self.runtime else { return Ok(()) };
        let _runs = runtime.enter();
        for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
            let mut signals = signal(kind)
                .map_err(|error| Error::retry(format!("no signal can be handled ({error})")))?;
            let stop = self.stop();
            runtime.spawn(async move {
                signals.recv().await;
                stop.stop();
            });
        }
        Ok(())
    }

    /// Waits until it is told to stop, and ends the requests in flight.
    ///
    /// # Errors
    /// `Retry` if it cannot listen any more.
    pub fn wait(mut self) -> Result<()> {
        let mut stopped = self.stop.0.subscribe();
        let Some((runtime, serving)) = self.runtime.as_ref().zip(self.serving.take()) else {
            return Ok(());
        };
        runtime.block_on(async move {
            let ended = async {
                let _ = stopped.wait_for(|stop| *stop).await;
                tokio::time::sleep(GRACE).await;
            };
            tokio::select! {
                served = serving => match served {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(error)) => Err(Error::retry(format!("the node cannot serve any more ({error})"))),
                    Err(_) => Err(Error::bug("the node's server panicked")),
                },
                // A client holds its connection open.
                () = ended => Ok(()),
            }
        })
    }
}

impl Drop for NodeServer {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some((_, stop, serving)) = self.metrics.take() {
            stop.store(true, Ordering::SeqCst);
            let _ = serving.join();
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(2));
        }
        self.log.refusals(&self.service, true);
        self.log.event("stopped", &[("address", self.address.to_string().into())]);
    }
}

/// Ends silent sessions, and logs what was refused, from time to time.
async fn tidy(service: Arc<Service>, log: Log) {
    loop {
        tokio::time::sleep(TIDY).await;
        let (sessions, shards) = service.tidy();
        if sessions > 0 {
            log.event(
                "sessions ended",
                &[("sessions", sessions.into()), ("unfinished shards", shards.len().into())],
            );
        }
        log.refusals(&service, false);
    }
}

type Serving = (String, Arc<AtomicBool>, thread::JoinHandle<Result<()>>);

fn serve_metrics(port: u16, service: &Arc<Service>) -> Result<Serving> {
    let service = service.clone();
    let content = outlive_web::Content::metrics(Box::new(move || Ok(figures::text(&service))));
    let server = outlive_web::Server::bind(port, content)?;
    let url = format!("{}metrics", server.url());
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let serving = thread::Builder::new()
        .name("outlive-metrics".to_owned())
        .spawn(move || server.serve(&told))
        .map_err(|error| Error::no_thread("the metrics", &error))?;
    Ok((url, stop, serving))
}
