//! Bounds the memory for parts that are sent to a bucket, over all its shards.

use outlive_io::StagingPool;
use outlive_types::sync::plain::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;

/// Counts whole parts that are being sent. While the limit is reached, writes wait. They continue
/// in the order of their shards: the first shards end first, and release their memory.
pub(crate) struct Flow {
    parts_max: usize,
    /// Memory for parts; `kept_bytes` of it are kept while no shard is being written.
    memory: Arc<StagingPool>,
    kept_bytes: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sending: usize,
    /// Number of shards that are being written.
    open: usize,
    /// Shards with waiting writes, each once.
    waiting: VecDeque<Arc<dyn Waits>>,
}

/// A shard with waiting writes.
pub(crate) trait Waits: Send + Sync {
    /// Takes over waiting bytes, as far as parts may be sent.
    fn resume(self: Arc<Self>);
}

/// A shard that is being written.
pub(crate) struct Open(Arc<Flow>);

/// A part that is being sent. Dropping it resumes other uploads, so it must not happen under an
/// upload's lock.
pub(crate) struct Sending(Arc<Flow>);

impl Flow {
    pub(crate) fn new(parts_max: usize, memory: Arc<StagingPool>, kept_bytes: usize) -> Arc<Flow> {
        Arc::new(Flow { parts_max, memory, kept_bytes, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the memory for parts.
    pub(crate) fn memory(&self) -> &Arc<StagingPool> {
        &self.memory
    }

    pub(crate) fn open(self: &Arc<Self>) -> Open {
        self.lock().open += 1;
        Open(self.clone())
    }

    pub(crate) fn sending(self: &Arc<Self>) -> Sending {
        self.lock().sending += 1;
        Sending(self.clone())
    }

    /// Returns whether a write of `upload` may continue. If not, [`Waits::resume`] is called when
    /// it may. The caller holds the lock that `resume` takes, and does not ask again before.
    pub(crate) fn admits(&self, upload: Arc<dyn Waits>) -> bool {
        let mut state = self.lock();
        let admits = state.sending < self.parts_max;
        if !admits {
            state.waiting.push_back(upload);
        }
        admits
    }

    /// As [`Flow::admits`], for an upload that has waited: it keeps its turn.
    pub(crate) fn admits_next(&self, upload: Arc<dyn Waits>) -> bool {
        let mut state = self.lock();
        let admits = state.sending < self.parts_max;
        if !admits {
            state.waiting.push_front(upload);
        }
        admits
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.lock().sending -= 1;
        loop {
            let next = {
                let mut state = self.0.lock();
                if state.sending >= self.0.parts_max {
                    return;
                }
                state.waiting.pop_front()
            };
            match next {
                Some(upload) => upload.resume(),
                None => return,
            }
        }
    }
}

impl Drop for Open {
    /// Reduces the memory when no shard is being written.
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.open -= 1;
        if state.open == 0 {
            self.0.memory.keep(self.0.kept_bytes);
        }
    }
}
