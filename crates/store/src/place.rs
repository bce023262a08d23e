//! Reads one thing by itself, where it is said to lie: a segment, a page of an image table.

use outlive_chunk::fingerprint;
use outlive_io::AlignedBuf;
use outlive_pool::{Pool, Span};
use outlive_types::{Error, Fingerprint, PAGE_BYTES, PackId, Result};

/// Reads what lies at a place (pack, offset, length) by itself, and verifies it; `what` names it in
/// messages.
///
/// # Errors
/// `Damaged` if it is missing or wrong.
pub fn read_at(
    pool: &Pool,
    (pack, offset, length): (PackId, u32, u32),
    fp: Fingerprint,
    what: &str,
) -> Result<Vec<u8>> {
    let bytes = read_span(pool, pack, offset, length)?;
    match verify(&bytes, fp, what, pack, offset) {
        Ok(()) => Ok(bytes),
        Err(error) => {
            // A part of it is damaged; the others may make up for it.
            let again = pool.read_checked(Span { pack, offset, length });
            let again = again.ok().filter(|again| fingerprint(again) == fp);
            again.map(|again| again.to_vec()).ok_or(error)
        }
    }
}

pub fn read_span(pool: &Pool, pack: PackId, offset: u32, length: u32) -> Result<Vec<u8>> {
    // A buffer of its own: whoever reads this may hold some of the staging memory, and all of it may
    // be with others like him.
    let buffer = AlignedBuf::zeroed(length as usize + 2 * PAGE_BYTES);
    Ok(pool.read(Span { pack, offset, length }, buffer).wait()?.to_vec())
}

pub fn verify(bytes: &[u8], fp: Fingerprint, what: &str, pack: PackId, offset: u32) -> Result<()> {
    match fingerprint(bytes) == fp {
        true => Ok(()),
        false => Err(Error::damaged(format!(
            "the {what} at {offset} of pack {pack} does not match its fingerprint"
        ))),
    }
}
