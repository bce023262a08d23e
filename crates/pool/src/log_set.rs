//! Sets of places of a log: each that the log ever had has a number, and a directory or prefix of its own in each
//! of its places. So what is left of an older one is never taken for a part of a newer one.

use crate::config::{LOG, LogConfig};
use crate::location::Location;
use crate::marker::{Moved, MovedPlace, ThisPlace};
use outlive_types::Result;

/// The places of a log at some time.
#[derive(Clone, Debug)]
pub(crate) struct LogSet {
    /// Counts the moves, from 1.
    pub number: u32,
    /// As they are written in `[log]`; empty: beside the descriptor.
    config: LogConfig,
    /// The same, seen from here, as a person calls them.
    pub named: Vec<Location>,
    /// Where the records of this set are.
    pub at: Vec<Location>,
}

impl LogSet {
    /// The places of `[log]`, seen from a pool's `root`; without any, there.
    ///
    /// # Errors
    /// `Invalid` for a location that is not possible.
    pub fn of(root: &Location, config: Option<&LogConfig>) -> Result<LogSet> {
        let Some(config) = config.cloned() else { return Ok(LogSet::beside(root)) };
        let seen = |location: &String| Location::parse(location, LOG)?.seen_from(root);
        let named: Vec<Location> = config.all().into_iter().map(seen).collect::<Result<_>>()?;
        let at = named.iter().map(|place| place.of_set(config.number)).collect::<Result<_>>()?;
        Ok(LogSet { number: config.number, config, named, at })
    }

    /// The first set of a log that is beside the descriptor.
    pub fn beside(root: &Location) -> LogSet {
        let (config, named) = (LogConfig::default(), vec![root.clone()]);
        LogSet { number: 1, config, at: named.clone(), named }
    }

    /// The set that comes after this one. Its places that were of this one have the names that they have here.
    ///
    /// # Errors
    /// `Invalid` for a location that is not possible.
    pub fn then(&self, root: &Location, moved: &Moved) -> Result<LogSet> {
        let own = self.texts();
        let name = |place: &MovedPlace| {
            let own = place.was.and_then(|was| own.get(was.checked_sub(1)? as usize));
            own.unwrap_or(&place.location).clone()
        };
        let names: Vec<String> = moved.place.iter().map(name).collect();
        LogSet::of(root, LogConfig::numbered(&names, moved.number).as_ref())
    }

    /// What is to be written of a move from here to these places.
    pub fn moved_to(&self, to: &LogSet) -> Moved {
        let place = |(location, place): (String, &Location)| MovedPlace {
            location,
            was: (self.named.iter().position(|old| old.is_same(place))).map(|was| was as u32 + 1),
        };
        let place = to.texts().into_iter().zip(&to.named).map(place).collect();
        Moved { number: to.number, place }
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
    pub fn places(&self) -> impl Iterator<Item = (&Location, Option<ThisPlace>)> {
        let of = self.at.len() as u32;
        let place = move |number: u32| (of > 1).then_some(ThisPlace { number, of });
        self.at.iter().zip((1..).map(place))
    }

    /// For messages.
    pub fn describe(&self) -> String {
        let names: Vec<String> = self.named.iter().map(Location::to_string).collect();
        names.join(", ")
    }

    /// Whether both are the same places, in the same order.
    pub fn is_same(&self, other: &LogSet) -> bool {
        let pairs = || self.named.iter().zip(&other.named);
        self.named.len() == other.named.len() && pairs().all(|(one, other)| one.is_same(other))
    }
}
