//! A job's records, newest first.

use outlive_format::{Body, Manifest, Record};
use outlive_pool::Pool;
use outlive_types::{Error, JobName, Result};

/// A record of the log, as far as it can be read.
#[derive(Debug)]
pub struct Entry {
    /// Its number.
    pub number: u64,
    /// The record, or why it cannot be read.
    pub record: Result<Record>,
    /// Length of its bytes.
    pub bytes: u64,
}

impl Entry {
    /// The manifest, if this is one that can be read.
    pub fn manifest(&self) -> Option<&Manifest> {
        match &self.record {
            Ok(Record { body: Body::Manifest(manifest), .. }) => Some(manifest),
            _ => None,
        }
    }
}

/// Reads the job's records one by one, newest first.
///
/// # Errors
/// What the log reports when it is listed; damaged records are [`Entry`]s.
pub fn history<'a>(pool: &'a Pool, job: &'a JobName) -> Result<impl Iterator<Item = Entry> + 'a> {
    let numbers = pool.log().numbers(job)?;
    Ok(numbers.into_iter().rev().map(move |number| {
        let read = pool.log().read(job, number);
        let bytes = read.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let record = read.and_then(|bytes| decode(&bytes, number));
        Entry { number, record, bytes }
    }))
}

fn decode(bytes: &[u8], number: u64) -> Result<Record> {
    let record =
        Record::decode(bytes).map_err(|error| error.context(format!("log record {number}")))?;
    if record.number != number {
        return Err(Error::damaged(format!(
            "log record {number} says that it is number {}",
            record.number
        )));
    }
    Ok(record)
}
