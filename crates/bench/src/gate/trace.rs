//! Traces of input and output: what a program wrote, synced, read, sent and received, and when.
//! docs/gate-simulator.md describes the format.

use outlive_types::{Error, Result};
use std::collections::HashMap;

const FIRST_LINE: &str = "outlive-io-trace 1";
/// Most flows and files of a trace, so that a wrong number cannot take all memory.
const NUMBER_MAX: u32 = 1 << 20;
/// Latest time and largest offset of a trace, so that sums never overflow: 11 days, 4 EiB.
const TIME_US_MAX: u64 = 1 << 40;
const OFFSET_MAX: u64 = 1 << 62;
/// Most operations of a trace: with the longest delay, the sum of all still is a number of
/// nanoseconds.
const OPERATIONS_MAX: usize = 1 << 22;
/// Most bytes of one operation.
const BYTES_MAX: u64 = 1 << 32;

/// Part of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    pub file: u32,
    pub offset: u64,
    pub bytes: u64,
}

/// Kind of an operation, with what it touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    Read(Range),
    /// Into the page cache.
    Write(Range),
    /// To the disk: the file was opened with `O_DSYNC` or `O_SYNC`.
    Durable(Range),
    /// All earlier writes of the file, to the disk.
    Sync {
        file: u32,
    },
    Send {
        bytes: u64,
    },
    Receive {
        bytes: u64,
    },
    /// For a lock, until another flow wakes this one: the operation with this index, if it is known.
    Wait {
        cause: Option<usize>,
    },
    Wake,
}

/// One operation of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Counted from the start of the recording.
    pub start_ns: u64,
    pub took_ns: u64,
    /// Sequence of operations that it belongs to: each starts after the one before has ended.
    pub flow: u32,
    pub what: What,
}

impl Operation {
    /// Returns when it ended.
    pub fn end_ns(&self) -> u64 {
        self.start_ns + self.took_ns
    }
}

/// Operations of a program, in the order of their starts.
#[derive(Clone, PartialEq, Debug)]
pub struct Trace {
    /// Short name, such as that of the file.
    pub name: String,
    /// Description of the program.
    pub program: String,
    pub flows: u32,
    pub operations: Vec<Operation>,
}

impl Trace {
    /// Parses a trace.
    ///
    /// # Errors
    /// `Invalid` with the line that is wrong.
    pub fn parse(name: &str, text: &str) -> Result<Trace> {
        let mut lines = text.lines().enumerate();
        if lines.next().map(|(_, line)| line) != Some(FIRST_LINE) {
            return Err(Error::invalid(format!(
                "not a trace of input and output: its first line is not {FIRST_LINE:?}; \
                 bench/gate/record.py records traces"
            )));
        }
        let mut trace =
            Trace { name: name.to_owned(), program: String::new(), flows: 0, operations: vec![] };
        // Index and start of each wake, by its lock.
        let mut wakes: HashMap<u32, Vec<(usize, u64)>> = HashMap::new();
        let mut waits = Vec::new();
        for (at, line) in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [] => {}
                ["program", ..] => {
                    trace.program = line.trim_start()["program".len()..].trim().to_owned();
                }
                ["file", ..] => {}
                _ => {
                    let (operation, key) = operation(&words).map_err(|wrong| {
                        Error::invalid(format!("line {}: {line:?}: {wrong}", at + 1))
                    })?;
                    if trace.operations.last().is_some_and(|o| o.start_ns > operation.start_ns) {
                        return Err(Error::invalid(format!(
                            "line {}: it starts before the line above it; sort the trace by time",
                            at + 1
                        )));
                    }
                    let index = trace.operations.len();
                    if index == OPERATIONS_MAX {
                        return Err(Error::invalid(format!(
                            "line {}: a trace has {OPERATIONS_MAX} operations at most; cut it",
                            at + 1
                        )));
                    }
                    match operation.what {
                        What::Wake => {
                            wakes.entry(key).or_default().push((index, operation.start_ns));
                        }
                        What::Wait { .. } => waits.push((index, key)),
                        _ => {}
                    }
                    trace.flows = trace.flows.max(operation.flow + 1);
                    trace.operations.push(operation);
                }
            }
        }
        for (index, key) in waits {
            let wait = trace.operations[index];
            let of_lock = wakes.get(&key).map_or(&[][..], Vec::as_slice);
            let before = of_lock.partition_point(|(_, start_ns)| *start_ns <= wait.end_ns());
            // An earlier wake has not ended this wait: its lock was free.
            let cause = of_lock[..before].last().filter(|(cause, start_ns)| {
                *start_ns >= wait.start_ns && trace.operations[*cause].flow != wait.flow
            });
            trace.operations[index].what = What::Wait { cause: cause.map(|(cause, _)| *cause) };
        }
        if trace.operations.is_empty() {
            return Err(Error::invalid("the trace has no operation; record a longer run"));
        }
        Ok(trace)
    }

    /// Returns when the last operation ended.
    pub fn length_ns(&self) -> u64 {
        self.operations.iter().map(Operation::end_ns).max().unwrap_or(0)
    }

    /// Returns all writes: start and range.
    pub fn writes(&self) -> impl Iterator<Item = (u64, Range)> + '_ {
        self.operations.iter().filter_map(|operation| match operation.what {
            What::Write(range) | What::Durable(range) => Some((operation.start_ns, range)),
            _ => None,
        })
    }

    /// Returns the operations that wait for the disk: syncs, and writes that are durable by
    /// themselves.
    pub fn durable(&self) -> impl Iterator<Item = &Operation> + '_ {
        self.operations.iter().filter(|o| matches!(o.what, What::Sync { .. } | What::Durable(_)))
    }

    /// Returns whether the program sends messages.
    pub fn sends(&self) -> bool {
        self.operations.iter().any(|o| matches!(o.what, What::Send { .. }))
    }

    /// Returns the time that one disk spends on each operation of [`Trace::durable`]: the time in
    /// which any of them was under way, divided by their number. So those that waited for others
    /// count once.
    pub fn service_ns(&self) -> u64 {
        let (mut busy_ns, mut until_ns, mut count) = (0, 0, 0);
        for operation in self.durable() {
            busy_ns += operation.end_ns().saturating_sub(until_ns.max(operation.start_ns));
            until_ns = until_ns.max(operation.end_ns());
            count += 1;
        }
        busy_ns / count.max(1)
    }
}

