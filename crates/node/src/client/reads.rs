//! Reads ranges of shards from a node: few requests with many ranges each.

use crate::client::connection::{Connection, Lane, Node, Repeat, may_pass};
use crate::client::lanes::Direction;
use crate::protocol::{RANGES_MAX, Range, ReadRequest, Shard, UNIT_BYTES};
use crate::status::kind_of;
use outlive_backend::writes::check_range;
use outlive_backend::{Fault, ReadRange, ReadTicket, ShardName, runtime};
use outlive_io::{AlignedBuf, Promise, Ticket};
use outlive_types::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// No further attempt of one read begins after this time without a byte.
const ATTEMPTS_FOR: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(50);

/// A range that is being read.
struct Wanted {
    range: ReadRange,
    promise: Promise<std::result::Result<AlignedBuf, Fault<AlignedBuf>>>,
}

impl Wanted {
    fn end(self, outcome: Result<()>) {
        let buffer = self.range.buffer;
        self.promise.fulfil(match outcome {
            Ok(()) => Ok(buffer),
            Err(error) => Err(Fault { error, buffer }),
        });
    }
}

/// Reads ranges; returns one ticket each.
pub(crate) fn read_all(
    node: &Arc<Node>,
    shard: ShardName,
    ranges: Vec<ReadRange>,
) -> Vec<ReadTicket> {
    let mut tickets = Vec::with_capacity(ranges.len());
    let (mut batch, mut batches, mut bytes) = (Vec::new(), Vec::new(), 0);
    for range in ranges {
        if let Err(error) = check_range(shard, &range) {
            tickets.push(Ticket::done(Err(Fault { error, buffer: range.buffer })));
            continue;
        }
        let (promise, ticket) = Ticket::pair();
        tickets.push(ticket);
        if !batch.is_empty()
            && (bytes + range.buffer.len() > UNIT_BYTES || batch.len() == RANGES_MAX)
        {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes += range.buffer.len();
        batch.push(Wanted { range, promise });
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    let started = node.connection().and_then(|connection| Ok((connection, runtime::handle()?)));
    for batch in batches {
        match &started {
            Ok((connection, handle)) => {
                let (node, connection) = (node.clone(), connection.clone());
                handle.spawn(async move { read_batch(&node, &connection, shard, batch).await });
            }
            Err(error) => batch.into_iter().for_each(|wanted| wanted.end(Err(error.clone()))),
        }
    }
    tickets
}

/// Reads ranges, by one request after another.
async fn read_batch(
    node: &Node,
    connection: &Arc<Connection>,
    shard: ShardName,
    mut batch: Vec<Wanted>,
) {
    let is_urgent = batch.iter().any(|it| it.range.mode.is_urgent);
    // A program stands still for an urgent read, so it waits for no others.
    let turn = if is_urgent { None } else { Some(connection.lanes.turn(Direction::Read).await) };
    let (mut lane, bytes_max) = match &turn {
        Some(turn) => (Lane::Bulk(turn.connection), connection.lanes.bytes_max),
        None => (Lane::Small, UNIT_BYTES),
    };
    let mut filled = vec![0; batch.len()];
    let mut failed_since = None;
    let left = |batch: &[Wanted], filled: &[usize]| {
        let all: usize = batch.iter().map(|it| it.range.buffer.len()).sum();
        all - filled.iter().sum::<usize>()
    };
    loop {
        let before = left(&batch, &filled);
        let request = (shard, lane, bytes_max);
        let outcome = read_once(node, connection, request, &mut batch, &mut filled).await;
        let (error, may_pass) = match outcome {
            Ok(()) if batch.is_empty() => return,
            // There was more than fits into a request.
            Ok(()) => {
                failed_since = None;
                continue;
            }
            Err(failed) => failed,
        };
        if left(&batch, &filled) < before {
            failed_since = None;
        }
        let since = *failed_since.get_or_insert_with(Instant::now);
        if !may_pass || since.elapsed() > ATTEMPTS_FOR {
            return batch.into_iter().for_each(|wanted| wanted.end(Err(error.clone())));
        }
        lane = connection.after_failure(lane);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Sends one request for bytes that are missing, `bytes_max` at most, and ends the ranges that it
/// completes. An error comes with whether another attempt may succeed.
async fn read_once(
    node: &Node,
    connection: &Arc<Connection>,
    (shard, lane, bytes_max): (ShardName, Lane, usize),
    batch: &mut Vec<Wanted>,
    filled: &mut Vec<usize>,
) -> std::result::Result<(), (Error, bool)> {
    let doing = format!("reading shard {shard}");
    let mut room = bytes_max;
    let mut ranges = Vec::with_capacity(batch.len());
    for (wanted, filled) in batch.iter().zip(&*filled) {
        if room == 0 {
            break;
        }
        let length = (wanted.range.buffer.len() - filled).min(room);
        room -= length;
        ranges.push(Range {
            offset: wanted.range.offset + *filled as u64,
            length: length as u64,
            may_be_cached: wanted.range.mode.may_be_cached,
            is_urgent: wanted.range.mode.is_urgent,
        });
    }
    let asked: Vec<usize> = ranges
        .iter()
        .zip(&*filled)
        .map(|(range, filled)| filled + usize::try_from(range.length).unwrap_or(usize::MAX))
        .collect();
    let request = ReadRequest {
        session: connection.session.clone(),
        prefix: node.prefix(),
        shard: Some(Shard::from(shard)),
        ranges,
    };
    let lanes = (lane, Repeat::Yes);
    let sent = node.call(connection, &doing, lanes, |mut client| {
        let request = request.clone();
        async move { client.read(request).await }
    });
    // It has been repeated already.
    let mut parts = sent.await.map_err(|error| (error, false))?;
    let mut faults: Vec<Option<Error>> = vec![None; batch.len()];
    let outcome = loop {
        let part = match parts.message().await {
            Ok(Some(part)) => part,
            Ok(None) => break Ok(()),
            Err(status) => break Err((node.error(&doing, &status), may_pass(&status))),
        };
        let at = part.range as usize;
        let fits = filled
            .get(at)
            .zip(asked.get(at))
            .is_some_and(|(filled, asked)| part.bytes.len() <= asked - filled);
        if !fits {
            let error =
                Error::bug(format!("{} sent bytes that were not asked for", node.describe()));
            break Err((error, false));
        }
        if let Some(fault) = part.fault {
            let kind = kind_of(&fault.kind).unwrap_or(ErrorKind::Bug);
            faults[at] = Some(Error::new(kind, fault.message).context(node.describe()));
            continue;
        }
        let buffer = &mut batch[at].range.buffer;
        buffer[filled[at]..][..part.bytes.len()].copy_from_slice(&part.bytes);
        filled[at] += part.bytes.len();
    };
    let is_short = faults
        .iter()
        .zip(&*filled)
        .zip(&asked)
        .any(|((fault, filled), asked)| fault.is_none() && filled < asked);
    let mut rest = Vec::new();
    let mut rest_filled = Vec::new();
    for ((wanted, fault), filled) in batch.drain(..).zip(faults).zip(filled.drain(..)) {
        match fault {
            Some(error) => wanted.end(Err(error)),
            None if filled == wanted.range.buffer.len() => wanted.end(Ok(())),
            None => {
                rest.push(wanted);
                rest_filled.push(filled);
            }
        }
    }
    *batch = rest;
    *filled = rest_filled;
    match outcome {
        Ok(()) if is_short => {
            Err((Error::retry(format!("{} ended its reply early", node.describe())), true))
        }
        outcome => outcome,
    }
}
