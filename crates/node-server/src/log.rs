//! The log of a node: one line of JSON for each event.

use crate::service::Service;
use outlive_types::{Clock, SystemClock};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Instant;

/// Takes a line of the log, without its end.
pub type TakeLine = Arc<dyn Fn(&str) + Send + Sync>;

/// The log of a node, if it has one.
#[derive(Clone)]
pub(crate) struct Log(pub Option<TakeLine>);

impl Log {
    /// Writes an event. Names of events never change their meaning.
    pub(crate) fn event(&self, name: &str, fields: &[(&str, Value)]) {
        let Some(take_line) = &self.0 else { return };
        let now_ms = SystemClock::default().unix_ns() / 1_000_000;
        let mut line = Map::new();
        line.insert("time_ms".to_owned(), now_ms.into());
        line.insert("event".to_owned(), name.into());
        line.extend(fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        take_line(&Value::Object(line).to_string());
    }

    /// Writes the refusals that are due, or all that are left if the node ends.
    pub(crate) fn refusals(&self, service: &Service, ends: bool) {
        for line in service.refusals.due(Instant::now(), ends) {
            self.event("refused", &line);
        }
    }
}