/// Parses one operation; returns it with the number of its file, socket or lock.
fn operation(words: &[&str]) -> std::result::Result<(Operation, u32), String> {
    let [start, flow, what, key, offset, bytes, took] = words else {
        return Err(format!(
            "{} fields instead of 7: start, flow, operation, file, offset, bytes, time",
            words.len()
        ));
    };
    let flow = number(flow, "flow", u64::from(NUMBER_MAX))? as u32;
    let key = number(key, "file", u64::from(NUMBER_MAX))? as u32;
    let range = || -> std::result::Result<Range, String> {
        Ok(Range {
            file: key,
            offset: number(offset, "offset", OFFSET_MAX)?,
            bytes: number(bytes, "bytes", BYTES_MAX)?,
        })
    };
    let moved = || number(bytes, "bytes", BYTES_MAX);
    let what = match *what {
        "read" => What::Read(range()?),
        "write" => What::Write(range()?),
        "durable" => What::Durable(range()?),
        "sync" => What::Sync { file: key },
        "send" => What::Send { bytes: moved()? },
        "recv" => What::Receive { bytes: moved()? },
        "wait" => What::Wait { cause: None },
        "wake" => What::Wake,
        other => {
            return Err(format!(
                "no operation is named {other:?}: use read, write, durable, sync, send, recv, \
                 wait or wake"
            ));
        }
    };
    let start_ns = number(start, "start", TIME_US_MAX)? * 1000;
    let took_ns = number(took, "time", TIME_US_MAX)? * 1000;
    Ok((Operation { start_ns, took_ns, flow, what }, key))
}

fn number(text: &str, what: &str, most: u64) -> std::result::Result<u64, String> {
    match text.parse::<u64>() {
        Ok(number) if number <= most => Ok(number),
        _ => Err(format!("{what} {text:?} is not a whole number up to {most}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "outlive-io-trace 1
program two flows
file 0 log
0 0 write 0 0 100 5
10 1 wait 3 - - 45
20 0 sync 0 - - 30
52 0 wake 3 - - 1
60 1 send 7 - 20 2
70 1 recv 7 - 8 0
";

    #[test]
    fn a_trace_has_its_operations_and_causes() {
        let trace = Trace::parse("small", SMALL).unwrap();
        assert_eq!((trace.flows, trace.program.as_str()), (2, "two flows"));
        assert_eq!(trace.operations[1].what, What::Wait { cause: Some(3) });
        assert_eq!(trace.operations[2].end_ns(), 50_000);
        assert_eq!(trace.length_ns(), 70_000);
        assert_eq!(trace.writes().count(), 1);
        assert_eq!(trace.durable().count(), 1);
    }

    #[test]
    fn a_wait_depends_on_no_earlier_or_own_wake() {
        for wrong in ["52 0 wake 4 - - 1", "57 0 wake 3 - - 1", "52 1 wake 3 - - 1"] {
            let text = SMALL.replace("52 0 wake 3 - - 1", wrong);
            let trace = Trace::parse("small", &text).unwrap();
            assert_eq!(trace.operations[1].what, What::Wait { cause: None }, "{wrong}");
        }
        let early = SMALL.replace("10 1 wait 3 - - 45", "1 0 wake 3 - - 0\n10 1 wait 3 - - 45");
        let early = early.replace("52 0 wake 3 - - 1\n", "");
        let trace = Trace::parse("small", &early).unwrap();
        assert_eq!(trace.operations[2].what, What::Wait { cause: None });
    }

    #[test]
    fn syncs_that_wait_for_each_other_count_once() {
        let text = "outlive-io-trace 1\n0 0 sync 0 - - 100\n50 1 sync 0 - - 100\n\
            60 2 durable 0 0 512 10\n1000 0 sync 0 - - 50\n1100 0 send 0 - 1 9\n";
        let trace = Trace::parse("x", text).unwrap();
        assert_eq!(trace.service_ns(), 50_000);
        assert!(
            trace.sends() && !Trace::parse("x", &text.replace("send", "recv")).unwrap().sends()
        );
    }

    #[test]
    fn errors_name_the_line_and_the_remedy() {
        for (text, says) in [
            ("outlive-trace 1\n", "bench/gate/record.py"),
            ("outlive-io-trace 1\n", "record a longer run"),
            ("outlive-io-trace 1\n1 0 write 0 0 5\n", "line 2: \"1 0 write 0 0 5\": 6 fields"),
            ("outlive-io-trace 1\n1 0 chew 0 0 5 1\n", "no operation is named \"chew\""),
            ("outlive-io-trace 1\n1 0 write 0 -4 5 1\n", "offset \"-4\""),
            ("outlive-io-trace 1\n1 0 write 0 0 99999999999 1\n", "bytes \"99999999999\""),
            ("outlive-io-trace 1\n1 4294967295 sync 0 - - 1\n", "flow \"4294967295\""),
            ("outlive-io-trace 1\n9 0 sync 0 - - 1\n8 0 sync 0 - - 1\n", "line 3: it starts"),
        ] {
            let error = Trace::parse("x", text).unwrap_err().to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}
