//! A cluster and a prefix of its keys. It chooses the member for a request, the time limit and the
//! user, and the next step if the member does not respond.

use crate::errors::{Fault, Next};
use crate::gateway::{AuthToken, Reply, Request, Streamed};
use crate::settings::{Settings, Tls};
use outlive_backend::runtime;
use outlive_io::PerProcess;
use outlive_types::{Error, ErrorKind, Result};
use reqwest::{Certificate, Client, Identity, redirect};
use serde::de::DeserializeOwned;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for a connection to a member.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Longest wait for a reply. Without a majority etcd itself gives up after 7 seconds.
const ANSWER_MAX: Duration = Duration::from_secs(8);
/// Longest wait for a reply if other members can do the same request: this one may be cut off from
/// the majority.
const ANSWER_MAX_OF_SEVERAL: Duration = Duration::from_secs(4);
/// No second round over the members begins after this time.
const ROUNDS: Duration = Duration::from_secs(3);
/// No further member is asked after this time.
const ASKING_MAX: Duration = Duration::from_secs(12);
/// Pause between two rounds: a cluster elects a new leader within a second or two.
const PAUSE: Duration = Duration::from_millis(100);
/// A connection that was idle for longer is not used again: a firewall may have dropped it, and
/// would let a put get lost.
const IDLE_MAX: Duration = Duration::from_secs(20);

/// A cluster and the prefix of our keys in it.
pub(crate) struct Cluster {
    /// Location, for messages.
    url: String,
    /// Hosts with ports.
    addresses: Vec<String>,
    /// Begins every key; empty, or without a slash at its end.
    pub prefix: String,
    settings: Settings,
    /// The member to ask first: the one that replied last.
    first: AtomicUsize,
    /// Connections belong to a process: a forked child that used its parent's would receive the
    /// replies to the parent's requests. A child does not touch them.
    ours: PerProcess<Ours>,
}

/// State of one process for a cluster.
#[derive(Default)]
struct Ours {
    client: Option<Client>,
    /// Authenticates us at every member; empty if the cluster has no users.
    token: Option<String>,
    /// Id of the cluster, equal on all members.
    cluster_id: Option<String>,
}

impl Ours {
    fn inherit(parents: Option<&Ours>) -> Ours {
        let known = parents.map(|parents| (parents.token.clone(), parents.cluster_id.clone()));
        let (token, cluster_id) = known.unwrap_or_default();
        Ours { client: None, token, cluster_id }
    }
}

impl Cluster {
    pub(crate) fn new(
        url: String,
        addresses: Vec<String>,
        prefix: &str,
        settings: Settings,
    ) -> Cluster {
        Cluster {
            url,
            addresses,
            prefix: prefix.to_owned(),
            settings,
            first: AtomicUsize::new(0),
            ours: PerProcess::new(Ours::inherit),
        }
    }

    /// Returns the seconds after which a lease ends that is not renewed.
    pub(crate) fn lease_s(&self) -> u32 {
        self.settings.lease_s
    }

    /// Returns the location, for messages.
    pub(crate) fn describe(&self) -> &str {
        &self.url
    }

