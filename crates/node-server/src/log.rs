//! The log of a node: one line of JSON for each event, on standard error.

use outlive_types::{Clock, SystemClock};
use serde_json::{Map, Value};
use std::io::Write;

/// The log of a node.
#[derive(Clone, Copy)]
pub(crate) struct Log {
    /// Whether it writes anything.
    pub(crate) is_on: bool,
}

impl Log {
    /// Writes an event. Names of events never change their meaning.
    pub(crate) fn event(self, name: &str, fields: &[(&str, Value)]) {
        if self.is_on {
            write(name, fields);
        }
    }
}

fn write(name: &str, fields: &[(&str, Value)]) {
    let now_ms = SystemClock::default().unix_ns() / 1_000_000;
    let mut line = Map::new();
    line.insert("time_ms".to_owned(), now_ms.into());
    line.insert("event".to_owned(), name.into());
    line.extend(fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    // Without a reader there is no log; the node goes on.
    let _ = writeln!(std::io::stderr().lock(), "{}", Value::Object(line));
}
