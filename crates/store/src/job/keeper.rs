//! A process beside the program that holds the images of its saves, and completes them if the
//! program is killed.

use crate::save::{SaveNotes, SavePlan};
use outlive_types::sync::plain::Mutex;
use outlive_types::{
    Epoch, Error, ErrorKind, Frozen, PageSource, RegionDesc, Result, SessionId, SharedImage,
};
use std::fmt;
use std::sync::Arc;

/// A save that has frozen the program's memory.
pub struct KeptSave<'a> {
    /// Its epoch.
    pub epoch: Epoch,
    /// The session in which it is to be committed. Once another session is open, the program would be
    /// fenced, and so is the keeper.
    pub session: SessionId,
    /// The epoch that its image follows: unchanged pages are as they are there. `None`: the image
    /// has all pages.
    pub baseline: Option<Epoch>,
    /// The image.
    pub frozen: &'a dyn Frozen,
    /// The image as other processes can read it.
    pub shared: SharedImage,
    /// Notes that are kept with the checkpoint.
    pub notes: &'a SaveNotes,
    /// In a group, all regions of the rank, also those that another rank stores.
    pub regions: Vec<RegionDesc>,
    /// In a group, names and bytes of the regions that ranks compare.
    pub compared: Vec<(String, Vec<u8>)>,
}

/// Connects a program with such a process.
pub trait ImageKeeper: Send + Sync + fmt::Debug {
    /// Returns whether the process is there.
    fn is_there(&self) -> bool;

    /// Hands over the image of a save. The process completes the save if this program ends before
    /// it calls [`ImageKeeper::forget`].
    ///
    /// # Errors
    /// If the process is gone.
    fn keep(&self, save: KeptSave<'_>) -> Result<()>;

    /// Ends the hold: the save is committed, or given up.
    fn forget(&self);
}

/// A job's side of it.
#[derive(Default)]
pub(crate) struct Keeping {
    keeper: Option<Arc<dyn ImageKeeper>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether the freeze was asked to share its image.
    is_shared: bool,
    /// Whether the keeper holds an image.
    is_held: bool,
    /// The image of a failed save that the keeper holds.
    failed: Option<Arc<dyn Frozen>>,
}

impl Keeping {
    pub fn new(keeper: Option<Arc<dyn ImageKeeper>>) -> Keeping {
        Keeping { keeper, state: Mutex::default() }
    }

    /// Returns whether the next image is to be shared. Asked once for each freeze.
    pub fn begin(&self) -> bool {
        let is_shared = self.keeper.as_ref().is_some_and(|keeper| keeper.is_there());
        self.state.lock().is_shared = is_shared;
        is_shared
    }

    /// Hands over the image of a save, if there is a keeper. Returns what to add to the report of
    /// the freeze, and whether the save must wait until it is committed, since the image cannot be
    /// shared.
    ///
    /// # Errors
    /// If the keeper is gone.
    pub fn hold(
        &self,
        source: &mut dyn PageSource,
        (session, is_group): (SessionId, bool),
        frozen: &dyn Frozen,
        plan: &SavePlan,
        notes: &SaveNotes,
    ) -> Result<(String, bool)> {
        let is_shared = self.state.lock().is_shared;
        let Some(keeper) = self.keeper.as_ref().filter(|_| is_shared) else {
            return Ok((String::new(), false));
        };
        let shared = match frozen.shared() {
            Ok(shared) => shared,
            Err(error) => {
                let why = error.message();
                return Ok((format!("; the save waits for its commit, since {why}"), true));
            }
        };
        let (regions, compared) = match is_group {
            true => (source.regions()?, source.compared()?),
            false => (Vec::new(), Vec::new()),
        };
        let baseline = (plan.parent > 0).then_some(plan.parent);
        let epoch = plan.epoch;
        keeper.keep(KeptSave {
            epoch,
            session,
            baseline,
            frozen,
            shared,
            notes,
            regions,
            compared,
        })?;
        self.state.lock().is_held = true;
        Ok(("; a helper holds it, too".to_owned(), false))
    }

    /// Takes the image of a save that is over.
    pub fn settle(&self, frozen: Arc<dyn Frozen>, failure: Option<&Error>) {
        let mut state = self.state.lock();
        if !state.is_held {
            return;
        }
        match failure.is_none_or(|error| error.kind() == ErrorKind::Fenced) {
            // Before the memory of the copies is used again.
            true => self.forget(&mut state),
            false => state.failed = Some(frozen),
        }
    }

    /// Ends the hold.
    pub fn end(&self) {
        let mut state = self.state.lock();
        if state.is_held {
            self.forget(&mut state);
        }
        state.failed = None;
    }

    /// Leaves a failed save to the keeper, which completes it after the end of this process. Until
    /// then the image stays: its memory is not used again.
    pub fn leave(&self) {
        let mut state = self.state.lock();
        match state.failed.take() {
            Some(failed) => {
                state.is_held = false;
                std::mem::forget(failed);
            }
            None if state.is_held => self.forget(&mut state),
            None => {}
        }
    }

    fn forget(&self, state: &mut State) {
        state.is_held = false;
        if let Some(keeper) = &self.keeper {
            keeper.forget();
        }
    }
}

impl Drop for Keeping {
    /// Ends the hold before the image and the connection go: a job that is dropped is no program
    /// that was killed.
    fn drop(&mut self) {
        self.end();
    }
}
