//! The refusals of a node, for its log: a line at most every few seconds for each kind and call, so
//! that no client can fill a disk with them.

use outlive_types::sync::plain::Mutex;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Shortest time between two lines of one kind and call.
const PAUSE: Duration = Duration::from_secs(10);

/// A kind of refusal, or of a wait.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Refused {
    /// Kind of the error; or `Connection`, `Token`, or `Message` for one that cannot be understood. Of
    /// connections `Full` is a wait.
    pub kind: &'static str,
    /// The method of the protocol; empty for connections.
    pub call: &'static str,
}

/// The refusals that the log says nothing of yet.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    all: AtomicU64,
    kinds: Mutex<BTreeMap<Refused, Untold>>,
}

#[derive(Debug)]
struct Untold {
    /// When the log told of them last.
    told: Option<Instant>,
    times: u64,
    /// Text and client of the last one.
    text: String,
    peer: Option<SocketAddr>,
}

impl Refusals {
    /// Notes a refusal.
    pub(crate) fn note(&self, refused: Refused, text: &str, peer: Option<SocketAddr>) {
        self.all.fetch_add(1, Ordering::Relaxed);
        self.tell(refused, text, peer);
    }

    /// Keeps a line for the log.
    fn tell(&self, refused: Refused, text: &str, peer: Option<SocketAddr>) {
        let none = || Untold { told: None, times: 0, text: String::new(), peer: None };
        let mut kinds = self.kinds.lock();
        let untold = kinds.entry(refused).or_insert_with(none);
        untold.times += 1;
        text.clone_into(&mut untold.text);
        untold.peer = peer;
    }

    /// Notes that connections have to wait: nothing is refused.
    pub(crate) fn note_wait(&self, text: &str) {
        self.tell(Refused { kind: "Full", call: "" }, text, None);
    }

    /// Returns how many there were in all.
    pub(crate) fn count(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }

    /// Returns the fields of the lines that are due at `now`, or of all that are left if the node ends.
    pub(crate) fn due(&self, now: Instant, ends: bool) -> Vec<[(&'static str, Value); 5]> {
        let mut lines = Vec::new();
        for (refused, untold) in &mut *self.kinds.lock() {
            let is_due = untold.told.is_none_or(|told| now.duration_since(told) >= PAUSE);
            if untold.times == 0 || !(is_due || ends) {
                continue;
            }
            lines.push([
                ("kind", refused.kind.into()),
                ("call", refused.call.into()),
                ("text", untold.text.as_str().into()),
                ("peer", untold.peer.map(|peer| peer.to_string()).into()),
                ("times", untold.times.into()),
            ]);
            (untold.told, untold.times) = (Some(now), 0);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(lines: &[[(&'static str, Value); 5]]) -> Vec<u64> {
        lines.iter().map(|line| line[4].1.as_u64().unwrap()).collect()
    }

    #[test]
    fn a_line_stands_for_all_refusals_since_the_one_before() {
        let (refusals, began) = (Refusals::default(), Instant::now());
        let token = Refused { kind: "Token", call: "Hello" };
        assert!(refusals.due(began, true).is_empty());
        refusals.note(token, "one", None);
        refusals.note(token, "two", Some(([127, 0, 0, 1], 9).into()));
        let lines = refusals.due(began, false);
        assert_eq!(times(&lines), [2]);
        assert_eq!(lines[0][2].1, "two");
        assert_eq!(lines[0][3].1, "127.0.0.1:9");
        for _ in 0..1000 {
            refusals.note(token, "again", None);
        }
        refusals.note(Refused { call: "Lock", ..token }, "another call", None);
        assert_eq!(times(&refusals.due(began + PAUSE / 2, false)), [1]);
        assert_eq!(times(&refusals.due(began + PAUSE, false)), [1000]);
        assert!(refusals.due(began + 2 * PAUSE, false).is_empty());
        refusals.note(token, "last", None);
        assert_eq!(times(&refusals.due(began + PAUSE, true)), [1]);
        assert_eq!(refusals.count(), 1004);
        refusals.note_wait("no place is free");
        assert_eq!((times(&refusals.due(began, false)), refusals.count()), (vec![1], 1004));
    }
}
