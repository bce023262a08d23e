//! Sets of places of a log: each that the log ever had has a number, and a directory or prefix of its own in each
//! of its places. So what is left of an older one is never taken for a part of a newer one.

use crate::config::{LOG, LogConfig};
use crate::location::Location;
use crate::marker::{Moved, MovedReplica, ThisReplica};
use outlive_types::Result;

/// The places of a log at some time.
#[derive(Clone, Debug)]
pub(crate) struct LogConfiguration {
    /// Counts the moves, from 1.
    pub number: u32,
    /// As they are written in `[log]`; empty: beside the descriptor.
    config: LogConfig,
    /// The same, seen from here, as a person calls them.
    pub named: Vec<Location>,
    /// Where the records of this set are.
    pub at: Vec<Location>,
}

impl LogConfiguration {
    /// The places of `[log]`, seen from a pool's `root`; without any, there.
    ///
    /// # Errors
    /// `Invalid` for a location that is not possible.
    pub fn of(root: &Location, config: Option<&LogConfig>) -> Result<LogConfiguration> {
        let Some(config) = config.cloned() else { return Ok(LogConfiguration::beside(root)) };
        let seen = |location: &String| Location::parse(location, LOG)?.seen_from(root);
        let named: Vec<Location> = config.all().into_iter().map(seen).collect::<Result<_>>()?;
        let at =
            named.iter().map(|replica| replica.of_set(config.number)).collect::<Result<_>>()?;
        Ok(LogConfiguration { number: config.number, config, named, at })
    }

    /// The first set of a log that is beside the descriptor.
    pub fn beside(root: &Location) -> LogConfiguration {
        let (config, named) = (LogConfig::default(), vec![root.clone()]);
        LogConfiguration { number: 1, config, at: named.clone(), named }
    }

    /// The set that comes after this one. Its places that were of this one have the names that they have here.
    ///
    /// # Errors
    /// `Invalid` for a location that is not possible.
    pub fn then(&self, root: &Location, moved: &Moved) -> Result<LogConfiguration> {
        let own = self.texts();
        let name = |replica: &MovedReplica| {
            let own = replica.was.and_then(|was| own.get(was.checked_sub(1)? as usize));
            own.unwrap_or(&replica.location).clone()
        };
        let names: Vec<String> = moved.replica.iter().map(name).collect();
        LogConfiguration::of(root, LogConfig::numbered(&names, moved.number).as_ref())
    }

    /// What is to be written of a move from here to these places.
    pub fn moved_to(&self, to: &LogConfiguration) -> Moved {
        let replica = |(location, replica): (String, &Location)| MovedReplica {
            location,
            was: (self.named.iter().position(|old| old.is_same(replica))).map(|was| was as u32 + 1),
        };
        let replica = to.texts().into_iter().zip(&to.named).map(replica).collect();
        Moved { number: to.number, replica }
    }

    /// `[log]`.
    pub fn config(&self) -> LogConfig {
        match self.config.all().is_empty() {
            true => LogConfig { location: Some(".".to_owned()), ..self.config.clone() },
            false => self.config.clone(),
        }
    }

    fn texts(&self) -> Vec<String> {
        self.config().all().into_iter().cloned().collect()
    }

    /// The places, each with what its marker says that it is.
    pub fn replicas(&self) -> impl Iterator<Item = (&Location, Option<ThisReplica>)> {
        let of = self.at.len() as u32;
        let replica = move |number: u32| (of > 1).then_some(ThisReplica { number, of });
        self.at.iter().zip((1..).map(replica))
    }

    /// For messages.
    pub fn describe(&self) -> String {
        let names: Vec<String> = self.named.iter().map(Location::to_string).collect();
        names.join(", ")
    }

    /// Whether both are the same places, in the same order.
    pub fn is_same(&self, other: &LogConfiguration) -> bool {
        let pairs = || self.named.iter().zip(&other.named);
        self.named.len() == other.named.len() && pairs().all(|(one, other)| one.is_same(other))
    }
}
