//! Configurations of a log: each has a number, and a directory or prefix of its own in each of its
//! replicas. So the rest of an older one is never taken for a part of a newer one.

use crate::descriptor::config::{LOG, LogConfig};
use crate::descriptor::location::{of_configuration, parse};
use crate::descriptor::marker::{Moved, MovedReplica, ThisReplica};
use outlive_backend::Location;
use outlive_types::Result;

/// The replicas of a log at some time.
#[derive(Clone, Debug)]
pub(crate) struct LogConfiguration {
    /// Its number, from 1; each move adds 1.
    pub number: u32,
    /// `[log]` as it is written; empty: beside the descriptor.
    config: LogConfig,
    /// Locations of the replicas, seen from here, as a person calls them.
    pub named: Vec<Location>,
    /// Locations of the records of this configuration.
    pub at: Vec<Location>,
}

impl LogConfiguration {
    /// Reads the replicas of `[log]`, seen from a pool's `root`; without any, the log is at `root`.
    ///
    /// # Errors
    /// `Invalid` for an impossible location.
    pub fn of(root: &Location, config: Option<&LogConfig>) -> Result<LogConfiguration> {
        let Some(config) = config.cloned() else { return Ok(LogConfiguration::beside(root)) };
        let seen = |location: &String| parse(location, LOG)?.seen_from(root);
        let named: Vec<Location> = config.all().into_iter().map(seen).collect::<Result<_>>()?;
        let at = named
            .iter()
            .map(|replica| of_configuration(replica, config.number))
            .collect::<Result<_>>()?;
        Ok(LogConfiguration { number: config.number, config, named, at })
    }

    /// Returns the first configuration of a log that is beside the descriptor.
    pub fn beside(root: &Location) -> LogConfiguration {
        let (config, named) = (LogConfig::default(), vec![root.clone()]);
        LogConfiguration { number: 1, config, at: named.clone(), named }
    }

    /// Returns the configuration after this one. Replicas that stay keep the names that they have
    /// here.
    ///
    /// # Errors
    /// `Invalid` for an impossible location.
    pub fn then(&self, root: &Location, moved: &Moved) -> Result<LogConfiguration> {
        let own = self.texts();
        let name = |replica: &MovedReplica| {
            let own = replica.was.and_then(|was| own.get(was.checked_sub(1)? as usize));
            own.unwrap_or(&replica.location).clone()
        };
        let names: Vec<String> = moved.replica.iter().map(name).collect();
        LogConfiguration::of(root, LogConfig::numbered(&names, moved.number).as_ref())
    }

    /// Returns the description of a move from here to `to`.
    pub fn moved_to(&self, to: &LogConfiguration) -> Moved {
        let replica = |(location, replica): (String, &Location)| MovedReplica {
            location,
            was: (self.named.iter().position(|old| old.is_same(replica))).map(|was| was as u32 + 1),
        };
        let replica = to.texts().into_iter().zip(&to.named).map(replica).collect();
        Moved { number: to.number, replica }
    }

    /// Returns it as `[log]`.
    pub fn config(&self) -> LogConfig {
        match self.config.all().is_empty() {
            true => LogConfig { location: Some(".".to_owned()), ..self.config.clone() },
            false => self.config.clone(),
        }
    }

    fn texts(&self) -> Vec<String> {
        self.config().all().into_iter().cloned().collect()
    }

    /// Returns the replicas, each with the number that its marker has.
    pub fn replicas(&self) -> impl Iterator<Item = (&Location, Option<ThisReplica>)> {
        let of = self.at.len() as u32;
        let replica = move |number: u32| (of > 1).then_some(ThisReplica { number, of });
        self.at.iter().zip((1..).map(replica))
    }

    /// Returns the replicas for messages.
    pub fn describe(&self) -> String {
        let names: Vec<String> = self.named.iter().map(Location::to_string).collect();
        names.join(", ")
    }

    /// Returns whether both have the same replicas, in the same order.
    pub fn is_same(&self, other: &LogConfiguration) -> bool {
        let pairs = || self.named.iter().zip(&other.named);
        self.named.len() == other.named.len() && pairs().all(|(one, other)| one.is_same(other))
    }
}
