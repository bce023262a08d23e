//! A record of the outputs that are released for certain, beside the log. It only saves attempts:
//! without it, a restart releases everything again that its checkpoint lists.

use outlive_format::{Output, Outputs};
use outlive_types::{Epoch, Rank, Result};
use std::collections::BTreeMap;

/// A small file that a later process of the same rank can read.
pub trait Confirmations: Send + Sync {
    /// Returns the content of a rank's; `None` if there is none.
    ///
    /// # Errors
    /// Those of its storage.
    fn load(&self, rank: Rank) -> Result<Option<Vec<u8>>>;

    /// Replaces its content in one step.
    ///
    /// # Errors
    /// Those of its storage.
    fn store(&self, bytes: &[u8]) -> Result<()>;
}

/// The last released output of a sink. A sink releases in the order of epoch and number: the outputs
/// that a program repeats after a rollback have later epochs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LastRelease {
    /// Epoch and number of the output.
    pub last: (Epoch, u64),
    /// Of a file: its length when the job first opened it, and after the last release.
    pub file: Option<(u64, u64)>,
}

/// The last released output, by sink.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Confirmed(BTreeMap<String, LastRelease>);

impl Confirmed {
    /// Reads what [`Confirmed::encode`] has written.
    ///
    /// # Errors
    /// `Damaged` for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Confirmed> {
        let read = |bytes: &[u8]| {
            let words = bytes.chunks_exact(8).map(|word| word.try_into().map(u64::from_le_bytes));
            match words.collect::<std::result::Result<Vec<u64>, _>>().ok()?[..] {
                [epoch, number] => Some(LastRelease { last: (epoch, number), file: None }),
                [epoch, number, begin, end] => {
                    Some(LastRelease { last: (epoch, number), file: Some((begin, end)) })
                }
                _ => None,
            }
        };
        let each = Outputs::decode(bytes)?.positions.into_iter();
        Ok(Confirmed(each.filter_map(|(sink, bytes)| Some((sink, read(&bytes)?))).collect()))
    }

    /// Encodes it as a list of outputs that has positions only.
    ///
    /// # Errors
    /// As for [`Outputs::encode`].
    pub fn encode(&self) -> Result<Vec<u8>> {
        let words = |it: &LastRelease| {
            let (epoch, number) = it.last;
            let mut words = vec![epoch, number];
            words.extend(it.file.into_iter().flat_map(|(begin, end)| [begin, end]));
            words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()
        };
        let positions = self.0.iter().map(|(sink, last)| (sink.clone(), words(last))).collect();
        Outputs { positions, ..Outputs::default() }.encode()
    }

    /// Notes an output that is released.
    pub fn add(&mut self, output: &Output) {
        let entry = self.0.entry(output.sink.clone()).or_default();
        entry.last = entry.last.max((output.epoch, output.number));
    }

    /// Notes the length of a file after a release; `begin` counts at the first note.
    pub fn note_file(&mut self, sink: &str, begin: u64, end: u64) {
        let entry = self.0.entry(sink.to_owned()).or_default();
        let (first, last) = entry.file.unwrap_or((begin, end));
        // A second release of an older output does not shorten the file.
        entry.file = Some((first, last.max(end)));
    }

    /// Notes the length of a file that was cut.
    pub fn note_cut(&mut self, sink: &str, end: u64) {
        let entry = self.0.entry(sink.to_owned()).or_default();
        entry.file = Some((entry.file.map_or(end, |(first, _)| first.min(end)), end));
    }

    /// Forgets the lengths of a file that begins again.
    pub fn forget_file(&mut self, sink: &str) {
        if let Some(entry) = self.0.get_mut(sink) {
            entry.file = None;
        }
    }

    /// Returns the length of a file when the job first opened it, and after the last release.
    pub fn file(&self, sink: &str) -> Option<(u64, u64)> {
        self.0.get(sink)?.file
    }

    /// Returns the names of the sinks to which something was released.
    pub fn sinks(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Adds the releases of another record, which is newer where both know the same.
    pub fn merge(&mut self, other: Confirmed) {
        for (sink, theirs) in other.0 {
            let mine = self.0.entry(sink).or_default();
            if theirs.last >= mine.last {
                *mine = theirs;
            }
        }
    }

    /// Returns whether an output is released for certain.
    pub fn has(&self, output: &Output) -> bool {
        self.0.get(&output.sink).is_some_and(|it| (output.epoch, output.number) <= it.last)
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
        confirmed.note_file("a", 10, 20);
        confirmed.note_file("a", 20, 30);
        let confirmed = Confirmed::decode(&confirmed.encode().unwrap()).unwrap();
        assert!(confirmed.has(&output(4, 7)) && confirmed.has(&output(2, 4)));
        // After a rollback to checkpoint 2 the program repeats outputs 5 to 7, in checkpoint 5.
        assert!(!confirmed.has(&output(5, 5)) && !confirmed.has(&output(4, 8)));
        let other = Output { sink: "b".into(), ..output(1, 1) };
        assert!(!confirmed.has(&other));
        assert_eq!((confirmed.file("a"), confirmed.file("b")), (Some((10, 30)), None));
        assert!(Confirmed::decode(b"nonsense").is_err());
    }
}
