//! The fate of each checkpoint, for programs that hold back their outputs until the state behind
//! them is safe.
#![allow(unsafe_code)]

use crate::arguments::Out;
use crate::call::{Failure, call, invalid, keep_text};
use crate::core::{JOBS, outlive_job};
use crate::handles::Handles;
use crate::status::{OUTLIVE_OK, outlive_status, status_of};
use outlive_client::{NextEvent, Subscription};
use outlive_store::CommitEvent;
use outlive_types::Error;
use std::ptr::null_mut;
use std::time::Duration;

/// A subscription to the events of a job: the fate of each checkpoint, in the order of the saves.
pub struct outlive_events {
    _private: (),
}

static EVENTS: Handles<Subscription, outlive_events> = Handles::new("subscription", 5);

/// The fate of one checkpoint.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct outlive_event {
    /// The epoch of the checkpoint. If the save failed, the next checkpoint may get the same epoch.
    pub epoch: u64,
    /// OUTLIVE_OK: the checkpoint is committed, and survives a crash. Otherwise the save failed for
    /// a reason of this kind, and the checkpoint is not known to exist.
    pub status: outlive_status,
}

/// Subscribes to the events of a job from now on. `*events` is the subscription, or NULL after an
/// error; close it with outlive_events_close().
///
/// Each checkpoint that this process saves gives one event, whichever handle of the job saves it. A
/// handle without a group gets no events of a group's.
/// Every subscription gets every event once, in the order of the saves. In a group, each rank
/// subscribes for itself. A save that fails at once gives no event if the call returns its error.
/// After OUTLIVE_FENCED, subscribe again with the handle that goes on.
///
/// A subscription keeps every event until outlive_events_next() takes it: about 100 bytes, plus
/// the texts of the job's name and an error. So take the events, or close the subscription.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_events_open(
    job: *mut outlive_job,
    events: *mut *mut outlive_events,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::new(events, "the subscription")? };
        out.set(null_mut());
        let core = JOBS.get(job)?;
        out.set(EVENTS.add(core.client.events()));
        Ok(())
    })
}

/// Takes the next event, and waits for it for at most `timeout_s` seconds; INFINITY waits without
/// limit. If the event has another status than OUTLIVE_OK, outlive_error_message() returns the
/// reason. Several threads may call this for one subscription: each event goes to one of them.
///
/// Returns OUTLIVE_RETRY if no event came in time. Returns OUTLIVE_NOTHING if none will come: the
/// job is closed and all its events are taken, or another thread closed the subscription during the
/// wait. A call after that returns OUTLIVE_INVALID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_events_next(
    events: *mut outlive_events,
    timeout_s: f64,
    event: *mut outlive_event,
) -> outlive_status {
    call(|| {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::new(event, "the event")? };
        out.set(outlive_event { epoch: 0, status: OUTLIVE_OK });
        if timeout_s.is_nan() {
            return Err(invalid("timeout_s is not a number: give seconds, from 0"));
        }
        // A time beyond the range of a duration means forever.
        let limit = Duration::try_from_secs_f64(timeout_s.max(0.0)).ok();
        match EVENTS.get(events)?.next(limit)? {
            NextEvent::Event(CommitEvent::Committed { epoch, .. }) => {
                out.set(outlive_event { epoch, status: OUTLIVE_OK });
                Ok(())
            }
            NextEvent::Event(CommitEvent::Failed { epoch, error, .. }) => {
                out.set(outlive_event { epoch, status: status_of(error.kind()) });
                keep_text(error.message());
                Ok(())
            }
            NextEvent::NotYet => Err(Failure::Error(Error::retry(format!(
                "no checkpoint was committed or failed within {timeout_s} s: ask again later"
            )))),
            NextEvent::Over => Err(Failure::Nothing(
                "no event is left, and none will come: the job or the subscription is closed"
                    .into(),
            )),
        }
    })
}

/// Ends a subscription, and drops the events that were not taken. Calls of outlive_events_next()
/// that wait in other threads return OUTLIVE_NOTHING. The job stays open. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_events_close(events: *mut outlive_events) -> outlive_status {
    call(|| {
        if !events.is_null() {
            EVENTS.take(events)?.close();
        }
        Ok(())
    })
}
