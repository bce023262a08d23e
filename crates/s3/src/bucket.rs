//! A bucket and a prefix in it: its clients, and the requests of targets and media.

use crate::errors::{explain, is_conflict, is_missing, is_taken, may_be_past_the_end};
use crate::flow::Flow;
use crate::queue::Reads;
use crate::settings::Settings;
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3, S3ConditionalPut};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMode, PutOptions, PutPayload, RetryConfig,
};
use outlive_backend::runtime;
use outlive_io::{PerProcess, StagingPool};
use outlive_types::{Error, Result};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Length of a part of an upload. S3 requires at least 5 MiB; the overhead of a request takes about
/// as long as sending this much.
pub(crate) const PART_BYTES: usize = 8 << 20;

/// Parts that a bucket uploads at once, of all its shards. A fast but distant network needs this
/// many.
const UPLOADS_MAX: usize = 16;
/// Memory for parts of several shards at once, each with two more that cannot be sent yet.
const PARTS_BYTES: usize = (UPLOADS_MAX + 6) * PART_BYTES;
/// Part of that memory that is kept while no shard is being written.
const KEPT_BYTES: usize = 8 * PART_BYTES;

/// Longest wait for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// Longest wait for the reply to a small request, and for the next bytes of a long one.
const ANSWER_MAX: Duration = Duration::from_secs(8);
/// Longest wait for the reply to a part, which must be sent first. Concurrent parts share the
/// network, so it must move 1.1 MB a second.
const PART_MAX: Duration = Duration::from_secs(120);
/// No small request is repeated after this time, so that a dead server is reported within 10
/// seconds.
const REPEAT_CALLS: Duration = Duration::from_secs(2);
/// No part is repeated after this time: no caller can send a part again.
const REPEAT_PARTS: Duration = Duration::from_secs(8);

/// Pauses before a conditional put that met another one is repeated, in milliseconds.
const CONFLICT_PAUSES_MS: [u64; 7] = [10, 20, 50, 100, 200, 500, 1000];

/// A bucket and the prefix of our objects in it.
pub(crate) struct Bucket {
    name: String,
    /// Prefix of every object's name; empty, or without a slash at its ends.
    prefix: String,
    settings: Settings,
    /// Connections belong to a process: a forked child that used its parent's would receive the
    /// replies to the parent's requests. A child does not touch them.
    clients: PerProcess<Option<Clients>>,
}

/// A process's clients of a bucket.
#[derive(Clone)]
pub(crate) struct Clients {
    /// For requests that are answered at once.
    pub calls: AmazonS3,
    /// For requests that take long: parts, and completing uploads.
    pub uploads: AmazonS3,
    pub uploads_free: Arc<Semaphore>,
    pub reads: Arc<Reads>,
    pub flow: Arc<Flow>,
}

impl Bucket {
    pub(crate) fn new(name: &str, prefix: &str, settings: Settings) -> Bucket {
        Bucket {
            name: name.to_owned(),
            prefix: prefix.to_owned(),
            settings,
            clients: PerProcess::new(|_| None),
        }
    }

    /// Returns this process's clients.
    pub(crate) fn clients(&self) -> Result<Clients> {
        let mut clients = self.clients.lock();
        if let Some(clients) = &*clients {
            return Ok(clients.clone());
        }
        let made = Clients {
            calls: self.client(ANSWER_MAX, REPEAT_CALLS)?,
            uploads: self.client(PART_MAX, REPEAT_PARTS)?,
            uploads_free: Arc::new(Semaphore::new(UPLOADS_MAX)),
            reads: Arc::default(),
            flow: Flow::new(UPLOADS_MAX, StagingPool::new(PARTS_BYTES, PART_BYTES), KEPT_BYTES),
        };
        Ok(clients.insert(made).clone())
    }

    fn client(&self, answer_max: Duration, repeat: Duration) -> Result<AmazonS3> {
        // Fails only if a provider is already chosen, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let is_plain = self.settings.is_plain();
        let options = ClientOptions::new()
            .with_allow_http(is_plain)
            // Reading them takes time, and they are not needed here.
            .with_no_system_certificates(is_plain)
            .with_connect_timeout(CONNECT_MAX)
            // The time for a whole body depends on the network; the time without any bytes does
            // not.
            .with_timeout_disabled()
            .with_read_timeout(answer_max);
        let backoff = BackoffConfig {
            init_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(1),
            base: 2.0,
        };
        self.settings
            .builder()
            .with_bucket_name(&self.name)
            .with_client_options(options)
            .with_retry(RetryConfig { backoff, max_retries: 10, retry_timeout: repeat })
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            // Not every server can delete many objects at once.
            .with_disable_bulk_delete(true)
            .build()
            .map_err(|error| explain("preparing to reach", &self.describe(), &error))
    }

    /// Returns the location, for messages.
    pub(crate) fn describe(&self) -> String {
        format!("{} at {}", self.url(""), self.settings.server())
    }

    /// Returns the URL of the object `name`.
    pub(crate) fn url(&self, name: &str) -> String {
        let parts = [self.name.as_str(), &self.prefix, name];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        format!("s3://{}", parts.join("/"))
    }

    /// Returns the key of the object `name` below the prefix.
    pub(crate) fn path(&self, name: &str) -> Result<Path> {
        let key = match self.prefix.as_str() {
            "" => name.to_owned(),
            prefix => format!("{prefix}/{name}"),
        };
        Path::parse(&key).map_err(|error| Error::bug(format!("the name of an object: {error}")))
    }

