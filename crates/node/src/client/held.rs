//! The locks that a process holds on a node, and until when the node keeps each for it.
//!
//! The node keeps a lock for the life of a session behind the last request of its client. A node that
//! starts again gives no lock of collectors to another session before that time is over. The client
//! counts from the moment before it sent the last request that was answered, and less time. So its
//! lock ends for it before the node may give it to another one, as the leases of Gray and Cheriton
//! (SOSP 1989) do.

use crate::protocol::{HeldLock, LockKind, RenewReply, RenewRequest};
use bytes::Bytes;
use outlive_types::{Error, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// The share of a session's life that a client does not count on: clocks differ.
const MARGIN: u32 = 10;

/// The locks that a process holds, by their numbers.
#[derive(Debug, Default)]
pub struct HeldLocks {
    locks: BTreeMap<u64, Held>,
    next: u64,
}

#[derive(Debug)]
struct Held {
    lock: HeldLock,
    kept: Kept,
}

/// Whether a lock is the client's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kept {
    /// The node has not answered yet.
    Asked,
    /// No other session gets it before this time.
    Until(Duration),
    /// Another session may have had it since. That does not change any more.
    Ended,
}

impl HeldLocks {
    /// Notes a lock under a new number, before the node is asked for it: after a lost reply it may
    /// be held.
    pub fn hold(&mut self, prefix: String, kind: LockKind) -> u64 {
        let number = self.next;
        self.next += 1;
        let lock = HeldLock { prefix, kind: kind.into(), number };
        self.locks.insert(number, Held { lock, kept: Kept::Asked });
        number
    }

    /// Notes that the node has given a lock. The request was first sent at `sent`, by a clock that also
    /// counts while the machine sleeps. A session lives for `life`.
    pub fn taken(&mut self, number: u64, sent: Duration, life: Duration) {
        if let Some(held) = self.locks.get_mut(&number) {
            held.kept = Kept::Until(counted(sent, life));
        }
    }

    /// Forgets a lock.
    pub fn let_go(&mut self, number: u64) {
        self.locks.remove(&number);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Returns the next renewal of the session. It names no lock that the node has not given: a node
    /// that has started again would believe it. It does not name a lock of collectors that has ended,
    /// so the node forgets it, too; readers and leases exclude no other session.
    pub fn renewal(&self, session: Bytes, now: Duration) -> RenewRequest {
        let is_named = |held: &&Held| match held.kept {
            Kept::Asked => false,
            _ => held.lock.kind != i32::from(LockKind::Collecting) || !held.has_ended(now),
        };
        // The node may have given it, and the reply is on its way.
        let asked = self.locks.values().find(|held| held.kept == Kept::Asked);
        RenewRequest {
            session,
            held: self.locks.values().filter(is_named).map(|held| held.lock.clone()).collect(),
            complete_below: asked.map_or(self.next, |held| held.lock.number),
        }
    }

    /// Notes the answer to a renewal that was sent at `sent` and came back at `now`.
    pub fn renewed(
        &mut self,
        request: &RenewRequest,
        reply: &RenewReply,
        sent: Duration,
        now: Duration,
    ) {
        let until = counted(sent, Duration::from_secs(reply.session_s.into()));
        for HeldLock { number, .. } in &request.held {
            let Some(held) = self.locks.get_mut(number) else { continue };
            held.kept = match held.kept {
                // The node may have given it to another session meanwhile. It says so if the clock
                // of this machine stood still with the machine.
                Kept::Until(_) if held.has_ended(now) || reply.lost.contains(number) => Kept::Ended,
                Kept::Until(before) => Kept::Until(before.max(until)),
                other => other,
            };
        }
    }

    /// Checks that a lock was this process's all the time since it was taken.
    ///
    /// # Errors
    /// `Fenced` if another one may have had it.
    pub fn check(&self, number: u64, now: Duration) -> Result<()> {
        match self.locks.get(&number) {
            Some(held) if !held.has_ended(now) => Ok(()),
            _ => Err(Error::fenced(
                "this process reached the node too late to keep its lock, and another one may have moved \
                 shards since: give the command again",
            )),
        }
    }
}

impl Held {
    fn has_ended(&self, now: Duration) -> bool {
        match self.kept {
            Kept::Asked => false,
            Kept::Until(until) => now >= until,
            Kept::Ended => true,
        }
    }
}

/// Returns until when a client counts on a session of which it knows that it lived at `sent`.
fn counted(sent: Duration, life: Duration) -> Duration {
    sent + life - life / MARGIN
}
