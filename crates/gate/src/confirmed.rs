//! A record of the outputs that are released for certain, beside the log. It only saves attempts:
//! without it, a restart releases everything again that its checkpoint lists.

use outlive_format::{Output, Outputs};
use outlive_types::{Epoch, Result};
use std::collections::BTreeMap;

/// A small file that a later process of the same rank can read.
pub trait Confirmations: Send + Sync {
    /// Returns its content; `None` if there is none.
    ///
    /// # Errors
    /// Those of its storage.
    fn load(&self) -> Result<Option<Vec<u8>>>;

    /// Replaces its content in one step.
    ///
    /// # Errors
    /// Those of its storage.
    fn store(&self, bytes: &[u8]) -> Result<()>;
}

/// Epoch and number of the last released output, by sink. A sink releases in the order of both: what
/// a program repeats after a rollback gets later epochs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Confirmed(BTreeMap<String, (Epoch, u64)>);

impl Confirmed {
    /// Reads what [`Confirmed::encode`] has written.
    ///
    /// # Errors
    /// `Damaged` for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Confirmed> {
        let list = Outputs::decode(bytes)?;
        let pair = |bytes: &[u8]| {
            let (epoch, number) = bytes.split_at_checked(8)?;
            let number = u64::from_le_bytes(number.try_into().ok()?);
            Some((u64::from_le_bytes(epoch.try_into().ok()?), number))
        };
        Ok(Confirmed(
            list.positions
                .into_iter()
                .filter_map(|(sink, bytes)| Some((sink, pair(&bytes)?)))
                .collect(),
        ))
    }

    /// Encodes it as a list of outputs that has positions only.
    ///
    /// # Errors
    /// As for [`Outputs::encode`].
    pub fn encode(&self) -> Result<Vec<u8>> {
        let pair = |(epoch, number): &(u64, u64)| [epoch.to_le_bytes(), number.to_le_bytes()];
        let each = self.0.iter().map(|(sink, last)| (sink.clone(), pair(last).concat()));
        Outputs { positions: each.collect(), ..Outputs::default() }.encode()
    }

    /// Notes an output that is released.
    pub fn add(&mut self, output: &Output) {
        let last = self.0.entry(output.sink.clone()).or_default();
        *last = (*last).max((output.epoch, output.number));
    }

    /// Returns whether an output is released for certain.
    pub fn has(&self, output: &Output) -> bool {
        self.0.get(&output.sink).is_some_and(|last| (output.epoch, output.number) <= *last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(epoch: Epoch, number: u64) -> Output {
        Output { number, epoch, sink: "a".into(), token: Vec::new() }
    }

    #[test]
    fn a_repeated_output_is_not_taken_for_the_released_one() {
        let mut confirmed = Confirmed::default();
        confirmed.add(&output(4, 7));
        let confirmed = Confirmed::decode(&confirmed.encode().unwrap()).unwrap();
        assert!(confirmed.has(&output(4, 7)) && confirmed.has(&output(2, 4)));
        // After a rollback to checkpoint 2 the program repeats outputs 5 to 7, in checkpoint 5.
        assert!(!confirmed.has(&output(5, 5)) && !confirmed.has(&output(4, 8)));
        let other = Output { sink: "b".into(), ..output(1, 1) };
        assert!(!confirmed.has(&other));
        assert!(Confirmed::decode(b"nonsense").is_err());
    }
}
