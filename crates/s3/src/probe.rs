//! Checks that a server honours the condition of a put.

use crate::bucket::Bucket;
use crate::medium::S3Medium;
use futures_util::future::join_all;
use outlive_types::{Error, Result, Rng, SystemRng};

/// Number of races, each for a name of its own. A server that checks first and writes later lets
/// two puts win nearly every time.
const RACES: usize = 8;
/// Concurrent puts in each race.
const RIVALS: usize = 6;
/// Length of the put objects: long enough that the puts overlap.
const BYTES: usize = 64 << 10;

impl S3Medium {
    /// Checks that a put is refused if the record exists, also when several puts come at once. Call
    /// it once, before the first record is put here. Puts some objects below `probe-…` and removes
    /// them.
    ///
    /// # Errors
    /// `Invalid` if the server does not honour the condition: then it cannot keep a log. Errors of
    /// the bucket.
    pub fn check_conditional_put(&self) -> Result<()> {
        let mut random = [0; 8];
        SystemRng.fill(&mut random);
        let folder = format!("probe-{:016x}", u64::from_le_bytes(random));
        self.bucket.wait(|bucket| async move {
            let found = probe(&bucket, &folder).await;
            let removed = tidy(&bucket, &folder).await;
            found
                .and(removed)
                .map_err(|error| error.context(format!("probing {}", bucket.describe())))
        })
    }
}

async fn probe(bucket: &Bucket, folder: &str) -> Result<()> {
    let name = format!("{folder}/one-after-the-other");
    let made = [put(bucket, &name, 1).await?, put(bucket, &name, 2).await?];
    let there = bucket.get(&name).await?;
    if made[1] || there.is_none_or(|there| there != bytes(1)) {
        return Err(not_honoured("a second object was put under the name of a first"));
    }
    for race in 0..RACES {
        let name = format!("{folder}/race-{race}");
        let puts = (0..RIVALS as u8).map(|rival| put(bucket, &name, rival));
        let made: Vec<bool> = join_all(puts).await.into_iter().collect::<Result<_>>()?;
        let winners: Vec<u8> =
            (0..).zip(&made).filter(|(_, made)| **made).map(|(n, _)| n).collect();
        let there = bucket.get(&name).await?;
        // No put wins if the winner's reply was lost and its put was repeated. One object exists
        // all the same.
        let fits = |rival: u8| there.as_ref().is_some_and(|there| *there == bytes(rival));
        match winners[..] {
            [] if (0..RIVALS as u8).any(fits) => {}
            [winner] if fits(winner) => {}
            [_] | [] => return Err(not_honoured("an object was replaced by one that was refused")),
            _ => {
                let many = format!("of {RIVALS} puts at once {} were accepted", winners.len());
                return Err(not_honoured(&many));
            }
        }
    }
    Ok(())
}

async fn put(bucket: &Bucket, name: &str, rival: u8) -> Result<bool> {
    bucket.put_new(name, bytes(rival)).await
}

fn bytes(rival: u8) -> Vec<u8> {
    vec![rival; BYTES]
}

async fn tidy(bucket: &Bucket, folder: &str) -> Result<()> {
    for name in bucket.names(folder).await? {
        bucket.delete(&name).await?;
    }
    Ok(())
}

fn not_honoured(seen: &str) -> Error {
    Error::invalid(format!(
        "this server does not honour `If-None-Match: *` ({seen}), so two programs could both believe \
         that they have committed a checkpoint: keep the log elsewhere, such as in a directory. Packs \
         can be kept here"
    ))
}
