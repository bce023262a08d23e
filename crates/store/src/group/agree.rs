//! One outcome for all ranks: each rank brings its own, rank 0 decides, and all get its decision.
//! So no rank continues while another has given up.

use outlive_types::{Coordinator, Error, ErrorKind, Result};

const DONE: u8 = 0;
const FAILED: u8 = 1;
/// Flags of an error.
const AWAY: u8 = 1;
const OF_SYSTEM: u8 = 2;
const FOR_PROGRAM: u8 = 4;
const FOR_GROUP: u8 = 8;

/// Brings the result of this rank. On rank 0, `decide` makes one outcome of all results, in the
/// order of the ranks; every rank gets it. Collective.
///
/// # Errors
/// The outcome, if it is an error; errors of the coordinator.
pub fn agree(
    coordinator: &dyn Coordinator,
    mine: Result<Vec<u8>>,
    decide: &mut dyn FnMut(Vec<Result<Vec<u8>>>) -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    // After an error it is unknown whether the others have come, and have got this.
    let brought = coordinator.gather(&encode(&mine)).map_err(Error::for_group)?;
    let outcome = match coordinator.rank() {
        0 => encode(&all_of(coordinator, &brought).and_then(decide)),
        _ => Vec::new(),
    };
    decode(&coordinator.broadcast(&outcome).map_err(Error::for_group)?)?
}

/// The call that a rank makes. Ranks that make different calls are out of step, and their common
/// result would be no state of the program.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Number of calls that this rank has made.
    pub number: u64,
    /// Name of the call in messages; empty for a rank that cannot make it.
    pub what: &'a str,
}

/// Agrees as [`agree`] does, if all ranks are in the same step.
///
/// # Errors
/// As for [`agree`]; `Invalid` if a rank makes another call.
pub fn agree_in_step(
    coordinator: &dyn Coordinator,
    step: Step<'_>,
    mine: Result<Vec<u8>>,
    decide: &mut dyn FnMut(Vec<Result<Vec<u8>>>) -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    let length = (step.what.len() as u64).to_le_bytes();
    let head = [&step.number.to_le_bytes()[..], &length, step.what.as_bytes()].concat();
    let brought = [head, encode(&mine)].concat();
    agree(coordinator, Ok(brought), &mut |all| {
        let all = unless_failed(all)?;
        let all: Vec<_> = all.iter().map(|bytes| parse(bytes)).collect::<Result<_>>()?;
        let (first, _) = all.first().ok_or_else(wrong)?;
        for (rank, (other, _)) in all.iter().enumerate() {
            let differs =
                !first.what.is_empty() && !other.what.is_empty() && first.what != other.what;
            if differs || first.number != other.number {
                let told = format!(
                    "the ranks are out of step: rank {rank} makes call {} of its job, {}, and rank 0 call \
                     {}, {}. All ranks must save, restore and close at the same places of the program, with \
                     the same options. Nothing was done; end the program",
                    other.number,
                    words(other.what),
                    first.number,
                    words(first.what)
                );
                return Err(Error::invalid(told).for_group());
            }
        }
        decide(all.into_iter().map(|(_, result)| result).collect())
    })
}

fn words(what: &str) -> &str {
    if what.is_empty() { "which it cannot make" } else { what }
}

fn parse(bytes: &[u8]) -> Result<(Step<'_>, Result<Vec<u8>>)> {
    let (number, rest) = bytes.split_first_chunk::<8>().ok_or_else(wrong)?;
    let (length, rest) = rest.split_first_chunk::<8>().ok_or_else(wrong)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| wrong())?;
    let (what, rest) = rest.split_at_checked(length).ok_or_else(wrong)?;
    let what = std::str::from_utf8(what).map_err(|_| wrong())?;
    Ok((Step { number: u64::from_le_bytes(*number), what }, decode(rest)?))
}

fn all_of(coordinator: &dyn Coordinator, brought: &[Vec<u8>]) -> Result<Vec<Result<Vec<u8>>>> {
    if brought.len() != coordinator.size() as usize {
        return Err(Error::bug(format!(
            "the coordinator has gathered from {} ranks of {}",
            brought.len(),
            coordinator.size()
        )));
    }
    brought.iter().map(|bytes| decode(bytes)).collect()
}

/// Returns the results of all ranks, or the error of the first one that has failed.
///
/// # Errors
/// That error, with the rank in it.
pub fn unless_failed(brought: Vec<Result<Vec<u8>>>) -> Result<Vec<Vec<u8>>> {
    let named = |(rank, result): (usize, Result<_>)| result.map_err(|error| of_rank(rank, error));
    brought.into_iter().enumerate().map(named).collect()
}

/// Returns the error of a rank, as others get it.
pub fn of_rank(rank: impl std::fmt::Display, error: Error) -> Error {
    error.context(format!("rank {rank}"))
}

fn encode(result: &Result<Vec<u8>>) -> Vec<u8> {
    match result {
        Ok(bytes) => [&[DONE], &bytes[..]].concat(),
        Err(error) => {
            let kind = error.kind().name().as_bytes();
            let head = [FAILED, flags(error), kind.len() as u8];
            [&head[..], kind, error.message().as_bytes()].concat()
        }
    }
}

fn flags(error: &Error) -> u8 {
    let said = [
        (AWAY, error.is_away()),
        (OF_SYSTEM, error.os().is_some()),
        (FOR_PROGRAM, error.must_be_told()),
        (FOR_GROUP, error.ends_group()),
    ];
    said.into_iter().map(|(flag, is_so)| if is_so { flag } else { 0 }).sum()
}

fn wrong() -> Error {
    Error::bug(
        "a rank has sent something that no rank of this build sends: start all ranks with the same build of \
         outlive, and let nothing else use their communicator",
    )
}

fn decode(bytes: &[u8]) -> Result<Result<Vec<u8>>> {
    match bytes {
        [DONE, rest @ ..] => Ok(Ok(rest.to_vec())),
        [FAILED, flags, length, rest @ ..] => {
            let (name, message) = rest.split_at_checked(usize::from(*length)).ok_or_else(wrong)?;
            let kind = ErrorKind::ALL.into_iter().find(|kind| kind.name().as_bytes() == name);
            let (kind, message) = (kind.ok_or_else(wrong)?, String::from_utf8_lossy(message));
            let has = |flag| flags & flag != 0;
            let mut error =
                if has(AWAY) { Error::away(message) } else { Error::new(kind, message) };
            if has(OF_SYSTEM) {
                error = error.of_other_system();
            }
            if has(FOR_PROGRAM) {
                error = error.for_program();
            }
            Ok(Err(if has(FOR_GROUP) { error.for_group() } else { error }))
        }
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_arrive_as_they_were() {
        let results = [
            Ok(vec![]),
            Ok(vec![1, 2]),
            Err(Error::full("no room")),
            Err(Error::bug("")),
            Err(Error::away("gone")),
            Err(Error::invalid("the device").of_other_system()),
            Err(Error::retry("for too long").for_program()),
            Err(Error::invalid("a save and a close").for_group()),
        ];
        for result in results {
            assert_eq!(decode(&encode(&result)).unwrap(), result);
        }
        for wrong in [&[][..], &[7], &[FAILED], &[FAILED, 0, 9, b'x'], &[FAILED, 0, 1, b'x']] {
            assert_eq!(decode(wrong).unwrap_err().kind(), ErrorKind::Bug);
        }
    }
}
