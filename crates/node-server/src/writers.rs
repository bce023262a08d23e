//! The shards that clients are writing. Each request may come twice: a client sends it again if the
//! reply got lost.

use crate::answer::{blocking, outcome};
use crate::data::Part;
use crate::fair::Session;
use outlive_backend::{ShardName, ShardWriter};
use outlive_io::SharedBuf;
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, PAGE_BYTES, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{OnceCell, watch};

/// Most shards that are being written at once.
const WRITERS_MAX: usize = 4096;

/// Random number that a client gave its writer.
pub(crate) type WriterId = [u8; 16];

/// The writers of a node.
#[derive(Default)]
pub(crate) struct Writers {
    all: Mutex<BTreeMap<WriterId, Arc<Writer>>>,
}

/// A shard that a client writes.
pub(crate) struct Writer {
    session: Session,
    /// Stays open as long as the writer.
    part: Arc<Part>,
    pub shard: ShardName,
    pub bytes_max: u64,
    begun: OnceCell<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    writer: Option<Box<dyn ShardWriter>>,
    /// Ranges that are written or being written, by their offsets.
    ranges: BTreeMap<u64, (usize, Known)>,
    finished: Option<Known>,
}

/// The outcome of work, once there is one.
type Known = watch::Receiver<Option<Result<()>>>;

/// The next step of a write.
pub(crate) enum Next {
    /// Receive its bytes, and write them.
    Receive(Pending),
    /// It is known already: wait for its outcome.
    Known(Known),
}

/// A write whose bytes are being received. If it is dropped, the write never began.
pub(crate) struct Pending {
    writer: Arc<Writer>,
    offset: u64,
    tell: watch::Sender<Option<Result<()>>>,
}

impl Writers {
    /// Begins a shard, unless this writer has begun it.
    ///
    /// # Errors
    /// Errors of the target; `Retry` if too many shards are being written.
    pub(crate) async fn begin(
        &self,
        id: WriterId,
        session: Session,
        (part, shard): (Arc<Part>, ShardName),
        (bytes_max, replaces): (u64, bool),
    ) -> Result<()> {
        let writer = {
            let mut all = self.all.lock();
            if all.len() >= WRITERS_MAX && !all.contains_key(&id) {
                return Err(Error::retry(format!(
                    "the node has {WRITERS_MAX} shards that are not finished: end programs, or wait"
                )));
            }
            let new = || {
                Arc::new(Writer {
                    session,
                    part: part.clone(),
                    shard,
                    bytes_max,
                    begun: OnceCell::new(),
                    state: Mutex::default(),
                })
            };
            all.entry(id).or_insert_with(new).clone()
        };
        let is_its = writer.shard == shard && Arc::ptr_eq(&writer.part, &part);
        if writer.session != session || !is_its {
            return Err(Error::invalid("a writer of that number has another shard"));
        }
        let begin = || async {
            let begun = blocking(move || match replaces {
                true => part.target()?.replace(shard, bytes_max),
                false => part.target()?.create(shard, bytes_max),
            });
            writer.state.lock().writer = Some(begun.await?);
            Ok(())
        };
        let begun = writer.begun.get_or_try_init(begin).await.map(drop);
        let mut all = self.all.lock();
        let is_this = all.get(&id).is_some_and(|known| Arc::ptr_eq(known, &writer));
        if begun.is_err() && is_this && !writer.begun.initialized() {
            all.remove(&id);
        }
        begun
    }

    /// Returns a writer.
    ///
    /// # Errors
    /// `Retry` if the node does not know it: it was started again, or the session ended.
    pub(crate) fn get(&self, id: WriterId, session: Session) -> Result<Arc<Writer>> {
        let known = self.all.lock().get(&id).cloned();
        known.filter(|writer| writer.session == session && writer.begun.initialized()).ok_or_else(|| {
            Error::retry(
                "the node does not know this writer: it was started again, or heard nothing of the \
                 program for too long",
            )
        })
    }

    /// Forgets a writer. Its shard is abandoned, unless it is being finished.
    ///
    /// # Errors
    /// `Bug` if the target panics.
    pub(crate) async fn abandon(&self, id: WriterId, session: Session) -> Result<()> {
        let gone = {
            let mut all = self.all.lock();
            let is_own = all.get(&id).is_some_and(|writer| writer.session == session);
            if is_own { all.remove(&id) } else { None }
        };
        // An abandoned shard deletes its files.
        let writer = gone.and_then(|gone| gone.state.lock().writer.take());
        match writer {
            Some(writer) => {
                blocking(move || {
                    drop(writer);
                    Ok(())
                })
                .await
            }
            None => Ok(()),
        }
    }

