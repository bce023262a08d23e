//! States to save: incompressible bytes that can be generated, changed, and verified.

use outlive_capture::OwnedSource;
use outlive_capture::fill::{MutRegion, Scatter};
use outlive_chunk::{default_threads, parallel};
use outlive_io::AlignedBuf;
use outlive_pool::{Environment, FormatConfig, Pool, PoolConfig, Tuning};
use outlive_store::{Job, JobOptions, RestoreSink, SaveStats, Select};
use outlive_types::{Error, PAGE_BYTES, Result, Rng, SeededRng, SystemRng};
use std::path::Path;

/// The job that all benches save.
pub const JOB: &str = "bench";
const PIECE_BYTES: usize = 1 << 20;

/// Fills `bytes` with the sequence of `seed`, on all cores.
pub fn fill(bytes: &mut [u8], seed: u64) {
    let pieces: Vec<(usize, &mut [u8])> = bytes.chunks_mut(PIECE_BYTES).enumerate().collect();
    parallel(pieces, default_threads(), |(number, piece)| fill_piece(piece, seed, number));
}

/// Returns true if `bytes` equal [`fill`]'s result for `seed`.
pub fn is_filled(bytes: &[u8], seed: u64) -> bool {
    let pieces: Vec<(usize, &[u8])> = bytes.chunks(PIECE_BYTES).enumerate().collect();
    let same = parallel(pieces, default_threads(), |(number, piece)| {
        let mut wanted = vec![0; piece.len()];
        fill_piece(&mut wanted, seed, number);
        wanted == piece
    });
    same.into_iter().all(|same| same)
}

/// Xorshift (Marsaglia 2003): fast, and incompressible.
fn fill_piece(piece: &mut [u8], seed: u64, number: usize) {
    let mut state = SeededRng::new(seed ^ ((number as u64) << 20)).next_u64() | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (words, rest) = piece.as_chunks_mut::<8>();
    for word in words {
        *word = next().to_le_bytes();
    }
    let last = next().to_le_bytes();
    rest.copy_from_slice(&last[..rest.len()]);
}

/// Returns a program with one large region of `length` incompressible bytes.
pub fn source(length: u64, seed: u64) -> Result<OwnedSource> {
    let length = usize::try_from(length)
        .map_err(|_| Error::invalid("the state is larger than memory can be"))?;
    let mut source = OwnedSource::zeroed("state", length, default_threads());
    fill(edit(&mut source)?, seed);
    Ok(source)
}

/// Makes noise compressible to about a third: of eight bytes five become zero.
pub fn thin_out(bytes: &mut [u8]) {
    let pieces: Vec<&mut [u8]> = bytes.chunks_mut(PIECE_BYTES).collect();
    parallel(pieces, default_threads(), |piece| {
        for word in piece.as_chunks_mut::<8>().0 {
            *word = (u64::from_le_bytes(*word) & 0x00FF_FFFF).to_le_bytes();
        }
    });
}

/// Returns the memory of a source that no save is reading.
pub fn edit(source: &mut OwnedSource) -> Result<&mut [u8]> {
    source.edit().ok_or_else(|| Error::bug("a save still reads the state after its commit"))
}

/// Gives page `page` new bytes.
pub fn change_page(bytes: &mut [u8], page: u64, rng: &SeededRng) {
    let start = page as usize * PAGE_BYTES;
    let end = (start + PAGE_BYTES).min(bytes.len());
    fill_piece(&mut bytes[start..end], rng.next_u64(), 0);
}

/// Creates a pool with the defaults.
pub fn pool(path: &Path) -> Result<Pool> {
    pool_with(path, Tuning::default())
}

/// Creates a pool with other tuning.
pub fn pool_with(path: &Path, tuning: Tuning) -> Result<Pool> {
    let mut id = [0; 16];
    SystemRng.fill(&mut id);
    let config = PoolConfig::new(FormatConfig::new(id), tuning);
    outlive_pool::create(path, config, Environment::system())
}

/// Opens the bench's job again.
pub fn job(pool: &Pool) -> Result<Job> {
    Job::open(pool, JOB, JobOptions::default())
}

/// Saves and waits for the commit.
pub fn save(job: &Job, source: &mut OwnedSource) -> Result<SaveStats> {
    let handle = job.save(source)?;
    handle.wait(None).unwrap_or_else(|| Err(Error::bug("a wait without limit ended early")))
}

/// Restores the newest checkpoint, as a program does that restarts.
pub fn restore(pool: &Pool, memory: &Memory) -> Result<()> {
    let restored = job(pool)?.restore(
        Select::Newest,
        &mut |checkpoint| Ok(((0..checkpoint.streams().len()).collect(), BorrowedMemory(memory))),
        &mut |_, _| Ok(()),
    )?;
    restored.map(drop).ok_or_else(|| Error::bug(format!("job {JOB} lost its checkpoint")))
}

/// Checks that a restore has returned the saved bytes.
pub fn check(memory: Memory, seed: u64) -> Result<()> {
    match is_filled(&memory.into_bytes()?, seed) {
        true => Ok(()),
        false => Err(Error::bug("a restore handed back other bytes than were saved")),
    }
}

/// One stream's memory, as a restore fills it: with hashes for the save that follows.
pub struct Memory(Scatter);

impl Memory {
    /// Returns fresh memory: each page is allocated at its first touch.
    pub fn fresh(length: u64) -> Result<Memory> {
        let length = usize::try_from(length)
            .map_err(|_| Error::invalid("the state is larger than memory can be"))?;
        Scatter::learning(vec![MutRegion::zeroed(length)]).map(Memory)
    }

    /// Returns the bytes.
    pub fn into_bytes(self) -> Result<AlignedBuf> {
        let stream = self.0.into_streams().pop().and_then(MutRegion::into_bytes);
        stream.ok_or_else(|| Error::bug("restored memory was lost"))
    }
}

/// A reference to a [`Memory`] for one restore, so that it can be used again.
pub struct BorrowedMemory<'a>(pub &'a Memory);

impl RestoreSink for BorrowedMemory<'_> {
    fn write(&self, stream: usize, offset: u64, bytes: &[u8]) {
        self.0.0.write(stream, offset, bytes);
    }

    fn zero(&self, stream: usize, offset: u64, length: u64) {
        self.0.0.zero(stream, offset, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_recognised() {
        let mut bytes = vec![0; 3 * PIECE_BYTES + 13];
        fill(&mut bytes, 7);
        assert!(is_filled(&bytes, 7) && !is_filled(&bytes, 8));
        assert_ne!(bytes[..100], bytes[PIECE_BYTES..][..100]);
        bytes[PIECE_BYTES * 2] ^= 1;
        assert!(!is_filled(&bytes, 7));
        change_page(&mut bytes, 768, &SeededRng::new(1));
        assert!(bytes[768 * PAGE_BYTES..].iter().any(|byte| *byte != 0));
    }
}
