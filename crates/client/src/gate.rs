//! The gate of a client's job: opened, rolled back, and closed together with the job.

use crate::client::Client;
use crate::job_gate::RankLists;
use crate::sessions::keep_gate;
use outlive_gate::Gate;
use outlive_types::{Epoch, Result, counted};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Longest wait of a close for sinks that do not take their outputs.
pub const CLOSE_WAIT: Duration = Duration::from_secs(10);
/// Longest wait between two looks at what the gate holds.
const A_MOMENT: Duration = Duration::from_millis(50);

impl Client {
    /// Opens the gate of the job, which holds outputs until the checkpoint that covers them is
    /// committed. If a restored checkpoint lists outputs, this process becomes the job's writer,
    /// and releases them. Once the gate holds more than `bytes_max`, a save is due. Returns whether it
    /// was closed, for all clients of the job, as well.
    ///
    /// # Errors
    /// `Fenced` if another process has taken over the job; errors of the log; `Retry` if there can
    /// be no thread.
    pub fn open_gate(&self, bytes_max: u64) -> Result<(Gate, bool)> {
        let gate = &self.gate.gate;
        // One rank of a group must neither save nor wait alone.
        let bytes_max = if self.job.is_group() { u64::MAX } else { bytes_max };
        let is_first = match self.gate.is_open.swap(true, Ordering::Relaxed) {
            true => {
                gate.set_bytes_max(bytes_max);
                false
            }
            false => {
                let mut seed = [0; 8];
                self.job.pool().env().rng.fill(&mut seed);
                gate.open(bytes_max, u64::from_le_bytes(seed))
            }
        };
        self.begin_releases()?;
        gate.start()?;
        Ok((gate.clone(), is_first))
    }

    /// Returns the gate, if this client has opened it.
    pub fn gate(&self) -> Option<Gate> {
        self.gate.is_open().then(|| self.gate.gate.clone())
    }

    /// Waits as long as the gate holds more than it may, and something can be released.
    pub fn wait_if_full(&self) {
        let gate = &self.gate.gate;
        while gate.wants_save() && !gate.wait(A_MOMENT) {}
    }

    /// Makes this process the job's writer if restored outputs wait for that.
    fn begin_releases(&self) -> Result<()> {
        if self.gate.gate.waits_for_session() && !self.job.is_group() {
            self.job.begin_session()?;
            self.gate.gate.may_release();
        }
        Ok(())
    }

    /// Notes the outputs of a checkpoint that was restored, `whole` or in part. If this process has
    /// neither given outputs, printed nor saved, its gate continues from there. Otherwise see
    /// [`Client::roll_back_gate`]: a program may also restore just to look.
    pub(crate) fn note_outputs(&self, epoch: Epoch, lists: RankLists, whole: bool) -> Result<()> {
        let has_printed = self.transcript.as_ref().map(|it| it.is_used()).transpose()?;
        let is_used = self.gate.gate.is_used() || has_printed.unwrap_or(false);
        *self.gate.restored.lock() = (whole || !is_used).then_some((epoch, lists));
        if is_used { Ok(()) } else { self.roll_back_gate() }
    }

    /// Lets the gate continue from the checkpoint that was restored last: outputs that were given
    /// after it are dropped. A front door calls it if the restore has replaced the program's state.
    ///
    /// # Errors
    /// `Damaged` for a list of outputs that cannot be read; as [`Client::open_gate`].
    pub fn roll_back_gate(&self) -> Result<()> {
        let Some((epoch, lists)) = self.gate.restored.lock().take() else { return Ok(()) };
        self.gate.gate.restored(epoch, &lists)?;
        if let Some(transcript) = &self.transcript {
            transcript.restored(&lists)?;
        }
        self.begin_releases()
    }

    /// Waits before a close until everything that a save covers is released, at most `limit`; see
    /// [`Gate::wait`]. The close then does not wait again.
    pub fn wait_released(&self, limit: Duration) -> bool {
        self.gate.has_waited.store(true, Ordering::Relaxed);
        !self.gate.is_open() || self.gate.gate.wait(limit)
    }

    /// Closes the gate, if this client has opened it. Outputs that are left stay in the checkpoint, and
    /// a warning names them.
    pub(crate) fn close_gate(&self) {
        let is_mine = self.gate.process == std::process::id();
        if !is_mine || !self.gate.is_open.swap(false, Ordering::Relaxed) {
            return;
        }
        let has_waited = self.gate.has_waited.swap(false, Ordering::Relaxed);
        let limit = if has_waited { Duration::ZERO } else { CLOSE_WAIT };
        let report = self.gate.gate.close(limit);
        let (pool, job) = (self.job.pool(), self.job.name());
        if report.outputs > 0 && !self.job.is_group() {
            keep_gate(pool, job, self.gate.gate.clone());
        }
        if report.uncovered > 0 {
            pool.warn(format!(
                "job {job}: {} since the last save {} not released, as no checkpoint covers {}: save before the \
                 close",
                counted(report.uncovered as u64, "output"),
                if report.uncovered == 1 { "is" } else { "are" },
                if report.uncovered == 1 { "it" } else { "them" },
            ));
        }
        for sink in report.sinks.iter().filter(|sink| sink.covered > 0) {
            let why = match (&sink.trouble, sink.is_open) {
                (Some(why), _) => why,
                (None, false) => "the program has not opened it",
                (None, true) => "it takes longer",
            };
            pool.warn(format!(
                "job {job}: {} to {} {} not released yet ({why}): the checkpoint has {}, for the next run",
                counted(sink.covered as u64, "output"),
                sink.name,
                if sink.covered == 1 { "is" } else { "are" },
                if sink.covered == 1 { "it" } else { "them" },
            ));
        }
    }
}
