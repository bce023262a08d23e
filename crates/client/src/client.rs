//! Opens a job, saves, and closes it.

use crate::events::Subscription;
use crate::job_gate::ClientGate;
use crate::past::IntervalMemory;
use crate::sessions::{self, collect_and_let_go, collect_behind};
use crate::stop::{EVERY_VARIABLE, Report, StopRequest, StopWatch, every_of_run};
use crate::transcript::{self, Transcript};
use outlive_capture::{ChangeTracker, MemorySource, Region};
use outlive_interval::Every;
use outlive_pool::Pool;
use outlive_store::gc::{GcOptions, GcReport};
use outlive_store::{
    CommitEvent, CommitWatch, Job, JobOptions, SaveHandle, SaveNotes, parse_every,
};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Distribution, Epoch, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Way in which a program ends its work with a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// All ranks of its group close the job at the same point of the program.
    Together,
    /// This rank alone, as after an exception: it waits for no other one.
    Alone,
    /// The same at the end of the process, which waits for no memory that is still being filled.
    Exit,
}

/// A program's access to a job: the job and the tracker of its memory. Within a process, all
/// clients of a job are one writer: they share its session and tracker. Any thread may call any
/// method.
pub struct Client {
    pub(crate) job: Job,
    /// Tracker, which remembers the last image.
    pub(crate) tracker: Arc<ChangeTracker>,
    pub(crate) stop: StopWatch,
    /// Where the attempts and the interval of the job are noted.
    memory: Arc<IntervalMemory>,
    pub(crate) gate: ClientGate,
    /// Transcripts of this process, if a supervisor holds its lines.
    pub(crate) transcript: Option<Arc<Transcript>>,
    /// Tells the supervisor which checkpoints are committed.
    _covers: Option<CommitWatch>,
    /// Whether a save has begun since the job was opened or closed.
    has_saved: AtomicBool,
    /// Subscriptions, which end when the job is closed.
    queues: Mutex<Vec<Weak<Subscription>>>,
}

impl Client {
    /// Opens a job, or joins it if this process has it open already. A thread begins to look for
    /// requests to stop; nothing else is read or written yet.
    ///
    /// # Errors
    /// `Invalid` for an impossible name, an unknown tracker in `pool.toml`, or an interval of the
    /// supervisor that cannot be read; errors of the files to which a supervised program prints.
    pub fn open(pool: &Pool, name: &str, options: JobOptions) -> Result<Client> {
        let every = options.every;
        let (job, tracker, gate) = sessions::open(pool, name, options)?;
        let gate = ClientGate::new(gate);
        let stop = StopWatch::new(pool, &job);
        let rank = job.is_group().then(|| job.rank());
        let transcript = Transcript::of_this_process(stop.folder(), rank)?;
        let covers = transcript.clone().map(|transcript| {
            job.events().watch(move |event| match event {
                CommitEvent::Committed { epoch, .. } => transcript.committed(*epoch),
                CommitEvent::Failed { epoch, .. } => transcript.failed(*epoch),
            })
        });
        let memory = Arc::new(IntervalMemory::new(job.name(), stop.folder().cloned()));
        let client = Client {
            job,
            tracker,
            stop,
            memory,
            gate,
            transcript,
            _covers: covers,
            has_saved: AtomicBool::new(false),
            queues: Mutex::default(),
        };
        client.set_every(every)?;
        Ok(client)
    }

    /// Sets the rule by which saves become due, unless the supervisor gives another one. It forgets
    /// the costs learned before. All ranks of a group call it, or none.
    ///
    /// # Errors
    /// `Invalid` if the supervisor's rule cannot be read.
    pub fn set_every(&self, every: Every) -> Result<()> {
        let (pool, name) = (self.job.pool(), self.job.name());
        let budget = match every {
            Every::Continuous { slowdown_max } => Some(slowdown_max),
            _ => None,
        };
        let given = every_of_run(&pool.config().format.pool_id, name);
        let over = given.map(|text| parse_every(&text, budget)).transpose();
        let over = over.map_err(|error| error.context(EVERY_VARIABLE))?;
        self.job.set_every(over.unwrap_or(every), over.is_some(), Some(self.memory.clone()));
        Ok(())
    }

