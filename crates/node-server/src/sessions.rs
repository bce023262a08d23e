//! Sessions of clients, and the locks that they hold. All of it is in memory: a node that starts
//! again learns of the locks by the next renewals, and says until then that it cannot know.

use crate::fair::Session;
use outlive_node::protocol::{HeldLock, LockKind, RenewRequest};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// The sessions of a node.
#[derive(Debug)]
pub(crate) struct Sessions {
    life: Duration,
    /// Until then, a client of an earlier run may not have renewed its locks.
    knows_from: Instant,
    /// Random number of the node, for the tokens of leases.
    node: [u8; 16],
    all: Mutex<BTreeMap<Session, Known>>,
}

#[derive(Debug)]
struct Known {
    seen: Instant,
    locks: BTreeMap<u64, (String, LockKind)>,
    /// Locks that were given back, and that a renewal on its way may still name.
    given_back: BTreeSet<u64>,
}

/// The state of a lock, as far as a node knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Knows {
    Yes,
    No,
    /// It started a moment ago, and its clients have not renewed their locks yet.
    NotYet,
}

impl Known {
    fn new(now: Instant) -> Known {
        Known { seen: now, locks: BTreeMap::new(), given_back: BTreeSet::new() }
    }
}

impl Sessions {
    /// `knows_from` is the moment from which on the clients of an earlier run have renewed their
    /// locks.
    pub(crate) fn new(node: [u8; 16], life: Duration, knows_from: Instant) -> Sessions {
        Sessions { life, knows_from, node, all: Mutex::default() }
    }

    pub(crate) fn life_s(&self) -> u32 {
        u32::try_from(self.life.as_secs()).unwrap_or(u32::MAX)
    }

    /// Returns the seconds until the node knows the locks of an earlier run, rounded up; 0 if it does.
    pub(crate) fn known_in_s(&self, now: Instant) -> u32 {
        let left = self.knows_from.saturating_duration_since(now);
        u32::try_from(left.as_millis().div_ceil(1000)).unwrap_or(u32::MAX)
    }

    /// Notes a sign of life; a session begins with its first one.
    pub(crate) fn see(&self, session: Session, now: Instant) {
        let mut all = self.all.lock();
        all.entry(session).or_insert_with(|| Known::new(now)).seen = now;
    }

    /// Renews a session and its locks. Returns the numbers of those that it does not hold any more.
    ///
    /// # Errors
    /// `Invalid` for a kind of lock that this version does not know.
    pub(crate) fn renew(
        &self,
        session: Session,
        request: &RenewRequest,
        now: Instant,
    ) -> Result<Vec<u64>> {
        self.see(session, now);
        let named = |number: u64| request.held.iter().any(|lock| lock.number == number);
        let mut given_back = BTreeSet::new();
        if let Some(known) = self.all.lock().get_mut(&session) {
            known.locks.retain(|number, _| *number >= request.complete_below || named(*number));
            given_back.clone_from(&known.given_back);
            // No later renewal names one that this one does not.
            known.given_back.retain(|number| *number >= request.complete_below || named(*number));
        }
        let mut lost = Vec::new();
        for HeldLock { prefix, kind, number } in &request.held {
            let kind = kind_of(*kind)?;
            // A client that held the lock of collectors all the time has renewed it in this run.
            let may_return = kind != LockKind::Collecting || self.is_new(now);
            let has_it = self.holds(session, *number)
                || may_return
                    && !given_back.contains(number)
                    && self.have(session, prefix, kind, *number);
            if !has_it {
                lost.push(*number);
            }
        }
        Ok(lost)
    }

    /// Takes a lock; `No` if another one excludes it. As long as a client of an earlier run may hold
    /// the lock of collectors, no other session gets it: `NotYet`.
    pub(crate) fn take(
        &self,
        session: Session,
        prefix: &str,
        kind: LockKind,
        number: u64,
        now: Instant,
    ) -> Knows {
        if kind == LockKind::Collecting && self.is_new(now) && !self.holds(session, number) {
            return Knows::NotYet;
        }
        if self.have(session, prefix, kind, number) { Knows::Yes } else { Knows::No }
    }

    fn holds(&self, session: Session, number: u64) -> bool {
        self.all.lock().get(&session).is_some_and(|known| known.locks.contains_key(&number))
    }

