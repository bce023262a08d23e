//! Notices and progress of the engine, kept until Python takes them: the engine's threads must
//! never wait for the GIL.

use outlive_types::sync::plain::Mutex;
use outlive_types::{Event, Observer};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most of them to keep; beyond that, the oldest are dropped.
const KEPT_MAX: usize = 1000;

/// Notices and progress that Python has not taken yet.
#[derive(Debug, Default)]
pub struct Notices {
    waiting: AtomicBool,
    queue: Mutex<VecDeque<Event>>,
}

impl Notices {
    /// True if there are any. Costs almost nothing.
    pub fn waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns all since the last call, oldest first.
    pub fn take(&self) -> VecDeque<Event> {
        let mut queue = self.queue.lock();
        self.waiting.store(false, Ordering::Relaxed);
        std::mem::take(&mut *queue)
    }
}

impl Observer for Notices {
    fn event(&self, event: Event) {
        let mut queue = self.queue.lock();
        match (queue.back_mut(), &event) {
            // Of progress, only the newest matters.
            (Some(Event::Progress(last)), Event::Progress(next)) if last.what == next.what => {
                *last = *next;
            }
            _ => {
                if queue.len() == KEPT_MAX {
                    queue.pop_front();
                }
                queue.push_back(event);
            }
        }
        self.waiting.store(true, Ordering::Relaxed);
    }
}