    /// Returns the job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Returns the number of threads for hashing and copying.
    fn threads(&self) -> usize {
        self.job.pool().config().tuning.threads()
    }

    /// Returns the source of a save: regions in the program's order, and the attachment to their
    /// image. Callers that wait for it themselves use [`MemorySource::wait_filled`], and then
    /// [`Client::save_source`].
    pub fn source(&self, regions: Vec<Region>, attachment: Vec<u8>) -> MemorySource {
        // Regions that are the same on all ranks are stored once.
        let is_mine = |region: &Region| {
            self.job.rank() == 0 || *region.distribution() != Distribution::Replicated
        };
        let (mine, elsewhere): (Vec<Region>, Vec<Region>) = regions.into_iter().partition(is_mine);
        MemorySource::new(self.tracker.clone(), mine, attachment, self.threads())
            .with_elsewhere(elsewhere)
    }

    /// Saves regions, with the attachment that a front door keeps with their image. Returns when
    /// the program may write its memory again; the handle reports when the checkpoint is committed.
    ///
    /// # Errors
    /// As [`Job::save`].
    pub fn save(
        &self,
        regions: Vec<Region>,
        attachment: Vec<u8>,
        notes: SaveNotes,
    ) -> Result<SaveHandle> {
        self.save_source(&mut self.source(regions, attachment), notes)
    }

    /// Does the same with a source that [`Client::source`] has made. The checkpoint covers the
    /// outputs that the gate has got until now.
    ///
    /// # Errors
    /// As [`Job::save`]; those of sinks that cannot prepare their outputs.
    pub fn save_source(&self, source: &mut MemorySource, notes: SaveNotes) -> Result<SaveHandle> {
        let printed = self.transcript.as_ref().map(|it| it.printed()).transpose();
        let printed = printed.map_err(|error| self.job.abort_collective(error))?;
        if let Some(spans) = &printed {
            let (sink, position) = transcript::position(spans);
            self.gate.gate.set_position(sink, position);
        }
        let begun = AtomicBool::new(false);
        let covered = self.gate.gate.cover(|outputs| {
            begun.store(true, Ordering::Relaxed);
            source.set_outputs(outputs);
            self.job.save_with(source, notes)
        });
        let handle = covered.map_err(|error| match begun.into_inner() {
            true => error,
            // The other ranks have begun the save.
            false => self.job.abort_collective(error),
        })?;
        self.has_saved.store(true, Ordering::Relaxed);
        if let (Some(transcript), Some(spans)) = (&self.transcript, printed) {
            transcript.saves(handle.epoch(), spans);
        }
        Ok(handle)
    }

    /// Returns whether a supervisor holds what this process prints: then a front door writes out what
    /// its language keeps of standard output and error, before each save and restore.
    pub fn has_transcript(&self) -> bool {
        self.transcript.is_some()
    }

    /// Returns whether a save is due: see [`Job::due`].
    ///
    /// # Errors
    /// The failure of an earlier save, if the program must know of it and has not seen it; in a
    /// group, those of the coordinator.
    pub fn due(&self) -> Result<bool> {
        self.stop.sign_of_life();
        // No rank of a group must give up where others go on: the save reports the failure on all.
        if !self.job.is_group() {
            self.job.tell_last().map_err(|error| error.context("an earlier save failed"))?;
        }
        let stops = self.stop_request().is_some() && self.stop.wants_save();
        let due = self.job.due(stops)?;
        if due.stops {
            self.stop.join(self.job.pool(), self.job.name());
        }
        // One rank of a group must not save alone.
        Ok(due.is_due || !self.job.is_group() && self.gate.gate.wants_save())
    }