    /// Returns the name below the prefix of the object with this key.
    fn name_of<'a>(&self, key: &'a Path) -> Option<&'a str> {
        match self.prefix.as_str() {
            "" => Some(key.as_ref()),
            prefix => key.as_ref().strip_prefix(prefix)?.strip_prefix('/'),
        }
    }

    pub(crate) fn explain(&self, doing: &str, name: &str, error: &object_store::Error) -> Error {
        explain(doing, &self.url(name), error)
    }

    /// Checks that the bucket exists and may be used.
    pub(crate) async fn check(&self) -> Result<()> {
        let client = self.clients()?.calls;
        let mut objects = client.list(Some(&self.path("packs")?));
        let first = objects.try_next().await;
        first.map(drop).map_err(|error| explain("looking into", &self.describe(), &error))
    }

    /// Returns the length of the object `name`; `None` if it does not exist.
    pub(crate) async fn length(&self, name: &str) -> Result<Option<u64>> {
        let (client, path) = (self.clients()?.calls, self.path(name)?);
        match client.head(&path).await {
            Ok(meta) => Ok(Some(meta.size)),
            // The reply to HEAD has no body, so it cannot show that the bucket is missing.
            Err(error) if is_missing(&error) => {
                Ok(self.first_bytes(name, 1).await?.map(|(_, length)| length))
            }
            Err(error) => Err(self.explain("looking for", name, &error)),
        }
    }

    /// Returns the first `count` bytes of the object `name` and its length; `None` if it does not
    /// exist. An empty object has no first byte.
    pub(crate) async fn first_bytes(
        &self,
        name: &str,
        count: u64,
    ) -> Result<Option<(Vec<u8>, u64)>> {
        let (client, path) = (self.clients()?.calls, self.path(name)?);
        let range = Some(GetRange::Bounded(0..count));
        let got = client.get_opts(&path, GetOptions { range, ..GetOptions::default() }).await;
        let fault = |error| self.explain("reading", name, &error);
        match got {
            Ok(got) => {
                let length = got.meta.size;
                Ok(Some((got.bytes().await.map_err(fault)?.to_vec(), length)))
            }
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) if may_be_past_the_end(&error) => Ok(Some((Vec::new(), 0))),
            Err(error) => Err(fault(error)),
        }
    }

    /// Returns the object `name`; `None` if it does not exist.
    pub(crate) async fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let (client, path) = (self.clients()?.calls, self.path(name)?);
        let fault = |error| self.explain("reading", name, &error);
        match client.get(&path).await {
            Ok(got) => Ok(Some(got.bytes().await.map_err(fault)?.to_vec())),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(fault(error)),
        }
    }

    /// Writes the object `name`, and replaces an existing one.
    pub(crate) async fn put(&self, name: &str, bytes: Vec<u8>) -> Result<()> {
        let (client, path) = (self.clients()?.calls, self.path(name)?);
        let put = client.put(&path, PutPayload::from(bytes)).await;
        put.map(drop).map_err(|error| self.explain("writing", name, &error))
    }

    /// Writes the object `name` unless it exists; returns true if it was written. After an error,
    /// it may have been.
    pub(crate) async fn put_new(&self, name: &str, bytes: Vec<u8>) -> Result<bool> {
        let (client, path) = (self.clients()?.calls, self.path(name)?);
        let payload = PutPayload::from(bytes);
        let mut pauses = CONFLICT_PAUSES_MS.into_iter().map(Duration::from_millis);
        loop {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            let error = match client.put_opts(&path, payload.clone(), options).await {
                Ok(_) => return Ok(true),
                Err(error) => error,
            };
            match (is_conflict(&error), pauses.next()) {
                // Another put is in progress, and may still fail.
                (true, Some(pause)) => tokio::time::sleep(pause).await,
                (false, _) if is_taken(&error) => return Ok(false),
                _ => return Err(self.explain("writing", name, &error)),
            }
        }
    }

    /// Removes the object `name`; a missing one is no error.
    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        let (client, path) = (self.clients()?.calls, self.path(name)?);
        match client.delete(&path).await {
            Err(error) if !is_missing(&error) => Err(self.explain("removing", name, &error)),
            _ => Ok(()),
        }
    }

    /// Returns the names of all objects below `folder`, each with the prefix `folder/`.
    pub(crate) async fn names(&self, folder: &str) -> Result<Vec<String>> {
        let (client, path) = (self.clients()?.calls, self.path(folder)?);
        let listed: std::result::Result<Vec<ObjectMeta>, _> =
            client.list(Some(&path)).try_collect().await;
        let listed = listed.map_err(|error| self.explain("listing", folder, &error))?;
        let name = |object: &ObjectMeta| self.name_of(&object.location).map(str::to_owned);
        Ok(listed.iter().filter_map(name).collect())
    }

    /// Returns the names directly below `folder` that have objects below them.
    pub(crate) async fn folders(&self, folder: &str) -> Result<Vec<String>> {
        let (client, path) = (self.clients()?.calls, self.path(folder)?);
        let listed = client.list_with_delimiter(Some(&path)).await;
        let listed = listed.map_err(|error| self.explain("listing", folder, &error))?;
        let last = |path: &Path| path.filename().map(str::to_owned);
        Ok(listed.common_prefixes.iter().filter_map(last).collect())
    }

    /// Starts a request to this bucket, and waits for it.
    pub(crate) fn wait<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
        self: &Arc<Self>,
        request: impl FnOnce(Arc<Bucket>) -> F,
    ) -> Result<T> {
        runtime::wait(request(self.clone()))
    }
}

impl Drop for Bucket {
    /// Closes the connections: values per process are never dropped by themselves.
    fn drop(&mut self) {
        *self.clients.lock() = None;
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bucket({})", self.url(""))
    }
}
