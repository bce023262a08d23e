//! Records, locks and seals on a node.

use crate::client::connection::{Client, Connection, Lane, Node, Repeat, since_boot};
use crate::protocol::{
    ListPart, ListRequest, Listed, LockDo, LockKind, LockReply, LockRequest, RecordDo, RecordReply,
    RecordRequest, check_length, job_name,
};
use bytes::Bytes;
use outlive_backend::runtime;
use outlive_log::{Lease, Lock, LockGuard, LogLocks, LogRecords, LogSeal, Put};
use outlive_types::{Error, JobName, Result};
use std::process;
use std::sync::Arc;
use std::time::Duration;

/// Records of a location on a node.
#[derive(Debug)]
pub(crate) struct NodeMedium {
    node: Arc<Node>,
}

impl NodeMedium {
    pub(crate) fn new(node: Arc<Node>) -> NodeMedium {
        NodeMedium { node }
    }

    fn ask(&self, work: RecordDo, job: &str, number: u64, bytes: &[u8]) -> Result<RecordReply> {
        let doing = match work {
            RecordDo::Get | RecordDo::Has => "reading a record",
            RecordDo::PutNew => "writing a record",
            _ => "changing a log",
        };
        check_length(bytes)?;
        let request = RecordRequest {
            session: Bytes::new(),
            prefix: self.node.prefix(),
            work: work.into(),
            job: job.to_owned(),
            number,
            bytes: Bytes::copy_from_slice(bytes),
        };
        self.node.ask(doing, Repeat::Yes, move |mut node, session| {
            let request = RecordRequest { session, ..request.clone() };
            async move { node.record(request).await }
        })
    }

    fn of_job(&self, work: RecordDo, job: &JobName, number: u64) -> Result<RecordReply> {
        self.ask(work, &job.escaped(), number, &[])
    }

    fn list_all(&self, listed: Listed, job: &str) -> Result<Vec<ListPart>> {
        let (node, connection) = (self.node.clone(), self.node.connection()?);
        let request = ListRequest {
            session: connection.session.clone(),
            prefix: node.prefix(),
            listed: listed.into(),
            job: job.to_owned(),
        };
        runtime::wait(async move {
            let send = |mut client: Client| {
                let request = request.clone();
                async move { client.list(request).await }
            };
            node.collect(&connection, "listing a log", send).await
        })
    }

    fn lock(&self, work: LockDo, kind: LockKind, number: u64, token: &str) -> Result<LockReply> {
        let request = LockRequest {
            session: Bytes::new(),
            prefix: self.node.prefix(),
            work: work.into(),
            kind: kind.into(),
            number,
            token: token.to_owned(),
        };
        let connection = self.node.connection()?;
        runtime::wait(async move {
            connection.after_endings().await;
            Ok(())
        })?;
        self.node.ask("asking for a lock", Repeat::Yes, move |mut node, session| {
            let request = LockRequest { session, ..request.clone() };
            async move { node.lock(request).await }
        })
    }

    /// Takes a lock. Returns its guard, and the reply; no guard if another session holds it. If the
    /// node does not know yet whether one does, the guard stands for nothing, and its check fails.
    fn take(&self, kind: LockKind) -> Result<(Option<LockGuard>, LockReply)> {
        let connection = self.node.connection()?;
        // Noted first: after a lost reply it is held until the guard gives it back.
        let number = connection.held.lock().hold(self.node.prefix(), kind);
        let guard = Guard {
            node: self.node.clone(),
            connection: Some(connection.clone()),
            kind,
            number,
            pid: process::id(),
        };
        let sent = since_boot();
        let reply = self.lock(LockDo::Take, kind, number, "")?;
        let url = self.node.describe().to_owned();
        if reply.is_unknown {
            let unknown = LockGuard::ending((), move || {
                Err(Error::retry(format!(
                    "{url} started a moment ago, and does not know yet whether another command moves \
                     shards: try again in {} s",
                    reply.known_in_s
                )))
            });
            return Ok((Some(unknown), reply));
        }
        if !reply.is {
            return Ok((None, reply));
        }
        let life = Duration::from_secs(reply.session_s.into());
        connection.held.lock().taken(number, sent, life);
        let check = move || {
            let checked = connection.held.lock().check(number, since_boot());
            checked.map_err(|error| error.context(url.as_str()))
        };
        Ok((Some(LockGuard::ending(guard, check)), reply))
    }
}

