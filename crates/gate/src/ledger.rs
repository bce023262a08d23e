//! The list of outputs that are not released for certain.

use outlive_format::{Output, Outputs};
use outlive_types::{Epoch, Result};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Bytes of an output beside its token, about.
const OUTPUT_BYTES: u64 = 128;

/// The outputs of a program in their order, and the position of each sink.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    next: u64,
    /// Outputs below this number were in the list of a checkpoint, committed or not: they do not
    /// grow any more.
    listed_below: u64,
    outputs: BTreeMap<u64, Output>,
    by_sink: HashMap<String, SinkOutputs>,
    positions: BTreeMap<String, Vec<u8>>,
    token_bytes: u64,
}

/// The outputs of one sink.
#[derive(Clone, Debug, Default)]
struct SinkOutputs {
    /// Their numbers, the oldest first.
    numbers: VecDeque<u64>,
    token_bytes: u64,
}

impl Ledger {
    /// Returns the ledger with which a program continues from a checkpoint.
    pub fn resume(epoch: Epoch, list: Outputs) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.add_list(epoch, list);
        ledger
    }

    /// Adds the list of this rank's own image.
    fn add_list(&mut self, epoch: Epoch, list: Outputs) {
        for output in list.outputs {
            let epoch = if output.epoch == 0 { epoch } else { output.epoch };
            self.insert(Output { epoch, ..output });
        }
        self.next = list.next;
        self.listed_below = self.next;
        self.positions = list.positions;
    }

    /// Adds the outputs of a rank that there is no more, behind all others. Their keys change: this
    /// rank releases them after its own.
    pub fn add_foreign(&mut self, epoch: Epoch, list: Outputs) {
        for output in list.outputs {
            self.insert(Output { number: self.next, epoch, ..output });
            self.next += 1;
        }
        self.listed_below = self.next;
        for (sink, position) in list.positions {
            self.positions.entry(sink).or_insert(position);
        }
    }

    fn insert(&mut self, output: Output) {
        let bytes = output.token.len() as u64;
        self.token_bytes += bytes;
        let of_sink = self.by_sink.entry(output.sink.clone()).or_default();
        of_sink.token_bytes += bytes;
        of_sink.numbers.push_back(output.number);
        self.outputs.insert(output.number, output);
    }

    /// Adds an output, and returns its number.
    pub fn give(&mut self, sink: &str, token: Vec<u8>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.insert(Output { number, epoch: 0, sink: sink.to_owned(), token });
        number
    }

    /// Adds bytes to the newest output of a sink, unless a checkpoint has listed it. Otherwise adds
    /// an output of `head` and the bytes.
    pub fn append(&mut self, sink: &str, head: &[u8], bytes: &[u8]) {
        let of_sink = self.by_sink.get_mut(sink);
        let newest = of_sink.and_then(|it| Some((*it.numbers.back()?, &mut it.token_bytes)));
        let newest = newest.filter(|(number, _)| *number >= self.listed_below);
        let grown = newest.and_then(|(number, sink_bytes)| {
            self.outputs.get_mut(&number)?.token.extend_from_slice(bytes);
            *sink_bytes += bytes.len() as u64;
            Some(())
        });
        match grown {
            Some(()) => self.token_bytes += bytes.len() as u64,
            None => {
                self.give(sink, [head, bytes].concat());
            }
        }
    }

    /// Returns the position of a sink.
    pub fn position(&self, sink: &str) -> Option<&[u8]> {
        self.positions.get(sink).map(Vec::as_slice)
    }

    /// Returns the names of the sinks that have a position.
    pub fn positioned(&self) -> impl Iterator<Item = &str> {
        self.positions.keys().map(String::as_str)
    }

    /// Sets the position of a sink after all outputs so far.
    pub fn set_position(&mut self, sink: &str, position: Vec<u8>) {
        match self.positions.get_mut(sink) {
            Some(there) => *there = position,
            None => drop(self.positions.insert(sink.to_owned(), position)),
        }
    }

    /// Returns the encoded list for a checkpoint, which covers all outputs below the second value.
    ///
    /// # Errors
    /// As for [`Outputs::encode`].
    pub fn list(&mut self) -> Result<(Vec<u8>, u64)> {
        let list = Outputs {
            next: self.next,
            outputs: self.outputs.values().cloned().collect(),
            positions: self.positions.clone(),
        };
        let bytes = list.encode()?;
        self.listed_below = self.next;
        Ok((bytes, self.next))
    }

    /// Notes the epoch of the first checkpoint that lists the outputs below `below`. It is part of
    /// their key, so later checkpoints do not change it.
    pub fn stamp(&mut self, below: u64, epoch: Epoch) {
        for output in self.outputs.range_mut(..below).rev() {
            if output.1.epoch != 0 {
                break;
            }
            output.1.epoch = epoch;
        }
    }

    /// Returns the oldest output of each sink below `below`, in their order.
    pub fn heads(&self, below: u64) -> Vec<&Output> {
        let heads = self.by_sink.values().filter_map(|it| it.numbers.front());
        let mut heads: Vec<u64> = heads.copied().filter(|number| *number < below).collect();
        heads.sort_unstable();
        heads.iter().filter_map(|number| self.outputs.get(number)).collect()
    }

    /// Returns the outputs of a sink, the oldest first.
    pub fn of_sink(&self, sink: &str) -> impl Iterator<Item = &Output> {
        let numbers = self.by_sink.get(sink).into_iter().flat_map(|it| &it.numbers);
        numbers.filter_map(|number| self.outputs.get(number))
    }

    /// Replaces the token of an output.
    pub fn set_token(&mut self, number: u64, token: Vec<u8>) {
        let Some(output) = self.outputs.get_mut(&number) else { return };
        let (before, after) = (output.token.len() as u64, token.len() as u64);
        self.token_bytes = self.token_bytes - before + after;
        if let Some(of_sink) = self.by_sink.get_mut(&output.sink) {
            of_sink.token_bytes = of_sink.token_bytes - before + after;
        }
        output.token = token;
    }

    /// Removes an output that is released.
    pub fn remove(&mut self, number: u64) -> Option<Output> {
        let output = self.outputs.remove(&number)?;
        let bytes = output.token.len() as u64;
        self.token_bytes -= bytes;
        if let Some(of_sink) = self.by_sink.get_mut(&output.sink) {
            of_sink.token_bytes -= bytes;
            // Mostly the oldest one.
            match of_sink.numbers.front() == Some(&number) {
                true => drop(of_sink.numbers.pop_front()),
                false => of_sink.numbers.retain(|other| *other != number),
            }
            if of_sink.numbers.is_empty() {
                self.by_sink.remove(&output.sink);
            }
        }
        Some(output)
    }

    /// Returns the outputs, the oldest first.
    pub fn outputs(&self) -> impl Iterator<Item = &Output> {
        self.outputs.values()
    }

    /// Returns the bytes that the outputs of a sink take in a checkpoint, about.
    pub fn bytes_of(&self, sink: &str) -> u64 {
        self.by_sink
            .get(sink)
            .map_or(0, |it| it.token_bytes + it.numbers.len() as u64 * OUTPUT_BYTES)
    }

    /// Returns the number of outputs below `below`.
    pub fn count_below(&self, below: u64) -> usize {
        self.outputs.range(..below).count()
    }

    /// Returns the number below which a save has listed all outputs.
    pub fn listed_below(&self) -> u64 {
        self.listed_below
    }

    /// Returns the number of the next output.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the bytes that the outputs take in a checkpoint, about.
    pub fn bytes(&self) -> u64 {
        self.token_bytes + self.outputs.len() as u64 * OUTPUT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(ledger: &Ledger) -> Vec<(u64, Epoch)> {
        ledger.outputs().map(|output| (output.number, output.epoch)).collect()
    }

    fn token(ledger: &Ledger, number: u64) -> &[u8] {
        &ledger.outputs[&number].token
    }

    #[test]
    fn an_output_grows_until_a_checkpoint_lists_it() {
        let mut ledger = Ledger::default();
        ledger.append("a", b"0:", b"one");
        ledger.append("b", b"0:", b"x");
        ledger.append("a", b"3:", b"two");
        assert_eq!(token(&ledger, 0), b"0:onetwo");
        let (_, below) = ledger.list().unwrap();
        ledger.append("a", b"6:", b"three");
        assert_eq!((below, numbers(&ledger)), (2, vec![(0, 0), (1, 0), (2, 0)]));
        assert_eq!(token(&ledger, 2), b"6:three");
        assert_eq!(ledger.bytes(), 8 + 3 + 7 + 3 * OUTPUT_BYTES);
    }

    #[test]
    fn the_first_checkpoint_that_lists_an_output_gives_it_the_epoch() {
        let mut ledger = Ledger::default();
        ledger.give("a", vec![]);
        let (_, below) = ledger.list().unwrap();
        ledger.stamp(below, 4);
        ledger.give("a", vec![]);
        let (bytes, below) = ledger.list().unwrap();
        ledger.give("a", vec![]);
        ledger.stamp(below, 5);
        assert_eq!(numbers(&ledger), [(0, 4), (1, 5), (2, 0)]);
        let resumed = Ledger::resume(5, Outputs::decode(&bytes).unwrap());
        assert_eq!((numbers(&resumed), resumed.next()), (vec![(0, 4), (1, 5)], 2));
        // A later output does not grow into one that was listed.
        let mut resumed = resumed;
        resumed.append("a", b"h", b"b");
        assert_eq!(token(&resumed, 2), b"hb");
    }

    #[test]
    fn heads_are_the_oldest_of_each_sink_in_order() {
        let mut ledger = Ledger::default();
        for sink in ["b", "a", "b", "c"] {
            ledger.give(sink, vec![0; 5]);
        }
        let heads = |ledger: &Ledger, below| -> Vec<u64> {
            ledger.heads(below).iter().map(|output| output.number).collect()
        };
        assert_eq!(heads(&ledger, 3), [0, 1]);
        ledger.remove(0);
        assert_eq!((heads(&ledger, 3), heads(&ledger, 9)), (vec![1, 2], vec![1, 2, 3]));
        (1..4).for_each(|number| drop(ledger.remove(number)));
        assert_eq!((ledger.bytes(), ledger.heads(9).len(), ledger.next()), (0, 0, 4));
    }

    #[test]
    fn outputs_of_a_rank_that_is_gone_follow_all_others() {
        let mut ledgers = [Ledger::default(), Ledger::default()];
        ledgers[0].give("a", vec![1]);
        ledgers[1].give("a", vec![2]);
        ledgers[1].give("b", vec![3]);
        ledgers[1].set_position("b", vec![9]);
        let [own, gone] = ledgers.map(|mut it| Outputs::decode(&it.list().unwrap().0).unwrap());
        let mut joined = Ledger::resume(9, own);
        joined.add_foreign(9, gone);
        assert_eq!(numbers(&joined), [(0, 9), (1, 9), (2, 9)]);
        let tokens: Vec<&[u8]> = joined.of_sink("a").map(|output| &output.token[..]).collect();
        assert_eq!((tokens, joined.position("b")), (vec![&[1][..], &[2]], Some(&[9][..])));
        assert_eq!(joined.next(), 3);
        joined.list().unwrap();
    }

    #[test]
    fn the_bytes_of_each_sink_add_up() {
        let mut ledger = Ledger::default();
        ledger.append("a", b"0:", b"one");
        ledger.append("a", b"", b"more");
        ledger.give("b", vec![0; 7]);
        ledger.set_token(0, vec![0; 4]);
        let sum = |ledger: &Ledger| ledger.bytes_of("a") + ledger.bytes_of("b");
        assert_eq!((ledger.bytes_of("a"), sum(&ledger)), (4 + OUTPUT_BYTES, ledger.bytes()));
        ledger.remove(1);
        assert_eq!((ledger.bytes_of("b"), sum(&ledger)), (0, ledger.bytes()));
    }
}
