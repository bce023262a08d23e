//! Admission to the staging memory: a request waits, before its bytes are received, until there is
//! room for them. Sessions take turns, and none holds more than half of it.

use crate::fair::{Rounds, Session};
use outlive_types::sync::plain::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The staging memory, as bytes that may be held.
#[derive(Debug)]
pub(crate) struct Admission {
    total: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    peak: usize,
    by_session: BTreeMap<Session, usize>,
    waiting: Rounds<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    bytes: usize,
    tell: oneshot::Sender<Permit>,
}

/// Bytes of the staging memory, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    of: Arc<Admission>,
    session: Session,
    bytes: usize,
}

impl Admission {
    pub(crate) fn new(total: usize) -> Arc<Admission> {
        Arc::new(Admission { total, state: Mutex::default() })
    }

    /// Waits for room. `bytes` must be at most half of all.
    pub(crate) async fn take(self: &Arc<Self>, session: Session, bytes: usize) -> Permit {
        let (tell, told) = oneshot::channel();
        self.state.lock().waiting.push(session, Waiting { bytes, tell });
        self.grant();
        told.await.expect("a waiter is told as soon as there is room")
    }

    /// Gives room to those that wait, in turn.
    fn grant(self: &Arc<Self>) {
        loop {
            let mut state = self.state.lock();
            let State { taken, by_session, waiting, .. } = &mut *state;
            let held = |session: &Session| by_session.get(session).copied().unwrap_or(0);
            let next = waiting.pop_if(|session, next| {
                next.tell.is_closed() || held(session) + next.bytes <= self.total / 2
            });
            let Some((session, next)) = next else { return };
            if next.tell.is_closed() {
                continue;
            }
            if *taken + next.bytes > self.total {
                // No other overtakes it, so that long requests get their turn.
                waiting.put_back(session, next);
                return;
            }
            *taken += next.bytes;
            *by_session.entry(session).or_default() += next.bytes;
            state.peak = state.peak.max(state.taken);
            drop(state);
            // If the request was given up a moment ago, the permit comes back here.
            let _ = next.tell.send(Permit { of: self.clone(), session, bytes: next.bytes });
        }
    }

    /// Returns the bytes that are held now, and the most that ever were.
    pub(crate) fn taken(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.taken, state.peak)
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.of.state.lock();
        state.taken -= self.bytes;
        if let Some(held) = state.by_session.get_mut(&self.session) {
            *held -= self.bytes;
            if *held == 0 {
                state.by_session.remove(&self.session);
            }
        }
        drop(state);
        self.of.grant();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn now<F: Future>(future: F) -> Option<F::Output> {
        match poll(pin!(future)) {
            Poll::Ready(it) => Some(it),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_request_waits_for_room_and_gets_it_in_turn() {
        let admission = Admission::new(100);
        let first = now(admission.take([1; 16], 40)).unwrap();
        let second = now(admission.take([2; 16], 40)).unwrap();
        let mut third = pin!(admission.take([3; 16], 40));
        assert!(poll(third.as_mut()).is_pending());
        // A short one does not overtake it.
        let mut fourth = pin!(admission.take([4; 16], 10));
        assert!(poll(fourth.as_mut()).is_pending());
        drop(first);
        assert!(poll(third.as_mut()).is_ready());
        assert!(poll(fourth.as_mut()).is_ready());
        drop(second);
    }

    #[test]
    fn a_session_holds_at_most_half() {
        let admission = Admission::new(100);
        let held = now(admission.take([1; 16], 40)).unwrap();
        assert!(now(admission.take([1; 16], 20)).is_none());
        assert!(now(admission.take([2; 16], 50)).is_some());
        drop(held);
        assert_eq!(admission.taken(), (0, 90));
    }

    #[test]
    fn a_request_that_was_given_up_takes_nothing() {
        let admission = Admission::new(100);
        let one = now(admission.take([1; 16], 50)).unwrap();
        let two = now(admission.take([2; 16], 50)).unwrap();
        {
            let mut gone = Box::pin(admission.take([3; 16], 50));
            assert!(poll(gone.as_mut()).is_pending());
        }
        drop((one, two));
        assert_eq!(admission.taken().0, 0);
        assert!(now(admission.take([4; 16], 50)).is_some());
    }
}
