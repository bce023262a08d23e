//! Leases of etcd. A program renews its lease as long as it runs, so the lease shows whether it
//! does.

use crate::cluster::Cluster;
use crate::errors::Fault;
use crate::gateway::Request;
use outlive_backend::runtime;
use outlive_log::{Lease, LockGuard};
use outlive_types::{Error, Result, Rng, SystemRng};
use std::process;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;

/// Renewals during the life of a lease; some of them may fail.
const RENEWALS: u32 = 5;

/// Takes a lease, and renews it until its guard is dropped or this process ends. Its token is the
/// cluster's id and the lease's, with a space between: another cluster may have another lease of
/// that number.
pub(crate) fn take(cluster: &Arc<Cluster>) -> Result<Lease> {
    let mut random = [0; 8];
    SystemRng.fill(&mut random);
    // A positive number; another lease has it only by chance.
    let id = (u64::from_le_bytes(random) >> 1).max(1);
    let granted = cluster.wait(move |cluster| async move { grant(&cluster, id).await })?;
    let (renewed, pause) =
        (cluster.clone(), Duration::from_secs(cluster.lease_s().into()) / RENEWALS);
    let renewing = runtime::spawn(async move {
        loop {
            tokio::time::sleep(pause).await;
            // A later renewal may succeed.
            let _ = renew(&renewed, id).await;
        }
    })?;
    let guard = Guard { cluster: cluster.clone(), id, renewing, pid: process::id() };
    Ok(Lease { token: format!("{granted} {id}"), guard: LockGuard::new(guard) })
}

/// Returns whether a lease has ended; `None` if its token is not one of this cluster.
pub(crate) fn has_ended(cluster: &Arc<Cluster>, token: &str) -> Result<Option<bool>> {
    let Some((of, id)) = token.split_once(' ') else { return Ok(None) };
    let Ok(id) = id.parse::<u64>() else { return Ok(None) };
    let of = of.to_owned();
    cluster.wait(move |cluster| async move {
        let asked = cluster.call(&Request::time_to_live(id)).await;
        let reply = asked.map_err(|fault| explain(&cluster, "asking for", fault))?;
        Ok((reply.header.cluster_id == of).then(|| reply.ttl.starts_with('-')))
    })
}

/// Creates a lease; returns the cluster's id.
async fn grant(cluster: &Cluster, id: u64) -> Result<String> {
    let granted = cluster.call(&Request::grant(id, cluster.lease_s())).await;
    let reply = granted.map_err(|fault| explain(cluster, "making", fault))?;
    Ok(reply.header.cluster_id)
}

/// Renews a lease. A lease that has ended is granted again: the program was paused, and a gc may
/// not have looked meanwhile.
async fn renew(cluster: &Cluster, id: u64) -> Result<()> {
    let renewed = cluster.call(&Request::keep_alive(id)).await;
    let reply = renewed.map_err(|fault| explain(cluster, "renewing", fault))?;
    match reply.ttl.as_str() {
        "" | "0" => grant(cluster, id).await.map(drop),
        _ => Ok(()),
    }
}

fn explain(cluster: &Cluster, doing: &str, fault: Fault) -> Error {
    fault.explain(&format!("{doing} a lease in {}", cluster.describe()))
}

/// Ends a lease when it is dropped. A forked child, which has no threads of its parent, does
/// nothing.
struct Guard {
    cluster: Arc<Cluster>,
    id: u64,
    renewing: AbortHandle,
    pid: u32,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.pid != process::id() {
            return;
        }
        self.renewing.abort();
        let (cluster, id) = (self.cluster.clone(), self.id);
        // If this fails, or the process ends first, the lease ends by itself.
        let _ = runtime::spawn(async move { cluster.call(&Request::revoke(id)).await });
    }
}