    /// Notes that a session has a lock; false if another one excludes it.
    fn have(&self, session: Session, prefix: &str, kind: LockKind, number: u64) -> bool {
        let mut all = self.all.lock();
        let excludes = |(of, (at, (where_, held))): (&Session, (&u64, &(String, LockKind)))| {
            kind == LockKind::Collecting
                && *held == kind
                && where_ == prefix
                && (*of != session || *at != number)
        };
        let locks =
            |(of, known): (&Session, &Known)| known.locks.iter().any(|lock| excludes((of, lock)));
        if all.iter().any(locks) {
            return false;
        }
        let Some(known) = all.get_mut(&session) else { return false };
        known.locks.insert(number, (prefix.to_owned(), kind));
        true
    }

    pub(crate) fn let_go(&self, session: Session, number: u64) {
        if let Some(known) = self.all.lock().get_mut(&session) {
            known.locks.remove(&number);
            known.given_back.insert(number);
        }
    }

    /// Returns whether any session holds a lock of this kind.
    pub(crate) fn is_held(&self, prefix: &str, kind: LockKind, now: Instant) -> Knows {
        let all = self.all.lock();
        let is = all
            .values()
            .flat_map(|known| known.locks.values())
            .any(|(where_, held)| *held == kind && where_ == prefix);
        match is {
            true => Knows::Yes,
            false if self.is_new(now) => Knows::NotYet,
            false => Knows::No,
        }
    }

    /// Returns the name of a lease.
    pub(crate) fn token(&self, session: Session, number: u64) -> String {
        format!("{} {} {number}", hex(&self.node), hex(&session))
    }

    /// Returns whether a lease has ended. The node cannot know it of a lease of another node.
    pub(crate) fn has_ended(&self, token: &str, now: Instant) -> Knows {
        let mut words = token.split(' ');
        let (node, session, number) = (words.next(), words.next(), words.next());
        let parsed = session.and_then(parse_hex).zip(number.and_then(|it| it.parse().ok()));
        let Some((session, number)) = parsed.filter(|_| node == Some(&hex(&self.node))) else {
            return Knows::NotYet;
        };
        let all = self.all.lock();
        let lives =
            all.get(&session).is_some_and(|known: &Known| known.locks.contains_key(&number));
        match lives {
            true => Knows::No,
            false if self.is_new(now) => Knows::NotYet,
            false => Knows::Yes,
        }
    }

    fn is_new(&self, now: Instant) -> bool {
        now < self.knows_from
    }

    /// Ends the sessions that gave no sign of life for too long, and returns them.
    pub(crate) fn end_silent(&self, now: Instant) -> Vec<Session> {
        let mut all = self.all.lock();
        let silent = |known: &Known| now.duration_since(known.seen) > self.life;
        let ended: Vec<Session> =
            all.iter().filter(|(_, known)| silent(known)).map(|(session, _)| *session).collect();
        for session in &ended {
            all.remove(session);
        }
        ended
    }

    pub(crate) fn count(&self) -> usize {
        self.all.lock().len()
    }
}

