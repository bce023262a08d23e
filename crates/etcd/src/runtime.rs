//! The thread that carries out the requests of a process, for any number of them in flight. As in
//! crates/s3, whose threads are its own.

use outlive_io::{PerProcess, Ticket};
use outlive_types::{Error, Result};
use std::future::Future;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{AbortHandle, block_in_place};

/// Begun at first need. A forked child makes its own: the threads of its parent's are not there.
static RUNTIME: PerProcess<Option<Runtime>> = PerProcess::new(|_| None);

fn handle() -> Result<Handle> {
    let mut runtime = RUNTIME.lock();
    if let Some(runtime) = &*runtime {
        return Ok(runtime.handle().clone());
    }
    // Not one of the caller's own: what a ticket of a bucket calls back can wait here for it.
    let made = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("outlive-etcd")
        .enable_all()
        .build()
        .map_err(|error| Error::no_thread("the requests to etcd", &error))?;
    Ok(runtime.insert(made).handle().clone())
}

/// Does `work` beside all else.
///
/// # Errors
/// `Retry` if the system gives no thread.
pub(crate) fn spawn<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<AbortHandle> {
    Ok(handle()?.spawn(work).abort_handle())
}

/// Does `work` and waits for it. A thread that carries out requests, here or in crates/s3, is replaced
/// while it waits.
///
/// # Errors
/// `Retry` if the system gives no thread; what `work` reports.
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
