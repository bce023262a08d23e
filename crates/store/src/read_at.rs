//! Reads one object by itself, at its extent: a segment, or a page of an image table.

use outlive_chunk::fingerprint;
use outlive_pool::{Pool, Span};
use outlive_types::{Fingerprint, PackId, Result};

/// Reads the object at an extent (pack, offset, length) by itself, and verifies it; `what` names it
/// in messages.
///
/// # Errors
/// `Damaged` if it is missing or wrong in every copy.
pub fn read_at(
    pool: &Pool,
    (pack, offset, length): (PackId, u32, u32),
    fp: Fingerprint,
    what: &str,
) -> Result<Vec<u8>> {
    let read = pool.read_verified(Span { pack, offset, length }, &|bytes| fingerprint(bytes) == fp);
    read.map_err(|error| error.context(format!("the {what} at {offset} of pack {pack}")))
}
