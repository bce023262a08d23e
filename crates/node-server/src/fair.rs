//! Fairness between sessions: each has a queue of its own, and they take turns.

use std::collections::{BTreeMap, VecDeque};

/// Name of a session.
pub(crate) type Session = [u8; 16];

/// Queues of sessions, which take turns.
#[derive(Debug)]
pub(crate) struct Rounds<T> {
    queues: BTreeMap<Session, VecDeque<T>>,
    /// The sessions that have something in their queue, in the order of their turns.
    turns: VecDeque<Session>,
}

impl<T> Default for Rounds<T> {
    fn default() -> Self {
        Rounds { queues: BTreeMap::new(), turns: VecDeque::new() }
    }
}

impl<T> Rounds<T> {
    pub(crate) fn push(&mut self, session: Session, item: T) {
        let queue = self.queues.entry(session).or_default();
        if queue.is_empty() {
            self.turns.push_back(session);
        }
        queue.push_back(item);
    }

    /// Takes the first item of the first session in turn that passes, which then is the last in
    /// turn.
    pub(crate) fn pop_if(&mut self, passes: impl Fn(&Session, &T) -> bool) -> Option<(Session, T)> {
        let first = |session: &Session| self.queues.get(session).and_then(VecDeque::front);
        let turn = self
            .turns
            .iter()
            .position(|session| first(session).is_some_and(|item| passes(session, item)))?;
        let session = self.turns.remove(turn)?;
        let queue = self.queues.get_mut(&session)?;
        let item = queue.pop_front()?;
        match queue.is_empty() {
            true => drop(self.queues.remove(&session)),
            false => self.turns.push_back(session),
        }
        Some((session, item))
    }

    /// Puts an item back to where [`Rounds::pop_if`] took it: its session is the first in turn.
    pub(crate) fn put_back(&mut self, session: Session, item: T) {
        self.queues.entry(session).or_default().push_front(item);
        self.turns.retain(|other| *other != session);
        self.turns.push_front(session);
    }

    /// Takes the first item of the first session in turn.
    pub(crate) fn pop(&mut self) -> Option<(Session, T)> {
        self.pop_if(|_, _| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_take_turns() {
        let mut rounds = Rounds::default();
        for (session, item) in [(1, 10), (1, 11), (1, 12), (2, 20), (3, 30), (2, 21)] {
            rounds.push([session; 16], item);
        }
        let mut order = Vec::new();
        while let Some((_, item)) = rounds.pop() {
            order.push(item);
        }
        assert_eq!(order, [10, 20, 30, 11, 21, 12]);
    }

    #[test]
    fn a_session_that_must_wait_holds_up_no_other() {
        let mut rounds = Rounds::default();
        rounds.push([1; 16], 10);
        rounds.push([2; 16], 20);
        assert_eq!(rounds.pop_if(|session, _| *session != [1; 16]), Some(([2; 16], 20)));
        assert_eq!(rounds.pop_if(|session, _| *session != [1; 16]), None);
        assert_eq!(rounds.pop(), Some(([1; 16], 10)));
    }
}
