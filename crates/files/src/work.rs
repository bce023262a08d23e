//! Work queues between the threads of a put.

use super::attempts::Attempts;
use super::content::Range;
use super::file_error::{FileError, Troubles};
use super::plan::PutPlan;
use outlive_format::{Item, Piece};
use outlive_types::Error;
use outlive_types::sync::plain::{Condvar, Mutex};
use rustix::fs::Stat;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A read to do.
pub enum Task {
    /// A file.
    File {
        /// Number of its step.
        seq: u64,
        /// Item of the scan.
        item: Item,
        /// Number of its root.
        root: usize,
        /// Earlier reads.
        attempts: Attempts,
    },
    /// A part of a long file.
    Part {
        /// Number of its step.
        seq: u64,
        /// Number of the part.
        number: usize,
        /// The file.
        large: Arc<Large>,
    },
}

/// A file that is read in parts.
pub struct Large {
    /// The file, open.
    pub file: OwnedFd,
    /// Properties at the time of opening.
    pub stat: Stat,
    /// Its item, without content.
    pub item: Item,
    /// True if it is another file than the listed one.
    pub replaced: bool,
    /// Number of its root.
    pub root: usize,
    /// Its data and holes.
    pub ranges: Vec<Range>,
    /// Groups of ranges that are read together.
    pub parts: Vec<std::ops::Range<usize>>,
    /// Earlier reads.
    pub attempts: Attempts,
    /// File error for a part that is missing anyway.
    pub without: Option<FileError>,
}

/// Message of the planner or a reader. A reader's message concerns only announced steps.
pub enum Message {
    /// A step that needs no reading.
    Item {
        /// Number of the step.
        seq: u64,
        /// The item.
        item: Item,
    },
    /// A step that is about to be read.
    Coming {
        /// Number of the step.
        seq: u64,
        /// Recipe of the file in the put before.
        recipe: Option<Piece>,
    },
    /// A file that was read; it may have any number of pieces.
    File {
        /// Number of its step.
        seq: u64,
        /// The item.
        item: Item,
        /// True if it is another file than the listed one.
        replaced: bool,
        /// File errors.
        troubles: Vec<FileError>,
    },
    /// A file that could not be read.
    Dropped {
        /// Number of its step.
        seq: u64,
        /// File error.
        trouble: FileError,
    },
    /// A file whose parts will follow.
    Large {
        /// Number of its step.
        seq: u64,
        /// The file.
        large: Arc<Large>,
    },
    /// A part of a file that was read.
    Part {
        /// Number of its step.
        seq: u64,
        /// Number of the part.
        number: usize,
        /// Its pieces.
        pieces: rustix::io::Result<Vec<Piece>>,
    },
    /// All steps are announced.
    Planned {
        /// Number of steps.
        steps: u64,
        /// Sum of the steps.
        plan: Box<PutPlan>,
        /// File errors.
        troubles: Troubles,
    },
    /// The put cannot continue.
    Failed(Error),
}

/// Tasks that no thread has taken yet.
#[derive(Default)]
pub struct Queue {
    state: Mutex<(VecDeque<Task>, bool)>,
    ready: Condvar,
}

impl Queue {
    /// Adds a task after the others.
    pub fn push(&self, task: Task) {
        self.state.lock().0.push_back(task);
        self.ready.notify_one();
    }

    /// Adds a task before the others.
    pub fn push_front(&self, task: Task) {
        self.state.lock().0.push_front(task);
        self.ready.notify_one();
    }

    /// Adds the parts of a file before all others: a file in progress is finished first, so that
    /// the steps after it need not wait long.
    pub fn push_parts(&self, seq: u64, large: &Arc<Large>) {
        let mut state = self.state.lock();
        for number in (0..large.parts.len()).rev() {
            state.0.push_front(Task::Part { seq, number, large: large.clone() });
        }
        self.ready.notify_all();
    }

    /// Waits for the next task; returns `None` when the queue is closed.
    pub fn pop(&self) -> Option<Task> {
        let waiting = |state: &mut (VecDeque<Task>, bool)| state.0.is_empty() && !state.1;
        let state = self.ready.wait_while(self.state.lock(), waiting);
        let mut state = state;
        if state.1 { None } else { state.0.pop_front() }
    }

    /// Ends all waiting; remaining tasks are not done.
    pub fn close(&self) {
        self.state.lock().1 = true;
        self.ready.notify_all();
    }
}

/// Bounds the steps that are planned and not yet listed.
pub struct Backlog {
    /// Number of free places; `None` once it is closed.
    free: Mutex<Option<usize>>,
    freed: Condvar,
}

impl Backlog {
    /// Returns a backlog with `places` places.
    pub fn new(places: usize) -> Backlog {
        Backlog { free: Mutex::new(Some(places)), freed: Condvar::new() }
    }

    /// Waits for a place; returns false if there will be none.
    pub fn enter(&self) -> bool {
        let mut waited = self.freed.wait_while(self.free.lock(), |free| *free == Some(0));
        match &mut *waited {
            Some(free) => {
                *free -= 1;
                true
            }
            None => false,
        }
    }

    /// Returns a place.
    pub fn leave(&self) {
        if let Some(free) = &mut *self.free.lock() {
            *free += 1;
        }
        self.freed.notify_one();
    }

    /// Ends all waiting; no step gets a place any more.
    pub fn close(&self) {
        *self.free.lock() = None;
        self.freed.notify_all();
    }
}
