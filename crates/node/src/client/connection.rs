//! The connections of a process to a node, and its session there.

use crate::client::held::HeldLocks;
use crate::client::lanes::Lanes;
use crate::client::settings::{CONNECT_MAX, Settings};
use crate::protocol::{HelloReply, HelloRequest, PART_BYTES, RENEWALS, TOKEN_HEADER, VERSION};
use crate::status::{error_of, explain, is_silence};
use crate::stubs::node_client::NodeClient;
use bytes::Bytes;
use outlive_backend::runtime;
use outlive_io::PerProcess;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Result, Rng, SystemRng};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{OnceCell, watch};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status, Streaming};

/// Pause between two signs of life of a connection, and the longest wait for the answer to one. A
/// node that gives none for both is silent: its requests fail.
const PING: Duration = Duration::from_secs(4);
/// No further attempt begins after this time from the first failure.
const ATTEMPTS_FOR: Duration = Duration::from_secs(3);
/// The same for the first request to a node, which may not run at all.
const GREETING_FOR: Duration = Duration::from_millis(500);
/// Requests that come within this time after a node was given up fail as that one did: those that
/// waited beside it, and the repetition by a wrapper.
const DOWN_FOR: Duration = Duration::from_millis(200);
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Bytes that a connection, and each request in it, may receive ahead of its reader.
const WINDOW_BYTES: u32 = 8 << 20;
const REQUEST_WINDOW_BYTES: u32 = 4 * PART_BYTES as u32;

/// A location on a node.
pub(crate) struct Node {
    url: String,
    address: String,
    prefix: String,
    settings: Settings,
}

/// The connections to nodes: one session for each node and its settings. A forked child makes its
/// own: it would receive the replies to its parent's requests.
static CONNECTIONS: PerProcess<BTreeMap<Key, Arc<Connection>>> =
    PerProcess::new(|_| BTreeMap::new());

type Key = (String, Settings);

/// A client with the token of the settings.
pub(crate) type Client = NodeClient<InterceptedService<Channel, AddToken>>;

/// The connections of a process to a node.
pub(crate) struct Connection {
    small: Client,
    /// For shards: small requests would wait behind them. Each is made when it is used first.
    bulk: Vec<Client>,
    pub lanes: Lanes,
    /// Random number that names the session.
    pub session: Bytes,
    greeted: OnceCell<HelloReply>,
    /// When the node was given up last, and why.
    down: Mutex<Option<(Instant, Error)>>,
    pub held: Mutex<HeldLocks>,
    /// Requests in flight that give something back. No thread waits for them, but the next request
    /// that would see the difference does.
    endings: watch::Sender<usize>,
}

/// Adds the token to each request.
#[derive(Clone)]
pub(crate) struct AddToken(Option<MetadataValue<Ascii>>);

impl tonic::service::Interceptor for AddToken {
    fn call(&mut self, mut request: Request<()>) -> std::result::Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert(TOKEN_HEADER, token.clone());
        }
        Ok(request)
    }
}

/// The connection that carries a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Small,
    /// The connection for shards with this number.
    Bulk(usize),
}

/// Whether a request is sent again if nothing is known of its outcome.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    Yes,
    No,
}

impl Node {
    pub(crate) fn new(url: String, address: String, prefix: String, settings: Settings) -> Node {
        Node { url, address, prefix, settings }
    }

    /// Returns the location, for messages.
    pub(crate) fn describe(&self) -> &str {
        &self.url
    }

    pub(crate) fn prefix(&self) -> String {
        self.prefix.clone()
    }

    /// Returns this process's connections to the node. Sends nothing yet.
    pub(crate) fn connection(&self) -> Result<Arc<Connection>> {
        let key = (self.address.clone(), self.settings.clone());
        let mut all = CONNECTIONS.lock();
        if let Some(connection) = all.get(&key) {
            return Ok(connection.clone());
        }
        let connection = Arc::new(Connection::new(&key)?);
        all.insert(key, connection.clone());
        Ok(connection)
    }

    /// Checks that the node answers, and speaks this version.
    pub(crate) fn check(self: Arc<Self>) -> Result<()> {
        let connection = self.connection()?;
        runtime::wait(async move { self.greet(&connection).await.map(drop) })
    }

    /// Returns the number that the node keeps with its data.
    pub(crate) fn number(self: Arc<Self>) -> Result<Bytes> {
        let connection = self.connection()?;
        runtime::wait(async move { Ok(self.greet(&connection).await?.node) })
    }