    /// Returns whether the job is to be closed before its process ends: a save is in progress or has
    /// failed unheard, the gate is open, or there are transcripts. After a save a rank
    /// of a group also tells the others that it ends, and a program waits for the slow tier.
    pub fn is_unfinished(&self) -> bool {
        let has_more = self.job.is_group() || self.job.pool().has_slow_tier();
        self.job.has_unheard()
            || self.gate.is_open()
            || self.transcript.is_some()
            || has_more && self.has_saved.load(Ordering::Relaxed)
    }

    /// Returns the request to save and to end, as far as this process knows of one. Never waits.
    pub fn stop_request(&self) -> Option<StopRequest> {
        let last_save = self.job.last_save_took();
        self.stop.look(self.job.pool(), self.job.name(), last_save)
    }

    /// Returns whether the program is to save and to end. In a group all ranks get the same answer:
    /// whether any of them was asked. Collective.
    ///
    /// # Errors
    /// Errors of the coordinator.
    pub fn should_stop(&self) -> Result<bool> {
        self.stop.sign_of_life();
        let asked = self.stop_request().is_some();
        let stops = self.job.any_rank("the question whether the program is to stop", asked)?;
        if stops {
            self.stop.join(self.job.pool(), self.job.name());
            self.stop.ask_again();
        }
        Ok(stops)
    }

    /// Returns whether the next save is the one that a request to stop asks for. Asked before that
    /// save begins; then the caller waits for it, and calls [`Client::saved_to_stop`].
    pub fn saves_to_stop(&self) -> bool {
        self.stop.wants_save()
    }

    /// Notes a save that a request to stop has asked for, if it is committed.
    pub fn saved_to_stop(&self, save: &SaveHandle) {
        if save.took().is_some() {
            self.stop.saved(save.epoch());
        }
    }

    /// Notes the checkpoint from which the program goes on, for its supervisor.
    pub(crate) fn restored(&self, epoch: Epoch) {
        self.stop.report(Report::Restored(epoch));
    }

    /// Subscribes to the fate of the job's checkpoints from now on, whichever client of this
    /// process saves them. The subscription ends when this client is closed or dropped; the program
    /// can still take the earlier events.
    pub fn events(&self) -> Arc<Subscription> {
        let queue = Subscription::subscribe(self.job.events(), self.job.name());
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        queue
    }

    /// Stops tracking, as another client may track the memory, or this one saves no more. Its next
    /// save would compare everything. Memory that a save in progress has frozen stays frozen.
    pub fn detach(&self) {
        self.tracker.detach();
    }

    /// Runs a gc of the pool. First ends the sessions that this process has open there. In a group,
    /// ends only this job's session, and only on the committing rank.
    ///
    /// # Errors
    /// As [`collect_and_let_go`].
    pub fn collect(&self, options: &GcOptions) -> Result<GcReport> {
        let job = self.job();
        match job.is_group() {
            true => collect_behind(job.pool(), options, &[(job.name().clone(), job.downgrade())]),
            false => collect_and_let_go(job.pool(), options),
        }
    }

    /// Completes the persist phase, and ends the session in the log and the subscriptions to events.
    /// The client can be used again afterwards.
    ///
    /// # Errors
    /// As [`Job::close`].
    pub fn close(&self, end: End) -> Result<()> {
        // Before the session ends: until then no other process releases the same outputs.
        self.close_gate();
        let closed = match end {
            End::Together => self.job.close(),
            End::Alone => self.job.leave(),
            End::Exit => self.job.close_at_exit(),
        };
        self.tracker.detach();
        self.has_saved.store(false, Ordering::Relaxed);
        if closed.is_ok() {
            self.memory.ended(self.job.pool());
        }
        if let (Some(transcript), false) = (&self.transcript, end == End::Alone) {
            transcript.close();
        }
        let queues = std::mem::take(&mut *self.queues.lock());
        end_all(queues);
        closed
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        end_all(std::mem::take(self.queues.get_mut()));
        self.close_gate();
    }
}

/// Ends subscriptions, and wakes the threads that wait for their events.
fn end_all(queues: Vec<Weak<Subscription>>) {
    queues.iter().filter_map(Weak::upgrade).for_each(|queue| queue.end());
}
