//! Waits for work of other threads, and answers.

use outlive_io::Ticket;
use outlive_node::status_of;
use outlive_types::{Error, Result};
use tokio::sync::oneshot;
use tonic::{Response, Status};

/// Waits for a ticket's outcome.
pub(crate) async fn outcome<T: Send + 'static>(ticket: Ticket<T>) -> Result<T> {
    let (tell, told) = oneshot::channel();
    ticket.on_done(move |outcome| {
        if let Ok(outcome) = outcome {
            let _ = tell.send(outcome);
        }
    });
    told.await.map_err(|_| Error::bug("the work of a request panicked"))
}

/// Does work that may block, in a thread for such work.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(Error::bug("the work of a request panicked")))
}

pub(crate) type Answer<T> = std::result::Result<Response<T>, Status>;

/// Returns an outcome as gRPC carries it.
pub(crate) fn answer<T>(outcome: Result<T>) -> Answer<T> {
    outcome.map(Response::new).map_err(|error| status_of(&error))
}
