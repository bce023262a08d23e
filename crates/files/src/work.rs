//! How the threads of a put hand work to each other.

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

/// Something to read.
pub enum Task {
    /// A file.
    File {
        /// Number of its step.
        seq: u64,
        /// What the scan saw.
        item: Item,
        /// Number of its root.
        root: usize,
        /// How it was read before.
        attempts: Attempts,
    },
    /// A part of a long file.
    Part {
        /// Number of its step.
        seq: u64,
        /// Which part.
        number: usize,
        /// The file.
        large: Arc<Large>,
    },
}

/// A file that is read in parts.
pub struct Large {
    /// The file, open.
    pub file: OwnedFd,
    /// As it was when it was opened.
    pub stat: Stat,
    /// Its item, without content.
    pub item: Item,
    /// It is another file than the one that was listed.
    pub replaced: bool,
    /// Number of its root.
    pub root: usize,
    /// Its data and holes.
    pub ranges: Vec<Range>,
    /// Which of them are read together.
    pub parts: Vec<std::ops::Range<usize>>,
    /// How it was read before.
    pub attempts: Attempts,
    /// What is missing of it anyway.
    pub without: Option<FileError>,
}

/// What planner and readers tell. A reader speaks only of steps that were announced.
pub enum Message {
    /// A step that needs no reading.
    Item {
        /// Its number.
        seq: u64,
        /// The item.
        item: Item,
    },
    /// A step that is about to be read.
    Coming {
        /// Its number.
        seq: u64,
        /// The recipe that the file had in the put before.
        recipe: Option<Piece>,
    },
    /// A file that was read; it may have any number of pieces.
    File {
        /// Number of its step.
        seq: u64,
        /// The item.
        item: Item,
        /// It is another file than the one that was listed.
        replaced: bool,
        /// What is wrong with it.
        troubles: Vec<FileError>,
    },
    /// A file that could not be read.
    Dropped {
        /// Number of its step.
        seq: u64,
        /// Why.
        trouble: FileError,
    },
    /// A file whose parts will follow.
    Large {
        /// Number of its step.
        seq: u64,
        /// The file.
        large: Arc<Large>,
    },
    /// A part of it.
    Part {
        /// Number of its step.
        seq: u64,
        /// Which part.
        number: usize,
        /// Its pieces.
        pieces: rustix::io::Result<Vec<Piece>>,
    },
    /// All steps are announced.
    Planned {
        /// How many there are.
        steps: u64,
        /// Their sum.
        plan: Box<PutPlan>,
        /// What could not be looked at.
        troubles: Troubles,
    },
    /// It cannot go on.
    Failed(Error),
}

/// Tasks that no thread has taken yet.
#[derive(Default)]
pub struct Queue {
    state: Mutex<(VecDeque<Task>, bool)>,
    ready: Condvar,
}

impl Queue {
    /// Adds a task behind the others.
    pub fn push(&self, task: Task) {
        self.state.lock().0.push_back(task);
        self.ready.notify_one();
    }

    /// Adds a task before the others.
    pub fn push_front(&self, task: Task) {
        self.state.lock().0.push_front(task);
        self.ready.notify_one();
    }

    /// Adds the parts of a file before all else: what was begun is finished first, so that what
    /// comes behind it need not wait long.
    pub fn push_parts(&self, seq: u64, large: &Arc<Large>) {
        let mut state = self.state.lock();
        for number in (0..large.parts.len()).rev() {
            state.0.push_front(Task::Part { seq, number, large: large.clone() });
        }
        self.ready.notify_all();
    }

    /// The next task; waits for it. `None` when the queue is closed.
    pub fn pop(&self) -> Option<Task> {
        let waiting = |state: &mut (VecDeque<Task>, bool)| state.0.is_empty() && !state.1;
        let state = self.ready.wait_while(self.state.lock(), waiting);
        let mut state = state;
        if state.1 { None } else { state.0.pop_front() }
    }

    /// Ends all waiting; what was not taken is not worked on.
    pub fn close(&self) {
        self.state.lock().1 = true;
        self.ready.notify_all();
    }
}

/// Bounds the steps that are planned and not yet listed.
pub struct Backlog {
    /// Free places; `None` once it is closed.
    free: Mutex<Option<usize>>,
    freed: Condvar,
}

impl Backlog {
    /// One with so many places.
    pub fn new(places: usize) -> Backlog {
        Backlog { free: Mutex::new(Some(places)), freed: Condvar::new() }
    }

    /// Waits for a place; false if there will be none.
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

    /// Gives a place back.
    pub fn leave(&self) {
        if let Some(free) = &mut *self.free.lock() {
            *free += 1;
        }
        self.freed.notify_one();
    }

    /// Ends all waiting; nobody gets a place any more.
    pub fn close(&self) {
        *self.free.lock() = None;
        self.freed.notify_all();
    }
}