    /// Returns what the node said of itself.
    pub(crate) async fn greet(&self, connection: &Arc<Connection>) -> Result<HelloReply> {
        let greeted = connection.greeted.get_or_try_init(|| async {
            connection.check_up()?;
            let request = HelloRequest {
                version: VERSION,
                session: connection.session.clone(),
                prefix: self.prefix(),
                build: env!("CARGO_PKG_VERSION").to_owned(),
            };
            let how = (Lane::Small, Some(GREETING_FOR));
            let asked = self.attempt(connection, "greeting it", how, |mut it| {
                let request = request.clone();
                async move { it.hello(request).await }
            });
            let reply = asked.await?;
            if reply.version != VERSION {
                return Err(Error::invalid(format!(
                    "greeting it: {} speaks version {} of the protocol, and this program version \
                     {VERSION}: use one version of outlive on both sides",
                    self.address, reply.version
                )));
            }
            let period = period_of(reply.session_s);
            let key = (self.address.clone(), self.settings.clone());
            runtime::handle()?.spawn(renew(Arc::downgrade(connection), key, period));
            Ok::<_, Error>(reply)
        });
        greeted.await.cloned()
    }

    /// Sends a request, again after failures of the connection, and returns the reply.
    ///
    /// # Errors
    /// The node's; `Retry` if it does not answer.
    pub(crate) async fn call<R, F>(
        &self,
        connection: &Arc<Connection>,
        doing: &str,
        (lane, repeat): (Lane, Repeat),
        send: impl Fn(Client) -> F,
    ) -> Result<R>
    where
        F: Future<Output = std::result::Result<Response<R>, Status>>,
    {
        self.greet(connection).await?;
        connection.check_up()?;
        let again_for = (repeat == Repeat::Yes).then_some(ATTEMPTS_FOR);
        self.attempt(connection, doing, (lane, again_for), send).await
    }

