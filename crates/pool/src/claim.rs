//! The right to change the targets of a pool whose log has no locks that end with their holder.

use crate::location::Location;
use crate::targets::Claim;
use outlive_s3::S3Files;
use outlive_types::{Error, Result, Rng};

/// Is there as long as somebody changes the targets.
const CLAIM: &str = "log/.changing";

/// An object that is taken away when its holder ends in peace.
struct Claimed(S3Files);

impl Drop for Claimed {
    fn drop(&mut self) {
        // What stays is found, and told of, by whoever comes next.
        let _ = self.0.delete(CLAIM);
    }
}

/// Takes the right, if nobody has it; `None` for a place that has locks.
///
/// # Errors
/// `Retry` if somebody has it, or was killed while he had it.
pub(crate) fn claim(log: &Location, rng: &dyn Rng) -> Result<Option<Claim>> {
    let Location::Bucket(place) = log else { return Ok(None) };
    let files = place.open_files()?;
    let mut random = [0; 8];
    rng.fill(&mut random);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let holder = format!(
        "process {} on {} ({:016x})",
        std::process::id(),
        host.trim(),
        u64::from_le_bytes(random)
    );
    // The reply may have got lost: what is there tells.
    let made = files.write_new(CLAIM, holder.as_bytes());
    let there = files.read(CLAIM)?.map(|there| String::from_utf8_lossy(&there).into_owned());
    match there {
        Some(there) if there == holder => Ok(Some(Box::new(Claimed(files)))),
        Some(there) => Err(Error::retry(format!(
            "{there} changes the targets of this pool: try again when it has ended; if it was killed, \
             delete the object {} first",
            log.name(CLAIM)
        ))),
        None => made.and(Err(Error::retry(
            "another process has just changed the targets of this pool: try again",
        ))),
    }
}
