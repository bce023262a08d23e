//! Operations on the keys below a prefix.

use crate::cluster::Cluster;
use crate::errors::{Fault, Next};
use crate::gateway::{Reply, Request, decode};
use outlive_types::{Error, Result};

/// Keys listed by one request. etcd reads the values as well, so its memory must hold this many
/// manifests at once.
const PAGE: u32 = 500;
/// Tries of a listing. It begins again if the cluster compacts the revision that it lists.
const LISTINGS: usize = 3;

impl Cluster {
    /// Returns the key of `name` below the prefix.
    pub(crate) fn key(&self, name: &str) -> String {
        match self.prefix.as_str() {
            "" => name.to_owned(),
            prefix => format!("{prefix}/{name}"),
        }
    }

    /// Returns the location of `name`, for messages.
    fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.describe())
    }

    async fn carry_out(&self, doing: &str, name: &str, request: Request) -> Result<Reply> {
        let done = self.call(&request).await;
        done.map_err(|fault| fault.explain(&format!("{doing} {}", self.url(name))))
    }

    /// Returns the value of `name`; `None` if it does not exist.
    pub(crate) async fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let reply = self.carry_out("reading", name, Request::get(&self.key(name))).await?;
        let Some(there) = reply.kvs.first() else { return Ok(None) };
        decode(&there.value).map(Some).ok_or_else(|| self.unreadable(name))
    }

    /// Returns whether `name` exists.
    pub(crate) async fn has(&self, name: &str) -> Result<bool> {
        let reply = self.carry_out("looking for", name, Request::has(&self.key(name))).await?;
        Ok(!reply.kvs.is_empty())
    }

    /// Writes `name`, and replaces an existing value.
    pub(crate) async fn put(&self, name: &str, value: &[u8]) -> Result<()> {
        let doing = format!("writing {} bytes to", value.len());
        self.carry_out(&doing, name, Request::put(&self.key(name), value)).await.map(drop)
    }

    /// Writes `name` unless it exists; returns true if it was written. After an error, it may have
    /// been.
    pub(crate) async fn put_new(&self, name: &str, value: &[u8]) -> Result<bool> {
        let doing = format!("writing {} bytes to", value.len());
        let request = Request::put_new(&self.key(name), value);
        Ok(self.carry_out(&doing, name, request).await?.succeeded)
    }

    /// Removes `name`; a missing one is no error.
    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        self.carry_out("removing", name, Request::delete(&self.key(name))).await.map(drop)
    }

    /// Returns all names that begin with `folder` and a slash, without these, in order, as they
    /// were at one moment.
    pub(crate) async fn names(&self, folder: &str) -> Result<Vec<String>> {
        let (below, end) = (self.key(&format!("{folder}/")), self.key(&format!("{folder}0")));
        let mut listing = KeyListing::new(self, folder);
        'anew: loop {
            let (mut names, mut first) = (vec![], below.clone());
            loop {
                let Some(page) = listing.page(&first, &end, PAGE).await? else { continue 'anew };
                let found = page.keys.iter().filter_map(|key| key.strip_prefix(&below));
                names.extend(found.map(str::to_owned));
                match page.keys.last() {
                    Some(last) if page.more => first = format!("{last}\0"),
                    _ => return Ok(names),
                }
            }
        }
    }

    /// Returns the names directly below `folder` that have keys below them, in order, as they were
    /// at one moment. Each takes one request, however many keys it has.
    pub(crate) async fn folders(&self, folder: &str) -> Result<Vec<String>> {
        let (below, end) = (self.key(&format!("{folder}/")), self.key(&format!("{folder}0")));
        let mut listing = KeyListing::new(self, folder);
        'anew: loop {
            let (mut folders, mut first) = (vec![], below.clone());
            loop {
                let Some(page) = listing.page(&first, &end, 1).await? else { continue 'anew };
                let Some(key) = page.keys.first() else { return Ok(folders) };
                let name = key.strip_prefix(&below).and_then(|rest| rest.split_once('/'));
                first = match name {
                    // "0" follows the slash: the first key outside this folder.
                    Some((name, _)) => {
                        folders.push(name.to_owned());
                        format!("{below}{name}0")
                    }
                    None => format!("{key}\0"),
                };
            }
        }
    }

    fn unreadable(&self, name: &str) -> Error {
        Error::retry(format!(
            "reading {}: the answer cannot be understood: try again",
            self.url(name)
        ))
    }
}

/// A listing in several requests, of the keys as they were at the first request.
struct KeyListing<'a> {
    cluster: &'a Cluster,
    folder: &'a str,
    revision: Option<String>,
    begun: usize,
}

struct Page {
    keys: Vec<String>,
    more: bool,
}

impl<'a> KeyListing<'a> {
    fn new(cluster: &'a Cluster, folder: &'a str) -> KeyListing<'a> {
        KeyListing { cluster, folder, revision: None, begun: 1 }
    }

    /// Returns the keys from `first` to below `end`, at most `limit`. Returns `None` if the listing
    /// must begin again, since the cluster has compacted the revision that it lists.
    async fn page(&mut self, first: &str, end: &str, limit: u32) -> Result<Option<Page>> {
        let request = Request::list(first, end, limit, self.revision.as_deref());
        let reply = match self.cluster.call(&request).await {
            Err(Fault { next: Next::Compacted, .. }) if self.begun < LISTINGS => {
                self.begun += 1;
                self.revision = None;
                return Ok(None);
            }
            reply => reply,
        };
        let doing = format!("listing {}", self.cluster.url(self.folder));
        let reply = reply.map_err(|fault| fault.explain(&doing))?;
        self.revision.get_or_insert(reply.header.revision);
        let keys: Option<Vec<Vec<u8>>> = reply.kvs.iter().map(|there| decode(&there.key)).collect();
        let keys = keys.ok_or_else(|| self.cluster.unreadable(self.folder))?;
        // A foreign key need not be text; in `first` it must be unchanged.
        let keys: std::result::Result<_, _> = keys.into_iter().map(String::from_utf8).collect();
        let keys = keys.map_err(|error| {
            let key = error.into_bytes().escape_ascii().to_string();
            Error::invalid(format!("{doing}: the key {key} is none of outlive's: remove it"))
        })?;
        Ok(Some(Page { keys, more: reply.more }))
    }
}