    /// Sends a request, again for some time after its first failure.
    async fn attempt<R, F>(
        &self,
        connection: &Arc<Connection>,
        doing: &str,
        (mut lane, again_for): (Lane, Option<Duration>),
        send: impl Fn(Client) -> F,
    ) -> Result<R>
    where
        F: Future<Output = std::result::Result<Response<R>, Status>>,
    {
        let (mut failed, mut pause) = (None, PAUSE_FIRST);
        loop {
            let status = match send(connection.client(lane)).await {
                Ok(reply) => return Ok(reply.into_inner()),
                Err(status) => status,
            };
            let error = self.error(doing, &status);
            if !may_pass(&status) {
                return Err(error);
            }
            let since = *failed.get_or_insert_with(Instant::now);
            // A silent node has been waited for already.
            if is_silence(&status) || again_for.is_none_or(|most| since.elapsed() > most) {
                *connection.down.lock() = Some((Instant::now(), error.clone()));
                return Err(error);
            }
            lane = connection.after_failure(lane);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Returns the error of a status.
    pub(crate) fn error(&self, doing: &str, status: &Status) -> Error {
        match error_of(status) {
            Some(error) => error.context(self.url.as_str()),
            None => explain(status, doing, &self.url),
        }
    }

    /// Does a small request, and waits for its reply.
    pub(crate) fn ask<R, F>(
        self: &Arc<Self>,
        doing: &'static str,
        repeat: Repeat,
        send: impl Fn(Client, Bytes) -> F + Send + Sync + 'static,
    ) -> Result<R>
    where
        R: Send + 'static,
        F: Future<Output = std::result::Result<Response<R>, Status>> + Send,
    {
        let (node, connection) = (self.clone(), self.connection()?);
        runtime::wait(async move {
            let session = connection.session.clone();
            let send = |client| send(client, session.clone());
            node.call(&connection, doing, (Lane::Small, repeat), send).await
        })
    }

    /// Does a request whose reply comes in parts, and passes each on. `begin` is called before each
    /// attempt.
    pub(crate) async fn collect<P, C, F>(
        &self,
        connection: &Arc<Connection>,
        doing: &str,
        send: impl Fn(Client) -> F,
    ) -> Result<C>
    where
        C: Default + Extend<P>,
        F: Future<Output = std::result::Result<Response<Streaming<P>>, Status>>,
    {
        let mut failed = None;
        loop {
            let lanes = (Lane::Small, Repeat::Yes);
            let mut parts = self.call(connection, doing, lanes, &send).await?;
            let mut all = C::default();
            let status = loop {
                match parts.message().await {
                    Ok(Some(part)) => all.extend([part]),
                    Ok(None) => return Ok(all),
                    Err(status) => break status,
                }
            };
            let since = *failed.get_or_insert_with(Instant::now);
            if since.elapsed() > ATTEMPTS_FOR || !may_pass(&status) {
                return Err(self.error(doing, &status));
            }
        }
    }
}

/// Returns whether the connection failed, and not the request.
pub(crate) fn may_pass(status: &Status) -> bool {
    let is_final = matches!(
        status.code(),
        Code::Unimplemented | Code::Unauthenticated | Code::PermissionDenied | Code::OutOfRange
    );
    !is_final
        && error_of(status).is_none()
        && explain(status, "", "").kind() == outlive_types::ErrorKind::Retry
}

impl Connection {
    /// # Errors
    /// The error with which the node was given up a moment ago.
    fn check_up(&self) -> Result<()> {
        match &*self.down.lock() {
            Some((when, error)) if when.elapsed() < DOWN_FOR => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn new((address, settings): &Key) -> Result<Connection> {
        let scheme = if settings.tls.is_some() { "https" } else { "http" };
        let wrong = |error: &dyn fmt::Display| {
            Error::invalid(format!("{address} is no address of a storage node: {error}"))
        };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .map_err(|error| wrong(&error))?
            .connect_timeout(CONNECT_MAX)
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .keep_alive_while_idle(true)
            .initial_connection_window_size(WINDOW_BYTES)
            .initial_stream_window_size(REQUEST_WINDOW_BYTES);
        if let Some(tls) = &settings.tls {
            endpoint = endpoint.tls_config(tls.config()).map_err(|error| {
                Error::invalid(format!(
                    "the certificates for {address} cannot be used ({error}): correct OUTLIVE_NODE_CA, \
                     OUTLIVE_NODE_CERT and OUTLIVE_NODE_KEY"
                ))
            })?;
        }
        let token = settings.token.as_ref().map(|token| {
            let mut value = MetadataValue::try_from(format!("Bearer {token}"))
                .expect("the settings have checked the letters of the token");
            value.set_sensitive(true);
            value
        });
        let handle = runtime::handle()?;
        let _runs = handle.enter();
        let client = || {
            NodeClient::with_interceptor(endpoint.connect_lazy(), AddToken(token.clone()))
                .max_decoding_message_size(crate::protocol::MESSAGE_BYTES_MAX)
                .max_encoding_message_size(crate::protocol::MESSAGE_BYTES_MAX)
        };
        Ok(Connection {
            small: client(),
            bulk: (0..settings.connections).map(|_| client()).collect(),
            lanes: Lanes::new(settings.connections),
            session: random(),
            greeted: OnceCell::new(),
            down: Mutex::default(),
            held: Mutex::default(),
            endings: watch::Sender::new(0),
        })
    }

    /// Returns the lane for a request that failed on this one: another connection may be better off.
    pub(crate) fn after_failure(&self, lane: Lane) -> Lane {
        match lane {
            Lane::Small => Lane::Small,
            Lane::Bulk(number) => Lane::Bulk((number + 1) % self.bulk.len()),
        }
    }

    fn client(&self, lane: Lane) -> Client {
        match lane {
            Lane::Small => self.small.clone(),
            Lane::Bulk(number) => self.bulk[number].clone(),
        }
    }

    /// Does work that gives something back, in the background.
    pub(crate) fn end(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        self.endings.send_modify(|count| *count += 1);
        let ending = Ending(self.clone());
        // Without a thread, the node ends it with the session.
        let _ = runtime::spawn(async move {
            work.await;
            drop(ending);
        });
    }

    /// Waits until all that was given back has arrived, or could not be sent.
    pub(crate) async fn after_endings(&self) {
        let _ = self.endings.subscribe().wait_for(|count| *count == 0).await;
    }
}

/// Work that gives something back.
struct Ending(Arc<Connection>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.endings.send_modify(|count| *count -= 1);
    }
}

/// Returns the pause between two renewals of a session with this life.
fn period_of(session_s: u32) -> Duration {
    Duration::from_secs(session_s.max(1).into()) / RENEWALS
}

/// Returns the time since the system started, also while it slept.
pub(crate) fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::try_from(time).unwrap_or_default()
}

/// Returns 16 random bytes.
pub(crate) fn random() -> Bytes {
    let mut random = [0; 16];
    SystemRng.fill(&mut random);
    Bytes::copy_from_slice(&random)
}

/// Renews a session as long as its connections are in use.
async fn renew(connection: Weak<Connection>, key: Key, mut period: Duration) {
    loop {
        tokio::time::sleep(period).await;
        let Some(connection) = connection.upgrade() else { return };
        {
            let mut all = CONNECTIONS.lock();
            let is_known = all.get(&key).is_some_and(|known| Arc::ptr_eq(known, &connection));
            // The map's, and this one.
            if is_known && Arc::strong_count(&connection) == 2 && connection.held.lock().is_empty()
            {
                all.remove(&key);
                return;
            }
        }
        let sent = since_boot();
        let request = connection.held.lock().renewal(connection.session.clone(), sent);
        // A later renewal may succeed.
        let mut client = connection.client(Lane::Small);
        let asked = tokio::time::timeout(period, client.renew(request.clone()));
        if let Ok(Ok(reply)) = asked.await {
            // A node that was started again may have other settings.
            let reply = reply.into_inner();
            connection.held.lock().renewed(&request, &reply, sent, since_boot());
            period = period_of(reply.session_s);
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.url)
    }
}