    /// Forgets all writers of sessions that have ended. Returns their shards.
    pub(crate) fn abandon_all(&self, sessions: &[Session]) -> Vec<ShardName> {
        let mut all = self.all.lock();
        let of: Vec<WriterId> = all
            .iter()
            .filter(|(_, writer)| sessions.contains(&writer.session))
            .map(|(id, _)| *id)
            .collect();
        let gone: Vec<Arc<Writer>> = of.iter().filter_map(|id| all.remove(id)).collect();
        drop(all);
        let shards = gone.iter().map(|writer| writer.shard).collect();
        // Where it may block.
        drop(tokio::task::spawn_blocking(move || drop(gone)));
        shards
    }

    pub(crate) fn count(&self) -> usize {
        self.all.lock().len()
    }
}

impl Writer {
    /// Notes a write, unless the range is known.
    ///
    /// # Errors
    /// `Invalid` if the range is known with another length, or reaches too far.
    pub(crate) fn note(self: &Arc<Self>, offset: u64, length: usize) -> Result<Next> {
        let fits = offset.checked_add(length as u64).is_some_and(|end| end <= self.bytes_max);
        if !fits || length == 0 {
            return Err(Error::invalid(format!(
                "a write of {length} bytes at {offset} does not fit shard {} of at most {} bytes",
                self.shard, self.bytes_max
            )));
        }
        let mut state = self.state.lock();
        if let Some((known, outcome)) = state.ranges.get(&offset) {
            if *known != length {
                return Err(Error::invalid(format!(
                    "shard {} has a write at {offset} of another length",
                    self.shard
                )));
            }
            return Ok(Next::Known(outcome.clone()));
        }
        let (tell, known) = watch::channel(None);
        state.ranges.insert(offset, (length, known));
        Ok(Next::Receive(Pending { writer: self.clone(), offset, tell }))
    }

    /// Refuses a length that the shard cannot have.
    ///
    /// # Errors
    /// `Invalid`.
    pub(crate) fn check_length(&self, length: u64) -> Result<()> {
        match length.is_multiple_of(PAGE_BYTES as u64) && length <= self.bytes_max {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "{length} bytes cannot be the length of shard {} of at most {} bytes",
                self.shard, self.bytes_max
            ))),
        }
    }

    /// Finishes the shard, once.
    ///
    /// # Errors
    /// Errors of the target.
    pub(crate) async fn finish(self: &Arc<Self>, length: u64) -> Result<()> {
        let known = {
            let mut state = self.state.lock();
            match &state.finished {
                Some(known) => known.clone(),
                None => {
                    let Some(writer) = state.writer.take() else {
                        return Err(Error::retry(format!("shard {} was abandoned", self.shard)));
                    };
                    let (tell, known) = watch::channel(None);
                    state.finished = Some(known.clone());
                    let shard = self.shard;
                    // Goes on if the connection breaks: the client asks again.
                    tokio::spawn(async move {
                        let ended = match blocking(move || Ok(writer.finish(length))).await {
                            Ok(ticket) => outcome(ticket).await.and_then(|it| it),
                            Err(error) => Err(error),
                        };
                        let ended = ended.map_err(|error| error.context(format!("shard {shard}")));
                        tell.send_replace(Some(ended));
                    });
                    known
                }
            }
        };
        wait(known).await
    }
}

impl Pending {
    /// Writes the bytes, which goes on if the connection breaks. `held` is dropped at the end.
    pub(crate) fn write(self, bytes: SharedBuf, held: impl Send + 'static) -> Known {
        let known = self.tell.subscribe();
        let ticket = match self.writer.state.lock().writer.as_mut() {
            Some(writer) => writer.write(self.offset, bytes),
            None => {
                let error = Error::retry(format!("shard {} was abandoned", self.writer.shard));
                self.tell.send_replace(Some(Err(error)));
                return known;
            }
        };
        tokio::spawn(async move {
            let written = outcome(ticket).await.and_then(|it| it.map_err(Error::from));
            drop(held);
            self.tell.send_replace(Some(written));
        });
        known
    }
}

impl Drop for Pending {
    /// Forgets a write that failed, or never got its bytes: it may come again.
    fn drop(&mut self) {
        if !matches!(&*self.tell.borrow(), Some(Ok(()))) {
            self.writer.state.lock().ranges.remove(&self.offset);
        }
    }
}

/// Waits for an outcome.
///
/// # Errors
/// The outcome's; `Retry` if the other request for the same work was given up.
pub(crate) async fn wait(mut known: Known) -> Result<()> {
    match known.wait_for(Option::is_some).await {
        Ok(outcome) => outcome.clone().unwrap_or(Ok(())),
        Err(_) => Err(Error::retry("the request before this one was cut off: send it again")),
    }
}
