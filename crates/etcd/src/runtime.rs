//! The thread that carries out the requests of a process, for any number of requests in flight. As
//! in crates/s3, which has threads of its own.

use outlive_io::{PerProcess, Ticket};
use outlive_types::{Error, Result};
use std::future::Future;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{AbortHandle, block_in_place};

/// Started at the first use. A forked child starts its own: it does not have its parent's threads.
static RUNTIME: PerProcess<Option<Runtime>> = PerProcess::new(|_| None);

fn handle() -> Result<Handle> {
    let mut runtime = RUNTIME.lock();
    if let Some(runtime) = &*runtime {
        return Ok(runtime.handle().clone());
    }
    // A runtime of our own, not the caller's: a callback of a bucket's ticket can wait here for it.
    let made = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("outlive-etcd")
        .enable_all()
        .build()
        .map_err(|error| Error::no_thread("the requests to etcd", &error))?;
    Ok(runtime.insert(made).handle().clone())
}

/// Starts `work` in the background.
///
/// # Errors
/// `Retry` if the system gives no thread.
pub(crate) fn spawn<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<AbortHandle> {
    Ok(handle()?.spawn(work).abort_handle())
}

/// Does `work` and waits for it. If a thread that carries out requests, here or in crates/s3, calls
/// this, another thread replaces it while it waits.
///
/// # Errors
/// `Retry` if the system gives no thread; errors of `work`.
pub(crate) fn wait<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let (promise, ticket) = Ticket::pair();
    handle()?.spawn(async move { promise.fulfil(work.await) });
    match Handle::try_current() {
        Ok(_) => block_in_place(|| ticket.wait()),
        Err(_) => ticket.wait(),
    }
}