/// Reads a kind of lock.
///
/// # Errors
/// `Invalid` for one that this version does not know.
pub(crate) fn kind_of(kind: i32) -> Result<LockKind> {
    LockKind::try_from(kind).map_err(|_| Error::invalid("this node does not know such a lock"))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

fn parse_hex(digits: &str) -> Option<Session> {
    let number = u128::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 32)?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod explored;

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Duration = Duration::from_secs(100);
    const A: Session = [1; 16];
    const B: Session = [2; 16];

    fn started() -> (Sessions, Instant) {
        let now = Instant::now();
        (Sessions::new([9; 16], LIFE, now + LIFE), now)
    }

    fn renewal(held: &[(u64, LockKind)], complete_below: u64) -> RenewRequest {
        let lock = |(number, kind): &(u64, LockKind)| HeldLock {
            prefix: "p".to_owned(),
            kind: (*kind).into(),
            number: *number,
        };
        RenewRequest { held: held.iter().map(lock).collect(), complete_below, ..Default::default() }
    }

    #[test]
    fn one_session_collects_at_a_time() {
        let (sessions, started) = started();
        let now = started + LIFE;
        let take = |session, prefix, number| {
            sessions.see(session, now);
            sessions.take(session, prefix, LockKind::Collecting, number, now) == Knows::Yes
        };
        assert!(take(A, "p", 0));
        assert!(take(A, "p", 0), "a repetition is no second one");
        assert!(!take(A, "p", 1));
        assert!(!take(B, "p", 0));
        assert!(take(B, "q", 1), "another medium");
        sessions.let_go(A, 0);
        assert!(take(B, "p", 2));
    }

    #[test]
    fn a_node_that_has_just_started_gives_no_lock_of_collectors() {
        let (sessions, now) = started();
        let soon = now + LIFE / 2;
        sessions.see(B, soon);
        let take = |number, now| sessions.take(B, "p", LockKind::Collecting, number, now);
        assert_eq!(take(0, soon), Knows::NotYet);
        let waits = [now, soon, now + LIFE - Duration::from_millis(1), now + LIFE, now + 2 * LIFE];
        assert_eq!(waits.map(|at| sessions.known_in_s(at)), [100, 50, 1, 0, 0]);
        assert_eq!(sessions.take(B, "p", LockKind::Reading, 1, soon), Knows::Yes);
        // Its holder renews it.
        sessions.renew(A, &renewal(&[(4, LockKind::Collecting)], 5), soon).unwrap();
        let again = sessions.take(A, "p", LockKind::Collecting, 4, soon);
        assert_eq!(again, Knows::Yes, "it has it already");
        let later = now + LIFE;
        assert_eq!(take(2, later), Knows::No);
        sessions.let_go(A, 4);
        assert_eq!(take(2, later), Knows::Yes);
        let renew =
            |number| sessions.renew(A, &renewal(&[(number, LockKind::Collecting)], 9), later);
        assert_eq!(renew(6).unwrap(), [6]);
        sessions.let_go(B, 2);
        assert_eq!(renew(7).unwrap(), [7], "it stood still, and may have missed another one");
    }

    #[test]
    fn a_node_that_has_just_started_does_not_know_its_locks() {
        let (sessions, now) = started();
        let (soon, later) = (now + LIFE / 2, now + LIFE * 2);
        let token = sessions.token(A, 7);
        assert_eq!(sessions.has_ended(&token, soon), Knows::NotYet);
        assert_eq!(sessions.is_held("p", LockKind::Reading, soon), Knows::NotYet);
        sessions
            .renew(A, &renewal(&[(7, LockKind::Lease), (8, LockKind::Reading)], 9), soon)
            .unwrap();
        assert_eq!(sessions.has_ended(&token, soon), Knows::No);
        assert_eq!(sessions.is_held("p", LockKind::Reading, later), Knows::Yes);
        assert_eq!(sessions.is_held("q", LockKind::Reading, later), Knows::No);
        assert_eq!(sessions.has_ended(&sessions.token(B, 1), later), Knows::Yes);
        let other = Sessions::new([8; 16], LIFE, now + LIFE);
        assert_eq!(other.has_ended(&token, later), Knows::NotYet, "of another node");
        for broken in ["", "x", "x y z", &token[..40], &format!("{token}x")] {
            assert_eq!(sessions.has_ended(broken, later), Knows::NotYet, "{broken:?}");
        }
    }

    #[test]
    fn a_renewal_ends_the_locks_that_it_does_not_name_and_no_newer_ones() {
        let (sessions, now) = started();
        sessions.see(A, now);
        for number in 0..3 {
            assert_eq!(sessions.take(A, "p", LockKind::Lease, number, now), Knows::Yes);
        }
        sessions.renew(A, &renewal(&[(1, LockKind::Lease)], 2), now).unwrap();
        let later = now + LIFE * 2;
        let ended = |number| sessions.has_ended(&sessions.token(A, number), later);
        assert_eq!([ended(0), ended(1), ended(2)], [Knows::Yes, Knows::No, Knows::No]);
    }

    #[test]
    fn a_renewal_that_was_on_its_way_takes_no_lock_again() {
        let (sessions, now) = started();
        sessions.see(A, now);
        sessions.take(A, "p", LockKind::Reading, 4, now);
        let built_before = renewal(&[(4, LockKind::Reading)], 5);
        sessions.let_go(A, 4);
        sessions.renew(A, &built_before, now).unwrap();
        let later = now + LIFE * 2;
        assert_eq!(sessions.is_held("p", LockKind::Reading, later), Knows::No);
        sessions.renew(A, &renewal(&[], 5), now).unwrap();
        assert!(sessions.all.lock()[&A].given_back.is_empty());
    }

    #[test]
    fn a_silent_session_ends_with_its_locks() {
        let (sessions, now) = started();
        sessions.see(A, now);
        sessions.see(B, now);
        sessions.take(A, "p", LockKind::Lease, 1, now);
        sessions.see(B, now + LIFE);
        assert_eq!(sessions.end_silent(now + LIFE + LIFE / 2), [A]);
        assert_eq!(sessions.has_ended(&sessions.token(A, 1), now + LIFE * 2), Knows::Yes);
        assert_eq!(sessions.count(), 1);
    }
}
