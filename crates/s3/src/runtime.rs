//! The threads that carry out the requests of a process: two, for any number of requests in flight.

use outlive_io::{PerProcess, Ticket, stand_in};
use outlive_types::{Error, Result};
use std::future::Future;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::block_in_place;

/// Started at the first use. A forked child starts its own: it does not have its parent's threads.
static RUNTIME: PerProcess<Option<Runtime>> = PerProcess::new(|_| None);

/// The threads sign and copy besides waiting for the network; a single one would use a single core.
const THREADS: usize = 2;

/// Returns the handle that starts requests.
///
/// # Errors
/// `Retry` if the system gives no thread.
pub(crate) fn handle() -> Result<Handle> {
    let mut runtime = RUNTIME.lock();
    if let Some(runtime) = &*runtime {
        return Ok(runtime.handle().clone());
    }
    let made = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("outlive-s3")
        // A callback of a ticket may wait for other requests.
        .on_thread_start(|| stand_in(|wait| block_in_place(wait)))
        .enable_all()
        .build()
        .map_err(|error| Error::no_thread("the requests to a bucket", &error))?;
    Ok(runtime.insert(made).handle().clone())
}

/// Starts `work`, which continues without its ticket.
pub(crate) fn start<T: Send + 'static>(
    handle: &Handle,
    work: impl Future<Output = T> + Send + 'static,
) -> Ticket<T> {
    let (promise, ticket) = Ticket::pair();
    handle.spawn(async move { promise.fulfil(work.await) });
    ticket
}

/// Does `work` and waits for it. A ticket's callback may call this: it runs in one of these
/// threads, and another thread replaces it while it waits.
pub(crate) fn wait<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let ticket = start(&handle()?, work);
    match Handle::try_current() {
        Ok(_) => block_in_place(|| ticket.wait()),
        Err(_) => ticket.wait(),
    }
}