    /// Sends a request to the members in turn, until one has done it.
    pub(crate) async fn call(&self, request: &Request) -> std::result::Result<Reply, Fault> {
        let several = request.repeats && self.addresses.len() > 1;
        let limit = if several { ANSWER_MAX_OF_SEVERAL } else { ANSWER_MAX };
        let (begun, first) = (Instant::now(), self.first.load(Ordering::Relaxed));
        let mut faults: Vec<Option<Fault>> = self.addresses.iter().map(|_| None).collect();
        loop {
            for at in (first..).take(self.addresses.len()).map(|at| at % self.addresses.len()) {
                let fault = match self.ask(&self.addresses[at], request, limit).await {
                    Ok(reply) => {
                        self.first.store(at, Ordering::Relaxed);
                        return Ok(reply);
                    }
                    Err(fault) => fault,
                };
                // The next call begins with another member.
                self.first.store((at + 1) % self.addresses.len(), Ordering::Relaxed);
                let is_final = match fault.next {
                    Next::Stop | Next::Compacted => true,
                    Next::Unknown => !request.repeats,
                    Next::Another | Next::Token => false,
                };
                if is_final {
                    return Err(self.at(at, fault));
                }
                faults[at] = Some(fault);
                if begun.elapsed() > ASKING_MAX {
                    return Err(self.in_all(faults));
                }
            }
            let is_hopeless = faults.iter().flatten().all(|fault| fault.kind != ErrorKind::Retry);
            if is_hopeless || begun.elapsed() > ROUNDS {
                return Err(self.in_all(faults));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Adds the member's name to a fault.
    fn at(&self, at: usize, fault: Fault) -> Fault {
        Fault { text: format!("{}: {}", self.addresses[at], fault.text), ..fault }
    }

    /// Merges the last faults of all members into one.
    fn in_all(&self, faults: Vec<Option<Fault>>) -> Fault {
        let named = faults.into_iter().enumerate();
        let faults: Vec<Fault> =
            named.filter_map(|(at, fault)| Some(self.at(at, fault?))).collect();
        let texts: Vec<&str> = faults.iter().map(|fault| fault.text.as_str()).collect();
        let text = texts.join("; ");
        // As long as one member may reply later, so may the cluster.
        let worst = faults.into_iter().min_by_key(|fault| fault.kind != ErrorKind::Retry);
        match worst {
            Some(fault) => Fault { text, ..fault },
            None => Fault::new(ErrorKind::Bug, Next::Stop, "a cluster without members", ""),
        }
    }

    /// Checks which members respond, that they belong to one cluster, and that a put would succeed.
    pub(crate) async fn check(&self) -> Result<()> {
        let greeting = Request::greet(&self.key("log/"), &self.key("log0"));
        let doing = format!("looking into {}", self.url);
        for (at, address) in self.addresses.iter().enumerate() {
            match self.ask(address, &greeting, CONNECT_MAX).await {
                // The other members may be a majority.
                Err(fault) if fault.kind == ErrorKind::Retry => {}
                Err(fault) => return Err(self.at(at, fault).explain(&doing)),
                Ok(_) => {}
            }
        }
        let put = Request::would_put(&self.key("log/.check"));
        self.call(&put).await.map(drop).map_err(|fault| fault.explain(&doing))
    }

    /// Sends a request to one member; replaces a token first that is too old.
    async fn ask(
        &self,
        address: &str,
        request: &Request,
        limit: Duration,
    ) -> std::result::Result<Reply, Fault> {
        let token = self.token(address, limit).await?;
        let asked = self.send_one(address, request, &token, limit).await;
        let reply = match asked {
            // Perhaps users were introduced since we got the token.
            Err(fault) if fault.next == Next::Token || fault.is_nameless() => {
                if self.settings.user.is_none() {
                    return Err(fault);
                }
                self.ours.lock().token.take_if(|current| *current == token);
                let token = self.token(address, limit).await?;
                self.send_one(address, request, &token, limit).await?
            }
            asked => asked?,
        };
        let mut ours = self.ours.lock();
        let known = ours.cluster_id.get_or_insert_with(|| reply.header.cluster_id.clone());
        if *known != reply.header.cluster_id {
            return Err(Fault::new(
                ErrorKind::Invalid,
                Next::Stop,
                "it belongs to another cluster than the members that were asked before",
                ": correct the location; all its hosts must be members of one cluster",
            ));
        }
        drop(ours);
        Ok(reply)
    }

    /// Returns the token that authenticates us; empty if the cluster has no users.
    async fn token(&self, address: &str, limit: Duration) -> std::result::Result<String, Fault> {
        let Some(user) = &self.settings.user else { return Ok(String::new()) };
        if let Some(token) = &self.ours.lock().token {
            return Ok(token.clone());
        }
        let request = Request::authenticate(&user.name, &user.password);
        let token = match self.send::<AuthToken>(address, &request, "", limit).await {
            Ok(session) => session.token,
            // The member does not know users.
            Err(fault) if fault.says_no_users() => String::new(),
            Err(fault) if fault.next == Next::Stop => return Err(fault),
            // The request that needs the token has not begun.
            Err(fault) => return Err(Fault { next: Next::Another, ..fault }),
        };
        self.ours.lock().token = Some(token.clone());
        Ok(token)
    }

    /// Sends a request; returns the first reply if replies arrive as a stream.
    async fn send_one(
        &self,
        address: &str,
        request: &Request,
        token: &str,
        limit: Duration,
    ) -> std::result::Result<Reply, Fault> {
        match request.streams {
            true => {
                let first: Streamed = self.send(address, request, token, limit).await?;
                Ok(first.result)
            }
            false => self.send(address, request, token, limit).await,
        }
    }

    async fn send<T: DeserializeOwned>(
        &self,
        address: &str,
        request: &Request,
        token: &str,
        limit: Duration,
    ) -> std::result::Result<T, Fault> {
        let scheme = if self.settings.tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{address}/v3/{}", request.path);
        let mut post = self.client()?.post(url).timeout(limit).body(request.body.clone());
        if !token.is_empty() {
            post = post.header("Authorization", token);
        }
        let answer = post.send().await.map_err(|error| Fault::of_request(&error))?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(|error| Fault::of_request(&error))?;
        if !status.is_success() {
            return Err(Fault::of_answer(status.as_u16(), &body));
        }
        serde_json::from_slice(&body).map_err(|_| Fault::of_stranger(status.as_u16(), ""))
    }

    /// Returns this process's connections.
    fn client(&self) -> std::result::Result<Client, Fault> {
        let mut ours = self.ours.lock();
        if let Some(client) = &ours.client {
            return Ok(client.clone());
        }
        // Fails only if a provider is already chosen, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = Client::builder()
            .connect_timeout(CONNECT_MAX)
            .pool_idle_timeout(IDLE_MAX)
            .redirect(redirect::Policy::none())
            // Members are hosts of this network; a proxy from the environment leads out of it.
            .no_proxy()
            // etcd takes HTTP/2 requests for gRPC.
            .http1_only();
        let made = match &self.settings.tls {
            // Reading the system's certificates takes time, and they are not needed here.
            None => builder.tls_certs_only([]).build(),
            Some(Tls { roots, identity }) => {
                let with_roots = match roots {
                    Some(pem) => {
                        Certificate::from_pem_bundle(pem).map(|roots| builder.tls_certs_only(roots))
                    }
                    None => Ok(builder),
                };
                with_roots.and_then(|builder| match identity {
                    Some(pem) => builder.identity(Identity::from_pem(pem)?).build(),
                    None => builder.build(),
                })
            }
        };
        let made = made.map_err(|error| {
            let fault = Fault::of_request(&error);
            let advice = ": correct ETCDCTL_CACERT, ETCDCTL_CERT and ETCDCTL_KEY";
            Fault { kind: ErrorKind::Invalid, next: Next::Stop, advice, ..fault }
        })?;
        Ok(ours.client.insert(made).clone())
    }

    /// Starts a request to this cluster, and waits for it.
    ///
    /// # Errors
    /// Errors of the request.
    pub(crate) fn wait<T: Send + 'static, F>(
        self: &Arc<Self>,
        request: impl FnOnce(Arc<Cluster>) -> F,
    ) -> std::result::Result<T, Error>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        runtime::wait(request(self.clone()))
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({})", self.url)
    }
}
