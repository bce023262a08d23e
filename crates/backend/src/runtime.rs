//! The threads that carry out the network requests of a process: two, for any number of requests in
//! flight to any number of backends.

use outlive_io::{PerProcess, Ticket, stand_in};
use outlive_types::{Error, Result};
use std::future::Future;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{AbortHandle, block_in_place};

/// Started at the first use. A forked child starts its own: it does not have its parent's threads.
static RUNTIME: PerProcess<Option<Runtime>> = PerProcess::new(|_| None);

/// The threads sign and copy besides waiting for the network; a single one would use a single core.
const THREADS: usize = 2;

/// Returns the handle that starts requests. It is our own runtime, not that of the caller.
///
/// # Errors
/// `Retry` if the system gives no thread.
pub fn handle() -> Result<Handle> {
    let mut runtime = RUNTIME.lock();
    if let Some(runtime) = &*runtime {
        return Ok(runtime.handle().clone());
    }
    let made = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("outlive-net")
        // A callback of a ticket may wait for other requests.
        .on_thread_start(|| stand_in(|wait| block_in_place(wait)))
        .enable_all()
        .build()
        .map_err(|error| Error::no_thread("the requests to a server", &error))?;
    Ok(runtime.insert(made).handle().clone())
}

/// Starts `work`, which continues without its ticket.
pub fn start<T: Send + 'static>(
    handle: &Handle,
    work: impl Future<Output = T> + Send + 'static,
) -> Ticket<T> {
    let (promise, ticket) = Ticket::pair();
    handle.spawn(async move { promise.fulfil(work.await) });
    ticket
}

/// Starts `work` in the background.
///
/// # Errors
/// `Retry` if the system gives no thread.
pub fn spawn<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<AbortHandle> {
    Ok(handle()?.spawn(work).abort_handle())
}

/// Does `work` and waits for it. A ticket's callback may call this: it runs in one of these
/// threads, and another thread replaces it while it waits.
///
/// # Errors
/// `Retry` if the system gives no thread; errors of `work`.
pub fn wait<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let ticket = start(&handle()?, work);
    match Handle::try_current() {
        Ok(_) => block_in_place(|| ticket.wait()),
        Err(_) => ticket.wait(),
    }
}