/// A lock that this process holds on a node.
struct Guard {
    node: Arc<Node>,
    connection: Option<Arc<Connection>>,
    kind: LockKind,
    number: u64,
    pid: u32,
}

impl Drop for Guard {
    /// Gives the lock back in the background. If that fails, the next renewal of the session does
    /// not name it any more. A forked child, which has no threads of its parent, does nothing.
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        if self.pid != process::id() {
            return std::mem::forget(connection);
        }
        connection.held.lock().let_go(self.number);
        let request = LockRequest {
            session: connection.session.clone(),
            prefix: self.node.prefix(),
            work: LockDo::Drop.into(),
            kind: self.kind.into(),
            number: self.number,
            token: String::new(),
        };
        let node = self.node.clone();
        let of = connection.clone();
        connection.end(async move {
            let lanes = (Lane::Small, Repeat::Yes);
            let given_back = node.call(&of, "giving a lock back", lanes, |mut client| {
                let request = request.clone();
                async move { client.lock(request).await }
            });
            let _ = given_back.await;
        });
    }
}

impl LogRecords for NodeMedium {
    fn describe(&self) -> String {
        self.node.describe().to_owned()
    }

    fn jobs(&self) -> Result<Vec<JobName>> {
        let parts = self.list_all(Listed::Jobs, "")?;
        parts.iter().flat_map(|part| &part.jobs).map(|name| job_name(name)).collect()
    }

    fn list(&self, job: &JobName) -> Result<Vec<u64>> {
        let parts = self.list_all(Listed::Records, &job.escaped())?;
        Ok(parts.into_iter().flat_map(|part| part.records).collect())
    }

    fn get(&self, job: &JobName, number: u64) -> Result<Option<Vec<u8>>> {
        let reply = self.of_job(RecordDo::Get, job, number)?;
        Ok(reply.is.then(|| reply.bytes.into()))
    }

    fn has(&self, job: &JobName, number: u64) -> Result<bool> {
        Ok(self.of_job(RecordDo::Has, job, number)?.is)
    }

    fn put_new(&self, job: &JobName, number: u64, record: &[u8]) -> Result<Put> {
        let reply = self.ask(RecordDo::PutNew, &job.escaped(), number, record)?;
        Ok(if reply.is { Put::Made } else { Put::Taken })
    }

    fn delete(&self, job: &JobName, number: u64) -> Result<()> {
        self.of_job(RecordDo::Delete, job, number).map(drop)
    }

    fn remove_before(&self, job: &JobName, number: u64) -> Result<()> {
        self.of_job(RecordDo::RemoveBefore, job, number).map(drop)
    }

    fn sync(&self, job: &JobName) -> Result<()> {
        self.of_job(RecordDo::Sync, job, 0).map(drop)
    }

    fn freshen(&self, job: &JobName) -> Result<()> {
        self.of_job(RecordDo::Freshen, job, 0).map(drop)
    }

    fn keep(&self, job: &JobName, number: u64) -> Result<()> {
        self.of_job(RecordDo::Keep, job, number).map(drop)
    }

    fn tidy(&self, job: &JobName) -> Result<()> {
        self.of_job(RecordDo::Tidy, job, 0).map(drop)
    }
}

impl LogLocks for NodeMedium {
    fn lock_collecting(&self) -> Result<Lock> {
        let (guard, _) = self.take(LockKind::Collecting)?;
        Ok(guard.map_or(Lock::Busy, Lock::Taken))
    }

    fn lock_reading(&self) -> Result<Option<LockGuard>> {
        Ok(self.take(LockKind::Reading)?.0)
    }

    fn is_read(&self) -> Result<bool> {
        let reply = self.lock(LockDo::IsHeld, LockKind::Reading, 0, "")?;
        // A node that started a moment ago does not know its readers yet.
        Ok(reply.is || reply.is_unknown)
    }

    fn lease(&self) -> Result<Option<Lease>> {
        let (guard, reply) = self.take(LockKind::Lease)?;
        Ok(guard.map(|guard| Lease { token: reply.token, guard }))
    }

    fn has_lease_ended(&self, token: &str) -> Result<Option<bool>> {
        let reply = self.lock(LockDo::HasEnded, LockKind::Lease, 0, token)?;
        Ok((!reply.is_unknown).then_some(reply.is))
    }
}

/// The seal is in the marker beside the records, as in a directory.
impl LogSeal for NodeMedium {}
