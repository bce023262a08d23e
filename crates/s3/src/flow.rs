//! What of shards is on its way to a bucket, of all of them together: bounds the memory for it.

use outlive_io::StagingPool;
use outlive_types::sync::plain::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;

/// Counts whole parts that are being sent. While there are as many as allowed, writes wait, and then go on
/// in the order of their shards: those that were begun first are done first, and give their memory back.
pub(crate) struct Flow {
    parts_max: usize,
    /// Memory for parts, and how much of it is kept while no shard is being written.
    memory: Arc<StagingPool>,
    kept_bytes: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sending: usize,
    /// Shards that are being written.
    open: usize,
    /// Those with writes that wait, each once.
    waiting: VecDeque<Arc<dyn Waits>>,
}

/// A shard with writes that wait.
pub(crate) trait Waits: Send + Sync {
    /// Takes in what has waited, as far as parts may be sent.
    fn resume(self: Arc<Self>);
}

/// A shard that is being written.
pub(crate) struct Open(Arc<Flow>);

/// A part that is being sent. Others go on when this is dropped, so not under a lock of an upload.
pub(crate) struct Sending(Arc<Flow>);

impl Flow {
    pub(crate) fn new(parts_max: usize, memory: Arc<StagingPool>, kept_bytes: usize) -> Arc<Flow> {
        Arc::new(Flow { parts_max, memory, kept_bytes, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Memory for parts.
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

    /// Whether a write of `upload` may go on. If not, [`Waits::resume`] is called once it may; to be asked
    /// under the lock that this takes, and no more until then.
    pub(crate) fn admits(&self, upload: Arc<dyn Waits>) -> bool {
        let mut state = self.lock();
        let admits = state.sending < self.parts_max;
        if !admits {
            state.waiting.push_back(upload);
        }
        admits
    }

    /// The same of one that has waited: it keeps its turn.
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
    /// Who writes seldom does not keep the memory for it.
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.open -= 1;
        if state.open == 0 {
            self.0.memory.keep(self.0.kept_bytes);
        }
    }
}
